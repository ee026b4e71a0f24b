"""Dropout: shares, scale, gradients, seeds."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.ops.fused import dropout
from tests.backends import to_numpy


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75, 1 - 2**-15])
@pytest.mark.parametrize("shape", [(64, 32, 32), (65, 33, 31), (70001,), (2**22,)])
def test_share_of_zeros_and_scale(shape, rate):
    """Also where an odd number of 16-bit decisions is needed, and of few that stay."""
    generator = keras.random.SeedGenerator(3)
    outputs = to_numpy(dropout(ops.ones(shape), rate, generator))
    zeros = np.mean(outputs == 0)
    deviation = np.sqrt(rate * (1 - rate) / outputs.size)
    assert abs(zeros - rate) < 5 * deviation
    np.testing.assert_allclose(outputs[outputs != 0], 1 / (1 - rate), rtol=1e-4)


def test_neighbours_are_independent():
    """Two decisions come from one random word: they must not agree more often."""
    outputs = to_numpy(
        dropout(ops.ones((1000, 64)), 0.5, keras.random.SeedGenerator(1))
    )
    kept = (outputs != 0).astype(float) - 0.5
    for distance in (1, 2, 3):
        together = np.mean(kept[:, distance:] * kept[:, :-distance]) * 4
        assert abs(together) < 5 / np.sqrt(kept.size)


def test_every_call_draws_anew_and_seeds_repeat():
    x = ops.ones((50, 50))
    first, second = keras.random.SeedGenerator(7), keras.random.SeedGenerator(7)
    one, two = (to_numpy(dropout(x, 0.5, first)) for _ in range(2))
    assert not np.array_equal(one, two)
    assert np.array_equal(one, to_numpy(dropout(x, 0.5, second)))


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", pytest.param("float64", marks=pytest.mark.tensorflow)],
)
def test_dtype_is_kept(dtype):
    outputs = dropout(ops.ones((8, 7), dtype), 0.4, keras.random.SeedGenerator(1))
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert set(np.unique(to_numpy(ops.cast(outputs, "float32")) > 0)) == {False, True}


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 5)])
def test_empty(shape):
    assert dropout(ops.ones(shape), 0.5, keras.random.SeedGenerator(1)).shape == shape


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradient_uses_the_same_mask(jit_compile):
    import tensorflow as tf

    generator = keras.random.SeedGenerator(5)

    @tf.function(jit_compile=jit_compile)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = dropout(x, 0.3, generator)
            total = tf.reduce_sum(outputs)
        return outputs, tape.gradient(total, x)

    x = tf.random.normal((40, 31))
    outputs, gradient = both(x)
    np.testing.assert_allclose(outputs, gradient * x, rtol=1e-6)
    again, _ = both(x)
    assert not np.array_equal(outputs, again)
