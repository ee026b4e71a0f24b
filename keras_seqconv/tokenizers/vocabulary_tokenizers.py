"""Plain vocabularies: words between white space, and characters."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from keras_seqconv.support.arguments import check_integer, check_positive_integer
from keras_seqconv.tokenizers import graph
from keras_seqconv.tokenizers.files import (
    read_json,
    read_settings,
    write_json,
    write_settings,
)
from keras_seqconv.tokenizers.special_symbols import (
    BOS_ID,
    END_ID,
    PAD_ID,
    SPECIAL_SYMBOLS,
    UNK_ID,
)
from keras_seqconv.tokenizers.texts import until_end, valid_text, valid_texts

_VOCABULARY_FILE = "vocabulary.json"
# What tf.strings.split splits at: ASCII white space and nothing else.
_WORDS = re.compile(r"[^ \t\n\v\f\r]+")


class _VocabularyTokenizer:
    """What both kinds share: a list of tokens whose ids follow the special symbols.

    `_rule` says what a token must be like, `_blank` what stands between two tokens;
    `split` and `_split_tensor` take a text apart.
    """

    in_graph = True
    pad_id, start_id, end_id, unk_id = PAD_ID, END_ID, END_ID, UNK_ID

    def __init__(self, tokens: Iterable[str]):
        self.tokens = _checked(tokens, self._rule, self._is_token)
        self._symbols = [*SPECIAL_SYMBOLS, *self.tokens]
        first = len(SPECIAL_SYMBOLS)
        self._ids = {token: i for i, token in enumerate(self.tokens, first)}
        self._table = None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int | None = None,
        min_count: int = 1,
    ):
        """The tokens of texts, most frequent first, equal counts by code points.

        Args:
            texts: any iterable; read once.
            vocabulary_size: most ids, the four special ones included; None is no limit.
            min_count: tokens seen less often are unknown.

        Raises:
            ValueError: for a wrong argument; no token is left.
        """
        check_positive_integer("min_count", min_count)
        first = len(SPECIAL_SYMBOLS)
        if vocabulary_size is not None:
            check_integer("vocabulary_size", vocabulary_size, first + 1)
        counts = Counter()
        for text in valid_texts(texts):
            counts.update(cls._split(text))
        found = [token for token, count in counts.items() if count >= min_count]
        found = [token for token in found if token not in SPECIAL_SYMBOLS]
        if not found:
            raise ValueError(
                f"`texts` must hold a token that appears at least {min_count} times. "
                f"Received: none among {counts.total()} tokens"
            )
        found.sort(key=lambda token: (-counts[token], token))
        most = None if vocabulary_size is None else vocabulary_size - first
        return cls(found[:most])

    @property
    def vocabulary_size(self) -> int:
        return len(self._symbols)

    @property
    def unspellable_ids(self) -> list[int]:
        """Ids that are no text: <s> and padding. (The unknown one is `<unk>`.)"""
        return [BOS_ID, PAD_ID]

    @property
    def trackables(self) -> list:
        """Resources of the graph methods, for an exported module to hold."""
        return [self._lookup_table()]

    def tokenize(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of each text, with the end id."""
        get = self._ids.get
        return [
            [*(get(token, UNK_ID) for token in self._split(text)), END_ID]
            for text in valid_texts(texts)
        ]

    def detokenize(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Texts of rows of ids: up to the end id, without padding."""
        return [self.join(self.to_tokens(row)) for row in ids]

    def split(self, text: str) -> list[str]:
        """The tokens of a text."""
        return self._split(valid_text(text, "text"))

    def join(self, tokens: Iterable[str]) -> str:
        """The text of tokens."""
        return self._blank.join(tokens)

    def to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids: up to the end id, without <s> and padding."""
        size = len(self._symbols)
        return [self._symbols[i if 0 <= i < size else UNK_ID] for i in until_end(ids)]

    def tokenize_tensor(self, texts):
        """Ids of `texts` (N,), tf.string: ragged int32 (N, None), end ids included."""
        tokens = self._split_tensor(graph.valid_utf8(texts))
        ids = self._lookup_table().lookup(tokens.values)
        return graph.append_end(tokens.with_values(ids))

    def detokenize_tensor(self, ids):
        """Texts (N,), tf.string, of `ids` (N, L): up to the end id, without padding."""
        import tensorflow as tf

        rows = graph.until_end(ids, self.vocabulary_size)
        tokens = rows.with_values(tf.gather(tf.constant(self._symbols), rows.values))
        return tf.strings.reduce_join(tokens, axis=-1, separator=self._blank)

    def _lookup_table(self):
        if self._table is None:
            self._table = graph.table(self._ids, UNK_ID)
        return self._table

    def save(self, directory: str | os.PathLike):
        """Writes `vocabulary.json`, tokens in the order of ids, and the settings."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / _VOCABULARY_FILE, list(self.tokens))
        write_settings(directory, self.kind, {})

    @classmethod
    def load(cls, directory: str | os.PathLike):
        """Reads what `save` wrote."""
        directory = Path(directory)
        read_settings(directory, cls.kind, ())
        path = directory / _VOCABULARY_FILE
        tokens = read_json(path)
        if not isinstance(tokens, list):
            raise ValueError(f"{path} must hold a list. Received: {tokens!r:.100}")
        try:
            return cls(tokens)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def __reduce__(self):
        # The table cannot travel to another process.
        return type(self), (self.tokens,)


class WordTokenizer(_VocabularyTokenizer):
    """Words: what stands between ASCII white space (a no-break space is no such).

    Words that are not in the vocabulary become `<unk>`, also those that look like
    `<pad>`. The way back puts one blank between words.

    Args:
        tokens: the words in the order of their ids, from 4 on.

    Raises:
        ValueError: a token is no text, empty, holds white space, comes twice or is the
            name of a special symbol.

    Example:

    ```python
    from keras_seqconv.tokenizers import WordTokenizer
    tokenizer = WordTokenizer.train(["the house", "the castle"], min_count=2)
    assert tokenizer.tokenize(["the  house"]) == [[4, 3, 2]]
    assert tokenizer.detokenize([[4, 3, 2]]) == ["the <unk>"]
    ```
    """

    kind = "words"
    _rule = "a word without ASCII white space"
    _blank = " "
    _split = staticmethod(_WORDS.findall)

    @staticmethod
    def _is_token(token: str) -> bool:
        return _WORDS.fullmatch(token) is not None

    @staticmethod
    def _split_tensor(texts):
        import tensorflow as tf

        return tf.strings.split(texts)


class CharacterTokenizer(_VocabularyTokenizer):
    """Characters: Unicode code points, white space and controls included.

    A text of known characters comes back to the byte; others become `<unk>`.

    Args:
        tokens: the characters in the order of their ids, from 4 on.

    Raises:
        ValueError: a token is not one character, or comes twice.

    Example:

    ```python
    from keras_seqconv.tokenizers import CharacterTokenizer
    tokenizer = CharacterTokenizer.train(["ein Haus", "zwei  Häuser"])
    assert tokenizer.detokenize(tokenizer.tokenize([" ein Häuser "])) == [
        " ein Häuser "
    ]
    ```
    """

    kind = "characters"
    _rule = "one character"
    _blank = ""
    _split = staticmethod(list)

    @staticmethod
    def _is_token(token: str) -> bool:
        return len(token) == 1

    @staticmethod
    def _split_tensor(texts):
        import tensorflow as tf

        return tf.strings.unicode_split(texts, "UTF-8")


def _checked(tokens: Iterable[str], rule: str, fits) -> tuple[str, ...]:
    """The tokens, or ValueError that names the first wrong one."""
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise ValueError(f"`tokens` must be a list of texts. Received: {tokens!r}")
    tokens, seen = tuple(tokens), set(SPECIAL_SYMBOLS)
    for token in tokens:
        if not isinstance(token, str) or not fits(token) or _invalid(token):
            raise ValueError(f"A token must be {rule}. Received: {token!r:.100}")
        if token in seen:
            raise ValueError(
                "A token must appear once and be no special symbol. "
                f"Received: {token!r:.100}"
            )
        seen.add(token)
    return tokens


def _invalid(token: str) -> bool:
    return valid_text(token) != token
