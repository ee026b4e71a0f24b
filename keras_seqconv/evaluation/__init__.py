"""Scores of texts and models, and views into trained models.

`plots`, `inspection` and `demo` are imported where they are used: they need extras or
Keras.
"""

from keras_seqconv.evaluation.corpus_scores import COMPARABLE as COMPARABLE
from keras_seqconv.evaluation.corpus_scores import METRICS as METRICS
from keras_seqconv.evaluation.corpus_scores import Comparison as Comparison
from keras_seqconv.evaluation.corpus_scores import Score as Score
from keras_seqconv.evaluation.corpus_scores import bleu_by_length as bleu_by_length
from keras_seqconv.evaluation.corpus_scores import check_metrics as check_metrics
from keras_seqconv.evaluation.corpus_scores import has_spaces as has_spaces
from keras_seqconv.evaluation.corpus_scores import paired_bootstrap as paired_bootstrap
from keras_seqconv.evaluation.corpus_scores import scores as scores
from keras_seqconv.evaluation.corpus_scores import usual_metrics as usual_metrics
from keras_seqconv.evaluation.error_rates import Confusion as Confusion
from keras_seqconv.evaluation.error_rates import ErrorRate as ErrorRate
from keras_seqconv.evaluation.error_rates import confusions as confusions
from keras_seqconv.evaluation.error_rates import error_rate as error_rate
from keras_seqconv.evaluation.perplexity import TextPerplexity as TextPerplexity
from keras_seqconv.evaluation.perplexity import text_perplexity as text_perplexity
from keras_seqconv.evaluation.perplexity import (
    translation_perplexity as translation_perplexity,
)
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())
