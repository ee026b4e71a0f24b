"""A bound on models that files describe, checked while they are made."""

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
    """While active, ValueError for a model that is far larger than what is stored.

    Before the memory is taken. One thread at a time, for Keras has no place of its own
    for such a bound.

    Args:
        elements: about as many numbers as all weights have in all.
        weights: about as many weights as there are.
    """
    left = [elements + _SPARE_ELEMENTS, weights + _SPARE_WEIGHTS]

    def add_weight(layer, shape=None, *arguments, **options):
        left[0] -= math.prod(shape or ())
        left[1] -= 1
        if min(left) < 0:
            raise ValueError("it describes far more than the weights that are stored")
        return original(layer, shape, *arguments, **options)

    with _LOCK:
        original = keras.layers.Layer.add_weight
        keras.layers.Layer.add_weight = add_weight
        try:
            yield
        finally:
            keras.layers.Layer.add_weight = original
