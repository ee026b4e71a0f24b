"""The blocks that the papers put in place of self-attention, and their gate.

A module projects its inputs, mixes positions by a convolution of convolution.py and
projects the result back. Letters: B batch, T time, C channels, H heads, K taps,
n new positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.layers.convolution import DynamicConv, LightConv
from keras_seqconv.layers.rows import apply_dense
from keras_seqconv.ops.dropout import dropout
from keras_seqconv.ops.rows import wide
from keras_seqconv.support.arguments import (
    check_choice,
    check_kernel_size,
    check_positive_integer,
    check_rate,
    refuse_names_of_keras,
)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class GLU(keras.layers.Layer):
    """Gated linear unit: the first half of the channels times sigmoid(second half).

    (Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks, equation
    1.) Unlike an `Activation("glu")` this layer reports the halved width.

    Args:
        **kwargs: `name`, `dtype` and what else `keras.layers.Layer` accepts.

    Call arguments:
        inputs: tensor (..., 2 C).

    Input shape: (..., 2 C). Output shape: (..., C). The mask is kept.

    Raises:
        ValueError: when the last axis is odd or unknown.

    Example:

    ```python
    outputs = keras_seqconv.layers.GLU()(keras.ops.zeros((2, 10, 1024)))  # (2, 10, 512)
    ```
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, inputs_shape):
        self.compute_output_shape(inputs_shape)

    def call(self, inputs):
        return _gated(inputs, "glu")

    def compute_output_shape(self, inputs_shape):
        channels = inputs_shape[-1]
        if channels is None or channels % 2:
            raise ValueError(
                "The last axis of `inputs` must be even, it is split in two halves. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        return (*inputs_shape[:-1], channels // 2)


def _gated(inputs, gate):
    """The values of a projection: as they are ("none"), "glu" or "gau"."""
    if gate == "none":
        return inputs
    # Processors compute the functions of bfloat16 one number at a time.
    values, gates = ops.split(wide(inputs), 2, axis=-1)
    if gate == "gau":
        values = ops.tanh(values)
    return ops.cast(values * ops.sigmoid(gates), inputs.dtype)


class _ConvolutionModule(keras.layers.Layer):
    """Projection, convolution, projection; sub-classes make the convolution."""

    def __init__(
        self,
        num_heads,
        kernel_size,
        padding,
        conv_dim,
        gate,
        input_dropout,
        weight_dropout,
        weight_dropout_mask,
        seed,
        **kwargs,
    ):
        refuse_names_of_keras(kwargs)
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.kernel_size = check_kernel_size(kernel_size)
        self.padding = padding
        if conv_dim is not None:
            check_positive_integer("conv_dim", conv_dim)
        self.conv_dim = conv_dim
        self.gate = check_choice("gate", gate, ("none", "glu", "gau"))
        self.input_dropout = check_rate("input_dropout", input_dropout)
        if input_dropout > 0:
            # Not the numbers that the convolution draws for its DropConnect.
            other = None if seed is None else seed + 2**16
            self.seed_generator = keras.random.SeedGenerator(other)
        self.weight_dropout = weight_dropout
        self.weight_dropout_mask = weight_dropout_mask
        self.seed = seed
        self.supports_masking = True
        granularity = {}
        if weight_dropout_mask is not None:
            granularity["weight_dropout_mask"] = weight_dropout_mask
        self.convolution = self._convolution(
            kernel_size=kernel_size,
            padding=padding,
            weight_dropout=weight_dropout,
            **granularity,
            seed=seed,
            dtype=self.dtype_policy,
            name="convolution",
        )

    def _build_projections(self, inputs_shape, conv_dim):
        self.input_projection = self._projection(
            inputs_shape, conv_dim, self.gate, "input_projection"
        )
        self.output_projection = self._projection(
            (*inputs_shape[:-1], conv_dim),
            inputs_shape[-1],
            "none",
            "output_projection",
        )

    def _projection(self, inputs_shape, units, gate, name):
        width = inputs_shape[-1]
        if width is None:
            raise ValueError(
                "The channels of `inputs` must be known. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        initializer = "glorot_uniform"
        if gate == "gau":  # two linear maps of their own in the original
            limit = (6 / (width + units)) ** 0.5
            initializer = keras.initializers.RandomUniform(-limit, limit)
        dense = keras.layers.Dense(
            units if gate == "none" else 2 * units,
            kernel_initializer=initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(inputs_shape)
        return dense

    def _projected(self, inputs):
        """The arguments of the convolution, by name."""
        return {"inputs": _gated(apply_dense(self.input_projection, inputs), self.gate)}

    def call(self, inputs, mask=None, training=None):
        if training and self.input_dropout > 0:
            inputs = dropout(inputs, self.input_dropout, self.seed_generator)
        hidden = self.convolution(
            **self._projected(inputs), mask=mask, training=training
        )
        return apply_dense(self.output_projection, hidden)

    def kernels(self, inputs, mask=None):
        """The kernels (B, T, H, K) of a dynamic convolution, see its `kernels`."""
        inputs = ops.cast(inputs, self.compute_dtype)
        return self.convolution.kernels(**self._projected(inputs), mask=mask)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """The state before the first position: that of the convolution."""
        return self.convolution.get_initial_state(batch_size, max_length)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) for n >= 1 new positions, and the next state."""
        inputs = ops.cast(inputs, self.compute_dtype)
        hidden, state = self.convolution.step(state=state, **self._projected(inputs))
        return apply_dense(self.output_projection, hidden), state

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "kernel_size": self.kernel_size,
            "padding": self.padding,
            "conv_dim": self.conv_dim,
            "input_dropout": self.input_dropout,
            "weight_dropout": self.weight_dropout,
            "weight_dropout_mask": self.weight_dropout_mask,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="keras_seqconv")
class LightConvModule(_ConvolutionModule):
    """Linear map, GLU, `LightConv`, linear map: what replaces self-attention.

    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 4, figure 2b; fairseq `linear1`, `conv`, `linear2`.)

    Args:
        num_heads: heads of the convolution, a divisor of `conv_dim`.
        kernel_size: its taps.
        padding: "same" or "causal".
        conv_dim: channels inside; those of the inputs when None.
        use_glu: halve a projection of twice the width by a GLU; without it the first
            map has no activation.
        kernel_softmax, weight_dropout, seed: see `LightConv`.
        input_dropout: rate of a dropout on the inputs.
        weight_dropout_mask: "shared" or "position"; None is the default of the
            convolution, "shared" for `LightConv` and "position" for `DynamicConv`.
        **kwargs: `name`, `dtype` and what else `keras.layers.Layer` accepts.

    Call arguments:
        inputs: tensor (B, T, C).
        mask: boolean (B, T), True for real tokens.
        training: whether to apply dropout and DropConnect.

    Input shape: (B, T, C). Output shape: (B, T, C). The mask is kept.

    Raises:
        ValueError: as `LightConv`.

    Example:

    ```python
    module = keras_seqconv.layers.LightConvModule(8, 31, padding="causal")
    outputs = module(keras.random.normal((2, 100, 512)))
    ```
    """

    convolution_class = LightConv

    def __init__(
        self,
        num_heads: int,
        kernel_size: int,
        padding: str = "same",
        conv_dim: int | None = None,
        use_glu: bool = True,
        kernel_softmax: bool = True,
        input_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        weight_dropout_mask: str | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        self._kernel_softmax = kernel_softmax
        super().__init__(
            num_heads,
            kernel_size,
            padding,
            conv_dim,
            "glu" if use_glu else "none",
            input_dropout,
            weight_dropout,
            weight_dropout_mask,
            seed,
            **kwargs,
        )
        self.use_glu = use_glu

    def _convolution(self, **arguments):
        return self.convolution_class(
            self.num_heads, kernel_softmax=self._kernel_softmax, **arguments
        )

    def build(self, inputs_shape):
        conv_dim = self.conv_dim or inputs_shape[-1]
        self._build_projections(inputs_shape, conv_dim)
        self.convolution.build((*inputs_shape[:-1], conv_dim))

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "use_glu": self.use_glu,
            "kernel_softmax": self._kernel_softmax,
        }


@keras.saving.register_keras_serializable(package="keras_seqconv")
class DynamicConvModule(LightConvModule):
    """Linear map, GLU, `DynamicConv`, linear map: what replaces self-attention.

    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 4, figure 2c; fairseq `linear1`, `conv`, `linear2`.) The kernels are made
    from what is convolved: after the GLU and, with a mask, after zeroing.

    Arguments, shapes and errors as `LightConvModule`.

    Example:

    ```python
    module = keras_seqconv.layers.DynamicConvModule(8, 31, padding="causal")
    outputs = module(keras.random.normal((2, 100, 512)))
    ```
    """

    convolution_class = DynamicConv


@keras.saving.register_keras_serializable(package="keras_seqconv")
class QueryConvModule(_ConvolutionModule):
    """Dynamic convolution whose kernels come from a projection of their own.

        value = gate(x W_v),  query = gate(x W_q)
        outputs = DynamicConv(value, query) W_o

    (The query-projected module of choyi0521's fairseq fork, branch dev6, `ddynamic`.)
    The mask zeroes values and queries. With P = `query_groups` there are P * H kernels
    per position: group p of the query makes those of group p of the values.

    Args:
        num_heads: heads H of each query group; P * H must divide `conv_dim`.
        kernel_size: taps K of the convolution.
        padding: "same" or "causal".
        conv_dim: channels of the values; those of the inputs when None.
        query_dim: channels of the query, a multiple of P; those of the inputs when
            None.
        gate: of both projections: "none", "glu" (a * sigmoid(b)) or "gau"
            (tanh(a) * sigmoid(b)).
        query_groups: P, `num_proj_heads` of the original.
        permute_channels: permute the channels of the values by a fixed random
            permutation, `conv_mixed` of the original, stored as a weight and not
            undone.
        input_dropout: rate of a dropout on the inputs, in front of both projections.
        weight_dropout, weight_dropout_mask, seed: see `DynamicConv`; `seed` also
            draws the permutation.
        compat: for P > 1 do as the original: the generator makes P * K numbers per
            head, the softmax runs over all of them and only the first K are used, so
            that kernels sum to less than 1. Needed for its checkpoints.
        **kwargs: `name`, `dtype` and what else `keras.layers.Layer` accepts.

    Call arguments:
        inputs: tensor (B, T, C).
        mask: boolean (B, T), True for real tokens.
        training: whether to apply dropout and DropConnect.

    Input shape: (B, T, C). Output shape: (B, T, C). The mask is kept.

    Raises:
        ValueError: for arguments outside these rules, and as `DynamicConv`.

    Example:

    ```python
    module = keras_seqconv.layers.QueryConvModule(4, 31, conv_dim=512, query_dim=256)
    outputs = module(keras.random.normal((2, 100, 512)))
    ```
    """

    def __init__(
        self,
        num_heads: int,
        kernel_size: int,
        padding: str = "same",
        conv_dim: int | None = None,
        query_dim: int | None = None,
        gate: str = "none",
        query_groups: int = 1,
        permute_channels: bool = False,
        input_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        weight_dropout_mask: str | None = None,
        compat: bool = False,
        seed: int | None = None,
        **kwargs,
    ):
        if query_dim is not None:
            check_positive_integer("query_dim", query_dim)
        check_positive_integer("num_heads", num_heads)
        self._query_groups = check_positive_integer("query_groups", query_groups)
        self._compat = compat
        super().__init__(
            num_heads,
            kernel_size,
            padding,
            conv_dim,
            gate,
            input_dropout,
            weight_dropout,
            weight_dropout_mask,
            seed,
            **kwargs,
        )
        self.query_dim = query_dim
        self.permute_channels = permute_channels

    def _convolution(self, **arguments):
        groups = self._query_groups
        convolution_class = SurplusDynamicConv if self._compat else DynamicConv
        return convolution_class(
            groups * self.num_heads, query_groups=groups, **arguments
        )

    def build(self, inputs_shape):
        conv_dim = self.conv_dim or inputs_shape[-1]
        query_dim = self.query_dim or inputs_shape[-1]
        self._build_projections(inputs_shape, conv_dim)
        self.query_projection = self._projection(
            inputs_shape, query_dim, self.gate, "query_projection"
        )
        leading = tuple(inputs_shape[:-1])
        self.convolution.build((*leading, conv_dim), (*leading, query_dim))
        if self.permute_channels:
            self.permutation = self.add_weight(
                name="permutation",
                shape=(conv_dim,),
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
        query = _gated(apply_dense(self.query_projection, inputs), self.gate)
        return {"inputs": values, "query": query}

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "query_dim": self.query_dim,
            "gate": self.gate,
            "query_groups": self._query_groups,
            "permute_channels": self.permute_channels,
            "compat": self._compat,
        }


@keras.saving.register_keras_serializable(package="keras_seqconv")
class SurplusDynamicConv(DynamicConv):
    """`DynamicConv` as branch dev6 has it for several query groups.

    Each head's softmax is over query_groups * K generated numbers, of which the first
    K are the kernel (`DDynamicConv`, `num_proj_heads` > 1). With one group it is
    `DynamicConv`. Arguments, shapes and errors are those of `DynamicConv`, without
    `renormalize_padding`.
    """

    def __init__(self, num_heads: int, kernel_size: int, **kwargs):
        if kwargs.get("renormalize_padding"):
            raise ValueError(
                "`renormalize_padding` is not defined here: the softmax is not over "
                "taps alone. Received: renormalize_padding=True"
            )
        super().__init__(num_heads, kernel_size, **kwargs)

    def _generated(self):
        return self.num_heads * self.kernel_size

    def _normalized(self, logits, positions, real):
        surplus = self.query_groups * self.kernel_size
        shape = (*positions, self.num_heads, surplus)
        kernel = ops.reshape(logits, shape)
        if self.kernel_softmax:
            kernel = ops.softmax(kernel, axis=-1)
        return kernel[..., : self.kernel_size]
