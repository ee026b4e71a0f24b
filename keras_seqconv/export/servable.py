"""Computations of an export on ids, in graphs of TensorFlow.

Any number of sentences is computed in bounded memory, by a loop over chunks. Letters: N
sentences of a request, B of a chunk and its width W, S source time, T target time, n
hypotheses, L tokens of the longest, C channels.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping

import keras
import tensorflow as tf

from keras_seqconv import decoding
from keras_seqconv.decoding.options import OF_SCORES, SearchOptions
from keras_seqconv.models.configuration import folded
from keras_seqconv.support.arguments import check_boolean, check_integer

# The score of a hypothesis that was not found: JSON has no infinity.
NOT_FOUND = -1e9
LONGEST_SOURCE = 512
# Largest tensor of logits when scoring, in elements.
_LOGITS = 1 << 24


class Servable:
    """Model with the settings of an export, and its computations on ids.

    Ids (N, S) int32 come with `lengths` (N,) of real tokens on the left. Ids to the
    right are ignored, lengths are clipped to 0 to S, and ids outside the vocabulary are
    unknown. Texts of length 0 get no result and score 0. Longer texts than the settings
    allow are cut and keep an end token (a prompt has none). A number of lengths other
    than the rows is an error of the server.

    Args:
        translator: a `Translator` or `LanguageGenerator`.
        search, max_source_length, tokens_per_batch, xla: see `saved_model`.

    Attributes:
        model: the translator's model, without weight normalization.
        options: `BeamOptions`, with `num_hypotheses` as in `translate_n_best`.
        max_source_length: largest number of source tokens with the end, or, for a
            language model, of prompt tokens.
        max_target_length: largest number of scored tokens of a translation (or text)
            with its end.
        variables: weights, without Keras objects, for an exported module to hold.

    Raises:
        ValueError: an option breaks its rule.
    """

    def __init__(
        self,
        translator,
        search: Mapping,
        max_source_length: int | None = None,
        tokens_per_batch: int | None = None,
        xla: bool = False,
    ):
        self.xla = check_boolean("xla", xla)
        self.options = translator.search_options(search)
        if tokens_per_batch is None:
            tokens_per_batch = translator.tokens_per_batch
        self.tokens_per_batch = check_integer("tokens_per_batch", tokens_per_batch, 1)
        if max_source_length is None:
            max_source_length = LONGEST_SOURCE
        # One of them for the end token.
        check_integer("max_source_length", max_source_length, 2)
        longest = self.options.max_length
        limit = max(LONGEST_SOURCE, longest + 1)
        target = translator.model.max_target_length
        self.max_target_length = min(limit, target or limit)
        # An end token follows the longest prompt.
        prompt = min(longest, self.max_target_length - 1)
        limit = getattr(translator, "max_source_length", prompt)
        self.max_source_length = min(max_source_length, limit or max_source_length)
        models = getattr(translator.model, "models", [translator.model])
        models = [folded(model) for model in models]
        self.model = decoding.Ensemble(models) if len(models) > 1 else models[0]
        weights = {id(weight): weight for member in models for weight in member.weights}
        stacks = list(_stacks_of(weights.values()))
        self.variables = [
            tf.Variable(tf.stack([weight.value for weight in stack]), trainable=False)
            for stack in stacks
        ]
        # In it the model computes with the variables; for use in a graph.
        self._scope = functools.partial(_Reading, stacks, self.variables)
        self.translates = self.model.has_source
        self._source_size = self.model.target_vocabulary_size
        if self.translates:
            self._source_size = self.model.source_vocabulary_size

    def search(self, source_ids, lengths) -> dict:
        """The best hypotheses: `ids` (N, n, L) with end tokens, `scores` (N, n).

        For a language model `source_ids` are prompts (no end token), also empty ones.
        The first hypothesis of a source of length 0 is empty with score 0.
        """
        ids, lengths = self._sources(source_ids, lengths)
        pad_id, count = self.model.pad_id, self.options.num_results
        empty_source = lengths == 0
        if not self.translates:
            # An empty prompt is a column of padding.
            ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=pad_id)
            lengths = tf.maximum(lengths, 1)
        rows, width = tf.unstack(tf.shape(ids))
        # A scalar tensor where it depends on the sources.
        limit = self.model.max_target_length
        longest = self.options.length_limits(lengths, width, limit)[1] + 1
        empty = tf.fill(tf.stack([rows, count, longest]), pad_id)
        initial = (empty, tf.fill(tf.stack([rows, count]), NOT_FOUND))
        name = "source_ids" if self.translates else "prefix_ids"

        def search(ids):
            hypotheses = decoding.beam_search_hypotheses(
                self.model, **{name: ids}, options=self.options
            )
            return hypotheses.ids, hypotheses.scores

        if self.xla:
            search = compiled(search, self.max_source_length, pad_id)

        def run(ids):
            hypotheses, scores = search(ids)
            # More is padding: limits are those of the sources without it.
            hypotheses = hypotheses[:, :, :longest]
            missing = [[0, 0], [0, 0], [0, longest - tf.shape(hypotheses)[2]]]
            return tf.pad(hypotheses, missing, constant_values=pad_id), scores

        with self._scope():
            tokens = self.tokens_per_batch // self.options.num_beams
            hypotheses, scores = in_chunks(lengths, tokens, initial, run, ids)
        scores = tf.maximum(scores, NOT_FOUND)
        if self.translates:
            first = tf.range(count) == 0
            scores = tf.where(empty_source[:, None] & first, 0.0, scores)
        return {"ids": hypotheses, "scores": scores}

    def sample(self, prefix_ids, lengths, length, temperature, seed, top_k) -> dict:
        """Texts drawn after prompts: `ids` (N, L), `scores` (N,); see `generate`.

        Values are clipped to their range: a length to that of the export, a temperature
        to 0.01 or more. `top_k` 0 is the whole vocabulary.
        """
        ids, lengths = self._sources(prefix_ids, lengths)
        ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=self.model.pad_id)
        longest = min(self.options.max_length, self.max_target_length - 1)
        length = tf.clip_by_value(length, 1, longest)
        ids, lengths = ids[:, :length], tf.clip_by_value(lengths, 1, length)
        rows = tf.shape(ids)[0]
        # By the seed and the number of a prompt, as `LanguageGenerator.sample` draws.
        uniforms = tf.map_fn(
            lambda number: tf.random.stateless_uniform(
                [length + 1], tf.cast(tf.stack([seed, number]), tf.int64)
            ),
            tf.range(1, rows + 2),  # at least one
            fn_output_signature=tf.float32,
        )
        size = self.model.target_vocabulary_size
        shared = {
            field.name: getattr(self.options, field.name)
            for field in dataclasses.fields(SearchOptions)
        }
        shared |= {
            "max_length": length,
            "temperature": tf.maximum(temperature, 0.01),
            "top_k": tf.where(top_k < 1, size, top_k),
        }

        def run(ids, numbers):
            drawn = decoding.sample_hypotheses(
                self.model,
                prefix_ids=ids,
                seed=tf.gather(uniforms, numbers[:, 0]),
                **shared,
            )
            return drawn.ids[:, 0], drawn.scores[:, 0]

        empty = tf.fill(tf.stack([rows, length + 1]), self.model.pad_id)
        initial, tokens = (empty, tf.fill([rows], NOT_FOUND)), self.tokens_per_batch
        inputs = ids, tf.range(rows)[:, None]
        with self._scope():
            texts, scores = in_chunks(lengths, tokens, initial, run, *inputs)
        return {"ids": texts, "scores": tf.maximum(scores, NOT_FOUND)}

    def score(self, target_ids, target_lengths, source_ids=None, lengths=None) -> dict:
        """`score` (N,) of targets (N, T) with end tokens, of sources (N, S) if any."""
        size = self.model.target_vocabulary_size
        targets, longest = self._checked(
            target_ids, target_lengths, size, self.max_target_length, True
        )
        inputs = [targets]
        if source_ids is not None:
            sources, lengths = self._sources(source_ids, lengths)
            lengths = _checked_rows(targets, lengths)
            empty = (longest == 0) | (lengths == 0)
            longest = tf.where(empty, 0, tf.maximum(longest, lengths))
            inputs.append(sources)

        penalty = {name: getattr(self.options, name) for name in OF_SCORES}

        def run(targets, sources=None):
            return (decoding.score(self.model, sources, targets, **penalty).scores,)

        tokens = max(1, min(self.tokens_per_batch, _LOGITS // size))
        initial = (tf.zeros(tf.shape(longest)),)
        with self._scope():
            (scores,) = in_chunks(longest, tokens, initial, run, *inputs)
        return {"score": tf.maximum(scores, NOT_FOUND)}

    def encode(self, source_ids, lengths) -> dict:
        """`outputs` of the encoder (N, S, C) float32, 0 after each source; `lengths`.

        For a ConvS2S model these are the keys of its attention.
        """
        ids, lengths = self._sources(source_ids, lengths)
        rows, width = tf.unstack(tf.shape(ids))
        with tf.init_scope():
            example = self.model.encode(tf.constant([[self.model.end_id]]))[0]

        def run(ids):
            outputs = tf.cast(self.model.encode(ids)[0], tf.float32)
            return (tf.pad(outputs, [[0, 0], [0, width - tf.shape(ids)[1]], [0, 0]]),)

        initial = (tf.zeros(tf.stack([rows, width, example.shape[-1]])),)
        with self._scope():
            (outputs,) = in_chunks(lengths, self.tokens_per_batch, initial, run, ids)
        inside = tf.sequence_mask(lengths, width)[:, :, None]
        return {"outputs": tf.where(inside, outputs, 0.0), "lengths": lengths}

    def _sources(self, ids, lengths):
        """Sources or prompts, made fit for the model, and their lengths."""
        limit = self.max_source_length
        return self._checked(ids, lengths, self._source_size, limit, self.translates)

    def _checked(self, ids, lengths, vocabulary_size: int, limit: int, end: bool):
        """Ids of the vocabulary, padding from `lengths` on, lengths of 0 to `limit`.

        Where rows are cut, their last id is the end token if `end`.
        """
        lengths = tf.clip_by_value(_checked_rows(ids, lengths), 0, tf.shape(ids)[1])
        ids = ids[:, :limit]
        in_vocabulary = (ids >= 0) & (ids < vocabulary_size)
        ids = tf.where(in_vocabulary, ids, self.model.unk_id)
        positions = tf.range(tf.shape(ids)[1])
        if end:
            cut = (lengths > limit)[:, None] & (positions == limit - 1)
            ids = tf.where(cut, self.model.end_id, ids)
        ids = tf.where(positions < lengths[:, None], ids, self.model.pad_id)
        return ids, tf.minimum(lengths, limit)


def _checked_rows(ids, lengths):
    """`lengths`, which nothing sees before they are known to be as many as the rows."""
    rule = "All inputs must have one row for each text."
    same = tf.debugging.assert_equal(tf.size(lengths), tf.shape(ids)[0], rule)
    with tf.control_dependencies([same]):
        return tf.identity(lengths)


def in_chunks(lengths, tokens: int, initial: tuple, run: Callable, *ids) -> tuple:
    """Results of all sentences, computed for some at a time, the longest first.

    A sentence never waits in a chunk for one that is much longer, and no chunk has more
    than `tokens` tokens, padding included, unless one sentence has.

    Args:
        lengths: (N,) int32; sentences of length 0 keep their initial results.
        tokens: most tokens of a chunk.
        initial: tensors (N, ...) to begin with.
        run: function of ids (B, W), one tensor for each of `ids` -> tensors (B, ...),
            one for each of `initial`.
        *ids: (N, at least W).

    Returns:
        Tensors like `initial`, in the order of `lengths`.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    count = tf.math.count_nonzero(lengths, dtype=tf.int32)

    def body(start, results):
        width = lengths[order[start]]
        rows = tf.maximum(tokens // width, 1)
        chunk = order[start : tf.minimum(start + rows, count)]
        updates = run(*(tf.gather(tensor, chunk)[:, :width] for tensor in ids))
        results = tuple(
            tf.tensor_scatter_nd_update(result, chunk[:, None], update)
            for result, update in zip(results, updates, strict=True)
        )
        return start + tf.size(chunk), results

    _, results = tf.while_loop(
        lambda start, _: start < count,
        body,
        (tf.constant(0), initial),
        parallel_iterations=1,
    )
    return results


def compiled(function: Callable, widest: int, pad_id: int) -> Callable:
    """`function(ids (B, W)) -> tensors (B, ...)`, compiled by XLA.

    Each shape is a compilation: so B and W are rounded up, B to a power of two with
    copies of the first row, W to one of 16, 24, 32, 48, 64, ..., `widest` at most.
    """
    jitted = tf.function(function, jit_compile=True, autograph=False)
    powers = tf.constant([1 << power for power in range(31)])
    widths = sorted(number << power for number in (2, 3) for power in range(3, 28))
    widths = tf.constant([*(width for width in widths if width < widest), widest])

    def run(ids):
        rows, width = tf.unstack(tf.shape(ids))
        wide = tf.reduce_min(tf.where(widths >= width, widths, widths[-1]))
        high = tf.reduce_min(tf.where(rows <= powers, powers, powers[-1]))
        ids = tf.pad(ids, [[0, 0], [0, wide - width]], constant_values=pad_id)
        ids = tf.concat([ids, tf.repeat(ids[:1], high - rows, axis=0)], axis=0)
        return tuple(result[:rows] for result in jitted(ids))

    return run


# --- Weights ---


def _stacks_of(weights) -> Iterable[list]:
    """Lists of weights of one shape, to be read at once.

    Reading a stack copies nothing if its parts begin at multiples of 64 bytes.
    """
    stacks = collections.defaultdict(list)
    for weight in weights:
        size = weight.value.dtype.size * math.prod(weight.shape)
        key = (weight.value.dtype, *weight.shape) if size % 64 == 0 else id(weight)
        stacks[key].append(weight)
    return stacks.values()


class _Reading(keras.StatelessScope):
    """Weights that are read from stacks of them, in the graph in which they are used.

    A loop hands on a tensor from in front of it by three operations a step, a variable
    by none.
    """

    def __init__(self, stacks, variables):
        super().__init__()
        self._slices = {
            id(weight): (variable, index)
            for stack, variable in zip(stacks, variables, strict=True)
            for index, weight in enumerate(stack)
        }
        self._read = {}

    def get_current_value(self, variable):
        if id(variable) not in self._slices:
            return None
        stack, index = self._slices[id(variable)]
        key = tf.compat.v1.get_default_graph(), id(stack)
        if key not in self._read:
            self._read[key] = tf.unstack(stack)
        return self._read[key][index]
