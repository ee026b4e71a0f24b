"""`fit` from any batch of a stream, and its checkpoints."""

import collections
import dataclasses
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import keras
import numpy as np
from keras import ops

from keras_seqconv import checkpoints, hosts
from keras_seqconv.callbacks.control import (
    TrainingCallback,
    accumulation_steps,
    floats,
    updates_of,
)
from keras_seqconv.callbacks.reporting import Validation, for_replicas
from keras_seqconv.support import not_finite
from keras_seqconv.support.arguments import check_ids, check_integer
from keras_seqconv.support.files import naming_file
from keras_seqconv.support.schema import option


@dataclasses.dataclass(eq=False)
class Checkpoints(TrainingCallback):
    """Writes checkpoints of the whole state that the next update depends on.

    A checkpoint is written at the end of each epoch, and where training ends inside of
    one. Old ones are deleted after a new one is complete. A model with weights that are
    not finite is not written. With several processes (JAX) only the first one writes.

    Args:
        directory: folder of the checkpoints, made if it is missing.
        keep_last: number of checkpoints at ends of epochs to keep; None: all.
        keep_best: number of best checkpoints to keep.
        monitor: key of the logs whose value ranks checkpoints.
        mode: "min", "max" or "auto", see `checkpoints.direction`.

    The state in a checkpoint: `update`, `position` (batches since the start of
    training), `epoch` (from 0, in which training continues), `epoch_end` (whether an
    epoch is complete), `metrics` (the logs of the epoch), `running_metrics` (sums of an
    epoch that is not complete), `callbacks` (their states), `stream` (its state).

    Attributes, which `fit_stream` sets: `callbacks`, whose states are kept if they have
    `get_state` and `set_state`; `stream`, whose state is kept if it has these methods.
    """

    directory: str | os.PathLike
    keep_last: int | None = option(10, ge=0)
    keep_best: int = option(1, ge=0)
    monitor: str = "val_nll"
    mode: Literal["auto", "min", "max"] = option("auto")
    state_names = ("position", "epoch")
    epoch = 0

    def __post_init__(self):
        super().__post_init__()
        self.directory = Path(self.directory)
        self.callbacks, self.stream = (), None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._saved_update = self.update
        if hosts.is_first():
            self.directory.mkdir(parents=True, exist_ok=True)
            checkpoints.remove_parts(self.directory)
            self._tell_later_ones()

    def _tell_later_ones(self):
        """Warns of checkpoints of another training, which may be taken for its own."""
        paths, update = checkpoints.find(self.directory), self.update
        later = [path for path in paths if checkpoints.update_of(path) > update]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged ones, which nobody takes
            newest = checkpoints.latest(self.directory) if later else None
        if newest in later:
            warnings.warn(
                f"{newest} is of a later update than this training, which begins at "
                f"{update}: it counts as the newest. Give another folder, or "
                "remove the checkpoints of the training before.",
                stacklevel=3,
            )

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.epoch += self.epoch_complete
        self._save(logs or {}, self.epoch_complete)

    def on_train_end(self, logs=None):
        # The end of an epoch stays, where no update has followed.
        if self._saved_update != self.update:
            self._save({}, False)

    def _save(self, logs, epoch_end: bool):
        self._saved_update = self.update
        if not hosts.is_first():
            return
        model = self.model
        # Not the norm of the last gradient: that of a skipped update is infinite.
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        sums = getattr(model.optimizer, "accumulators", ())
        if not_finite([*model.weights, *inner.variables, *sums]):
            warnings.warn(
                f"No checkpoint of update {self.update} was written: the model or its "
                "optimizer has values that are not finite.",
                stacklevel=2,
            )
            return
        callback_states = {
            key: callback.get_state() for key, callback in _with_state(self.callbacks)
        }
        state = {
            "update": self.update,
            "position": self.position,
            "epoch": self.epoch,
            "epoch_end": epoch_end,
            "metrics": floats(logs),
            "callbacks": callback_states,
        }
        if hasattr(self.stream, "get_state"):
            state["stream"] = self.stream.get_state()
        if not epoch_end:
            state["running_metrics"] = _values(model.metrics_variables)
        newest = checkpoints.path_of(self.directory, self.update)
        checkpoints.save(newest, model, state)
        # Only now older ones may go.
        states = dict(checkpoints.states(self.directory, state["update"]))
        last = checkpoints.ranked(states, "last_epochs")[: self.keep_last]
        best = checkpoints.ranked(states, "best", self.monitor, self.mode)
        for path in states.keys() - {newest, *last, *best[: self.keep_best]}:
            path.unlink(missing_ok=True)


def _values(variables) -> list:
    return [ops.convert_to_numpy(variable).tolist() for variable in variables]


def _with_state(callbacks: Iterable) -> Iterator[tuple[str, object]]:
    """Callbacks that have a state, by class name (and number, of the same class)."""
    counts = collections.Counter()
    for callback in callbacks:
        if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
            name = type(callback).__name__
            yield f"{name}~{counts[name]}" if counts[name] else name, callback
            counts[name] += 1


def fit_stream(
    model: keras.Model,
    stream,
    *,
    max_updates: int | None = None,
    max_epochs: int | None = None,
    updates_per_epoch: int | None = None,
    callbacks: Iterable = (),
    directory: str | os.PathLike | None = None,
) -> keras.callbacks.History:
    """Trains with `model.fit`, epoch by epoch, starting at any batch of a stream.

    `fit` can start at any epoch but not inside an epoch. Therefore each epoch, or its
    rest, is one call of `fit` with a data set that starts there. Callbacks see one
    training: one `on_train_begin`, numbered epochs, one `on_train_end`. Validation, log
    record and checkpoint come at the end of an epoch. An epoch in which training is
    stopped has no `on_epoch_end`; one that `max_updates` cuts short has. A resumed
    epoch continues the sums of metrics of the checkpoint. (The history begins with this
    epoch.)

    Logs of a batch are fetched from the device only if a callback reads them.

    Args:
        model: compiled, with `steps_per_execution=1`.
        stream: has `dataset(position)`, an endless `tf.data.Dataset` from that batch
            on, and `batches_per_epoch()`, for example `data.BatchStream`. With
            `get_state` and `set_state`, its state is part of checkpoints. A `pad_id`
            and a `start_id` of it must be those of the model.
        max_updates: total number of updates, including those before a restart.
        max_epochs: total number of epochs.
        updates_per_epoch: updates of an epoch, as `steps_per_epoch` of `fit`; by
            default an epoch is one pass over the data and ends with the first whole
            update that contains its last batch.
        callbacks: callbacks. Validations are called first and `Checkpoints` last, all
            others in their order.
        directory: folder of checkpoints; training resumes from its newest one, and so
            do callbacks with `get_state` and `set_state`. (The callback `Checkpoints`
            writes them.)

    Returns:
        Keras' history, also `model.history`.

    Raises:
        ValueError: nothing ends the training, `steps_per_execution` is not 1, an id of
            the stream is not that of the model, or the newest checkpoint is of other
            batches.
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
    if updates_per_epoch is not None:
        check_integer("updates_per_epoch", updates_per_epoch, 1)
    for name, limit in (("max_updates", max_updates), ("max_epochs", max_epochs)):
        if limit is not None:
            check_integer(name, limit, 0)
    check_ids("stream", stream, model)
    callbacks.sort(key=lambda c: isinstance(c, Checkpoints) - isinstance(c, Validation))
    state = _resume(model, stream, callbacks, directory)
    batches_per_update = accumulation_steps(model.optimizer)
    last_update = math.inf if max_updates is None else max_updates
    epoch, position = state.get("epoch", 0), state.get("position", 0)
    training = _Training(callbacks, add_history=True, model=model)
    training.running_metrics = state.get("running_metrics", ())
    training.set_params({"epochs": max_epochs, "steps": None, "verbose": 0})
    model.stop_training = False
    finalize = model.optimizer.finalize_variable_values
    try:
        # Weights become their moving averages after the last checkpoint, not, as Keras
        # has it, at the end of each `fit`.
        model.optimizer.finalize_variable_values = lambda variables: None
        training.begin()
        while not model.stop_training and (max_epochs is None or epoch < max_epochs):
            updates_left = last_update - updates_of(model)
            if updates_left <= 0:
                break
            if updates_per_epoch is None:
                batches = (epoch + 1) * stream.batches_per_epoch()
                end = -(-batches // batches_per_update) * batches_per_update
            else:
                end = (epoch + 1) * updates_per_epoch * batches_per_update
            training.params["steps"] = end - position
            # Fewer where training ends; an update that makes none is made up for.
            training.steps = min(end - position, updates_left * batches_per_update)
            if training.steps > 0:  # not so for an epoch smaller than one update
                model.fit(
                    for_replicas(model, stream.dataset(position)),
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    steps_per_epoch=training.steps,
                    callbacks=training,
                    shuffle=False,  # which Keras can only do with arrays
                    verbose=0,
                )
                position += training.steps
                if position < end:  # the epoch goes on, where an update was skipped
                    training.running_metrics = _values(model.metrics_variables)
            epoch += position >= end
        training.end()
        if model.optimizer.built:
            finalize(model.trainable_weights)
    finally:
        del model.optimizer.finalize_variable_values
        for callback in callbacks:
            if hasattr(callback, "close"):
                callback.close()
    return model.history


def _resume(model, stream, callbacks: list, directory) -> dict:
    """Sets all to the newest undamaged checkpoint; returns its state, {} without."""
    writers = [c for c in callbacks if isinstance(c, Checkpoints)]
    for writer in writers:
        writer.stream = stream
        writer.callbacks = [c for c in callbacks if c not in writers]
    path = None if directory is None else checkpoints.latest(directory)
    state = {} if path is None else checkpoints.restore(path, model)
    with naming_file(path, "has no state of these callbacks"):
        for key, callback in _with_state(callbacks):
            if key in state.get("callbacks", {}):
                callback.set_state(state["callbacks"][key])
    for writer in writers:
        writer.set_state({name: state.get(name, 0) for name in writer.state_names})
    if "stream" in state:
        stream.set_state(state["stream"])
    return state


class _Training(keras.callbacks.CallbackList):
    """The callbacks of a training whose epochs are a `fit` each.

    `steps` are the batches of this call of `fit`, `running_metrics` the sums with which
    it begins.
    """

    steps, batches, running_metrics = 0, 0, ()

    def begin(self):
        super().on_train_begin()

    def end(self):
        super().on_train_end()

    # What the `fit` of each epoch calls.

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        """Sums of a half epoch come back, once `fit` has reset the metrics."""
        values, self.running_metrics = self.running_metrics, ()
        variables = self.model.metrics_variables
        if [np.shape(value) for value in values] == [tuple(v.shape) for v in variables]:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(np.asarray(value, variable.dtype))
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.batches = batch + 1
        logs = FetchedLogs(logs or {})
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)

    def on_epoch_end(self, epoch, logs=None):
        if self.batches >= self.steps:  # else training was stopped
            super().on_epoch_end(epoch, logs)


class FetchedLogs(collections.UserDict):
    """Logs that fetch their values from the device on access."""

    def __getitem__(self, name):
        value = np.asarray(self.data[name])
        value = self.data[name] = value if value.ndim else float(value)
        return value
