"""Learning rate schedules of the recipes.

n is the number of completed updates: update number n + 1 uses lr(n), as in fairseq and
Keras. Rates that depend on epochs and validation are callbacks.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_seqconv.support.arguments import public_names
from keras_seqconv.support.schema import check_fields, option

__dir__ = public_names(globals())


@dataclasses.dataclass(eq=False)
class _AfterWarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A line from (0, warmup_start) to (warmup_steps, learning_rate), then `_later`."""

    learning_rate: float = option(ge=0)
    warmup_steps: int = option(0, ge=0)
    warmup_start: float = option(0.0, ge=0)

    def __post_init__(self):
        check_fields(self)

    def __call__(self, step):
        updates = ops.cast(step, "int32")
        slope = (self.learning_rate - self.warmup_start) / max(self.warmup_steps, 1)
        rising = self.warmup_start + ops.cast(updates, "float32") * slope
        return ops.where(updates < self.warmup_steps, rising, self._later(updates))

    def get_config(self) -> dict:
        return dict(vars(self))


@keras.saving.register_keras_serializable(package="keras_seqconv")
@dataclasses.dataclass(eq=False)
class InverseSquareRoot(_AfterWarmUp):
    """Linear warm-up, then decay with the inverse square root of the updates.

        lr(n) = warmup_start + n (learning_rate - warmup_start) / warmup_steps
                                                            n < warmup_steps
        lr(n) = learning_rate sqrt(warmup_steps / n)        else

    (Vaswani et al. 2017, Attention Is All You Need, section 5.3; fairseq
    `inverse_sqrt`.)

    Args:
        learning_rate: the highest rate.
        warmup_steps: updates of the warm-up, at least 1.
        warmup_start: rate of the first update.
    """

    warmup_steps: int = option(0, ge=1)

    def _later(self, updates):
        later = ops.cast(ops.maximum(updates, self.warmup_steps), "float32")
        return self.learning_rate * ops.sqrt(self.warmup_steps / later)


@keras.saving.register_keras_serializable(package="keras_seqconv")
@dataclasses.dataclass(eq=False)
class WarmupCosine(_AfterWarmUp):
    """Linear warm-up, then periods of a cosine from the highest to the lowest rate.

        lr(n) = warmup_start + n (learning_rate - warmup_start) / warmup_steps
                                                            n < warmup_steps
        lr(n) = low_i + (high_i - low_i) (1 + cos(pi t / P_i)) / 2        else

    t counts the updates since period i began. Period i takes P_i = period *
    period_growth^i updates; high_i = learning_rate * shrink^i, low_i = floor * shrink^i
    (Loshchilov and Hutter 2017, SGDR, equation 5; fairseq `cosine`). At the end of a
    period the rate starts from the top again, while
    `keras.optimizers.schedules.CosineDecay` stays at the bottom.

    Args:
        learning_rate: the highest rate.
        warmup_steps: updates of the warm-up, 0 for none.
        warmup_start: rate of the first update.
        period: updates of the first period, which begins after the warm-up: the lowest
            rate is that of update `warmup_steps + period`.
        floor: the lowest rate of the first period.
        period_growth: factor of each period's length over the previous one, >= 1.
        shrink: factor of both rates in each further period.
    """

    period: int = option(20_000, ge=1)
    floor: float = option(0.0, ge=0)
    period_growth: float = option(1.0, ge=1)
    shrink: float = option(1.0, ge=0)

    def _later(self, updates):
        after = ops.maximum(updates - self.warmup_steps, 0)
        number, time, period = self._period_of(after)
        shrink = 1.0
        if self.shrink != 1:
            shrink = ops.power(float(self.shrink), ops.cast(number, "float32"))
        middle = (self.learning_rate + self.floor) / 2
        range_ = (self.learning_rate - self.floor) / 2
        return shrink * (middle + range_ * ops.cos(math.pi * (time / period)))

    def _period_of(self, updates):
        """Number of the period, updates since it began, and its length."""
        if self.period_growth == 1:
            number = ops.floor_divide(updates, self.period)
            time = ops.cast(updates - number * self.period, "float32")
            return number, time, float(self.period)
        starts, lengths = [0.0], [float(self.period)]
        while starts[-1] + lengths[-1] < 2**30:  # more updates than any training has
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
