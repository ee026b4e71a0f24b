"""Blocks of language models: fairseq's break modes and the context of evaluation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.data.blocks import BREAK_MODES, blocks

LINES = [[5, 6, 2], [7, 2], [2], [8, 9, 10, 2], [11, 2]]


def rows(*arguments, **options):
    """[(inputs, labels)] as lists."""
    found = list(blocks(*arguments, **options))
    for row in found:
        assert set(row) == {"target_ids", "labels"}
        assert all(ids.dtype == np.int32 for ids in row.values())
    return [(row["target_ids"].tolist(), row["labels"].tolist()) for row in found]


FOUR = [
    ([2, 5, 6], [5, 6, 2]),
    ([2, 7, 2], [7, 2, 2]),
    ([2, 8, 9, 10], [8, 9, 10, 2]),
    ([2, 11], [11, 2]),
]
FIVE = [
    ([2, 5, 6, 2, 7], [5, 6, 2, 7, 2]),
    ([2, 2, 8, 9, 10], [2, 8, 9, 10, 2]),
    ([2, 11], [11, 2]),
]
SIX = [
    ([2, 5, 6, 2, 7], [5, 6, 2, 7, 2]),
    ([2, 8, 9, 10, 2, 11], [8, 9, 10, 2, 11, 2]),
    ([2, 12], [12, 2]),
]
CONTEXT = [
    ([2, 5, 6], [5, 6, 2]),
    ([5, 6, 2, 7, 2], [1, 1, 7, 2, 2]),
    ([7, 2, 2, 8, 9], [1, 1, 8, 9, 10]),
    ([8, 9, 10, 2, 11], [1, 1, 2, 11, 2]),
]
LONG = [[5, 6, 2], [7, 8, 9, 10, 2], [11, 12, 13, 14, 15, 16, 2]]
LONG_LINES = [  # fairseq keeps them whole; they take the room of their context
    ([2, 5, 6], [5, 6, 2]),
    ([6, 2, 7, 8, 9, 10], [1, 7, 8, 9, 10, 2]),
    ([2, 11, 12, 13, 14, 15, 16], [11, 12, 13, 14, 15, 16, 2]),
]


@pytest.mark.parametrize(
    ("lines", "size", "mode", "window", "expected"),
    [
        (LINES, 5, "none", 0, FIVE),
        (LINES, 100, "none", 0, [([2, *sum(LINES, [])][:-1], sum(LINES, []))]),
        (LINES, 4, "complete", 0, FOUR),
        ([[2], *LINES, [2], [2], [12, 2]], 6, "complete_doc", 0, SIX),
        (LINES, 3, "eos", 0, [([2, *line[:-1]], line) for line in LINES]),
        (LINES, 5, "none", 2, CONTEXT),
        (LONG, 6, "complete", 3, LONG_LINES),
    ],
)
def test_rows_of_each_mode(lines, size, mode, window, expected):
    assert rows(lines, size, break_mode=mode, context_window=window) == expected


def slow_pieces(lines, size, mode):
    """Lists of lists, written from the description of the modes."""
    if mode == "none":
        stream = [token for line in lines for token in line]
        return [stream[i : i + size] for i in range(0, len(stream), size)]
    if mode in ("eos", "sentence"):
        return lines
    pieces = []
    open_piece = False
    for line in lines:
        if mode == "complete_doc" and line == [2]:
            open_piece = False
        elif open_piece and len(pieces[-1]) + len(line) <= size:
            pieces[-1] = pieces[-1] + line
        else:
            pieces.append(line)
            open_piece = True
    return pieces


some_lines = st.lists(
    st.lists(st.integers(4, 30), max_size=9).map(lambda line: [*line, 2]),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(
    lines=some_lines,
    size=st.integers(1, 9),
    window=st.integers(0, 7),
    mode=st.sampled_from(BREAK_MODES),
)
def test_every_token_is_scored_once(lines, size, window, mode):
    found = rows(lines, size + window, break_mode=mode, context_window=window)
    stream = [
        t for line in lines if mode != "complete_doc" or line != [2] for t in line
    ]
    scored = []
    for inputs, labels in found:
        known = labels.count(1)
        assert labels == [1] * known + labels[known:] and known <= window
        # The inputs are the stream before: the end token, then what was scored.
        past = [2, *scored, *labels[known:-1]]
        assert inputs == past[-len(inputs) :]
        assert len(inputs) <= size + window or (mode != "none" and known == 0)
        room = size + window - (len(labels) - known)
        assert known == max(0, min(window, len(scored), room))
        scored += labels[known:]
    assert scored == stream
    pieces = [[label for label in labels if label != 1] for _, labels in found]
    assert pieces == slow_pieces(lines, size, mode)


def test_endless_lines_in_little_memory():
    endless = itertools.cycle([[5, 6, 7, 2], [2]])
    for mode in BREAK_MODES:
        found = blocks(endless, 8, break_mode=mode, context_window=3)
        assert len(list(itertools.islice(found, 50))) == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens_per_sample": 0}, "`tokens_per_sample` must be a positive integer"),
        ({"tokens_per_sample": True}, "`tokens_per_sample` must be a positive integer"),
        ({"break_mode": "lines"}, "`break_mode` must be one of"),
        ({"context_window": -1}, "`context_window` must be an integer >= 0"),
        ({"context_window": 8}, "`context_window` must be smaller than"),
        ({"pad_id": -1}, "`pad_id` must be an integer >= 0"),
        ({"end_id": None}, "`end_id` must be an integer >= 0"),
    ],
)
def test_wrong_arguments_at_once(options, message):
    options = {"tokens_per_sample": 8, **options}
    with pytest.raises(ValueError, match=message):
        blocks(LINES, **options)


def test_wrong_lines():
    with pytest.raises(ValueError, match=r"end token 2.*line 2 = \[5\]"):
        list(blocks([[2], [5]], 4))
    with pytest.raises(ValueError, match=r"end token 2.*line 1 = \[\]"):
        list(blocks([[]], 4))
    with pytest.raises(ValueError, match=r"padding id 1.*line 1 = \[1, 2\]"):
        list(blocks([[1, 2]], 4))
    with pytest.raises(ValueError, match="at least one line"):
        list(blocks([], 4))
    assert list(blocks([[2]], 4, break_mode="complete_doc")) == []


def test_recipes_of_presets():
    from keras_seqconv.presets import PRESETS

    recipes = [p.recipe["blocks"] for p in PRESETS.values() if p.recipe["blocks"]]
    assert recipes
    for recipe in recipes:
        assert list(blocks([[5] * 700 + [2]] * 8, **recipe))
