"""Models and dictionaries of other toolkits: fairseq's checkpoints."""

from keras_seqconv.convert.fairseq import from_fairseq as from_fairseq
from keras_seqconv.convert.records import ConversionError as ConversionError
from keras_seqconv.convert.translators import (
    translator_from_fairseq as translator_from_fairseq,
)
