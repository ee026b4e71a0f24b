"""What is written comes back, and nothing that is damaged opens."""

import json
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.data.store import IdStore
from tests.full_disk import full_disk

PAIRS = [
    {"source_ids": [5, 6, 2], "target_ids": [7, 2]},
    {"source_ids": [8, 2], "target_ids": [9, 10, 11, 2]},
    {"source_ids": [2], "target_ids": [65535, 2]},
]


def rows_of(store):
    return [{key: ids.tolist() for key, ids in row.items()} for row in store]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


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
    counts = {"too_long": np.int64(3)}
    IdStore.write(tmp_path / "a" / "ids", iter(PAIRS), {"corpus": [1, "x"]}, counts)
    store = IdStore.open(tmp_path / "a" / "ids", {"corpus": (1, "x")})
    assert rows_of(store) == PAIRS and store.counts == {"too_long": 3}
    assert store.fingerprint == {"corpus": [1, "x"]}
    assert set(store.keys) == {"source_ids", "target_ids"}
    assert store.lengths["target_ids"].tolist() == [2, 4, 2]
    assert names(tmp_path / "a") == ["ids"]


@pytest.mark.parametrize(("largest", "size"), [(65535, 2), (65536, 4)])
def test_ids_take_two_bytes_where_that_is_enough(tmp_path, largest, size):
    # The large one comes late, after more than one chunk.
    rows = [{"target_ids": [3, 4, 5, 2]}] * 9000 + [{"target_ids": [largest, 2]}]
    store = IdStore.write(tmp_path / "ids", rows)
    file = tmp_path / "ids" / "target_ids.ids"
    assert file.stat().st_size == size * 36002
    assert store[9000]["target_ids"].tolist() == [largest, 2]
    assert all(store[i]["target_ids"].tolist() == [3, 4, 5, 2] for i in (0, 8999))
    assert len(names(tmp_path / "ids")) == 3


def test_chunks_are_all_rows_in_order(tmp_path):
    store = IdStore.write(tmp_path / "ids", PAIRS)
    chunks = list(store.chunks(2))
    assert [len(chunk["source_ids"][1]) for chunk in chunks] == [2, 1]
    assert rows_of(IdStore.from_chunks(chunks)) == PAIRS


def test_gather_cuts_nothing_and_finds_no_other_rows():
    store = IdStore.from_rows(PAIRS)
    with pytest.raises(ValueError, match="width 3 for target_ids, and a row of 4 ids"):
        store.gather([0, 1], {"source_ids": 3, "target_ids": 3})
    for wrong in ([3], [-2]):
        with pytest.raises(IndexError, match="from -1 to 2"):
            store.gather(wrong, {"source_ids": 3})


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_unfinished_store_does_not_open(tmp_path, stop):
    with pytest.raises(stop), IdStore.writer(tmp_path / "ids") as writer:
        writer.add({"target_ids": ([5, 2], [2])})
        (part,) = tmp_path.glob(".*.part")  # what a killed writer would leave
        for folder in (part, tmp_path / "ids"):
            with pytest.raises(FileNotFoundError, match="must be an id store"):
                IdStore.open(folder)
        raise stop
    assert names(tmp_path) == []


def test_failed_writer_leaves_the_old_store(tmp_path):
    IdStore.write(tmp_path / "ids", PAIRS, {"version": 1})
    with pytest.raises(RuntimeError), IdStore.writer(tmp_path / "ids") as writer:
        writer.add({"target_ids": ([5, 2], [2])})
        raise RuntimeError
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


def test_other_fingerprint_does_not_open_but_is_replaced(tmp_path):
    old = IdStore.write(tmp_path / "ids", PAIRS, {"corpus": "a", "merges": 9})
    with pytest.raises(ValueError, match=r"merges \(9, wanted 8\)$"):
        IdStore.open(tmp_path / "ids", {"corpus": "a", "merges": 8})
    IdStore.write(tmp_path / "ids", PAIRS[:1], {"corpus": "a", "merges": 8})
    assert len(IdStore.open(tmp_path / "ids", {"corpus": "a", "merges": 8})) == 1
    assert rows_of(old) == PAIRS  # who reads the old one goes on reading it


@pytest.mark.parametrize("another_before", [False, True])
def test_writers_at_the_same_time_do_not_disturb_each_other(tmp_path, another_before):
    start, errors, stores = threading.Barrier(6), [], []
    if another_before:
        IdStore.write(tmp_path / "ids", PAIRS[:1], {"version": 0})

    def write():
        try:
            for _ in range(5):
                start.wait(timeout=30)
                stores.append(IdStore.write(tmp_path / "ids", PAIRS, {"version": 1}))
        except BaseException as error:
            errors.append(error)
            start.abort()

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(stores) == 30
    assert all(rows_of(store) == PAIRS for store in stores)
    assert names(tmp_path) == ["ids"]


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        IdStore.write(tmp_path, PAIRS)
    IdStore.remove(tmp_path)
    assert names(tmp_path) == ["thesis.tex"]
    IdStore.write(tmp_path / "ids", PAIRS)
    IdStore.remove(tmp_path / "ids")
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
        (disorder, "damaged"),
        (garble, "must be JSON"),
        (settings_with(format_version=9), "format version 1. Received: 9"),
        (settings_with(format="other"), "settings of an id store"),
        (settings_with(rows=2), "damaged"),
        (settings_with(rows="3"), "must name rows"),
        (settings_with(keys={"../x": {"dtype": "int32", "ids": 1}}), "must name"),
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


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ({"a": ([5, 6], [1])}, "sum to their number"),
        ({"a": ([5], [1]), "b": ([5, 6], [1, 1])}, "as many rows"),
        ({"a/b": ([5], [1])}, "a name of letters"),
    ],
)
def test_wrong_chunks(tmp_path, chunk, message):
    with (
        pytest.raises(ValueError, match=message),
        IdStore.writer(tmp_path / "ids") as writer,
    ):
        writer.add(chunk)


def test_fingerprint_must_be_json(tmp_path):
    with pytest.raises(ValueError, match="`fingerprint`"):
        IdStore.write(tmp_path / "ids", PAIRS, {"corpus": object()})


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
