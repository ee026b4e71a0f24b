"""Writing checkpoints during `fit`, and going on from the last one."""

import math
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import keras
from keras import ops

from keras_seqconv import checkpoints
from keras_seqconv.callbacks.counting import (
    CountingCallback,
    between_updates,
    weights_not_finite,
)
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_integer,
    check_positive_integer,
)


class Checkpoints(CountingCallback):
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
        monitor: the metric that says which are best: a key of the logs. Other than
            val_*, which only a validation gives, it counts at ends of epochs.
        mode: "min" or "max".
        recipe: anything that JSON can hold, noted in each checkpoint.

    The state in a checkpoint: `update`, `position` (batches since the start of
    training), `epoch` (from 0, in which training goes on), `epoch_end` (written at an
    end of an epoch), `metrics` (the logs), `running_metrics` (sums of the epoch so
    far), `callbacks` (their states), `stream` (its state), `recipe`.

    Attributes: `others`, the callbacks whose states are kept (those with `get_state`
    and `set_state`); `stream`, of batches, whose state is kept where it has one, or
    None. `ordered` and `fit_stream` set them.

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
        for name, value in (
            ("every_updates", every_updates),
            ("keep_last", keep_last),
            ("keep_updates", keep_updates),
        ):
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
        self.others, self.stream = (), None
        self._saved = 0
        self._due = None  # what the next checkpoint says of itself
        self._epoch_ended = False

    def set_state(self, state: dict) -> None:
        """Go on from the state of a checkpoint."""
        self.position, self.epoch = state.get("position", 0), state.get("epoch", 0)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._saved, self._due = self.position, None
        if _writes():
            self.directory.mkdir(parents=True, exist_ok=True)
            checkpoints.remove_parts(self.directory)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch_ended = False

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self.due(self.every_updates):
            self._due = self._due or {}
        if self.monitor.startswith("val_") and self._promising(logs):
            self._due = {**(self._due or {}), "metrics": _floats(logs)}
        # At the last batch: when the epoch has ended, which includes its validation.
        if self._due is not None and not self.last_batch:
            self._save_between_updates()

    def on_epoch_end(self, epoch, logs=None):
        if not self.epoch_complete:
            return  # stopped: `on_train_end` follows
        self.epoch, self._epoch_ended = epoch + 1, True
        if self.every_epoch:
            self._due = {"epoch_end": True, "metrics": _floats(logs)}
        elif self._promising(logs):
            self._due = {"metrics": _floats(logs)}
        if self._due is not None:
            self._save_between_updates()

    def on_train_end(self, logs=None):
        if self._due is not None or self._saved != self.position:
            self._save({"metrics": _floats(logs), **(self._due or {})})

    def _promising(self, logs) -> bool:
        """Whether the logs have a result that is among the best so far."""
        score = self._score(logs)
        if score is None or self.keep_best == 0:
            return False
        scores = [
            self._score(state.get("metrics")) for state in self._states().values()
        ]
        return sum(s is not None and s < score for s in scores) < self.keep_best

    def _score(self, metrics) -> float | None:
        """Lower is better."""
        value = (metrics or {}).get(self.monitor)
        if value is None or not math.isfinite(float(value)):
            return None
        return float(value) if self.mode == "min" else -float(value)

    def _states(self) -> dict[Path, dict]:
        """Of the checkpoints that are there, newest first."""
        return dict(checkpoints.states(self.directory))

    def _save_between_updates(self):
        if between_updates(self.model.optimizer):
            self._save(self._due)

    def _save(self, extra: dict):
        self._due, self._saved = None, self.position
        model = self.model
        if not _writes():
            return
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
            "epoch_end": False,
            "metrics": {},
            **extra,
            "callbacks": {
                key: callback.get_state() for key, callback in _with_state(self.others)
            },
            "recipe": self.recipe,
        }
        if hasattr(self.stream, "get_state"):
            state["stream"] = self.stream.get_state()
        if not self._epoch_ended:
            state["running_metrics"] = [
                ops.convert_to_numpy(v).tolist() for v in model.metrics_variables
            ]
        path = checkpoints.path_of(self.directory, self.update)
        checkpoints.save(path, model, state)
        self._delete_others(path)

    def _delete_others(self, newest: Path):
        states = self._states()
        ends = [path for path in states if states[path].get("epoch_end")]
        between = [path for path in states if path not in ends]
        scores = {path: self._score(states[path].get("metrics")) for path in states}
        best = sorted((p for p in states if scores[p] is not None), key=scores.get)
        kept = {newest, *best[: self.keep_best]}
        kept |= {*ends[: self.keep_last], *between[: self.keep_updates]}
        for path in states.keys() - kept:
            path.unlink(missing_ok=True)


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
        ValueError: the checkpoint is of another model or optimizer, or of an earlier
            version.
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
    pairs, counts = [], {}
    for callback in callbacks:
        if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
            name = type(callback).__name__
            count = counts[name] = counts.get(name, -1) + 1
            pairs.append((f"{name}~{count}" if count else name, callback))
    return pairs


def _writes() -> bool:
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.process_index() == 0


def _floats(logs) -> dict:
    """Logs as JSON can hold them."""
    values = {}
    for name, value in dict(logs or {}).items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            continue
    return values
