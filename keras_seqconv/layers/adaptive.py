"""Output and input layers whose cost per word falls with its rank.

The vocabulary is sorted by frequency and cut into clusters: the head [0, cutoffs[0])
and one tail [cutoffs[i], cutoffs[i + 1]) for each further cutoff, of ever lower width.

Letters: B batch, T time, N = B * T positions, C channels, V words, L words of a
cluster, D width of a cluster.
"""

from collections.abc import Sequence
from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import LayerOptions, SequenceLayer, zero_masked
from keras_seqconv.ops.fused import log_prob_of_rows, take, wide
from keras_seqconv.support.arguments import check_integer, check_shape, plain


@keras.saving.register_keras_serializable(package="keras_seqconv")
class AdaptiveInput(SequenceLayer):
    """Embedding with fewer numbers for rarer words.

        outputs[b, t] = E_i[ids[b, t] - cutoffs[i - 1]] P_i     i: band of the word

    E_i is a table (words of band i, D_i) with D_i = int(embedding_dim // factor^i), P_i
    a matrix (D_i, output_dim); there is no bias, and band 0 has a matrix too (Baevski
    and Auli 2019, Adaptive Input Representations for Neural Language Modeling, section
    3; fairseq `AdaptiveInput`). The layer computes every band for every position and
    selects one: 4/3 C^2 multiply-adds a position at factor 4, with fixed shapes.

    Args:
        vocabulary_size: words V; ids are sorted by falling frequency.
        output_dim: channels of the outputs.
        cutoffs: first ids of the bands after the first, increasing; V may end them.
        factor: ratio of the widths of successive bands.
        embedding_dim: width of the first band; by default `output_dim`.
        pad_id: id whose outputs are zero, or None.

    Weights, in this order: `embeddings[i]` (words, D_i), normal with standard deviation
    D_i^-1/2, and `projections[i]` (D_i, output_dim), Glorot uniform, for each band i.

    Call arguments:
        inputs: integer tensor (B, T), or of any other rank.

    Output shape: (B, T, output_dim).

    Raises:
        ValueError: the width of a band would be zero.
    """

    def __init__(
        self,
        vocabulary_size: int,
        output_dim: int,
        cutoffs: Sequence[int],
        factor: float = 4.0,
        embedding_dim: int | None = None,
        pad_id: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.supports_masking = False
        self.autocast = False  # half precision would round ids
        if embedding_dim is None:
            embedding_dim = output_dim
        self._set_arguments(locals())
        self.cutoffs = _checked_cutoffs(cutoffs, vocabulary_size)
        if pad_id is not None:
            check_integer("pad_id", pad_id, 0, vocabulary_size - 1)
        self.dims = _widths("embedding_dim", embedding_dim, factor, len(self.cutoffs))

    def build(self, inputs_shape=None):
        self.embeddings, self.projections = [], []
        for band, (first, end) in enumerate(_ranges(self.cutoffs)):
            dim = self.dims[band]
            table = self.add_weight(
                name=f"embeddings_{band}",
                shape=(end - first, dim),
                initializer=keras.initializers.RandomNormal(stddev=dim**-0.5),
                autocast=False,  # only the rows that are looked up are cast
            )
            self.embeddings.append(table)
            shape = (dim, self.output_dim)
            projection = self.add_weight(shape, name=f"projection_{band}")
            self.projections.append(projection)

    def call(self, inputs):
        ids = ops.cast(inputs, "int32")
        outputs, last = None, len(self.cutoffs) - 1
        for band, (first, end) in enumerate(_ranges(self.cutoffs)):
            # Not clipped at both ends: ids outside of the vocabulary are the backend's
            # to refuse.
            rows = ops.maximum(ids - first, 0) if band else ids
            rows = ops.minimum(rows, end - first - 1) if band < last else rows
            vectors = take(self.embeddings[band], rows)
            vectors = ops.matmul(
                ops.cast(vectors, self.compute_dtype),
                ops.cast(self.projections[band], self.compute_dtype),
            )
            inside = ops.expand_dims(ids >= first, -1)
            outputs = ops.where(inside, vectors, outputs) if band else vectors
        if self.pad_id is not None:
            outputs = ops.where((ids == self.pad_id)[..., None], 0.0, outputs)
        return ops.cast(outputs, self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape, self.output_dim)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class AdaptiveSoftmax(SequenceLayer):
    """Softmax over many words that computes rare words only where needed.

        log p(w) = log softmax(x W)[w]                                w < cutoffs[0]
        log p(w) = log softmax(x W)[cutoffs[0] + i]
                   + log softmax(dropout(x P_i) W_i)[w - cutoffs[i]]  w in tail i

    W has one row per word of the head and one per tail; P_i is a matrix (C, D_i) with
    D_i = int(C // factor^(i + 1)); no biases (Grave et al. 2017, Efficient Softmax
    Approximation for GPUs; fairseq `AdaptiveSoftmax`). Unlike fairseq's criterion,
    which passes the padding id to every tail, it trains every word of a tail.

    A call of the layer only applies the input dropout. As the last layer of a model, it
    returns features for `log_prob` and `loss`, and the model never makes a tensor
    (B, T, V).

    Cost: every position computes the head, and only positions whose word is in a tail
    compute its words (up to a last partial block), in eager mode, in graphs, under XLA
    and on JAX: a loop takes blocks of positions, and its hand-written gradient
    recomputes the logits of the block. So only a block's logits exist at a time (2^23,
    or those of 64 positions), and a training step takes 4/3 of the matrix products of a
    step that keeps all logits. The gradient can be taken twice on TensorFlow without
    XLA, otherwise once.

    Args:
        vocabulary_size: words V; ids are sorted by falling frequency.
        cutoffs: sizes of the vocabulary at which clusters end, increasing; V is
            appended unless it ends them.
        factor: ratio of the widths of successive tails.
        dropout: rate of the dropout on the features and between P_i and W_i.
        adaptive_input: an `AdaptiveInput` whose tables replace those of the words
            ("tied weights"); it needs the same vocabulary, cutoffs and factor and
            `embedding_dim` = C. Rows for the tails in W, and P_i, remain.
        tie_projections: whether the transposed projections of `adaptive_input` replace
            P_i.
        seed: seed of the dropout.

    Weights, in this order, all Glorot uniform: `head` (cutoffs[0] + tails, C), when
    tied only the rows for the tails, (tails, C); then for each tail
    `tail_projections[i]` (C, D_i) and `tails[i]` (words, D_i), unless tied.

    Call arguments:
        inputs: features (B, T, C).
        mask: see `layers.sequences`.
        training: whether to apply dropout.

    Output shape: (..., C).

    Raises:
        ValueError: the width of a tail would be zero, or, in `build`, the features
            do not fit `adaptive_input`.

    Example:

    ```python
    layer = keras_seqconv.layers.AdaptiveSoftmax(100_000, cutoffs=(10_000, 40_000))
    features = layer(keras.random.normal((2, 3, 64)))
    labels = keras.ops.array([[5, 20_000, 99_999], [7, 8, 1]])
    loss = layer.loss(features, labels, labels != 1) / 5  # nats per word
    next_word = layer.full_log_prob(features[:, -1])  # (2, 100000)
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        cutoffs: Sequence[int],
        factor: float = 4.0,
        dropout: float = 0.0,
        adaptive_input: AdaptiveInput | None = None,
        tie_projections: bool = False,
        seed: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self.cutoffs = _checked_cutoffs(cutoffs, vocabulary_size)
        if adaptive_input is None and tie_projections:
            raise ValueError(
                "`tie_projections` needs an `adaptive_input` to tie with. "
                "Received: tie_projections=True, adaptive_input=None"
            )
        if not isinstance(adaptive_input, (AdaptiveInput, type(None))):
            raise ValueError(
                "`adaptive_input` must be a layer AdaptiveInput. "
                f"Received: adaptive_input={adaptive_input!r}"
            )
        for name in ("vocabulary_size", "cutoffs", "factor"):
            value = getattr(self, name)
            tied_value = getattr(adaptive_input, name, value)
            if value != tied_value:
                raise ValueError(
                    f"`{name}` must be that of `adaptive_input`. Received: "
                    f"{name}={value}, adaptive_input.{name}={tied_value}"
                )
        self._seed_dropout(dropout)

    def build(self, inputs_shape):
        channels = self._accept(inputs_shape, ndim=None)
        num_tails = len(self.cutoffs) - 1
        dims = _widths("the last axis of `inputs`", channels, self.factor, num_tails, 1)
        tied = self.adaptive_input is not None
        if tied:
            if not self.adaptive_input.built:
                self.adaptive_input.build()
            self._check_width("embedding_dim", channels)
            if self.tie_projections:
                self._check_width("output_dim", channels)
        if num_tails or not tied:
            rows = num_tails + (0 if tied else self.cutoffs[0])
            self.head = self.add_weight((rows, channels), name="head")
        self.tail_projections, self.tails = [], []
        for tail, (first, end) in enumerate(_ranges(self.cutoffs)[1:]):
            if not self.tie_projections:
                shape = (channels, dims[tail])
                projection = self.add_weight(shape, name=f"tail_projection_{tail}")
                self.tail_projections.append(projection)
            if not tied:
                shape = (end - first, dims[tail])
                self.tails.append(self.add_weight(shape, name=f"tail_{tail}"))

    def _check_width(self, name, channels):
        width = getattr(self.adaptive_input, name)
        if width != channels:
            raise ValueError(
                "With tied weights (or projections) the features must be as wide as "
                f"`adaptive_input.{name}`. Received: inputs with {channels} channels, "
                f"{name}={width}"
            )

    def call(self, inputs, mask=None, training=None):
        inputs = zero_masked(inputs, mask)
        return self._dropped(inputs, self.dropout, training)

    def log_prob(self, features, ids, training: bool | None = None):
        """Returns natural log-probabilities of given words.

        Args:
            features: (..., C), outputs of a call of this layer.
            ids: integers (...), one word per position.
            training: whether to apply the dropout of the tails.

        Returns:
            Tensor (...), float32 (float64 under that policy).
        """
        self._require_built()
        ids = ops.convert_to_tensor(ids)
        check_shape("ids", ids, tuple(features.shape[:-1]))
        shape = ops.shape(ids)
        features = ops.cast(features, self.compute_dtype)
        features = ops.reshape(features, (-1, features.shape[-1]))  # (N, C)
        ids = ops.reshape(ops.cast(ids, "int32"), (-1,))
        cluster = ops.zeros_like(ids)
        for first in self.cutoffs[:-1]:
            cluster += ops.cast(ids >= first, "int32")
        order = ops.argsort(cluster)  # the rows of a cluster lie side by side
        labels = ops.where(cluster > 0, self.cutoffs[0] - 1 + cluster, ids)
        rows = ops.arange(ops.shape(ids)[0], dtype="int32")
        number = ops.convert_to_tensor(ops.shape(ids)[0], dtype="int32")
        log_prob = log_prob_of_rows(
            features, self._head_table(), labels, rows, ops.zeros_like(number), number
        )
        for tail in range(len(self.cutoffs) - 1):
            hidden, table = self._tail(features, tail, training)
            log_prob += log_prob_of_rows(
                hidden,
                table,
                ops.where(cluster == tail + 1, ids - self.cutoffs[tail], 0),
                order,
                ops.sum(ops.cast(cluster <= tail, "int32")),
                ops.sum(ops.cast(cluster == tail + 1, "int32")),
            )
        return ops.reshape(log_prob, shape)

    def loss(self, features, labels, sample_weight=None, training: bool | None = None):
        """Returns the sum of the labels' negative log-probabilities, a scalar.

        Divide by the number of words (the sum of `sample_weight`) for the mean.

        Args:
            features: (B, T, C), outputs of a call of this layer.
            labels: integers (B, T).
            sample_weight: boolean or float (B, T); positions of weight 0, such as
                padding, compute no tail. 1 by default.
            training: whether to apply the dropout of the tails.
        """
        if sample_weight is None:
            return -ops.sum(self.log_prob(features, labels, training))
        scored = ops.cast(sample_weight, "bool")
        features = zero_masked(features, scored, "sample_weight")
        log_prob = self.log_prob(features, ops.where(scored, labels, 0), training)
        return -ops.sum(log_prob * ops.cast(sample_weight, log_prob.dtype))

    def full_log_prob(self, features):
        """Returns log-probabilities (..., V) of all words for features (..., C).

        For decoding with few positions: all logits exist at once.
        """
        self._require_built()
        features = ops.cast(features, self.compute_dtype)
        head = _log_softmax(features, self._head_table())
        parts = [head[..., : self.cutoffs[0]]]
        for tail in range(len(self.cutoffs) - 1):
            place = self.cutoffs[0] + tail
            inside = _log_softmax(*self._tail(features, tail, training=False))
            parts.append(inside + head[..., place : place + 1])
        return ops.concatenate(parts, axis=-1)

    def _head_table(self):
        """(cutoffs[0] + tails, C): words of the head, then tails."""
        if self.adaptive_input is None:
            return self._cast(self.head)
        words = self._cast(self.adaptive_input.embeddings[0])
        if len(self.cutoffs) == 1:
            return words
        return ops.concatenate([words, self._cast(self.head)], axis=0)

    def _tail(self, features, tail, training):
        """Inputs (..., D) and table (L, D) of the softmax of a tail."""
        if self.tie_projections:
            projection = ops.transpose(self.adaptive_input.projections[tail + 1])
        else:
            projection = self.tail_projections[tail]
        if self.adaptive_input is None:
            table = self.tails[tail]
        else:
            table = self.adaptive_input.embeddings[tail + 1]
        hidden = ops.matmul(features, self._cast(projection))
        return self._dropped(hidden, self.dropout, training), self._cast(table)

    def _cast(self, weight):
        # A tensor, not a variable: functions with hand-written gradients need it.
        return ops.cast(ops.convert_to_tensor(weight), self.compute_dtype)


def _checked_cutoffs(cutoffs, vocabulary_size):
    """The cutoffs with `vocabulary_size` as the last, or ValueError."""
    cutoffs = plain(cutoffs)
    whole = isinstance(cutoffs, (list, tuple)) and len(cutoffs) > 0
    whole = whole and all(type(cutoff) is int for cutoff in cutoffs)
    if not whole or any(
        first >= second for first, second in zip((0, *cutoffs), cutoffs, strict=False)
    ):
        raise ValueError(
            "`cutoffs` must be increasing positive integers. "
            f"Received: cutoffs={cutoffs!r}"
        )
    if cutoffs[-1] > vocabulary_size:
        raise ValueError(
            "`cutoffs` must not exceed `vocabulary_size`. "
            f"Received: cutoffs={cutoffs!r}, vocabulary_size={vocabulary_size}"
        )
    ends = () if cutoffs[-1] == vocabulary_size else (vocabulary_size,)
    return (*cutoffs, *ends)


def _widths(name, width, factor, number, first=0):
    """int(width // factor^i) for i = first, first + 1, ...; ValueError at 0."""
    widths = [int(width // factor ** (first + i)) for i in range(number)]
    if 0 in widths:
        raise ValueError(
            f"{name} must be at least `factor` to the power of the number of the last "
            f"cluster. Received: a width of {width}, factor={factor}, which leaves "
            f"widths {widths}"
        )
    return widths


def _ranges(cutoffs):
    """First id and end of each cluster."""
    return list(zip((0, *cutoffs[:-1]), cutoffs, strict=True))


def _log_softmax(hidden, table):
    """(..., L), at least float32, from (..., D) and (L, D)."""
    # On processors with float16 TensorFlow's product with "..." is wrong.
    rows = ops.reshape(hidden, (-1, hidden.shape[-1]))
    logits = ops.einsum("nd,ld->nl", rows, table)
    logits = ops.reshape(logits, (*ops.shape(hidden)[:-1], table.shape[0]))
    return ops.log_softmax(wide(logits), axis=-1)
