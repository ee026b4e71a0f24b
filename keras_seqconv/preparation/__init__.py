"""Prepare the papers' corpora from downloaded files: `keras-seqconv prepare`.

`recipes` has the files and steps of each recipe as data, `pairs` finds the files, reads
and tokenizes their lines, and `preparation` runs all steps.
"""

from keras_seqconv.preparation.preparation import prepare
from keras_seqconv.preparation.recipes import (
    Recipe,
    corpus,
    iwslt14,
    listing,
    wmt14,
    wmt16,
)

__all__ = ["Recipe", "corpus", "iwslt14", "listing", "prepare", "wmt14", "wmt16"]
