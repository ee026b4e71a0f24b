"""Optimizers of the recipes."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_seqconv")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW, on TensorFlow in one pass over the weights instead of a dozen.

    The same update (Kingma and Ba 2015, Adam, end of section 2, with Loshchilov and
    Hutter 2019, Decoupled Weight Decay Regularization):

        m = beta_1 m + (1 - beta_1) g,  v = beta_2 v + (1 - beta_2) g^2
        w -= lr weight_decay w
        w -= lr sqrt(1 - beta_2^n) / (1 - beta_1^n) m / (sqrt(v) + epsilon)

    by a kernel that reads and writes each number once. The gradient of an embedding is
    summed over the occurrences of an id first, as everywhere else (Keras on TensorFlow
    squares each occurrence on its own). On other backends, and with `amsgrad`, it is
    Keras' own.

    Args:
        learning_rate, weight_decay, beta_1, beta_2, epsilon and all others: as of
            `keras.optimizers.AdamW`; `weight_decay=0` makes it Adam.

    Example:

    ```python
    optimizer = keras_seqconv.optimizers.AdamW(5e-4, beta_2=0.98, epsilon=1e-8)
    ```
    """

    def update_step(self, gradient, variable, learning_rate):
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        dtype = variable.dtype
        step = ops.cast(self.iterations + 1, dtype)
        beta_1, beta_2 = (tf.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        index = self._get_variable_index(variable)
        slots = (variable, self._momentums[index], self._velocities[index])
        names = ("var", "m", "v")
        return tf.raw_ops.ResourceApplyAdam(
            **{name: _handle(slot) for name, slot in zip(names, slots, strict=True)},
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=ops.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.convert_to_tensor(ops.cast(gradient, dtype)),
        )


def _handle(variable):
    """The resource of a Keras variable, or of a TensorFlow variable."""
    inside = isinstance(variable, keras.Variable)
    return (variable.value if inside else variable).handle
