"""Short causal convolutions as layers, alone and between gates.

Letters: B batch, T time, C channels, K taps, D dilation, n new positions of a step.
"""

import functools
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_seqconv.layers.sequences import (
    ConvolutionLayer,
    LayerOptions,
    PenaltyOptions,
    by_rows,
    zero_masked,
)
from keras_seqconv.ops.causal_conv import as_tensor, causal_conv1d, finished
from keras_seqconv.ops.convolution import last_outputs, light_conv
from keras_seqconv.support.arguments import check_choice, check_shape


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ShortConv(ConvolutionLayer):
    """Depthwise convolution of a few taps with bias, activation and residual.

        outputs = activation(conv(inputs) + bias)             residual=False
        outputs = inputs + activation(conv(inputs) + bias)    residual=True

    see `keras_seqconv.ops.causal_conv1d`. It is the convolution of Mamba (Gu and Dao
    2023, section 3.4) and of gated DeltaNet, and with `residual=True, activation=None`
    a Canon layer (Allen-Zhu 2025, Physics of Language Models: Part 4.1). Calls, masks
    and steps: `layers.sequences`.

    Weights: `kernel` (C, K), uniform within 1 / sqrt(K); `bias` (C,), zeros.

    Args:
        kernel_size: K >= 1.
        activation: None or "silu".
        padding: "causal", "same" with (K - 1) // 2 taps before a position, or "valid",
            which returns only the outputs whose taps are all inside of the sequence,
            (B, T - (K - 1) D, C).
        dilation_rate: D >= 1, distance of neighbouring taps.
        use_bias: whether to add a bias.
        residual: whether to add the inputs to the outputs; not with "valid".
        kernel_initializer: initializer of `kernel`; by default as above.
        bias_initializer: initializer of `bias`.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: as in
            `keras.layers.DepthwiseConv1D`.

    Call arguments:
        inputs, mask: see `layers.sequences`.
        segment_ids: integer tensor (B, T) of packed sequences: no output depends on
            another segment. For causal layers.
        inputs_mask: mask of `inputs` that Keras passes if there are `segment_ids`.

    Example:

    ```python
    layer = keras_seqconv.layers.ShortConv(4)
    outputs = layer(keras.random.normal((2, 100, 256)))
    ```
    """

    def __init__(
        self,
        kernel_size: int | tuple[int] = 4,
        activation: str | None = "silu",
        padding: str = "causal",
        *,
        dilation_rate: int = 1,
        use_bias: bool = True,
        residual: bool = False,
        kernel_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        check_choice("activation", activation, (None, "silu"))
        self._set_arguments({**locals(), "padding": "causal"})
        # `keras.RematScope` replaces the attribute `activation` during calls.
        self._activation_name = activation
        self.padding = check_choice("padding", padding, ("causal", "same", "valid"))
        if residual and padding == "valid":
            raise ValueError(
                '`residual` needs padding="causal" or "same": other outputs are '
                "shorter than the inputs. Received: residual=True, padding='valid'"
            )
        # There it costs nothing. In half precision the kernel would lose digits.
        is_wide = self.compute_dtype == self.wide_dtype
        self._residual_in_kernel = residual and activation is None and is_wide

    def build(self, inputs_shape):
        self.channels = self._accept(inputs_shape)
        limit = self.kernel_size**-0.5
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.channels, self.kernel_size),
            initializer=self.kernel_initializer
            or keras.initializers.RandomUniform(-limit, limit),
            **self._kernel_options(),
        )
        self.bias = self._bias_weight(
            (self.channels,),
            self.bias_initializer,
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )

    def _kernel(self):
        kernel, taps = ops.cast(self.kernel, self.compute_dtype), self.kernel_size
        if not self._residual_in_kernel:
            return kernel
        present = taps - 1 if self.padding == "causal" else (taps - 1) // 2
        return kernel + np.eye(1, taps, present, dtype=self.compute_dtype)

    def compute_output_spec(self, inputs, mask=None, segment_ids=None, **kwargs):
        self._check_segments(inputs, segment_ids)
        return super().compute_output_spec(inputs, mask, segment_ids, **kwargs)

    def _check_segments(self, inputs, segment_ids):
        if segment_ids is None:
            return
        if self.padding != "causal":
            raise ValueError(
                '`segment_ids` needs padding="causal". '
                f"Received: padding={self.padding!r}"
            )
        check_shape("segment_ids", segment_ids, tuple(inputs.shape[:2]))

    def call(self, inputs, mask=None, segment_ids=None, inputs_mask=None):
        mask = inputs_mask if mask is None else mask
        inputs = zero_masked(inputs, mask)
        segment_ids = as_tensor(segment_ids)
        self._check_segments(inputs, segment_ids)
        options = {"dilation": self.dilation_rate}
        if self.padding == "same":
            outputs = light_conv(inputs, self._kernel(), "same", **options)
        else:
            options["segment_ids"] = segment_ids
            outputs = causal_conv1d(inputs, self._kernel(), **options)
        if self.padding == "valid":
            outputs = outputs[:, self.history :]
        return self._finished(outputs, inputs)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        window, state = self._slide(inputs, state)
        outputs = last_outputs(window, self._kernel(), self.dilation_rate)
        return self._finished(outputs, window[:, self.history :]), state

    def _finished(self, outputs, inputs):
        residual = inputs if self.residual and not self._residual_in_kernel else None
        return finished(outputs, self.bias, residual, self._activation_name)

    def compute_output_shape(self, inputs_shape) -> tuple:
        batch, length, channels = inputs_shape
        if self.padding == "valid" and length is not None:
            length = max(0, length - self.history)
        return batch, length, channels

    def compute_mask(self, inputs, previous_mask):
        if previous_mask is None or self.padding != "valid":
            return previous_mask
        starts = range(0, self.history + 1, self.dilation_rate)
        ends = (start - self.history or None for start in starts)
        taps = (previous_mask[:, i:end] for i, end in zip(starts, ends, strict=True))
        return functools.reduce(ops.logical_and, taps)


class _FurtherOptions(PenaltyOptions, total=False):
    dilation_rate: int
    kernel_initializer: Any
    bias_initializer: Any
    bias_regularizer: Any
    bias_constraint: Any


@keras.saving.register_keras_serializable(package="keras_seqconv")
class GatedShortConv(ShortConv):
    """Short convolution between two gates, as in LFM2, in place of attention.

        b, c, x = split(inputs W1)
        outputs = (c * conv(b * x)) W2

    (Liquid AI 2025, LFM2 Technical Report, section 2.) Calls, masks and steps:
    `layers.sequences`.

    Args:
        kernel_size, padding, dilation_rate, kernel_initializer, bias_initializer: as in
            `ShortConv`; the projections start as those of `keras.layers.Dense`.
        activation: of the convolution, None or "silu"; LFM2 has none.
        use_bias: whether projections and convolution have biases.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: for
            the projections and the convolution.
    """

    def __init__(
        self,
        kernel_size: int | tuple[int] = 3,
        activation: str | None = None,
        padding: str = "causal",
        *,
        use_bias: bool = False,
        **kwargs: Unpack[_FurtherOptions],
    ):
        super().__init__(kernel_size, activation, padding, use_bias=use_bias, **kwargs)

    def build(self, inputs_shape):
        super().build(inputs_shape)
        for name, units in (("input", 3), ("output", 1)):
            projection = self._dense(
                f"{name}_projection",
                inputs_shape,
                units * self.channels,
                "glorot_uniform",
                bias_initializer=self.bias_initializer,
                bias_regularizer=self.bias_regularizer,
                bias_constraint=self.bias_constraint,
            )
            setattr(self, projection.name, projection)

    def _gated(self, inputs):
        """The gate of the outputs, and the inputs of the convolution."""
        projected = by_rows(self.input_projection, inputs)
        before, after, values = ops.split(projected, 3, axis=-1)
        return after, before * values

    def call(self, inputs, mask=None, segment_ids=None, inputs_mask=None):
        mask = inputs_mask if mask is None else mask
        gate, inputs = self._gated(zero_masked(inputs, mask))
        outputs = super().call(inputs, mask=mask, segment_ids=segment_ids)
        if self.padding == "valid":
            gate = gate[:, self.history :]
        return by_rows(self.output_projection, gate * outputs)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        self._check_step(inputs)
        gate, inputs = self._gated(ops.cast(inputs, self.compute_dtype))
        outputs, state = super().step(inputs, state)
        return by_rows(self.output_projection, gate * outputs), state


def make_canon(padding: str, dtype) -> ShortConv:
    """A Canon layer: x + conv(x) with a kernel of 4 taps for each channel.

    (Allen-Zhu 2025, Physics of Language Models: Part 4.1, Architecture Design and the
    Magic of Canon Layers.)
    """
    options = {"activation": None, "use_bias": False, "residual": True}
    return ShortConv(4, padding=padding, **options, dtype=dtype, name="canon")
