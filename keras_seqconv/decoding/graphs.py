"""Functions of a model as graphs, which the model keeps.

| call                      | what runs                                              |
|---------------------------|--------------------------------------------------------|
| TensorFlow, eager         | a `tf.function`, traced once for all sizes             |
| the same, `jit_compile`   | the same, which XLA compiles for each shape it meets   |
| inside of a `tf.function` | traced in place: part of that graph                    |
| JAX                       | `jax.jit`, for each shape                              |
| inside of a JAX function  | traced in place                                        |

Weights are inputs of these graphs, so that training goes on to count. Another list of
variables, as after `quantize` or `enable_lora`, makes other graphs. They die with the
model.
"""

import threading
import weakref
from collections.abc import Callable

import keras

from keras_seqconv.support import jax, tf

# In `vars(model)`, past Keras' `__setattr__`, which would track and wrap it.
_CACHE = "_keras_seqconv_searches"
_KEPT = 16  # graphs of a model, those made last
# One thread at a time traces, so that no graph is made twice. A tracing may trace.
_TRACING = threading.RLock()


def run_cached(
    function: Callable, model, options, tensors: dict, jit_compile: bool = False
) -> object:
    """`function(model, options, tensors)` by the cached graph for it, or in place.

    Args:
        function: a function of a module.
        model, options, jit_compile: as in `_graph`; the options are hashable.
        tensors: dict of name to tensor.
    """
    if in_place(tensors):
        return function(model, options, tensors)
    specs = _sizeless(tensors)
    key = (function, options, tuple(sorted(specs.items())), jit_compile)

    def make():
        return _graph(function, model, options, specs, jit_compile)

    return _cached(model, key, make)(tensors)


def in_place(tensors: dict) -> bool:
    """Whether a surrounding function is being traced, which a search is a part of."""
    if keras.backend.backend() == "jax":
        return any(isinstance(value, jax.core.Tracer) for value in tensors.values())
    return not tf.executing_eagerly()


def _cached(model, key, make: Callable):
    """`make()`, made once for a model with these variables and a hashable key."""
    variables = list(getattr(model, "variables", []))
    # Graphs of other variables are of no use any more. Those kept here hold theirs, so
    # that no new one can have the same number.
    owner = tuple(map(id, variables))
    kept = vars(model).get(_CACHE)
    if kept is not None and kept[0] == owner and (made := kept[2].get(key)):
        return made
    with _TRACING:
        kept = vars(model).get(_CACHE)
        if kept is None or kept[0] != owner:
            kept = vars(model)[_CACHE] = owner, variables, {}
        if key not in kept[2]:
            if len(kept[2]) >= _KEPT:
                del kept[2][next(iter(kept[2]))]
            kept[2][key] = make()
        return kept[2][key]


def _sizeless(tensors: dict) -> dict:
    """Specifications, for `_graph`, of tensors of any size."""
    if keras.backend.backend() == "jax":
        return dict.fromkeys(tensors)
    return {
        name: tf.TensorSpec([None] * len(value.shape), value.dtype)
        for name, value in tensors.items()
    }


def _graph(
    function: Callable, model, options, specs: dict, jit_compile: bool
) -> Callable:
    """The graph `tensors -> function(model, options, tensors)`.

    Args:
        function: as above.
        model: an object that can be weakly referenced.
        options: what the function takes as such.
        specs: `tf.TensorSpec`s of its argument.
        jit_compile: compile with XLA (TensorFlow; JAX always does).
    """
    reference = weakref.ref(model)
    if keras.backend.backend() == "jax":
        return _jax_function(function, reference, options)
    graph = tf.function(
        lambda tensors: function(reference(), options, tensors),
        jit_compile=jit_compile,
        autograph=False,
    )
    # Of many functions from this line TensorFlow would warn as of retracing.
    with _TRACING:
        return graph.get_concrete_function(specs)


def _jax_function(function, reference, options):
    variables = list(getattr(reference(), "variables", []))

    def stateless(values, tensors):
        pairs = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            return function(reference(), options, tensors)

    jitted, compiled, compiling = jax.jit(stateless), set(), threading.Lock()

    def call(tensors):
        values = [variable.value for variable in variables]
        leaves, structure = jax.tree.flatten(tensors)
        key = structure, *((leaf.shape, leaf.dtype) for leaf in leaves)
        if key in compiled:
            return jitted(values, tensors)
        with compiling:  # JAX lets two threads compile the same function
            result = jitted(values, tensors)
            compiled.add(key)
            return result

    return call
