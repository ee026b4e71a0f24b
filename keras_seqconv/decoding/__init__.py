"""Decoding: greedy search, beam search, sampling, scoring, ensembles.

The functions take a model. The searches take any function `step(ids, state) -> (logits,
state)` as well, in a `StepFunction`.

Letters, in all modules: B sentences, G beams of a sentence, R = B * G rows (the beams
of a sentence adjacent), N returned hypotheses, k candidates of a row, L steps
(the largest possible number of tokens, end token included), P prefix, S source time, T
target time, V vocabulary.
"""

from keras_seqconv.support import imported_when_used, names_in_stub

_HOMES = names_in_stub(__name__, __file__)
__all__ = [*_HOMES]
__getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
