"""Segmentations drawn at random: what they may be, how often, the same everywhere."""

import itertools
import math
import pickle
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import Sampling, SentencePieceTokenizer
from tests.tokenizers.test_sentence_piece import MODELS, TEXTS, TYPES

BPE, UNIGRAM = MODELS["bpe", True], MODELS["unigram", True]


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None, max_examples=50)
@given(
    texts=st.lists(st.text("  thegardnäß😀\t\0", max_size=40), max_size=4),
    rate=st.sampled_from([0.05, 0.5, 1.0]),
    seed=st.tuples(st.integers(0, 2**64), st.integers(0, 9)),
)
def test_every_draw_spells_the_text(kind, texts, rate, seed):
    tokenizer = MODELS[kind, True]
    ids = tokenizer.tokenize(texts, Sampling(rate, seed))
    assert tokenizer.detokenize(ids) == texts
    assert all(row[-1] == 2 and min(row[:-1], default=4) > 3 for row in ids)
    assert ids == tokenizer.tokenize(texts, Sampling(rate, seed))


@pytest.mark.parametrize("kind", TYPES)
def test_draws_depend_on_the_seed_alone(kind):
    """(In all processes: test_fresh_process.)"""
    first, second = MODELS[kind, True], pickle.loads(pickle.dumps(MODELS[kind, True]))
    second.tokenize(TEXTS, Sampling(0.3, (9,)))  # what was drawn before is no matter
    texts = TEXTS * 40 + ["x" * 30]
    expected = first.tokenize(texts, Sampling(0.3, (1, 2, 3)))
    assert expected == second.tokenize(texts, Sampling(0.3, [1, 2, 3]))
    assert expected != first.tokenize(texts, Sampling(0.3, (1, 2, 4)))
    assert expected != first.tokenize(texts, Sampling(0.4, (1, 2, 3)))


@pytest.mark.parametrize("kind", TYPES)
def test_rate_zero_is_the_best_segmentation(kind):
    tokenizer = MODELS[kind, True]
    assert tokenizer.tokenize(TEXTS, Sampling(0, (1,))) == tokenizer.tokenize(TEXTS)


@pytest.mark.parametrize("kind", TYPES)
def test_small_rates_come_close_to_it(kind, multi30k):
    """Our merges and lattices are those of sentencepiece."""
    lines = multi30k("test2016.de")
    tokenizer = SentencePieceTokenizer.train(lines, 1500, kind)
    drawn = tokenizer.tokenize(lines, Sampling(1e-9 if kind == "bpe" else 0.01, (1,)))
    best = tokenizer.tokenize(lines)
    assert sum(a != b for a, b in zip(drawn, best, strict=True)) <= 3


def test_merges_all_left_out_are_characters():
    (ids,) = BPE.tokenize(["the park"], Sampling(1.0, (1,)))
    assert BPE.to_tokens(ids) == list("▁the▁park")


def merged(tokenizer, word, skips):
    """BPE with the decisions given, by searching all pairs again and again.

    Also the number of decisions. A pair that was skipped stays skipped as long as its
    two symbols, known by their places, stay what they are.
    """
    processor = tokenizer._processor
    symbols = [(i, character) for i, character in enumerate(word)]
    skipped, used = set(), 0
    while True:
        pairs = []
        for place, (left, right) in enumerate(itertools.pairwise(symbols)):
            piece = left[1] + right[1]
            index = processor.piece_to_id(piece)
            if index > 3 and (left, right) not in skipped:
                pairs.append((-processor.get_score(index), left[0], place, piece))
        if not pairs:
            return tuple(symbol for _, symbol in symbols), used
        _, _, place, piece = min(pairs)
        used += 1
        if skips[used - 1]:
            skipped.add((symbols[place], symbols[place + 1]))
        else:
            symbols[place : place + 2] = [(symbols[place][0], piece)]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_bpe_dropout_draws_by_its_probabilities(rate):
    """Against the sum over all rows of decisions."""
    word, draws = "▁park", 20_000
    expected = Counter()
    seen = set()
    for skips in itertools.product([False, True], repeat=3 * len(word)):
        pieces, used = merged(BPE, word, skips)
        if skips[:used] not in seen:
            seen.add(skips[:used])
            chance = math.prod(rate if skip else 1 - rate for skip in skips[:used])
            expected[pieces] += chance
    assert math.isclose(expected.total(), 1)
    rows = BPE.tokenize(["park"] * draws, Sampling(rate, (7,)))
    found = Counter(tuple(BPE.to_tokens(row)) for row in rows)
    assert len(expected) > 3 and set(found) <= set(expected)
    for pieces, chance in expected.items():
        error = math.sqrt(chance * (1 - chance) / draws)
        assert abs(found[pieces] / draws - chance) < 5 * error + 1e-4, pieces


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_unigram_draws_by_their_probabilities(rate):
    """Against all segmentations of a word."""
    processor, word, draws = UNIGRAM._processor, "▁garden", 20_000
    weights = {}
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        pieces = "".join(c + " " * cut for c, cut in zip(word, (*cuts, 0), strict=True))
        ids = [processor.piece_to_id(piece) for piece in pieces.split(" ")]
        if min(ids) > 3:
            score = sum(map(processor.get_score, ids))
            weights[tuple(pieces.split(" "))] = math.exp(score / rate)
    rows = UNIGRAM.tokenize(["garden"] * draws, Sampling(rate, (7,)))
    found = Counter(tuple(UNIGRAM.to_tokens(row)) for row in rows)
    assert len(weights) > 3 and set(found) <= set(weights)
    for pieces, weight in weights.items():
        chance = weight / sum(weights.values())
        error = math.sqrt(chance * (1 - chance) / draws)
        assert abs(found[pieces] / draws - chance) < 5 * error + 1e-4, pieces


def test_words_are_drawn_independently():
    counts = []
    for row in BPE.tokenize(["park park"] * 2000, Sampling(0.5, (1,))):
        pieces = BPE.to_tokens(row)
        starts = [i for i, piece in enumerate(pieces) if piece.startswith("\u2581")]
        counts.append((starts[1], len(pieces) - starts[1]))
    assert np.std(counts, axis=0).min() > 0.2
    assert abs(np.corrcoef(np.array(counts).T)[0, 1]) < 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate": -0.1}, "rate=-0.1"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"rate": "0.1"}, "rate='0.1'"),
        ({"seed": 5}, "seed=5"),
        ({"seed": (-1,)}, "seed=(-1,)"),
        ({"seed": (1.0,)}, "seed=(1.0,)"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Sampling(**{"rate": 0.1} | arguments)


def test_a_bpe_rate_is_a_probability():
    with pytest.raises(ValueError, match=r"at most 1. Received: rate=1.5"):
        BPE.tokenize(["the"], Sampling(1.5))
