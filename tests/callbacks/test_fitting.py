"""An interrupted training goes on as if nothing had happened, to the bit."""

import keras
import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.callbacks import (
    Checkpoints,
    EarlyStopping,
    LogFile,
    Validate,
    ordered,
    resume,
)
from keras_seqconv.callbacks.reporting import read_log
from tests.callbacks.small import Probe, Stream, fit, make_model, results, same


class Killed(BaseException):
    """Nobody handles it, as nobody handles SIGKILL."""


def kill():
    raise Killed


def updates(folder):
    return [checkpoints.update_of(path) for path in checkpoints.find(folder)]


def latest(folder, *keys):
    state = checkpoints.read_state(checkpoints.latest(folder))
    return tuple(state[key] for key in keys)


class Tokens(keras.layers.Layer):
    """Counts rows, as the package's models count target tokens."""

    def __init__(self):
        super().__init__()
        self.tokens = keras.metrics.Sum(name="tokens")

    def call(self, inputs):
        self.tokens.update_state(keras.ops.ones_like(inputs))
        return inputs


@pytest.mark.parametrize(
    ("counts", "every"),
    [
        (False, 1),
        pytest.param(True, 4, marks=pytest.mark.tensorflow),
        # Here the record that a stop adds is one that is written anyway.
        pytest.param(True, 1, marks=pytest.mark.tensorflow),
    ],
)
def test_resumed_training_is_the_uninterrupted_one(tmp_path, counts, every):
    """Killed or stopped between two checkpoints, in the middle of epochs, validated."""

    def train(folder, *more, updates=13):
        layers = [Tokens()] if counts else []
        model = make_model(None, True, counts, *layers)
        callbacks = [
            LogFile(folder / "log.jsonl", every),
            Checkpoints(folder / "c", every_updates=3, monitor="val_loss"),
            *([] if counts else [Validate(Stream(), every_updates=4)]),
            *more,
        ]
        history = fit(model, callbacks, updates=updates, directory=folder / "c")
        timed = ("seconds", "tokens_per_second", "val_seconds")
        records = [
            {name: record[name] for name in record if name not in timed}
            for record in read_log(folder / "log.jsonl")
        ]
        return model, history, records

    whole, whole_history, whole_log = train(tmp_path / "whole")
    for batches in (4, 5):
        with pytest.raises(Killed):
            train(tmp_path / "parts", Probe(batches, kill))
    if every == 1 and counts:
        train(tmp_path / "parts", updates=8)
    model, history, log = train(tmp_path / "parts")
    assert same(model, whole)
    # The sums of the epoch in which it went on came back, too.
    assert history.epoch == [1, 2]
    losses = whole_history.history["loss"]
    np.testing.assert_array_equal(history.history["loss"], losses[1:])
    trained = [record["update"] for record in log if "loss" in record]
    assert trained == ([4, 5, 8, 10, 12, 13] if every == 4 else [*range(1, 14)])
    if counts:  # means are of all updates since the record before, also those before
        assert log == whole_log


def test_epochs_end_with_whole_updates(tmp_path):
    """Epochs of 5 batches, updates of 2: epochs end with batches 6, 10, 16, ..."""

    def make():
        return make_model(keras.optimizers.Adam(0.05, gradient_accumulation_steps=2))

    model, other = make(), make()
    fit(model, updates=7)
    with pytest.raises(Killed):
        fit(make(), [Checkpoints(tmp_path), Probe(9, kill)], updates=7)
    assert latest(tmp_path, "update", "position", "epoch") == (3, 6, 1)
    fit(other, [Checkpoints(tmp_path)], updates=7, directory=tmp_path)
    assert same(model, other)
    assert latest(tmp_path, "update", "position", "epoch") == (7, 14, 2)


def test_half_an_update_is_kept_in_plain_fit(tmp_path):
    def train(start, callbacks):
        settings = dict(initial_epoch=start // 5, steps_per_epoch=5, shuffle=False)
        optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
        model, callbacks = make_model(optimizer), ordered(callbacks)
        resume(model, tmp_path, callbacks)
        data = Stream().dataset(start)
        model.fit(data, epochs=2, callbacks=callbacks, verbose=0, **settings)
        return model

    whole = train(0, [])
    with pytest.raises(Killed):
        train(0, [Checkpoints(tmp_path), Probe(6, kill)])
    keys = ("update", "position", "epoch", "epoch_end")
    assert latest(tmp_path, *keys) == (2, 5, 1, True)
    assert same(whole, train(5, [Checkpoints(tmp_path)]))
    assert latest(tmp_path, *keys) == (5, 10, 2, True)


def test_files_that_are_kept(tmp_path):
    given = results("val_nll", [5.0, 1.0, 4.0, 3.0, 2.0, 6.0])
    kept = Checkpoints(
        tmp_path, every_updates=1, keep_last=2, keep_updates=1, keep_best=1
    )
    fit(make_model(), [given, kept], max_epochs=6, stream=Stream(2))
    # Ends of epochs 5 and 6, the best (epoch 2), the newest between (epoch 6).
    assert updates(tmp_path) == [4, 10, 11, 12]
    assert checkpoints.best(tmp_path, 1) == [checkpoints.path_of(tmp_path, 4)]
    # A mean of the epoch so far is no result that a batch can improve.
    folder = tmp_path / "of training"
    fit(make_model(), [Checkpoints(folder, monitor="loss")], max_epochs=2)
    assert updates(folder) == [5, 10]


def test_old_files_stay_until_the_new_one_is_written(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path, keep_last=1)
    fit(make_model(), [kept], max_epochs=1)

    def full(path, model, state):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(OSError, match="No space left"):
        fit(make_model(), [kept], max_epochs=2, directory=tmp_path)
    assert updates(tmp_path) == [5]
    checkpoints.check(checkpoints.path_of(tmp_path, 5))


def test_states_of_callbacks(tmp_path):
    stops = [EarlyStopping(10, "loss"), EarlyStopping(10, "loss", "max")]
    kept = Checkpoints(tmp_path, recipe={"name": "small"})
    fit(make_model(), [*stops, kept], max_epochs=2)
    assert latest(tmp_path, "recipe") == ({"name": "small"},)
    again = [EarlyStopping(10, "loss") for _ in range(2)]
    returned = resume(make_model(), tmp_path, [*again, kept])
    assert returned == checkpoints.read_state(checkpoints.latest(tmp_path))
    for one, other in zip(stops, again, strict=True):
        assert one.get_state() == other.get_state()
    assert resume(make_model(), tmp_path / "missing", again) is None


def test_train_function_is_made_once(tmp_path):
    traces = []

    class Counting(keras.layers.Layer):
        def call(self, inputs):
            traces.append(inputs.shape)
            return inputs

    model = make_model(None, True, False, Counting())
    callbacks = [Checkpoints(tmp_path, every_updates=2), Validate(Stream())]
    fit(model, callbacks, max_epochs=1)
    once = len(traces)
    for _ in range(2):
        fit(model, callbacks, max_epochs=4, directory=tmp_path)
    assert len(traces) == once


def test_streams_have_the_ids_of_the_model():
    model, ids = make_model(), {"pad_id": 1, "start_id": 2}
    model.pad_id, model.start_id = 0, 2
    for changes, words in (({}, "`pad_id` .* 0"), ({"start_id": 5}, "`start_id` .* 2")):
        stream = Stream()
        vars(stream).update({**ids, "pad_id": 0 if changes else 1, **changes})
        with pytest.raises(ValueError, match=f"`stream` must have the {words}"):
            fit(model, stream=stream, updates=1)
        with pytest.raises(ValueError, match=f"`data` must have the {words}"):
            fit(model, [Validate(stream)], updates=1)
