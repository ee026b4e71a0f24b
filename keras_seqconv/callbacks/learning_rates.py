"""Learning rates that depend on epochs and validation, which no schedule can know."""

import math

import keras

from keras_seqconv.callbacks.counting import CountingCallback, rate_of
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_number,
    check_positive_integer,
)


class _Schedule(CountingCallback):
    """Sets the rate between updates; in a warm-up on a line that starts at `start`.

    The optimizer must have a plain number as its learning rate, not a schedule.
    """

    # Updates that the warm-up is ahead of those completed.
    _ahead = 0

    def __init__(self, warmup_steps: int, warmup_start: float):
        super().__init__()
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
        self.warmup_start = check_number("warmup_start", warmup_start)
        self._warming_up = warmup_steps > 0
        self._rate = None  # after the warm-up

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        optimizer = self.model.optimizer
        if not isinstance(optimizer.learning_rate, keras.Variable):
            raise ValueError(
                "`learning_rate` of the optimizer must be a number with "
                f"{type(self).__name__}, not a schedule. "
                f"Received: an optimizer {type(optimizer).__name__} with one"
            )

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self._warming_up:
            self._set()

    def _set(self):
        rate = self._rate
        self._warming_up = self._warming_up and self.update < self.warmup_steps
        if self._warming_up:
            done = (self.update + self._ahead) / self.warmup_steps
            rate = self.warmup_start + (rate - self.warmup_start) * done
        self.model.optimizer.learning_rate = rate


class FixedSchedule(_Schedule):
    """A rate that shrinks each epoch from a chosen one on (fairseq's `fixed`).

    With epochs e = 1, 2, ..., and f = force_anneal:

        rate(e) = learning_rate shrink^(e + 1 - f)  for e >= f,  else learning_rate

    times (n + 1) / warmup_steps for the update after n < warmup_steps updates
    (`warmup_start` = 0; else on the straight line from there). The optimizer must have
    a plain number as its learning rate, not a schedule.

    Args:
        learning_rate: a number.
        force_anneal: the first epoch (from 1) with a shrunk rate, or None.
        shrink: factor for each epoch.
        warmup_steps: updates.
        warmup_start: rate at which the line starts.

    Raises:
        ValueError: in `fit`, for an optimizer with a schedule.
    """

    _ahead = 1

    def __init__(
        self,
        learning_rate: float,
        force_anneal: int | None = None,
        shrink: float = 0.1,
        warmup_steps: int = 0,
        warmup_start: float = 0.0,
    ):
        super().__init__(warmup_steps, warmup_start)
        self.learning_rate = check_number("learning_rate", learning_rate)
        if force_anneal is not None:
            check_positive_integer("force_anneal", force_anneal)
        self.force_anneal = force_anneal
        self.shrink = check_number("shrink", shrink)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._rate = self.learning_rate
        if self.force_anneal is not None:
            self._rate *= self.shrink ** max(epoch + 2 - self.force_anneal, 0)
        self._set()


class ReduceOnPlateau(_Schedule):
    """Shrinks the rate when validation no longer gets better (PyTorch's rule).

    Once at the end of each epoch: a value v is better than the best b if v < 0.9999 b
    (mode "min") or v > 1.0001 b. After more than `patience` epochs in a row without a
    better one the rate is multiplied by `shrink`, and the count begins anew. Before,
    optionally, the rate goes along a line from `warmup_start` to `learning_rate`;
    epochs that end in the warm-up are not looked at, as in fairseq. The optimizer must
    have a plain number as its learning rate, not a schedule.

    Args:
        learning_rate: rate after the warm-up; None: that of the optimizer.
        shrink: factor.
        patience: epochs without a better value that are let pass.
        monitor: key of the logs, put there by `Validate` or `validation_data`.
        mode: "min" or "max".
        warmup_steps: updates.
        warmup_start: rate of the first update.

    Raises:
        ValueError: in `fit`, for an optimizer with a schedule.
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        shrink: float = 0.1,
        patience: int = 0,
        *,
        monitor: str = "val_nll",
        mode: str = "min",
        warmup_steps: int = 0,
        warmup_start: float = 0.0,
    ):
        super().__init__(warmup_steps, warmup_start)
        if learning_rate is not None:
            check_number("learning_rate", learning_rate)
        self.shrink = check_number("shrink", shrink)
        self.patience = check_integer("patience", patience, 0)
        self.monitor = monitor
        self.mode = check_choice("mode", mode, ("min", "max"))
        self._rate, self._best, self._bad = learning_rate, None, 0

    def get_state(self) -> dict:
        return {"rate": self._rate, "best": self._best, "bad_epochs": self._bad}

    def set_state(self, state: dict) -> None:
        self._rate, self._best = state["rate"], state["best"]
        self._bad = state["bad_epochs"]

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self._rate is None:
            self._rate = rate_of(self.model)
        self._set()

    def on_epoch_end(self, epoch, logs=None):
        value = (logs or {}).get(self.monitor)
        if value is None or self._warming_up or not self.epoch_complete:
            return
        if self._is_better(float(value)):
            self._best, self._bad = float(value), 0
        elif self._bad < self.patience:
            self._bad += 1
        else:
            self._rate, self._bad = self._rate * self.shrink, 0
        self._set()

    def _is_better(self, value: float) -> bool:
        if self._best is None or math.isnan(value):
            return not math.isnan(value)
        if self.mode == "max":
            return value > self._best * (1 + 1e-4)
        return value < self._best * (1 - 1e-4)
