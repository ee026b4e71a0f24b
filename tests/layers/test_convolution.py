"""Convolutions, modules, parts of ConvS2S: dropout, half precision, gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    GLU,
    ConvS2SBlock,
    DynamicConv,
    LightConv,
    LightConvModule,
    QueryConvModule,
    ScaleGradient,
)
from tests.backends import gradients, to_numpy
from tests.cases import quick_and_slow
from tests.layers.values import random, softmax

BOTH = [LightConv, DynamicConv]
INPUTS, NARROW = random(2, 7, 6), random(2, 6, 4)


@pytest.mark.parametrize("granularity", ["shared", "position"])
@pytest.mark.parametrize("layer_class", BOTH)
def test_drop_connect(layer_class, granularity):
    """Taps are dropped or scaled by 1 / (1 - rate), with the chosen granularity."""
    chosen = {"weight_dropout_mask": granularity}
    if granularity == {LightConv: "shared", DynamicConv: "position"}[layer_class]:
        chosen = {}  # the default
    layer = layer_class(
        2, 3, weight_dropout=0.5, seed=3, kernel_initializer="zeros", **chosen
    )
    inputs = np.ones((4, 50, 2), "float32")
    inner = to_numpy(layer(inputs, training=True))[:, 1:-1]
    np.testing.assert_allclose(to_numpy(layer(inputs))[:, 1:-1], 1, rtol=1e-5)
    thirds = inner / (2 / 3)  # each of three taps is 0 or 1/3 * 2
    np.testing.assert_allclose(thirds, np.round(thirds), atol=1e-5)
    different = {tuple(np.round(row)) for row in thirds.reshape(-1, 2)}
    if granularity == "shared":
        assert len(different) == 1
        calls = [to_numpy(layer(inputs, training=True))[:, 1] for _ in range(10)]
        assert len({call.tobytes() for call in calls}) > 1
    else:
        assert len(different) > 4
        assert len({row.tobytes() for row in inner}) == 4  # each draws its own
        assert abs(inner.mean() - 1) < 0.1


def test_softmax_is_computed_in_float32():
    """Logits that differ by less than half precision shows still order the taps."""
    layer = LightConv(1, 2, padding="causal", dtype="mixed_bfloat16")
    layer.build((None, None, 1))
    layer.kernel.assign([[100.0, 100.01]])
    kernel = to_numpy(layer.normalized_kernel())
    np.testing.assert_allclose(kernel, softmax(np.array([[100.0, 100.01]])), rtol=1e-5)


def test_softmax_of_made_kernels_is_computed_in_float32():
    layer = DynamicConv(2, 5, dtype="bfloat16")
    layer(INPUTS)
    kernels = layer.kernels(INPUTS)
    assert keras.backend.standardize_dtype(kernels.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(kernels).sum(-1), 1, atol=1e-6)


# --- Modules ---


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_glu_rounds_once(dtype):
    inputs = ops.cast(np.random.default_rng(0).normal(size=(64, 32)) * 4, dtype)
    outputs = GLU(dtype=dtype)(inputs)
    expected = GLU(dtype="float32")(ops.cast(inputs, "float32"))
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    # Rounded twice, by the sigmoid and by the product, a third of them would differ.
    different = ops.cast(outputs != ops.cast(expected, dtype), "float32")
    assert float(ops.mean(different)) < 0.001


@pytest.mark.parametrize("module_class", [LightConvModule, QueryConvModule])
def test_input_dropout_acts_before_the_projections(module_class):
    """In training only; the same inputs, dropped by hand, give the same outputs."""
    module = module_class(2, 3, input_dropout=0.5, seed=3)
    inputs = 1 + np.abs(NARROW)
    plain = to_numpy(module(inputs))
    np.testing.assert_array_equal(to_numpy(module(inputs, training=False)), plain)
    seen = []
    projection = module.input_projection.call

    def noted(inputs, training=None):
        seen.append(to_numpy(inputs))
        return projection(inputs)

    module.input_projection.call = noted
    outputs = to_numpy(module(inputs, training=True))
    module.input_projection.call = projection
    (dropped,) = seen
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(dropped[kept], 2 * inputs[kept], rtol=1e-5)
    np.testing.assert_allclose(to_numpy(module(dropped)), outputs, atol=1e-5)
    assert np.any(to_numpy(module(inputs, training=True)) != outputs)
    assert not hasattr(module_class(2, 3), "seed_generator")


# --- ConvS2S ---


@pytest.mark.parametrize("scale", [0, -2.0])
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


@pytest.mark.tensorflow
@pytest.mark.parametrize("heads", quick_and_slow([16], [512]))
def test_memory_of_a_step_does_not_grow_with_the_heads(heads):
    import tensorflow as tf

    layer, inputs = LightConv(heads, 4, padding="causal"), random(16, 1, 512)
    layer.build(inputs.shape)
    state = layer.get_initial_state(16)
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    layer.step(inputs, state)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    assert peak - before < 8 * 4 * 16 * 4 * 512  # windows (B, K, C) of float32


def test_a_query_of_another_length_is_refused_also_symbolically():
    for symbol in (np.ones, lambda shape: keras.Input(shape[1:], shape[0])):
        with pytest.raises(ValueError, match="`query` must have the shape"):
            DynamicConv(2, 3)(symbol((1, 6, 8)), symbol((1, 5, 8)))
        assert DynamicConv(2, 3)(symbol((1, 6, 8)), symbol((1, 6, 8))).shape == (
            1,
            6,
            8,
        )
