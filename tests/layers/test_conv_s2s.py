"""ConvS2S: the gradient scale, dropout of the block, widths that do not fit."""

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
from tests.layers.values import random


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


def test_widths_that_do_not_fit_or_are_unknown():
    shapes = [(2, 4, 5), (2, 4, 3), (2, 7, 4), (2, 7, 4)]
    with pytest.raises(ValueError, match="`keys` must be as wide"):
        ConvS2SAttention().build(*shapes)
    shapes[1] = (2, 4, None)
    with pytest.raises(ValueError, match="`target_embeddings`"):
        ConvS2SAttention().build(*shapes)
    with pytest.raises(ValueError, match="`skip`"):
        ScaledResidual().build((2, 7, 5), (2, 7, None))
