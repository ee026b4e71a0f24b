"""`fit` from any batch of a stream, its checkpoints, and the order of callbacks."""

import collections
import dataclasses
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_seqconv import checkpoints, hosts
from keras_seqconv.callbacks.control import (
    CountingCallback,
    StopAtLearningRate,
    StopAtUpdate,
    accumulation_steps,
    floats,
)
from keras_seqconv.callbacks.reporting import Reports, Validation, for_replicas
from keras_seqconv.support import weights_not_finite
from keras_seqconv.support.arguments import check_choice, check_ids
from keras_seqconv.support.files import naming_file


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
    with naming_file(path, "has no state of these callbacks"):
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


# Places of classes; all others, also those of other packages, are at 0.
_PLACES = {
    StopAtUpdate: -2, Validation: -1, StopAtLearningRate: 1, Reports: 2, Checkpoints: 3,
}  # fmt: skip


def ordered(callbacks: Iterable) -> list:
    """Sort callbacks so that each sees the results it needs.

    First `StopAtUpdate`, whose last update is validated; `Validate` and
    `ValidationBLEU`, which put val_* into the logs; then, in their order, callbacks
    that use results or stop for other reasons, and all other classes; then
    `StopAtLearningRate`, after callbacks that change the rate; `LogFile`, `TensorBoard`
    and `Progress`, which report; and `Checkpoints`, which from then on keeps the states
    of all others.
    """
    callbacks = sorted(
        callbacks,
        key=lambda one: sum(_PLACES[kind] for kind in _PLACES if isinstance(one, kind)),
    )
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.others = [other for other in callbacks if other is not callback]
    return callbacks


def fit_stream(
    model: keras.Model,
    stream,
    *,
    max_updates: int | None = None,
    max_epochs: int | None = None,
    callbacks: Iterable = (),
    directory: str | os.PathLike | None = None,
) -> keras.callbacks.History:
    """Trains with `model.fit`, epoch by epoch, starting at any batch of a stream.

    `fit` can start at any epoch but not inside an epoch. Therefore each epoch, or its
    rest, is one call of `fit` with a data set that starts there. Callbacks see one
    training: one `on_train_begin`, numbered epochs, one `on_train_end`. An epoch ends
    with the first whole update that contains its last batch. A resumed epoch continues
    the sums of metrics of the checkpoint. (The history begins with this epoch.)

    Logs of a batch are fetched from the device only if a callback reads them.

    Args:
        model: compiled, with `steps_per_execution=1`.
        stream: has `dataset(position)`, an endless `tf.data.Dataset` from that batch
            on, and `batches_per_epoch()`, for example `data.BatchStream`. With
            `get_state` and `set_state`, its state is part of checkpoints. A `pad_id`
            and a `start_id` of it must be those of the model.
        max_updates: total number of updates, including those before a restart.
        max_epochs: total number of epochs.
        callbacks: callbacks, which `callbacks.ordered` sorts.
        directory: folder of checkpoints; training resumes from its newest one.
            (The callback `Checkpoints` writes them.)

    Returns:
        Keras' history, also `model.history`.
    """
    callbacks = list(callbacks)
    if max_updates is None and max_epochs is None and not callbacks:
        raise ValueError(
            "One of `max_updates`, `max_epochs` and `callbacks` must say when training "
            "ends. Received: none"
        )
    if model.steps_per_execution != 1:
        raise ValueError(
            "`steps_per_execution` of `compile` must be 1, as updates are counted. "
            f"Received: {model.steps_per_execution}"
        )
    check_ids("stream", stream, model)
    if max_updates is not None:
        callbacks.append(StopAtUpdate(max_updates))
    callbacks = ordered(callbacks)
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.stream = stream
    state = {}
    if directory is not None:
        state = resume(model, directory, callbacks) or {}
    if "stream" in state:
        stream.set_state(state["stream"])
    every = accumulation_steps(model.optimizer)
    epoch, position = state.get("epoch", 0), state.get("position", 0)
    training = _Training(callbacks, add_history=True, model=model)
    training.set_params({"epochs": max_epochs, "steps": None, "verbose": 0})
    training.running_metrics = state.get("running_metrics")
    model.stop_training = False
    super(_Training, training).on_train_begin()
    try:
        updates = int(ops.convert_to_numpy(model.optimizer.iterations))
        done = model.stop_training or (
            max_updates is not None and updates >= max_updates
        )
        while not done and epoch < (math.inf if max_epochs is None else max_epochs):
            end = -(-(epoch + 1) * stream.batches_per_epoch() // every) * every
            if end > position:  # not so for an epoch smaller than one update
                training.params["steps"] = end - position
                model.fit(
                    for_replicas(model, stream.dataset(position)),
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    steps_per_epoch=end - position,
                    callbacks=training,
                    shuffle=False,  # which Keras can only do with arrays
                    verbose=0,
                )
                position, done = end, model.stop_training
            epoch += 1
        super(_Training, training).on_train_end(training.logs)
    finally:
        for callback in callbacks:
            if hasattr(callback, "close"):
                callback.close()
    return model.history


class _Training(keras.callbacks.CallbackList):
    """The callbacks of a training whose epochs are a `fit` each."""

    logs = running_metrics = None

    # Called by the `fit` of each epoch; `fit_stream` calls those of `CallbackList`.
    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        self.logs = logs

    def on_epoch_begin(self, epoch, logs=None):
        """Sums of a half epoch come back, once `fit` has reset the metrics."""
        values, self.running_metrics = self.running_metrics or [], None
        variables = self.model.metrics_variables
        if [np.shape(value) for value in values] == [tuple(v.shape) for v in variables]:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(np.asarray(value, variable.dtype))
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        logs = FetchedLogs(logs or {})
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)


class FetchedLogs(collections.UserDict):
    """Logs that fetch their values from the device on access."""

    def __getitem__(self, name) -> float:
        value = self.data[name] = float(np.asarray(self.data[name]))
        return value
