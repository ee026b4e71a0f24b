"""Batches: every row once, few bounded shapes, any position, any number of hosts."""

import itertools
import json
import threading
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.data import batches
from keras_seqconv.data.batches import BatchStream, Shape, choose_shapes
from keras_seqconv.data.ids import IdStore


def make_rows(lengths):
    """Pairs of these lengths, whose first source and target id name the row."""
    rng = np.random.default_rng(1)
    return [
        {
            key: [10 + row, *rng.integers(4, 9, length)][:length]
            for key, length in zip(KEYS[-len(sides) :], sides, strict=True)
        }
        for row, sides in enumerate(np.asarray(lengths))
    ]


KEYS = ("source_ids", "target_ids")
LENGTHS = np.random.default_rng(1).integers(2, 32, (200, 2))
ROWS = make_rows(LENGTHS)
STORE = IdStore.from_rows(ROWS)


def same(one, other):
    (inputs, labels), (others, other_labels) = one, other
    assert inputs.keys() == others.keys()
    for key in inputs:
        np.testing.assert_array_equal(inputs[key], others[key])
    np.testing.assert_array_equal(labels, other_labels)


def rows_in(batch, rows=ROWS):
    """Numbers of the rows of a batch; checks what is in them, and in the others."""
    inputs, labels = batch
    numbers = []
    for *source, target, label in zip(*inputs.values(), labels, strict=True):
        row = {key: [] for key in inputs}
        if label[0] != 1:
            numbers.append(int(label[0]) - 10)
            row = rows[numbers[-1]]
        shifted = [2, *row["target_ids"]][: len(row["target_ids"])]
        expected = [row[key] for key in inputs]
        expected[-1:] = shifted, row["target_ids"]
        for ids, known in zip((*source, target, label), expected, strict=True):
            end = len(known)
            assert ids[:end].tolist() == known and (ids[end:] == 1).all()
    return numbers


# --- Shapes ---


@st.composite
def corpora(draw):
    """(lengths, arguments of `choose_shapes`)."""
    size = draw(st.integers(1, 300)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = rng.integers(1, draw(st.integers(2, 61)), size)
    if draw(st.booleans()):
        lengths[:, -1] = np.minimum(60, lengths[:, 0] + rng.integers(0, 3, size[0]))
    return lengths, {
        "tokens_per_batch": draw(st.integers(60, 1500)),
        "max_shapes": draw(st.integers(1, 12)),
        "num_replicas": draw(st.sampled_from([1, 2, 3, 8])),
    }


@settings(deadline=None, max_examples=60)
@given(corpora(), st.integers(0, 2**32))
def test_epochs_hold_every_row_once_in_few_bounded_shapes(corpus, seed):
    lengths, arguments = corpus
    tokens, replicas = arguments["tokens_per_batch"], arguments["num_replicas"]
    rows = make_rows(lengths)
    stream = BatchStream(IdStore.from_rows(rows), seed=seed, **arguments)
    shapes = stream.shapes
    assert len({*shapes}) == len(shapes) <= arguments["max_shapes"]
    sums = [sum(shape.widths) for shape in shapes]
    assert sums == sorted(sums)
    for shape in shapes:
        each, rest = divmod(shape.rows, replicas)
        assert rest == 0 and 1 <= each * max(shape.widths) <= tokens
        assert each % 8 == 0 or 8 * max(shape.widths) > tokens
    number, cells = stream.batches_per_epoch(), 0
    for epoch in range(2):
        seen = []
        for position in range(epoch * number, (epoch + 1) * number):
            inputs, labels = stream.batch(position)
            arrays = [*inputs.values(), labels]
            assert {array.dtype.name for array in arrays} == {"int32"}
            widths = tuple(array.shape[1] for array in arrays[:-1])
            assert (len(labels), widths) in shapes and labels.shape[1] == widths[-1]
            seen.extend(rows_in((inputs, labels), rows))
            cells += len(labels) * sum(widths)
        assert sorted(seen) == list(range(len(rows)))
    assert stream.padding_share == pytest.approx(1 - 2 * lengths.sum() / cells)


def test_shapes_of_small_corpora():
    kinds = [(5, 20), (20, 5), (20, 20), (5, 5)]
    lengths = np.repeat(kinds, 64, axis=0)
    shapes = choose_shapes(lengths, 320, 4)
    assert {shape.widths for shape in shapes} == set(kinds)
    lengths = np.array([[2, 3]] * 8 + [[10, 12]] * 9)
    shapes = choose_shapes(lengths, 1000, 2)
    assert shapes == (Shape(24, (10, 12)),)  # 17 rows, where tokens allow 80
    shapes = choose_shapes(lengths, 100, 2, num_replicas=2)
    assert shapes == (Shape(16, (2, 3)), Shape(16, (10, 12)))


# --- The stream ---


def test_batches_are_those_of_the_version_before():
    """Written down: another version must give the same, or count `_ORDER` up. So does
    a stream that is asked for some of its batches only."""
    rows = [
        {
            "source_ids": [5] * (3 + 7 * i % 29),
            "target_ids": [4 + i] * (2 + 11 * i % 23),
        }
        for i in range(500)
    ]
    for options, expected in (
        ({}, 63622934),
        ({"num_replicas": 2, "max_shapes": 5, "seed": 9}, 2782638089),
    ):
        stream, found = BatchStream(IdStore.from_rows(rows), 400, **options), 0
        batches = range(3 * stream.batches_per_epoch() + 5)
        for inputs, labels in map(stream.batch, batches):
            for array in (*inputs.values(), labels):
                found = zlib.crc32(np.ascontiguousarray(array, "<i4").tobytes(), found)
        assert found == expected
        for position in (0, 1, 17, batches[-1]):
            resumed = BatchStream(IdStore.from_rows(rows), 400, **options)
            same(resumed.batch(position), stream.batch(position))


@pytest.mark.tensorflow
def test_dataset_gives_the_batches_of_the_stream_from_any_position():
    import tensorflow as tf

    stream = BatchStream(STORE, 300, max_shapes=5)
    number = stream.batches_per_epoch()
    for position in (0, 3, 2 * number - 1):
        dataset = stream.dataset(position)
        assert dataset.element_spec == stream.element_spec
        # Its thread made the ends of epochs wait for up to a minute, now and then.
        assert dataset.options().autotune.enabled is False
        found = dataset.take(number + 2).as_numpy_iterator()
        for offset, batch in enumerate(found):
            same(batch, stream.batch(position + offset))

    traced = []

    @tf.function(reduce_retracing=False)
    def step(inputs, labels):
        traced.append(labels.shape)
        return tf.reduce_sum(labels)

    for inputs, labels in stream.dataset().take(3 * number):
        step(inputs, labels)
    assert 1 < len(traced) == len(stream.shapes) <= 5


@pytest.mark.tensorflow
def test_once_is_every_row_in_a_fixed_order():
    stream = BatchStream(STORE, 300)
    assert stream.once().options().autotune.enabled is False
    found = [list(stream.once().as_numpy_iterator()) for _ in range(2)]
    assert len(found[0]) == stream.batches_per_epoch()
    rows = [rows_in(batch) for batch in found[0]]
    assert sorted(sum(rows, [])) == list(range(len(ROWS)))
    # In a batch as in the store, up to the rows taken from smaller shapes.
    assert sum(row == sorted(row) for row in rows) >= len(rows) - len(stream.shapes)
    for one, other in zip(*found, strict=True):
        same(one, other)


@pytest.mark.parametrize("hosts", [2, 4])
def test_shards_are_the_parts_of_each_batch(hosts):
    options = dict(num_replicas=4, seed=3, max_shapes=6)
    whole, *shards = (
        BatchStream(STORE, 200, shard=shard, **options)
        for shard in [(0, 1), *((i, hosts) for i in range(hosts))]
    )
    for position in range(whole.batches_per_epoch() + 3):
        parts = [shard.batch(position) for shard in shards]
        assert len({labels.shape for _, labels in parts}) == 1
        inputs = {key: np.concatenate([part[key] for part, _ in parts]) for key in KEYS}
        labels = np.concatenate([labels for _, labels in parts])
        same((inputs, labels), whole.batch(position))


def test_language_model_keeps_its_inputs_and_labels():
    rows = [
        {"target_ids": [2, 5, 6, 7], "labels": [1, 1, 7, 8]},
        {"target_ids": [8, 9], "labels": [9, 2]},
    ]
    stream = BatchStream(IdStore.from_rows(rows), 32, max_shapes=1)
    assert stream.shapes == (Shape(8, (4,)),) and stream.batches_per_epoch() == 1
    inputs, labels = stream.batch(0)
    assert list(inputs) == ["target_ids"]
    pairs = {
        (*ids, *label) for ids, label in zip(inputs["target_ids"], labels, strict=True)
    }
    assert pairs == {
        (2, 5, 6, 7, 1, 1, 7, 8),
        (8, 9, 1, 1, 9, 2, 1, 1),
        (1, 1, 1, 1, 1, 1, 1, 1),
    }
    # Of one shape, nothing about a batch is unknown.
    assert stream.element_spec[0]["target_ids"].shape == (8, 4)
    # Targets alone are shifted.
    store = IdStore.from_rows([{"target_ids": [5, 6, 2]}] * 7)
    inputs, labels = BatchStream(store, 24, start_id=3, pad_id=0).batch(0)
    assert inputs["target_ids"].tolist() == [[3, 5, 6]] * 7 + [[0, 0, 0]]
    assert labels.tolist() == [[5, 6, 2]] * 7 + [[0, 0, 0]]


def test_state_keeps_the_batches_of_the_run_that_began():
    """Whatever shapes a later version would choose."""
    before = BatchStream(STORE, 300, max_shapes=3)
    state = json.loads(json.dumps(before.get_state()))
    resumed = BatchStream(STORE, 300, max_shapes=9)
    assert resumed.shapes != before.shapes
    resumed.set_state(state)
    for name in ("shapes", "padding_share", "element_spec"):
        assert getattr(resumed, name) == getattr(before, name)
    position = 2 * before.batches_per_epoch() + 3
    same(resumed.batch(position), before.batch(position))
    for changes, message in (
        ({"seed": 2}, "Different: seed was 1 and is 2$"),
        ({"tokens_per_batch": 400}, "Different: tokens_per_batch was 300 and is 400$"),
        ({"num_replicas": 2}, "Different: num_replicas was 1 and is 2$"),
        ({"store": IdStore.from_rows(ROWS[1:])}, "rows was 200 and is 199; tokens was"),
    ):
        other = BatchStream(**{"store": STORE, "tokens_per_batch": 300, **changes})
        with pytest.raises(ValueError, match=message):
            other.set_state(state)
        older = {**state, "order": 1}  # of the version before
        with pytest.raises(ValueError, match="start anew.*: order was 1 and is 2;"):
            other.set_state(older)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tokens_per_batch=20), "longer rows of 200"),
        (dict(store=IdStore.from_rows(make_rows([[2, 400]]))), "longest of 400"),
        (dict(shard=(0, 2)), "`num_replicas`"),
        (dict(store=IdStore.from_rows([{"source_ids": [2]}])), "must have target_ids"),
        (
            dict(store=IdStore.from_rows([{"target_ids": [2, 4], "labels": [4]}])),
            "labels as long as target_ids",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchStream(**{"store": STORE, "tokens_per_batch": 300, **arguments})
    longest = max(map(len, itertools.chain(*(row.values() for row in ROWS))))
    BatchStream(STORE, longest)  # a batch of one row
    with pytest.raises(ValueError, match=f"the longest of {longest}"):
        BatchStream(STORE, longest - 1)


# --- Processes ---


def test_end_waits_for_the_call_that_runs_and_refuses_others(monkeypatch):
    monkeypatch.setattr(batches, "_ended", False)
    started, results = threading.Event(), []

    def slow(value):
        started.set()
        time.sleep(0.3)
        results.append(value)
        raise KeyError("does not count as running")

    thread = threading.Thread(
        target=lambda: pytest.raises(KeyError, batches._call, slow, 5)
    )
    thread.start()
    started.wait()
    batches._end()
    assert results == [5]
    with pytest.raises(RuntimeError, match="Python is ending"):
        batches._call(slow, 6)
    thread.join()
