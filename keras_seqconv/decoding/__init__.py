"""Decoding: greedy search, beam search, sampling, scoring, ensembles.

The functions take a model. The searches take any function `step(ids, state) -> (logits,
state)` as well, in a `StepFunction`.

Letters, in all modules: B sentences, G beams of a sentence, R = B * G rows (the beams
of a sentence adjacent), N returned hypotheses, k candidates of a row, L steps
(the largest possible number of tokens, end token included), P prefix, S source time, T
target time, V vocabulary.
"""

import typing

from keras_seqconv.decoding.ensemble import Ensemble as Ensemble
from keras_seqconv.decoding.hypotheses import Hypotheses as Hypotheses
from keras_seqconv.decoding.next_tokens import Constraints as Constraints
from keras_seqconv.decoding.options import BeamOptions as BeamOptions
from keras_seqconv.decoding.options import SampleOptions as SampleOptions
from keras_seqconv.decoding.options import SearchOptions as SearchOptions
from keras_seqconv.decoding.strategies import BeamStrategy as BeamStrategy
from keras_seqconv.decoding.strategies import DiverseBeamStrategy as DiverseBeamStrategy
from keras_seqconv.decoding.strategies import SamplingStrategy as SamplingStrategy
from keras_seqconv.support import imported_when_used
from keras_seqconv.support.arguments import public_names

if typing.TYPE_CHECKING:
    from keras_seqconv.decoding.generate import TargetScores as TargetScores
    from keras_seqconv.decoding.generate import beam_search as beam_search
    from keras_seqconv.decoding.generate import (
        beam_search_hypotheses as beam_search_hypotheses,
    )
    from keras_seqconv.decoding.generate import greedy as greedy
    from keras_seqconv.decoding.generate import is_compiled as is_compiled
    from keras_seqconv.decoding.generate import sample as sample
    from keras_seqconv.decoding.generate import sample_hypotheses as sample_hypotheses
    from keras_seqconv.decoding.generate import score as score
    from keras_seqconv.decoding.loops import search as search
    from keras_seqconv.decoding.step_function import StepFunction as StepFunction

# What needs Keras.
_HOMES = {
    **dict.fromkeys(
        (
            "TargetScores", "beam_search", "beam_search_hypotheses", "greedy",
            "is_compiled", "sample", "sample_hypotheses", "score",
        ),
        "generate",
    ),
    "StepFunction": "step_function",
    "search": "loops",
}  # fmt: skip
_here = public_names(globals())

if not typing.TYPE_CHECKING:
    __getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*{*_here(), *_HOMES}]
