"""Tokenizers: text to ids and back.

All kinds of tokenizers have:

- `tokenize(texts)` -> one list of ids per text, with `end_id` at its end;
  `detokenize(ids)` -> texts; both take and return lists, as sentences differ in length;
  `text_in_pieces(ids)`: one text as its ids come;
- `to_tokens(ids)`, `split(text)` and `join(tokens)`: the steps in between;
- `vocabulary_size`, `pad_id`, `start_id`, `end_id`, `unk_id`; `unspellable_ids`: ids
  without text, which a search should never choose;
- `tokenize_tensor` and `detokenize_tensor`: the ids and texts of `tokenize` and
  `detokenize` in a TensorFlow graph, and so in an export (the dictionary's have no
  Moses); `trackables`: resources that an exported module must hold as an attribute;
  `in_graph`: whether the graph methods also prepare data;
- `save(directory)`: files for `load_tokenizer`, which finds the class by the `kind` in
  `settings.json`.

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

"sentencepiece", "words" and "dictionary" fold white space between words: a run of it
counts as one blank, and none at the ends of a text. Other blanks than ASCII (a no-break
space) are letters for "words"; "characters" keeps each blank. For language models
`keras-seqconv train` makes sentencepiece fold nothing.
"""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from keras_seqconv.support.arguments import check_boolean, check_choice, public_names
from keras_seqconv.support.files import naming_file, read_bytes, read_lines
from keras_seqconv.tokenizers import common
from keras_seqconv.tokenizers.common import SPECIAL_SYMBOLS as SPECIAL_SYMBOLS
from keras_seqconv.tokenizers.common import CharacterTokenizer as CharacterTokenizer
from keras_seqconv.tokenizers.common import Tokenizer as Tokenizer
from keras_seqconv.tokenizers.common import WordTokenizer as WordTokenizer
from keras_seqconv.tokenizers.dictionary import Dictionary as Dictionary
from keras_seqconv.tokenizers.dictionary import (
    read_alignment_dictionary as read_alignment_dictionary,
)
from keras_seqconv.tokenizers.dictionary import replace_unknowns as replace_unknowns
from keras_seqconv.tokenizers.moses_bpe import (
    DictionaryTokenizer as DictionaryTokenizer,
)
from keras_seqconv.tokenizers.sentencepiece import (
    SentencePieceTokenizer as SentencePieceTokenizer,
)

__dir__ = public_names(globals())

_CLASSES = {
    "sentencepiece_bpe": SentencePieceTokenizer,
    "sentencepiece_unigram": SentencePieceTokenizer,
    "words": WordTokenizer,
    "characters": CharacterTokenizer,
    "moses_bpe": DictionaryTokenizer,
}
KINDS = tuple(_CLASSES)
# Kinds that `read_vocabulary` reads.
VOCABULARIES = ("words", "characters", "sentencepiece")


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
        source_texts, target_texts: iterables, each read once.
        vocabulary_size: number of ids of each tokenizer, required by the sentencepiece
            kinds. For other kinds it is a limit, or None ("moses_bpe": before fillers
            up to a multiple of 8).
        joint: whether to learn one tokenizer from both sides. For "moses_bpe", whose
            sides differ in their language, only the dictionary is joint: there are two
            tokenizers unless the languages are equal. Its merges are always learned
            from both sides.
        **options: options of the kind: of `SentencePieceTokenizer.train` without
            `model_type`, of `WordTokenizer.train`, of `CharacterTokenizer.train`, or
            of `DictionaryTokenizer.train_sides`.

    Raises:
        TypeError: unknown option of the kind.
        ValueError: an option breaks its rule, or the texts are empty.
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
    cls = _CLASSES[check_choice("kind", kind, KINDS)]
    check_boolean("joint", joint)
    sides = {"source_texts": source_texts, "target_texts": target_texts}
    options["vocabulary_size"] = vocabulary_size
    if cls is DictionaryTokenizer:
        return tuple(cls.train_sides(sides, joint=joint, **options))
    if cls is SentencePieceTokenizer:
        options["model_type"] = kind.removeprefix("sentencepiece_")
    texts = [common.valid_texts(texts, name) for name, texts in sides.items()]
    if joint:
        return (cls.train(itertools.chain(*texts), **options),) * 2
    return tuple(cls.train(side, **options) for side in texts)


def read_vocabulary(kind: str, path: str | os.PathLike) -> Tokenizer:
    """A tokenizer of a vocabulary in a file.

    Args:
        kind: "words" or "characters" for a text file with a token a line, in the order
            of the ids, from 4 on; "sentencepiece" for a model of sentencepiece.
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: names the file that is no vocabulary of this kind.
        ImportError: a package is missing (extra `mt`).
    """
    check_choice("kind", kind, VOCABULARIES)
    with naming_file(path, "holds no vocabulary"):
        if kind == "sentencepiece":
            return SentencePieceTokenizer(read_bytes(path))
        return _CLASSES[kind](read_lines(path))


def load_tokenizer(directory: str | os.PathLike) -> Tokenizer:
    """Reads a tokenizer's folder, safely also from unknown sources.

    Raises:
        FileNotFoundError: names the file that is missing.
        ValueError: names the file that is damaged, of a newer format, of an unknown
            kind, or holds a setting that the kind does not have; or the folder whose
            files do not fit the kind.
        ImportError: the kind needs a package that is not installed.
    """
    directory = Path(directory)
    settings = common.read_settings(directory)
    kind = settings["kind"]
    classes = {cls.kind: cls for cls in _CLASSES.values()}
    if not isinstance(kind, str) or kind not in classes:
        raise ValueError(
            f"`kind` in {directory / common.SETTINGS} must be one of "
            f"{sorted(classes)}. Received: kind={kind!r}"
        )
    return classes[kind].from_folder(directory, settings)
