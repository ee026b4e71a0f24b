"""The two-stage top-k and the normalizer against NumPy; limits; n-grams of a start."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.decoding import SearchOptions
from keras_seqconv.decoding.next_tokens import Constraints, VocabularyBlocks
from tests.backends import to_numpy
from tests.decoding.fakes import PAD, Recurrent


@pytest.mark.parametrize("size", [7, 9712, 4093])
@pytest.mark.parametrize("k", [1, 10])
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
    values, ids = VocabularyBlocks.of(ops.convert_to_tensor(logits)).top_k(bias, k)
    total = logits + bias
    order = np.argsort(-total, axis=1, kind="stable")[:, :k]
    wanted = np.take_along_axis(total, order, axis=1)
    assert np.array_equal(to_numpy(values), wanted)
    # Which of several -inf is named does not matter.
    alive = wanted > -np.inf
    assert np.array_equal(to_numpy(ids)[alive], order[alive])


@pytest.mark.parametrize("size", [7, 1000, 1009])  # the last two: blocks, padding
def test_normalizer_is_exact_for_large_and_small_logits(size):
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, size)).astype("float32") * 5
    logits[1] += 1e4
    logits[2] -= 1e4
    found = VocabularyBlocks.of(ops.convert_to_tensor(logits)).log_normalizer()
    wide = logits.astype("float64")
    largest = wide.max(axis=1)
    wanted = np.log(np.sum(np.exp(wide - largest[:, None]), axis=1)) + largest
    np.testing.assert_allclose(to_numpy(found), wanted, rtol=1e-6)


def test_a_start_token_of_its_own_belongs_to_the_ngrams():
    model, options = Recurrent(8), SearchOptions(no_repeat_ngram_size=2)
    model.start_id = 5
    constraints = Constraints(model, options, ops.full((1,), 9, "int32"))
    history = ops.convert_to_tensor([[4, 5, PAD, PAD]], dtype="int32")
    following = constraints.next_tokens(ops.zeros((1, 8)), 2, history)
    # 5 4 5 -> no second 4 after 5.
    blocked = np.flatnonzero(to_numpy(following.all())[0] == -np.inf)
    assert set(blocked.tolist()) == {PAD, 4}


@pytest.mark.parametrize("positions", [None, 10])
@pytest.mark.parametrize("ratio", [0.1, 0.7, 1.2])
def test_limits_equal_pythons_arithmetic(ratio, positions):
    lengths = np.arange(60, dtype="int32")
    most = 10**6 if positions is None else positions - 1
    wanted = [min(int(ratio * n + 3), most) for n in range(60)]
    options = SearchOptions(max_length=3, max_length_ratio=ratio)
    for convert in (ops.convert_to_tensor, np.asarray):
        limits, longest = options.length_limits(convert(lengths), 59, positions)
        assert to_numpy(limits).tolist() == wanted and longest == wanted[-1]
    if keras.backend.backend() == "tensorflow":  # widths that are unknown
        limits, longest = options.length_limits(
            ops.convert_to_tensor(lengths), ops.convert_to_tensor(59), positions
        )
        assert to_numpy(limits).tolist() == wanted
        assert int(longest) == wanted[-1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_row_has_no_tokens_and_others_are_right(value):
    logits = np.zeros((3, 100), "float32")
    logits[1, 7] = value
    found = VocabularyBlocks.of(ops.convert_to_tensor(logits)).log_normalizer()
    found = to_numpy(found)
    assert np.isnan(found[1])
    np.testing.assert_allclose(found[[0, 2]], np.log(100), rtol=1e-6)
    limits = ops.full((3,), 9, "int32")
    constraints = Constraints(Recurrent(100), SearchOptions(), limits)
    following = constraints.next_tokens(ops.convert_to_tensor(logits), 1)
    for scores in (following.best(5)[1], following.all(), following.end):
        scores = to_numpy(scores)
        assert not np.isnan(scores).any() and (scores[1] == -np.inf).all()
        assert (scores[[0, 2]].max(-1) > -np.inf).all()
