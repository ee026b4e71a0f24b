"""Position encodings that count real tokens.

Letters: B batch, T time, C channels, n new positions of a step.
"""

import math

import keras
from keras import ops

from keras_seqconv.support.arguments import (
    check_choice,
    check_dense,
    check_positive_integer,
)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class PositionEncoding(keras.layers.Layer):
    """Adds an encoding of the position to each token.

    Positions count real tokens: with a mask, the position of a token is the number of
    real tokens before it, so that padding on the left shifts nothing, and padding gets
    no encoding. For position p and h = C // 2 the encoding is

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
        max_length: rows of the learned table, which needs it; sinusoids have no limit.
        layout: "fairseq" or "paper", for sinusoids.
        embeddings_initializer: of the learned table; normal with standard deviation
            C^-1/2 by default.
        **kwargs: `name`, `dtype` and what else `keras.layers.Layer` accepts.

    Call arguments:
        inputs: tensor (B, T, C).
        mask: boolean (B, T), True for real tokens.

    Input shape: (B, T, C). Output shape: (B, T, C). The mask is kept.

    Raises:
        ValueError: for arguments outside these rules, and for sequences known to be
            longer than `max_length` when learned. Where T is not known before the graph
            runs, positions beyond the table become NaN: a graph cannot raise.

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
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.kind = check_choice("kind", kind, ("sinusoidal", "learned"))
        self.layout = check_choice("layout", layout, ("fairseq", "paper"))
        if max_length is not None:
            check_positive_integer("max_length", max_length)
        elif kind == "learned":
            raise ValueError(
                '`max_length` must be given for kind="learned". '
                "Received: max_length=None"
            )
        self.max_length = max_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                "`inputs` must have shape (batch, time, channels) with known "
                f"channels. Received: inputs.shape={inputs_shape}"
            )
        if self.kind == "sinusoidal":
            return
        self._check_length(inputs_shape[1])
        channels = inputs_shape[-1]
        initializer = self.embeddings_initializer
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=channels**-0.5)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, channels),
            initializer=initializer,
        )

    def call(self, inputs, mask=None):
        check_dense("inputs", inputs)
        length, channels = ops.shape(inputs)[1], inputs.shape[-1]
        self._check_length(length)
        encodings = self._encode(ops.arange(length, dtype="int32"), channels)  # (T, C)
        if mask is None:
            return inputs + encodings
        mask = ops.cast(mask, "bool")
        encodings = ops.take(encodings, _tokens_before(mask), axis=0)  # (B, T, C)
        return inputs + ops.where(mask[..., None], encodings, 0.0)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """State before the first position, for `step`.

        Args:
            batch_size: not used, all rows are at the same position.
            max_length: most positions that the steps will add up to, when known.

        Returns:
            `{"position": () int32}`.

        Raises:
            ValueError: when `max_length` exceeds the rows of the learned table.
        """
        self._check_length(max_length)
        return {"position": ops.zeros((), dtype="int32")}

    def step(self, inputs, state: dict) -> tuple:
        """Encode n >= 1 new positions.

        Args:
            inputs: tensor (B, n, C), real tokens all of them.
            state: what `get_initial_state` or the last `step` returned.

        Returns:
            Outputs (B, n, C), NaN at positions beyond a learned table, and the new
            state.
        """
        inputs = ops.cast(inputs, self.compute_dtype)
        length, channels = ops.shape(inputs)[1], inputs.shape[-1]
        self._check_length(length)
        positions = ops.arange(length, dtype="int32") + state["position"]
        outputs = inputs + self._encode(positions, channels)
        return outputs, {"position": state["position"] + length}

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
            return self._look_up(positions)
        sinusoids = _fairseq_sinusoids if self.layout == "fairseq" else _paper_sinusoids
        encodings = sinusoids(ops.cast(positions, "float32"), channels)
        return ops.cast(encodings, self.compute_dtype)

    def _look_up(self, positions):
        # Backends disagree about rows outside the table (error, zero, last row).
        inside = ops.minimum(positions, self.max_length - 1)
        rows = ops.cast(ops.take(self.embeddings, inside, axis=0), self.compute_dtype)
        return ops.where((positions < self.max_length)[:, None], rows, float("nan"))

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "kind": self.kind,
            "max_length": self.max_length,
            "layout": self.layout,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }


def _tokens_before(mask):
    """mask (B, T) -> (B, T) int32, the number of real tokens before each token."""
    # Counted in float32, exact below 2^24: TensorFlow has no int32 cumsum on GPUs.
    real = ops.cast(mask, "float32")
    return ops.cast(ops.cumsum(real, axis=1) - real, "int32")


def _fairseq_sinusoids(positions, channels):
    """positions (T,) float32 -> (T, C): all sines, all cosines, a zero if C is odd."""
    half = channels // 2
    angles = _angles(positions + 2, [i / max(half - 1, 1) for i in range(half)])
    padding = ops.zeros_like(positions)[:, None]
    parts = [ops.sin(angles), ops.cos(angles)] + [padding] * (channels % 2)
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
    return positions[:, None] * ops.convert_to_tensor([frequencies], dtype="float32")
