"""Replacements of self-attention from the papers, and their gate.

A module projects its inputs, mixes positions with a convolution of convolution.py and
projects the result back. Letters: B batch, T time, C channels, H heads, K taps,
n new positions of a step.
"""

from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.convolution import DynamicConv, LightConv
from keras_seqconv.layers.sequences import (
    KernelOptions,
    LayerOptions,
    SequenceLayer,
    by_rows,
    copied,
    zero_masked,
)
from keras_seqconv.ops.fused import gated
from keras_seqconv.support.arguments import check_choice


@keras.saving.register_keras_serializable(package="keras_seqconv")
class GLU(SequenceLayer):
    """Gated linear unit: the first half of the channels times sigmoid(second half).

    (Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks, equation
    1.) Unlike an `Activation("glu")` this layer reports the halved width.

    Call arguments:
        inputs: tensor (..., 2 C).

    Output shape: (..., C).
    """

    def build(self, inputs_shape):
        self._accept(inputs_shape, ndim=None)
        self.compute_output_shape(inputs_shape)

    def call(self, inputs, mask=None):
        return gated(zero_masked(inputs, mask), "glu")

    def compute_output_shape(self, inputs_shape):
        channels = inputs_shape[-1]
        if channels is None or channels % 2:
            raise ValueError(
                "The last axis of `inputs` must be even, it is split in two halves. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        return (*inputs_shape[:-1], channels // 2)


def _kernels(module, inputs, mask=None):
    """The kernels (B, T, H, K) of a dynamic convolution, see its `kernels`."""
    module._require_built()
    inputs = ops.cast(inputs, module.compute_dtype)
    return module.convolution.kernels(**module._projected(inputs), mask=mask)


class _ModuleOptions(KernelOptions, total=False):
    conv_dim: int | None
    input_dropout: float
    weight_dropout: float
    weight_dropout_mask: str | None
    seed: int | None


class _ConvolutionModule(SequenceLayer):
    """Projection, gate, convolution, projection.

    Sub-classes make the `convolution` and set `_gate`, that of their projections.
    """

    def __init__(
        self,
        num_heads: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        *,
        conv_dim: int | None = None,
        input_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        weight_dropout_mask: str | None = None,
        use_bias: bool = True,
        kernel_initializer=None,
        seed: int | None = None,
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        # Not the numbers that the convolution draws for its DropConnect.
        self._seed_dropout(input_dropout, shift=2**16)

    def _make_convolution(self, convolution_class, num_heads, **options):
        if self.weight_dropout_mask is not None:
            options["weight_dropout_mask"] = self.weight_dropout_mask
        return convolution_class(
            num_heads,
            self.kernel_size,
            padding=self.padding,
            weight_dropout=self.weight_dropout,
            seed=self.seed,
            **self._kernel_options("kernel_"),
            dtype=self.dtype_policy,
            name="convolution",
            **options,
        )

    def build(self, inputs_shape):
        width = self._accept(inputs_shape)
        conv_dim = self.conv_dim or width
        hidden_shape = (*inputs_shape[:-1], conv_dim)
        self.input_projection = self._projection("input", inputs_shape, conv_dim)
        self.output_projection = self._projection(
            "output", hidden_shape, width, gate="none"
        )
        self._build_convolution(inputs_shape, hidden_shape)

    def _projection(self, name, inputs_shape, units, gate=None):
        width, gate = inputs_shape[-1], gate or self._gate
        initializer = "glorot_uniform"
        if self.kernel_initializer is not None:
            initializer = copied(self.kernel_initializer)
        elif gate == "gau":  # two linear maps of their own in the original
            limit = (6 / (width + units)) ** 0.5
            initializer = keras.initializers.RandomUniform(-limit, limit)
        units = units if gate == "none" else 2 * units
        return self._dense(f"{name}_projection", inputs_shape, units, initializer)

    def _projected(self, inputs):
        """The arguments of the convolution, by name."""
        return {"inputs": self._gated(self.input_projection, inputs)}

    def _gated(self, projection, inputs):
        return by_rows(lambda rows: gated(projection(rows), self._gate), inputs)

    def call(self, inputs, mask=None, training=None):
        inputs = zero_masked(inputs, mask)
        inputs = self._dropped(inputs, self.input_dropout, training)
        hidden = self.convolution(
            **self._projected(inputs), mask=mask, training=training
        )
        return by_rows(self.output_projection, hidden)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """State of the convolution, see `layers.sequences`."""
        return self.convolution.get_initial_state(batch_size, max_length)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        self._check_step(inputs)
        inputs = ops.cast(inputs, self.compute_dtype)
        hidden, state = self.convolution.step(state=state, **self._projected(inputs))
        return by_rows(self.output_projection, hidden), state


@keras.saving.register_keras_serializable(package="keras_seqconv")
class LightConvModule(_ConvolutionModule):
    """Linear map, GLU, `LightConv`, linear map, in place of self-attention.

    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 4, figure 2b; fairseq `linear1`, `conv`, `linear2`.)

    Args:
        num_heads: heads of the convolution, a divisor of `conv_dim`.
        kernel_size: taps of the convolution.
        padding: "same" or "causal".
        use_glu: whether a GLU halves a first map of twice the width; otherwise the
            first map has no activation.
        kernel_softmax: see `LightConv`.
        conv_dim: channels of the convolution; by default those of the inputs.
        input_dropout: rate of the dropout on the inputs.
        weight_dropout, seed: see `LightConv`.
        weight_dropout_mask: "shared" or "position"; by default that of the
            convolution, "shared" for `LightConv` and "position" for `DynamicConv`.
        use_bias: whether the projections have biases.
        kernel_initializer: for the projections; Glorot uniform by default.
        kernel_regularizer, kernel_constraint: for the kernels of the projections and
            the convolution.

    Calls, masks and steps: `layers.sequences`.
    """

    convolution_class = LightConv

    def __init__(
        self,
        num_heads: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        *,
        use_glu: bool = True,
        kernel_softmax: bool = True,
        **kwargs: Unpack[_ModuleOptions],
    ):
        super().__init__(num_heads, kernel_size, padding, **kwargs)
        self._set_arguments(locals())
        self._gate = "glu" if use_glu else "none"
        self.convolution = self._make_convolution(
            self.convolution_class, num_heads, kernel_softmax=kernel_softmax
        )

    def _build_convolution(self, inputs_shape, hidden_shape):
        self.convolution.build(hidden_shape)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class DynamicConvModule(LightConvModule):
    """Linear map, GLU, `DynamicConv`, linear map, in place of self-attention.

    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 4, figure 2c; fairseq `linear1`, `conv`, `linear2`.) The generator's
    input is that of the convolution: after the GLU and, with a mask, after zeroing.
    Arguments as in `LightConvModule`.
    """

    convolution_class = DynamicConv
    kernels = _kernels


@keras.saving.register_keras_serializable(package="keras_seqconv")
class QueryConvModule(_ConvolutionModule):
    """Dynamic convolution with kernels from a separate query projection.

        value = gate(x W_v),  query = gate(x W_q)
        outputs = DynamicConv(value, query) W_o

    (The query-projected module of choyi0521's fairseq fork, branch dev6, `ddynamic`.)
    The mask zeroes values and queries. With P = `query_groups` there are P * H kernels
    per position: group p of the query makes the kernels of group p of the values.

    Args:
        num_heads: heads H of each query group; P * H must divide `conv_dim`.
        kernel_size: taps K of the convolution.
        padding: "same" or "causal".
        query_dim: channels of the query, a multiple of P; by default those of the
            inputs.
        gate: gate of both projections: "none", "glu" (a * sigmoid(b)) or "gau"
            (tanh(a) * sigmoid(b)).
        query_groups: P, `num_proj_heads` of the original.
        permute_channels: whether a fixed random permutation, stored as a weight and
            drawn by `seed`, permutes the channels of the values (`conv_mixed` of the
            original).
        compat: for P > 1, follow the original: the generator makes P * K numbers per
            head, the softmax runs over all of them and only the first K are used, so
            kernels sum to less than 1. Checkpoints of the original need it.
        conv_dim: channels of the values.
        input_dropout: rate of the dropout before both projections.
        weight_dropout, weight_dropout_mask, use_bias, seed: as in `LightConvModule`.
        kernel_regularizer, kernel_constraint: as in `LightConvModule`.
        kernel_initializer: for the projections; by default Glorot uniform, with "gau"
            for each half.

    Calls, masks and steps: `layers.sequences`.
    """

    kernels = _kernels

    def __init__(
        self,
        num_heads: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        *,
        query_dim: int | None = None,
        gate: str = "none",
        query_groups: int = 1,
        permute_channels: bool = False,
        compat: bool = False,
        **kwargs: Unpack[_ModuleOptions],
    ):
        super().__init__(num_heads, kernel_size, padding, **kwargs)
        self._set_arguments(locals())
        self._gate = check_choice("gate", gate, ("none", "glu", "gau"))
        self.convolution = self._make_convolution(
            _SurplusDynamicConv if compat else DynamicConv,
            query_groups * num_heads,
            query_groups=query_groups,
        )

    def _build_convolution(self, inputs_shape, hidden_shape):
        query_dim = self.query_dim or inputs_shape[-1]
        self.query_projection = self._projection("query", inputs_shape, query_dim)
        self.convolution.build(hidden_shape, (*inputs_shape[:-1], query_dim))
        if self.permute_channels:
            self.permutation = self.add_weight(
                name="permutation",
                shape=hidden_shape[-1:],
                initializer=self._random_permutation,
                dtype="int32",
                trainable=False,
            )

    def _random_permutation(self, shape, dtype):
        channels = ops.arange(shape[0], dtype="int32")
        return ops.cast(keras.random.shuffle(channels, seed=self.seed), dtype)

    def _projected(self, inputs):
        values = super()._projected(inputs)["inputs"]
        if self.permute_channels:
            values = ops.take(values, self.permutation, axis=-1)
        query = self._gated(self.query_projection, inputs)
        return {"inputs": values, "query": query}


class _SurplusDynamicConv(DynamicConv):
    """`compat` of `QueryConvModule` (`DDynamicConv`, `num_proj_heads` > 1)."""

    def _taps_generated(self):
        return self.query_groups * self.kernel_size

    def _normalized(self, logits):
        return super()._normalized(logits)[..., : self.kernel_size]
