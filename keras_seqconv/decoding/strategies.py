"""Choice of the next hypotheses: beams, diverse beams, samples.

A strategy has

- `num_beams`: G;
- `reorders`: whether a beam may go on in another place;
- `optimal`: whether a sentence is done only when no unfinished hypothesis can be among
  the best (so that every beam may end), not when G hypotheses have ended (fairseq);
- `num_first_beams`: how many beams are alive at first;
- `choose(following, scores)` -> `Choice`, from what can follow beams with cumulative
  scores (B, G).
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from keras_seqconv.decoding import array_ops as ops
from keras_seqconv.decoding.next_tokens import NEVER, NextTokens


class Choice(NamedTuple):
    """Choice after a step. Scores are cumulative; -inf marks missing hypotheses.

    scores, parents, tokens: (B, G): the hypotheses that go on, the beam that each
        extends, its new token.
    end_scores, end_parents: (B, E): the hypotheses that end here, in the order in which
        they are kept.
    """

    scores: object
    parents: object
    tokens: object
    end_scores: object
    end_parents: object


@dataclasses.dataclass(frozen=True)
class BeamStrategy:
    """The G best continuations of all beams of a sentence.

    A hypothesis ends when its end token is among the G best candidates of all, as in
    fairseq, or, with `optimal`, always.
    """

    num_beams: int
    optimal: bool = False
    num_first_beams = 1  # all would find the same

    @property
    def reorders(self) -> bool:
        return self.num_beams > 1

    def choose(self, following: NextTokens, scores) -> Choice:
        beams = self.num_beams
        ids, log_probs = following.best(beams)
        count = ids.shape[-1]
        # Beam and token in one axis. The G best of each row are enough: what is beyond
        # them in a row is beyond them in the sentence.
        totals = ops.reshape(scores, (-1, 1)) + log_probs
        totals = ops.reshape(totals, (-1, beams * count))
        going_on, places = ops.top_k(totals, beams)
        ids = ops.reshape(ids, (-1, beams * count))
        ends = scores + ops.reshape(following.end, (-1, beams))
        ends, end_parents = ops.top_k(ends, beams)
        if not self.optimal:
            # The i-th best end is among the G best of all if it reaches the
            # (G - i)-th best that goes on.
            opposite = ops.take(going_on, np.arange(beams, dtype="int32")[::-1], axis=1)
            ends = ops.where(ends >= opposite, ends, NEVER)
        return Choice(
            scores=going_on,
            parents=places // count,
            tokens=ops.take_each(ids, places),
            end_scores=ends,
            end_parents=end_parents,
        )


@dataclasses.dataclass(frozen=True)
class DiverseBeamStrategy:
    """Groups of beams that avoid each other's tokens (Vijayakumar et al., 2018).

    Beam g of every G / n neighbours belongs to group g. A group takes
    strength * (how often earlier groups have a token among their 2 * G / n candidates
    of this step) from the log-probability of that token; scores keep the penalty. As in
    fairseq of 2019, the candidates of all groups are then merged by their rank, and
    where a hypothesis ends its place is taken by the next candidate of any group.
    """

    num_beams: int
    num_groups: int
    strength: float
    optimal: bool = False
    reorders = True

    @property
    def num_first_beams(self) -> int:
        return self.num_groups

    def choose(self, following: NextTokens, scores) -> Choice:
        # By rank, (B, 2 * G).
        scores, parents, tokens = (
            ops.reshape(ops.stack(parts, axis=2), (-1, 2 * self.num_beams))
            for parts in zip(*self._candidates(following, scores), strict=True)
        )
        ends = (tokens == following.end_id) & (scores > NEVER)
        count = scores.shape[1]
        order = ops.where(ends, count, 0) + np.arange(count, dtype="int32")
        _, places = ops.top_k(-ops.cast(order, "float32"), self.num_beams)
        ended = ops.where(ends, scores, NEVER)
        kept = count if self.optimal else self.num_beams
        return Choice(
            scores=ops.take_each(scores, places),
            parents=ops.take_each(parents, places),
            tokens=ops.take_each(tokens, places),
            end_scores=ended[:, :kept],
            end_parents=parents[:, :kept],
        )

    def _candidates(self, following, scores):
        """Scores, parents and tokens (B, 2 * G / n) of each group's candidates."""
        beams, groups = self.num_beams, self.num_groups
        # Enough of a row: earlier groups can push down fewer than that.
        ids, log_probs = _with_end(following, *following.best(2 * beams))
        count = ids.shape[-1]
        ids = ops.reshape(ids, (-1, beams, count))
        log_probs = ops.reshape(log_probs, (-1, beams, count))
        candidates, taken = [], None
        for group in range(groups):
            tokens, of_group = ids[:, group::groups], log_probs[:, group::groups]
            if taken is not None:
                overlap = tokens[:, :, :, None] == taken[:, None, None, :]
                overlap = ops.sum(ops.cast(overlap, "float32"), axis=-1)
                of_group = of_group - self.strength * overlap
            size = beams // groups * count
            totals = ops.reshape(scores[:, group::groups, None] + of_group, (-1, size))
            best, places = ops.top_k(totals, 2 * beams // groups)
            tokens = ops.take_each(ops.reshape(tokens, (-1, size)), places)
            candidates.append((best, places // count * groups + group, tokens))
            chosen = ops.where(best > NEVER, tokens, -1)
            taken = chosen if taken is None else ops.concatenate([taken, chosen], 1)
        return candidates


@dataclasses.dataclass(frozen=True)
class SamplingStrategy:
    """Independent draws from the model's distribution, or from its most likely tokens.

    The `uniforms` of what follows, one number for each draw, decide.

    top_k, top_p: as in `SampleOptions`; `top_k` may be a scalar tensor.
    """

    num_beams: int
    top_k: int | None = None
    top_p: float | None = None
    optimal = False
    reorders = False

    @property
    def num_first_beams(self) -> int:
        return self.num_beams

    def choose(self, following: NextTokens, scores) -> Choice:
        ids, log_probs = self._candidates(following)
        place = _draw(log_probs, following.uniforms)[:, None]
        drawn = ops.take_each(log_probs, place)
        tokens = place if ids is None else ops.take_each(ids, place)
        drawn = ops.reshape(drawn, (-1, self.num_beams)) + scores
        tokens = ops.reshape(tokens, (-1, self.num_beams))
        parents = ops.zeros_like(tokens) + np.arange(self.num_beams, dtype="int32")
        ends = tokens == following.end_id
        return Choice(
            scores=ops.where(ends, NEVER, drawn),
            parents=parents,
            tokens=tokens,
            end_scores=ops.where(ends, drawn, NEVER),
            end_parents=parents,
        )

    def _candidates(self, following):
        """Tokens to draw from (R, k), or None for all; log-probabilities (R, k)."""
        few = isinstance(self.top_k, int) and self.top_p is None
        everything, size = None if few else following.all(), len(following.bias)
        if self.top_k is None and self.top_p is None:
            return None, everything
        if self.top_k is None:
            log_probs, ids = ops.top_k(everything, size)
        elif not isinstance(self.top_k, int):
            # The whole vocabulary stays in its order, as above.
            place = np.arange(size, dtype="int32")
            key = ops.where(self.top_k < size, everything, -place.astype("float32"))
            _, ids = ops.top_k(key, size)
            log_probs = ops.take_each(everything, ids)
            log_probs = ops.where(place < self.top_k, log_probs, NEVER)
        else:
            ids, log_probs = _with_end(following, *following.best(self.top_k))
            log_probs, places = ops.top_k(log_probs, min(self.top_k, ids.shape[-1]))
            ids = ops.take_each(ids, places)
        if self.top_p is not None:
            # Of all tokens that may follow, which need not sum to 1.
            total = ops.sum(ops.exp(everything), axis=-1, keepdims=True)
            probabilities = ops.exp(log_probs)
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            first = np.arange(ids.shape[-1]) == 0
            likely = before < self.top_p * total
            log_probs = ops.where(likely | first, log_probs, NEVER)
        return ids, log_probs


def _with_end(following, ids, log_probs):
    """Candidates (R, k), the end token in front of them."""
    end = ops.full_like(ids[:, :1], following.end_id)
    return (
        ops.concatenate([end, ids], axis=1),
        ops.concatenate([following.end[:, None], log_probs], axis=1),
    )


def _draw(log_probs, uniforms):
    """Places (R,) drawn with probability proportional to exp(log_probs), (R, k).

    The place at which the cumulative sum passes a uniform share (R,) of the total.
    """
    # The only token that may follow, such as the end at the limit, may be unlikely.
    highest = ops.max(log_probs, axis=-1, keepdims=True)
    probabilities = ops.exp(log_probs - ops.where(highest > NEVER, highest, 0.0))
    sums = ops.cumsum(probabilities, axis=-1)
    passed = (sums > uniforms[:, None] * sums[:, -1:]) & (probabilities > 0)
    # Should rounding leave no such place, the most likely token is taken.
    key = ops.where(passed, float("inf"), probabilities)
    return ops.argmax(key, axis=-1)
