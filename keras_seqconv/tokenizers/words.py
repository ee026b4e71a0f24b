"""Plain vocabularies: words between white space, and characters."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from keras_seqconv.support.arguments import check_integer, check_positive_integer
from keras_seqconv.support.files import read_json
from keras_seqconv.tokenizers.common import (
    SPECIAL_SYMBOLS,
    Tokenizer,
    valid_text,
    valid_texts,
)

_VOCABULARY_FILE = "vocabulary.json"


class _VocabularyTokenizer(Tokenizer):
    """A list of tokens, each of which matches `_token`, whose ids begin at 4."""

    def __init__(self, tokens: Iterable[str]):
        if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
            raise ValueError(f"`tokens` must be a list of texts. Received: {tokens!r}")
        self.tokens = tuple(tokens)
        seen = set(SPECIAL_SYMBOLS)
        for token in self.tokens:
            text = isinstance(token, str) and valid_text(token) == token
            fits = text and self._token.fullmatch(token)
            if not fits or token in seen:
                rule = "appear once and be no special symbol" if fits else self._rule
                raise ValueError(f"A token must {rule}. Received: {token!r:.100}")
            seen.add(token)
        ids = {token: i for i, token in enumerate(self.tokens, len(SPECIAL_SYMBOLS))}
        super().__init__((*SPECIAL_SYMBOLS, *self.tokens), ids)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int | None = None,
        min_count: int = 1,
    ):
        """The tokens of texts, most frequent first, equal counts by code points.

        Args:
            texts: iterable, read once.
            vocabulary_size: limit of ids, including four special ones, or None.
            min_count: less frequent tokens are unknown.

        Raises:
            ValueError: an argument breaks its rule, or no token is left.
        """
        check_positive_integer("min_count", min_count)
        first, most = len(SPECIAL_SYMBOLS), None
        if vocabulary_size is not None:
            most = check_integer("vocabulary_size", vocabulary_size, first + 1) - first
        counts = Counter()
        for text in valid_texts(texts):
            counts.update(cls._split(text))
        tokens = [
            token
            for token in sorted(counts, key=lambda token: (-counts[token], token))
            if counts[token] >= min_count and token not in SPECIAL_SYMBOLS
        ]
        if not tokens:
            raise ValueError(
                f"`texts` must hold a token that appears at least {min_count} times. "
                f"Received: none among {counts.total()} tokens"
            )
        return cls(tokens[:most])

    def join(self, tokens: Iterable[str]) -> str:
        """The text of tokens."""
        return self._separator.join(tokens)

    def _join_tensor(self, tokens):
        import tensorflow as tf

        return tf.strings.reduce_join(tokens, axis=-1, separator=self._separator)

    def _files(self) -> dict[str, bytes]:
        text = json.dumps(self.tokens, indent=1, ensure_ascii=False) + "\n"
        return {_VOCABULARY_FILE: text.encode()}

    @staticmethod
    def _read(directory: Path, settings: dict) -> dict:
        return {"tokens": read_json(directory / _VOCABULARY_FILE, list)}


class WordTokenizer(_VocabularyTokenizer):
    """Words between ASCII white space (a no-break space is part of a word).

    Words that are not in the vocabulary become `<unk>`, also those that look like
    `<pad>`. Outputs have one blank between words.

    Args:
        tokens: the words in the order of their ids, from 4 on.

    Raises:
        ValueError: a token is no text, empty, has white space, occurs twice or is the
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
    _rule = "be a word without ASCII white space"
    # What tf.strings.split splits at: ASCII white space and nothing else.
    _token = re.compile(r"[^ \t\n\v\f\r]+")
    _split = staticmethod(_token.findall)
    _separator = " "

    @staticmethod
    def _split_tensor(texts):
        import tensorflow as tf

        return tf.strings.split(texts)


class CharacterTokenizer(_VocabularyTokenizer):
    """Characters: Unicode code points, white space and controls included.

    Texts of known characters are restored to the byte; others become `<unk>`.

    Args:
        tokens: the characters in the order of their ids, from 4 on.

    Raises:
        ValueError: a token is not one character, or occurs twice.

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
    _rule = "be one character"
    _token = re.compile(".", re.DOTALL)
    _split = staticmethod(list)  # faster than `findall`
    _separator = ""

    def tokenize_lines(self, texts: Iterable[str]) -> list[list[int]]:
        if "\n" not in self.tokens:
            return super().tokenize_lines(texts)
        return [ids[:-1] for ids in self.tokenize(f"{text}\n" for text in texts)]

    @staticmethod
    def _split_tensor(texts):
        import tensorflow as tf

        return tf.strings.unicode_split(texts, "UTF-8")
