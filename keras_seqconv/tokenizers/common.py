"""Base of the tokenizers, plain vocabularies, special symbols, and checks of texts."""

import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from keras_seqconv.support import tf
from keras_seqconv.support.arguments import check_integer
from keras_seqconv.support.files import check_version, read_json, write_file, write_json

# The symbols that every vocabulary begins with; fairseq's, in its order.
SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
BOS_ID, PAD_ID, END_ID, UNK_ID = range(4)
SETTINGS = "settings.json"
_VOCABULARY_FILE = "vocabulary.json"
_FORMAT_VERSION = 1


class Tokenizer:
    """Maps text to ids and back; `keras_seqconv.tokenizers` has the contract.

    A kind defines how a valid text is split and joined, in Python (`_split`, `join`)
    and in a graph (`_split_tensor`, `_join_tensor`), its files and settings (`_files`,
    `_settings`), and its arguments from them (`_read`).

    Args:
        symbols: symbol of every id.
        ids: symbol -> id, for symbols that a text may contain.
    """

    kind: str
    in_graph = True
    pad_id, start_id, end_id, unk_id = PAD_ID, END_ID, END_ID, UNK_ID
    # Ids without text: <s> and padding. (The unknown id is `<unk>`.)
    unspellable_ids = [BOS_ID, PAD_ID]
    _settings: tuple[str, ...] = ()  # attributes that `settings.json` holds

    def __init__(self, symbols: Iterable[str], ids: Mapping[str, int]):
        self._symbols, self._ids = tuple(symbols), ids
        self.vocabulary_size = len(self._symbols)

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """Returns the ids of each text, with the end id."""
        get, split = self._ids.get, self._split
        return [
            [*(get(token, UNK_ID) for token in split(text)), END_ID]
            for text in valid_texts(texts)
        ]

    def detokenize(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Returns the texts of rows of ids: up to the end id, without padding."""
        return [self.join(self.to_tokens(row)) for row in ids]

    def split(self, text: str) -> list[str]:
        """Returns the tokens of a text; unknown tokens are unchanged."""
        return self._split(valid_text(text, "text"))

    def tokenize_lines(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of each line of running text, for language models.

        A line ends with the end id, unless a line break is a token.
        """
        return self.tokenize(texts)

    def to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids: up to the end id, without <s> and padding.

        Ids outside the vocabulary are the unknown one.
        """
        return list(self._each_token(ids))

    def _each_token(self, ids: Iterable[int]) -> Iterator[str]:
        for i in itertools.takewhile(lambda i: i != END_ID, map(int, ids)):
            if i not in (BOS_ID, PAD_ID):
                yield self._symbols[i if 0 <= i < self.vocabulary_size else UNK_ID]

    def text_in_pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Yields the text of `detokenize([ids])` in pieces, as the ids come.

        What further ids could change is held back.
        """
        yield self.join(self._each_token(ids))

    # --- In a graph: core TensorFlow ops only. N texts, L ids of a padded row. ---

    @property
    def trackables(self) -> list:
        """Resources of the graph methods, for an exported module to hold."""
        return [self._table]

    def tokenize_tensor(self, texts):
        """Ids of `texts` (N,), tf.string: ragged int32 (N, None), end ids included."""
        texts = tf.convert_to_tensor(texts, tf.string)
        rows = self._ids_tensor(
            tf.strings.unicode_transcode(
                texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
            )
        )
        end = tf.fill([rows.nrows(), 1], END_ID)
        return tf.concat([tf.cast(rows, tf.int32), end], axis=1)

    def tokenize_lines_tensor(self, texts):
        """`tokenize_lines` of `texts` (N,), tf.string: ragged int32 (N, None)."""
        return self.tokenize_tensor(texts)

    def detokenize_tensor(self, ids):
        """Texts (N,), tf.string, of `ids` (N, L): up to the end id, without padding."""
        ids = ids.to_tensor(PAD_ID) if isinstance(ids, tf.RaggedTensor) else ids
        ids = tf.convert_to_tensor(ids)
        before = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) == 0
        rows = tf.ragged.boolean_mask(ids, before & (ids != BOS_ID) & (ids != PAD_ID))
        inside = (rows.values >= 0) & (rows.values < self.vocabulary_size)
        valid = tf.where(inside, rows.values, tf.cast(UNK_ID, ids.dtype))
        return self._texts_tensor(rows.with_values(tf.cast(valid, tf.int32)))

    def _ids_tensor(self, texts):
        tokens = self._split_tensor(texts)
        return tokens.with_values(self._table.lookup(tokens.values))

    def _texts_tensor(self, rows):
        tokens = tf.gather(tf.constant(self._symbols), rows.values)
        return self._join_tensor(rows.with_values(tokens))

    @functools.cached_property
    def _table(self):
        return lookup_table(self._ids, UNK_ID)

    def __getstate__(self):
        # What is cached, tables, cannot travel to another process.
        return {
            key: value
            for key, value in vars(self).items()
            if not isinstance(getattr(type(self), key, None), functools.cached_property)
        }

    # --- Folders. The names of their files are fixed: no setting names one. ---

    def save(self, directory: str | os.PathLike):
        """Writes the vocabulary and `settings.json` for `load_tokenizer`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self._files().items():
            write_file(directory / name, content)
        settings = {name: getattr(self, name) for name in self._settings}
        start = {"format_version": _FORMAT_VERSION, "kind": self.kind}
        write_json(directory / SETTINGS, start | settings)

    @classmethod
    def from_folder(cls, directory: Path, settings: dict) -> "Tokenizer":
        """The tokenizer of a folder of `save` whose `settings.json` is read."""
        unknown = sorted(set(settings) - {"format_version", "kind", *cls._settings})
        if unknown:
            raise ValueError(
                f"{directory / SETTINGS} must have no settings but those of the kind "
                f"{cls.kind!r}. Received: unknown settings {unknown}"
            )
        arguments = {key: settings[key] for key in cls._settings if key in settings}
        try:
            return cls(**cls._read(directory, arguments))
        except ValueError as error:
            if str(directory) in str(error):
                raise
            raise ValueError(f"{directory}: {error}") from None


def read_settings(directory: Path) -> dict:
    """Reads `settings.json`; ValueError, with its name, for another format."""
    settings = read_json(directory / SETTINGS)
    check_version(settings, directory / SETTINGS, _FORMAT_VERSION)
    return {"kind": None, **settings}


def check_one_vocabulary(source: Tokenizer, target: Tokenizer) -> None:
    """ValueError unless each id is the same token on both sides."""
    if source is target:
        return
    tokens = [
        tokenizer.to_tokens(
            i for i in range(tokenizer.vocabulary_size) if i != tokenizer.end_id
        )
        for tokenizer in (source, target)
    ]
    for pair in itertools.zip_longest(*tokens):
        if pair[0] != pair[1]:
            raise ValueError(
                "The tokenizers of source and target must have one vocabulary, as the "
                "model shares all embeddings; `share_embeddings`='decoder', or training"
                " with `joint_vocabulary`=False, allows two. Received: "
                f"{pair[0]!r} and {pair[1]!r} for one id"
            )


# --- Plain vocabularies: words between white space, and characters. ---


class _VocabularyTokenizer(Tokenizer):
    """A list of tokens, each of which matches `_token`, whose ids begin at 4."""

    def __init__(self, tokens: Iterable[str]):
        if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
            raise ValueError(f"`tokens` must be a list of texts. Received: {tokens!r}")
        self.tokens = tuple(tokens)
        if not self.tokens:
            raise ValueError("`tokens` must hold a token at least. Received: none")
        seen = set(SPECIAL_SYMBOLS)
        for number, token in enumerate(self.tokens, 1):
            text = isinstance(token, str) and valid_text(token) == token
            fits = text and self._token.fullmatch(token)
            if not fits or token in seen:
                rule = "appear once and be no special symbol" if fits else self._rule
                raise ValueError(
                    f"Token {number} must {rule}. Received: {token!r:.100}"
                )
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
        check_integer("min_count", min_count, 1)
        first, limit = len(SPECIAL_SYMBOLS), None
        if vocabulary_size is not None:
            limit = check_integer("vocabulary_size", vocabulary_size, first + 1) - first
        counts = Counter()
        for text in valid_texts(texts):
            counts.update(cls._split(text))
        tokens = [token for token, _ in most_frequent(counts, limit, min_count)]
        if not tokens:
            raise ValueError(
                f"`texts` must hold a token that appears at least {min_count} times. "
                f"Received: none among {counts.total()} tokens"
            )
        return cls(tokens)

    def join(self, tokens: Iterable[str]) -> str:
        """The text of tokens."""
        return self._separator.join(tokens)

    def text_in_pieces(self, ids: Iterable[int]) -> Iterator[str]:
        for number, token in enumerate(self._each_token(ids)):
            yield self._separator * (number > 0) + token

    def _join_tensor(self, tokens):
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
        return tf.strings.split(texts)


class CharacterTokenizer(_VocabularyTokenizer):
    """Characters: Unicode code points, white space and controls included.

    Texts of known characters are restored to the byte; others become `<unk>`. An
    uppercase letter that is not in the vocabulary counts as its lowercase letter.

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

    def __init__(self, tokens: Iterable[str]):
        super().__init__(tokens)
        # "ß".upper() is "SS".
        uppers = {token: token.upper() for token in self.tokens} | {"ß": "ẞ"}
        self._ids = {
            upper: self._ids[lower]
            for lower, upper in uppers.items()
            if lower in self._ids and len(upper) == 1 and upper.lower() == lower
        } | self._ids

    def tokenize_lines(self, texts: Iterable[str]) -> list[list[int]]:
        if "\n" not in self.tokens:
            return super().tokenize_lines(texts)
        return [ids[:-1] for ids in self.tokenize(f"{text}\n" for text in texts)]

    def tokenize_lines_tensor(self, texts):
        if "\n" not in self.tokens:
            return super().tokenize_lines_tensor(texts)
        return self.tokenize_tensor(tf.strings.join([texts, "\n"]))[:, :-1]

    @staticmethod
    def _split_tensor(texts):
        return tf.strings.unicode_split(texts, "UTF-8")


# --- Counts of tokens, texts that come in, and tables. ---


def most_frequent(
    counts: Mapping[str, int], limit: int | None, min_count: int = 1
) -> list[tuple[str, int]]:
    """Tokens and counts: by falling count, equal counts by code points.

    Special symbols and tokens that are less frequent than `min_count` are left out, and
    of the others all but the first `limit`.
    """
    items = [item for item in counts.items() if item[0] not in SPECIAL_SYMBOLS]
    items = sorted(items, key=lambda item: (-item[1], item[0]))[:limit]
    return [item for item in items if item[1] >= min_count]


def valid_text(text: str | bytes, name: str = "texts") -> str:
    """The text as valid Unicode, or ValueError unless it is `str` or `bytes`.

    One rule for all kinds, in Python and in a graph: bytes that are not UTF-8 become
    U+FFFD as `bytes.decode(errors="replace")` has it, one for each maximal part of a
    character. A lone surrogate in a `str` counts as the three bytes that it would be
    written as.
    """
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    raise ValueError(f"`{name}` must hold texts. Received: {text!r}")


def valid_texts(texts: Iterable[str | bytes], name: str = "texts") -> Iterator[str]:
    """Each of several texts as valid Unicode.

    Raises:
        ValueError: `texts` is one text, no iterable, or holds something else.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ValueError(f"`{name}` must be a list of texts. Received: {texts!r}")
    return (valid_text(text, name) for text in texts)


def lookup_table(entries: Mapping, default: int):
    """A lookup table of texts or integers to int64, outside of any graph."""
    keys, values = list(entries), list(entries.values())
    with tf.init_scope():
        key_dtype = tf.int64 if keys and isinstance(keys[0], int) else tf.string
        entries = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys, key_dtype), tf.constant(values, tf.int64)
        )
        return tf.lookup.StaticHashTable(entries, default)
