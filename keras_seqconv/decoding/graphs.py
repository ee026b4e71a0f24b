"""Eager calls of a search run one cached graph, never a Python loop over steps.

| call                          | what runs                                        |
|-------------------------------|--------------------------------------------------|
| TensorFlow, eager             | a `tf.function`, traced once for all sizes       |
| the same, `jit_compile=True`  | a `tf.function`, compiled by XLA for each shape  |
| inside of a `tf.function`     | traced in place: part of that graph              |
| JAX                           | `jax.jit`, for each shape                        |
| inside of a JAX function      | traced in place                                  |

Weights are inputs of these graphs, so that training goes on to count. The graphs are
kept by the model itself and die with it.
"""

import threading
import weakref
from collections.abc import Callable

import keras

# In `vars(model)`, past Keras' `__setattr__`, which would track and wrap it.
_CACHE = "_keras_seqconv_searches"
# One thread at a time traces, so that no graph is made twice. A tracing may trace.
_TRACING = threading.RLock()


def run_cached(
    function: Callable, model, options, tensors: dict, jit_compile: bool = False
) -> object:
    """`function(model, options, tensors)` by the cached graph for it.

    Args:
        function: a function of a module: part of the key of the cache.
        model: an object that can be weakly referenced.
        options: hashable.
        tensors: dict of name to tensor.
        jit_compile: compile with XLA (TensorFlow; JAX always does).
    """
    reference = weakref.ref(model)
    if keras.backend.backend() == "jax":
        import jax

        if any(isinstance(value, jax.core.Tracer) for value in tensors.values()):
            return function(model, options, tensors)
        variables = list(getattr(model, "variables", []))

        def stateless(values, tensors):
            model = reference()
            own = getattr(model, "variables", [])
            pairs = list(zip(own, values, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return function(model, options, tensors)

        def make():
            return jax.jit(stateless)

        key = (function, options)
        arguments = [variable.value for variable in variables], tensors
    else:
        import tensorflow as tf

        if not tf.executing_eagerly():
            return function(model, options, tensors)
        specs = {
            name: tf.TensorSpec(
                value.shape if jit_compile else [None] * len(value.shape), value.dtype
            )
            for name, value in sorted(tensors.items())
        }

        def make():
            graph = tf.function(
                lambda tensors: function(reference(), options, tensors),
                jit_compile=jit_compile,
                autograph=False,
            )
            # Of many functions from this line TensorFlow would warn as of retracing.
            return graph.get_concrete_function(specs)

        key = (function, options, tuple(specs.items()), jit_compile)
        arguments = (tensors,)
    with _TRACING:
        cache = vars(model).setdefault(_CACHE, {})
        if key not in cache:
            cache[key] = make()
    return cache[key](*arguments)
