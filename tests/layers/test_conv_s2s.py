"""ConvS2S: gradient scale, residual, block, attention, and fairseq's golden model."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    ConvS2SAttention,
    ConvS2SBlock,
    ScaledResidual,
    ScaleGradient,
    WeightNormDense,
)
from tests.backends import gradients, layer_gradients, to_numpy
from tests.layers.values import (
    assert_close,
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
    """Position by position, from the effective weights."""
    x = inputs if mask is None else inputs * mask[..., None]
    kernel = to_numpy(block.convolution.effective_kernel())
    bias = to_numpy(block.convolution.bias)
    taps, time = block.kernel_size, x.shape[1]
    left = taps - 1 if block.padding == "causal" else (taps - 1) // 2
    outputs = np.zeros((*x.shape[:2], block.filters))
    for t in range(time):
        y = bias
        for j in range(taps):
            if 0 <= t + j - left < time:
                y = y + x[:, t + j - left] @ kernel[j]
        outputs[:, t] = y[..., : block.filters] * sigmoid(y[..., block.filters :])
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
    outputs = to_numpy(block(inputs, mask=mask))
    assert_close(outputs, expected)


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
    """Row by row and position by position; returns outputs and weights."""
    beams = len(inputs) // len(keys)
    query = dense(layer.in_projection, inputs) + target_embeddings
    weights = np.zeros((*inputs.shape[:2], keys.shape[1]))
    context = np.zeros((*inputs.shape[:2], values.shape[2]))
    for row in range(len(inputs)):
        sentence = row // beams
        real = np.arange(keys.shape[1])
        if mask is not None:
            real = real[mask[sentence]]
        if not len(real):
            continue
        for t in range(inputs.shape[1]):
            scores = keys[sentence, real] @ query[row, t] * np.sqrt(0.5)
            odds = np.exp(scores - scores.max())
            weights[row, t, real] = odds / odds.sum()
            mean = weights[row, t] @ values[sentence]
            context[row, t] = mean * len(real) * np.sqrt(1 / len(real))
    projected = dense(layer.out_projection, context)
    return (projected + inputs) * np.sqrt(0.5), weights


@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "masked"])
@pytest.mark.parametrize("beams", [1, 3])
def test_attention_equals_loops(beams, mask):
    given = attention_inputs(beams=beams)
    layer = make_attention(given)
    expected, expected_weights = reference_attention(layer, **given, mask=mask)
    outputs = to_numpy(layer(**given, keys_mask=mask))
    assert_close(outputs, expected)
    given.pop("values")
    weights = layer.attention_weights(**given, keys_mask=mask)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(weights, expected_weights)


@pytest.mark.tensorflow
def test_attention_shares_keys_between_beams_with_unknown_shapes():
    import tensorflow as tf

    layer = make_attention(attention_inputs())
    signature = [tf.TensorSpec([None, None, width]) for width in (5, 3, 3, 4)]
    mask = tf.TensorSpec([None, None], "bool")

    @tf.function(input_signature=[*signature, mask])
    def run(*arguments):
        *arguments, keys_mask = arguments
        return layer(*arguments, keys_mask=keys_mask)

    for beams in (1, 3):
        given = attention_inputs(beams=beams)
        expected, _ = reference_attention(layer, **given, mask=MASK)
        outputs = to_numpy(run(*given.values(), MASK))
        assert_close(outputs, expected)
    empty = attention_inputs(batch=0)
    assert run(*empty.values(), np.zeros((0, 7), bool)).shape == (0, 4, 5)


def test_attention_without_real_source_positions_has_no_context():
    given = attention_inputs()
    layer = make_attention(given)
    mask = np.array([[True] * 7, [False] * 7])
    outputs = to_numpy(layer(**given, keys_mask=mask))
    bias = to_numpy(layer.out_projection.bias)
    expected = (bias + given["inputs"][1]) * np.sqrt(0.5)
    assert_close(outputs[1], expected)
    found = layer_gradients(
        layer, lambda *a: layer(*a, keys_mask=mask), *given.values()
    )
    assert all(np.all(np.isfinite(to_numpy(gradient))) for gradient in found)
    by_keys, by_values = to_numpy(found[2]), to_numpy(found[3])
    assert np.all(by_keys[1] == 0) and np.all(by_values[1] == 0)
    assert np.any(by_keys[0] != 0) and np.any(by_values[0] != 0)
    given.pop("values")
    weights = to_numpy(layer.attention_weights(**given, keys_mask=mask))
    np.testing.assert_allclose(weights[0].sum(axis=-1), 1, rtol=1e-5)
    assert np.all(weights[1] == 0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_attention_weights_are_float32_under_mixed_policies(policy):
    given = attention_inputs(beams=2)
    given.pop("values")
    reference = make_attention(attention_inputs(beams=2))
    layer = ConvS2SAttention(dtype=policy)
    layer.build(*(value.shape for value in attention_inputs(beams=2).values()))
    layer.set_weights(reference.get_weights())
    weights = layer.attention_weights(**given, keys_mask=MASK)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(np.sum(to_numpy(weights), axis=-1), 1, rtol=1e-5)
    expected = reference.attention_weights(**given, keys_mask=MASK)
    np.testing.assert_allclose(to_numpy(weights), to_numpy(expected), atol=0.03)


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


def test_folding_keeps_the_outputs_also_after_reloading(tmp_path):
    given = attention_inputs()
    symbols = {
        name: keras.Input((None, value.shape[-1]), name=name)
        for name, value in given.items()
    }
    x = ConvS2SBlock(5, 3)(symbols["inputs"])
    x = ConvS2SBlock(4, 2, padding="causal")(x)
    y = ConvS2SAttention()(
        x, symbols["target_embeddings"], symbols["keys"], symbols["values"]
    )
    outputs = ScaledResidual()(y, symbols["inputs"])
    model = keras.Model(symbols, outputs)
    randomized(model)
    before = model.predict(given, verbose=0)
    for layer in model.layers:
        if hasattr(layer, "fold"):
            layer.fold()
    names = [weight.name for weight in model.trainable_weights]
    assert names == ["kernel", "bias"] * 6
    assert_close(model(given), before)
    model.save(tmp_path / "folded.keras")
    again = keras.saving.load_model(tmp_path / "folded.keras")
    assert [weight.name for weight in again.trainable_weights] == names
    assert_close(again.predict(given, verbose=0), before)


def load_linear(layer, weights, prefix):
    layer.v.assign(weights[f"{prefix}.weight_v"].T)
    layer.g.assign(weights[f"{prefix}.weight_g"][:, 0])
    layer.bias.assign(weights[f"{prefix}.bias"])
    return layer


def golden_linear(weights, prefix):
    units, width = weights[f"{prefix}.weight_v"].shape
    layer = WeightNormDense(units)
    layer.build((None, width))
    return load_linear(layer, weights, prefix)


def golden_block(weights, side, index, padding, residual=True):
    prefix = f"{side}.convolutions.{index}"
    v = weights[f"{prefix}.weight_v"]
    taps, width, filters = v.shape
    block = ConvS2SBlock(filters // 2, taps, padding=padding, residual=residual)
    block.build((None, None, width))
    block.convolution.v.assign(v)
    block.convolution.g.assign(weights[f"{prefix}.weight_g"].ravel())
    block.convolution.bias.assign(weights[f"{prefix}.bias"])
    return block


def golden_embedding(weights, side, ids):
    pad = 1
    positions = np.where(ids == pad, pad, np.cumsum(ids != pad, axis=1) + pad)
    tokens = weights[f"{side}.embed_tokens.weight"][ids]
    return tokens + weights[f"{side}.embed_positions.weight"][positions]


def golden_encoder(weights, ids, num_attentions=3):
    mask = ids != 1
    embedded = golden_embedding(weights, "encoder", ids)
    x = golden_linear(weights, "encoder.fc1")(embedded)
    for index in range(3):
        block = golden_block(weights, "encoder", index, "same")
        prefix = f"encoder.projections.{index}"
        projection = block.scaled_residual.projection
        assert (projection is not None) == (f"{prefix}.bias" in weights)
        if projection is not None:
            load_linear(projection, weights, prefix)
        x = block(x, mask=mask)
    x = golden_linear(weights, "encoder.fc2")(x)
    x = ops.where(mask[..., None], x, ops.zeros_like(x))
    keys = ScaleGradient(1 / (2 * num_attentions))(x)
    return keys, ScaledResidual()(keys, embedded)


def test_golden_encoder(golden):
    weights = np.load(golden / "fconv/weights.npz")
    expected = np.load(golden / "fconv/expected.npz")
    args = json.loads((golden / "fconv/args.json").read_text())
    assert args["encoder_layers"] == "[(16, 3)] * 2 + [(24, 5)]"
    ids = expected["source_ids"]
    keys, values = golden_encoder(weights, ids)
    np.testing.assert_allclose(to_numpy(keys), expected["encoder_out"], atol=1e-4)
    np.testing.assert_allclose(
        to_numpy(values), expected["encoder_out_attention_values"], atol=1e-4
    )


def test_golden_decoder(golden):
    weights = np.load(golden / "fconv/weights.npz")
    expected = np.load(golden / "fconv/expected.npz")
    ids = expected["prev_target_ids"]
    source = expected["encoder_out"], expected["encoder_out_attention_values"]
    mask = expected["source_ids"] != 1
    embedded = golden_embedding(weights, "decoder", ids)
    x = golden_linear(weights, "decoder.fc1")(embedded)
    for index in range(3):
        skip = x
        x = golden_block(weights, "decoder", index, "causal", residual=False)(x)
        attention = ConvS2SAttention()
        attention.build(x.shape, embedded.shape, source[0].shape, source[1].shape)
        prefix = f"decoder.attention.{index}"
        load_linear(attention.in_projection, weights, f"{prefix}.in_projection")
        load_linear(attention.out_projection, weights, f"{prefix}.out_projection")
        x = attention(x, embedded, *source, keys_mask=mask)
        residual = ScaledResidual()
        residual.build(x.shape, skip.shape)
        if residual.projection is not None:
            prefix = f"decoder.projections.{index}"
            load_linear(residual.projection, weights, prefix)
        x = residual(x, skip)
    x = golden_linear(weights, "decoder.fc2")(x)
    logits = to_numpy(golden_linear(weights, "decoder.fc3")(x))
    limit = 1e-4 * max(1.0, np.abs(expected["logits"]).max() / 5)
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=limit)


@pytest.mark.tensorflow
def test_attention_in_float64_is_float64_throughout():
    rng = np.random.default_rng(0)
    h, g, keys, values = (rng.normal(size=(2, 5, 4)) for _ in range(4))
    layer = ConvS2SAttention(dtype="float64")
    outputs = to_numpy(layer(h, g, keys, values, keys_mask=MASK[:, :5]))
    query = (dense(layer.in_projection, h) + g) * np.sqrt(0.5)
    weights = np.where(MASK[:, None, :5], np.exp(query @ keys.swapaxes(1, 2)), 0)
    weights /= weights.sum(axis=-1, keepdims=True)
    context = weights @ values * np.sqrt(MASK[:, :5].sum(axis=1))[:, None, None]
    expected = (dense(layer.out_projection, context) + h) * np.sqrt(0.5)
    np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-12)
