"""An interrupted training goes on as if nothing had happened, to the bit."""

import signal

import keras
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.callbacks import (
    Checkpoints,
    EarlyStopping,
    GracefulStop,
    LogFile,
    ReduceOnPlateau,
    Validate,
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
    ("counts", "updates_per_epoch"),
    [(False, None), pytest.param(True, 4, marks=pytest.mark.tensorflow)],
)
def test_resumed_training_is_the_uninterrupted_one(tmp_path, counts, updates_per_epoch):
    """Killed, stopped and ended in the middle of epochs, with validation and rates."""

    def train(folder, *more, updates=13):
        layers = [Tokens()] if counts else []
        model = make_model(None, True, counts, *layers)
        callbacks = [
            Checkpoints(folder / "c", monitor="val_loss"),
            LogFile(folder / "log.jsonl"),
            ReduceOnPlateau(0.05, monitor="loss", shrink=0.5, mode="max"),
            *([] if counts else [Validate(Stream())]),
            *more,
        ]
        options = {"updates_per_epoch": updates_per_epoch, "directory": folder / "c"}
        history = fit(model, callbacks, updates=updates, **options)
        timed = ("seconds", "tokens_per_second", "val_seconds")
        records = [
            {name: record[name] for name in record if name not in timed}
            for record in read_log(folder / "log.jsonl")
        ]
        return model, history, records

    whole, whole_history, whole_log = train(tmp_path / "whole")
    parts = tmp_path / "parts"
    with pytest.raises(Killed):
        train(parts, Probe(4, kill))
    train(parts, Probe(7, lambda: signal.raise_signal(signal.SIGTERM)), GracefulStop())
    assert latest(parts / "c", "update", "epoch_end") == (7, False)
    with pytest.raises(Killed):
        train(parts, Probe(1, kill))
    train(parts, updates=9)
    assert latest(parts / "c", "update", "epoch_end") == (9, False)
    model, history, log = train(parts)
    assert same(model, whole)
    assert history.epoch == whole_history.epoch[-len(history.epoch) :]
    # The sums of the epoch in which it went on came back, too.
    losses = history.history["loss"]
    assert losses == whole_history.history["loss"][-len(losses) :]
    log = [record for record in log if record["update"] != 9]  # of the shorter training
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


def test_plain_fit_writes_checkpoints(tmp_path):
    settings = dict(steps_per_epoch=5, epochs=2, shuffle=False, verbose=0)
    make_model().fit(Stream().dataset(), callbacks=[Checkpoints(tmp_path)], **settings)
    keys = ("update", "position", "epoch", "epoch_end")
    assert latest(tmp_path, *keys) == (10, 10, 2, True)


def test_files_that_are_kept(tmp_path):
    given = results("val_nll", [5.0, 1.0, 4.0, 3.0, 2.0, 6.0])
    kept = Checkpoints(tmp_path, keep_last=2, keep_best=1)
    fit(make_model(), [kept, given], 11, Stream(2))
    # Ends of epochs 4 and 5, the best (epoch 2), the end within epoch 6.
    assert updates(tmp_path) == [4, 8, 10, 11]
    assert checkpoints.select(tmp_path, "best", 1) == [checkpoints.path_of(tmp_path, 4)]


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


@pytest.mark.slow
def test_train_function_is_made_once(tmp_path):
    traces = []

    class Counting(keras.layers.Layer):
        def call(self, inputs):
            traces.append(inputs.shape)
            return inputs

    model = make_model(None, True, False, Counting())
    callbacks = [Checkpoints(tmp_path), Validate(Stream())]
    fit(model, callbacks, updates=3)
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


def test_states_of_callbacks(tmp_path):
    stops = [EarlyStopping(10, "loss"), EarlyStopping(10, "loss", "max")]
    kept = Checkpoints(tmp_path, recipe={"name": "small"})
    fit(make_model(), [*stops, kept], max_epochs=2)
    assert latest(tmp_path, "recipe") == ({"name": "small"},)
    again = [EarlyStopping(10, "loss") for _ in range(2)]
    fit(make_model(), [*again, kept], max_epochs=2, directory=tmp_path)
    for one, other in zip(stops, again, strict=True):
        assert one.get_state() == other.get_state()
