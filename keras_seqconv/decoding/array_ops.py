"""The operations of a search, by the kind of their tensors.

| tensors                                        | operations                          |
|------------------------------------------------|-------------------------------------|
| of Keras                                       | `keras.ops`                         |
| NumPy arrays                                   | NumPy                               |
| values of an ONNX graph (`onnx_graph.py`)      | nodes that are added to the graph   |

So the rules, the choice of beams and the hypotheses are written once, and a search by
ONNX Runtime imports neither Keras nor TensorFlow. Names and arguments are those of
`keras.ops`; those of `_OURS` are defined in `ops/fused.py`.
"""

import functools
from typing import Any

import numpy as np

from keras_seqconv.decoding import onnx_ops
from keras_seqconv.decoding.onnx_graph import Value

_OURS = ("take", "take_each", "take_in_rows", "float32_logits")


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)

    def operation(*args, **options):
        kinds = frozenset(map(type, _leaves(args)))
        return _operation(name, kinds)(*args, **options)

    return operation


@functools.cache
def _operation(name: str, kinds: frozenset):
    """The operation of this name for arguments of these types."""
    if Value in kinds:
        return getattr(onnx_ops, name)
    arrays = {kind for kind in kinds if issubclass(kind, np.ndarray | np.generic)}
    if arrays and not kinds - arrays - {bool, int, float, str, type(None)}:
        return _OF_ARRAYS.get(name) or getattr(np, name)
    from keras import ops

    from keras_seqconv.ops import fused

    return getattr(fused if name in _OURS else ops, name)


def _leaves(args) -> list:
    leaves = []
    for arg in args:
        leaves += _leaves(arg) if isinstance(arg, list | tuple) else [arg]
    return leaves


# --- What NumPy lacks ---


def _top_k(x, k):
    places = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, places, axis=-1), places


_OF_ARRAYS = {
    "cast": lambda x, dtype: np.asarray(x).astype(dtype),
    "take_each": lambda x, indices: np.take_along_axis(x, indices, axis=1),
    "top_k": _top_k,
}
