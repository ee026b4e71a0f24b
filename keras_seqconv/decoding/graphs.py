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
        model: an object that can be weakly referenced.
        options: hashable, what the function takes as such.
        tensors: dict of name to tensor; the graph is for any sizes of them.
        jit_compile: compile with XLA (TensorFlow; JAX always does).
    """
    if in_place(tensors):
        return function(model, options, tensors)
    specs = dict.fromkeys(tensors)
    if keras.backend.backend() != "jax":
        specs = {
            name: tf.TensorSpec([None] * len(value.shape), value.dtype)
            for name, value in tensors.items()
        }
    key = (function, options, tuple(sorted(specs.items())), jit_compile)
    variables = list(getattr(model, "variables", []))
    # Graphs of other variables are of no use any more. Those kept here hold theirs, so
    # that no new one can have the same number.
    owner = tuple(map(id, variables))
    with _TRACING:
        kept = vars(model).get(_CACHE)
        if kept is None or kept[0] != owner:
            kept = vars(model)[_CACHE] = owner, variables, {}
        graphs = kept[2]
        if key not in graphs:
            if len(graphs) >= _KEPT:
                del graphs[next(iter(graphs))]
            graphs[key] = _graph(
                function, weakref.ref(model), options, specs, jit_compile
            )
        graph = graphs[key]
    return graph(tensors)


def in_place(tensors: dict) -> bool:
    """Whether a surrounding function is being traced, which a search is a part of."""
    if keras.backend.backend() == "jax":
        return any(isinstance(value, jax.core.Tracer) for value in tensors.values())
    return not tf.executing_eagerly()


def _graph(function, reference, options, specs: dict, jit_compile: bool) -> Callable:
    """The graph `tensors -> function(reference(), options, tensors)`."""
    if keras.backend.backend() == "jax":
        return _jax_function(function, reference, options)
    graph = tf.function(
        lambda tensors: function(reference(), options, tensors),
        jit_compile=jit_compile,
        autograph=False,
    )
    # Of many functions from this line TensorFlow would warn as of retracing.
    return graph.get_concrete_function(specs)


def _jax_function(function, reference, options):
    variables = list(getattr(reference(), "variables", []))

    def stateless(values, tensors):
        pairs = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            return function(reference(), options, tensors)

    jitted = jax.jit(stateless)
    return lambda tensors: jitted([variable.value for variable in variables], tensors)
