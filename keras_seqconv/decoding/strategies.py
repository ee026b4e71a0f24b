"""How the hypotheses that go on are chosen: beams, diverse beams, samples.

Letters: B sentences, G beams of a sentence, R = B * G rows, k candidates of a row.
"""

import dataclasses
from typing import NamedTuple

from keras import ops

from keras_seqconv.decoding.scores import NEVER, NextTokens


class Choice(NamedTuple):
    """What follows a step. Scores are cumulative; -inf marks what does not exist.

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
    fairseq, or always (`keep_all_ends`).
    """

    num_beams: int
    keep_all_ends: bool = False

    @property
    def reorders(self) -> bool:
        """Whether a beam may go on in another place."""
        return self.num_beams > 1

    def of_rows(self, rows) -> "BeamStrategy":
        """This one for some of the rows: the same, because no row has its own."""
        return self

    def first_scores(self, batch_size):
        """(B, G): all beams are the same at first, so one is alive."""
        first = ops.where(ops.arange(self.num_beams) == 0, 0.0, NEVER)
        return ops.zeros((batch_size, 1)) + first

    def choose(self, following: NextTokens, scores, step) -> Choice:
        """Choose from what can follow beams with cumulative scores (B, G)."""
        beams = self.num_beams
        ids, log_probs = following.best(beams)
        count = ids.shape[-1]
        # Beam and token in one axis. The G best of each row are enough: what is beyond
        # them in a row is beyond them in the sentence.
        log_probs = ops.reshape(log_probs, (-1, beams, count))
        totals = ops.reshape(scores[:, :, None] + log_probs, (-1, beams * count))
        living, places = top_k(totals, beams)
        ids = ops.reshape(ids, (-1, beams * count))
        ends = scores + ops.reshape(following.end, (-1, beams))
        ends, end_parents = top_k(ends, beams)
        if not self.keep_all_ends:
            better = ops.cast(living[:, None, :] > ends[:, :, None], "int32")
            rank = ops.arange(beams, dtype="int32") + ops.sum(better, axis=-1)
            ends = ops.where(rank < beams, ends, NEVER)
        return Choice(
            scores=living,
            parents=places // count,
            tokens=ops.take_along_axis(ids, places, axis=1),
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
    keep_all_ends: bool = False
    reorders = True

    def of_rows(self, rows) -> "DiverseBeamStrategy":
        """This one for some of the rows: the same, because no row has its own."""
        return self

    def first_scores(self, batch_size):
        """(B, G): the first beam of every group is alive."""
        first = ops.where(ops.arange(self.num_beams) < self.num_groups, 0.0, NEVER)
        return ops.zeros((batch_size, 1)) + first

    def choose(self, following: NextTokens, scores, step) -> Choice:
        """Choose from what can follow beams with cumulative scores (B, G)."""
        groups = self._groups(following, scores)
        merged = []
        for part in zip(*groups, strict=True):  # scores, parents, tokens
            part = ops.stack(part, axis=2)
            merged.append(ops.reshape(part, (-1, part.shape[1] * part.shape[2])))
        scores, parents, tokens = merged
        ends = (tokens == following.end_id) & (scores > NEVER)
        count = scores.shape[1]
        order = ops.arange(count) + ops.where(ends, count, 0)
        _, places = top_k(-ops.cast(order, "float32"), self.num_beams)
        ended = ops.where(ends, scores, NEVER)
        kept = count if self.keep_all_ends else self.num_beams
        return Choice(
            scores=ops.take_along_axis(scores, places, axis=1),
            parents=ops.take_along_axis(parents, places, axis=1),
            tokens=ops.take_along_axis(tokens, places, axis=1),
            end_scores=ended[:, :kept],
            end_parents=parents[:, :kept],
        )

    def _groups(self, following, scores):
        """Scores, parents and tokens (B, 2 * G / n) of each group's candidates."""
        beams, groups = self.num_beams, self.num_groups
        # Enough of a row: earlier groups can push down fewer than that.
        ids, log_probs = following.best(2 * beams)
        ids = ops.concatenate(
            [ops.full_like(ids[:, :1], following.end_id), ids], axis=1
        )
        log_probs = ops.concatenate([following.end[:, None], log_probs], axis=1)
        count = ids.shape[-1]
        ids = ops.reshape(ids, (-1, beams, count))
        log_probs = ops.reshape(log_probs, (-1, beams, count))
        found, taken = [], None
        for group in range(groups):
            tokens, here = ids[:, group::groups], log_probs[:, group::groups]
            if taken is not None:
                overlap = tokens[:, :, :, None] == taken[:, None, None, :]
                overlap = ops.sum(ops.cast(overlap, "float32"), axis=-1)
                here = here - self.strength * overlap
            size = beams // groups * count
            totals = ops.reshape(scores[:, group::groups, None] + here, (-1, size))
            best, places = top_k(totals, 2 * beams // groups)
            tokens = ops.take_along_axis(ops.reshape(tokens, (-1, size)), places, 1)
            found.append((best, places // count * groups + group, tokens))
            chosen = ops.where(best > NEVER, tokens, -1)
            taken = chosen if taken is None else ops.concatenate([taken, chosen], 1)
        return found


@dataclasses.dataclass(frozen=True)
class SamplingStrategy:
    """Independent draws from the model's distribution, or from its most likely tokens.

    uniforms: (R, L) in [0, 1): one number for each draw.
    top_k: only the k most likely tokens, or None.
    top_p: only the fewest most likely tokens that together have probability p, or None.
        With both, a token must be among either.
    """

    num_beams: int
    uniforms: object
    top_k: int | None = None
    top_p: float | None = None
    reorders = False

    def of_rows(self, rows) -> "SamplingStrategy":
        """This one for some of the rows (r,)."""
        return dataclasses.replace(self, uniforms=ops.take(self.uniforms, rows, axis=0))

    def first_scores(self, batch_size):
        """(B, G): every sample is alive."""
        return ops.zeros((batch_size, self.num_beams))

    def choose(self, following: NextTokens, scores, step) -> Choice:
        """Draw one token for each of the samples with cumulative scores (B, G)."""
        uniforms = ops.take(self.uniforms, step, axis=1)
        ids, log_probs = self._candidates(following)
        place = draw(log_probs, uniforms)[:, None]
        chosen = ops.take_along_axis(log_probs, place, axis=1)
        tokens = place if ids is None else ops.take_along_axis(ids, place, axis=1)
        chosen = ops.reshape(chosen, (-1, self.num_beams)) + scores
        tokens = ops.reshape(tokens, (-1, self.num_beams))
        parents = ops.arange(self.num_beams, dtype="int32") + ops.zeros_like(tokens)
        ends = tokens == following.end_id
        return Choice(
            scores=ops.where(ends, NEVER, chosen),
            parents=parents,
            tokens=tokens,
            end_scores=ops.where(ends, chosen, NEVER),
            end_parents=parents,
        )

    def _candidates(self, following):
        """Tokens to draw from (R, k), or None for all; log-probabilities (R, k)."""
        if self.top_k is None and self.top_p is None:
            return None, following.everything()
        if self.top_k is None:
            log_probs, ids = top_k(following.everything(), len(following.bias))
        else:
            ids, log_probs = following.best(self.top_k)
            end = ops.full_like(ids[:, :1], following.end_id)
            ids = ops.concatenate([end, ids], axis=1)
            log_probs = ops.concatenate([following.end[:, None], log_probs], axis=1)
            count = min(self.top_k, ids.shape[-1])
            log_probs, places = top_k(log_probs, count)
            ids = ops.take_along_axis(ids, places, axis=1)
        if self.top_p is not None:
            probabilities = ops.exp(log_probs)
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            first = ops.arange(ids.shape[-1]) == 0
            log_probs = ops.where((before < self.top_p) | first, log_probs, NEVER)
        return ids, log_probs


def draw(log_probs, uniforms):
    """Places (R,) drawn with probability proportional to exp(log_probs), (R, k).

    The place at which the cumulative sum passes a uniform share (R,) of the total.
    """
    probabilities = ops.exp(log_probs)
    sums = ops.cumsum(probabilities, axis=-1)
    passed = (sums > uniforms[:, None] * sums[:, -1:]) & (probabilities > 0)
    # Should rounding leave no such place, the most likely token is taken.
    key = ops.where(passed, float("inf"), probabilities)
    return ops.cast(ops.argmax(key, axis=-1), "int32")


def top_k(values, k: int):
    """The k largest values of the last axis and their places as int32."""
    values, places = ops.top_k(values, k)
    return values, ops.cast(places, "int32")
