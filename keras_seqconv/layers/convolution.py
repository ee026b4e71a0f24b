"""The sequence mixers of the package: LightConv and DynamicConv.

Letters: B batch, T time, C channels, H heads, R = C / H channels of a head, K taps,
n new positions of a step.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    ConvolutionLayer,
    KernelOptions,
    LayerOptions,
    split_positions,
    zero_masked,
)
from keras_seqconv.ops import dynamic_conv, light_conv
from keras_seqconv.ops.convolution import last_outputs
from keras_seqconv.ops.fused import softmax
from keras_seqconv.support.arguments import check_sequence, check_shape


class _HeadOptions(KernelOptions, total=False):
    kernel_softmax: bool
    weight_dropout: float
    seed: int | None
    dilation_rate: int
    bias_initializer: Any
    bias_regularizer: Any


class _HeadConvolution(ConvolutionLayer):
    """Base of LightConv and DynamicConv: heads, padding, DropConnect, bias, steps.

    Sub-classes make the kernel, and apply it in `call` and `step`.
    """

    def __init__(
        self,
        num_heads: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        kernel_softmax: bool = True,
        weight_dropout: float = 0.0,
        weight_dropout_mask: str = "shared",
        use_bias: bool = False,
        kernel_initializer=None,
        seed: int | None = None,
        kernel_regularizer=None,
        kernel_constraint=None,
        dilation_rate: int = 1,
        bias_initializer="zeros",
        bias_regularizer=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self._seed_dropout(weight_dropout)

    def _build_channels(self, inputs_shape):
        channels = self._accept(inputs_shape)
        if channels % self.num_heads:
            raise ValueError(
                "The channels of `inputs` must be a multiple of `num_heads`. "
                f"Received: inputs.shape={tuple(inputs_shape)}, "
                f"num_heads={self.num_heads}"
            )
        self.channels = channels
        self.bias = self._bias_weight(
            (channels,), self.bias_initializer, regularizer=self.bias_regularizer
        )

    @property
    def variables(self) -> list:
        """As in layers of Keras, the kernel before the bias."""
        return sorted(super().variables, key=self._is_bias)

    @property
    def weights(self) -> list:
        return sorted(super().weights, key=self._is_bias)

    def _is_bias(self, variable):
        return variable is getattr(self, "bias", None)

    def _convolve(self, inputs, kernel):
        kernel = ops.cast(kernel, self.compute_dtype)
        op = light_conv if len(kernel.shape) == 2 else dynamic_conv
        return op(inputs, kernel, self.padding, self.dilation_rate)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class LightConv(_HeadConvolution):
    """Lightweight convolution: depthwise, with normalized kernels shared by a head.

        taps = softmax(kernel)
        outputs = light_conv(inputs, taps, padding)

    see `keras_seqconv.ops.light_conv` (Wu et al. 2019, Pay Less Attention with
    Lightweight and Dynamic Convolutions, section 3). Calls, masks and steps:
    `layers.sequences`.

    Weights: `kernel` (H, K), uniform with fairseq's limit sqrt(6 / (K + H K)), which
    with the softmax starts near an average of the K positions; `bias` (C,), zeros.
    The softmax is computed in float32 under every dtype policy.

    With `num_heads=C, kernel_softmax=False` this is a plain depthwise convolution,
    like `ShortConv`.

    Args:
        num_heads: H, a divisor of C.
        kernel_size: K >= 1; may be even, and longer than T.
        padding: "same", with (K - 1) // 2 taps before a position, or "causal".
        kernel_softmax: whether a softmax normalizes the taps of each head.
        weight_dropout: rate of DropConnect, which drops taps after the softmax in
            training and scales the others by 1 / (1 - rate).
        weight_dropout_mask: "shared" draws one mask (H, K) for the whole batch, like
            fairseq's CUDA code; "position" draws one for each position of each
            row, (B, T, H, K), like fairseq's PyTorch code.
        use_bias: add a bias to the outputs.
        kernel_initializer: initializer of `kernel`; by default as above.
        kernel_regularizer, kernel_constraint: for `kernel` before the softmax.
        dilation_rate: distance of neighbouring taps, at least 1.
        bias_initializer, bias_regularizer: for `bias`.
        seed: seed of DropConnect.

    Example:

    ```python
    layer = keras_seqconv.layers.LightConv(8, 31, padding="causal")
    outputs = layer(keras.random.normal((2, 100, 512)))
    ```
    """

    def build(self, inputs_shape):
        self._build_channels(inputs_shape)
        heads, taps = self.num_heads, self.kernel_size
        limit = (6 / (taps + heads * taps)) ** 0.5
        self.kernel = self.add_weight(
            name="kernel",
            shape=(heads, taps),
            initializer=self.kernel_initializer
            or keras.initializers.RandomUniform(-limit, limit),
            autocast=False,  # the softmax is computed in float32
            **self._kernel_options(),
        )

    def call(self, inputs, mask=None, training=None):
        inputs = zero_masked(inputs, mask)
        kernel = self.normalized_kernel()
        if training and self.weight_dropout and self.weight_dropout_mask == "position":
            kernel = ops.broadcast_to(kernel, (*ops.shape(inputs)[:2], *kernel.shape))
        kernel = self._dropped(kernel, self.weight_dropout, training)
        return self._add_bias(self._convolve(inputs, kernel))

    def normalized_kernel(self):
        """Kernel (H, K) after the softmax, in float32 (or float64)."""
        kernel = ops.cast(self.kernel, self.wide_dtype)
        return softmax(kernel) if self.kernel_softmax else kernel

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        window, state = self._slide(inputs, state)
        kernel = ops.cast(self.normalized_kernel(), self.compute_dtype)
        outputs = last_outputs(window, kernel, self.dilation_rate)
        return self._add_bias(outputs), state


@keras.saving.register_keras_serializable(package="keras_seqconv")
class DynamicConv(_HeadConvolution):
    """Dynamic convolution: LightConv with a kernel predicted for each position.

        kernel[b, t, h, :] = softmax(query[b, t] W[:, h, :])
        outputs = dynamic_conv(inputs, kernel, padding)

    see `keras_seqconv.ops.dynamic_conv` (Wu et al. 2019, Pay Less Attention with
    Lightweight and Dynamic Convolutions, section 4). The softmax is always over all K
    taps, also where T < K, and computed in float32 under every dtype policy; a full
    pass therefore equals any split into steps. Calls, masks and steps:
    `layers.sequences`.

    Weights: the kernel generator, a `Dense` of H * K outputs (h * K + j is tap j of
    head h) without bias, uniform within 1 / sqrt(width of the query) as in fairseq;
    `bias` (C,), zeros.

    Args:
        num_heads, kernel_size, padding, weight_dropout, seed: as in `LightConv`.
        kernel_softmax: whether a softmax normalizes the taps of each kernel. The
            authors report that training diverges without it.
        weight_dropout_mask: "position" draws a mask for each position of each row,
            (B, T, H, K), like fairseq; "shared" draws one mask (H, K) for all.
        use_bias: add a bias to the outputs (`conv_bias` of fairseq).
        use_kernel_bias: add a bias to the kernel generator (`bias` of fairseq).
        query_groups: number of contiguous groups of the query's channels. A group
            makes the kernels of its share of the heads, all with one generator
            of H * K / query_groups outputs. Divides H and the width of the query.
        kernel_initializer: initializer of the generator; by default as above.
        kernel_regularizer, kernel_constraint: for the generator's kernel.
        dilation_rate, bias_initializer, bias_regularizer: as in `LightConv`.

    Call arguments:
        inputs, mask, training: see `layers.sequences`.
        query: tensor (B, T, channels), the generator's input; by default `inputs`
            after masking.
        inputs_mask: mask of `inputs` that Keras passes if there is a query.
    """

    _partners = {"query": "inputs"}

    def __init__(
        self,
        num_heads: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        *,
        weight_dropout_mask: str = "position",
        use_kernel_bias: bool = False,
        query_groups: int = 1,
        **kwargs: Unpack[_HeadOptions],
    ):
        super().__init__(num_heads, kernel_size, padding, **kwargs)
        self._set_arguments(locals())
        if num_heads % query_groups:
            raise ValueError(
                "`num_heads` must be a multiple of `query_groups`. "
                f"Received: num_heads={num_heads}, query_groups={query_groups}"
            )

    def build(self, inputs_shape, query_shape=None):
        self._build_channels(inputs_shape)
        query_shape = query_shape or inputs_shape
        width = check_sequence("query", query_shape)
        if width % self.query_groups:
            raise ValueError(
                "The channels of `query` must be a multiple of `query_groups`. "
                f"Received: query.shape={tuple(query_shape)}, "
                f"query_groups={self.query_groups}"
            )
        self.further_widths = {"query": width}
        width //= self.query_groups
        limit = width**-0.5
        self.kernel_generator = self._dense(
            "kernel_generator",
            (None, None, self.query_groups, width),
            self.num_heads // self.query_groups * self._taps_generated(),
            self.kernel_initializer or keras.initializers.RandomUniform(-limit, limit),
            use_bias=self.use_kernel_bias,
            bias_initializer=keras.initializers.RandomUniform(-limit, limit),
        )

    def _taps_generated(self):
        """Numbers that the generator makes for one head."""
        return self.kernel_size

    def call(self, inputs, query=None, mask=None, inputs_mask=None, training=None):
        mask = inputs_mask if mask is None else mask
        inputs = zero_masked(inputs, mask)
        query = inputs if query is None else zero_masked(query, mask)
        check_shape("query", query, (*inputs.shape[:2], None))
        kernel = self._kernel(query)
        if self.weight_dropout_mask == "position":
            kernel = self._dropped(kernel, self.weight_dropout, training)
        elif training and self.weight_dropout > 0:
            ones = ops.ones((self.num_heads, self.kernel_size), dtype=kernel.dtype)
            kernel = kernel * self._dropped(ones, self.weight_dropout, training)
        return self._add_bias(self._convolve(inputs, kernel))

    def kernels(self, inputs, query=None, mask=None):
        """Returns the kernels (B, T, H, K) of a call without dropout.

        In float32 (or float64); `inputs`, `query` and `mask` as in a call.
        """
        self._require_built()
        query = ops.cast(inputs if query is None else query, self.compute_dtype)
        return self._kernel(zero_masked(query, mask))

    def _kernel(self, query):
        """Kernels (B, T, H, K)."""
        check_sequence("query", query.shape, self.further_widths["query"])
        groups = ops.reshape(query, (-1, query.shape[-1] // self.query_groups))
        logits = ops.cast(self.kernel_generator(groups), self.wide_dtype)
        logits = split_positions(logits, query, self.num_heads, self._taps_generated())
        return self._normalized(logits)

    def _normalized(self, logits):
        return softmax(logits) if self.kernel_softmax else logits

    def step(self, inputs, state: dict, query=None) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state.

        `query` (B, n, channels) has the same positions, for a layer that is
        called with a query.
        """
        window, next_state = self._slide(inputs, state)
        query = inputs if query is None else query
        check_shape("query", query, (*inputs.shape[:2], None))
        kernel = self._kernel(ops.cast(query, self.compute_dtype))
        kernel = ops.cast(kernel, self.compute_dtype)
        outputs = last_outputs(window, kernel, self.dilation_rate)
        return self._add_bias(outputs), next_state
