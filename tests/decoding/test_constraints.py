"""What hypotheses may say: rule by rule, and which rule comes before which."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv import decoding
from tests.decoding.fakes import END, PAD, UNK, Recurrent, Table

SOURCE = [[4, 5, 2], [6, 2, 1]]


def search(model=None, **options):
    """Targets as lists of tokens without the end, [sentence][rank]; scores."""
    model = model or Recurrent(14, seed=6)
    options = {"num_beams": 3, "max_length": 6, **options}
    ids, scores = decoding.beam_search(model, SOURCE, **options)
    found = [
        [row[: row.index(END)] if END in row else None for row in sentence]
        for sentence in ops.convert_to_numpy(ids).tolist()
    ]
    return found, ops.convert_to_numpy(scores)


class Short(Recurrent):
    """The end is the likeliest token, everywhere."""

    def step(self, ids, state):
        logits, state = super().step(ids, state)
        return 0.01 * logits + 5.0 * ops.one_hot(END, logits.shape[-1]), state


def test_lengths():
    model = Short(14, seed=6)
    found, _ = search(model, min_length=0)
    assert found[0][0] == [] and found[1][0] == []
    for least in (2, 4):
        found, _ = search(model, min_length=least, max_length=4)
        assert all(least <= len(row) <= 4 for rows in found for row in rows)
    found, _ = search(model, min_length=0, max_length=0)
    assert found == [[[], None, None]] * 2
    # A limit of a sentence comes before the minimum.
    found, _ = search(model, min_length=3, max_length=0, max_length_ratio=1.0)
    assert {len(row) for row in found[0]} == {3}
    assert {len(row) for row in found[1]} == {2}


def test_forced_end_has_the_score_of_the_model():
    model = Table(6, [{(): {4: 1.0}, (4,): {4: 0.75, END: 0.25}}])
    ids, scores = decoding.beam_search(
        model, [[0]], 1, length_penalty=0.0, max_length=1
    )
    assert ops.convert_to_numpy(ids).tolist() == [[[4, END]]]
    np.testing.assert_allclose(scores, [[np.log(0.25)]], rtol=1e-5)


def test_unknowns_and_suppressed_tokens():
    model = Recurrent(14, seed=6)
    model.output[:, UNK] = np.abs(model.output).max(axis=1)
    free, _ = search(model)
    loved, _ = search(model, unk_penalty=-100.0, stopping="optimal")
    hated, scores = search(model, unk_penalty=100.0)
    assert loved[0][0] == [UNK] * 6
    assert not any(UNK in row for rows in hated for row in rows)
    assert (scores > -20).all()  # nobody paid
    used = free[0][0][0]
    found, _ = search(model, suppressed_ids=[used, PAD])
    assert not any(used in row for rows in found for row in rows)


def test_prefixes_are_taken_first_of_all():
    prefix = np.array([[9, PAD, 9], [13, 4, 4]])
    found, scores = search(
        prefix_ids=prefix, suppressed_ids=[13], no_repeat_ngram_size=1, unk_penalty=2.0
    )
    assert all(row[0] == 9 and row[2] == 9 for row in found[0])
    assert all(row[:3] == [13, 4, 4] and 13 not in row[3:] for row in found[1])
    assert np.isfinite(scores).all()
    found, _ = search(prefix_ids=prefix, max_length=3)
    assert len({row[1] for row in found[0]}) == 3  # where it is padding: free
    found, _ = search(prefix_ids=[[9, 0, 0]] * 2, max_length=4)  # 0 is a token too
    assert all(row[:3] == [9, 0, 0] for row in found[0] + found[1])


def test_prefix_with_an_end_token_has_one_result():
    model = Recurrent(14, seed=6)
    found, scores = search(model, prefix_ids=[[9, END, 5], [PAD, END, PAD]])
    assert found[0] == [[9], None, None] and (scores[0, 1:] == -np.inf).all()
    # The best beam of the second sentence is the one that ends.
    logits = model.logits(SOURCE[1], [])
    logits[[PAD, END]] = -np.inf
    assert found[1] == [[int(np.argmax(logits))], None, None]


def test_prefix_longer_than_the_limit_is_cut():
    found, _ = search(prefix_ids=[[9, 8, 7, 6]] * 2, max_length=2)
    assert found == [[[9, 8], None, None]] * 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_repeated(size):
    # A model that repeats itself when it may.
    model = Recurrent(10, seed=1)
    model.recurrent *= 0.1
    free, _ = search(model, max_length=8, min_length=7)
    found, _ = search(model, max_length=8, min_length=7, no_repeat_ngram_size=size)

    def repeats(tokens):
        tokens = ([END] if size > 1 else []) + tokens
        grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        return len(grams) > len(set(grams))

    assert any(repeats(row) for rows in free for row in rows)
    assert not any(repeats(row) for rows in found for row in rows)


def test_a_start_token_of_its_own_belongs_to_the_ngrams():
    model = Recurrent(8)
    model.start_id = 5
    constraints = decoding.Constraints(
        model, decoding.SearchOptions(no_repeat_ngram_size=2), ops.full((1,), 9)
    )
    history = ops.convert_to_tensor([[4, 5, PAD, PAD]], dtype="int32")
    following = constraints.next_tokens(ops.zeros((1, 8)), 2, history)
    # 5 4 5 -> no second 4 after 5.
    blocked = np.flatnonzero(ops.convert_to_numpy(following.all())[0] == -np.inf)
    assert set(blocked.tolist()) - {PAD} == {4}


@pytest.mark.parametrize("most", [None, 9])
@pytest.mark.parametrize("ratio", [0.1, 0.7, 1.1, 1.2, 2.3])
def test_limits_equal_pythons_arithmetic(ratio, most):
    lengths = np.arange(60, dtype="int32")
    wanted = [min(int(ratio * n + 3), most - 1 if most else 10**6) for n in range(60)]
    options = decoding.SearchOptions(max_length=3, max_length_ratio=ratio)
    limits, bound = options.length_limits(lengths, 59, most)
    assert ops.convert_to_numpy(limits).tolist() == wanted and bound == wanted[-1]
    if keras.backend.backend() == "tensorflow":  # widths that are unknown
        limits, bound = options.length_limits(
            ops.convert_to_tensor(lengths), ops.convert_to_tensor(59), most
        )
        assert ops.convert_to_numpy(limits).tolist() == wanted
        assert int(bound) == wanted[-1]
