"""Corpora of the papers from the files one downloads: `keras-seqconv prepare`.

| module        | what                                                             |
|---------------|------------------------------------------------------------------|
| `recipes`     | what each recipe reads and does: data                            |
| `files`       | where files lie; their lines, also in archives                   |
| `reading`     | pairs of lines, without markup                                   |
| `text`        | steps on a line: Moses, lower case                               |
| `cleaning`    | which pairs are kept                                             |
| `byte_pairs`  | merges of counted words                                          |
| `workers`     | many processes, one order                                        |
| `stages`      | work that goes on after an interruption                          |
| `preparation` | all of it in its order: `prepare`                                |
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
