"""Rules of updates: Adam, Muon, Nesterov's momentum."""

import math

import keras
from keras import ops

from keras_seqconv.optimizers.token_normalized import dense
from keras_seqconv.support import tf
from keras_seqconv.support.arguments import check_choice, check_rate


@keras.saving.register_keras_serializable(package="keras_seqconv")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW, on TensorFlow in one pass over the weights.

    The same update (Kingma and Ba 2015, Adam, end of section 2, with Loshchilov and
    Hutter 2019, Decoupled Weight Decay Regularization):

        m = beta_1 m + (1 - beta_1) g,  v = beta_2 v + (1 - beta_2) g^2
        w -= lr weight_decay w
        w -= lr sqrt(1 - beta_2^n) / (1 - beta_1^n) m / (sqrt(v) + epsilon)

    by a kernel that reads and writes each number once. The gradient of an embedding is
    first summed over the occurrences of an id (Keras on TensorFlow squares each
    occurrence separately). On other backends, and with `amsgrad`, Keras' own update
    runs. Arguments as in `keras.optimizers.AdamW`; `weight_decay=0` is Adam.
    """

    def _apply_weight_decay(self, variables):
        if self.weight_decay:  # else no pass over the weights for nothing
            super()._apply_weight_decay(variables)

    def update_step(self, gradient, variable, learning_rate):
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        dtype = variable.dtype
        step = ops.cast(self.iterations + 1, dtype)
        beta_1, beta_2 = (tf.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        index = self._get_variable_index(variable)
        return tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(self._momentums[index]),
            v=_handle(self._velocities[index]),
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=ops.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, dtype),
            grad=dense(gradient, dtype),
        )


@keras.saving.register_keras_serializable(package="keras_seqconv")
class Muon(AdamW):
    """Muon for kernels of any rank as matrices, `AdamW` for all other weights.

        m = momentum m + g
        w -= lr weight_decay w
        w -= lr 0.2 sqrt(max(rows, columns)) orthogonal(g + momentum m)

    (Jordan et al. 2024, Muon; Liu et al. 2025, Muon is Scalable for LLM Training,
    section 2.2, whose factor allows the learning rates of Adam.) `orthogonal` sets the
    singular values to about 1, by five Newton-Schulz iterations.

    A kernel of more than two axes, such as (C, H, D) of an attention or (K, C, D) of a
    convolution, is the matrix that its most square split gives. `AdamW` updates
    embeddings, biases, kernels with a side below 32 (depthwise ones), and those with a
    side that is more than eight times the other (projections to a large vocabulary).

    Args:
        learning_rate: a number or a schedule.
        momentum: from 0, less than 1.
        beta_1, beta_2, epsilon: of `AdamW`.
        weight_decay: decay of all weights, decoupled from the gradient.
        compute_dtype: dtype of the products in `orthogonal`: "float32", "bfloat16",
            "float16" or "float64".
        **kwargs: other arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: `momentum` or `compute_dtype` breaks its rule.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        momentum: float = 0.95,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        compute_dtype: str = "float32",
        **kwargs,
    ):
        betas = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
        super().__init__(
            learning_rate, weight_decay=weight_decay, amsgrad=False, **betas, **kwargs
        )
        self.momentum = check_rate("momentum", momentum)
        dtypes = ("float32", "bfloat16", "float16", "float64")
        self.compute_dtype = check_choice("compute_dtype", compute_dtype, dtypes)

    def build(self, variables):
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")
        self._velocities = [
            None
            if _is_matrix(variable)
            else self.add_variable_from_reference(variable, name="velocity")
            for variable in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        if self._velocities[index] is not None:
            super().update_step(gradient, variable, learning_rate)
            return
        gradient, shape = dense(gradient, variable.dtype), _as_matrix(variable.shape)
        slot = self._momentums[index]
        self.assign(slot, self.momentum * slot + gradient)
        matrix = ops.reshape(gradient + self.momentum * slot, shape)
        update = ops.cast(_orthogonal(matrix, self.compute_dtype), variable.dtype)
        rate = ops.cast(learning_rate, variable.dtype) * 0.2 * math.sqrt(max(shape))
        self.assign_sub(variable, rate * ops.reshape(update, variable.shape))

    def get_config(self) -> dict:
        config = {**super().get_config(), "momentum": self.momentum}
        del config["amsgrad"]
        return {**config, "compute_dtype": self.compute_dtype}


def _as_matrix(shape) -> tuple[int, int]:
    """Rows and columns of the most square split of the axes."""
    splits = (
        (math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))
    )
    return max(splits, key=min)


def _is_matrix(variable) -> bool:
    if len(variable.shape) < 2 or not variable.name.endswith("kernel"):
        return False
    short, long = sorted(_as_matrix(variable.shape))
    return short >= 32 and long <= 8 * short


def _orthogonal(matrix, dtype):
    """The nearest orthogonal matrix, roughly.

    An iteration is X <- (a I + b G + c G G) X with G = X X^T, and Jordan's a, b and c.
    For Y = c^(1/4) X, whose G is c^(1/2) times that of X, it is
    Y <- (a I + (b / c^(1/2) I + G) G) Y: two sums of small matrices.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    # Scaled before the cast, for small gradients.
    matrix = ops.cast(matrix * (c**0.25 / (ops.norm(matrix) + 1e-7)), dtype)
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:  # the products are of the shorter side
        matrix = ops.transpose(matrix)
    identity = ops.eye(matrix.shape[0], dtype=dtype)
    first, second = a * identity, b / c**0.5 * identity
    for _ in range(5):
        gram = matrix @ ops.transpose(matrix)
        matrix = (first + (second + gram) @ gram) @ matrix
    return (ops.transpose(matrix) if is_tall else matrix) / c**0.25


@keras.saving.register_keras_serializable(package="keras_seqconv")
class NAG(keras.optimizers.Optimizer):
    """Nesterov's accelerated gradient that corrects its momentum for rate changes.

        v = momentum lr / lr_old v - lr g
        w = (1 - lr weight_decay) w + momentum v - lr g

    with the new v in the second line, and lr_old the rate of the previous update
    (fairseq `nag`; Bengio et al. 2013, Advances in Optimizing Recurrent Networks,
    equation 7). At a constant rate it equals `keras.optimizers.SGD(nesterov=True)`,
    which has no factor lr / lr_old. After an update with rate 0 the momentum is zero.

    The optimizer keeps a = - v / lr, which has no rate: a = momentum a + g and
    w -= lr (g + momentum a), without lr_old. On TensorFlow an update is one pass over
    the weights.

    Args:
        learning_rate: a number or a schedule.
        momentum: from 0, less than 1.
        weight_decay: decay of all weights, decoupled from the gradient.
        **kwargs: other arguments of `keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        learning_rate=0.25,
        momentum: float = 0.99,
        weight_decay: float | None = 0.0,
        **kwargs,
    ):
        # No pass over the weights for nothing.
        super().__init__(learning_rate, weight_decay=weight_decay or None, **kwargs)
        self.momentum = check_rate("momentum", momentum)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        gradient = dense(gradient, variable.dtype)
        rate = ops.cast(learning_rate, variable.dtype)
        slot = self._momentums[self._get_variable_index(variable)]
        if keras.backend.backend() != "tensorflow":
            moving = ops.where(rate > 0, self.momentum * slot + gradient, 0.0)
            self.assign(slot, moving)
            self.assign_sub(variable, rate * (gradient + self.momentum * moving))
            return

        def apply():
            tf.raw_ops.ResourceApplyMomentum(
                var=_handle(variable),
                accum=_handle(slot),
                lr=rate,
                grad=gradient,
                momentum=tf.cast(self.momentum, gradient.dtype),
                use_nesterov=True,
            )

        tf.cond(rate > 0, apply, lambda: self.assign(slot, tf.zeros_like(gradient)))

    def get_config(self) -> dict:
        return {**super().get_config(), "momentum": self.momentum}


def _handle(variable):
    """The resource of a Keras variable, or of a TensorFlow variable."""
    if isinstance(variable, keras.Variable):
        variable = variable.value
    return variable.handle
