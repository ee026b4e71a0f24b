"""A small model with dropout, and streams for it, that train in milliseconds."""

import keras
import numpy as np

from keras_seqconv.callbacks import fit_stream


def make_model(optimizer=None, compiled=True, run_eagerly=True, *layers):
    """Regression with dropout; the same weights each time."""
    keras.utils.set_random_seed(3)
    hidden = [keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=5)]
    model = keras.Sequential(
        [keras.Input((3,)), *hidden, keras.layers.Dense(1), *layers]
    )
    if compiled:
        optimizer = keras.optimizers.Adam(0.05) if optimizer is None else optimizer
        model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    return model


class Stream:
    """More batches than a test takes; the last two are for validation."""

    def __init__(self, batches: int = 5, spoiled: int = -1):
        self.batches = batches
        self.x = np.random.default_rng(7).normal(size=(60, 8, 3)).astype("float32")
        self.y = self.x.sum(axis=2, keepdims=True)
        if spoiled >= 0:
            self.y[spoiled] = np.nan

    def batches_per_epoch(self) -> int:
        return self.batches

    def dataset(self, position: int = 0):
        import tensorflow as tf

        batches = self.x[position:], self.y[position:]
        return tf.data.Dataset.from_tensor_slices(batches)

    def once(self):
        return self.dataset(58)


def variables(model) -> list[np.ndarray]:
    both = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in both]


def same(first, second) -> bool:
    """All variables of two models are equal to the bit."""
    pairs = zip(variables(first), variables(second), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


class Probe(keras.callbacks.Callback):
    """Does something at the end of a batch, by its number from 1."""

    def __init__(self, at: int, action):
        super().__init__()
        self.at, self.action, self.count = at, action, 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == self.at:
            assert self.model is not None  # on JAX this fills the variables
            self.action()


def results(name: str, values):
    """A validation's results at ends of epochs."""
    return keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update({name: values[epoch]})
    )


def fit(model, callbacks=(), updates=None, stream=None, **options):
    return fit_stream(
        model, stream or Stream(), max_updates=updates, callbacks=callbacks, **options
    )
