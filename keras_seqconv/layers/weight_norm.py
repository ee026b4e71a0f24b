"""Weight-normalised layers and the initializer that ConvS2S gives them.

Letters: B batch, T time, C channels, K kernel.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    ConvolutionLayer,
    KernelOptions,
    LayerOptions,
    SequenceLayer,
    by_rows,
    loop_kernel,
    zero_masked,
)
from keras_seqconv.ops.fused import wide
from keras_seqconv.support.arguments import check_number, check_rate


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvS2SInitializer(keras.initializers.VarianceScaling):
    """Normal initializer that keeps the variance of ConvS2S activations.

    `stddev = sqrt(gain * (1 - dropout) / fan_in)` with mean 0, not truncated (Gehring
    et al. 2017, Convolutional Sequence to Sequence Learning, Initialization; fairseq).
    The fan-in counts every axis but the last: `in` of a (in, out) kernel, `K * in` of a
    (K, in, out) kernel. Layers followed by a gated linear unit use gain 4, the others
    gain 1.

    Args:
        dropout: rate of the dropout before the layer, in [0, 1).
        gain: positive finite number, factor on the variance.
        seed: None, an integer or a `keras.random.SeedGenerator`.
    """

    def __init__(self, dropout: float = 0.0, gain: float = 1.0, seed=None):
        check_rate("dropout", dropout)
        check_number("gain", gain, gt=0)
        super().__init__(
            scale=gain * (1 - dropout),
            mode="fan_in",
            distribution="untruncated_normal",
            seed=seed,
        )
        self.dropout = dropout
        self.gain = gain

    def get_config(self) -> dict:
        seed = super().get_config()["seed"]
        return {"dropout": self.dropout, "gain": self.gain, "seed": seed}


class _WeightNormOptions(KernelOptions, total=False):
    bias_initializer: Any
    folded: bool


class _WeightNorm(SequenceLayer):
    """The weights v, g and bias of both layers, and the kernel that v and g make."""

    gain = 1.0  # of the default initializer

    def __init__(
        self,
        use_bias: bool = True,
        kernel_initializer=None,
        bias_initializer="zeros",
        folded: bool = False,
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        if kernel_initializer is None:
            kernel_initializer = ConvS2SInitializer(gain=self.gain)
        self._set_arguments(locals())
        self.v = self.g = self.kernel = self.bias = None

    def effective_kernel(self):
        """The kernel g * v / ||v||, at least float32; the plain kernel once folded."""
        if self.folded:
            return ops.convert_to_tensor(self.kernel)
        v, square = self._v_and_square()
        # The inner `where` keeps the derivative of 1 / sqrt(0) out of the gradient.
        positive = square > 0
        inverse = ops.rsqrt(ops.where(positive, square, ops.ones_like(square)))
        inverse = ops.where(positive, inverse, ops.zeros_like(square))
        return v * (ops.cast(self.g, v.dtype) * inverse)

    def step_kernel(self):
        """The kernel in the compute dtype; within `loop_kernels`, theirs."""
        kernel = loop_kernel(self)
        if kernel is None:
            kernel = ops.cast(self.effective_kernel(), self.compute_dtype)
        return kernel

    def _v_and_square(self):
        """v and ||v||**2 of every output, at least float32."""
        v = wide(self.v)
        return v, ops.sum(ops.square(v), axis=tuple(range(len(v.shape) - 1)))

    def fold(self) -> None:
        """Replace v and g by the one `kernel` they make.

        Outputs stay the same and no norm is computed any more: meant for export and
        decoding. A compiled model that is to be trained on must be compiled again.
        """
        if self.folded:
            return
        if self.built:
            kernel = self.effective_kernel()
            # Functions traced before hold both variables and go on computing
            # g * v / ||v||. That is still the kernel, since ||kernel|| = |g|.
            self.g.assign(ops.abs(self.g))
            self.v.assign(kernel)
            self.kernel, self.v = self.v, None
            # A method of Keras' own, since `del self.g` would also collect garbage,
            # half a second for every layer.
            self._untrack_variable(self.g)
            self.g = None
        self.folded = True

    def _add_weights(self, kernel_shape):
        # Without autocast the norm sees the float32 values also under mixed policies.
        # v is stored under the name it has after `fold`, which reuses the variable.
        kernel = self.add_weight(
            name="kernel",
            shape=kernel_shape,
            initializer=self.kernel_initializer,
            autocast=False,
            **self._kernel_options(),
        )
        if self.folded:
            self.kernel = kernel
        else:
            self.v = kernel
            self.g = self.add_weight(
                name="g",
                shape=kernel_shape[-1:],
                initializer=self._norm_of_v,
                autocast=False,
            )
        self.bias = self._bias_weight(kernel_shape[-1:], self.bias_initializer)

    def _norm_of_v(self, shape, dtype=None):
        """Initializer of g. Keras initializes in order of creation, so v has values
        here, in a stateless scope too, where all initializers run at its end."""
        _, square = self._v_and_square()
        return ops.cast(ops.sqrt(square), dtype or self.variable_dtype)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class WeightNormDense(_WeightNorm):
    """Dense layer whose kernel is split into direction and length.

    `outputs = inputs @ kernel + bias`, `kernel[:, o] = g[o] * v[:, o] / ||v[:, o]||`
    (Salimans & Kingma 2016, Weight Normalization, equation 2). g starts as ||v||, so
    the first kernel is the sampled one. The norm is computed in float32 under mixed
    policies too; a column of zeros gives zeros and no gradient for it.

    Args:
        units: positive integer, width of the output.
        use_bias: whether to add a bias.
        kernel_initializer: initializer of v, (in, units). None means
            `ConvS2SInitializer()`.
        bias_initializer: initializer of the bias.
        folded: whether to make the plain form, with one `kernel` and no v and g, as in
            layers saved after `fold()`.
        kernel_regularizer, kernel_constraint: for v (for `kernel` once folded).

    Call arguments:
        inputs: tensor (..., in), rank 2 or more.
        mask: see `layers.sequences`.

    Output shape: (..., units).
    """

    def __init__(self, units: int, **kwargs: Unpack[_WeightNormOptions]):
        super().__init__(**kwargs)
        self._set_arguments(locals())

    def build(self, input_shape):
        width = self._accept(input_shape, ndim=None)
        self._add_weights((width, self.units))

    def call(self, inputs, mask=None):
        inputs, kernel = zero_masked(inputs, mask), self.step_kernel()
        outputs = by_rows(lambda rows: ops.matmul(rows, kernel), inputs)
        return self._add_bias(outputs)

    def compute_output_shape(self, input_shape) -> tuple:
        return (*input_shape[:-1], self.units)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class WeightNormConv1D(ConvolutionLayer, _WeightNorm):
    """Convolution over time whose kernel is split into direction and length.

    `outputs[b, t] = sum_j inputs[b, t + j - P] @ kernel[j] + bias`, with P and zeros
    outside as in `keras_seqconv.ops.light_conv`, and
    `kernel[..., o] = g[o] * v[..., o] / ||v[..., o]||` as in `WeightNormDense`, the
    norm over taps and input channels.

    Calls, masks and steps: `layers.sequences`.

    Args:
        filters: positive integer, output channels.
        kernel_size: positive integer K; may be even and longer than the input.
        padding: "same" or "causal".
        use_bias: whether to add a bias.
        kernel_initializer: initializer of v, (K, C, filters). None means
            `ConvS2SInitializer(gain=4.0)`, for a gated linear unit after this layer.
        bias_initializer, folded, **kwargs: as in `WeightNormDense`.

    Output shape: (B, T, filters).
    """

    gain = 4.0

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        **kwargs: Unpack[_WeightNormOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())

    def build(self, input_shape):
        width = self.channels = self._accept(input_shape)
        self._add_weights((self.kernel_size, width, self.filters))

    def call(self, inputs, mask=None):
        inputs = zero_masked(inputs, mask)
        # Zeros of "same" on every backend: (K - 1) // 2 left, K // 2 right.
        same, kernel = self.padding == "same", self.step_kernel()
        if same and None not in inputs.shape and 0 not in inputs.shape:
            return self._convolve(inputs, kernel, "same")
        # Backends disagree on empty inputs: they are padded to one position.
        batch, length = ops.shape(inputs)[:2]
        row, position = _one_for_none(batch), _one_for_none(length)
        left = 0 if same else self.kernel_size - 1
        padded = ops.pad(inputs, [(0, row), (left, position), (0, 0)])
        # The channels, which TensorFlow forgets here, for exports to LiteRT.
        padded = ops.reshape(padded, (*ops.shape(padded)[:2], self.channels))
        outputs = self._convolve(padded, kernel, "same" if same else "valid")
        return ops.slice(outputs, (0, 0, 0), (batch, length, self.filters))

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, filters) of n new positions, and the next state."""
        window, state = self._slide(inputs, state)
        kernel = self.step_kernel()
        if inputs.shape[1] == 1:
            return self._multiply_window(window, kernel), state
        return self._convolve(window, kernel, "valid"), state

    def _convolve(self, inputs, kernel, padding):
        # Faster than products of shifted or of unfolded inputs: two CPU cores, float32,
        # B 64, T 32, C 256, 512 filters, K 3, ms with gradients: 8.1, 14.6 and 13.3.
        outputs = ops.conv(inputs, kernel, padding=padding, data_format="channels_last")
        return self._add_bias(outputs)

    def _multiply_window(self, window, kernel):
        """One output position: K * C inputs times one matrix, as in fairseq."""
        # In ms as above, forward, 80 rows: 0.5, and 1.1 by a convolution.
        size = self.kernel_size * self.channels
        kernel = ops.reshape(kernel, (size, self.filters))
        outputs = ops.matmul(ops.reshape(window, (-1, size)), kernel)
        return ops.expand_dims(self._add_bias(outputs), axis=1)

    def compute_output_shape(self, input_shape) -> tuple:
        return (*input_shape[:-1], self.filters)


def _one_for_none(size):
    """1 if `size`, an int or a tensor, is 0, else 0."""
    return int(size == 0) if isinstance(size, int) else ops.cast(size == 0, "int32")
