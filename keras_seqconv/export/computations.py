"""What an exported model computes on ids: search, scores, outputs of the encoder.

Graphs of TensorFlow for any number of sentences, made in the scope of the stored
weights. Letters: N sentences, S source time, T target time, n hypotheses, L tokens of
the longest, C channels.
"""

from keras_seqconv import decoding
from keras_seqconv.export.chunks import compiled, in_chunks
from keras_seqconv.export.settings import Settings
from keras_seqconv.export.weights import StoredWeights

# The score of a hypothesis that was not found: JSON has no infinity.
NOT_FOUND = -1e9
# Largest tensor of logits when scoring, in elements.
_LOGITS = 1 << 24


class Computations:
    """Graphs of one model.

    All take ids (N, S) int32 with `lengths` (N,) of real tokens at the left; what is
    right of them is ignored, lengths outside of 0 to S and ids outside of the
    vocabulary (unknown then) harm nobody. Texts of length 0 get no result. Longer ones
    than the settings say are cut, the end token then being the last (a prompt has
    none). Anything else than a length for each row is an error of the server.

    Args:
        model: `EncoderDecoder`, `ConvS2S`, a language model, or an `Ensemble`.
        settings: of the export.
        weights: those of `model`.
    """

    def __init__(self, model, settings: Settings, weights: StoredWeights):
        self.model = model
        self.settings = settings
        self.weights = weights
        models = getattr(model, "models", [model])
        self.translates = hasattr(models[0], "source_embedder")
        self.source_size = model.target_vocabulary_size
        if self.translates:
            self.source_size = min(
                one.source_embedder.tokens.vocabulary_size for one in models
            )

    def search(self, source_ids, lengths, count: int) -> tuple:
        """The best hypotheses: ids (N, n, L) with end tokens, scores (N, n).

        Of a language model `source_ids` are prompts (no end token); empty ones too get
        hypotheses. The first hypothesis of a source of length 0 is empty with score 0.

        Args:
            source_ids, lengths: see the class.
            count: n.
        """
        import tensorflow as tf

        ids, lengths = self._sources(source_ids, lengths)
        pad_id, options = self.model.pad_id, self.settings.search
        none = lengths == 0
        if not self.translates:
            # An empty prompt is a column of padding.
            ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=pad_id)
            lengths = tf.maximum(lengths, 1)
        longest = self._longest(lengths, tf.shape(ids)[1])
        rows = tf.shape(ids)[0]
        found = (
            tf.fill(tf.stack([rows, count, longest]), pad_id),
            tf.fill(tf.stack([rows, count]), NOT_FOUND),
        )
        if isinstance(longest, int):
            found = (tf.ensure_shape(found[0], (None, count, longest)), found[1])
        with self.weights.scope():
            search = self._search_of(count)
            found = in_chunks(
                lengths,
                self.settings.tokens_per_batch // options.num_beams,
                found,
                lambda chosen, width: _padded(
                    search(tf.gather(ids, chosen)[:, :width]), longest, pad_id
                ),
            )
        found_ids, scores = found
        scores = tf.maximum(scores, NOT_FOUND)
        if self.translates:
            first = tf.range(count) == 0
            scores = tf.where(none[:, None] & first, 0.0, scores)
        return found_ids, scores

    def _search_of(self, count):
        """The function of ids (B, W) -> ids (B, n, L), scores (B, n)."""
        options = dict(vars(self.settings.search))
        options["num_hypotheses"] = count
        name = "source_ids" if self.translates else "prefix_ids"

        def search(ids):
            found = decoding.beam_search_hypotheses(
                self.model, **{name: ids}, **options
            )
            return found.ids, found.scores

        if not self.settings.xla:
            return search
        jitted = compiled(search, self.settings.max_source_length)
        return lambda ids: jitted(ids, self.model.pad_id)

    def _longest(self, lengths, width):
        """L: int, or a scalar tensor where it depends on the sources."""
        _, longest = self.settings.search.length_limits(
            lengths, width, self.model.max_target_length
        )
        return longest + 1

    def score(self, target_ids, target_lengths, source_ids=None, lengths=None):
        """Scores (N,) of targets (N, T) with end tokens, of sources (N, S) if any.

        Sources and targets of length 0 count as having the end token only.
        """
        import tensorflow as tf

        model, options = self.model, self.settings.search
        targets, target_lengths = self._ended(
            *self._checked(
                target_ids,
                target_lengths,
                model.target_vocabulary_size,
                self.settings.max_target_length,
            )
        )
        longest = target_lengths
        if source_ids is not None:
            sources, lengths = self._ended(*self._sources(source_ids, lengths))
            lengths = _checked_rows(targets, lengths)
            longest = tf.maximum(longest, lengths)

        def run(chosen, width):
            rows = [None, tf.gather(targets, chosen)[:, :width]]
            if source_ids is not None:
                rows[0] = tf.gather(sources, chosen)[:, :width]
            found = decoding.score(
                model,
                *rows,
                length_penalty=options.length_penalty,
                length_penalty_kind=options.length_penalty_kind,
                normalize=options.normalize,
            )
            return (found.scores,)

        tokens = _LOGITS // model.target_vocabulary_size
        tokens = max(1, min(self.settings.tokens_per_batch, tokens))
        with self.weights.scope():
            initial = (tf.zeros(tf.shape(longest)),)
            (scores,) = in_chunks(longest, tokens, initial, run)
        return tf.maximum(scores, NOT_FOUND)

    def encode(self, source_ids, lengths):
        """Outputs of the encoder (N, S, C) float32, 0 from the end of each source on.

        Of a ConvS2S model those are the keys of its attention. And the lengths (N,).
        """
        import tensorflow as tf

        ids, lengths = self._sources(source_ids, lengths)
        width = tf.shape(ids)[1]
        initial = tf.zeros(tf.stack([tf.shape(ids)[0], width, self._channels()]))

        def run(chosen, chunk_width):
            outputs = self.model.encode(tf.gather(ids, chosen)[:, :chunk_width])[0]
            outputs = tf.cast(outputs, tf.float32)
            inside = tf.sequence_mask(tf.gather(lengths, chosen), chunk_width)
            outputs = tf.where(inside[:, :, None], outputs, 0.0)
            return (tf.pad(outputs, [[0, 0], [0, width - chunk_width], [0, 0]]),)

        with self.weights.scope():
            tokens = self.settings.tokens_per_batch
            return in_chunks(lengths, tokens, (initial,), run)[0], lengths

    def _channels(self) -> int:
        import tensorflow as tf

        with tf.init_scope():
            return self.model.encode(tf.constant([[self.model.end_id]]))[0].shape[-1]

    def _sources(self, ids, lengths):
        """Sources or prompts, made fit for the model, and their lengths."""
        most = self.settings.max_source_length
        return self._checked(ids, lengths, self.source_size, most, self.translates)

    def _checked(self, ids, lengths, vocabulary_size, most: int, end: bool = True):
        """Ids of the vocabulary, padding from `lengths` on, and lengths of 0 to `most`.

        Where rows are cut, their last id is the end token if `end`.
        """
        import tensorflow as tf

        lengths = tf.clip_by_value(_checked_rows(ids, lengths), 0, tf.shape(ids)[1])
        ids = ids[:, :most]
        known = (ids >= 0) & (ids < vocabulary_size)
        ids = tf.where(known, ids, self.model.unk_id)
        places = tf.range(tf.shape(ids)[1])
        if end:
            cut = (lengths > most)[:, None] & (places == most - 1)
            ids = tf.where(cut, self.model.end_id, ids)
        ids = tf.where(places < lengths[:, None], ids, self.model.pad_id)
        return ids, tf.minimum(lengths, most)

    def _ended(self, ids, lengths):
        """The same, where rows of length 0 are the end token."""
        import tensorflow as tf

        ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=self.model.pad_id)
        first = tf.range(tf.shape(ids)[1]) == 0
        ids = tf.where((lengths == 0)[:, None] & first, self.model.end_id, ids)
        return ids, tf.maximum(lengths, 1)


def _checked_rows(ids, lengths):
    """`lengths`, which nothing sees before they are known to be as many as the rows."""
    import tensorflow as tf

    rows = tf.shape(ids)[0]
    same = tf.debugging.assert_equal(
        tf.size(lengths), rows, "All inputs must have one row for each text."
    )
    with tf.control_dependencies([same]):
        return tf.identity(lengths)


def _padded(found, longest, pad_id):
    """Hypotheses with the width of the longest of all chunks."""
    import tensorflow as tf

    ids, scores = found
    if not isinstance(longest, int):
        missing = longest - tf.shape(ids)[2]
        ids = tf.pad(ids, [[0, 0], [0, 0], [0, missing]], constant_values=pad_id)
    return ids, scores
