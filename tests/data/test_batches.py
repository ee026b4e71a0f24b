"""The stream: every row, few shapes, any position, any number of hosts."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.data import batches
from keras_seqconv.data.batches import BatchStream
from keras_seqconv.data.ids import IdStore
from keras_seqconv.data.shapes import Shape

ROOT = Path(__file__).parents[2]


def make_rows(number=200, seed=1, longest=30):
    """Pairs whose first source and target id name the row."""
    rng = np.random.default_rng(seed)
    return [
        {
            "source_ids": [10 + row, *rng.integers(4, 9, rng.integers(0, longest)), 2],
            "target_ids": [10 + row, *rng.integers(4, 9, rng.integers(0, longest)), 2],
        }
        for row in range(number)
    ]


ROWS = make_rows()
STORE = IdStore.from_rows(ROWS)


def same(one, other):
    (inputs, labels), (others, other_labels) = one, other
    assert inputs.keys() == others.keys()
    for key in inputs:
        np.testing.assert_array_equal(inputs[key], others[key])
    np.testing.assert_array_equal(labels, other_labels)


def rows_in(batch):
    """Numbers of the rows of a batch; checks what is in them, and in the others."""
    inputs, labels = batch
    numbers = []
    for source, target, label in zip(*inputs.values(), labels, strict=True):
        if label[0] == 1:
            assert (source == 1).all() and (target == 1).all() and (label == 1).all()
            continue
        row = ROWS[label[0] - 10]
        end = len(row["target_ids"])
        assert label[:end].tolist() == row["target_ids"] and (label[end:] == 1).all()
        assert target[:end].tolist() == [2, *row["target_ids"][:-1]]
        assert (target[end:] == 1).all()
        assert source[: len(row["source_ids"])].tolist() == row["source_ids"]
        assert (source[len(row["source_ids"]) :] == 1).all()
        numbers.append(int(label[0]) - 10)
    return numbers


@settings(deadline=None, max_examples=15)
@given(
    st.integers(32, 600), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers()
)
def test_epochs_hold_every_row_once(tokens, max_shapes, replicas, seed):
    stream = BatchStream(
        STORE,
        tokens,
        max_shapes=max_shapes,
        num_replicas=replicas,
        seed=seed % 2**32,
    )
    number = stream.batches_per_epoch()
    shapes = {(s.rows, s.widths[0], s.rows, s.widths[1]) for s in stream.shapes}
    assert len(shapes) <= max_shapes
    cells = 0
    for epoch in range(2):
        seen = []
        for position in range(epoch * number, (epoch + 1) * number):
            inputs, labels = stream.batch(position)
            assert {array.dtype.name for array in inputs.values()} == {"int32"}
            source, target = inputs["source_ids"], inputs["target_ids"]
            assert (*source.shape, *target.shape) in shapes
            assert len(source) // replicas * max(source.shape[1], target.shape[1]) <= (
                tokens
            )
            seen.extend(rows_in((inputs, labels)))
            cells += source.size + target.size
        assert sorted(seen) == list(range(len(ROWS)))
    tokens = 2 * sum(len(ids) for row in ROWS for ids in row.values())
    assert stream.padding_share == pytest.approx(1 - tokens / cells)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 100), st.integers(0, 5))
def test_any_position_gives_the_batches_of_the_uninterrupted_stream(position, seed):
    if seed not in UNINTERRUPTED:
        whole = BatchStream(STORE, 300, seed=seed).batches()
        UNINTERRUPTED[seed] = [next(whole) for _ in range(104)]
    resumed = BatchStream(STORE, 300, seed=seed).batches(position)
    for expected in UNINTERRUPTED[seed][position : position + 4]:
        same(next(resumed), expected)


UNINTERRUPTED: dict = {}


def test_epochs_differ_in_composition():
    stream = BatchStream(STORE, 300)
    number = stream.batches_per_epoch()
    first, second = (
        {frozenset(rows_in(stream.batch(epoch * number + i))) for i in range(number)}
        for epoch in range(2)
    )
    assert len(first & second) < number / 4


@pytest.mark.tensorflow
def test_dataset_gives_the_batches_of_the_stream_from_any_position():
    stream = BatchStream(STORE, 300)
    number = stream.batches_per_epoch()
    for position in (0, 3, 2 * number - 1):
        dataset = stream.dataset(position)
        assert dataset.element_spec == stream.element_spec
        found = dataset.take(number + 2).as_numpy_iterator()
        for offset, batch in enumerate(found):
            same(batch, stream.batch(position + offset))
    skipped = next(stream.dataset().skip(number + 1).as_numpy_iterator())
    same(skipped, stream.batch(number + 1))


@pytest.mark.tensorflow
def test_no_thread_tunes_the_datasets():
    """It made the ends of epochs wait for up to a minute, now and then."""
    stream = BatchStream(STORE, 300)
    for dataset in (stream.dataset(), stream.once()):
        assert dataset.options().autotune.enabled is False


@pytest.mark.tensorflow
def test_a_function_of_batches_is_traced_once_for_each_shape():
    import tensorflow as tf

    traced = []

    @tf.function(reduce_retracing=False)
    def step(inputs, labels):
        traced.append(labels.shape)
        return tf.reduce_sum(labels)

    stream = BatchStream(STORE, 300, max_shapes=5)
    for inputs, labels in stream.dataset().take(3 * stream.batches_per_epoch()):
        step(inputs, labels)
    assert 1 < len(traced) == len(stream.shapes) <= 5


@pytest.mark.tensorflow
def test_once_is_every_row_in_a_fixed_order():
    stream = BatchStream(STORE, 300)
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
    whole = BatchStream(STORE, 200, **options)
    shards = [
        BatchStream(STORE, 200, shard=(i, hosts), **options) for i in range(hosts)
    ]
    for position in range(whole.batches_per_epoch() + 3):
        parts = [shard.batch(position) for shard in shards]
        assert len({labels.shape for _, labels in parts}) == 1
        inputs = {
            key: np.concatenate([part[key] for part, _ in parts]) for key in parts[0][0]
        }
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


def test_targets_alone_are_shifted():
    store = IdStore.from_rows([{"target_ids": [5, 6, 2]}] * 7)
    inputs, labels = BatchStream(store, 24, start_id=3, pad_id=0).batch(0)
    assert inputs["target_ids"].tolist() == [[3, 5, 6]] * 7 + [[0, 0, 0]]
    assert labels.tolist() == [[5, 6, 2]] * 7 + [[0, 0, 0]]


# --- Resuming ---


def test_state_keeps_the_batches_of_the_run_that_began():
    """Whatever shapes a later version would choose."""
    before = BatchStream(STORE, 300, max_shapes=3)
    state = json.loads(json.dumps(before.get_state()))
    resumed = BatchStream(STORE, 300, max_shapes=9)
    assert resumed.shapes != before.shapes
    resumed.set_state(state)
    assert resumed.shapes == before.shapes
    assert resumed.padding_share == before.padding_share
    assert resumed.batches_per_epoch() == before.batches_per_epoch()
    position = 2 * before.batches_per_epoch() + 3
    same(resumed.batch(position), before.batch(position))
    assert resumed.element_spec == before.element_spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, "Different: seed was 1 and is 2$"),
        ({"tokens_per_batch": 400}, "Different: tokens_per_batch was 300 and is 400$"),
        ({"num_replicas": 2}, "Different: num_replicas was 1 and is 2$"),
        ({"store": IdStore.from_rows(ROWS[1:])}, "rows was 200 and is 199; tokens was"),
    ],
)
def test_state_of_other_batches_is_refused(changes, message):
    state = BatchStream(STORE, 300).get_state()
    other = BatchStream(**{"store": STORE, "tokens_per_batch": 300, **changes})
    with pytest.raises(ValueError, match=message):
        other.set_state(state)
    del state["order"]  # of the version before
    with pytest.raises(ValueError, match="start anew.*: order was None and is 2;"):
        other.set_state(state)


# --- Processes ---

SCRIPT = """
import hashlib, sys
sys.path.insert(0, {root!r})
from tests.data.test_batches import STORE, BatchStream, digest
print(digest(BatchStream(STORE, 300, seed=5).dataset().take(60)), flush=True)
while True:
    for batch in BatchStream(STORE, 300).dataset():
        pass
"""


def digest(batches):
    found = hashlib.sha256()
    for inputs, labels in batches:
        for array in (*inputs.values(), labels):
            found.update(np.asarray(array).tobytes())
    return found.hexdigest()


@pytest.mark.tensorflow
@pytest.mark.slow
def test_another_process_gives_the_same_batches_and_stops_when_told():
    script = SCRIPT.format(root=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        cwd=ROOT,
        text=True,
    )
    try:
        line = process.stdout.readline().strip()
        stream = BatchStream(STORE, 300, seed=5)
        assert line == digest(stream.batch(position) for position in range(60))
        # Again and again: CPython swallows an exception that a garbage collection's
        # callback is interrupted with, and JAX, where installed, registers one.
        for _ in range(10):
            process.send_signal(signal.SIGINT)
            try:
                _, errors = process.communicate(timeout=10)
                break
            except subprocess.TimeoutExpired:
                continue
        assert "KeyboardInterrupt" in errors
        assert process.returncode in (1, 130, -signal.SIGINT)
    finally:
        process.kill()


def test_end_waits_for_the_call_that_runs_and_refuses_others(monkeypatch):
    monkeypatch.setattr(batches.atexit, "register", lambda function: None)
    calls = batches._Calls()  # as of a process that is still to end
    monkeypatch.setattr(batches, "_CALLS", calls)
    started, results = threading.Event(), []

    @batches._guarded
    def slow(value):
        started.set()
        time.sleep(0.3)
        results.append(value)
        raise KeyError("does not count as running")

    thread = threading.Thread(target=lambda: pytest.raises(KeyError, slow, 5))
    thread.start()
    started.wait()
    calls.close()
    assert results == [5]
    with pytest.raises(RuntimeError, match="Python is ending"):
        slow(6)
    thread.join()


# --- Wrong arguments ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tokens_per_batch=0), "`tokens_per_batch`"),
        (dict(tokens_per_batch=20), "longer rows of 200"),
        (dict(seed=-1), "`seed`"),
        (dict(pad_id=-1), "`pad_id`"),
        (dict(num_replicas=0), "`num_replicas`"),
        (dict(shard=(1, 1)), "`shard` must be"),
        (dict(shard=(0, 2)), "`num_replicas`"),
        (dict(shard=3), "`shard` must be"),
        (dict(store=IdStore.from_rows([{"source_ids": [2]}])), "must have target_ids"),
        (
            dict(store=IdStore.from_rows([{"target_ids": [2], "labels": [4, 2]}])),
            "labels as long as",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchStream(**{"store": STORE, "tokens_per_batch": 300, **arguments})


@pytest.mark.parametrize("call", ["batch", "dataset"])
def test_wrong_positions(call):
    with pytest.raises(ValueError, match="`position`"):
        getattr(BatchStream(STORE, 300), call)(-1)
