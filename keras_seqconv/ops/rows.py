"""Sums over the last axis, in at least float32."""

import keras
from keras import ops


def wide(values):
    """At least float32."""
    kept = keras.backend.standardize_dtype(values.dtype) in ("float32", "float64")
    return values if kept else ops.cast(values, "float32")


def row_sums(rows):
    """(N, C) -> (N, 1).

    On a CPU XLA adds the numbers of a row one after the other, which costs more than
    all else in a normalization; the product with ones is the same sum, vectorised. (On
    GPUs products may round to fewer bits.)
    """
    if not _on_cpu():
        return ops.sum(rows, axis=-1, keepdims=True)
    return ops.matmul(rows, ops.ones((rows.shape[-1], 1), dtype=rows.dtype))


def _on_cpu() -> bool:
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() == "cpu"
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")
