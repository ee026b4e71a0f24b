"""Texts become rows of right lengths; what is written comes back, damage is told."""

import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.data.ids import IdStore, encode
from tests.full_disk import full_disk

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


def test_rows_are_those_of_the_tokenizers():
    assert encoded(("ab", "c"), ("", "d"), ("e", "f"), min_length=0) == [
        ("ab", "c"), ("", "d"), ("e", "f")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kept", "counts"),
    [
        ({}, "abcd", {"too_short": 1}),
        ({"min_length": 2}, "bcd", {"too_short": 2}),
        ({"max_length": 4}, "abd", {"too_short": 1, "too_long": 1}),
        ({"max_length": 5}, "abcd", {"too_short": 1}),
        ({"max_ratio": 2}, "abd", {"too_short": 1, "ratio": 1}),
        ({"max_ratio": 2.5}, "abcd", {"too_short": 1}),
        # The first reason that applies.
        ({"max_length": 4, "max_ratio": 2}, "abd", {"too_short": 1, "too_long": 1}),
    ],
)
def test_rows_whose_lengths_are_wrong_are_left_out_and_counted(options, kept, counts):
    pairs = [("a", "a"), ("bb", "bbbb"), ("ccccc", "cc"), ("ddd", "ddd"), ("", "e")]
    found = Counter()
    assert "".join(s[0] for s, _ in encoded(*pairs, counts=found, **options)) == kept
    assert found == counts


def test_sources_are_cut_and_keep_their_end():
    counts = Counter()
    pairs = [("abcdef", "abcdef"), ("abc", "x")]
    options = {"truncate_source": 4, "max_length": 6, "counts": counts}
    assert encoded(*pairs, **options) == [("abc", "abcdef"), ("abc", "x")]
    assert counts == {"truncated": 1}
    del options["max_length"]
    assert encoded(*pairs, max_length=3, **options) == [("abc", "x")]  # of the cut


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": -1}, "`min_length` must be an integer >= 0"),
        ({"min_length": 3, "max_length": 2}, "`max_length` must be an integer >= 3"),
        ({"max_ratio": 0.5}, "`max_ratio` must be at least 1. Received: max_ratio=0.5"),
        ({"truncate_source": 1}, "`truncate_source` must be an integer >= 2"),
    ],
)
def test_wrong_arguments_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        encode([], Letters(), Letters(), **options)


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


def test_pairs_with_fingerprint_and_counts(tmp_path):
    counts = {}

    def rows():
        yield from PAIRS
        counts["too_long"] = 3  # known at the end

    IdStore.write(tmp_path / "a" / "ids", rows(), {"corpus": (1, "x")}, counts)
    store = IdStore.open(tmp_path / "a" / "ids", {"corpus": (1, "x")})
    assert rows_of(store) == PAIRS and store.counts == {"too_long": 3}
    assert set(store.keys) == {"source_ids", "target_ids"}
    assert store.lengths["target_ids"].tolist() == [2, 4, 2]
    assert store[-1]["source_ids"].dtype == "int32"
    assert names(tmp_path / "a") == ["ids"]


@pytest.mark.parametrize(("largest", "size"), [(65535, 2), (65536, 4)])
def test_ids_take_two_bytes_where_that_is_enough(tmp_path, largest, size):
    # The large one comes late, after more than are written at once.
    rows = [{"target_ids": np.array([3, 4, 5, 2])}] * 9000
    rows.append({"target_ids": np.array([largest, 2])})
    store = IdStore.write(tmp_path / "ids", rows)
    file = tmp_path / "ids" / "target_ids.ids"
    assert file.stat().st_size == size * 36002
    assert store[9000]["target_ids"].tolist() == [largest, 2]
    assert all(store[i]["target_ids"].tolist() == [3, 4, 5, 2] for i in (0, 8999))
    assert len(names(tmp_path / "ids")) == 3


def test_gather_cuts_nothing_and_finds_no_other_rows():
    store = IdStore.from_rows(PAIRS)
    with pytest.raises(ValueError, match="width 3 for target_ids, and a row of 4 ids"):
        store.gather([0, 1], {"source_ids": 3, "target_ids": 3})
    for wrong in ([3], [-2]):
        with pytest.raises(IndexError, match="from -1 to 2"):
            store.gather(wrong, {"source_ids": 3})


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [False, True])
def test_an_unfinished_store_is_not_there_and_the_old_one_is(tmp_path, stop, before):
    if before:
        IdStore.write(tmp_path / "ids", PAIRS, {"version": 1})

    def rows():
        yield from PAIRS
        (part,) = tmp_path.glob(".*part")  # what a killed process would leave
        with pytest.raises(FileNotFoundError, match="settings.json"):
            IdStore.open(part)
        raise stop

    with pytest.raises(stop):
        IdStore.write(tmp_path / "ids", rows(), {"version": 2})
    assert names(tmp_path) == ["ids"] * before
    if before:
        assert rows_of(IdStore.open(tmp_path / "ids", {"version": 1})) == PAIRS


@pytest.mark.parametrize("ids", [5, 70_000])  # the second are written as uint16 first
def test_full_disk_is_named_and_leaves_the_old_store(tmp_path, ids):
    folder = tmp_path / "ids"
    IdStore.write(folder, PAIRS, {"version": 1})
    rows = [*[{"target_ids": [5] * 9}] * 500, {"target_ids": [ids]}]
    with pytest.raises(OSError) as error, full_disk():
        IdStore.write(folder, rows, {"version": 2})
    assert error.value.filename == str(folder)
    assert names(tmp_path) == ["ids"]
    assert rows_of(IdStore.open(folder, {"version": 1})) == PAIRS
    assert len(IdStore.write(folder, rows, {"version": 2})) == 501


def test_another_fingerprint_does_not_open_but_is_replaced(tmp_path):
    old = IdStore.write(tmp_path / "ids", PAIRS, {"corpus": "a", "merges": 9})
    with pytest.raises(ValueError, match=r"merges \(9, wanted 8\)$"):
        IdStore.open(tmp_path / "ids", {"corpus": "a", "merges": 8})
    IdStore.write(tmp_path / "ids", PAIRS[:1], {"corpus": "a", "merges": 8})
    assert len(IdStore.open(tmp_path / "ids", {"corpus": "a", "merges": 8})) == 1
    assert rows_of(old) == PAIRS  # who reads the old one goes on reading it


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        IdStore.write(tmp_path, PAIRS)
    assert names(tmp_path) == ["thesis.tex"]


def cut(folder):
    path = folder / "source_ids.ids"
    path.write_bytes(path.read_bytes()[:-1])


def grow(folder):
    with open(folder / "target_ids.offsets", "ab") as stream:
        stream.write(b"12345678")


def lose(folder):
    (folder / "target_ids.ids").unlink()


def disorder(folder):
    offsets = np.fromfile(folder / "target_ids.offsets", "<i8")
    offsets[1] = offsets[2] + 1
    offsets.tofile(folder / "target_ids.offsets")


def settings_with(**changes):
    def change(folder):
        settings = json.loads((folder / "settings.json").read_text())
        (folder / "settings.json").write_text(json.dumps({**settings, **changes}))

    return change


def garble(folder):
    (folder / "settings.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"source_ids\.ids must have 12 bytes.* Received: 11"),
        (grow, r"target_ids\.offsets must have 32 bytes"),
        (lose, r"target_ids\.ids .*Received: no file"),
        (disorder, r"target_ids\.offsets must start at 0 and grow: it is damaged"),
        (garble, "must be JSON"),
        (settings_with(format_version=9), "must have .*'format_version': 1"),
        (settings_with(format="other"), "must have .*id store"),
        (settings_with(rows=2), "the store is damaged"),
        (settings_with(rows="3"), "settings.json is damaged"),
        (
            settings_with(keys={"../x": {"dtype": "int32", "ids": 1}}),
            "/x.ids must have",
        ),
        (settings_with(keys={"x": {"dtype": "what", "ids": 1}}), "json is damaged"),
        (settings_with(counts=None), "json is damaged"),
    ],
)
def test_damaged_store_does_not_open(tmp_path, damage, message):
    IdStore.write(tmp_path / "ids", PAIRS)
    damage(tmp_path / "ids")
    with pytest.raises(ValueError, match=message):
        IdStore.open(tmp_path / "ids")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row"),
        ([{"target_ids": []}], "at least one id"),
        ([PAIRS[0], {"target_ids": []}], "same keys"),
        ([PAIRS[0], {"target_ids": [2]}], "same keys"),
        ([{"target_ids": [5, -1]}], "from 0 to 2147483647"),
        ([{"target_ids": [2**31]}], "from 0 to 2147483647"),
        ([{"target_ids": [0.5]}], "integers"),
        ([{"target_ids": 5}], "a vector"),
    ],
)
def test_wrong_rows(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        IdStore.write(tmp_path / "ids", rows)
    assert names(tmp_path) == []
    with pytest.raises(ValueError, match=message):
        IdStore.from_rows(rows)


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
