"""Byte pairs of counted words, learned as `subword-nmt learn-bpe` does."""

import contextlib
import io
from collections.abc import Mapping

from keras_seqconv.extras import require


def learn_codes(counts: Mapping[str, int], merges: int) -> str:
    """The codes file that `subword-nmt learn-bpe -s merges` writes for a text.

    Args:
        counts: occurrences of each word of the text.
        merges: the most pairs to learn; fewer when none is left that comes twice.

    Raises:
        ValueError: no word has two letters.
        ImportError: subword-nmt is missing (extra `mt`).
    """
    if not counts or max(map(len, counts)) < 2:
        raise ValueError(
            "The texts must hold a word of two letters to learn merges. "
            f"Received: {len(counts)} different words"
        )
    learn = require("subword_nmt.learn_bpe", "mt").learn_bpe
    lines = (f"{word} {count}\n" for word, count in counts.items())
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        learn(lines, codes, merges, is_dict=True)
    return codes.getvalue()
