"""What a callback knows of the training it takes part in: updates and batches.

Keras counts batches; the package counts updates of the weights, of which one may take
several batches (gradient accumulation) or none be made of one (a skipped update of
mixed_float16). The number of updates lies in a variable of the optimizer, perhaps on
a GPU: reading it after every batch would make each wait for the one before.
"""

import keras
from keras import ops

# A key that StopAtUpdate adds to the logs of the last batch of a training, so that
# callbacks after it validate and report once more.
ENDS = "training_ends"


class UpdateCounter:
    """Counts batches, and reads the updates only when a number can have been reached.

    Args:
        callback: whose model it is. (On JAX, `callback.model` first brings the state of
            training into the variables.)

    Attributes: `position`, batches since the start of training; `batches`, those of
    this epoch in this call of `fit`.
    """

    def __init__(self, callback: keras.callbacks.Callback):
        self._callback = callback
        self.position = 0
        self.batches = 0
        self._update = 0
        self._since = 0

    def start(self, position: int | None = None) -> None:
        """Training begins; the optimizer has the number of updates done before."""
        if position is not None:
            self.position = position
        self.batches = 0
        self._since = 1  # whatever was known is out of date
        self.read()

    def start_epoch(self) -> None:
        """Batches of the epoch count from zero."""
        self.batches = 0

    def advance(self, batch: int) -> None:
        """The batch with this index in its epoch is done."""
        done = batch + 1 - self.batches
        self.batches = batch + 1
        self.position += done
        self._since += done

    def read(self) -> int:
        """Completed updates."""
        if self._since:
            iterations = self._callback.model.optimizer.iterations
            self._update = int(ops.convert_to_numpy(iterations))
            self._since = 0
        return self._update

    def reached(self, update: int) -> bool:
        """Whether so many updates are completed."""
        # A batch makes at most one.
        if self._update + self._since < update:
            return False
        return self.read() >= update

    @property
    def last_batch(self) -> bool:
        """Whether the epoch has no more batches; False where their number is unknown.

        (Without a number, the end is seen only in `on_epoch_end`.)
        """
        steps = self._callback.params.get("steps")
        return steps is not None and self.batches >= steps

    @property
    def epoch_complete(self) -> bool:
        """In `on_epoch_end`: whether the epoch ended by itself and was not stopped."""
        if self._callback.params.get("steps") is None:
            return not self._callback.model.stop_training
        return self.last_batch

    def between_updates(self) -> bool:
        """Whether no update is half done."""
        return between_updates(self._callback.model.optimizer)


def accumulation_steps(optimizer) -> int:
    """Batches of an update, of `TokenNormalized` or of an optimizer of Keras."""
    steps = 1
    for one in nested(optimizer):
        for name in ("accumulation_steps", "gradient_accumulation_steps"):
            steps = max(steps, getattr(one, name, 1) or 1)
    return int(steps)


def between_updates(optimizer) -> bool:
    """Whether no gradients of an unfinished update wait in the optimizer."""
    for one in nested(optimizer):
        if (getattr(one, "accumulation_steps", 1) or 1) > 1:
            return int(ops.convert_to_numpy(one.micro_batch)) == 0
        steps = getattr(one, "gradient_accumulation_steps", 1) or 1
        if steps > 1:  # `iterations` is divided by it, the variable is not
            counts = [v for v in one.variables if v.path.endswith("/iteration")]
            return int(ops.convert_to_numpy(counts[0])) % steps == 0
    return True


def nested(optimizer):
    """An optimizer, the one inside of it, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def next_multiple(of: int | None, after: int) -> int | None:
    """The next multiple greater than `after`; None without `of`."""
    return None if of is None else (after // of + 1) * of
