"""`model.fit` over an endless stream, from any of its batches."""

import collections
import math
import os
from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_seqconv.callbacks import Checkpoints, StopAtUpdate, ordered, resume
from keras_seqconv.callbacks.control import accumulation_steps
from keras_seqconv.callbacks.reporting import for_replicas


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
            `get_state` and `set_state`, its state is part of checkpoints.
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
    training.begin()
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
        training.end()
    finally:
        for callback in callbacks:
            if hasattr(callback, "close"):
                callback.close()
    return model.history


class _Training(keras.callbacks.CallbackList):
    """The callbacks of a training whose epochs are a `fit` each."""

    logs = running_metrics = None

    def begin(self):
        super().on_train_begin()

    def end(self):
        super().on_train_end(self.logs)

    def on_train_begin(self, logs=None):
        """Of one epoch."""

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
