"""Rules of the next token, and its log-probabilities.

Where rules contradict each other, the first of this list holds:

1. at its maximum length a hypothesis ends;
2. a forced token is taken, against the rules below;
3. padding is never taken, nor are suppressed tokens;
4. a hypothesis shorter than the minimum does not end;
5. no n-gram is repeated.

A pass over (R, V) costs as much as a layer of a small decoder. So the best tokens are
found in two stages, and Keras computes no log-softmax: the normalizer is one number per
row. ONNX Runtime, which has a kernel for it, starts from log-probabilities.
"""

from typing import NamedTuple

import numpy as np

from keras_seqconv.decoding import array_ops as ops
from keras_seqconv.decoding.onnx_graph import Value
from keras_seqconv.decoding.options import SearchOptions

NEVER = -float("inf")


class Constraints(NamedTuple):
    """Rules of one search.

    Attributes:
        model: object with the attributes `pad_id`, `start_id`, `end_id` and `unk_id`.
        options: `SearchOptions`.

    In a step also the tensors that there are, see `tasks.rules_of`:
        limits: (R,) int32: tokens of the longest hypothesis, its end not counted.
        prefix: (R, P) int32 or None: first tokens, free at padding. The last column,
            which must be padding, applies to all further steps.
        first_beam: (R,) boolean or None: rows in which an end token of the prefix
            counts.
        uniforms: (R, L) in [0, 1) or None: random numbers of the steps.
    """

    model: object
    options: SearchOptions
    limits: object = None
    prefix: object = None
    first_beam: object = None
    uniforms: object = None

    def next_tokens(self, logits, step, history=None) -> "NextTokens":
        """Applies the rules to the logits of a step.

        Args:
            logits: (R, V), after the temperature.
            step: int or int32 scalar: tokens that the hypotheses have.
            history: (R, L) int32: these tokens; needed to block n-grams.
        """
        model, options = self.model, self.options
        logits = ops.float32_logits(logits)
        if isinstance(logits, Value):
            logits, normalizer = ops.log_softmax(logits), None
            blocks = VocabularyBlocks.of(logits)
        else:
            blocks = VocabularyBlocks.of(logits)
            normalizer = blocks.log_normalizer()
        closed = step >= self.limits
        end = _log_probs(logits[:, model.end_id], normalizer)
        may_end = closed | (step >= options.min_length)
        forced, forced_log_prob = None, None
        if self.prefix is not None:
            last = ops.shape(self.prefix)[1] - 1
            tokens = ops.take(self.prefix, ops.minimum(step, last), axis=1)
            forced = ops.where(tokens == model.pad_id, -1, tokens)
            forced = ops.where(closed, model.end_id, forced)
            column = ops.maximum(forced, 0)[:, None]
            chosen = ops.take_each(logits, column)[:, 0]
            penalty = ops.where(forced == model.unk_id, options.unk_penalty, 0.0)
            forced_log_prob = _log_probs(chosen - penalty, normalizer)
            forced_end = forced == model.end_id
            if self.first_beam is not None:
                forced_end = forced_end & (self.first_beam | closed)
            may_end = ops.where(forced >= 0, forced_end, may_end)
        if options.no_repeat_ngram_size:
            logits = self._without_repeated_ngrams(logits, history, step)
            blocks = VocabularyBlocks.of(logits)
        bias = np.zeros(logits.shape[-1], "float32")
        bias[model.unk_id] -= options.unk_penalty
        bias[[model.pad_id, model.end_id, *options.suppressed_ids]] = NEVER
        return NextTokens(
            logits=logits,
            blocks=blocks,
            normalizer=normalizer,
            bias=bias,
            end=ops.where(may_end, end, NEVER),
            closed=closed,
            forced=forced,
            forced_log_prob=forced_log_prob,
            end_id=model.end_id,
        )

    def _without_repeated_ngrams(self, logits, history, step):
        """Logits (R, V), -inf where a token would repeat an n-gram of `history`."""
        size, pad_id = self.options.no_repeat_ngram_size, self.model.pad_id
        rows = ops.shape(history)[0]
        if size > 1:
            start = ops.full_like(history[:, :1], self.model.start_id)
            history = ops.concatenate([start, history], axis=1)
            step = step + 1
        ends = history[:, size - 1 :]  # the last tokens of all n-grams
        repeated = ops.arange(size - 1, size - 1 + ops.shape(ends)[1])
        repeated = repeated < step
        for place in range(size - 1):
            latest = ops.maximum(step - size + 1 + place, 0)
            latest = ops.take(history, latest, axis=1)
            begins = history[:, place : place - size + 1]
            repeated = repeated & (begins == latest[:, None])
        # Where nothing is to be blocked, padding is, which never counts.
        tokens = ops.where(repeated, ends, pad_id)
        row = ops.arange(rows, dtype="int32")[:, None] + ops.zeros_like(tokens)
        places = ops.reshape(ops.stack([row, tokens], axis=-1), (-1, 2))
        never = ops.full_like(places[:, 0], NEVER, dtype="float32")
        return ops.scatter_update(logits, places, never)


class NextTokens(NamedTuple):
    """Log-probabilities of the next token of every row, all rules applied.

    The end token is kept apart from the others. Built by `Constraints`.

    logits: (R, V), tokens of blocked n-grams at -inf.
    blocks: the same, cut into blocks.
    normalizer: (R,), subtracted from logits for log-probabilities, or None if these
        are log-probabilities.
    bias: (V,) NumPy array added to the log-probabilities; -inf at the end token.
    end: (R,), the log-probability of ending here.
    closed: (R,) boolean, rows that can only end.
    forced: (R,) int32, the token that a row must take, -1 if it is free; or None.
    forced_log_prob: (R,) or None.
    end_id: int.
    uniforms: (R,), random number of each row, or None.
    """

    logits: object
    blocks: "VocabularyBlocks"
    normalizer: object
    bias: np.ndarray
    end: object
    closed: object
    forced: object
    forced_log_prob: object
    end_id: int
    uniforms: object = None

    def best(self, k: int):
        """The k best tokens but the end token: ids (R, k), log-probabilities (R, k)."""
        k = min(k, len(self.bias))
        values, ids = self.blocks.top_k(self.bias, k)
        log_probs = _log_probs(values, self.normalizer)
        log_probs = ops.where(self.closed[:, None], NEVER, log_probs)
        if self.forced is None:
            return ids, log_probs
        # A forced token is the first candidate of its row, and the only one.
        forced = self.forced[:, None]
        first = np.arange(k) == 0
        is_taken = (forced != self.end_id) & first
        forced_log_probs = ops.where(is_taken, self.forced_log_prob[:, None], NEVER)
        ids = ops.where((forced >= 0) & first, forced, ids)
        return ids, ops.where(forced >= 0, forced_log_probs, log_probs)

    def all(self):
        """Log-probabilities of the whole vocabulary, (R, V), the end token included."""
        log_probs = _log_probs(self.logits + self.bias, self.normalizer)
        log_probs = ops.where(self.closed[:, None], NEVER, log_probs)
        ids = np.arange(len(self.bias), dtype="int32")
        if self.forced is not None:
            forced = self.forced[:, None]
            forced_log_probs = ops.where(
                forced == ids, self.forced_log_prob[:, None], NEVER
            )
            log_probs = ops.where(forced >= 0, forced_log_probs, log_probs)
        return ops.where(ids == self.end_id, self.end[:, None], log_probs)


def block_size(vocabulary_size: int) -> int:
    """Columns of a block: a divisor of V if there is one (saves a padded copy).

    The first stage sorts V / columns maxima, the second k * columns values. The search
    asks for k = 10 with five beams, and the sum is smallest at sqrt(V / k): 24 to 57
    for 6,000 to 32,768 words. Below 32 columns the maxima themselves become slower.
    """
    sizes = (*range(64, 31, -1), *range(65, 129))
    return next((size for size in sizes if vocabulary_size % size == 0), 64)


class VocabularyBlocks(NamedTuple):
    """Logits cut along V, with the largest value of each block.

    values: (R, blocks, columns).
    maxima: (R, blocks).
    """

    values: object
    maxima: object

    @classmethod
    def of(cls, logits) -> "VocabularyBlocks":
        """Cut logits (R, V); V must be known."""
        size = block_size(logits.shape[-1])
        count = -(-logits.shape[-1] // size)
        extra = count * size - logits.shape[-1]
        if extra:
            logits = ops.pad(logits, [(0, 0), (0, extra)], constant_values=NEVER)
        values = ops.reshape(logits, (-1, count, size))
        return cls(values, ops.max(values, axis=-1))

    def top_k(self, bias: np.ndarray, k: int):
        """The k largest of logits + bias in each row, ties to the lowest id.

        Exact: an element outside of the k blocks with the largest maxima is preceded
        by k others.

        Args:
            bias: (V,), a constant; best where all but the first values are 0.
            k: int.

        Returns:
            Values (R, k) and ids (R, k), int32.
        """
        count, size = self.values.shape[1:]
        padded = np.zeros((count, size), "float32")
        padded.reshape(-1)[: len(bias)] = bias
        # NaN has no order and may bring padding to the front, where no token is.
        ids = np.minimum(np.arange(count * size, dtype="int32"), len(bias) - 1)
        if k * 4 > count:
            row = ops.reshape(self.values, (-1, count * size)) + padded.reshape(-1)
            values, places = ops.top_k(row, k)
            return values, ops.minimum(places, len(bias) - 1)
        _, chosen = ops.top_k(self._biased_maxima(padded), k)
        if k > 1:
            # In their order in V, so that the second stage breaks ties like the first.
            chosen = ops.sort(chosen, axis=-1)
        inside = ops.take_in_rows(self.values, chosen) + ops.take(padded, chosen)
        values, places = ops.top_k(ops.reshape(inside, (-1, k * size)), k)
        ids = ops.take(ids.reshape(count, size), chosen)
        return values, ops.take_each(ops.reshape(ids, (-1, k * size)), places)

    def log_normalizer(self):
        """log(sum(exp(logits))) of each row, float32 (R,), in Keras.

        Without XLA from the largest probability, exp(largest) / sum(exp(logits)): the
        softmax is one kernel that keeps a row in cache, the sum would be three passes.
        """
        from keras_seqconv.ops.compilation import compiled_by_xla

        count, size = self.values.shape[1:]
        logits = ops.reshape(self.values, (-1, count * size))
        largest = ops.max(self.maxima, axis=-1)
        if compiled_by_xla():
            sums = ops.sum(ops.exp(logits - largest[:, None]), axis=-1)
            return ops.log(sums) + largest
        # It is in the block with the largest logit.
        _, block = ops.top_k(self.maxima, 1)
        shares = ops.reshape(ops.softmax(logits, axis=-1), (-1, count, size))
        share = ops.max(ops.take_in_rows(shares, block), axis=(1, 2))
        return largest - ops.log(share)

    def _biased_maxima(self, bias):
        """Maxima of logits + bias; only blocks up to the last biased are read again."""
        biased = int(np.flatnonzero(bias.any(axis=-1)).max(initial=-1)) + 1
        if not biased:
            return self.maxima
        maxima = ops.max(self.values[:, :biased] + bias[:biased], axis=-1)
        return ops.concatenate([maxima, self.maxima[:, biased:]], axis=1)


def _log_probs(logits, normalizer):
    """Log-probabilities (R,) or (R, n); NaN becomes -inf, which is never chosen.

    NaN comes of logits that are NaN or infinite.
    """
    if normalizer is not None:
        column = len(logits.shape) == 2
        logits = logits - (normalizer[:, None] if column else normalizer)
    return ops.where(ops.isnan(logits), NEVER, logits)
