"""When training ends: by plan, by a signal, by a result, or because it went wrong."""

import math
import os
import signal
import sys
import threading

import keras
from keras import ops

from keras_seqconv import checkpoints
from keras_seqconv.callbacks.counting import (
    CountingCallback,
    between_updates,
    nested,
    rate_of,
    weights_not_finite,
)
from keras_seqconv.support.arguments import (
    check_choice,
    check_number,
    check_positive_integer,
)


class GracefulStop(CountingCallback):
    """Ctrl-C and SIGTERM end training after the update at hand.

    `fit` returns as if training were over, `Checkpoints` writes where it was, and
    `signal` and `exit_status` tell the caller. A second signal acts as it would have
    without this callback: Ctrl-C aborts at once. A validation that is running ends
    first. Handlers are those of before when training ends; where `fit` raises, `close`
    or a `with` block brings them back. Outside of the main thread, where Python has no
    signals, it does nothing.

    Attributes: `signal`, the signal that came, or None; `exit_status`, 0 or 128 plus
    its number, as shells have it.

    Example:

    ```python
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with keras_seqconv.callbacks.GracefulStop() as stop:
        model.fit(inputs[:, 0], inputs[:, 1, :1], callbacks=[stop], verbose=0)
    if stop.exit_status:
        raise SystemExit(stop.exit_status)
    ```
    """

    def __init__(self, signals=(signal.SIGINT, signal.SIGTERM)):
        super().__init__()
        self.signals = tuple(signals)
        self.signal = None
        self._handlers = {}

    @property
    def exit_status(self) -> int:
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self) -> None:
        """Bring back the handlers of before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.signal = None
        if threading.current_thread() is threading.main_thread() and not self._handlers:
            self._handlers = {
                number: signal.signal(number, self._handle) for number in self.signals
            }

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.signal is not None and between_updates(self.model.optimizer):
            self.stop_training()

    def on_epoch_end(self, epoch, logs=None):
        if self.signal is not None:
            self.stop_training()

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


class StopAtUpdate(CountingCallback):
    """Ends training when the optimizer has made so many updates in all.

    Args:
        max_updates: those before a restart count.
    """

    def __init__(self, max_updates: int):
        super().__init__()
        self.max_updates = check_positive_integer("max_updates", max_updates)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.reached(self.max_updates):
            self.stop_training()


class StopAtLearningRate(keras.callbacks.Callback):
    """Ends training after an epoch when the rate is not above `minimum` (fairseq)."""

    def __init__(self, minimum: float):
        super().__init__()
        self.minimum = check_number("minimum", minimum)

    def on_epoch_end(self, epoch, logs=None):
        if rate_of(self.model) <= self.minimum:
            self.model.stop_training = True


class EarlyStopping(CountingCallback):
    """Ends training after `patience` validations in a row without a better result.

    Keras' own counts epochs and forgets its count when training is interrupted; this
    one counts validations and its count is kept by `Checkpoints`. It does not touch the
    weights: the best ones are those of `checkpoints.best`.

    Args:
        patience: validations.
        monitor: "val_nll", "val_bleu" or any other key of the logs.
        mode: "min", "max", or "auto": "max" for accuracy and BLEU.

    Attributes: `best`, `bad_validations`, `stopped` (whether this ended the training).
    """

    def __init__(self, patience: int, monitor: str = "val_nll", mode: str = "auto"):
        super().__init__()
        self.patience = check_positive_integer("patience", patience)
        self.monitor = monitor
        check_choice("mode", mode, ("auto", "min", "max"))
        if mode == "auto":
            upwards = monitor.lower().endswith(("accuracy", "bleu", "chrf"))
            mode = "max" if upwards else "min"
        self.mode = mode
        self.best, self.bad_validations, self.stopped = None, 0, False
        self._seen = None  # the last update with a result

    def get_state(self) -> dict:
        bad, seen = self.bad_validations, self._seen
        return {"best": self.best, "bad_validations": bad, "seen": seen}

    def set_state(self, state: dict) -> None:
        self.best, self.bad_validations = state["best"], state["bad_validations"]
        self._seen = state["seen"]

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._look({})

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._look(logs or {})

    def on_epoch_end(self, epoch, logs=None):
        self._look(logs or {})

    def _look(self, logs):
        value = logs.get(self.monitor)
        if value is not None and self.update != self._seen:
            self._seen, value = self.update, float(value)
            self.bad_validations += 1
            sign = -1 if self.mode == "min" else 1
            if not math.isnan(value) and (
                self.best is None or sign * value > sign * self.best
            ):
                self.best, self.bad_validations = value, 0
        self.stopped = self.bad_validations >= self.patience
        if self.stopped:
            self.stop_training()


class StopOnNaN(CountingCallback):
    """Ends training when loss or gradients are no longer finite.

    A message on stderr, kept in `message`, says where that was and what to try.
    `Checkpoints` does not write such a model, so that the last file is a good one.
    Under `mixed_float16` single updates with overflow are normal and are skipped by the
    optimizer; there training ends when the scale of the loss has fallen below
    `minimum_loss_scale` (fairseq's rule), or a weight is not finite.

    Args:
        every: batches between two looks, where a look would have to wait for the device
            (`fit_stream`; in plain `fit` Keras fetches the logs of every batch, and
            each is looked at).
        minimum_loss_scale: as above.
        directory: of `Checkpoints`, for the message.

    Attributes: `message`, None while all is well.
    """

    def __init__(
        self,
        *,
        every: int = 20,
        minimum_loss_scale: float = 1e-4,
        directory: str | os.PathLike | None = None,
    ):
        super().__init__()
        self.every = check_positive_integer("every", every)
        self.minimum_loss_scale = check_number("minimum_loss_scale", minimum_loss_scale)
        self.directory = directory
        self.message = None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.message = None

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if isinstance(logs, dict) or self.batches % self.every == 0:
            self._look(logs or {})

    def on_epoch_end(self, epoch, logs=None):
        self._look(logs or {})

    def _look(self, logs):
        reason = self._reason(logs) if self.message is None else None
        if reason is not None:
            self.message = self._describe(reason)
            self.stop_training()
            sys.stderr.write(f"\n{self.message}\n")

    def _reason(self, logs) -> str | None:
        infinite = [
            f"{name} is {float(logs[name])}"
            for name in ("loss", "gradient_norm")
            if name in logs and not math.isfinite(float(logs[name]))
        ]
        kind = keras.optimizers.LossScaleOptimizer
        chain = nested(self.unsynced_model.optimizer)
        scaled = [optimizer for optimizer in chain if isinstance(optimizer, kind)]
        if not scaled:
            return infinite[0] if infinite else None
        model = self.model  # on JAX, this brings the state into the variables
        scale = float(ops.convert_to_numpy(scaled[0].dynamic_scale))
        if scale < self.minimum_loss_scale:
            return f"the scale of the loss fell to {scale:.1e}"
        bad = infinite and weights_not_finite(model)
        return "weights are not finite" if bad else None

    def _describe(self, reason: str) -> str:
        bad = weights_not_finite(self.model)
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        where = f" Not finite: {', '.join(bad[:3])}{more}." if bad else ""
        files = checkpoints.find(self.directory) if self.directory else []
        last = f" The last checkpoint is {files[-1]}." if files else ""
        return (
            f"Training stopped at update {self.update} "
            f"(batch {self.position} of this run): {reason}.{where}{last} "
            "Try a lower learning rate, a longer warm-up, `global_clipnorm`, or "
            "`mixed_bfloat16` or float32 instead of float16; "
            "`tf.debugging.enable_check_numerics()` names the operation."
        )
