"""Write checkpoints during `fit`, and resume from the last one."""

import collections
import dataclasses
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import keras
from keras import ops

from keras_seqconv import checkpoints, hosts
from keras_seqconv.callbacks.control import (
    CountingCallback,
    floats,
    weights_not_finite,
)
from keras_seqconv.support.arguments import check_choice


@dataclasses.dataclass(eq=False)
class Checkpoints(CountingCallback):
    """Writes checkpoints of the whole state that the next update depends on.

    Checkpoints are written at the end of each epoch, every `every_updates` updates,
    after each validation, and at the end of training. Old ones are deleted after a new
    one is complete. A model with weights that are not finite is not written. The
    callback comes last (see `ordered`), after the callbacks whose results and states it
    uses. With several processes (JAX) only the first one writes.

    Args:
        directory: folder of the checkpoints, made if it is missing.
        every_updates: updates between two checkpoints, or None.
        keep_last: number of checkpoints at ends of epochs to keep; None: all.
        keep_updates: number of other checkpoints to keep; None: all.
        keep_best: number of best checkpoints to keep, of either kind.
        monitor: key of the logs whose value ranks checkpoints. A key other than val_*,
            which only a validation has, counts at ends of epochs.
        mode: "min" or "max".
        recipe: JSON value, written to each checkpoint.

    The state in a checkpoint: `update`, `position` (batches since the start of
    training), `epoch` (from 0, in which training continues), `epoch_end` (whether an
    epoch ended), `metrics` (the logs), `running_metrics` (sums of the current epoch),
    `callbacks` (their states), `stream` (its state), `recipe`.

    Attributes: `others`, the callbacks whose states are kept (with `get_state` and
    `set_state`); `stream`, the stream of batches whose state is kept, if it has one, or
    None. `ordered` and `fit_stream` set them.
    """

    directory: str | os.PathLike
    every_updates: int | None = None
    keep_last: int | None = 10
    keep_updates: int | None = 2
    keep_best: int = 1
    monitor: str = "val_nll"
    mode: str = "min"
    recipe: dict | None = None

    def __post_init__(self):
        super().__post_init__()
        self.directory = Path(self.directory)
        check_choice("mode", self.mode, ("min", "max"))
        self.others, self.stream, self._saved = (), None, 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._saved = self.position
        if hosts.is_first():
            self.directory.mkdir(parents=True, exist_ok=True)
            checkpoints.remove_parts(self.directory)

    def on_logs(self, logs, epoch_end):
        due = self.due(self.every_updates)
        validated = self.monitor.startswith("val_") and self.monitor in logs
        if not epoch_end:
            # After the last batch when the epoch has ended, with its validation.
            if (due or validated) and not self.last_batch:
                self._save(logs if validated else {})
        elif self.epoch_complete:  # else it was stopped: `on_train_end`
            self.epoch += 1
            self._save(logs, epoch_end=True)

    def on_train_end(self, logs=None):
        if self._saved != self.position:
            self._save(logs)

    def _save(self, logs, epoch_end: bool = False):
        self._saved = self.position
        if not hosts.is_first():
            return
        model = self.model
        if weights_not_finite(model):
            warnings.warn(
                f"No checkpoint of update {self.update} was written: the model has "
                "weights that are not finite.",
                stacklevel=2,
            )
            return
        state = {
            "update": self.update,
            "position": self.position,
            "epoch": self.epoch,
            "epoch_end": epoch_end,
            "metrics": floats(logs),
            "callbacks": {
                key: callback.get_state() for key, callback in _with_state(self.others)
            },
            "recipe": self.recipe,
        }
        if hasattr(self.stream, "get_state"):
            state["stream"] = self.stream.get_state()
        if not epoch_end:
            state["running_metrics"] = [
                ops.convert_to_numpy(v).tolist() for v in model.metrics_variables
            ]
        newest = checkpoints.path_of(self.directory, self.update)
        checkpoints.save(newest, model, state)
        # Only now older ones may go.
        states = dict(checkpoints.states(self.directory))
        ends = [path for path in states if states[path].get("epoch_end")]
        between = [path for path in states if path not in ends]
        best = checkpoints.ranked(states, self.monitor, self.mode)
        kept = {newest, *best[: self.keep_best]}
        kept |= {*ends[: self.keep_last], *between[: self.keep_updates]}
        for path in states.keys() - kept:
            path.unlink(missing_ok=True)


def resume(
    model: keras.Model, directory: str | os.PathLike, callbacks: Iterable = ()
) -> dict | None:
    """Restores a model, its optimizer and callbacks to the state of a training.

    The newest undamaged checkpoint is used; damaged ones are skipped with a warning.

    Args:
        model: compiled model, made like the saved one; see `checkpoints.restore`.
        directory: folder of `Checkpoints`.
        callbacks: callbacks of the training, of the same classes as the saved ones.

    Returns:
        The state of the checkpoint, with the `initial_epoch` of `fit` as "epoch"; None
        without a checkpoint.
    """
    path = checkpoints.latest(directory)
    if path is None:
        return None
    state = checkpoints.restore(path, model)
    callbacks = list(callbacks)
    for key, callback in _with_state(callbacks):
        if key in state.get("callbacks", {}):
            callback.set_state(state["callbacks"][key])
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.position = state.get("position", 0)
            callback.epoch = state.get("epoch", 0)
    return state


def _with_state(callbacks: Iterable) -> Iterator[tuple[str, object]]:
    """Callbacks that have a state, by class name (and number, of the same class)."""
    counts = collections.Counter()
    for callback in callbacks:
        if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
            name = type(callback).__name__
            yield f"{name}~{counts[name]}" if counts[name] else name, callback
            counts[name] += 1
