"""Tokenizers for the two sides of a corpus, by the name of their kind."""

import inspect
import itertools
from collections.abc import Iterable

from keras_seqconv.support.arguments import check_boolean, check_choice
from keras_seqconv.tokenizers.dictionary_tokenizer import DictionaryTokenizer
from keras_seqconv.tokenizers.loading import Tokenizer
from keras_seqconv.tokenizers.sentence_piece import SentencePieceTokenizer
from keras_seqconv.tokenizers.texts import valid_texts
from keras_seqconv.tokenizers.vocabulary_tokenizers import (
    CharacterTokenizer,
    WordTokenizer,
)

_CLASSES = {
    "sentencepiece_bpe": SentencePieceTokenizer,
    "sentencepiece_unigram": SentencePieceTokenizer,
    "words": WordTokenizer,
    "characters": CharacterTokenizer,
    "moses_bpe": DictionaryTokenizer,
}
KINDS = tuple(_CLASSES)
_MOSES_STEPS = (
    "normalize", "moses", "aggressive_dash_splits", "escape", "lowercase",
)  # fmt: skip


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
        ValueError: for an option that the kind does not have; for a wrong value; the
            texts hold nothing to learn from.
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
    check_choice("kind", kind, KINDS)
    check_boolean("joint", joint)
    _check_options(kind, options)
    options = {"vocabulary_size": vocabulary_size, **options}
    if kind == "moses_bpe":
        return DictionaryTokenizer.train_joint(
            source_texts, target_texts, joined_dictionary=joint, **options
        )
    if _CLASSES[kind] is SentencePieceTokenizer:
        options["model_type"] = kind.removeprefix("sentencepiece_")
    train = _CLASSES[kind].train
    sources = valid_texts(source_texts, "source_texts")
    targets = valid_texts(target_texts, "target_texts")
    if joint:
        tokenizer = train(itertools.chain(sources, targets), **options)
        return tokenizer, tokenizer
    return train(sources, **options), train(targets, **options)


def _check_options(kind: str, options: dict):
    names = _options_of(kind)
    if unknown := sorted(set(options) - set(names)):
        raise ValueError(
            f"Options of the kind {kind!r} are {', '.join(names)}. "
            f"Received: {', '.join(unknown)}"
        )


def _options_of(kind: str) -> list[str]:
    cls = _CLASSES[kind]
    moses = cls is DictionaryTokenizer
    taken = {
        "texts", "source_texts", "target_texts", "vocabulary_size", "model_type",
        "joined_dictionary", "steps",
    }  # fmt: skip
    parameters = inspect.signature(cls.train_joint if moses else cls.train).parameters
    names = [name for name in parameters if name not in taken]
    return names + list(_MOSES_STEPS) * moses
