"""Functions with hand-written gradients, differentiable again on both backends."""

from collections.abc import Callable

import keras


def with_gradient(function: Callable, gradient: Callable) -> Callable:
    """`function` with `gradient` in place of what autodiff would make of it.

    `keras.ops.custom_gradient` would serve for first derivatives. For those of higher
    order each backend has a condition of its own, met here.

    Args:
        function: maps tensors to a tensor or a tuple of tensors.
        gradient: called as `gradient(upstream, *tensors)`, `upstream` in the structure
            of the outputs; returns one gradient per tensor. Made of functions with
            hand-written gradients itself, it can be differentiated any number of times.
    """
    if keras.backend.backend() == "jax":
        return _with_jax(function, gradient)
    return _with_tensorflow(function, gradient)


def _with_jax(function, gradient):
    import jax

    differentiable = jax.custom_vjp(function)

    def forward(*tensors):
        # Not `function`: a second differentiation goes through what stands here.
        return differentiable(*tensors), tensors

    def backward(tensors, upstream):
        return tuple(gradient(upstream, *tensors))

    differentiable.defvjp(forward, backward)
    return differentiable


def _with_tensorflow(function, gradient):
    import tensorflow as tf

    @tf.custom_gradient
    def differentiable(*tensors):
        if tf.executing_eagerly():
            # A tape that recorded what runs inside would make TensorFlow compile a
            # second, slower version of it that keeps intermediates.
            outputs = function(*[tf.stop_gradient(tensor) for tensor in tensors])
        else:
            # The gradient below keeps its arguments. When the graph of a gradient is
            # differentiated, those from a surrounding graph would be out of scope.
            tensors = [tf.identity(tensor) for tensor in tensors]
            outputs = function(*tensors)

        def backward(*upstream):
            single = not isinstance(outputs, tuple)
            return gradient(upstream[0] if single else upstream, *tensors)

        return outputs, backward

    # Keras takes variables for tensors; a custom gradient refuses them.
    return lambda *tensors: differentiable(*map(tf.convert_to_tensor, tensors))
