"""Text to ids and back.

What all kinds of tokenizers share:

- `tokenize(texts)` -> one list of ids per text, with `end_id` at its end;
  `detokenize(ids)` -> texts; both take and return lists, as sentences differ in length;
- `to_tokens(ids)`, `split(text)` and `join(tokens)`: the way in between;
- `vocabulary_size`, `pad_id`, `start_id`, `end_id`, `unk_id`; `unspellable_ids`: those
  that a search should never choose, as no text comes of them;
- `tokenize_tensor` and `detokenize_tensor` give the very ids and texts of `tokenize`
  and `detokenize` inside a TensorFlow graph, and so inside an export (those of the
  dictionary know no Moses), and `trackables` are the resources that an exported module
  must hold as an attribute; `in_graph`: whether they prepare data, too;
- `save(directory)` and a class method `load(directory)`; `settings.json` there holds
  `kind`, by which `load_tokenizer` finds the class.

| kind          | class                  | in a graph | any text comes back            |
|---------------|------------------------|------------|--------------------------------|
| sentencepiece | SentencePieceTokenizer | yes        | yes, white space folded        |
| words         | WordTokenizer          | yes        | known words with single blanks |
| characters    | CharacterTokenizer     | yes        | if its characters are known    |
| dictionary    | DictionaryTokenizer    | but Moses  | nearly (blanks change)         |

Ids are fairseq's: <s> 0, <pad> 1, </s> 2, <unk> 3; sentences start and end with </s>.
Ids outside the vocabulary count as unknown; an unknown token is spelled `<unk>`. Text
that looks like a special symbol never becomes one. Bytes that are not UTF-8 become
U+FFFD.

White space between words is no content of "sentencepiece", "words" and "dictionary": a
run of it counts as one blank, and none at the ends of a text. Words hold what is not
ASCII (a no-break space); of characters each blank is one. A text of a language model is
content as it is: `keras-seqconv train` has sentencepiece fold nothing of it.
"""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from keras_seqconv.support.arguments import check_boolean, check_choice
from keras_seqconv.tokenizers.common import (
    BOS_ID,
    END_ID,
    PAD_ID,
    SETTINGS,
    SPECIAL_SYMBOLS,
    UNK_ID,
    Tokenizer,
    read_settings,
    valid_texts,
)
from keras_seqconv.tokenizers.dictionary import (
    Dictionary,
    read_alignment_dictionary,
    replace_unknowns,
)
from keras_seqconv.tokenizers.moses_bpe import DictionaryTokenizer
from keras_seqconv.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_seqconv.tokenizers.words import CharacterTokenizer, WordTokenizer

__all__ = [
    "BOS_ID",
    "END_ID",
    "KINDS",
    "PAD_ID",
    "SPECIAL_SYMBOLS",
    "UNK_ID",
    "CharacterTokenizer",
    "Dictionary",
    "DictionaryTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordTokenizer",
    "load_tokenizer",
    "read_alignment_dictionary",
    "replace_unknowns",
    "train_tokenizers",
]

_CLASSES = {
    "sentencepiece_bpe": SentencePieceTokenizer,
    "sentencepiece_unigram": SentencePieceTokenizer,
    "words": WordTokenizer,
    "characters": CharacterTokenizer,
    "moses_bpe": DictionaryTokenizer,
}
KINDS = tuple(_CLASSES)


def train_tokenizers(
    kind: str,
    source_texts: Iterable[str],
    target_texts: Iterable[str],
    *,
    vocabulary_size: int | None = None,
    joint: bool = True,
    **options,
) -> tuple[Tokenizer, Tokenizer]:
    """Trains the tokenizers of source and target.

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
            of `DictionaryTokenizer.train_sides`.

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
    train = _CLASSES[check_choice("kind", kind, KINDS)].train
    check_boolean("joint", joint)
    sides = {"source_texts": source_texts, "target_texts": target_texts}
    options["vocabulary_size"] = vocabulary_size
    if kind == "moses_bpe":
        return tuple(DictionaryTokenizer.train_sides(sides, joint=joint, **options))
    if kind.startswith("sentencepiece"):
        options["model_type"] = kind.removeprefix("sentencepiece_")
    texts = [valid_texts(texts, name) for name, texts in sides.items()]
    if joint:
        return (train(itertools.chain(*texts), **options),) * 2
    return tuple(train(side, **options) for side in texts)


def load_tokenizer(directory: str | os.PathLike) -> Tokenizer:
    """Reads a tokenizer's folder, safely also from unknown sources.

    Raises:
        FileNotFoundError: names the file that is missing.
        ValueError: names the file that is damaged, of a newer format, or of an unknown
            kind.
        ImportError: the kind needs a package that is not installed.
    """
    directory = Path(directory)
    kind = read_settings(directory)["kind"]
    classes = {cls.kind: cls for cls in _CLASSES.values()}
    if not isinstance(kind, str) or kind not in classes:
        raise ValueError(
            f"`kind` in {directory / SETTINGS} must be one of {sorted(classes)}. "
            f"Received: kind={kind!r}"
        )
    return classes[kind].load(directory)
