"""The two-stage top-k and the normalizer against NumPy."""

import numpy as np
import pytest
from keras import ops

from keras_seqconv.decoding import Constraints, SearchOptions
from keras_seqconv.decoding.next_tokens import Blocks, block_size
from tests.decoding.fakes import Recurrent


@pytest.mark.parametrize("size", [7, 100, 9712, 10000, 4093])
@pytest.mark.parametrize("k", [1, 5, 10])
def test_top_k_is_exact_with_ties_to_the_lowest_id(size, k):
    k = min(k, size)
    random = np.random.default_rng(size)
    # Few values, so that there are ties within and between blocks.
    logits = random.integers(0, 40, size=(6, size)).astype("float32")
    logits[0] = 3.0
    logits[1] = -np.inf
    # A tie of the first block with one whose largest value is larger.
    logits[2] = -1.0
    logits[2, [5, 6, -2, -1]] = [7, 8, 7, 9]
    bias = np.zeros(size, "float32")
    bias[[1, 2]] = -np.inf
    bias[3] = -0.5
    if size > 200:
        bias[random.integers(0, 200, 5)] = -np.inf
    values, ids = Blocks.of(ops.convert_to_tensor(logits)).top_k(bias, k)
    total = logits + bias
    order = np.argsort(-total, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(total, order, axis=1)
    assert np.array_equal(ops.convert_to_numpy(values), found)
    # Which of several -inf is named does not matter.
    alive = found > -np.inf
    assert np.array_equal(ops.convert_to_numpy(ids)[alive], order[alive])


def test_blocks_divide_the_vocabulary_where_they_can():
    assert block_size(10000) == 50 and 10000 % 50 == 0
    assert block_size(32768) == 64
    assert block_size(9017) == 71  # no divisor between 32 and 64
    assert block_size(4093) == 64  # a prime number: padded


@pytest.mark.parametrize("size", [7, 1000, 1009])  # the last two: blocks, padding
def test_normalizer_is_exact_for_large_and_small_logits(size):
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, size)).astype("float32") * 5
    logits[1] += 1e4
    logits[2] -= 1e4
    found = Blocks.of(ops.convert_to_tensor(logits)).log_normalizer()
    wide = logits.astype("float64")
    largest = wide.max(axis=1)
    wanted = np.log(np.sum(np.exp(wide - largest[:, None]), axis=1)) + largest
    np.testing.assert_allclose(ops.convert_to_numpy(found), wanted, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_normalizer_of_a_broken_row_is_not_a_number_and_of_others_is_right(value):
    logits = np.zeros((3, 100), "float32")
    logits[1, 7] = value
    found = Blocks.of(ops.convert_to_tensor(logits)).log_normalizer()
    found = ops.convert_to_numpy(found)
    assert np.isnan(found[1])
    np.testing.assert_allclose(found[[0, 2]], np.log(100), rtol=1e-6)
    constraints = Constraints(
        Recurrent(100), SearchOptions(), ops.full((3,), 9, "int32")
    )
    following = constraints.next_tokens(ops.convert_to_tensor(logits), 1)
    for scores in (following.best(5)[1], following.all(), following.end):
        scores = ops.convert_to_numpy(scores)
        assert not np.isnan(scores).any() and (scores[1] == -np.inf).all()
        assert (scores[[0, 2]].max(-1) > -np.inf).all()
