"""Texts in batches of few shapes, several of them at a time."""

import random
import time

import pytest

from keras_seqconv.translation.text_model import Batch, batches_by_length, in_threads


def test_an_error_in_one_batch_ends_the_others():
    started = []

    def fails(batch):
        started.append(batch)
        time.sleep(0.01)
        raise ArithmeticError(f"batch of width {batch.width}")

    many = [Batch([0], width) for width in range(100)]
    with pytest.raises(ArithmeticError, match="batch of width 0"):
        list(in_threads(fails, many, 3))
    assert len(started) < 50


def test_batches_are_bounded_and_of_few_shapes():
    draw = random.Random(5)
    lengths = [draw.choice([0, 1, draw.randint(1, 300)]) for _ in range(500)]
    found = list(batches_by_length(lengths, 1000, 250))
    assert sorted(i for batch in found for i in batch.indices) == [
        index for index, length in enumerate(lengths) if length
    ]
    widths = [16, 24, 32, 48, 64, 96, 128, 192, 250]
    for batch in found:
        longest = min(250, max(lengths[index] for index in batch.indices))
        assert batch.width == min(width for width in widths if width >= longest)
        assert len(batch.indices) * batch.width <= 1000
    assert [
        next(batches_by_length([width], 1000, 250)).width for width in widths
    ] == widths
    assert list(batches_by_length([], 10, None)) == []
    # More than the bound, but it must run.
    (alone,) = batches_by_length([5000], 1000, None)
    assert alone.indices == [0]
