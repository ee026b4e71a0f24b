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
    """Endless batches, each a function of its position."""

    def __init__(self, batches: int = 5, spoiled: int = -1):
        self.batches, self.spoiled = batches, spoiled

    def batches_per_epoch(self) -> int:
        return self.batches

    def dataset(self, position: int = 0):
        import tensorflow as tf

        def batch(index):
            x = tf.random.stateless_normal((8, 3), [7, index])
            y = tf.reduce_sum(x, axis=1, keepdims=True)
            return x, y * tf.where(index == self.spoiled, np.nan, 1.0)

        return tf.data.Dataset.counter(position).map(batch)

    def once(self):
        return self.dataset(10000).take(2)


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
