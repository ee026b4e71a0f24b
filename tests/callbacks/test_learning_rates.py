"""Rates as fairseq and PyTorch would set them, and the ends they lead to."""

import keras
import numpy as np
import pytest

from keras_seqconv.callbacks import FixedSchedule, ReduceOnPlateau, StopAtLearningRate
from keras_seqconv.callbacks.counting import rate_of
from tests.callbacks.small import Results, Stream, fit, make_model


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(rate_of(self.model))


def rates(callbacks, batches, epochs) -> list[float]:
    """The rate of each batch."""
    model, note = make_model(keras.optimizers.SGD(0.1)), Rates()
    fit(model, [*callbacks, note], max_epochs=epochs, stream=Stream(batches))
    return note.rates


def test_fixed_schedule_with_warm_up_and_force_anneal():
    schedule = FixedSchedule(0.4, force_anneal=4, shrink=0.5, warmup_steps=4)
    # Two updates an epoch; (n + 1) / 4 in the first four.
    wanted = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    np.testing.assert_allclose(rates([schedule], 2, 5), wanted, rtol=1e-6)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateau_is_pytorchs_rule(mode):
    """By an independent count: better means below 0.9999 of the best."""
    values = [3.0, 2.0, 1.99999, 2.5, 1.0, 1.0, float("nan"), 0.5]
    wanted, best, bad, rate = [], float("inf"), 0, 0.1
    for value in values:
        wanted.append(rate)
        best, bad = (value, 0) if value < best * (1 - 1e-4) else (best, bad + 1)
        if bad > 1:
            rate, bad = rate * 0.5, 0
    if mode == "max":  # 1 / 0.9999 is more than 1.0001 only by its square
        values = [1 / value for value in values]
    plateau = ReduceOnPlateau(shrink=0.5, patience=1, mode=mode)
    found = rates([Results("val_nll", values), plateau], 1, 8)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len(set(wanted)) == 3


def test_plateau_warm_up_and_state():
    plateau = ReduceOnPlateau(0.3, 0.1, warmup_steps=3, warmup_start=0.0)
    found = rates([Results("val_nll", [1.0, 2.0, 3.0, 4.0]), plateau], 2, 4)
    # The first epoch ends in the warm-up: the second sets the best, then it shrinks.
    wanted = [0.0, 0.1, 0.2, 0.3, 0.3, 0.3, 0.03, 0.03]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)
    other = ReduceOnPlateau(0.3, 0.1)
    other.set_state(plateau.get_state())
    assert other.get_state() == plateau.get_state()
    assert other.get_state()["rate"] == pytest.approx(0.003)


def test_stop_at_learning_rate():
    schedule = FixedSchedule(1.0, force_anneal=2, shrink=0.1)
    found = rates([StopAtLearningRate(0.011), schedule], 1, 9)
    np.testing.assert_allclose(found, [1.0, 0.1, 0.01], rtol=1e-6)


def test_wrong_arguments():
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    for callback in (FixedSchedule(0.1), ReduceOnPlateau()):
        with pytest.raises(ValueError, match="`learning_rate` of the optimizer must"):
            fit(make_model(keras.optimizers.SGD(decay)), [callback], max_epochs=1)
    with pytest.raises(ValueError, match="`patience` must be"):
        ReduceOnPlateau(patience=-1)
    with pytest.raises(ValueError, match="`force_anneal` must be"):
        FixedSchedule(0.1, force_anneal=0)
