"""What a callback knows of the training it takes part in: updates and batches.

Keras counts batches; the package counts updates of the weights, of which one may take
several batches (gradient accumulation) or none be made of one (a skipped update of
mixed_float16).
"""

import keras
import numpy as np
from keras import ops


class CountingCallback(keras.callbacks.Callback):
    """Base of the callbacks: counts batches, and reads the updates only when needed.

    The number of updates lies in a variable of the optimizer, perhaps on a GPU: reading
    it after every batch would make each wait for the one before.

    Attributes: `epoch`, from 0; `position`, batches since the start of training;
    `batches`, those of this epoch in this call of `fit`.
    """

    epoch = position = batches = 0
    _update, _since, _was_due = 0, 1, 0

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

    @property
    def update(self) -> int:
        """Completed updates, those before a restart included."""
        if self._since:
            self._update = int(ops.convert_to_numpy(self.model.optimizer.iterations))
            self._since = 0
        return self._update

    def reached(self, update: int) -> bool:
        """Whether so many updates are completed."""
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
        """In `on_epoch_end`: whether the epoch ended by itself and was not stopped."""
        if self.params.get("steps") is None:
            return not self.stopping
        return self.last_batch

    @property
    def stopping(self) -> bool:
        """Whether training ends after this batch or epoch."""
        return self.unsynced_model.stop_training

    def stop_training(self) -> None:
        self.unsynced_model.stop_training = True

    @property
    def unsynced_model(self):
        """The model without what `model` does on JAX: the state into the variables."""
        return self._model


def accumulation_steps(optimizer) -> int:
    """Batches of an update, of `TokenNormalized` or of an optimizer of Keras."""
    steps = 1
    for inner in nested(optimizer):
        for name in ("accumulation_steps", "gradient_accumulation_steps"):
            steps = max(steps, getattr(inner, name, 1) or 1)
    return int(steps)


def between_updates(optimizer) -> bool:
    """Whether no gradients of an unfinished update wait in the optimizer."""
    for inner in nested(optimizer):
        if (getattr(inner, "accumulation_steps", 1) or 1) > 1:
            return int(ops.convert_to_numpy(inner.micro_batch)) == 0
        steps = getattr(inner, "gradient_accumulation_steps", 1) or 1
        if steps > 1:  # `iterations` is divided by it, the variable is not
            counts = [v for v in inner.variables if v.path.endswith("/iteration")]
            return int(ops.convert_to_numpy(counts[0])) % steps == 0
    return True


def nested(optimizer):
    """An optimizer, the one inside of it, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def rate_of(model) -> float:
    """The rate that the next update takes."""
    return float(ops.convert_to_numpy(model.optimizer.learning_rate))


def weights_not_finite(model) -> list[str]:
    """Paths of the weights that have an infinity or NaN."""
    return [
        variable.path
        for variable in model.weights
        if "float" in keras.backend.standardize_dtype(variable.dtype)
        and not np.all(ops.convert_to_numpy(ops.all(ops.isfinite(variable))))
    ]
