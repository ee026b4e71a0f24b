"""Hypotheses from backpointers, in graphs and, for arrays, in NumPy."""

from typing import NamedTuple

import numpy as np

from keras_seqconv.decoding import array_ops as ops

# In the place of what a loop does not carry: None is no loop variable.
NOTHING = ()


class Hypotheses(NamedTuple):
    """Hypotheses of a search, best first.

    Attributes:
        ids: (B, N, L) int32: tokens without start token, the end token, then padding;
            only padding for hypotheses that do not exist.
        scores: (B, N) float32: sum of the positional scores over the length penalty;
            -inf if there is no hypothesis.
        positional_scores: (B, N, L) float32: natural log-probability of each token,
            penalties included, 0 after the end.
        lengths: (B, N) int32: number of tokens with the end token; 0 for no hypothesis.
        attention: (B, N, L, S) float32 or None: attention of each token to the source,
            0 after the end.
    """

    ids: object
    scores: object
    positional_scores: object
    lengths: object
    attention: object = None


class Records(NamedTuple):
    """Records of the steps.

    backpointers: (L, b, G) int32: G * token + parent.
    sums: (L, b, G) float32: the scores.
    attention: (L, b, G, S + 1) float32 or nothing; a column more, because TensorFlow
        cannot write to empty rows.
    """

    backpointers: object
    sums: object
    attention: object


class Ended(NamedTuple):
    """The N best complete hypotheses of each sentence, all (b, N).

    scores: sums over the length penalty, best first; -inf where there is none.
    sums: of log-probabilities.
    last: int32, the step that chose the end token; -1 for none.
    beams: int32, the beam that it extended.
    """

    scores: object
    sums: object
    last: object
    beams: object


def hypotheses(model, ended: Ended, records: Records, tokens, beams) -> Hypotheses:
    """The hypotheses, given their tokens and the beams these extended, (L, B, N)."""
    step = ops.cumsum(ops.ones_like(tokens), axis=0) - 1
    inside, ends = step < ended.last, step == ended.last
    ids = ops.where(inside, tokens, ops.where(ends, model.end_id, model.pad_id))
    # The sum before a step is that of the beam which the step extends.
    before = ops.take_along_axis(records.sums[:-1], beams[1:], axis=2)
    none = ops.zeros_like(ended.sums)[None]
    after = ops.concatenate([before, none], axis=0)
    before = ops.concatenate([none, before], axis=0)
    after = ops.where(ends, ended.sums, after)
    positional = ops.where(inside | ends, after - before, 0.0)
    attention = None
    if records.attention is not NOTHING:
        attention = ops.take_along_axis(records.attention, beams[..., None], axis=2)
        attention = ops.where((inside | ends)[..., None], attention[..., :-1], 0.0)
        attention = ops.transpose(attention, (1, 2, 0, 3))
    return Hypotheses(
        ids=ops.transpose(ids, (1, 2, 0)),
        scores=ended.scores,
        positional_scores=ops.transpose(positional, (1, 2, 0)),
        lengths=ended.last + 1,
        attention=attention,
    )


def follow(backpointers: np.ndarray, ended: Ended, num_beams: int) -> tuple:
    """Tokens, and the beams that they were chosen from, (L, B, N)."""
    beams, shape = ended.beams, (len(backpointers), *ended.beams.shape)
    tokens, chosen_from = (np.empty(shape, beams.dtype) for _ in range(2))
    for step in reversed(range(len(backpointers))):
        link = np.take_along_axis(backpointers[step], beams, axis=1)
        beams = np.where(step < ended.last, link % num_beams, beams)
        tokens[step], chosen_from[step] = link // num_beams, beams
    return tokens, chosen_from
