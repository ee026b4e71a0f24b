"""Rates as fairseq and PyTorch would set them, and the ends they lead to."""

import keras
import numpy as np
import pytest

from keras_seqconv.callbacks import (
    FixedSchedule,
    ReduceOnPlateau,
    StopAtLearningRate,
)
from keras_seqconv.callbacks.learning_rates import rate_of
from tests.callbacks.small import Stream, fit, make_model


class Rates(keras.callbacks.Callback):
    """Notes the rate of each batch; gives a result at ends of epochs."""

    def __init__(self, results=()):
        super().__init__()
        self.results, self.rates = list(results), []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(rate_of(self.model))

    def on_epoch_end(self, epoch, logs=None):
        if self.results:
            logs["val_nll"] = self.results[epoch]


def sgd():
    return make_model(keras.optimizers.SGD(0.1))


def test_fixed_schedule_with_warm_up_and_force_anneal():
    rates = Rates()
    schedule = FixedSchedule(0.4, force_anneal=4, shrink=0.5, warmup_steps=4)
    fit(sgd(), [schedule, rates], max_epochs=5, stream=Stream(2))
    # Two updates an epoch; (n + 1) / 4 in the first four.
    wanted = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    np.testing.assert_allclose(rates.rates, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "patience", "results", "wanted"),
    [
        # 1.99999 is no better than 2.0: it has to be below 0.9999 of it.
        ("min", 1, [3.0, 2.0, 1.99999, 2.5, 1.0, 1.0, 1.0, 0.5],
         [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025]),
        ("max", 0, [3.0, 3.0002, 3.0007, 2.0, float("nan"), 9.0],
         [0.1, 0.1, 0.05, 0.05, 0.025, 0.0125]),
        ("min", 0, [float("nan"), 4.0, 3.9995], [0.1, 0.05, 0.05]),
    ],
)  # fmt: skip
def test_plateau_is_pytorchs_rule(mode, patience, results, wanted):
    rates = Rates(results)
    plateau = ReduceOnPlateau(shrink=0.5, patience=patience, mode=mode)
    fit(sgd(), [rates, plateau], max_epochs=len(results), stream=Stream(1))
    np.testing.assert_allclose(rates.rates, wanted, rtol=1e-6)


def test_plateau_warm_up_and_state():
    rates = Rates([1.0, 2.0, 3.0, 4.0])
    plateau = ReduceOnPlateau(0.3, 0.1, warmup_steps=3, warmup_start=0.0)
    fit(sgd(), [rates, plateau], max_epochs=4, stream=Stream(2))
    # The first epoch ends in the warm-up: the second sets the best, then it shrinks.
    wanted = [0.0, 0.1, 0.2, 0.3, 0.3, 0.3, 0.03, 0.03]
    np.testing.assert_allclose(rates.rates, wanted, rtol=1e-5, atol=1e-9)
    other = ReduceOnPlateau(0.3, 0.1)
    other.set_state(plateau.get_state())
    assert other.get_state() == plateau.get_state()
    assert other.get_state()["rate"] == pytest.approx(0.003)


@pytest.mark.parametrize("callback", [FixedSchedule(0.1), ReduceOnPlateau()])
def test_schedules_in_the_optimizer_are_refused(callback):
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ValueError, match="`learning_rate` of the optimizer must be a"):
        fit(make_model(keras.optimizers.SGD(decay)), [callback], max_epochs=1)


def test_stop_at_learning_rate():
    schedule = FixedSchedule(1.0, force_anneal=2, shrink=0.1)
    model = sgd()
    history = fit(
        model, [StopAtLearningRate(0.011), schedule], max_epochs=9, stream=Stream(1)
    )
    assert history.epoch == [0, 1, 2]  # rates 1, 0.1, 0.01


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`patience` must be"):
        ReduceOnPlateau(patience=-1)
    with pytest.raises(ValueError, match="`force_anneal` must be"):
        FixedSchedule(0.1, force_anneal=0)
