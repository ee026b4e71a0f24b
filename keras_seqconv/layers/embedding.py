"""Token ids to vectors, and vectors to logits over the vocabulary.

Letters: B batch, T time, E embedding width, V vocabulary size.
"""

import keras
from keras import ops

from keras_seqconv.support.arguments import (
    check_positive_integer,
    known_width,
)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class TokenEmbedding(keras.layers.Layer):
    """A table of vectors, one for each token, that can also be read backwards.

        forwards:  outputs[b, t] = table[ids[b, t]]
        backwards: logits[b, t, v] = x[b, t] . table[v] (+ bias[v])    in float32

    Backwards it is the output matrix that shares its numbers with the input (Press &
    Wolf 2017, Using the Output Embedding to Improve Language Models; fairseq
    `share_decoder_input_output_embed`), and not scaled. Unlike
    `keras.layers.ReversibleEmbedding` it scales, has a bias, gives its logits in
    float32 under every policy, and hands out its transposed table (`output_kernel`).

    Weights: `embeddings` (V, E), normal with standard deviation E^-1/2; `bias` (V,),
    zeros.

    Args:
        vocabulary_size: V.
        embedding_dim: E.
        use_bias: add a bias to the logits.
        embeddings_initializer: instead of the normal distribution above.
        **kwargs: `name`, `dtype` and what else `keras.layers.Layer` accepts.

    Call arguments:
        inputs: integers (B, T) in [0, V); with `reverse=True` a tensor (..., E).
        reverse: go from vectors to logits.

    Output shape: (B, T, E); with `reverse=True` (..., V).

    Raises:
        ValueError: for arguments outside these rules.

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
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = check_positive_integer(
            "vocabulary_size", vocabulary_size
        )
        self.embedding_dim = check_positive_integer("embedding_dim", embedding_dim)
        self.use_bias = use_bias
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        # Ids must not become half-precision numbers on their way in.
        self.autocast = False

    def build(self, inputs_shape=None):
        initializer = self.embeddings_initializer
        if initializer is None:
            initializer = keras.initializers.RandomNormal(
                stddev=self.embedding_dim**-0.5
            )
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.embedding_dim),
            initializer=initializer,
            autocast=False,  # only the rows that are looked up are cast
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.vocabulary_size,),
                initializer="zeros",
                autocast=False,  # added to the logits, which are float32
            )

    def call(self, inputs, reverse: bool = False):
        if reverse:
            return self._logits(inputs)
        rows = ops.take(self.embeddings, ops.cast(inputs, "int32"), axis=0)
        return ops.cast(rows, self.compute_dtype)

    def _logits(self, inputs):
        width = known_width("inputs", inputs.shape)
        rows = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, width))
        table = ops.cast(self.embeddings, self.compute_dtype)
        logits = ops.einsum("ne,ve->nv", rows, table)
        shape = (*ops.shape(inputs)[:-1], self.vocabulary_size)
        return self.to_logits(ops.reshape(logits, shape))

    def to_logits(self, products):
        """Products (..., V) with the table to logits: float32, and the bias added."""
        logits = ops.cast(products, self._logits_dtype)
        return logits if self.bias is None else logits + self.bias

    @property
    def _logits_dtype(self):
        return keras.backend.result_type(self.compute_dtype, "float32")

    def output_kernel(self):
        """The table transposed, (E, V) in the compute dtype.

        Products of few rows with it are twice as fast as with the table itself (80
        rows, E 512, V 10,000, TensorFlow on two cores: 2.0 ms instead of 4.0), so that
        a search makes it once and uses it in every step.
        """
        return ops.transpose(ops.cast(self.embeddings, self.compute_dtype))

    def compute_output_shape(self, inputs_shape, reverse: bool = False):
        if reverse:
            return (*inputs_shape[:-1], self.vocabulary_size)
        return (*inputs_shape, self.embedding_dim)

    def compute_output_spec(self, inputs, reverse: bool = False):
        dtype = self._logits_dtype if reverse else self.compute_dtype
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, dtype=dtype)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "use_bias": self.use_bias,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
        }
