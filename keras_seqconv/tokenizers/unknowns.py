"""Source tokens in the place of unknown ones, as fairseq's `--replace-unk`."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from keras_seqconv.tokenizers.files import bad_line, read_text
from keras_seqconv.tokenizers.special_symbols import SPECIAL_SYMBOLS, UNK_ID


def replace_unknowns(
    hypothesis: Sequence[str],
    source: Sequence[str],
    attention,
    alignment_dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Puts the source token with the most attention for each `<unk>`.

    That is fairseq's `--replace-unk`, on tokens before byte pairs are joined. When the
    most attention lies on the source's end, the token is `<eos>`, as there.

    Args:
        hypothesis: tokens without the end symbol.
        source: tokens of the source without the end symbol.
        attention: (L, S) with L >= len(hypothesis); the columns after the source's end
            are padding and play no part.
        alignment_dictionary: source token -> what to write instead of it; see
            `read_alignment_dictionary`.
    """
    candidates = [*source, "<eos>"]
    attention = np.asarray(attention)
    if attention.ndim != 2 or len(attention) < len(hypothesis):
        raise ValueError(
            "`attention` must be of shape (L, S), with a row for each token of the "
            f"hypothesis. Received: shape {attention.shape}, {len(hypothesis)} tokens"
        )
    replaced = list(hypothesis)
    for i, token in enumerate(hypothesis):
        if token == SPECIAL_SYMBOLS[UNK_ID]:
            best = candidates[int(attention[i, : len(candidates)].argmax())]
            replaced[i] = (alignment_dictionary or {}).get(best, best)
    return replaced


def read_alignment_dictionary(path: str | os.PathLike) -> dict[str, str]:
    """Reads lines `source target`; of several for one source, the last counts."""
    pairs = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        words = line.split()
        if len(words) == 1:
            raise bad_line(path, number, f"must be '<source> <target>': {line!r}")
        if words:
            pairs[words[0]] = words[1]
    return pairs
