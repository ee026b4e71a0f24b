"""Rates are as fairseq and PyTorch would set them; training ends where it should."""

import math
import signal
import warnings
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.callbacks import (
    Checkpoints,
    EarlyStopping,
    FixedSchedule,
    GracefulStop,
    ReduceOnPlateau,
    StopAtLearningRate,
    StopOnNaN,
    Validate,
    control,
)
from keras_seqconv.callbacks.control import is_better, rate_of
from keras_seqconv.optimizers import TokenNormalized
from tests.callbacks.small import Probe, Stream, fit, make_model, results

# --- Rates ---


def rates(callbacks, batches, epochs) -> list[float]:
    """The rate of each batch."""
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(rate_of(note.model))
    )
    model = make_model(keras.optimizers.SGD(0.1))
    # Its `model`, unlike this one, has the rate in its variables on JAX, too.
    fit(model, [*callbacks, note], max_epochs=epochs, stream=Stream(batches))
    return seen


@pytest.mark.parametrize(
    "callbacks, batches, epochs, wanted",
    [
        # Two updates an epoch; (n + 1) / 4 in the first four.
        (lambda: [FixedSchedule(0.4, force_anneal=4, shrink=0.5, warmup_steps=4)],
         2, 5, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1]),
        (lambda: [FixedSchedule(1.0, force_anneal=2, shrink=0.1),
                  StopAtLearningRate(0.011)],
         1, 9, [1.0, 0.1, 0.01]),
        # An epoch ends in the warm-up, the second sets the best, then it shrinks.
        (lambda: [results("val_nll", [1.0, 2.0, 3.0, 4.0]),
                  ReduceOnPlateau(0.3, 0.1, warmup_steps=3, warmup_start=0.0)],
         2, 4, [0.0, 0.1, 0.2, 0.3, 0.3, 0.3, 0.03, 0.03]),
    ],
)  # fmt: skip
def test_rates(callbacks, batches, epochs, wanted):
    seen = rates(callbacks(), batches, epochs)
    np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("learning_rate", -1.0, "a finite number > 0"),
        ("learning_rate", None, "a finite number > 0"),
        ("shrink", 0.0, "a finite number > 0"),
        ("force_anneal", 0, "a positive integer"),
        ("warmup_start", "a", "a finite number >= 0"),
        ("warmup_steps", -1, "an integer >= 0"),
    ],
)
def test_wrong_rates_are_named(name, value, rule):
    with pytest.raises(ValueError, match=f"`{name}` must be {rule}.*{name}={value!r}"):
        FixedSchedule(**{"learning_rate": 0.1, name: value})


def test_a_result_is_better_than_nan():
    assert is_better(2.0, float("nan"), "min") and is_better(2.0, None, "max")
    assert not is_better(float("nan"), 2.0, "min")
    assert not is_better(float("nan"), float("nan"), "min")
    with pytest.raises(ValueError, match="`every` must be a positive integer"):
        StopOnNaN(every=0)


@pytest.mark.parametrize(
    "callback", [ReduceOnPlateau(0.3), EarlyStopping(1, "val_bleu")]
)
def test_a_monitor_that_is_not_in_the_logs_is_told(callback):
    match = f"of {type(callback).__name__} must be a key of the logs, one of loss"
    with pytest.warns(UserWarning, match=match):
        rates([callback], 1, 2)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateau_is_pytorchs_rule(mode):
    """By an independent count: better means below 0.9999 of the best."""
    # 1.2 is better than the last, but not than the best.
    values = [3.0, 2.0, 1.99999, 2.5, 1.0, 1.5, 1.2, 0.5, 0.5, float("nan"), 0.4]
    wanted, best, bad, rate = [], float("inf"), 0, 0.1
    for value in values:
        wanted.append(rate)
        best, bad = (value, 0) if value < best * (1 - 1e-4) else (best, bad + 1)
        if bad > 1:
            rate, bad = rate * 0.5, 0
    if mode == "max":  # 1 / 0.9999 is more than 1.0001 only by its square
        values = [1 / value for value in values]
    plateau = ReduceOnPlateau(shrink=0.5, patience=1, mode=mode)
    seen = rates([results("val_nll", values), plateau], 1, len(values))
    np.testing.assert_allclose(seen, wanted, rtol=1e-6)
    assert len(set(wanted)) == 4
    other = ReduceOnPlateau()
    other.set_state(plateau.get_state())
    assert other.get_state() == plateau.get_state()
    assert other.rate == pytest.approx(0.0125)


# --- Ends ---


def send(number, times=1):
    # In this thread, at once: two that are sent to the process may arrive as one.
    return lambda: [signal.raise_signal(number) for _ in range(times)]


def completed(model) -> int:
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


def test_signal_ends_training_with_a_checkpoint(tmp_path, capfd):
    number = signal.SIGTERM
    before = signal.getsignal(number)
    stop, model, validations = GracefulStop(), make_model(), []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: validations.append("val_loss" in logs)
    )
    callbacks = [Probe(7, send(number)), stop, Checkpoints(tmp_path), look]
    fit(model, [*callbacks, Validate(Stream())], max_epochs=9)
    assert stop.signal == number
    state = checkpoints.read_state(checkpoints.latest(tmp_path))
    assert (state["update"], state["epoch"], state["epoch_end"]) == (7, 1, False)
    assert completed(model) == 7 and validations == [True]
    assert signal.getsignal(number) is before
    assert "stopping after this update" in capfd.readouterr().err


def test_signal_waits_for_the_end_of_the_update(tmp_path):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    callbacks = [GracefulStop(), Checkpoints(tmp_path), Probe(4, send(signal.SIGTERM))]
    fit(make_model(optimizer), callbacks, max_epochs=2)
    state = checkpoints.read_state(checkpoints.latest(tmp_path))
    assert (state["update"], state["position"]) == (2, 6)


def test_a_signal_counts_that_comes_while_hosts_agree(monkeypatch):
    def gather(value):
        sent.append(value)
        if len(sent) == 1:  # this host has said that there is none
            signal.raise_signal(signal.SIGTERM)
        return [value, 0]

    stop, model, sent = GracefulStop(), make_model(), []
    monkeypatch.setattr(stop, "EVERY", 1, raising=False)
    monkeypatch.setattr(control.hosts, "shard", lambda: (0, 2))
    monkeypatch.setattr(control.hosts, "gather", gather)
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    model.fit(x, y, batch_size=1, callbacks=[stop], verbose=0)
    assert stop.signal == signal.SIGTERM and completed(model) == 2


def test_nothing_is_trained_beyond_max_updates():
    model = make_model()
    for _ in range(2):
        fit(model, updates=8)
        assert completed(model) == 8
    with pytest.raises(ValueError, match="must say when training ends"):
        fit(model)


def test_early_stopping_counts_validations():
    values = [-5.0, -6.0, -4.0, float("nan"), -4.5, -1.0]
    stop, given = EarlyStopping(2, "val_bleu"), results("val_bleu", values)
    history = fit(make_model(), [given, stop], max_epochs=6, stream=Stream(1))
    assert history.epoch == [0, 1, 2, 3, 4]
    assert stop.best == -4.0
    assert stop.message == (
        "Training ended at update 5: val_bleu was not better than -4 in 2 validations."
    )
    slow = StopAtLearningRate(1.0)
    fit(make_model(), [slow], max_epochs=2)
    assert "at update 5: the learning rate 0.05 is not above 1." in slow.message
    again = StopAtLearningRate(1.0)
    again.set_state(slow.get_state())
    assert fit(make_model(), [again], max_epochs=2).epoch == []
    again = EarlyStopping(2, "val_bleu")
    again.set_state(stop.get_state())
    assert fit(make_model(), [given, again], max_epochs=6).epoch == []
    assert again.message.endswith("not better than -4 in 2 validations.")
    down, given = EarlyStopping(1), results("val_nll", [3.0, 2.0, 2.0, 1.0])
    history = fit(make_model(), [given, down], max_epochs=4, stream=Stream(1))
    assert history.epoch == [0, 1, 2] and down.best == 2.0


def test_nan_stops_with_the_last_good_checkpoint(tmp_path, capsys):
    nan, model = StopOnNaN(every=1, directory=tmp_path), make_model()
    kept = Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="not finite"):
        fit(model, [nan, kept], max_epochs=4, stream=Stream(spoiled=7))
    assert completed(model) == 8
    assert "stopped at update 8" in nan.message and "kernel" in nan.message
    assert "update-00000005.npz" in nan.message and "learning rate" in nan.message
    assert nan.message in capsys.readouterr().err
    assert checkpoints.find(tmp_path) == [checkpoints.path_of(tmp_path, 5)]


@pytest.mark.parametrize("spoiled", [7, 10])
def test_nan_inside_of_an_update_leaves_the_end_of_the_epoch(tmp_path, spoiled):
    """The weights are finite, and the sums of the update are not."""
    model = make_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3))
    callbacks = [StopOnNaN(every=1, directory=tmp_path), Checkpoints(tmp_path)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a checkpoint was not written
        fit(model, callbacks, max_epochs=2, stream=Stream(6, spoiled))
    assert completed(model) == spoiled // 3
    (path,) = checkpoints.find(tmp_path)
    state = checkpoints.read_state(path)
    assert (state["update"], state["epoch_end"]) == (2, True)
    assert math.isfinite(state["metrics"]["loss"])


def test_the_scaling_of_losses_is_seen_inside_of_token_sums():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    optimizer.build([])
    nan = StopOnNaN()
    nan.set_model(SimpleNamespace(weights=[], optimizer=TokenNormalized(optimizer)))
    assert nan._reason({"gradient_norm": float("nan")}) is None


def test_skipped_updates_of_loss_scaling_are_no_reason_to_stop(monkeypatch):
    """Keras halves the scale at an overflow and goes on; so does the training."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=2.0**127
    )
    model, nan = make_model(optimizer), StopOnNaN(every=1)
    fit(model, [nan], max_epochs=1, stream=Stream(6))
    assert nan.message is None
    scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
    assert scale < 2.0**127  # there were some
    monkeypatch.setattr(nan, "MINIMUM_LOSS_SCALE", 2.0**127)
    before = completed(model)
    fit(model, [nan], max_epochs=3)
    assert "scale of the loss" in nan.message and completed(model) <= before + 1


def test_an_ignored_signal_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        model, stop = make_model(), GracefulStop()
        fit(model, [stop, Probe(2, send(signal.SIGINT))], updates=4)
        assert completed(model) == 4 and stop.signal is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_second_interrupt_aborts_at_once():
    model = make_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [GracefulStop(), Probe(2, send(signal.SIGINT, 2))], max_epochs=2)
    assert completed(model) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
