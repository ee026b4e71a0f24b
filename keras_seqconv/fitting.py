"""`model.fit` over an endless stream, from any batch of it on."""

import os
from collections.abc import Iterable, MutableMapping

import keras
import numpy as np
from keras import ops

from keras_seqconv.callbacks import Checkpoints, StopAtUpdate, ordered, resume
from keras_seqconv.callbacks.updates import accumulation_steps
from keras_seqconv.replicas import for_replicas
from keras_seqconv.support.arguments import check_positive_integer


def fit_stream(
    model: keras.Model,
    stream,
    *,
    max_updates: int | None = None,
    max_epochs: int | None = None,
    callbacks: Iterable = (),
    directory: str | os.PathLike | None = None,
    state: dict | None = None,
) -> keras.callbacks.History:
    """Trains with `model.fit`, epoch by epoch, starting at any batch of a stream.

    `fit` can start with any epoch but not inside of one. So each epoch, or what is left
    of it, is one call of `fit` with a data set that starts there, and callbacks see one
    training: one `on_train_begin`, the epochs by their numbers, one `on_train_end`. An
    epoch ends with the first whole update that contains its last batch. The train
    function is made once.

    A resumed epoch counts on from the sums of metrics in the checkpoint, so that its
    results are those of the whole epoch. (The returned history begins with it.)

    Logs of a batch are fetched from the device only when a callback looks at them.

    Args:
        model: compiled, with `steps_per_execution=1`.
        stream: has `dataset(position)`, an endless `tf.data.Dataset` from that batch
            on, and `start_of(epoch)`, the position of the first batch of an epoch;
            `data.stream.BatchStream` is one. Where it has `get_state` and `set_state`,
            its state is part of checkpoints.
        max_updates: updates of the optimizer in all, those before a restart included.
        max_epochs: epochs in all.
        callbacks: put in order by `callbacks.ordered`.
        directory: of checkpoints: go on from the newest there, if there is one.
            (Writing them is up to a callback `Checkpoints`.)
        state: instead of `directory`, what `callbacks.resume` returned.

    Returns:
        Keras' history, also `model.history`.

    Raises:
        ValueError: neither `max_updates` nor `max_epochs` nor a callback that can end
            training is given, or for wrong values.
    """
    callbacks = list(callbacks)
    for name, value in (("max_updates", max_updates), ("max_epochs", max_epochs)):
        if value is not None:
            check_positive_integer(name, value)
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
    every = accumulation_steps(model.optimizer)
    callbacks = ordered(callbacks)
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.watch(callbacks, stream)
    if state is None and directory is not None:
        state = resume(model, directory, callbacks)
    state = state or {}
    if "stream" in state:
        stream.set_state(state["stream"])
    position, epoch = state.get("position", 0), state.get("epoch", 0)
    found = [_ResumedMetrics(state), *callbacks]
    training = _Callbacks(found, add_history=True, model=model)
    training.set_params({"epochs": max_epochs, "steps": None, "verbose": 0})
    model.stop_training = False
    training.begin()
    try:
        updates = int(ops.convert_to_numpy(model.optimizer.iterations))
        done = max_updates is not None and updates >= max_updates
        done = done or model.stop_training
        while not done and (max_epochs is None or epoch < max_epochs):
            end = -(-stream.start_of(epoch + 1) // every) * every
            if end > position:  # not so for an epoch smaller than one update
                steps = end - position
                training.set_params(
                    {"epochs": max_epochs, "steps": steps, "verbose": 0}
                )
                model.fit(
                    for_replicas(model, stream.dataset(position)),
                    initial_epoch=epoch,
                    epochs=epoch + 1,
                    steps_per_epoch=steps,
                    callbacks=training,
                    shuffle=False,  # which Keras can only do with arrays
                    verbose=0,
                )
                position = end
                done = model.stop_training
            epoch += 1
        training.end()
    finally:
        for callback in found:
            if hasattr(callback, "close"):
                callback.close()
    return model.history


class _Callbacks(keras.callbacks.CallbackList):
    """One training of many calls of `fit`; logs of batches are fetched when needed."""

    def begin(self) -> None:
        super().on_train_begin()

    def end(self) -> None:
        super().on_train_end(self._last)

    _last = None

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        self._last = logs

    def on_train_batch_begin(self, batch, logs=None):
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch, logs=None)

    def on_train_batch_end(self, batch, logs=None):
        logs = FetchedLogs(logs or {})
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=logs)


class FetchedLogs(MutableMapping):
    """Logs whose values are fetched from the device when they are looked at."""

    def __init__(self, logs: dict):
        self._logs = dict(logs)

    def __getitem__(self, name):
        value = self._logs[name]
        if not isinstance(value, float):
            value = self._logs[name] = float(np.asarray(value))
        return value

    def __setitem__(self, name, value):
        self._logs[name] = value

    def __delitem__(self, name):
        del self._logs[name]

    def __iter__(self):
        return iter(self._logs)

    def __len__(self):
        return len(self._logs)

    def __contains__(self, name):
        return name in self._logs  # without fetching


class _ResumedMetrics(keras.callbacks.Callback):
    """Sums of a half epoch, once `fit` has reset the metrics."""

    def __init__(self, state: dict):
        super().__init__()
        self._values = state.get("running_metrics")

    def on_epoch_begin(self, epoch, logs=None):
        values, self._values = self._values, None
        variables = self.model.metrics_variables if values else []
        shapes = [tuple(variable.shape) for variable in variables]
        if values and shapes == [np.shape(value) for value in values]:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(np.asarray(value, variable.dtype))
