"""ConvS2S: gradient scale, residual, block, attention, and fairseq's golden model."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    ConvS2SAttention,
    ConvS2SBlock,
    ScaledResidual,
    ScaleGradient,
)
from tests.backends import gradients, to_numpy
from tests.layers.values import (
    assert_close,
    convolve,
    dense,
    lengths_mask,
    random,
    randomized,
    sigmoid,
)

MASK = lengths_mask([7, 4], 7)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scale_gradient_is_the_identity_to_the_bit(dtype):
    inputs = ops.cast(np.linspace(-100, 100, 1001) ** 3 / 20, dtype)
    outputs = ScaleGradient(0.3, dtype=dtype)(inputs)
    assert np.array_equal(to_numpy(outputs), to_numpy(inputs))


@pytest.mark.parametrize("scale", [0.25, 0, -2.0, 1.0])
def test_scale_gradient_scales_first_and_second_derivatives(scale):
    layer = ScaleGradient(scale)
    x = random(6)

    def loss(x):
        return ops.sum(layer(x) ** 3)

    def slope(x):
        return ops.sum(gradients(loss, x)[0])

    # The chain rule with d layer / d x = scale: once in the first derivative, once
    # more for the layer output that is still in it.
    first = to_numpy(gradients(loss, ops.convert_to_tensor(x))[0])
    np.testing.assert_allclose(first, 3 * scale * x**2, rtol=1e-5, atol=1e-6)
    second = gradients(slope, ops.convert_to_tensor(x))[0]
    np.testing.assert_allclose(to_numpy(second), 6 * scale**2 * x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [3, 5])
def test_scaled_residual_adds_and_projects_another_width(width):
    inputs, skip = random(2, 7, 5), random(2, 7, width, seed=1)
    layer = randomized(ScaledResidual(), inputs.shape, skip.shape)
    added = skip if width == 5 else dense(layer.projection, skip)
    assert_close(layer(inputs, skip), (inputs + added) * np.sqrt(0.5))


def reference_block(block, inputs, mask=None):
    """From the effective weights."""
    x = inputs if mask is None else inputs * mask[..., None]
    kernel = to_numpy(block.convolution.effective_kernel())
    y = convolve(x, kernel, to_numpy(block.convolution.bias), block.padding)
    outputs = y[..., : block.filters] * sigmoid(y[..., block.filters :])
    if not block.residual:
        return outputs
    skip = inputs
    if block.scaled_residual.projection is not None:
        skip = dense(block.scaled_residual.projection, inputs)
    return (outputs + skip) * np.sqrt(0.5)


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 9])
@pytest.mark.parametrize("filters, residual", [(3, True), (5, True), (5, False)])
@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "masked"])
def test_block_equals_loops(padding, kernel_size, filters, residual, mask):
    block = ConvS2SBlock(filters, kernel_size, padding=padding, residual=residual)
    inputs = random(2, 7, 3)
    randomized(block, inputs.shape)
    expected = reference_block(block, inputs, mask)
    assert_close(block(inputs, mask=mask), expected)


def test_block_dropout_spares_the_skip_tensor():
    block = ConvS2SBlock(3, 3, dropout=0.5, seed=1)
    inputs = random(2, 7, 3)
    block.build(inputs.shape)
    expected = to_numpy(block(inputs))
    trained = [to_numpy(block(inputs, training=True)) for _ in range(2)]
    assert np.any(trained[0] != trained[1])
    assert np.any(np.abs(trained[0] - expected) > 1e-3)
    # With a kernel of zeros, what is dropped no longer matters: the skip is whole.
    block.convolution.v.assign(0 * to_numpy(block.convolution.v))
    whole = to_numpy(block(inputs, training=True))
    np.testing.assert_allclose(whole, inputs * np.sqrt(0.5), rtol=1e-5)


def attention_inputs(batch=2, beams=1, time=4, source=7, channels=5, width=3):
    return {
        "inputs": random(batch * beams, time, channels),
        "target_embeddings": random(batch * beams, time, width, seed=1),
        "keys": random(batch, source, width, seed=2),
        "values": random(batch, source, width + 1, seed=3),
    }


def make_attention(given):
    layer = ConvS2SAttention()
    randomized(layer, *(value.shape for value in given.values()))
    return layer


def reference_attention(layer, inputs, target_embeddings, keys, values, mask=None):
    """Outputs and weights by the formula."""
    mask = np.ones(keys.shape[:2], bool) if mask is None else mask
    beams = len(inputs) // len(keys)
    keys, values, mask = (np.repeat(x, beams, axis=0) for x in (keys, values, mask))
    query = dense(layer.in_projection, inputs) + target_embeddings
    odds = np.exp(query @ keys.swapaxes(1, 2) * np.sqrt(0.5)) * mask[:, None]
    weights = odds / np.maximum(odds.sum(-1, keepdims=True), 1e-30)
    context = weights @ values * np.sqrt(mask.sum(axis=1))[:, None, None]
    projected = dense(layer.out_projection, context)
    return (projected + inputs) * np.sqrt(0.5), weights


@pytest.mark.parametrize(
    "mask", [None, MASK, lengths_mask([7, 0], 7)], ids=["full", "masked", "empty"]
)
@pytest.mark.parametrize("beams", [1, 3])
def test_attention_equals_the_formula(beams, mask):
    """Beams share keys and values, also where no shape is known."""
    given = attention_inputs(beams=beams)
    layer = make_attention(given)
    expected, expected_weights = reference_attention(layer, **given, mask=mask)
    assert_close(layer(**given, keys_mask=mask), expected)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec([None, None, width]) for width in (5, 3, 3, 4)]
        run = tf.function(partial(layer, keys_mask=mask), input_signature=signature)
        assert_close(run(*given.values()), expected)
        if mask is None:
            empty = attention_inputs(batch=0)
            assert run(*empty.values()).shape == (0, 4, 5)
    given.pop("values")
    weights = layer.attention_weights(**given, keys_mask=mask)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(weights, expected_weights)


def test_attention_needs_keys_as_wide_as_the_embeddings():
    given = attention_inputs()
    given["keys"] = random(2, 7, 4)
    with pytest.raises(ValueError, match="`keys` must be as wide"):
        make_attention(given)
    given["keys"] = random(2, 7, 3)
    shapes = [value.shape for value in given.values()]
    shapes[1] = (2, 4, None)
    with pytest.raises(ValueError, match="`target_embeddings`"):
        ConvS2SAttention().build(*shapes)
    with pytest.raises(ValueError, match="`skip`"):
        ScaledResidual().build((2, 7, 5), (2, 7, None))


@pytest.mark.tensorflow
def test_attention_in_float64_is_float64_throughout():
    given = {name: x.astype("float64") for name, x in attention_inputs().items()}
    layer = ConvS2SAttention(dtype="float64")
    outputs = to_numpy(layer(**given, keys_mask=MASK))
    expected, _ = reference_attention(layer, **given, mask=MASK)
    np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-12)
