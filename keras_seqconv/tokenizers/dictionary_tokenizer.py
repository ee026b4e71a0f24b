"""Words through fairseq's dictionaries, after Moses and byte-pair encoding."""

import dataclasses
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from keras_seqconv.support.arguments import (
    check_boolean,
    check_integer,
    check_positive_integer,
)
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import write_file
from keras_seqconv.tokenizers import graph
from keras_seqconv.tokenizers.byte_pairs import BytePairsInGraph, learn_codes
from keras_seqconv.tokenizers.dictionary import Dictionary
from keras_seqconv.tokenizers.files import read_settings, read_text, write_settings
from keras_seqconv.tokenizers.special_symbols import (
    BOS_ID,
    END_ID,
    PAD_ID,
    SPECIAL_SYMBOLS,
    UNK_ID,
)
from keras_seqconv.tokenizers.texts import until_end, valid_texts

# Characters of a word that byte pairs are made of.
_LONGEST_WORD = 1000
# Arguments of DictionaryTokenizer that settings.json holds.
_SETTINGS = (
    "language", "normalize", "moses", "aggressive_dash_splits", "escape", "lowercase",
    "remove_bpe",
)  # fmt: skip


class DictionaryTokenizer:
    """Words of a text, through a fairseq dictionary, to ids and back.

    A text is split at white space, after the steps that were asked for, in this order:
    Moses' normalisation of punctuation, Moses' tokenisation, lower-casing, byte-pair
    encoding. They come from sacremoses and subword-nmt (extra `mt`). Moses cannot run
    inside a graph: there, and in an export, text is what Moses makes of it, on both
    sides, and all other steps give what they give in Python.

    Of a word of more than 1,000 characters only these are read if there are byte pairs,
    whose time grows with the square.

    The names of special symbols in a text are unknown words: a `<pad>` typed by a user
    must not become padding.

    Args:
        dictionary: a `Dictionary`.
        language: two or three letters; needed by the Moses steps.
        normalize: apply Moses' normalisation of punctuation.
        moses: apply Moses' tokenisation, and its reverse on the way back.
        aggressive_dash_splits: write `x-y` as `x @-@ y` (`-a` of Moses; fairseq's WMT
            recipes do, its IWSLT recipe does not).
        escape: write characters that Moses reserves as entities (`&apos;`).
        lowercase: lower-case the text. There is no way back.
        bpe_codes: the text of a codes file of subword-nmt. Give it with
            `Path("codes").read_text(encoding="utf-8")`.
        remove_bpe: join `hou@@ se` on the way back; by default if `bpe_codes` is given.

    Example:

    ```python
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
    tokenizer = DictionaryTokenizer(Dictionary([("the", 9), ("house", 3)]))
    ids = tokenizer.tokenize(["the house", "the castle"])
    assert ids == [[4, 5, 2], [4, 3, 2]]
    assert tokenizer.detokenize(ids) == ["the house", "the <unk>"]
    ```
    """

    kind = "dictionary"
    in_graph = False
    pad_id, start_id, end_id, unk_id = PAD_ID, END_ID, END_ID, UNK_ID

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        language: str | None = None,
        normalize: bool = False,
        moses: bool = False,
        aggressive_dash_splits: bool = True,
        escape: bool = True,
        lowercase: bool = False,
        bpe_codes: str | None = None,
        remove_bpe: bool | None = None,
    ):
        if not isinstance(dictionary, Dictionary):
            raise ValueError(
                "`dictionary` must be a Dictionary. "
                f"Received: dictionary={dictionary!r}"
            )
        self.dictionary = dictionary
        self.language = _language(language, normalize or moses)
        self.normalize = check_boolean("normalize", normalize)
        self.moses = check_boolean("moses", moses)
        self.aggressive_dash_splits = check_boolean(
            "aggressive_dash_splits", aggressive_dash_splits
        )
        self.escape = check_boolean("escape", escape)
        self.lowercase = check_boolean("lowercase", lowercase)
        self.bpe_codes = bpe_codes
        remove_bpe = bpe_codes is not None if remove_bpe is None else remove_bpe
        self.remove_bpe = check_boolean("remove_bpe", remove_bpe)
        self._normalizer = _normalizer(language) if normalize else None
        self._moses = _moses(language) if moses else None
        self._bpe = None if bpe_codes is None else _bpe(bpe_codes)
        self._tables = None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        language: str | None = None,
        merges: int | None = None,
        *,
        vocabulary_size: int | None = None,
        min_count: int = 1,
        padding_factor: int = 8,
        **steps,
    ) -> "DictionaryTokenizer":
        """Learns byte pairs and the dictionary of texts of one language.

        Args:
            texts: any iterable; read once. Memory grows with the number of different
                words only.
            language: see the class; needed unless `steps` turn Moses off.
            merges: byte pairs to learn, as `subword-nmt learn-bpe -s`; fewer when none
                of them comes twice. None learns none: the dictionary is of words.
            vocabulary_size: most ids, the special ones included (fairseq's `nwords`).
            min_count: symbols seen less often are unknown (fairseq's `threshold`).
            padding_factor: the dictionary is filled up to a multiple of it.
            **steps: `normalize`, `moses` (True unless given), `aggressive_dash_splits`,
                `escape`, `lowercase`; see the class.

        Raises:
            ValueError: for a wrong argument; `texts` hold no word.
            ImportError: sacremoses or subword-nmt is missing (extra `mt`).
        """
        sizes = _Sizes(merges, vocabulary_size, min_count, padding_factor)
        plain = _plain(language, steps)
        counts = plain._counted(texts, "texts")
        codes = None if merges is None else learn_codes(counts, merges)
        dictionary = sizes.dictionary(_symbol_counts(counts, codes))
        return plain._with(dictionary, codes)

    @classmethod
    def train_joint(
        cls,
        source_texts: Iterable[str],
        target_texts: Iterable[str],
        languages: tuple[str | None, str | None] = (None, None),
        merges: int | None = None,
        *,
        joined_dictionary: bool = False,
        vocabulary_size: int | None = None,
        min_count: int = 1,
        padding_factor: int = 8,
        **steps,
    ) -> tuple["DictionaryTokenizer", "DictionaryTokenizer"]:
        """Learns the byte pairs of both sides at once, as the papers' recipes do.

        Args:
            source_texts, target_texts: any iterables; read once, one after the other.
            languages: of source and target.
            joined_dictionary: make one dictionary of both sides, for models that share
                embeddings; by default each side has its own.
            merges, vocabulary_size, min_count, padding_factor, **steps: see `train`.

        Returns:
            The tokenizers of source and target. They are one object when languages are
            the same and the dictionary is joined.
        """
        check_boolean("joined_dictionary", joined_dictionary)
        sizes = _Sizes(merges, vocabulary_size, min_count, padding_factor)
        if not isinstance(languages, (tuple, list)) or len(languages) != 2:
            raise ValueError(
                "`languages` must be those of source and target. "
                f"Received: languages={languages!r}"
            )
        plain = [_plain(language, steps) for language in languages]
        names = "source_texts", "target_texts"
        counts = [
            tokenizer._counted(texts, name)
            for tokenizer, texts, name in zip(
                plain, (source_texts, target_texts), names, strict=True
            )
        ]
        both = counts[0] + counts[1]
        codes = None if merges is None else learn_codes(both, merges)
        symbols = [_symbol_counts(side, codes) for side in counts]
        if not joined_dictionary:
            dictionaries = [sizes.dictionary(side) for side in symbols]
        else:
            dictionaries = [sizes.dictionary(symbols[0] + symbols[1])] * 2
        source = plain[0]._with(dictionaries[0], codes)
        if joined_dictionary and languages[0] == languages[1]:
            return source, source
        return source, plain[1]._with(dictionaries[1], codes)

    @property
    def vocabulary_size(self) -> int:
        return len(self.dictionary)

    @property
    def unspellable_ids(self) -> list[int]:
        """Ids that are no text: <s>, padding and fairseq's `madeupword`s."""
        unused = (
            i
            for i, (symbol, count) in enumerate(
                zip(self.dictionary.symbols, self.dictionary.counts, strict=True)
            )
            if count == 0 and re.fullmatch(r"madeupword\d{4,}", symbol)
        )
        return [BOS_ID, PAD_ID, *unused]

    def tokenize(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of each text, with the end id."""
        return [self.to_ids(self.split(text)) for text in valid_texts(texts)]

    def detokenize(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Texts of rows of ids: up to the end id, without padding."""
        return [self.join(self.to_tokens(row)) for row in ids]

    def split(self, text: str) -> list[str]:
        """The tokens of a text."""
        if self._normalizer is not None:
            text = self._normalizer.normalize(text)
        if self._moses is not None:
            text = self._moses[0].tokenize(
                text,
                aggressive_dash_splits=self.aggressive_dash_splits,
                escape=self.escape,
                return_str=True,
            )
        if self.lowercase:
            text = text.lower()
        tokens = text.split()
        if self._bpe is not None:
            words = [word[:_LONGEST_WORD] for word in tokens]
            tokens = self._bpe.segment_tokens(words)
        return tokens

    def join(self, tokens: Iterable[str]) -> str:
        """The text of tokens."""
        text = " ".join(tokens)
        if self.remove_bpe:
            text = f"{text} ".replace("@@ ", "").rstrip()
        if self._moses is not None:
            text = self._moses[1].detokenize(text.split(), unescape=self.escape)
        return text

    def to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens, with the end id."""
        ids = (self.dictionary.id_of(token) for token in tokens)
        return [UNK_ID if i < len(SPECIAL_SYMBOLS) else i for i in ids] + [END_ID]

    def to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids: up to the end id, without <s> and padding."""
        return [self.dictionary.symbol_of(i) for i in until_end(ids)]

    @property
    def needs_moses(self) -> bool:
        """Whether a graph takes and gives what Moses makes of text, not plain text."""
        return self._normalizer is not None or self._moses is not None

    @property
    def trackables(self) -> list:
        """Resources of the graph methods, for an exported module to hold."""
        ids, byte_pairs = self._graph_tables()
        return [ids] if byte_pairs is None else [ids, *byte_pairs.trackables]

    def tokenize_tensor(self, texts):
        """Ids of `texts` (N,), tf.string: ragged int32 (N, None), end ids included.

        Without the steps of Moses.
        """
        import tensorflow as tf

        ids, byte_pairs = self._graph_tables()
        texts = graph.valid_utf8(texts)
        if self.lowercase:
            texts = graph.lower(texts)
        texts = tf.strings.regex_replace(texts, graph.WHITE_SPACE, " ")
        words = tf.strings.split(texts)
        if byte_pairs is not None:
            cut = tf.strings.substr(words.values, 0, _LONGEST_WORD, unit="UTF8_CHAR")
            different, places = tf.unique(cut)
            parts = tf.gather(byte_pairs.segment(different), places)
            words = words.with_values(parts).merge_dims(1, 2)
        return graph.append_end(words.with_values(ids.lookup(words.values)))

    def detokenize_tensor(self, ids):
        """Texts (N,), tf.string, of `ids` (N, L): up to the end id, without padding.

        Without the steps of Moses.
        """
        import tensorflow as tf

        rows = graph.until_end(ids, self.vocabulary_size)
        symbols = tf.gather(tf.constant(self.dictionary.symbols), rows.values)
        texts = tf.strings.reduce_join(
            rows.with_values(symbols), axis=-1, separator=" "
        )
        if self.remove_bpe:
            texts = tf.strings.regex_replace(texts + " ", "@@ ", "")
            texts = tf.strings.regex_replace(texts, f"{graph.WHITE_SPACE}+$", "")
        return texts

    def _graph_tables(self):
        """Ids of symbols, and the byte pairs or None."""
        if self._tables is None:
            symbols = self.dictionary.symbols
            ids = {one: self.dictionary.id_of(one) for one in symbols}
            ids = {one: i for one, i in ids.items() if i >= len(SPECIAL_SYMBOLS)}
            byte_pairs = None if self._bpe is None else BytePairsInGraph(self._bpe)
            self._tables = graph.table(ids, UNK_ID), byte_pairs
        return self._tables

    def __getstate__(self):
        # The tables cannot travel to another process.
        return {**self.__dict__, "_tables": None}

    def save(self, directory: str | os.PathLike):
        """Writes `dict.txt`, `bpe.codes` if there are any, and `settings.json`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.dictionary.write(directory / "dict.txt")
        if self.bpe_codes is not None:
            write_file(directory / "bpe.codes", self.bpe_codes.encode())
        settings = {"bpe": self.bpe_codes is not None}
        settings |= {name: getattr(self, name) for name in _SETTINGS}
        write_settings(directory, self.kind, settings)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "DictionaryTokenizer":
        """Reads what `save` wrote."""
        directory = Path(directory)
        settings = read_settings(directory, cls.kind, ("bpe", *_SETTINGS))
        codes = None
        if check_boolean("bpe", settings.pop("bpe", False)):
            codes = read_text(directory / "bpe.codes")
        dictionary = Dictionary.read(directory / "dict.txt")
        return cls(dictionary, bpe_codes=codes, **settings)

    def _counted(self, texts: Iterable[str], name: str) -> Counter:
        """Occurrences of each word, before byte pairs."""
        counts = Counter()
        for text in valid_texts(texts, name):
            counts.update(self.split(text))
        if not counts:
            raise ValueError(f"`{name}` must hold a word. Received: none")
        return counts

    def _with(self, dictionary: Dictionary, codes: str | None):
        """This tokenizer with what was learned."""
        steps = {name: getattr(self, name) for name in _SETTINGS}
        steps["remove_bpe"] = codes is not None
        return type(self)(dictionary, bpe_codes=codes, **steps)


# --- Training. ---


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How much is learned."""

    merges: int | None
    vocabulary_size: int | None
    min_count: int
    padding_factor: int

    def __post_init__(self):
        if self.merges is not None:
            check_positive_integer("merges", self.merges)
        if self.vocabulary_size is not None:
            check_integer("vocabulary_size", self.vocabulary_size, 5)
        check_positive_integer("min_count", self.min_count)
        check_positive_integer("padding_factor", self.padding_factor)

    def dictionary(self, counts: Mapping[str, int]) -> Dictionary:
        """The dictionary of symbols. Fillers come on top of the size."""
        nwords = self.vocabulary_size or -1
        return Dictionary.from_counts(
            counts, self.min_count, nwords, self.padding_factor
        )


def _plain(language: str | None, steps: dict) -> DictionaryTokenizer:
    """A tokenizer that only splits."""
    names = set(_SETTINGS) - {"language", "remove_bpe"}
    if unknown := sorted(set(steps) - names):
        raise ValueError(
            f"Steps must be among {sorted(names)}. Received: {', '.join(unknown)}"
        )
    steps = {"moses": True} | steps
    return DictionaryTokenizer(Dictionary(), language=language, **steps)


def _symbol_counts(counts: Counter, codes: str | None) -> Counter:
    """Occurrences of the byte pairs of words."""
    if codes is None:
        return counts
    bpe, symbols = _bpe(codes), Counter()
    for word, count in counts.items():
        for symbol in bpe.segment_tokens([word]):
            symbols[symbol] += count
    return symbols


# --- The packages behind the extra `mt`. ---


def _language(language, needed: bool) -> str | None:
    if language is None and not needed:
        return None
    # sacremoses builds file names of it.
    if not isinstance(language, str) or not re.fullmatch("[a-z]{2,3}", language):
        raise ValueError(
            "`language` must be two or three small letters, such as 'de'; the Moses "
            f"steps need it. Received: language={language!r}"
        )
    return language


def _normalizer(language: str):
    return require("sacremoses", "mt").MosesPunctNormalizer(language)


def _moses(language: str):
    package = require("sacremoses", "mt")
    return package.MosesTokenizer(language), package.MosesDetokenizer(language)


def _bpe(codes: str):
    if not isinstance(codes, str):
        raise ValueError(
            "`bpe_codes` must be the text of a codes file. "
            f"Received: {type(codes).__name__}"
        )
    lines = codes.rstrip("\n").split("\n")
    header = lines[0].startswith("#version:")
    if header and not re.fullmatch(r"#version: \d+(\.\d+)*\s*", lines[0]):
        raise ValueError(
            f"Line 1 of the byte-pair codes must be '#version: 0.2'. "
            f"Received: {lines[0]!r}"
        )
    # subword-nmt ends the whole process at a bad line.
    for number, line in enumerate(lines[header:] or [""], 1 + header):
        if len(line.strip("\r\n ").split(" ")) != 2:
            raise ValueError(
                f"Line {number} of the byte-pair codes must be two symbols. "
                f"Received: {line!r}"
            )
    bpe = require("subword_nmt.apply_bpe", "mt").BPE(io.StringIO(codes))
    if bpe.version not in ((0, 1), (0, 2)):
        raise ValueError(
            f"The byte-pair codes must be of version 0.1 or 0.2. Received: {lines[0]!r}"
        )
    return bpe
