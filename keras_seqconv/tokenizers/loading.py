"""Any tokenizer back from its folder."""

import os
from pathlib import Path

from keras_seqconv.tokenizers.dictionary_tokenizer import DictionaryTokenizer
from keras_seqconv.tokenizers.files import SETTINGS, read_kind
from keras_seqconv.tokenizers.sentence_piece import SentencePieceTokenizer
from keras_seqconv.tokenizers.vocabulary_tokenizers import (
    CharacterTokenizer,
    WordTokenizer,
)

Tokenizer = (
    DictionaryTokenizer | SentencePieceTokenizer | WordTokenizer | CharacterTokenizer
)
_KINDS = {
    cls.kind: cls
    for cls in (
        DictionaryTokenizer,
        SentencePieceTokenizer,
        WordTokenizer,
        CharacterTokenizer,
    )
}


def load_tokenizer(directory: str | os.PathLike) -> Tokenizer:
    """Reads a folder that the `save` of some tokenizer wrote; safe to do to strangers'.

    Raises:
        FileNotFoundError: names the file that is missing.
        ValueError: names the file that is damaged, of a newer format, or of an unknown
            kind.
        ImportError: the kind needs a package that is not installed.
    """
    directory = Path(directory)
    kind = read_kind(directory)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"`kind` in {directory / SETTINGS} must be one of {sorted(_KINDS)}. "
            f"Received: kind={kind!r}"
        )
    return _KINDS[kind].load(directory)
