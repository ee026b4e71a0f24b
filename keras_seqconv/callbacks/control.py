"""Callbacks that control a training: learning rates, and reasons to end."""

import dataclasses
import math
import os
import signal
import sys
import threading

import keras
from keras import ops

from keras_seqconv import checkpoints, hosts
from keras_seqconv.support import weights_not_finite
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_number,
    check_positive_integer,
)

# --- What a callback knows of the training it takes part in ---


@dataclasses.dataclass(eq=False)
class CountingCallback(keras.callbacks.Callback):
    """Base of the callbacks: counts batches, and reads the updates only when needed.

    An update may take several batches (gradient accumulation), and a batch may make
    none (a skipped update of mixed_float16). Their number is a variable of the
    optimizer, perhaps on a GPU: reading it after every batch would make batches wait
    for each other.

    A subclass is a dataclass of its arguments and does its work in `on_logs(logs,
    epoch_end)`, at the end of each batch and of each epoch.

    Attributes: `epoch`, from 0; `position`, batches since the start of training;
    `batches`, batches of this epoch in this call of `fit`; `message`, the reason of an
    end of training, or None; `state_names`, names of attributes in checkpoints.
    """

    state_names = ()
    epoch = position = batches = 0
    message = None
    _update, _since, _was_due = 0, 1, 0

    def __post_init__(self):
        super().__init__()

    def get_state(self) -> dict:
        return {name: getattr(self, name) for name in self.state_names}

    def set_state(self, state: dict) -> None:
        for name in self.state_names:
            setattr(self, name, state[name])

    def on_train_begin(self, logs=None):
        self.batches = 0
        self._since = 1  # whatever was known is out of date
        self._was_due = self.update

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.batches = epoch, 0

    def on_train_batch_end(self, batch, logs=None):
        done = batch + 1 - self.batches
        self.batches += done
        self.position += done
        self._since += done
        self.on_logs({} if logs is None else logs, False)

    def on_epoch_end(self, epoch, logs=None):
        self.on_logs({} if logs is None else logs, True)

    def on_logs(self, logs, epoch_end: bool) -> None:
        """Handles the logs of a batch or an epoch, and may add to them."""

    @property
    def update(self) -> int:
        """Number of completed updates, including those before a restart."""
        if self._since:
            self._update = int(ops.convert_to_numpy(self.model.optimizer.iterations))
            self._since = 0
        return self._update

    def reached(self, update: int) -> bool:
        """Whether this number of updates is completed."""
        # A batch makes at most one.
        return self._update + self._since >= update and self.update >= update

    def due(self, every: int | None) -> bool:
        """Whether a multiple of `every` updates was completed since the last time."""
        if every is None or not self.reached((self._was_due // every + 1) * every):
            return False
        self._was_due = self.update
        return True

    @property
    def last_batch(self) -> bool:
        """Whether the epoch has no more batches; False where their number is unknown.

        (Without a number, the end is seen only in `on_epoch_end`.)
        """
        steps = self.params.get("steps")
        return steps is not None and self.batches >= steps

    @property
    def epoch_complete(self) -> bool:
        """Whether an epoch ended after its last batch, not by a stop."""
        return self.last_batch or not self.unsynced_model.stop_training

    @property
    def unsynced_model(self):
        """The model without what `model` does on JAX: the state into the variables."""
        return self._model


def nested(optimizer):
    """An optimizer, the one inside of it, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def accumulation_steps(optimizer) -> int:
    """Batches of an update, of `TokenNormalized` or of an optimizer of Keras."""
    names = ("accumulation_steps", "gradient_accumulation_steps")
    return max(
        getattr(one, name, None) or 1 for one in nested(optimizer) for name in names
    )


def floats(logs) -> dict[str, float]:
    """Fetches logs from the device as floats for JSON."""
    return {name: float(logs[name]) for name in logs or ()}


def rate_of(model) -> float:
    """Learning rate of the next update."""
    return float(ops.convert_to_numpy(model.optimizer.learning_rate))


def is_better(value: float, best: float | None, mode: str, margin: float = 0) -> bool:
    """Whether a result improves the best by more than this share of it."""
    if best is None or math.isnan(value):
        return not math.isnan(value)
    return value > best * (1 + margin) if mode == "max" else value < best * (1 - margin)


# --- Rates ---


class _Schedule(CountingCallback):
    """Sets `rate` between updates; in a warm-up one on the line from `warmup_start`."""

    # Updates that the warm-up is ahead of those completed.
    _ahead = 0

    def __post_init__(self):
        super().__post_init__()
        check_number("shrink", self.shrink)
        check_integer("warmup_steps", self.warmup_steps, 0)
        self.rate = self.learning_rate  # after the warm-up
        self._warming_up = self.warmup_steps > 0

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._set()

    def on_logs(self, logs, epoch_end):
        if self._warming_up:
            self._set()

    def _set(self):
        rate = self.rate
        self._warming_up = self._warming_up and self.update < self.warmup_steps
        if self._warming_up:
            done = (self.update + self._ahead) / self.warmup_steps
            rate = self.warmup_start + (rate - self.warmup_start) * done
        self.model.optimizer.learning_rate = rate


@dataclasses.dataclass(eq=False)
class FixedSchedule(_Schedule):
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
        warmup_steps, warmup_start: updates of the warm-up, and its first rate.
    """

    learning_rate: float
    force_anneal: int | None = None
    shrink: float = 0.1
    warmup_steps: int = 0
    warmup_start: float = 0.0
    _ahead = 1

    def on_epoch_begin(self, epoch, logs=None):
        if self.force_anneal is not None:
            done = max(epoch + 2 - self.force_anneal, 0)
            self.rate = self.learning_rate * self.shrink**done
        super().on_epoch_begin(epoch, logs)


@dataclasses.dataclass(eq=False)
class ReduceOnPlateau(_Schedule):
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
        mode: "min" or "max".
        shrink, warmup_steps, warmup_start: as in `FixedSchedule`.
    """

    learning_rate: float | None = None
    shrink: float = 0.1
    patience: int = 0
    monitor: str = "val_nll"
    mode: str = "min"
    warmup_steps: int = 0
    warmup_start: float = 0.0
    state_names = ("rate", "best", "bad_epochs")
    best, bad_epochs = None, 0

    def __post_init__(self):
        super().__post_init__()
        check_integer("patience", self.patience, 0)
        check_choice("mode", self.mode, ("min", "max"))

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.rate is None:
            self.rate = rate_of(self.model)

    def on_logs(self, logs, epoch_end):
        super().on_logs(logs, epoch_end)
        looks = epoch_end and self.epoch_complete and self.monitor in logs
        if self._warming_up or not looks:
            return
        value = float(logs[self.monitor])
        if is_better(value, self.best, self.mode, 1e-4):
            self.best, self.bad_epochs = value, 0
        elif self.bad_epochs < self.patience:
            self.bad_epochs += 1
        else:
            self.rate, self.bad_epochs = self.rate * self.shrink, 0
        self._set()


# --- Ends ---


@dataclasses.dataclass(eq=False)
class StopAtUpdate(CountingCallback):
    """Ends training after `max_updates`, including those before a restart."""

    max_updates: int

    def on_logs(self, logs, epoch_end):
        if self.reached(self.max_updates):
            self.unsynced_model.stop_training = True


@dataclasses.dataclass(eq=False)
class StopAtLearningRate(CountingCallback):
    """Ends training after an epoch when the rate is not above `minimum` (fairseq)."""

    minimum: float

    def on_logs(self, logs, epoch_end):
        if epoch_end and (rate := rate_of(self.model)) <= self.minimum:
            self.message = (
                f"Training ended at update {self.update}: the learning rate {rate:.3g} "
                f"is not above {self.minimum:.3g}."
            )
            self.model.stop_training = True


@dataclasses.dataclass(eq=False)
class EarlyStopping(CountingCallback):
    """Ends training after `patience` validations in a row without a better result.

    Keras' callback counts epochs and loses its count when training is interrupted. This
    one counts validations, and `Checkpoints` keeps its count. It does not change the
    weights: `checkpoints.best` finds the best ones. `message` has the reason of the
    end.

    Args:
        patience: validations.
        monitor: "val_nll", "val_bleu" or any other key of the logs.
        mode: "min", "max", or "auto": "max" for accuracy and BLEU.
    """

    patience: int
    monitor: str = "val_nll"
    mode: str = "auto"
    state_names = ("best", "bad_validations", "seen")
    best, bad_validations = None, 0
    seen = None  # the last update with a result

    def __post_init__(self):
        super().__post_init__()
        check_positive_integer("patience", self.patience)
        if check_choice("mode", self.mode, ("auto", "min", "max")) == "auto":
            upwards = self.monitor.endswith(("accuracy", "bleu"))
            self.mode = "max" if upwards else "min"

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.on_logs({}, False)  # patience may have been at its end already

    def on_logs(self, logs, epoch_end):
        if self.monitor in logs and self.update != self.seen:
            self.seen, value = self.update, float(logs[self.monitor])
            self.bad_validations += 1
            if is_better(value, self.best, self.mode):
                self.best, self.bad_validations = value, 0
        if self.bad_validations >= self.patience:
            best = math.nan if self.best is None else self.best
            self.message = (
                f"Training ended at update {self.update}: {self.monitor} was not better"
                f" than {best:.4g} in {self.bad_validations} validations."
            )
            self.unsynced_model.stop_training = True


@dataclasses.dataclass(eq=False)
class StopOnNaN(CountingCallback):
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

    every: int = 20
    directory: str | os.PathLike | None = None
    MINIMUM_LOSS_SCALE = 1e-4

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.message = None

    def on_logs(self, logs, epoch_end):
        fetched = isinstance(logs, dict) or self.batches % self.every == 0
        reason = self._reason(logs) if fetched and self.message is None else None
        if reason is not None:
            bad = weights_not_finite(self.model)
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            where = f" Not finite: {', '.join(bad[:3])}{more}." if bad else ""
            files = checkpoints.find(self.directory) if self.directory else []
            last = f" The last checkpoint is {files[-1]}." if files else ""
            self.message = (
                f"Training stopped at update {self.update} "
                f"(batch {self.position} of this run): {reason}.{where}{last} "
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
                bad = infinite and weights_not_finite(model)
                return "weights are not finite" if bad else None
        return infinite[0] if infinite else None


@dataclasses.dataclass(eq=False)
class GracefulStop(CountingCallback):
    """Ends training after the current update on Ctrl-C and SIGTERM.

    `fit` returns as after its last epoch, `Checkpoints` writes a checkpoint, and
    `signal` and `exit_status` inform the caller. A second signal acts as without this
    callback: Ctrl-C aborts at once. A validation in progress ends first. The end of
    training restores the previous signal handlers; if a plain `fit` raises an error,
    `close` restores them. Outside the main thread, where Python has no signals, the
    callback does nothing. Several hosts end after the same update, within `EVERY`
    batches of a signal to any of them.

    Attributes: `signal`, the received signal, or None; `exit_status`, 0 or 128 plus its
    number, as in shells.
    """

    EVERY = 10
    signal = _agreed = None
    _handlers = {}

    @property
    def exit_status(self) -> int:
        return 0 if self.signal is None else 128 + self.signal

    def close(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.signal = self._agreed = None
        if threading.current_thread() is threading.main_thread() and not self._handlers:
            self._handlers = {
                number: signal.signal(number, self._handle)
                for number in (signal.SIGINT, signal.SIGTERM)
            }

    def on_logs(self, logs, epoch_end):
        if hosts.shard()[1] == 1:
            self._agreed = self.signal
        elif not epoch_end and self.position % self.EVERY == 0:
            self.signal = max(hosts.gather(self.signal or 0)) or None
            self._agreed = self.signal
        if self._agreed is not None:
            steps = accumulation_steps(self.unsynced_model.optimizer)
            if epoch_end or self.position % steps == 0:  # between two updates
                self.unsynced_model.stop_training = True

    def on_train_end(self, logs=None):
        self.close()

    def _handle(self, number, frame):
        if self.signal is not None:
            self.close()
            signal.raise_signal(number)
            return
        self.signal = int(number)
        # No print: the signal may have come in the middle of one.
        text = f"\n{signal.Signals(number).name}: stopping after this update.\n"
        os.write(2, text.encode())
