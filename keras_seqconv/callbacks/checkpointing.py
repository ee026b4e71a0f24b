"""Writing checkpoints during `fit`, and going on from the last one."""

import math
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_seqconv import checkpoints
from keras_seqconv.callbacks.updates import UpdateCounter, next_multiple
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_integer,
    check_positive_integer,
)


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints of everything that the next update depends on.

    At the end of each epoch, every so many updates, when a validation gave one of the
    best results so far, and when training ends or is stopped. Checkpoints are written
    between two updates: where an epoch ends inside of one (gradient accumulation), at
    the end of that update. Older files are deleted once the new one is on the disk. A
    model with weights that are not finite is not written.

    Put it last (`ordered` does), after the callbacks whose results it looks at and
    whose states it keeps. With several processes (JAX) only the first one writes.

    Args:
        directory: made where it is missing.
        every_updates: updates between two checkpoints, or None.
        every_epoch: whether to write one at the end of each epoch.
        keep_last: how many of those written at the end of an epoch are kept; None: all.
        keep_updates: how many of the others are kept; None: all.
        keep_best: how many of the best are kept, of either kind.
        monitor: the metric that says which are best: a key of the logs.
        mode: "min" or "max".
        recipe: anything that JSON can hold, noted in each checkpoint.

    The state in a checkpoint: `update`, `position` (batches since the start of
    training), `epoch` (from 0, in which training goes on), `epoch_end` (written at an
    end of an epoch), `metrics` (the logs), `running_metrics` (sums of the epoch so
    far), `callbacks` (their states), `stream` (its state), `recipe`.

    Example:

    ```python
    import tempfile
    from keras_seqconv.callbacks import Checkpoints, ordered, resume
    folder = tempfile.mkdtemp()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    callbacks = ordered([Checkpoints(folder, every_updates=1000, monitor="loss")])
    state = resume(model, folder, callbacks)  # None at the first start
    start = 0 if state is None else state["epoch"]
    model.fit(
        inputs[:, 0], inputs[:, 1, :1],
        initial_epoch=start, epochs=2, callbacks=callbacks, verbose=0,
    )
    ```
    """

    stage = 6

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        every_updates: int | None = None,
        every_epoch: bool = True,
        keep_last: int | None = 10,
        keep_updates: int | None = 2,
        keep_best: int = 1,
        monitor: str = "val_nll",
        mode: str = "min",
        recipe=None,
    ):
        super().__init__()
        if every_updates is not None:
            check_positive_integer("every_updates", every_updates)
        for name, value in (("keep_last", keep_last), ("keep_updates", keep_updates)):
            if value is not None:
                check_positive_integer(name, value)
        self.directory = Path(directory)
        self.every_updates = every_updates
        self.every_epoch = check_boolean("every_epoch", every_epoch)
        self.keep_last, self.keep_updates = keep_last, keep_updates
        self.keep_best = check_integer("keep_best", keep_best, 0)
        self.monitor = monitor
        self.mode = check_choice("mode", mode, ("min", "max"))
        self.recipe = recipe
        self.others = ()
        self.stream = None
        self._counter = UpdateCounter(self)
        self._epoch = 0
        self._start = 0
        self._known = {}
        self._saved = None
        self._due = None
        self._epoch_ended = False

    def watch(self, callbacks: Iterable, stream=None) -> None:
        """Keep the states of these callbacks (those with `get_state`, `set_state`).

        And that of the stream of batches, where it has one.
        """
        self.others = [one for one in callbacks if one is not self]
        self.stream = stream

    def set_state(self, state: dict) -> None:
        """Go on from the state of a checkpoint."""
        self._start = state.get("position", 0)
        self._epoch = state.get("epoch", 0)

    def get_state(self) -> dict:
        """Nothing that the state of the checkpoint itself does not have."""
        return {}

    # --- Hooks of Keras ---

    def on_train_begin(self, logs=None):
        self._counter.start(self._start)
        self._start = None
        self._saved = self._counter.position
        self._next = next_multiple(self.every_updates, self._counter.read())
        if self._writes:
            self.directory.mkdir(parents=True, exist_ok=True)
            checkpoints.remove_parts(self.directory)
        self._known = {}
        for path in checkpoints.find(self.directory):
            try:
                self._note(path, checkpoints.read_state(path))
            except ValueError as error:  # left alone: perhaps somebody can mend it
                warnings.warn(str(error), stacklevel=2)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._epoch_ended = epoch, False
        self._counter.start_epoch()

    def on_train_batch_end(self, batch, logs=None):
        self._counter.advance(batch)
        if self._next is not None and self._counter.reached(self._next):
            self._next = next_multiple(self.every_updates, self._counter.read())
            self._due = self._due or {}
        if self._promising(logs):
            self._due = {**(self._due or {}), "metrics": _floats(logs)}
        # At the last batch: when the epoch has ended, which includes its validation.
        if self._due is not None and not self._counter.last_batch:
            self._save_due()

    def on_epoch_end(self, epoch, logs=None):
        if not self._counter.epoch_complete:
            return  # stopped: `on_train_end` follows
        self._epoch, self._epoch_ended = epoch + 1, True
        if self.every_epoch:
            self._due = {"epoch_end": True, "metrics": _floats(logs)}
        elif self._promising(logs):
            self._due = {"metrics": _floats(logs)}
        if self._due is not None:
            self._save_due()

    def on_train_end(self, logs=None):
        if self._due is not None or self._saved != self._counter.position:
            self._save({"metrics": _floats(logs), **(self._due or {})})

    # --- Writing and deleting ---

    @property
    def _writes(self) -> bool:
        if keras.backend.backend() != "jax":
            return True
        import jax

        return jax.process_index() == 0

    def _promising(self, logs) -> bool:
        """Whether the logs have a result that is among the best so far."""
        value = (logs or {}).get(self.monitor)
        if value is None or self.keep_best == 0 or not math.isfinite(float(value)):
            return False
        better = [
            state
            for state in self._known.values()
            if state["score"] is not None and state["score"] < self._score(value)
        ]
        return len(better) < self.keep_best

    def _score(self, value) -> float | None:
        """Lower is better."""
        if value is None or not math.isfinite(float(value)):
            return None
        return float(value) if self.mode == "min" else -float(value)

    def _save_due(self):
        if self._counter.between_updates():
            self._save(self._due)

    def _save(self, extra: dict):
        self._due = None
        self._saved = self._counter.position
        if not self._writes:
            return
        model = self.model
        if not _finite(model):
            warnings.warn(
                f"No checkpoint of update {self._counter.read()} was written: the model"
                " has weights that are not finite.",
                stacklevel=2,
            )
            return
        state = {
            "update": self._counter.read(),
            "position": self._counter.position,
            "epoch": self._epoch,
            "epoch_end": False,
            "metrics": {},
            **extra,
            "callbacks": {
                key: one.get_state() for key, one in _with_state(self.others)
            },
            "recipe": self.recipe,
        }
        if hasattr(self.stream, "get_state"):
            state["stream"] = self.stream.get_state()
        if not self._epoch_ended:
            state["running_metrics"] = [
                np.asarray(ops.convert_to_numpy(v)).tolist()
                for v in model.metrics_variables
            ]
        path = checkpoints.path_of(self.directory, state["update"])
        checkpoints.save(path, model, state)
        self._note(path, state)
        self._delete(path)

    def _note(self, path: Path, state: dict):
        self._known[path] = {
            "epoch_end": bool(state.get("epoch_end")),
            "score": self._score(state.get("metrics", {}).get(self.monitor)),
        }

    def _delete(self, newest: Path):
        paths = sorted(self._known, key=checkpoints.update_of)
        ends = [path for path in paths if self._known[path]["epoch_end"]]
        others = [path for path in paths if not self._known[path]["epoch_end"]]
        scored = [path for path in reversed(paths) if self._score_of(path) is not None]
        kept = {newest, *sorted(scored, key=self._score_of)[: self.keep_best]}
        kept.update(ends if self.keep_last is None else ends[-self.keep_last :])
        kept.update(
            others if self.keep_updates is None else others[-self.keep_updates :]
        )
        for path in set(paths) - kept:
            path.unlink(missing_ok=True)
            del self._known[path]

    def _score_of(self, path: Path):
        return self._known[path]["score"]


def resume(
    model: keras.Model, directory: str | os.PathLike, callbacks: Iterable = ()
) -> dict | None:
    """Puts a model, its optimizer and callbacks where a broken training was.

    The newest checkpoint that is whole is taken; a damaged one is skipped with a
    warning.

    Args:
        model: compiled, made as the saved one was.
        directory: of `Checkpoints`.
        callbacks: the ones to train with, of the same classes as those that were saved.

    Returns:
        The state of the checkpoint, for `fit_stream`; None where there is none.

    Raises:
        ValueError: the checkpoint is of another model or optimizer.
    """
    path = checkpoints.latest(directory)
    if path is None:
        return None
    state = checkpoints.restore(path, model)
    callbacks = list(callbacks)
    saved = state.get("callbacks", {})
    for key, callback in _with_state(callbacks):
        if key in saved:
            callback.set_state(saved[key])
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.set_state(state)
    return state


def _with_state(callbacks: Iterable) -> list[tuple[str, object]]:
    """Callbacks that have a state, by class name (and number, of the same class)."""
    found, counts = [], {}
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            continue
        if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
            name = type(callback).__name__
            count = counts.get(name, 0)
            counts[name] = count + 1
            found.append((f"{name}~{count}" if count else name, callback))
    return found


def _floats(logs) -> dict:
    """Logs as JSON can hold them."""
    values = {}
    for name, value in dict(logs or {}).items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            continue
    return values


def _finite(model) -> bool:
    checks = [
        ops.all(ops.isfinite(variable))
        for variable in model.weights
        if "float" in keras.backend.standardize_dtype(variable.dtype)
    ]
    return all(bool(ops.convert_to_numpy(check)) for check in checks)
