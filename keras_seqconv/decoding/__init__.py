"""Decoding: greedy search, beam search, sampling, scoring, ensembles.

The functions take a model. The searches take any function `step(ids, state) -> (logits,
state)` as well, in a `StepFunction`.

Letters, in all modules: B sentences, G beams of a sentence, R = B * G rows (the beams
of a sentence adjacent), N returned hypotheses, k candidates of a row, L steps
(the largest possible number of tokens, end token included), P prefix, S source time, T
target time, V vocabulary.
"""

from keras_seqconv.support import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
