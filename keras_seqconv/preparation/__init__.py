"""Corpora of the papers from the files one downloads: `keras-seqconv prepare`.

`recipes` says as data what each recipe reads and does, `pairs` finds the files, reads
their lines and makes tokens of them, and `preparation` does it all in its order.
"""

from keras_seqconv.preparation.preparation import REPORT, prepare
from keras_seqconv.preparation.recipes import (
    TOKENIZERS,
    Recipe,
    corpus,
    iwslt14,
    listing,
    locate,
    wmt14,
    wmt16,
)

__all__ = [
    "REPORT",
    "TOKENIZERS",
    "Recipe",
    "corpus",
    "iwslt14",
    "listing",
    "locate",
    "prepare",
    "wmt14",
    "wmt16",
]
