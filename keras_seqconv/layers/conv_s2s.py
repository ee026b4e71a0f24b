"""Layers of ConvS2S: gated convolution, residual, attention, gradient scale.

Gehring et al. 2017, Convolutional Sequence to Sequence Learning, as in fairseq.
Letters: B batch, T target time, S source time, C channels, E embedding width, K kernel,
G beams of one sentence, n new positions.
"""

import math
from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    LayerOptions,
    PenaltyOptions,
    SequenceLayer,
    checked_mask,
    fold_beams,
    unfold_beams,
    zero_masked,
)
from keras_seqconv.layers.weight_norm import (
    ConvS2SInitializer,
    WeightNormConv1D,
    WeightNormDense,
)
from keras_seqconv.ops.fused import gated, softmax, wide
from keras_seqconv.support.arguments import check_number, check_sequence

_SQRT_HALF = math.sqrt(0.5)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ScaleGradient(SequenceLayer):
    """Identity whose gradient is multiplied by a constant.

    `outputs = inputs`, `d inputs = scale * d outputs`. ConvS2S scales the gradient of
    its encoder by 1 / (2 * number of attention layers), as every attention has a
    gradient for the keys and one for the values (the paper's Normalization Strategy;
    fairseq).

    Args:
        scale: finite number.

    Call arguments:
        inputs: floating-point tensor of any shape. Finite: infinite values become NaN.
        mask: see `layers.sequences`.

    Output shape: shape of the input.
    """

    def __init__(self, scale: float, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.scale = check_number("scale", scale)

    def call(self, inputs, mask=None):
        inputs = zero_masked(inputs, mask)
        # x * s + stop(x) * (1 - s) rounds in half precision; here the second term is
        # exactly zero. Plain operations also keep every higher derivative and, unlike
        # a custom gradient, forward-mode differentiation on JAX.
        constant = ops.stop_gradient(inputs)
        return constant + (inputs - constant) * self.scale


class _WeightNormalized(SequenceLayer):
    """A layer of weight-normalized layers, which `fold` makes plain."""

    def __init__(
        self,
        folded: bool = False,
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())

    def _options(self) -> dict:
        """Arguments that this layer passes to its weight-normalized layers."""
        options = self._kernel_options("kernel_")
        return {**options, "folded": self.folded, "dtype": self.dtype_policy}

    def _dense(self, name, inputs_shape, units):
        dense = WeightNormDense(units, **self._options(), name=name)
        dense.build(inputs_shape)
        return dense

    def fold(self) -> None:
        """Replace v and g of all weights by plain kernels, see `WeightNormDense`."""
        for layer in self._flatten_layers(include_self=False, recursive=False):
            layer.fold()
        self.folded = True


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ScaledResidual(_WeightNormalized):
    """Residual connection of ConvS2S, which halves the variance of the sum.

    `outputs = (inputs + skip) * sqrt(0.5)` (the paper's Normalization Strategy). A skip
    tensor of another width goes through a `WeightNormDense` first. Arguments:
    `folded`, `kernel_regularizer`, `kernel_constraint`, as in `ConvS2SBlock`.

    Call arguments:
        inputs: tensor (B, T, C).
        skip: tensor (B, T, C or any other known width).
        mask: of both tensors, see `layers.sequences`.
        inputs_mask: mask of `inputs` that Keras passes.

    Output shape: (B, T, C).
    """

    projection = None

    def build(self, inputs_shape, skip_shape):
        width = self._accept(inputs_shape)
        self.further_widths = {"skip": check_sequence("skip", skip_shape)}
        if self.further_widths["skip"] != width:
            self.projection = self._dense("projection", skip_shape, width)

    def call(self, inputs, skip, mask=None, inputs_mask=None):
        check_sequence("skip", skip.shape, self.further_widths["skip"])
        mask = inputs_mask if mask is None else mask
        inputs, skip = zero_masked(inputs, mask), zero_masked(skip, mask)
        if self.projection is not None:
            skip = self.projection(skip)
        return (inputs + skip) * _SQRT_HALF


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvS2SBlock(_WeightNormalized):
    """Gated convolution of ConvS2S with its residual connection.

    ```
    y = convolution(dropout(masked inputs))     2 * filters channels
    y = y[..., :filters] * sigmoid(y[..., filters:])
    outputs = (y + inputs) * sqrt(0.5)
    ```

    (the paper's Convolutional Block Structure; fairseq). The convolution, a
    `WeightNormConv1D`, starts from `ConvS2SInitializer(dropout, gain=4.0)`. The skip
    tensor is the masked input of the block without dropout, projected if its width is
    not `filters`.

    Calls, masks and steps: `layers.sequences`. `residual=False` returns y alone. A
    `ScaledResidual` after it allows attention between the gate and the residual, or a
    residual from an earlier layer.

    Args:
        filters: positive integer, output channels.
        kernel_size: positive integer K, also even.
        padding: "same" (encoder) or "causal" (decoder).
        dropout: rate for the input of the convolution, in [0, 1).
        residual: whether to add the input.
        seed: seed of the dropout, an integer or None.
        folded: True makes all weights in their plain form, see `WeightNormDense`.
        kernel_regularizer, kernel_constraint: of v of the convolution and of the
            projection (of their kernels once folded).

    Output shape: (B, T, filters).

    Example:

    ```python
    block = keras_seqconv.layers.ConvS2SBlock(256, 3, padding="causal", dropout=0.1)
    inputs = keras.random.normal((2, 7, 256))
    outputs = block(inputs)  # (2, 7, 256)
    state = block.get_initial_state(batch_size=2)
    first, state = block.step(inputs[:, :1], state)  # outputs[:, :1]
    ```
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int],
        padding: str = "same",
        dropout: float = 0.0,
        residual: bool = True,
        seed: int | None = None,
        folded: bool = False,
        **kwargs: Unpack[PenaltyOptions],
    ):
        super().__init__(folded, **kwargs)
        self._set_arguments(locals())
        self.convolution = WeightNormConv1D(
            2 * filters,
            kernel_size,
            padding=padding,
            kernel_initializer=ConvS2SInitializer(dropout=dropout, gain=4.0),
            **self._options(),
            name="convolution",
        )
        self.scaled_residual = None
        if residual:
            self.scaled_residual = ScaledResidual(
                **self._options(), name="scaled_residual"
            )
        self._seed_dropout(dropout)

    def build(self, input_shape):
        self._accept(input_shape)
        self.convolution.build(input_shape)
        if self.scaled_residual is not None:
            output_shape = self.compute_output_shape(input_shape)
            self.scaled_residual.build(output_shape, input_shape)

    def call(self, inputs, mask=None, training=None):
        inputs = zero_masked(inputs, mask)
        x = self._dropped(inputs, self.dropout, training)
        return self._gate_and_add(self.convolution(x), inputs)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """{"inputs": zeros (B, K - 1, C)}, see `layers.sequences`."""
        return self.convolution.get_initial_state(batch_size, max_length)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, filters) of n new positions, and the next state."""
        convolved, state = self.convolution.step(inputs, state)
        return self._gate_and_add(convolved, inputs), state

    def _gate_and_add(self, convolved, skip):
        outputs = gated(convolved, "glu")
        return self.scaled_residual(outputs, skip) if self.residual else outputs

    def compute_output_shape(self, input_shape) -> tuple:
        return (*input_shape[:-1], self.filters)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvS2SAttention(_WeightNormalized):
    """Attention of a ConvS2S decoder layer ("multi-step attention").

    ```
    query   = (in_projection(inputs) + target_embeddings) * sqrt(0.5)
    weights = softmax over real source positions of query @ keys^T
    context = sqrt(m) * weights @ values        m = number of real source positions
    outputs = (out_projection(context) + inputs) * sqrt(0.5)
    ```

    (the paper's Multi-step Attention and Normalization Strategy; fairseq). Scores are
    not divided by sqrt(E). Both projections are `WeightNormDense`. A sentence without
    any real source position gets context 0.

    No output depends on other target positions, so decoding in steps needs no state:
    call the layer on the new positions. Beams need no copies of the source: `inputs`
    and `target_embeddings` may have batch B * G, the G rows of a sentence side by side,
    while `keys`, `values` and their mask keep batch B. G follows from the shapes.

    Args:
        folded: see `ConvS2SBlock`.
        kernel_regularizer, kernel_constraint: of v of both projections.

    Call arguments:
        inputs: tensor (B * G, T, C), state of the decoder layer.
        target_embeddings: tensor (B * G, T, E), embedded inputs of the decoder.
        keys: tensor (B, S, E), outputs of the encoder.
        values: tensor (B, S, any width), keys plus embeddings of the source in ConvS2S.
        keys_mask: boolean (B, S), True for real tokens; by default the mask that `keys`
            carries.
        mask: boolean (B * G, T), of `inputs` and `target_embeddings`.
        inputs_mask: mask of `inputs` that Keras passes.

    Output shape: (B * G, T, C).

    Example:

    ```python
    attention = keras_seqconv.layers.ConvS2SAttention()
    decoded, embedded = keras.random.normal((2, 5, 64)), keras.random.normal((2, 5, 32))
    keys, values = keras.random.normal((2, 9, 32)), keras.random.normal((2, 9, 32))
    outputs = attention(decoded, embedded, keys, values)  # (2, 5, 64)
    weights = attention.attention_weights(decoded, embedded, keys)  # (2, 5, 9)
    ```
    """

    def build(self, inputs_shape, target_embeddings_shape, keys_shape, values_shape):
        width = self._accept(inputs_shape)
        embed_dim = check_sequence("target_embeddings", target_embeddings_shape)
        if check_sequence("keys", keys_shape) != embed_dim:
            raise ValueError(
                "`keys` must be as wide as `target_embeddings`. Received: "
                f"keys.shape={tuple(keys_shape)}, "
                f"target_embeddings.shape={tuple(target_embeddings_shape)}"
            )
        self.further_widths = {
            "target_embeddings": embed_dim,
            "keys": embed_dim,
            "values": check_sequence("values", values_shape),
        }
        self.in_projection = self._dense("in_projection", inputs_shape, embed_dim)
        self.out_projection = self._dense("out_projection", values_shape, width)

    def call(
        self,
        inputs,
        target_embeddings,
        keys,
        values,
        keys_mask=None,
        mask=None,
        inputs_mask=None,
    ):
        mask = inputs_mask if mask is None else mask
        inputs = zero_masked(inputs, mask)
        target_embeddings = zero_masked(target_embeddings, mask)
        keys = zero_masked(keys, keys_mask, "keys_mask")
        values = zero_masked(values, keys_mask, "keys_mask")
        return self.attend(inputs, target_embeddings, keys, values, keys_mask)

    def attend(
        self,
        inputs,
        target_embeddings,
        keys,
        values,
        keys_mask=None,
        num_beams: int | None = None,
    ):
        """Attends to keys and values that are finite at masked positions too.

        `num_beams`: G, where the shapes do not tell it.
        """
        check_sequence("values", values.shape, self.further_widths["values"])
        keys_mask = checked_mask("keys_mask", keys_mask, keys.shape[:2])
        weights = self._weights(inputs, target_embeddings, keys, keys_mask, num_beams)
        context = ops.matmul(ops.cast(weights, self.compute_dtype), values)
        if keys_mask is None:
            count = ops.cast(ops.shape(keys)[1], self.wide_dtype)
        else:
            count = ops.broadcast_to(keys_mask, ops.shape(keys)[:2])
            count = ops.sum(ops.cast(count, self.wide_dtype), axis=1)
            count = ops.expand_dims(count, (1, 2))
        context = context * ops.cast(ops.sqrt(count), self.compute_dtype)
        context = unfold_beams(context, inputs)
        return (self.out_projection(context) + inputs) * _SQRT_HALF

    def attention_weights(self, inputs, target_embeddings, keys, keys_mask=None):
        """Returns weights (B * G, T, S) in float32; arguments as in `attend`."""
        self._require_built()
        inputs = ops.cast(inputs, self.compute_dtype)
        target_embeddings = ops.cast(target_embeddings, self.compute_dtype)
        keys = ops.cast(keys, self.compute_dtype)
        keys_mask = checked_mask("keys_mask", keys_mask, keys.shape[:2])
        weights = self._weights(inputs, target_embeddings, keys, keys_mask)
        return ops.cast(unfold_beams(weights, inputs), "float32")

    def _weights(self, inputs, target_embeddings, keys, keys_mask, num_beams=None):
        for name, tensor in (("target_embeddings", target_embeddings), ("keys", keys)):
            check_sequence(name, tensor.shape, self.further_widths[name])
        query = (self.in_projection(inputs) + target_embeddings) * _SQRT_HALF
        return _softmax(fold_beams(query, keys, num_beams), keys, keys_mask)


def _softmax(query, keys, keys_mask):
    """Attention weights (B, T, S), at least float32; 0 for masked keys, even all."""
    # einsum: its gradient takes half the time of `matmul(query, transpose(keys))`
    # where TensorFlow does not compile, and the same under XLA.
    scores = wide(ops.einsum("bte,bse->bts", query, keys))
    if keys_mask is None:
        return softmax(scores)
    mask = ops.expand_dims(keys_mask, axis=1)
    weights = softmax(ops.where(mask, scores, -1e9))
    return ops.where(mask, weights, 0.0)
