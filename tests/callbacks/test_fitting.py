"""An interrupted training goes on as if nothing had happened, to the bit."""

import signal

import keras
import numpy as np
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


@pytest.mark.parametrize("numbers", [(2.5, 1), (1, "3"), (-1, 1)])
def test_limits_are_integers(numbers):
    updates, epochs = numbers
    with pytest.raises(ValueError, match="`max_(updates|epochs)` must be an integer"):
        fit(make_model(), updates=updates, max_epochs=epochs)


def test_averages_replace_the_weights_once_at_the_end(tmp_path):
    """As in one `fit` of Keras, also where training was interrupted."""

    def model():
        return make_model(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9))

    of_keras, whole, resumed = model(), model(), model()
    options = dict(steps_per_epoch=5, verbose=0, shuffle=False)
    of_keras.fit(Stream().dataset(), epochs=3, **options)
    fit(whole, max_epochs=3)
    fit(model(), [Checkpoints(tmp_path)], updates=8, directory=tmp_path)
    fit(resumed, [Checkpoints(tmp_path)], max_epochs=3, directory=tmp_path)
    assert same(of_keras, whole) and same(whole, resumed)


def test_callbacks_forget_the_training_before(tmp_path):
    """Two models with the same objects are trained as with two."""
    rate = ReduceOnPlateau(0.05, monitor="loss", mode="max")
    stop = EarlyStopping(2, "loss", "max")
    seen, kept = [], Checkpoints(tmp_path / "0")
    for number in range(2):
        kept.directory, model = tmp_path / f"{number}", make_model()
        fit(model, [rate, stop, kept], max_epochs=9, directory=kept.directory)
        rates = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
        seen.append((rates, *latest(kept.directory, "update", "position", "epoch")))
    assert seen[0] == seen[1] and seen[0][1] < 9 * 5
    rates = []
    for _ in range(2):
        model = make_model()
        options = dict(steps_per_epoch=2, epochs=9, verbose=0, shuffle=False)
        history = model.fit(Stream().dataset(), callbacks=[stop], **options)
        rates.append(len(history.epoch))
    assert rates[0] == rates[1] < 9


def test_an_epoch_that_was_cut_short_is_no_validation(tmp_path):
    ends = []
    for name, limits in (("whole", [40]), ("parts", [8, 40])):
        for limit in limits:
            callbacks = [EarlyStopping(2, "loss", "max"), Checkpoints(tmp_path / name)]
            fit(make_model(), callbacks, limit, directory=tmp_path / name)
        ends.append(updates(tmp_path / name)[-1])
    assert ends[0] == ends[1] < 40


def test_numbers_of_numpy_are_written(tmp_path):
    rate, kept = (
        ReduceOnPlateau(np.float32(0.05), monitor="loss"),
        Checkpoints(tmp_path),
    )
    fit(make_model(), [rate, kept], max_epochs=1)
    assert latest(tmp_path, "update") == (5,)


def test_what_is_kept_is_checked_and_better_means_higher_for_bleu(tmp_path):
    for name, value in (("keep_last", -1), ("keep_best", 1.5)):
        with pytest.raises(ValueError, match=f"`{name}` must be an integer >= 0"):
            Checkpoints(tmp_path, **{name: value})
    kept = Checkpoints(tmp_path, keep_last=1, monitor="val_bleu")
    fit(make_model(), [results("val_bleu", [10, 30, 20, 25]), kept], max_epochs=4)
    assert updates(tmp_path) == [10, 20]
    (best,) = checkpoints.select(tmp_path, "best", 1, monitor="val_bleu")
    assert checkpoints.update_of(best) == 10


def test_states_of_callbacks(tmp_path):
    stops = [EarlyStopping(10, "loss"), EarlyStopping(10, "loss", "max")]
    kept = Checkpoints(tmp_path)
    fit(make_model(), [*stops, kept], max_epochs=2)
    again = [EarlyStopping(10, "loss") for _ in range(2)]
    fit(make_model(), [*again, kept], max_epochs=2, directory=tmp_path)
    for one, other in zip(stops, again, strict=True):
        assert one.get_state() == other.get_state()


def test_metrics_that_are_vectors_are_left_out_of_files(tmp_path):
    model, stream = make_model(), Stream(2)
    model.compile("sgd", "mse", metrics=[keras.metrics.F1Score(threshold=0.5)])
    callbacks = [LogFile(tmp_path / "log"), Checkpoints(tmp_path), Validate(stream)]
    fit(model, callbacks, max_epochs=1, stream=stream)
    (record,) = read_log(tmp_path / "log")
    assert {"loss", "val_loss"} <= record.keys()
    assert not {"f1_score", "val_f1_score"} & record.keys()
    (state,) = (state for _, state in checkpoints.states(tmp_path))
    assert "loss" in state["metrics"] and "f1_score" not in state["metrics"]


def test_checkpoints_of_a_longer_training_are_told_and_kept(tmp_path):
    fit(make_model(), [Checkpoints(tmp_path, keep_last=1)], max_epochs=2)
    with pytest.warns(UserWarning, match="00000010.npz is of a later update than this"):
        fit(make_model(), [Checkpoints(tmp_path, keep_last=1)], max_epochs=1)
    assert updates(tmp_path) == [5, 10]


@pytest.mark.tensorflow
def test_metrics_are_of_all_batches_where_updates_were_skipped():
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=2.0**127
    )
    tokens, probe = [], Probe(0, None)
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: tokens.append(logs["tokens"])
    )
    model = make_model(optimizer, True, True, Tokens())
    fit(model, [probe, look], updates=6, stream=Stream(50))
    assert len(tokens) > 1 and tokens[-1] == 8 * probe.count > 48
