"""Texts become rows of right lengths; what is written comes back, damage is told."""

import itertools
import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.data.ids import IdStore, blocks, encode

PAIRS = [
    {"source_ids": [5, 6, 2], "target_ids": [7, 2]},
    {"source_ids": [8, 2], "target_ids": [9, 10, 11, 2]},
    {"source_ids": [2], "target_ids": [65535, 2]},
]


def rows_of(store):
    return [{key: ids.tolist() for key, ids in row.items()} for row in store]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.name[-4:] != "lock")


# --- Texts to rows ---


class Letters:
    """Ids are code points."""

    def tokenize(self, texts):
        assert isinstance(texts, list)
        return [[*map(ord, text), 2] for text in texts]


def encoded(*pairs, **options):
    """Texts of the rows, from blocks of two."""
    blocks = [
        tuple(map(list, zip(*pairs[i : i + 2], strict=True)))
        for i in range(0, len(pairs), 2)
    ]
    rows = list(encode(blocks, Letters(), Letters(), **options))
    assert all(ids[-1] == 2 for row in rows for ids in row.values())
    return [tuple("".join(map(chr, ids[:-1])) for ids in r.values()) for r in rows]


SHORT = {"too_short": 1}


@pytest.mark.parametrize(
    ("options", "kept", "counts"),
    [
        ({}, "abcd", SHORT),
        ({"min_length": 2}, "bcd", {"too_short": 2}),
        ({"max_length": 4}, "abd", {**SHORT, "too_long": 1}),
        ({"max_length": 5}, "abcd", SHORT),
        ({"max_ratio": 2}, "abd", {**SHORT, "ratio": 1}),
        ({"max_ratio": 2.5}, "abcd", SHORT),
        # The first reason that applies.
        ({"max_length": 4, "max_ratio": 2}, "abd", {**SHORT, "too_long": 1}),
        ({"max_length": (4, 9)}, "abd", {**SHORT, "too_long": 1}),
        ({"max_length": (5, 4)}, "abcd", SHORT),
        # Lengths are those of what is cut.
        ({"max_length": 4, "truncate_source": 5}, "abcd", {**SHORT, "truncated": 1}),
    ],
)
def test_rows_whose_lengths_are_wrong_are_left_out_and_counted(options, kept, counts):
    pairs = [("a", "a"), ("bb", "bbbb"), ("ccccc", "cc"), ("ddd", "ddd"), ("", "e")]
    found = Counter()
    rows = encoded(*pairs, counts=found, **options)
    assert "".join(source[0] for source, _ in rows) == kept
    assert found == counts
    assert not counts.get("truncated") or rows[2] == ("cccc", "cc")
    assert encoded(*pairs, min_length=0) == pairs


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (encoded, {"min_length": 3, "max_length": 2}, "`max_length` must be an .* 3"),
        (encoded, {"min_length": 9}, ": 1 .* shorter than `min_length`. Rec.*length=9"),
        (blocks, {"context_window": 8}, "`context_window` must be smaller than"),
        (blocks, {"lines": [[2], []]}, r"its end at least.*line 2 = \[\]"),
        (blocks, {"lines": [[1, 2]]}, r"padding id 1.*line 1 = \[1, 2\]"),
        (blocks, {"lines": [[2**31, 2]]}, r"below 2\*\*31.*\[2147483648, 2\]"),
        (blocks, {"lines": [[5.7, 2]]}, r"must be token ids.*\[5.7, 2.0\]"),
    ],
)
def test_wrong_arguments(call, options, message):
    with pytest.raises(ValueError, match=message):
        if call is encoded:
            encoded(("a", "b"), **options)
        else:
            list(blocks(**{"lines": [[5, 2]], "tokens_per_sample": 8, **options}))
    largest = np.array([2**31 - 1, 2], "uint32")
    (row,) = blocks([largest], tokens_per_sample=8)
    assert row["labels"].tolist() == largest.tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": [4]}, {"a": [5], "b": [6]}], r"same keys.*\['a'\] and \['a', 'b'\]"),
        ([{"a": [5], "b": [6]}, {"a": [4]}], r"same keys.*\['a', 'b'\] and \['a'\]"),
        ([{}], "at least one"),
        ([{"a": [[4, 5], [6, 2]]}], "Rows must have at least one id as 'a'"),
    ],
)
def test_rows_that_do_not_fit_together(rows, message):
    with pytest.raises(ValueError, match=message):
        IdStore.from_rows(rows)


# --- Lines to blocks ---


def blocks_of(*arguments, **options):
    """[(inputs, labels)] as lists."""
    found = list(blocks(*arguments, **options))
    assert all(ids.dtype == np.int32 for row in found for ids in row.values())
    return [(row["target_ids"].tolist(), row["labels"].tolist()) for row in found]


def slow_pieces(lines, size, mode):
    """Lists of lists, written from the description of the modes."""
    if mode == "none":
        stream = [token for line in lines for token in line]
        return [stream[i : i + size] for i in range(0, len(stream), size)]
    return lines


some_lines = st.lists(
    st.lists(st.integers(4, 30), max_size=9).map(lambda line: [*line, 2]),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    some_lines,
    st.integers(1, 9),
    st.integers(0, 7),
    st.sampled_from(["none", "sentence"]),
)
def test_every_token_is_scored_once(lines, size, window, mode):
    found = blocks_of(lines, size + window, break_mode=mode, context_window=window)
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
    assert scored == sum(lines, [])
    pieces = [[label for label in labels if label != 1] for _, labels in found]
    assert pieces == slow_pieces(lines, size, mode)
    endless = blocks(itertools.cycle(lines + [[3, 2]]), 9, break_mode=mode)
    assert len(list(itertools.islice(endless, 50))) == 50


# --- Rows in memory and on disk ---


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1),
    st.data(),
)
def test_memory_and_disk_give_back_every_row(tmp_path_factory, rows, data):
    rows = [{"target_ids": row} for row in rows]
    folder = tmp_path_factory.mktemp("store") / "ids"
    indices = data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=20))
    for store in (IdStore.from_rows(rows), IdStore.write(folder, rows)):
        assert len(store) == len(rows) and rows_of(store) == rows
        found = store.gather(indices, {"target_ids": 9}, pad_id=1)["target_ids"]
        assert found.dtype == "int32" and found.shape == (len(indices), 9)
        for row, index in zip(found.tolist(), indices, strict=True):
            ids = rows[index]["target_ids"] if index >= 0 else []
            assert row == ids + [1] * (9 - len(ids))


@pytest.mark.parametrize("before", [False, True])
def test_an_unfinished_store_is_not_there_and_the_old_one_is(tmp_path, before):
    if before:
        IdStore.write(tmp_path / "ids", PAIRS)

    def rows():
        yield from PAIRS
        (part,) = tmp_path.glob(".*part")  # what a killed process would leave
        with pytest.raises(FileNotFoundError, match="settings.json"):
            IdStore.open(part)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        IdStore.write(tmp_path / "ids", rows())
    assert names(tmp_path) == ["ids"] * before
    if before:
        assert rows_of(IdStore.open(tmp_path / "ids")) == PAIRS


def test_a_store_is_replaced_and_nothing_else_is(tmp_path):
    folder = tmp_path / "ids"
    old = IdStore.write(folder, iter(PAIRS))
    assert rows_of(IdStore.open(folder)) == PAIRS
    assert old.lengths["target_ids"].tolist() == [2, 4, 2]
    IdStore.write(folder, PAIRS[:1])
    assert len(IdStore.open(folder)) == 1
    assert rows_of(old) == PAIRS  # who reads the old one goes on reading it
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        IdStore.write(tmp_path, PAIRS)
    assert names(tmp_path) == ["ids", "thesis.tex"]
    (folder / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        IdStore.write(folder, PAIRS)
    assert "thesis.tex" in names(folder) and len(IdStore.open(folder)) == 1
    with pytest.raises(ValueError, match="width 3 for target_ids, and a row of 4 ids"):
        old.gather([0, 1], {"source_ids": 3, "target_ids": 3})


def settings_with(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes}).encode()


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("source_ids.ids", lambda c: c[:-1], r"ids\.ids must have 12 bytes.*: 11"),
        ("target_ids.offsets", lambda c: c + c, r"offsets must have 32 bytes"),
        ("settings.json", settings_with(rows=2), "the store is damaged"),
        ("settings.json", settings_with(keys={"../x": {"dtype": "int32", "ids": 1}}),
         "/x.ids must have 4 bytes.*: no file"),
    ],
)  # fmt: skip
def test_damaged_store_does_not_open(tmp_path, name, damage, message):
    IdStore.write(tmp_path / "ids", PAIRS)
    path = tmp_path / "ids" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        IdStore.open(tmp_path / "ids")


def test_writing_and_gathering_take_little_memory(tmp_path):
    line = np.full(1000, 7, "int32")
    rows = ({"target_ids": line} for _ in range(40_000))  # 160 MB as int32
    tracemalloc.start()
    try:
        store = IdStore.write(tmp_path / "ids", rows)
        store.gather(np.arange(0, 40_000, 40), {"target_ids": 1000})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "ids" / "target_ids.ids").stat().st_size == 80_000_000
    assert peak < 70e6
