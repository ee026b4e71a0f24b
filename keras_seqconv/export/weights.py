"""The weights of a model as plain variables, whole or in fewer bits.

int8: each matrix of at least 4,096 numbers becomes whole numbers q from -127 to 127
and scales s, w = s * q, one scale for each index of its first or of its last axis,
whichever is closer to w. bfloat16: all weights are rounded. Both are turned back into
the model's numbers once for each call, before any loop.
"""

import keras
import numpy as np

from keras_seqconv.decoding import Ensemble

KINDS = ("float32", "bfloat16", "int8")
SMALLEST_MATRIX = 4096


def folded(model):
    """The model without weight normalisation; the one that is given stays as it is."""
    if isinstance(model, Ensemble):
        return Ensemble([folded(one) for one in model.models])
    if not hasattr(model, "fold") or model.get_config().get("folded"):
        return model
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    copy.fold()
    return copy


class StoredWeights:
    """Variables that hold the weights of a model and nothing of Keras.

    Args:
        model: a model of the package or an `Ensemble`.
        kind: "float32" (as they are), "bfloat16" or "int8".

    Attributes:
        variables: all variables, for an exported module to hold.
    """

    def __init__(self, model, kind: str):
        models = getattr(model, "models", [model])
        weights = {id(weight): weight for one in models for weight in one.weights}
        self._pairs = [
            (weight, _stored(f"weight_{number}", weight, kind))
            for number, weight in enumerate(weights.values())
        ]
        self.variables = [part for _, parts in self._pairs for part in parts]

    @property
    def size(self) -> int:
        """Bytes of all variables."""
        return sum(
            variable.shape.num_elements() * variable.dtype.size
            for variable in self.variables
        )

    def scope(self) -> keras.StatelessScope:
        """In it the model computes with the stored numbers; for use in a graph."""
        mapping = [(weight, _restored(parts, weight)) for weight, parts in self._pairs]
        return keras.StatelessScope(state_mapping=mapping)


def _stored(name: str, weight, kind: str) -> tuple:
    import tensorflow as tf

    value = keras.ops.convert_to_numpy(weight.value)
    floating = keras.backend.is_float_dtype(weight.dtype)
    if kind == "int8" and floating and value.ndim > 1 and value.size >= SMALLEST_MATRIX:
        numbers, scales = quantized(value.astype("float32"))
        return (
            tf.Variable(numbers, trainable=False, name=f"{name}_int8"),
            tf.Variable(scales, trainable=False, name=f"{name}_scales"),
        )
    variable = tf.convert_to_tensor(value)
    if kind == "bfloat16" and floating:
        variable = tf.cast(variable, tf.bfloat16)
    return (tf.Variable(variable, trainable=False, name=name),)


def _restored(parts: tuple, weight):
    import tensorflow as tf

    value, *scales = (tf.convert_to_tensor(part) for part in parts)
    value = tf.cast(value, weight.dtype)
    return value * tf.cast(scales[0], weight.dtype) if scales else value


def quantized(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers (int8) and scales (float32), whose product is nearly `matrix`."""
    candidates = [_quantized_along(matrix, axis) for axis in (0, matrix.ndim - 1)]
    return min(candidates, key=lambda found: _error(matrix, *found))


def _quantized_along(matrix, axis):
    others = tuple(other for other in range(matrix.ndim) if other != axis)
    scales = np.abs(matrix).max(axis=others, keepdims=True) / 127
    numbers = np.rint(matrix / np.where(scales > 0, scales, 1))
    return numbers.astype("int8"), scales.astype("float32")


def _error(matrix, numbers, scales):
    return np.square(matrix - numbers * scales).mean()
