"""A bound on models that files and options describe, checked while they are made."""

import contextlib
import math
import threading
from collections.abc import Iterator

import keras

# Weights that a damaged file may lack, and that an error should tell one by one.
_SPARE_ELEMENTS, _SPARE_WEIGHTS = 1_000_000, 100
_LOCK = threading.RLock()


@contextlib.contextmanager
def at_most(elements: int, weights: int) -> Iterator[None]:
    """While active, models that are far larger raise ValueError.

    The error comes before the memory is allocated. One thread at a time, and only its
    own models: Keras has no such bound, and a method of it is replaced.

    Args:
        elements: approximate number of elements of all weights.
        weights: approximate number of weights.
    """
    left = [elements + _SPARE_ELEMENTS, weights + _SPARE_WEIGHTS]
    owner = threading.get_ident()

    def add_weight(layer, shape=None, *arguments, **options):
        if threading.get_ident() == owner:
            left[0] -= math.prod(shape or ())
            left[1] -= 1
        if min(left) < 0:
            raise ValueError("it describes far more than the weights stored, or memory")
        return original(layer, shape, *arguments, **options)

    with _LOCK:
        original = keras.layers.Layer.add_weight
        keras.layers.Layer.add_weight = add_weight
        try:
            yield
        finally:
            keras.layers.Layer.add_weight = original
