"""Training ends where it should, and says why."""

import signal
import threading

import keras
import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.callbacks import (
    Checkpoints,
    EarlyStopping,
    GracefulStop,
    StopAtUpdate,
    StopOnNaN,
    Validate,
)
from tests.callbacks.small import Probe, Results, Stream, fit, make_model


def send(number, times=1):
    # In this thread, at once: two that are sent to the process may arrive as one.
    return lambda: [signal.raise_signal(number) for _ in range(times)]


def completed(model) -> int:
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_training_with_a_checkpoint(tmp_path, number, capfd):
    before = signal.getsignal(number)
    stop, model, validations = GracefulStop(), make_model(), []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: validations.append("val_loss" in logs)
    )
    callbacks = [Probe(7, send(number)), stop, Checkpoints(tmp_path), look]
    fit(model, [*callbacks, Validate(Stream())], max_epochs=9)
    assert stop.signal == number and stop.exit_status == 128 + number
    state = checkpoints.read_state(checkpoints.latest(tmp_path))
    assert (state["update"], state["epoch"], state["epoch_end"]) == (7, 1, False)
    assert completed(model) == 7 and validations == [True, False]
    assert signal.getsignal(number) is before
    assert "stopping after this update" in capfd.readouterr().err


def test_signal_waits_for_the_end_of_the_update(tmp_path):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    callbacks = [
        GracefulStop(),
        Checkpoints(tmp_path),
        Probe(4, send(signal.SIGTERM)),
    ]
    fit(make_model(optimizer), callbacks, max_epochs=2)
    state = checkpoints.read_state(checkpoints.latest(tmp_path))
    assert (state["update"], state["position"]) == (2, 6)


def test_second_interrupt_aborts_at_once():
    model = make_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [GracefulStop(), Probe(2, send(signal.SIGINT, 2))], max_epochs=2)
    assert completed(model) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_come_back_after_an_error_in_plain_fit():
    before = signal.getsignal(signal.SIGTERM)

    def fail():
        assert signal.getsignal(signal.SIGTERM) is not before
        raise RuntimeError("on purpose")

    with GracefulStop() as stop, pytest.raises(RuntimeError, match="on purpose"):
        make_model().fit(
            Stream().dataset().take(2), callbacks=[stop, Probe(1, fail)], shuffle=False
        )
    assert signal.getsignal(signal.SIGTERM) is before


def test_graceful_stop_in_another_thread_does_nothing():
    before, found, stop = signal.getsignal(signal.SIGTERM), [], GracefulStop()
    stop.set_model(make_model())

    def run():
        stop.on_train_begin()
        found.append(signal.getsignal(signal.SIGTERM))
        stop.on_train_end()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


def test_nothing_is_trained_beyond_max_updates():
    model = make_model()
    settings = dict(steps_per_epoch=5, epochs=3, shuffle=False, verbose=0)
    model.fit(Stream().dataset(), callbacks=[StopAtUpdate(7)], **settings)
    assert completed(model) == 7
    fit(model, updates=8)
    fit(model, updates=8)
    assert completed(model) == 8
    with pytest.raises(ValueError, match="must say when training ends"):
        fit(model)


def test_early_stopping_counts_validations():
    values = [-5.0, -6.0, -4.0, float("nan"), -4.5, -1.0]
    stop, results = EarlyStopping(2, "val_bleu"), Results("val_bleu", values)
    assert stop.mode == "max"
    history = fit(make_model(), [results, stop], max_epochs=6, stream=Stream(1))
    assert history.epoch == [0, 1, 2, 3, 4]
    assert stop.stopped and stop.best == -4.0
    again = EarlyStopping(2, "val_bleu")
    again.set_state(stop.get_state())
    assert fit(make_model(), [results, again], max_epochs=6).epoch == []
    down = EarlyStopping(1, "val_nll")
    results = Results("val_nll", [3.0, 2.0, 2.0, 1.0])
    history = fit(make_model(), [results, down], max_epochs=4, stream=Stream(1))
    assert history.epoch == [0, 1, 2] and down.best == 2.0


def test_nan_stops_with_the_last_good_checkpoint(tmp_path, capsys):
    class Spoiled(Stream):
        def dataset(self, position=0):
            import tensorflow as tf

            numbers = tf.data.Dataset.counter(position)
            pairs = tf.data.Dataset.zip((super().dataset(position), numbers))
            return pairs.map(
                lambda pair, n: (pair[0], pair[1] * tf.where(n == 7, np.nan, 1.0))
            )

    nan = StopOnNaN(every=1, directory=tmp_path)
    model = make_model()
    with pytest.warns(UserWarning, match="not finite"):
        fit(model, [nan, Checkpoints(tmp_path)], max_epochs=4, stream=Spoiled())
    assert completed(model) == 8
    assert "stopped at update 8" in nan.message and "kernel" in nan.message
    assert "update-00000005.npz" in nan.message and "learning rate" in nan.message
    assert nan.message in capsys.readouterr().err
    fresh = make_model()
    checkpoints.restore(checkpoints.latest(tmp_path), fresh)
    assert all(np.isfinite(np.asarray(weight)).all() for weight in fresh.weights)


def test_skipped_updates_of_loss_scaling_are_no_reason_to_stop():
    """Keras halves the scale at an overflow and goes on; so does the training."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=2.0**127
    )
    model, nan = make_model(optimizer), StopOnNaN(every=1)
    fit(model, [nan], max_epochs=1, stream=Stream(6))
    assert nan.message is None
    scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
    assert scale < 2.0**127  # there were some
    nan = StopOnNaN(every=1, minimum_loss_scale=2.0**127)
    history = fit(model, [nan], max_epochs=3)
    assert "scale of the loss" in nan.message and len(history.epoch) == 1
