"""Learning rates of the recipes that an optimizer asks before every update.

n is the number of completed updates: update number n + 1 uses lr(n), which is how both
fairseq and Keras count. Rates that depend on epochs and validation are callbacks.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_seqconv.support.arguments import (
    check_integer,
    check_number,
    check_positive_integer,
)

# Restarts are laid out up to here.
MOST_UPDATES = 2**30


class _AfterWarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A straight line from (0, warmup_start) to (warmup_steps, learning_rate).

    Attributes of a schedule are its arguments, and nothing else.
    """

    def __init__(self, learning_rate: float, warmup_steps: int, warmup_start: float):
        self.learning_rate = _positive("learning_rate", learning_rate)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self.warmup_start = _at_least("warmup_start", warmup_start, 0)

    def __call__(self, step):
        updates = ops.cast(step, "int32")
        slope = (self.learning_rate - self.warmup_start) / max(self.warmup_steps, 1)
        rising = self.warmup_start + ops.cast(updates, "float32") * slope
        return ops.where(updates < self.warmup_steps, rising, self._later(updates))

    def _later(self, updates):
        raise NotImplementedError

    def get_config(self) -> dict:
        return dict(vars(self))


def _at_least(name: str, value: float, least: float) -> float:
    if check_number(name, value) < least:
        raise ValueError(
            f"`{name}` must be at least {least}. Received: {name}={value!r}"
        )
    return float(value)


def _positive(name: str, value: float) -> float:
    if check_number(name, value) <= 0:
        raise ValueError(f"`{name}` must be positive. Received: {name}={value!r}")
    return float(value)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class InverseSquareRoot(_AfterWarmUp):
    """A linear warm-up, then decay with the square root of the updates.

        lr(n) = warmup_start + n (learning_rate - warmup_start) / warmup_steps
                                                            n < warmup_steps
        lr(n) = learning_rate sqrt(warmup_steps / n)        else

    (Vaswani et al. 2017, Attention Is All You Need, section 5.3; fairseq
    `inverse_sqrt`.)

    Args:
        learning_rate: the highest rate.
        warmup_steps: updates of the warm-up, at least 1.
        warmup_start: rate of the first update.

    Raises:
        ValueError: for arguments outside these rules.

    Example:

    ```python
    schedule = keras_seqconv.schedules.InverseSquareRoot(5e-4, 4000, 1e-7)
    optimizer = keras_seqconv.optimizers.AdamW(schedule, beta_2=0.98)
    ```
    """

    def __init__(
        self, learning_rate: float, warmup_steps: int, warmup_start: float = 0.0
    ):
        check_positive_integer("warmup_steps", warmup_steps)
        super().__init__(learning_rate, warmup_steps, warmup_start)

    def _later(self, updates):
        later = ops.cast(ops.maximum(updates, self.warmup_steps), "float32")
        return self.learning_rate * ops.sqrt(self.warmup_steps / later)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class WarmupCosine(_AfterWarmUp):
    """A linear warm-up, then cosines from the highest rate to the lowest and again.

        lr(n) = warmup_start + n (learning_rate - warmup_start) / warmup_steps
                                                            n < warmup_steps
        lr(n) = low_i + (high_i - low_i) (1 + cos(pi t / P_i)) / 2        else

    t counts the updates since period i began. Period i takes P_i = period *
    period_growth^i updates; high_i = learning_rate * shrink^i, low_i = floor * shrink^i
    (Loshchilov and Hutter 2017, SGDR, equation 5; fairseq `cosine`). At the end of a
    period the rate starts from the top again; `keras.optimizers.schedules.CosineDecay`
    stays at the bottom instead.

    Args:
        learning_rate: the highest rate.
        warmup_steps: updates of the warm-up, 0 for none.
        warmup_start: rate of the first update.
        period: updates of the first period.
        floor: the lowest rate of the first period.
        period_growth: how much longer each period is than the one before it, >= 1.
        shrink: how much lower both rates are in each further period.

    Raises:
        ValueError: for arguments outside these rules.

    Example:

    ```python
    schedule = keras_seqconv.schedules.WarmupCosine(
        1e-3, warmup_steps=10_000, warmup_start=1e-7, period=20_000, floor=1e-7
    )
    optimizer = keras_seqconv.optimizers.AdamW(schedule, beta_2=0.98)
    ```
    """

    def __init__(
        self,
        learning_rate: float,
        warmup_steps: int = 0,
        warmup_start: float = 0.0,
        period: int = 20_000,
        floor: float = 0.0,
        period_growth: float = 1.0,
        shrink: float = 1.0,
    ):
        super().__init__(learning_rate, warmup_steps, warmup_start)
        self.period = check_positive_integer("period", period)
        self.floor = _at_least("floor", floor, 0)
        self.period_growth = _at_least("period_growth", period_growth, 1)
        self.shrink = _positive("shrink", shrink)

    def _later(self, updates):
        number, time, period = self._place(ops.maximum(updates - self.warmup_steps, 0))
        shrink = 1.0
        if self.shrink != 1:
            shrink = ops.power(self.shrink, ops.cast(number, "float32"))
        middle = (self.learning_rate + self.floor) / 2
        range_ = (self.learning_rate - self.floor) / 2
        return shrink * (middle + range_ * ops.cos(math.pi * (time / period)))

    def _place(self, updates):
        """Number of the period, updates since it began, and its length."""
        if self.period_growth == 1:
            number = ops.floor_divide(updates, self.period)
            time = ops.cast(updates - number * self.period, "float32")
            return number, time, float(self.period)
        starts, lengths = [0.0], [float(self.period)]
        while starts[-1] + lengths[-1] < MOST_UPDATES:
            starts.append(starts[-1] + lengths[-1])
            lengths.append(lengths[-1] * self.period_growth)
        # The first update of a period, and how far into the period it lies: float32
        # could not hold their difference late in a long training.
        first = np.ceil(starts)
        inside = ops.convert_to_tensor((first - starts).astype("float32"))
        first = ops.convert_to_tensor(first.astype("int32"))
        number = ops.searchsorted(first, ops.reshape(updates, (1,)), side="right")[0]
        number = ops.cast(number, "int32") - 1
        time = ops.cast(updates - ops.take(first, number, axis=0), "float32")
        time += ops.take(inside, number, axis=0)
        lengths = ops.convert_to_tensor(np.array(lengths, "float32"))
        return number, time, ops.take(lengths, number, axis=0)
