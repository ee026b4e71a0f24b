"""Reads at indices that are inside of an axis.

`keras.ops.take` and `take_along_axis` also take negative indices, for which TensorFlow
runs 4 and 20 operations more: in a step of a search they cost as much as its products.
"""

import keras
from keras import ops


def take(x, indices, axis: int = 0):
    """`keras.ops.take`."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, indices, axis=axis)
    import tensorflow as tf

    return tf.gather(x, indices, axis=axis)


def take_each(x, indices):
    """`take_along_axis` with axis 1: x (B, N), indices (B, n) -> (B, n)."""
    if keras.backend.backend() != "tensorflow":
        return ops.take_along_axis(x, indices, axis=1)
    import tensorflow as tf

    return tf.gather(x, indices, axis=1, batch_dims=1)
