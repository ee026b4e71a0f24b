"""Tokenizers by the name of their kind: learned from a corpus, read from a folder."""

import functools
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from keras_seqconv.support.arguments import check_boolean, check_choice
from keras_seqconv.tokenizers.common import (
    SETTINGS,
    Tokenizer,
    read_settings,
    valid_texts,
)
from keras_seqconv.tokenizers.moses_bpe import DictionaryTokenizer
from keras_seqconv.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_seqconv.tokenizers.words import CharacterTokenizer, WordTokenizer

_TRAIN = {
    "sentencepiece_bpe": SentencePieceTokenizer.train,
    "sentencepiece_unigram": SentencePieceTokenizer.train,
    "words": WordTokenizer.train,
    "characters": CharacterTokenizer.train,
    "moses_bpe": DictionaryTokenizer.train_joint,
}
KINDS = tuple(_TRAIN)
_CLASSES = {
    cls.kind: cls
    for cls in (
        DictionaryTokenizer,
        SentencePieceTokenizer,
        WordTokenizer,
        CharacterTokenizer,
    )
}


def train_tokenizers(
    kind: str,
    source_texts: Iterable[str],
    target_texts: Iterable[str],
    *,
    vocabulary_size: int | None = None,
    joint: bool = True,
    **options,
) -> tuple[Tokenizer, Tokenizer]:
    """Learns the tokenizers of source and target.

    Args:
        kind: one of `KINDS`.
        source_texts, target_texts: any iterables; each is read once.
        vocabulary_size: ids of each tokenizer. Needed by the sentencepiece kinds; for
            the others at most so many, and None is no limit ("moses_bpe": before the
            fillers up to a multiple of 8).
        joint: learn one tokenizer from both sides. Of "moses_bpe", whose sides differ
            in their language, it is the dictionary that is joint: two tokenizers, the
            same one only if the languages are the same. Its merges are always learned
            from both sides.
        **options: of the kind: those of `SentencePieceTokenizer.train` but for
            `model_type`, of `WordTokenizer.train`, of `CharacterTokenizer.train`, or
            of `DictionaryTokenizer.train_joint` but for `joined_dictionary`.

    Raises:
        TypeError: for an option that the kind does not have.
        ValueError: for a wrong value; the texts hold nothing to learn from.
        ImportError: a package is missing (extra `mt`).

    Example:

    ```python
    from keras_seqconv.tokenizers import train_tokenizers
    source, target = train_tokenizers(
        "words", ["ein Haus"], ["a house"], joint=False, min_count=1
    )
    assert source.detokenize(source.tokenize(["Haus ein"])) == ["Haus ein"]
    ```
    """
    train = _TRAIN[check_choice("kind", kind, KINDS)]
    check_boolean("joint", joint)
    if kind == "moses_bpe":
        return train(
            source_texts,
            target_texts,
            joined_dictionary=joint,
            vocabulary_size=vocabulary_size,
            **options,
        )
    if kind.startswith("sentencepiece"):
        train = functools.partial(train, model_type=kind.removeprefix("sentencepiece_"))
    sources = valid_texts(source_texts, "source_texts")
    targets = valid_texts(target_texts, "target_texts")
    if joint:
        both = itertools.chain(sources, targets)
        return (train(both, vocabulary_size, **options),) * 2
    return tuple(
        train(texts, vocabulary_size, **options) for texts in (sources, targets)
    )


def load_tokenizer(directory: str | os.PathLike) -> Tokenizer:
    """Reads a folder that the `save` of some tokenizer wrote; safe to do to strangers'.

    Raises:
        FileNotFoundError: names the file that is missing.
        ValueError: names the file that is damaged, of a newer format, or of an unknown
            kind.
        ImportError: the kind needs a package that is not installed.
    """
    directory = Path(directory)
    kind = read_settings(directory)["kind"]
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError(
            f"`kind` in {directory / SETTINGS} must be one of {sorted(_CLASSES)}. "
            f"Received: kind={kind!r}"
        )
    return _CLASSES[kind].load(directory)
