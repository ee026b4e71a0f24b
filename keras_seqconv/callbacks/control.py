"""Callbacks that control a training: learning rates, and reasons to end."""

import dataclasses
import math
import os
import signal
import sys
import threading
import warnings
from typing import Literal

import keras
import numpy as np
from keras import ops

from keras_seqconv import checkpoints, hosts
from keras_seqconv.support import not_finite
from keras_seqconv.support.schema import check_fields, option


@dataclasses.dataclass(eq=False)
class TrainingCallback(keras.callbacks.Callback):
    """Base of the callbacks, which are dataclasses of their arguments.

    Attributes: `position`, batches since the start of training (of this `fit`, but for
    `Checkpoints`); `batches`, batches of this epoch in this call of `fit`; `message`,
    the reason of an end of training, or None; `state_names`, names of attributes in
    checkpoints.
    """

    state_names = ()
    position = batches = 0
    message = None
    _restored = False

    def __post_init__(self):
        super().__init__()
        check_fields(self)

    def on_train_begin(self, logs=None):
        """Forgets a training before, unless `set_state` has just told its state."""
        kept = self.state_names if self._restored else ()
        for name in {"position", "message", *self.state_names} - {*kept}:
            self.__dict__.pop(name, None)  # leaves the value of the class
        self._restored = False

    def get_state(self) -> dict:
        return {name: getattr(self, name) for name in self.state_names}

    def set_state(self, state: dict) -> None:
        for name in self.state_names:
            setattr(self, name, state[name])
        self._restored = True

    def on_epoch_begin(self, epoch, logs=None):
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.position += batch + 1 - self.batches
        self.batches = batch + 1

    @property
    def update(self) -> int:
        """Number of completed updates, including those before a restart.

        It is a variable of the optimizer, perhaps on a GPU: reading it waits for the
        batches at work.
        """
        return updates_of(self.model)

    @property
    def epoch_complete(self) -> bool:
        """Whether all batches of this epoch are done; True if their number is unknown.

        An epoch that `max_updates` cuts short ends, too, but is not complete.
        """
        return self.batches >= (self.params.get("steps") or 0)

    @property
    def unsynced_model(self):
        """The model without what `model` does on JAX: the state into the variables."""
        return self._model


def updates_of(model) -> int:
    """Number of completed updates."""
    return int(ops.convert_to_numpy(model.optimizer.iterations))


def nested(optimizer):
    """An optimizer, the one inside of it, and so on."""
    while optimizer is not None:
        yield optimizer
        # The `inner_optimizer` of `TokenNormalized` leaves out the scaling of losses.
        inner = getattr(optimizer, "inner_optimizer", None)
        optimizer = getattr(optimizer, "optimizer", inner)


def accumulation_steps(optimizer) -> int:
    """Batches of an update, of `TokenNormalized` or of an optimizer of Keras."""
    names = ("accumulation_steps", "gradient_accumulation_steps")
    return max(
        getattr(inner, name, None) or 1 for inner in nested(optimizer) for name in names
    )


def floats(logs) -> dict[str, float]:
    """The logs that are numbers, fetched from the device, as floats for JSON."""
    return {
        name: float(value) for name in logs or () if np.ndim(value := logs[name]) == 0
    }


def rate_of(model) -> float:
    """Learning rate of the next update."""
    return float(ops.convert_to_numpy(model.optimizer.learning_rate))


def monitored(callback, logs: dict) -> float | None:
    """The value of the callback's `monitor`, or None with a warning."""
    if callback.monitor in logs:
        return float(logs[callback.monitor])
    warnings.warn(
        f"`monitor` of {type(callback).__name__} must be a key of the logs, one of "
        f"{', '.join(logs)}. Received: monitor={callback.monitor!r}",
        stacklevel=2,
    )
    return None


def is_better(value: float, best: float | None, mode: str, margin: float = 0) -> bool:
    """Whether a result improves the best by more than this share of it."""
    if best is None or math.isnan(best) or math.isnan(value):
        return not math.isnan(value)
    return value > best * (1 + margin) if mode == "max" else value < best * (1 - margin)


# --- Rates ---


class RateCallback(TrainingCallback):
    """Sets `rate` between updates; in a warm-up one on the line from `warmup_start`."""

    rate = None  # after the warm-up
    # Updates that the warm-up is ahead of those completed.
    _ahead = 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.rate is None:
            self.rate = self.learning_rate or rate_of(self.model)
        self._warming_up = self.warmup_steps > 0

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._set()

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self._warming_up:
            self._set()

    def _set(self):
        rate = self.rate
        if self._warming_up:
            update = self.update
            self._warming_up = update < self.warmup_steps
        if self._warming_up:
            share = (update + self._ahead) / self.warmup_steps
            rate = self.warmup_start + (rate - self.warmup_start) * share
        self.model.optimizer.learning_rate = rate


@dataclasses.dataclass(eq=False)
class FixedSchedule(RateCallback):
    """Shrinks the rate each epoch, from a given epoch on (fairseq's `fixed`).

    With epochs e = 1, 2, ..., and f = force_anneal:

        rate(e) = learning_rate shrink^(e + 1 - f)  for e >= f,  else learning_rate

    times (n + 1) / warmup_steps for the update after n < warmup_steps updates
    (`warmup_start` = 0; else on the straight line from there). The learning rate of the
    optimizer must be a number, not a schedule.

    Args:
        learning_rate: a number.
        force_anneal: the first epoch (from 1) with a shrunk rate, or None.
        shrink: factor for each epoch.
        warmup_steps, warmup_start: updates of the warm-up, and the rate before it.
    """

    learning_rate: float = option(gt=0)
    force_anneal: int | None = option(None, ge=1)
    shrink: float = option(0.1, gt=0)
    warmup_steps: int = option(0, ge=0)
    warmup_start: float = option(0.0, ge=0)
    _ahead = 1

    def on_epoch_begin(self, epoch, logs=None):
        if self.force_anneal is not None:
            shrunk_epochs = max(epoch + 2 - self.force_anneal, 0)
            self.rate = self.learning_rate * self.shrink**shrunk_epochs
        super().on_epoch_begin(epoch, logs)


@dataclasses.dataclass(eq=False)
class ReduceOnPlateau(RateCallback):
    """Shrinks the learning rate when validation stops improving (PyTorch's rule).

    Once at the end of each epoch: a value v is better than the best b if v < 0.9999 b
    (mode "min") or v > 1.0001 b. After more than `patience` epochs in a row without a
    better value, the rate is multiplied by `shrink` and the count starts again. A
    warm-up goes from `warmup_start` for the first update to `learning_rate`; epochs
    that end in it are ignored, as in fairseq.

    Args:
        learning_rate: rate after the warm-up; by default that of the optimizer.
        patience: epochs without a better value before the rate shrinks.
        monitor: key of the logs, from `Validate` or `validation_data`.
        mode: "min", "max" or "auto", see `checkpoints.direction`.
        shrink, warmup_steps, warmup_start: as in `FixedSchedule`.
    """

    learning_rate: float | None = option(None, gt=0)
    shrink: float = option(0.1, gt=0)
    patience: int = option(0, ge=0)
    monitor: str = "val_nll"
    mode: Literal["auto", "min", "max"] = option("auto")
    warmup_steps: int = option(0, ge=0)
    warmup_start: float = option(0.0, ge=0)
    state_names = ("rate", "best", "bad_epochs")
    best, bad_epochs = None, 0

    def on_epoch_end(self, epoch, logs=None):
        counts = self.epoch_complete and not self._warming_up
        value = monitored(self, logs) if counts else None
        if value is None:
            return
        mode = checkpoints.direction(self.monitor, self.mode)
        if is_better(value, self.best, mode, 1e-4):
            self.best, self.bad_epochs = value, 0
        elif self.bad_epochs < self.patience:
            self.bad_epochs += 1
        else:
            self.rate, self.bad_epochs = self.rate * self.shrink, 0
        self._set()


# --- Ends ---


@dataclasses.dataclass(eq=False)
class StopAtLearningRate(TrainingCallback):
    """Ends training after an epoch when the rate is not above `minimum` (fairseq).

    It comes after the callbacks that change the rate.
    """

    minimum: float = option()
    state_names = ("rate",)
    rate = None  # at the end of an epoch: a warm-up may begin at 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._stop()  # where training had come to its end already

    def on_epoch_end(self, epoch, logs=None):
        self.rate = rate_of(self.model)
        self._stop()

    def _stop(self):
        if self.rate is not None and self.rate <= self.minimum:
            self.message = (
                f"Training ended at update {self.update}: the learning rate "
                f"{self.rate:.3g} is not above {self.minimum:.3g}."
            )
            self.unsynced_model.stop_training = True


@dataclasses.dataclass(eq=False)
class EarlyStopping(TrainingCallback):
    """Ends training after `patience` validations in a row without a better result.

    Keras' callback loses its count when training is interrupted; this one is part of
    checkpoints, and has the reason of the end in `message`. It does not change the
    weights: `checkpoints.select` finds the best ones.

    Args:
        patience: epochs with a validation.
        monitor: "val_nll", "val_bleu" or any other key of the logs.
        mode: "min", "max" or "auto", see `checkpoints.direction`.
    """

    patience: int = option(ge=1)
    monitor: str = "val_nll"
    mode: Literal["auto", "min", "max"] = option("auto")
    state_names = ("best", "bad_validations")
    best, bad_validations = None, 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._stop()  # where training had come to its end already

    def on_epoch_end(self, epoch, logs=None):
        value = monitored(self, logs) if self.epoch_complete else None
        if value is None:
            return
        self.bad_validations += 1
        if is_better(value, self.best, checkpoints.direction(self.monitor, self.mode)):
            self.best, self.bad_validations = value, 0
        self._stop()

    def _stop(self):
        if self.bad_validations >= self.patience:
            best = math.nan if self.best is None else self.best
            self.message = (
                f"Training ended at update {self.update}: {self.monitor} was not better"
                f" than {best:.4g} in {self.bad_validations} validations."
            )
            self.unsynced_model.stop_training = True


@dataclasses.dataclass(eq=False)
class StopOnNaN(TrainingCallback):
    """Ends training when loss or gradients are no longer finite.

    A message on stderr, also in `message` (else None), names the position and remedies.
    `Checkpoints` does not write such a model, so the last file is undamaged.
    Under `mixed_float16` single updates with overflow are normal and are skipped by the
    optimizer; training ends when the loss scale falls below 1e-4 (fairseq's rule), or a
    weight is not finite.

    Args:
        every: batches between two checks under `fit_stream`, where a check waits for
            the device. In plain `fit`, which fetches the logs of every batch, each
            batch is checked.
        directory: folder of `Checkpoints`, for the message.
    """

    every: int = option(20, ge=1)
    directory: str | os.PathLike | None = None
    MINIMUM_LOSS_SCALE = 1e-4

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if isinstance(logs, dict) or self.batches % self.every == 0:
            self._check(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._check(logs)

    def _check(self, logs):
        reason = None if self.message else self._reason(logs)
        if reason is None:
            return
        bad = not_finite(self.model.weights)
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        where = f" Not finite: {', '.join(bad[:3])}{more}." if bad else ""
        files = checkpoints.find(self.directory) if self.directory else []
        last = f" The last checkpoint is {files[-1]}." if files else ""
        self.message = (
            f"Training stopped at update {self.update}: {reason}.{where}{last} "
            "Try a lower learning rate, a longer warm-up, `global_clipnorm`, or "
            "`mixed_bfloat16` or float32 instead of float16; "
            "`tf.debugging.enable_check_numerics()` names the operation."
        )
        sys.stderr.write(f"\n{self.message}\n")
        self.unsynced_model.stop_training = True

    def _reason(self, logs) -> str | None:
        infinite = [
            f"{name} is {float(logs[name])}"
            for name in ("loss", "gradient_norm")
            if name in logs and not math.isfinite(float(logs[name]))
        ]
        for optimizer in nested(self.unsynced_model.optimizer):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                model = self.model  # on JAX, this brings the state into the variables
                scale = float(ops.convert_to_numpy(optimizer.dynamic_scale))
                if scale < self.MINIMUM_LOSS_SCALE:
                    return f"the scale of the loss fell to {scale:.1e}"
                bad = infinite and not_finite(model.weights)
                return "weights are not finite" if bad else None
        return infinite[0] if infinite else None


@dataclasses.dataclass(eq=False)
class GracefulStop(TrainingCallback):
    """Ends training after the current update on Ctrl-C and SIGTERM.

    `fit` returns as after its last epoch, `Checkpoints` writes a checkpoint, and the
    attribute `signal` is the received signal, or None. A second signal acts as without
    this callback: Ctrl-C aborts at once. A validation in progress ends first. The end
    of training restores the previous signal handlers; if a plain `fit` raises an error,
    `close` restores them. Outside the main thread, where Python has no signals, the
    callback does nothing. Several hosts end after the same update, within `EVERY`
    batches of a signal to any of them.
    """

    EVERY = 10
    signal = _agreed = None
    _handlers = {}

    def close(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.signal = self._agreed = None
        if threading.current_thread() is threading.main_thread() and not self._handlers:
            # Not what is ignored, as in a background job, or is no function of Python.
            self._handlers = {
                number: signal.signal(number, self._handle)
                for number in (signal.SIGINT, signal.SIGTERM)
                if signal.getsignal(number) not in (signal.SIG_IGN, None)
            }

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if hosts.shard()[1] == 1:
            self._agreed = self.signal
        elif self.position % self.EVERY == 0:
            self._agreed = max(hosts.gather(self.signal or 0)) or None
            if self._agreed is not None:  # else one may have come meanwhile
                self.signal = self._agreed
        steps = accumulation_steps(self.unsynced_model.optimizer)
        if self._agreed is not None and self.position % steps == 0:
            self.unsynced_model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if hosts.shard()[1] == 1:  # a signal during a validation
            self._agreed = self.signal
        if self._agreed is not None:
            self.unsynced_model.stop_training = True

    def on_train_end(self, logs=None):
        self.close()

    def _handle(self, number, frame):
        if self.signal is not None:
            self.close()
            signal.raise_signal(number)
            return
        self.signal = int(number)
        # `print` is not reentrant: the signal may have interrupted one.
        text = f"\n{signal.Signals(number).name}: stopping after this update.\n"
        os.write(2, text.encode())
