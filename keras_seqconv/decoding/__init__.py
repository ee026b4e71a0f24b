"""Decoding: greedy search, beam search, sampling, scoring, ensembles.

The functions take a model; `search` is what they are made of, and takes any function
`step(ids, state) -> (logits, state)`.
"""

from keras_seqconv.decoding.ensemble import Ensemble
from keras_seqconv.decoding.generate import (
    TargetScores,
    beam_search,
    beam_search_hypotheses,
    greedy,
    sample,
    sample_hypotheses,
    score,
)
from keras_seqconv.decoding.next_tokens import Constraints
from keras_seqconv.decoding.options import BeamOptions, SampleOptions, SearchOptions
from keras_seqconv.decoding.search import Hypotheses, search
from keras_seqconv.decoding.strategies import (
    BeamStrategy,
    DiverseBeamStrategy,
    SamplingStrategy,
)

__all__ = [
    "BeamOptions",
    "BeamStrategy",
    "Constraints",
    "DiverseBeamStrategy",
    "Ensemble",
    "Hypotheses",
    "SampleOptions",
    "SamplingStrategy",
    "SearchOptions",
    "TargetScores",
    "beam_search",
    "beam_search_hypotheses",
    "greedy",
    "sample",
    "sample_hypotheses",
    "score",
    "search",
]
