"""Learning rates against float64 and the numbers of the specification."""

import math

import keras
import numpy as np
import pytest

from keras_seqconv.schedules import InverseSquareRoot, WarmupCosine
from tests.backends import compiled

UPDATES = [0, 1, 2, 99, 100, 101, 1999, 2000, 4000, 4001, 12345, 10**5 - 1, 10**6]


def inverse_square_root(n, rate, steps, start):
    return (
        start + n * (rate - start) / steps if n < steps else rate * (steps / n) ** 0.5
    )


def cosine(n, rate, steps, start, period, floor, growth, shrink):
    if n < steps:
        return start + n * (rate - start) / steps
    time, number, length = n - steps, 0, float(period)
    while time >= length:
        time, number, length = time - length, number + 1, length * growth
    low, high = floor * shrink**number, rate * shrink**number
    return low + (high - low) * (1 + math.cos(math.pi * time / length)) / 2


def test_numbers_of_the_specification():
    schedule = InverseSquareRoot(5e-4, 4000, 1e-7)
    for n, wanted in [(0, 1e-7), (2000, 2.5005e-4), (4000, 5e-4), (16000, 2.5e-4)]:
        np.testing.assert_allclose(schedule(n), wanted, rtol=1e-6)
    for n in UPDATES:
        wanted = inverse_square_root(n, 5e-4, 4000, 1e-7)
        np.testing.assert_allclose(schedule(n), wanted, rtol=5e-7, err_msg=str(n))
    schedule = WarmupCosine(1e-3, 10_000, 1e-7, 20_000, 1e-7)
    for n, wanted in [(0, 1e-7), (10_000, 1e-3), (20_000, 5.0005e-4), (30_000, 1e-3)]:
        np.testing.assert_allclose(schedule(n), wanted, rtol=1e-5)
    assert float(schedule(29_999)) < 1.01e-7  # before it restarts
    assert WarmupCosine(1e-3)(0) == np.float32(1e-3)  # without a warm-up, its default


@pytest.mark.parametrize("growth", [1.0, 2.0, 1.3])
@pytest.mark.parametrize("shrink", [1.0, 0.5])
def test_cosine(growth, shrink):
    arguments = (1e-3, 100, 1e-7, 1900, 1e-6, growth, shrink)
    schedule = compiled(WarmupCosine(*arguments))
    for n in UPDATES:
        wanted = cosine(n, *arguments)
        found = schedule(np.int32(n))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9, err_msg=str(n))


@pytest.mark.parametrize(
    "schedule",
    [InverseSquareRoot(1.0, 7, 0.1), WarmupCosine(1.0, 2, 0.1, 9, 0.2, 1.5, 0.7)],
)
def test_config(schedule):
    config = keras.saving.serialize_keras_object(keras.optimizers.SGD(schedule))
    again = keras.saving.deserialize_keras_object(config)
    again.build([keras.Variable(np.zeros(1))])
    again.iterations.assign(23)
    np.testing.assert_allclose(again.learning_rate, schedule(23))
