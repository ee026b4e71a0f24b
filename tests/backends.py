"""The ways of running one function that every result is compared across."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

# `jit_compile` of a `fit` that is not about it: XLA takes longer than the steps.
UNCOMPILED = False if keras.backend.backend() == "tensorflow" else "auto"
# The same for a `fit` of a few updates: tracing takes longer still. JAX must compile.
EAGERLY = {"run_eagerly": True} if UNCOMPILED is False else {"jit_compile": UNCOMPILED}


def compiled(function: Callable) -> Callable:
    """`function` under XLA on the backend in use."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def modes(function: Callable) -> dict[str, Callable]:
    """`function` itself and its graph and XLA versions, by name."""
    found = {"eager": function, "xla": compiled(function)}
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found["graph"] = tf.function(function, autograph=False)
    return found


def cheaply(function: Callable) -> Callable:
    """`function`, compiled on JAX, which compiles each eager operation by itself."""
    return compiled(function) if keras.backend.backend() == "jax" else function


def gradients(function: Callable, *arguments) -> list:
    """Gradients of the scalar `function(*arguments)` with respect to each argument."""
    if keras.backend.backend() == "jax":
        import jax

        positions = tuple(range(len(arguments)))
        return list(jax.jit(jax.grad(function, argnums=positions))(*arguments))
    import tensorflow as tf

    arguments = [tf.convert_to_tensor(argument) for argument in arguments]
    with tf.GradientTape() as tape:
        for argument in arguments:
            tape.watch(argument)
        value = function(*arguments)
    return tape.gradient(value, arguments)


def layer_gradients(layer: keras.layers.Layer, call: Callable, *inputs) -> list:
    """Gradients of sum(call(*inputs)**2) for the inputs and the trainable weights."""
    inputs = [ops.convert_to_tensor(value) for value in inputs]
    weights = layer.trainable_variables
    if keras.backend.backend() == "jax":
        import jax

        def loss(values, arguments):
            scope = keras.StatelessScope(
                state_mapping=list(zip(weights, values, strict=True))
            )
            with scope:
                return ops.sum(ops.square(ops.cast(call(*arguments), "float32")))

        by_weight, by_input = jax.jit(jax.grad(loss, argnums=(0, 1)))(
            [weight.value for weight in weights], inputs
        )
        return list(by_input) + list(by_weight)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        for value in inputs:
            tape.watch(value)
        loss = ops.sum(ops.square(ops.cast(call(*inputs), "float32")))
    return tape.gradient(loss, inputs + [weight.value for weight in weights])


def to_numpy(value) -> np.ndarray:
    """A float32 (or wider) NumPy copy, also of bfloat16 tensors."""
    dtype = keras.backend.standardize_dtype(value.dtype)
    if dtype in ("bfloat16", "float16"):
        value = ops.cast(value, "float32")
    return np.asarray(ops.convert_to_numpy(value))
