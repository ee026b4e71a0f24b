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

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable

import keras

from keras_seqconv.support import tf

# In `vars(model)`, past Keras' `__setattr__`, which would track and wrap it.
_CACHE = "_keras_seqconv_searches"
COMPILING = "keras_seqconv compiles"  # the name of threads
# One thread at a time traces, so that no graph is made twice. A tracing may trace.
_TRACING = threading.RLock()


def run_cached(function: Callable, model, options, tensors: dict) -> object:
    """`function(model, options, tensors)` by the cached graph for it, or in place.

    Args:
        function: a function of a module.
        model, options: as in `graph`; the options are hashable.
        tensors: dict of name to tensor.
    """
    if in_place(tensors):
        return function(model, options, tensors)

    def make():
        return graph(function, model, options, sizeless(tensors))

    return cached(model, (function, options, description(tensors)), make)(tensors)


def in_place(tensors: dict) -> bool:
    """Whether a surrounding function is being traced, which a search is a part of."""
    if keras.backend.backend() == "jax":
        import jax

        return any(isinstance(value, jax.core.Tracer) for value in tensors.values())
    return not tf.executing_eagerly()


def cached(model, key, make: Callable):
    """`make()`, made once for a model with these variables and a hashable key."""
    variables = list(getattr(model, "variables", []))
    # Graphs of other variables are of no use any more. Those kept here hold theirs, so
    # that no new one can have the same number.
    owner = tuple(map(id, variables))
    kept = vars(model).get(_CACHE)
    if kept is not None and kept[0] == owner and key in kept[2]:
        return kept[2][key]
    with _TRACING:
        kept = vars(model).get(_CACHE)
        if kept is None or kept[0] != owner:
            kept = vars(model)[_CACHE] = owner, variables, {}
        if key not in kept[2]:
            kept[2][key] = make()
        return kept[2][key]


def sizeless(tensors: dict) -> dict:
    """Specifications, for `graph`, of tensors of any size."""
    if keras.backend.backend() == "jax":
        return dict.fromkeys(tensors)
    return {
        name: tf.TensorSpec([None] * len(value.shape), value.dtype)
        for name, value in tensors.items()
    }


def description(tensors: dict) -> tuple:
    """Hashable description of the tensors' `sizeless` specifications."""
    return tuple(sorted((n, len(x.shape), x.dtype) for n, x in tensors.items()))


def graph(
    function: Callable, model, options, specs, jit_compile: bool = False
) -> Callable:
    """The graph `tensors -> function(model, options, tensors)`.

    Args:
        function: as above.
        model: an object that can be weakly referenced.
        options: what the function takes as such.
        specs: nested `tf.TensorSpec`s of its argument, or what has their attributes;
            None for an eager function instead (TensorFlow).
        jit_compile: compile with XLA (TensorFlow; JAX always does).
    """
    reference = weakref.ref(model)
    if keras.backend.backend() == "jax":
        return _jax_function(function, reference, options)
    if specs is None:
        return lambda tensors: function(reference(), options, tensors)
    graph = tf.function(
        lambda tensors: function(reference(), options, tensors),
        jit_compile=jit_compile,
        autograph=False,
    )
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), specs)
    # Of many functions from this line TensorFlow would warn as of retracing.
    with _TRACING:
        return graph.get_concrete_function(specs)


class Tiered:
    """A graph, and a version that XLA compiles for each frequent shape.

    A thread compiles while the plain graph computes, so that no call waits, neither the
    first ones nor those of rare shapes.

    Args:
        make: `make(jit_compile)` traces the graph.
        idle: from tensors of a call to tensors of their shapes that end at once.
    """

    def __init__(self, make: Callable, idle: Callable):
        self._make, self._graphs = make, {}
        self._idle, self._compiled, self._begun = idle, set(), set()
        self._seconds = collections.Counter()

    def __call__(self, tensors, shape, patience: float | None):
        """The result of the graph.

        Args:
            tensors: its argument.
            shape: hashable, what the compiled program is for.
            patience: seconds that the plain graph may take in all before it is
                compiled; None compiles at once.
        """
        if patience is None or shape in self._compiled:
            return self.traced(True)(tensors)
        start = time.perf_counter()
        result = self.traced(False)(tensors)
        with _TRACING:
            self._seconds[shape] += time.perf_counter() - start
            begins = self._seconds[shape] > patience and shape not in self._begun
            self._begun |= {shape} if begins else set()
        if begins:
            idle = self._idle(tensors)
            # No daemon: a process that ends while XLA compiles would abort.
            threading.Thread(
                target=self._compile, args=(idle, shape), name=COMPILING
            ).start()
        return result

    def traced(self, jit_compile: bool) -> Callable:
        if jit_compile not in self._graphs:
            with _TRACING:
                if jit_compile not in self._graphs:
                    self._graphs[jit_compile] = self._make(jit_compile)
        return self._graphs[jit_compile]

    def _compile(self, tensors, shape):
        try:
            self.traced(True)(tensors)
        except Exception as error:  # an operation of a user's layer, say
            logging.getLogger(__name__).info("XLA does not compile this: %s", error)
            return
        self._compiled.add(shape)


def _jax_function(function, reference, options):
    import jax

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
