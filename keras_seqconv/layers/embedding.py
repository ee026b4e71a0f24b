"""Embedding of token ids, the way back to logits, and position encodings.

Letters: B batch, T time, E embedding width, V vocabulary size, C channels, n new
positions of a step.
"""

import math
from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    LayerOptions,
    SequenceLayer,
    checked_mask,
    loop_kernel,
    zero_masked,
)
from keras_seqconv.ops.fused import take
from keras_seqconv.support.arguments import check_boolean, check_choice, check_dense


@keras.saving.register_keras_serializable(package="keras_seqconv")
class TokenEmbedding(SequenceLayer):
    """Embedding of tokens whose table can also map back to logits.

        forwards:  outputs[b, t] = table[ids[b, t]]
        backwards: logits[b, t, v] = x[b, t] . table[v] (+ bias[v])    in float32

    Backwards it is the output matrix that shares its weights with the input (Press &
    Wolf 2017, Using the Output Embedding to Improve Language Models; fairseq
    `share_decoder_input_output_embed`), and not scaled. Unlike
    `keras.layers.ReversibleEmbedding` it scales, has a bias, gives its logits in
    float32 under every policy, and multiplies by its transposed table in loops of
    steps (`step_kernel`).

    Weights: `embeddings` (V, E), normal with standard deviation E^-1/2; `bias` (V,),
    zeros.

    Args:
        vocabulary_size: V.
        embedding_dim: E.
        use_bias: add a bias to the logits.
        embeddings_initializer: initializer of the table; by default as above.

    Call arguments:
        inputs: integers (B, T) in [0, V); with `reverse=True` a tensor (..., E).
        reverse: whether to map vectors to logits.
        mask: with `reverse=True`, see `layers.sequences`.

    Output shape: (B, T, E); with `reverse=True` (..., V).

    Example:

    ```python
    embedding = keras_seqconv.layers.TokenEmbedding(1000, 64)
    x = embedding(keras.ops.array([[5, 7, 2]]))  # (1, 3, 64)
    logits = embedding(x, reverse=True)  # (1, 3, 1000)
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        use_bias: bool = False,
        embeddings_initializer=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        # Ids must not become half-precision numbers on their way in.
        self.autocast = False

    def build(self, inputs_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.embedding_dim),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=self.embedding_dim**-0.5),
            autocast=False,  # only the rows that are looked up are cast
        )
        # Added to the logits, which are float32.
        self.bias = self._bias_weight((self.vocabulary_size,), autocast=False)

    def call(self, inputs, reverse: bool = False, mask=None):
        if not check_boolean("reverse", reverse):
            vectors = take(self.embeddings, ops.cast(inputs, "int32"))
            return ops.cast(vectors, self.compute_dtype)
        width = self.embedding_dim
        if inputs.shape[-1] != width:
            raise ValueError(
                f"`inputs` must have {width} channels, `embedding_dim`, to become "
                f"logits. Received: inputs.shape={tuple(inputs.shape)}"
            )
        inputs = zero_masked(inputs, mask)
        vectors = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, width))
        kernel = loop_kernel(self)
        if kernel is None:
            table = ops.cast(self.embeddings, self.compute_dtype)
            logits = ops.einsum("ne,ve->nv", vectors, table)
        else:
            logits = ops.matmul(vectors, kernel)
        shape = (*ops.shape(inputs)[:-1], self.vocabulary_size)
        logits = ops.cast(ops.reshape(logits, shape), self.wide_dtype)
        if self.bias is None:
            return logits
        return logits + ops.cast(self.bias, logits.dtype)  # half under pure policies

    def step_kernel(self):
        """Transposed table, (E, V) in the compute dtype, for `loop_kernels`.

        Products of few rows with it are twice as fast as with the table itself (80
        rows, E 512, V 10,000, TensorFlow on two cores: 2.0 ms instead of 4.0), so a
        search makes it once and uses it in every step.
        """
        return ops.transpose(ops.cast(self.embeddings, self.compute_dtype))

    def compute_output_shape(self, inputs_shape, reverse: bool = False):
        if reverse:
            return (*inputs_shape[:-1], self.vocabulary_size)
        return (*inputs_shape, self.embedding_dim)

    def compute_output_spec(self, inputs, reverse: bool = False, mask=None):
        dtype = self.wide_dtype if reverse else self.compute_dtype
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, dtype=dtype)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class PositionEncoding(SequenceLayer):
    """Adds an encoding of the position to each token.

    Positions count real tokens: with a mask, the position of a token is the number of
    real tokens before it, so that padding on the left shifts nothing, and padding
    becomes zero. For position p and h = C // 2 the encoding is

        kind="sinusoidal", layout="fairseq":
            [sin(q f_0), ..., sin(q f_{h-1}), cos(q f_0), ..., cos(q f_{h-1})]
            q = p + 2, f_i = 10000^(-i / (h-1)); a last channel of zero when C is odd
            (fairseq `SinusoidalPositionalEmbedding`; the first token is number 2)
        kind="sinusoidal", layout="paper":
            [sin(p f_0), cos(p f_0), sin(p f_1), cos(p f_1), ...], C of them
            f_i = 10000^(-2i / C)
            (Vaswani et al. 2017, Attention Is All You Need, section 3.5)
        kind="learned":
            row p of a table (max_length, C)
            (Gehring et al. 2017, Convolutional Sequence to Sequence Learning,
            section 3.1)

    Sinusoids are computed in the graph, in float32, for sequences of any length.

    Args:
        kind: "sinusoidal" or "learned".
        max_length: rows of the learned table, required there; sinusoids have no limit.
        layout: "fairseq" or "paper", for sinusoids.
        embeddings_initializer: for the learned table; by default normal with standard
            deviation C^-1/2.

    Calls, masks and steps: `layers.sequences`; the state is {"position": () int32}, or
    (B,) int32 if each row has its own position.

    Raises:
        ValueError: a sequence is longer than the learned table. With a T that is
            unknown before the graph runs, and in steps, positions beyond the table
            become NaN, because a graph cannot raise an error.

    Example:

    ```python
    layer = keras_seqconv.layers.PositionEncoding()
    outputs = layer(keras.ops.zeros((1, 5, 4)))
    outputs[0, 0]  # [0.909297, 0.0002, -0.416147, 1.0]
    ```
    """

    def __init__(
        self,
        kind: str = "sinusoidal",
        max_length: int | None = None,
        layout: str = "fairseq",
        embeddings_initializer=None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        check_choice("kind", kind, ("sinusoidal", "learned"))
        check_choice("layout", layout, ("fairseq", "paper"))
        if kind == "learned" and max_length is None:
            raise ValueError(
                '`max_length` must be given for kind="learned". '
                "Received: max_length=None"
            )

    def build(self, inputs_shape):
        channels = self._accept(inputs_shape)
        if self.kind == "sinusoidal":
            return
        self._check_length(inputs_shape[1])
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, channels),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=channels**-0.5),
        )

    def call(self, inputs, mask=None):
        check_dense("inputs", inputs)
        length, channels = ops.shape(inputs)[1], inputs.shape[-1]
        self._check_length(length)
        encodings = self._encode(ops.arange(length, dtype="int32"), channels)  # (T, C)
        if mask is None:
            return inputs + encodings
        mask = checked_mask("mask", mask, inputs.shape[:2])
        mask = ops.broadcast_to(mask, ops.shape(inputs)[:2])
        # Counted in float32, exact below 2^24: TensorFlow has no int32 cumsum on GPUs.
        real = ops.cast(mask, "float32")
        tokens_before = ops.cast(ops.cumsum(real, axis=1) - real, "int32")
        encodings = take(encodings, tokens_before)  # (B, T, C)
        return zero_masked(inputs + encodings, mask)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """{"position": 0}; ValueError when `max_length` exceeds the learned table."""
        self._check_length(max_length)
        return {"position": ops.zeros((), dtype="int32")}

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        self._check_step(inputs, state, {"position": (None,)})
        inputs = ops.cast(inputs, self.compute_dtype)
        length, channels = inputs.shape[1:]
        length = ops.shape(inputs)[1] if length is None else length
        self._check_length(length)
        positions = ops.reshape(state["position"], (-1, 1))
        if inputs.shape[1] != 1:
            positions = ops.arange(length, dtype="int32") + positions
        encodings = self._encode(ops.reshape(positions, (-1,)), channels)
        encodings = ops.reshape(encodings, (-1, length, channels))
        return inputs + encodings, {"position": state["position"] + length}

    def _check_length(self, length):
        """Refuse what the learned table cannot hold, if that is known already."""
        if self.kind != "learned" or not isinstance(length, int):
            return
        if length > self.max_length:
            raise ValueError(
                "The sequence must not be longer than `max_length`. Received: "
                f"length={length}, max_length={self.max_length}"
            )

    def _encode(self, positions, channels):
        """positions (T,) int32 -> encodings (T, C) in the compute dtype."""
        if self.kind == "learned":
            # Backends disagree about rows outside the table (error, zero, last row).
            inside = ops.minimum(positions, self.max_length - 1)
            rows = take(self.embeddings, inside)
            rows = ops.cast(rows, self.compute_dtype)
            is_row = ops.expand_dims(positions < self.max_length, 1)
            return ops.where(is_row, rows, float("nan"))
        sinusoids = _fairseq_sinusoids if self.layout == "fairseq" else _paper_sinusoids
        encodings = sinusoids(ops.cast(positions, "float32"), channels)
        return ops.cast(encodings, self.compute_dtype)


def _fairseq_sinusoids(positions, channels):
    """positions (T,) float32 -> (T, C): all sines, all cosines, a zero if C is odd."""
    half = channels // 2
    angles = _angles(positions + 2, [i / max(half - 1, 1) for i in range(half)])
    parts = [ops.sin(angles), ops.cos(angles)]
    if channels % 2:
        parts.append(ops.zeros_like(positions)[:, None])
    return ops.concatenate(parts, axis=-1)


def _paper_sinusoids(positions, channels):
    """positions (T,) float32 -> (T, C): sines and cosines in turn."""
    angles = _angles(positions, [2 * i / channels for i in range((channels + 1) // 2)])
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    length, half = ops.shape(positions)[0], (channels + 1) // 2
    return ops.reshape(pairs, (length, 2 * half))[:, :channels]


def _angles(positions, exponents):
    """positions (T,) over periods 10000^exponents -> (T, number of exponents)."""
    frequencies = [math.pow(10000.0, -exponent) for exponent in exponents]
    frequencies = ops.convert_to_tensor([frequencies], dtype="float32")
    return ops.expand_dims(positions, 1) * frequencies
