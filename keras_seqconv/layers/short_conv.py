"""Short causal convolutions as layers, alone and between gates.

Letters: B batch, T time, C channels, K taps, D dilation, n new positions of a step.
"""

from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    ConvolutionLayer,
    LayerOptions,
    SequenceLayer,
    accepted,
    by_rows,
    zero_masked,
)
from keras_seqconv.ops.causal_conv import causal_conv1d, causal_conv1d_update, finished
from keras_seqconv.ops.convolution import light_conv
from keras_seqconv.support.arguments import check_choice, check_keys


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
        padding: "causal", "same", or "valid", which returns only the outputs whose
            taps are all inside of the sequence, (B, T - (K - 1) D, C).
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
        self.padding = check_choice("padding", padding, ("causal", "same", "valid"))
        if residual and padding == "valid":
            raise ValueError(
                '`residual` needs padding="causal" or "same": other outputs are '
                "shorter than the inputs. Received: residual=True, padding='valid'"
            )

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
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.channels,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def _kernel(self):
        return ops.cast(self.kernel, self.compute_dtype)

    def call(self, inputs, mask=None, segment_ids=None):
        inputs = zero_masked(inputs, mask)
        residual = inputs if self.residual else None
        if self.padding == "causal":
            return causal_conv1d(
                inputs,
                self._kernel(),
                self.bias,
                activation=self.activation,
                residual=residual,
                segment_ids=segment_ids,
                dilation=self.dilation_rate,
            )
        if segment_ids is not None:
            raise ValueError(
                '`segment_ids` needs padding="causal". '
                f"Received: padding={self.padding!r}"
            )
        padding = "same" if self.padding == "same" else "causal"
        outputs = light_conv(inputs, self._kernel(), padding, self.dilation_rate)
        if self.padding == "valid":
            outputs = outputs[:, self.history :]
        return finished(outputs, self.bias, residual, self.activation)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        self._require_causal()
        self._check_step(inputs, state, self._state_shapes())
        inputs = ops.cast(inputs, self.compute_dtype)
        outputs, last = causal_conv1d_update(
            inputs,
            state["inputs"],
            self._kernel(),
            self.bias,
            activation=self.activation,
            dilation=self.dilation_rate,
        )
        return inputs + outputs if self.residual else outputs, {"inputs": last}

    def compute_output_shape(self, inputs_shape) -> tuple:
        batch, length, channels = inputs_shape
        if self.padding == "valid" and length is not None:
            length = max(0, length - self.history)
        return batch, length, channels

    def compute_mask(self, inputs, previous_mask):
        if previous_mask is None or self.padding != "valid":
            return previous_mask
        return previous_mask[:, self.history :]


@keras.saving.register_keras_serializable(package="keras_seqconv")
class GatedShortConv(SequenceLayer):
    """Short convolution between two gates, as in LFM2, in place of attention.

        b, c, x = split(inputs W1)
        outputs = (c * conv(b * x)) W2

    (Liquid AI 2025, LFM2 Technical Report, section 2.) The convolution is a `ShortConv`
    without activation. Calls, masks and steps: `layers.sequences`.

    Args:
        kernel_size: taps of the convolution.
        padding: "causal" or "same".
        dilation_rate: distance of neighbouring taps.
        use_bias: whether projections and convolution have biases.
        kernel_initializer: for the projections.
        bias_initializer: for all biases.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: for
            the projections and the convolution.
    """

    def __init__(
        self,
        kernel_size: int | tuple[int] = 3,
        padding: str = "causal",
        *,
        dilation_rate: int = 1,
        use_bias: bool = False,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self.convolution = ShortConv(
            kernel_size,
            activation=None,
            padding=padding,
            dilation_rate=dilation_rate,
            use_bias=use_bias,
            **self._parameter_options(),
            dtype=self.dtype_policy,
            name="convolution",
        )

    def _parameter_options(self) -> dict:
        return {
            "bias_initializer": self.bias_initializer,
            "bias_regularizer": self.bias_regularizer,
            "bias_constraint": self.bias_constraint,
            **self._kernel_options("kernel_"),
        }

    def build(self, inputs_shape):
        width = self._accept(inputs_shape)
        for name, units in (("input", 3 * width), ("output", width)):
            dense = keras.layers.Dense(
                units,
                use_bias=self.use_bias,
                # A copy: one object gives the same numbers again and again.
                kernel_initializer=self.kernel_initializer.clone(),
                **self._parameter_options(),
                dtype=self.dtype_policy,
                name=f"{name}_projection",
            )
            dense.build((None, None, width))
            setattr(self, dense.name, dense)
        self.convolution.build(inputs_shape)

    def call(self, inputs, mask=None, segment_ids=None):
        gate, inputs = self._gated(zero_masked(inputs, mask))
        outputs = self.convolution(inputs, mask=mask, segment_ids=segment_ids)
        return by_rows(self.output_projection, gate * outputs)

    def _gated(self, inputs):
        """The gate of the outputs, and the inputs of the convolution."""
        projected = by_rows(self.input_projection, inputs)
        before, after, values = ops.split(projected, 3, axis=-1)
        return after, before * values

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """State of the convolution, see `layers.sequences`."""
        return self.convolution.get_initial_state(batch_size, max_length)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        self._check_step(inputs)
        gate, inputs = self._gated(ops.cast(inputs, self.compute_dtype))
        outputs, state = self.convolution.step(inputs, state)
        return by_rows(self.output_projection, gate * outputs), state


@keras.saving.register_keras_serializable(package="keras_seqconv")
class Canon(SequenceLayer):
    """A sub-layer with a Canon layer in front of it.

        x = inputs + conv(inputs)
        outputs = layer(x)

    (Allen-Zhu 2025, Physics of Language Models: Part 4.1, Architecture Design and the
    Magic of Canon Layers; Canon-A in front of a mixer, Canon-C in front of a
    feed-forward network.) Calls, masks and steps: `layers.sequences`. The convolution
    is a `ShortConv` without activation and bias.

    Args:
        layer: the sub-layer; causal if `padding` is "causal".
        kernel_size: taps of the convolution.
        padding: "causal" or "same".
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        kernel_size: int | tuple[int] = 4,
        padding: str = "causal",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self.convolution = make_canon(kernel_size, padding, self.dtype_policy)

    def build(self, inputs_shape):
        self._accept(inputs_shape)
        self.convolution.build(inputs_shape)
        if not self.layer.built:
            self.layer.build(inputs_shape)

    def call(self, inputs, mask=None, training=None):
        options = accepted(self.layer.call, {"mask": mask, "training": training})
        return self.layer(self.convolution(inputs, mask=mask), **options)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """The last inputs of the convolution, "canon", beside the layer's state."""
        convolution = self.convolution.get_initial_state(batch_size)
        state = self.layer.get_initial_state(batch_size, max_length=max_length)
        return {"canon": convolution["inputs"], **state}

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        check_keys("state", state, self.get_initial_state(1, max_length=1))
        rest = dict(state)
        convolution = {"inputs": rest.pop("canon")}
        x, convolution = self.convolution.step(inputs, convolution)
        outputs, rest = self.layer.step(x, rest)
        return outputs, {"canon": convolution["inputs"], **rest}


def make_canon(kernel_size, padding, dtype) -> ShortConv:
    """The convolution of a Canon layer."""
    return ShortConv(
        kernel_size,
        activation=None,
        padding=padding,
        use_bias=False,
        residual=True,
        dtype=dtype,
        name="canon",
    )
