"""What a hypothesis may and may not say: lengths, prefixes, repetitions, tokens.

Letters: B sentences, G beams of a sentence, R = B * G rows, V vocabulary, L steps.

Where rules contradict each other, the first of this list holds:

1. at its maximum length a hypothesis ends;
2. a forced token is taken, whatever the rules below say;
3. padding is never taken, nor are suppressed tokens;
4. a hypothesis shorter than the minimum does not end;
5. no n-gram is repeated.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_seqconv.decoding.scores import (
    NEVER,
    Blocks,
    NextTokens,
    held,
    log_normalizer,
    without_nan,
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules that are the same for all sentences: fixed when a graph is traced.

    Attributes:
        pad_id, start_id, end_id, unk_id: ids with a meaning.
        min_length: tokens before which a hypothesis cannot end.
        unk_penalty: taken from the log-probability of the unknown token.
        suppressed_ids: tokens that are never chosen.
        no_repeat_ngram_size: n, or 0. No n-gram of a hypothesis, the start token
            included, occurs in it twice. With n = 1 the start token does not count:
            no token is chosen twice.
        temperature: the logits are divided by it.
    """

    pad_id: int = 1
    start_id: int = 2
    end_id: int = 2
    unk_id: int = 3
    min_length: int = 1
    unk_penalty: float = 0.0
    suppressed_ids: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    temperature: float = 1.0

    def bias(self, vocabulary_size: int) -> np.ndarray:
        """What is added to the log-probability of each token but the end token."""
        bias = np.zeros(vocabulary_size, "float32")
        bias[self.unk_id] -= self.unk_penalty
        bias[[self.pad_id, self.end_id, *self.suppressed_ids]] = NEVER
        return bias


class Constraints(NamedTuple):
    """The rules of one search.

    rules: `Rules`.
    limits: (R,) int32: tokens of the longest hypothesis, its end token not counted.
    prefix: (R, P) int32 or None: the tokens to begin with; padding leaves free. Its
        last column, which must be padding, stands for all steps from there on.
    first_beam: (R,) boolean or None: rows in which an end token of the prefix counts.
    """

    rules: Rules
    limits: object
    prefix: object = None
    first_beam: object = None

    def of_rows(self, rows) -> "Constraints":
        """Those of some rows (r,)."""
        tensors = {
            name: ops.take(getattr(self, name), rows, axis=0)
            for name in ("limits", "prefix", "first_beam")
            if getattr(self, name) is not None
        }
        return self._replace(**tensors)

    def next_tokens(self, logits, step, history=None) -> NextTokens:
        """Apply the rules to the logits of a step.

        Args:
            logits: (R, V).
            step: int32 scalar: tokens that the hypotheses have.
            history: (R, L) int32: these tokens; needed to block n-grams.
        """
        rules = self.rules
        logits = held(ops.cast(logits, "float32"))
        if rules.temperature != 1:
            logits = logits / rules.temperature
        blocks = Blocks.of(logits)
        normalizer = log_normalizer(blocks)
        closed = step >= self.limits
        end = without_nan(logits[:, rules.end_id] - normalizer)
        forced, forced_log_prob = None, None
        if self.prefix is not None:
            forced = self._forced(step, closed)
            forced_log_prob = self._forced_log_prob(logits, normalizer, forced)
        end = self._end(end, step, closed, forced)
        if rules.no_repeat_ngram_size:
            logits = block_ngrams(logits, history, step, rules)
            blocks = Blocks.of(logits)
        return NextTokens(
            logits=logits,
            blocks=blocks,
            normalizer=normalizer,
            bias=rules.bias(logits.shape[-1]),
            end=end,
            closed=closed,
            forced=forced,
            forced_log_prob=forced_log_prob,
            end_id=rules.end_id,
        )

    def _end(self, end, step, closed, forced):
        """Log-probability of ending here, `end` where the rules allow it."""
        allowed = closed | (step >= self.rules.min_length)
        if forced is not None:
            ends = forced == self.rules.end_id
            if self.first_beam is not None:
                ends = ends & self.first_beam
            allowed = ops.where(forced >= 0, ends, allowed)
        return ops.where(allowed, end, NEVER)

    def _forced(self, step, closed):
        """The token of the prefix at this step, -1 where it leaves free, (R,)."""
        last = ops.shape(self.prefix)[1] - 1
        tokens = ops.take(self.prefix, ops.minimum(step, last), axis=1)
        free = closed | (tokens == self.rules.pad_id)
        return ops.where(free, -1, tokens)

    def _forced_log_prob(self, logits, normalizer, forced):
        column = ops.maximum(forced, 0)[:, None]
        values = ops.take_along_axis(logits, column, axis=1)[:, 0] - normalizer
        penalty = ops.where(forced == self.rules.unk_id, self.rules.unk_penalty, 0.0)
        return without_nan(values - penalty)


def block_ngrams(logits, history, step, rules: Rules):
    """Logits (R, V) with -inf where a token would repeat an n-gram of `history`."""
    size = rules.no_repeat_ngram_size
    rows = ops.shape(history)[0]
    if size > 1:
        start = ops.full_like(history[:, :1], rules.start_id)
        history = ops.concatenate([start, history], axis=1)
        step = step + 1
    ends = history[:, size - 1 :]  # the last tokens of all n-grams
    repeated = ops.arange(size - 1, size - 1 + ops.shape(ends)[1]) < step
    repeated = ops.broadcast_to(repeated, ops.shape(ends))
    for place in range(size - 1):
        latest = ops.take(history, ops.maximum(step - size + 1 + place, 0), axis=1)
        begins = history[:, place : place - size + 1]
        repeated = repeated & (begins == latest[:, None])
    # Where nothing is to be blocked, padding is, which never counts.
    tokens = ops.where(repeated, ends, rules.pad_id)
    row = ops.arange(rows, dtype="int32")[:, None] + ops.zeros_like(tokens)
    places = ops.reshape(ops.stack([row, tokens], axis=-1), (-1, 2))
    never = ops.full_like(places[:, 0], NEVER, dtype="float32")
    return ops.scatter_update(logits, places, never)


def length_limits(
    lengths,
    width,
    max_length: int,
    ratio: float,
    most: int | None = None,
):
    """int(ratio * S + max_length) for every sentence, at most `most`.

    Args:
        lengths: (B,) int32: S of each sentence, at most `width`.
        width: int, or a scalar tensor in a graph with dynamic shapes.
        max_length: int.
        ratio: float.
        most: int or None.

    Returns:
        Limits (B,) int32, and a limit of them all: int where `width` is one.
    """
    most = np.iinfo("int32").max if most is None else most
    if ratio == 0:
        bound = min(max_length, most)
        return ops.full_like(lengths, bound), bound
    if isinstance(width, int):
        # Python's arithmetic, for all lengths that occur.
        table = [min(int(ratio * size + max_length), most) for size in range(width + 1)]
        return ops.take(ops.convert_to_tensor(table, "int32"), lengths), table[-1]

    def limit(size):
        size = ops.cast(size, "float64") * ratio + float(max_length)
        return ops.minimum(ops.cast(size, "int32"), most)

    return limit(lengths), limit(width)
