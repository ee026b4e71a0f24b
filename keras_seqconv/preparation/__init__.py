"""Prepare the papers' corpora from downloaded files: `keras-seqconv prepare`.

`recipes` says as data what each recipe reads and does, `pairs` finds the files, reads
their lines and makes tokens of them, and `preparation` does it all in its order.
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
