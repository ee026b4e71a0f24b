"""Decoding: greedy search, beam search, sampling, scoring, ensembles.

The functions take a model; `search` is what they are made of, and takes any function
`step(ids, state) -> (logits, state)`.
"""

from keras_seqconv.decoding.constraints import Constraints, Rules
from keras_seqconv.decoding.ensemble import Ensemble
from keras_seqconv.decoding.generation import (
    TargetScores,
    beam_search,
    beam_search_hypotheses,
    greedy,
    sample,
    sample_hypotheses,
    score,
)
from keras_seqconv.decoding.search import Hypotheses, LengthPenalty, search
from keras_seqconv.decoding.strategies import (
    BeamStrategy,
    DiverseBeamStrategy,
    SamplingStrategy,
)

__all__ = [
    "BeamStrategy",
    "Constraints",
    "DiverseBeamStrategy",
    "Ensemble",
    "Hypotheses",
    "LengthPenalty",
    "Rules",
    "SamplingStrategy",
    "TargetScores",
    "beam_search",
    "beam_search_hypotheses",
    "greedy",
    "sample",
    "sample_hypotheses",
    "score",
    "search",
]
