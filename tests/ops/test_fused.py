"""Dropout; dropout, residual connection and normalization as one operation."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqconv.ops import jit_scope
from keras_seqconv.ops.fused import add_and_norm, dropout
from tests.backends import gradients, modes, to_numpy


@pytest.mark.parametrize("rate", [0.3, 1 - 2**-15])
@pytest.mark.parametrize("shape", [(65, 33, 31), (2**22,)])
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


EPSILON = 1e-5


def draw(shape, seed=0):
    generator = np.random.default_rng(seed)
    inputs, branch, weights = generator.normal(size=(3, *shape)).astype("float32")
    gamma, beta = generator.normal(size=(2, shape[-1])).astype("float32")
    return inputs, branch, gamma, beta, weights


def call(inputs, branch, gamma, beta, rate=0.0, seed=(3, 5)):
    tensors = map(ops.convert_to_tensor, (inputs, branch, gamma, beta))
    seed = ops.convert_to_tensor(seed, dtype="uint32")
    return add_and_norm(*tensors, rate=rate, seed=seed, epsilon=EPSILON)


def expected(inputs, branch, gamma, beta):
    """By the formula, in float64."""
    rows = inputs.astype("float64") + branch
    centred = rows - rows.mean(-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + EPSILON) * gamma + beta


@settings(max_examples=8, deadline=None)
@given(
    batch=st.integers(1, 5),
    length=st.integers(1, 11),
    channels=st.integers(2, 40),
    mode=st.sampled_from(["eager", "graph", "xla"]),
)
def test_matches_the_loop(batch, length, channels, mode):
    """Whatever the number of rows, which are padded to few numbers."""
    *arguments, _ = draw((batch, length, channels), seed=batch)
    function = modes(call).get(mode, call)
    np.testing.assert_allclose(
        to_numpy(function(*arguments)), expected(*arguments), rtol=2e-4, atol=2e-4
    )


def test_gradients_match_differences():
    *arguments, weights = draw((2, 5, 6))

    def objective(*arguments):
        return np.sum(expected(*arguments) * weights)

    found = gradients(lambda *a: ops.sum(call(*a) * weights), *arguments)
    for number, gradient in enumerate(found):
        for place in np.ndindex(arguments[number].shape):
            moved = [value.astype("float64") for value in arguments]
            moved[number][place] += 1e-3
            upper = objective(*moved)
            moved[number][place] -= 2e-3
            slope = (upper - objective(*moved)) / 2e-3
            assert abs(to_numpy(gradient)[place] - slope) < 1e-3 * max(1, abs(slope))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_computed_in_float32(dtype):
    """Outputs and gradients are those of float32 up to one rounding at the end."""
    inputs, branch, gamma, beta, weights = draw((3, 7, 24))
    rounded = [ops.cast(value, dtype) for value in (inputs, branch)]
    exact = [ops.cast(value, "float32") for value in rounded]
    weights = ops.cast(ops.cast(weights, dtype), "float32")
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11

    def objective(*arguments):
        return ops.sum(ops.cast(call(*arguments), "float32") * weights)

    outputs = call(*rounded, gamma, beta)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    pairs = [(outputs, call(*exact, gamma, beta))]
    pairs += zip(
        gradients(objective, *rounded, gamma, beta),
        gradients(objective, *exact, gamma, beta),
        strict=True,
    )
    for got, value in pairs:
        np.testing.assert_allclose(
            to_numpy(ops.cast(got, "float32")),
            to_numpy(value),
            rtol=step,
            atol=step / 8,
        )


@pytest.mark.parametrize("rate", [0.1, 0.75])
def test_the_rest_is_scaled_and_the_gradient_has_the_same_mask(rate):
    inputs, branch, gamma, beta, weights = draw((8, 25, 64))

    def total(rate):
        return lambda *a: ops.sum(call(*a, rate=rate) * weights)

    found = gradients(total(rate), inputs, branch, gamma, beta)
    mask = to_numpy(found[1]) != 0
    deviation = np.sqrt(rate * (1 - rate) / mask.size)
    assert abs(np.mean(~mask) - rate) < 5 * deviation
    dropped = np.where(mask, branch / np.float32(1 - rate), 0)
    np.testing.assert_allclose(
        to_numpy(call(inputs, branch, gamma, beta, rate=rate)),
        expected(inputs, dropped, gamma, beta),
        rtol=2e-4,
        atol=2e-4,
    )
    wanted = gradients(total(0.0), inputs, dropped, gamma, beta)
    wanted[1] = to_numpy(wanted[1]) * mask / (1 - rate)
    for got, value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(to_numpy(got), to_numpy(value), rtol=1e-3, atol=1e-3)


def kept(shape, rate, seed):
    """Which numbers of the branch reach the sum, told by the gradient for it."""
    *arguments, weights = draw(shape)
    by_branch = gradients(
        lambda *a: ops.sum(call(*a, rate=rate, seed=seed) * weights), *arguments
    )[1]
    return to_numpy(by_branch) != 0


def test_masks_are_independent():
    """Of neighbours, rows, calls in sequence, and seeds one apart."""
    shape = (40, 25, 64)
    first = kept(shape, 0.5, (7, 11)) - 0.5
    further = [kept(shape, 0.5, seed) - 0.5 for seed in [(7, 12), (8, 11), (11, 7)]]
    flat = first.reshape(-1)
    shifted = [flat[distance:] * flat[:-distance] for distance in (1, 2, 64, 1600)]
    for product in (*[first * other for other in further], *shifted):
        assert abs(np.mean(product) * 4) < 5 / np.sqrt(product.size)


def test_one_mask_everywhere():
    """Eager, graph, XLA, without any XLA: the same seed drops the same numbers."""
    *arguments, _ = draw((3, 7, 20))  # 21 rows: padded where a function is compiled

    def dropped(*arguments):
        return call(*arguments, rate=0.3)

    expected = to_numpy(dropped(*arguments))
    for jit_compile in (True, False):
        with jit_scope(jit_compile):
            for function in modes(dropped).values():
                outputs = to_numpy(function(*arguments))
                np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_second_derivatives():
    """As of the composition that autodiff goes through."""
    inputs, branch, gamma, beta, weights = draw((2, 3, 8))

    def composed(inputs, branch, gamma, beta):
        return ops.layer_normalization(
            ops.convert_to_tensor(inputs) + branch, gamma, beta, -1, EPSILON
        )

    def of_gradient(function):
        def steepness(values):
            (slope,) = gradients(
                lambda x: ops.sum(function(x, branch, gamma, beta) * weights), values
            )
            return ops.sum(ops.square(slope))

        return to_numpy(gradients(steepness, inputs)[0])

    np.testing.assert_allclose(
        of_gradient(call), of_gradient(composed), rtol=1e-3, atol=1e-3
    )


def test_every_call_draws_anew_and_seeds_repeat():
    x = ops.ones((50, 50))
    first, second = keras.random.SeedGenerator(7), keras.random.SeedGenerator(7)
    masks = [to_numpy(dropout(x, 0.5, first)) for _ in range(2)]
    assert not np.array_equal(*masks)
    assert np.array_equal(masks[0], to_numpy(dropout(x, 0.5, second)))
