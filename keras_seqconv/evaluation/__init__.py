"""Scores of texts and models, and views into trained models.

`plots`, `inspection` and `demo` are imported where they are used: they need extras or
Keras.
"""

from keras_seqconv.evaluation.corpus_scores import (
    COMPARABLE,
    METRICS,
    OF_SYMBOLS,
    Comparison,
    Score,
    bleu_by_length,
    check_metrics,
    has_spaces,
    metric_of,
    paired_bootstrap,
    scores,
    usual_metrics,
)
from keras_seqconv.evaluation.error_rates import (
    Confusion,
    ErrorRate,
    confusions,
    error_rate,
    exact_match,
)
from keras_seqconv.evaluation.perplexity import (
    TextPerplexity,
    text_perplexity,
    translation_perplexity,
)
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())

__all__ = [
    "COMPARABLE", "METRICS", "OF_SYMBOLS", "Comparison", "Confusion", "ErrorRate",
    "Score", "TextPerplexity", "bleu_by_length", "check_metrics", "confusions",
    "error_rate", "exact_match", "has_spaces", "metric_of", "paired_bootstrap",
    "scores", "text_perplexity", "translation_perplexity", "usual_metrics",
]  # fmt: skip
