"""The weights of an exported model: in plain form, and read where they are used."""

import collections
import math
from collections.abc import Iterable

import keras
import tensorflow as tf

from keras_seqconv import decoding


def folded(model):
    """The model without weight normalisation; the one that is given stays as it is."""
    if isinstance(model, decoding.Ensemble):
        return decoding.Ensemble([folded(member) for member in model.models])
    if not hasattr(model, "fold") or model.get_config().get("folded"):
        return model
    copy = model.copy_with()
    copy.fold()
    return copy


def stacks_of(weights) -> Iterable[list]:
    """Lists of weights of one shape, to be read at once.

    Reading a stack copies nothing if its parts begin at multiples of 64 bytes.
    """
    stacks = collections.defaultdict(list)
    for weight in weights:
        size = weight.value.dtype.size * math.prod(weight.shape)
        key = (weight.value.dtype, *weight.shape) if size % 64 == 0 else id(weight)
        stacks[key].append(weight)
    return stacks.values()


class Reading(keras.StatelessScope):
    """Weights that are read from stacks of them, in the graph in which they are used.

    A loop hands on a tensor from in front of it by three operations a step, a variable
    by none.
    """

    def __init__(self, stacks, variables):
        super().__init__()
        self._places = {
            id(weight): (variable, place)
            for stack, variable in zip(stacks, variables, strict=True)
            for place, weight in enumerate(stack)
        }
        self._read = {}

    def get_current_value(self, variable):
        if id(variable) not in self._places:
            return None
        stack, place = self._places[id(variable)]
        key = tf.compat.v1.get_default_graph(), id(stack)
        if key not in self._read:
            self._read[key] = tf.unstack(stack)
        return self._read[key][place]
