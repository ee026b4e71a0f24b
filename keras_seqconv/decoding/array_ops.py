"""The operations of a search, by the kind of their tensors.

| tensors                                        | operations                          |
|------------------------------------------------|-------------------------------------|
| of Keras                                       | `keras.ops`                         |
| NumPy arrays                                   | NumPy                               |
| values of an ONNX graph (`onnx_graph.py`)   | nodes that are added to the graph   |

So the rules, the choice of beams and the hypotheses are written once, and a search by
ONNX Runtime imports neither Keras nor TensorFlow. Names and arguments are those of
`keras.ops`; `take` and `take_each` are those of `ops/fused.py`, and `take_in_rows` is
defined here.
"""

import functools
from typing import Any

import numpy as np

from keras_seqconv.decoding import onnx_ops
from keras_seqconv.decoding.onnx_graph import Value


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)

    def operation(*args, **options):
        namespace = _namespace(frozenset(map(type, _leaves(args))))
        return getattr(namespace, name)(*args, **options)

    return operation


@functools.cache
def _namespace(kinds: frozenset):
    """The operations for arguments of these types."""
    if Value in kinds:
        return onnx_ops
    arrays = [kind for kind in kinds if issubclass(kind, np.ndarray | np.generic)]
    others = kinds - {*arrays, bool, int, float, str, type(None)}
    return _NumPy if arrays and not others else _Keras


def _leaves(args) -> list:
    leaves = []
    for arg in args:
        leaves += _leaves(arg) if isinstance(arg, list | tuple) else [arg]
    return leaves


class _Namespace(type):
    """Attributes of a module, but for those that a class defines."""

    def __getattr__(cls, name):
        return getattr(cls.module(), name)


class _Keras(metaclass=_Namespace):
    @staticmethod
    def module():
        from keras import ops

        return ops

    @staticmethod
    def take(x, indices, axis=0):
        from keras_seqconv.ops.fused import take

        return take(x, indices, axis)

    @staticmethod
    def take_each(x, indices):
        from keras_seqconv.ops.fused import take_each

        return take_each(x, indices)

    @staticmethod
    def take_in_rows(x, indices):
        """x (R, N, C), indices (R, n) -> (R, n, C)."""
        from keras import ops

        count, size = x.shape[1:]
        rows = ops.arange(ops.shape(x)[0], dtype="int32")
        return _Keras.take(ops.reshape(x, (-1, size)), indices + rows[:, None] * count)

    @staticmethod
    def has_fast_log_softmax(x) -> bool:
        return False

    @staticmethod
    def float32_logits(logits):
        """Logits that TensorFlow does not cast again for each use.

        Its optimizer moves a cast from bfloat16 behind every reshaping of the result,
        and the passes over the logits would read a copy each, (R, V) float32. It does
        not look past `ensure_shape`, which moves no data.
        """
        import keras

        from keras_seqconv.support import tf

        logits = keras.ops.cast(logits, "float32")
        if keras.backend.backend() != "tensorflow":
            return logits
        return tf.ensure_shape(logits, logits.shape)


class _NumPy(metaclass=_Namespace):
    @staticmethod
    def module():
        return np

    @staticmethod
    def cast(x, dtype):
        return np.asarray(x).astype(dtype)

    @staticmethod
    def take_each(x, indices):
        return np.take_along_axis(x, indices, axis=1)

    @staticmethod
    def top_k(x, k):
        places = np.argsort(-x, axis=-1, kind="stable")[..., :k]
        return np.take_along_axis(x, places, axis=-1), places
