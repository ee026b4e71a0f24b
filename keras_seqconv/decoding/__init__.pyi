# The public names. `__init__.py` imports each at its first use: some need Keras.

from keras_seqconv.decoding.ensemble import Ensemble as Ensemble
from keras_seqconv.decoding.generate import TargetScores as TargetScores
from keras_seqconv.decoding.generate import beam_search as beam_search
from keras_seqconv.decoding.generate import (
    beam_search_hypotheses as beam_search_hypotheses,
)
from keras_seqconv.decoding.generate import greedy as greedy
from keras_seqconv.decoding.generate import sample as sample
from keras_seqconv.decoding.generate import sample_hypotheses as sample_hypotheses
from keras_seqconv.decoding.generate import score as score
from keras_seqconv.decoding.hypotheses import Hypotheses as Hypotheses
from keras_seqconv.decoding.options import BeamOptions as BeamOptions
from keras_seqconv.decoding.options import SampleOptions as SampleOptions
from keras_seqconv.decoding.options import SearchOptions as SearchOptions
from keras_seqconv.decoding.step_function import StepFunction as StepFunction
