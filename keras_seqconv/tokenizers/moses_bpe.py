"""Words through fairseq's dictionaries, after Moses and byte-pair encoding.

Moses' steps are those of sacremoses, nearly the Perl scripts': of the 29,000 lines of
Multi30k's training text, tokenized by its authors, 74 German and 7 English ones differ,
for example in a last full stop that stays attached to "s." or in `". ` for `." `.
"""

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from keras_seqconv.support import require, tf
from keras_seqconv.support.arguments import check_boolean, check_integer
from keras_seqconv.support.files import read_text
from keras_seqconv.tokenizers.common import (
    BOS_ID,
    PAD_ID,
    SPECIAL_SYMBOLS,
    Tokenizer,
    valid_texts,
)
from keras_seqconv.tokenizers.dictionary import (
    BytePairsInGraph,
    Dictionary,
    learn_codes,
    read_codes,
)

# Characters of a word that byte pairs are made of.
_LONGEST_WORD = 1000
# Different words whose pieces are kept.
_MOST_WORDS = 1_000_000
# Arguments of `DictionaryTokenizer` that say what comes before the dictionary.
_STEPS = (
    "language", "normalize", "moses", "aggressive_dash_splits", "escape", "lowercase"
)  # fmt: skip


class DictionaryTokenizer(Tokenizer):
    """Maps words to ids and back with a fairseq dictionary.

    A text is split at white space, after the given steps in this order: Moses'
    normalization of punctuation, Moses' tokenization, lower-casing, byte-pair encoding.
    They come from sacremoses and subword-nmt (extra `mt`). Moses cannot run in a graph:
    there, and in an export, texts on both sides are Moses' tokens, and all other steps
    are those of Python.

    With byte pairs, whose time grows with the square, only the first 1,000 characters
    of a word are read.

    Names of special symbols in a text are unknown words: a `<pad>` in a text does not
    become padding.

    Args:
        dictionary: a `Dictionary`.
        language: two or three letters; needed by the Moses steps.
        normalize: whether to apply Moses' normalization of punctuation.
        moses: whether to apply Moses' tokenization, and its reverse to outputs.
        aggressive_dash_splits: whether to write `x-y` as `x @-@ y` (`-a` of Moses, used
            by fairseq's WMT recipes, not by its IWSLT recipe).
        escape: whether to write characters that Moses reserves as entities (`&apos;`).
        lowercase: whether to lower-case the text, which is not reversed.
        bpe_codes: text of a codes file of subword-nmt or fastBPE,
            `Path("codes").read_text(encoding="utf-8")`.
        remove_bpe: whether to join `hou@@ se` in outputs; by default with `bpe_codes`.

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
    _settings = ("bpe", *_STEPS, "remove_bpe")

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
        self.dictionary, self.language = dictionary, language
        self.normalize, self.moses = normalize, moses
        self.aggressive_dash_splits, self.escape = aggressive_dash_splits, escape
        self.lowercase, self.bpe_codes = lowercase, bpe_codes
        self.bpe = bpe_codes is not None
        # Whether a graph takes and gives what Moses makes of text, not plain text.
        self.needs_moses = normalize or moses
        self.remove_bpe = self.bpe if remove_bpe is None else remove_bpe
        for name in (*_STEPS[1:], "remove_bpe"):
            check_boolean(name, getattr(self, name))
        if language is not None or self.needs_moses:
            check_language("language", language)
        if self.needs_moses:
            require("sacremoses", "mt")
        self._bpe = read_codes(bpe_codes) if self.bpe else None
        symbols = dictionary.symbols
        ids = {symbol: dictionary.id_of(symbol) for symbol in symbols}
        first = len(SPECIAL_SYMBOLS)
        super().__init__(symbols, {key: i for key, i in ids.items() if i >= first})
        self.unspellable_ids = [BOS_ID, PAD_ID] + [
            i
            for i, count in enumerate(dictionary.counts)
            if count == 0 and re.fullmatch(r"madeupword\d{4,}", symbols[i])
        ]

    @classmethod
    def train_sides(
        cls,
        sides: Mapping[str, Iterable[str]],
        languages: Sequence[str | None] = (None, None),
        merges: int | None = None,
        *,
        joint: bool = False,
        vocabulary_size: int | None = None,
        moses: bool = True,
        **steps,
    ) -> list["DictionaryTokenizer"]:
        """Learns the byte pairs of all sides together, as in the papers' recipes.

        Args:
            sides: name of each side -> texts, read once in sequence. Memory grows with
                the number of different words only.
            languages: languages of the sides.
            merges: number of byte pairs, as `subword-nmt learn-bpe -s`; fewer if no
                more pairs occur twice. None: a dictionary of words.
            joint: whether to make one dictionary of all sides, for models that share
                embeddings; by default each side has its own.
            vocabulary_size: largest number of ids, special ones included (`nwords`).
            moses, **steps: `normalize`, `moses`, `aggressive_dash_splits`, `escape`,
                `lowercase` of the class.

        Returns:
            The tokenizer of each side: one object if the dictionary is joint and the
            languages are equal.

        Raises:
            ValueError: an argument breaks its rule, or texts hold no word.
            ImportError: sacremoses or subword-nmt is missing (extra `mt`).
        """
        if not isinstance(languages, (tuple, list)) or len(languages) != len(sides):
            raise ValueError(
                "`languages` must be those of source and target. "
                f"Received: languages={languages!r}"
            )
        if merges is not None:
            check_integer("merges", merges, 1)
        if vocabulary_size is not None:
            check_integer("vocabulary_size", vocabulary_size, len(SPECIAL_SYMBOLS) + 1)
        makers = [
            functools.partial(cls, language=language, moses=moses, **steps)
            for language in languages
        ]
        counts = {name: Counter() for name in sides}
        for maker, name in zip(makers, sides, strict=True):
            split = maker(Dictionary()).split
            for text in valid_texts(sides[name], name):
                counts[name].update(split(text))
        empty = [name for name in sides if not counts[name]]
        if empty and (not joint or len(empty) == len(sides)):
            raise ValueError(f"`{empty[0]}` must hold a word. Received: none")
        counts = list(counts.values())
        codes = None
        if merges is not None:
            codes = learn_codes(sum(counts, Counter()), merges)
            split = cls(Dictionary(), bpe_codes=codes).split
            counts = [_count_pieces(words, split) for words in counts]
        if joint:
            counts = [sum(counts, Counter())] * len(counts)
        tokenizers = []
        for maker, symbols in zip(makers, counts, strict=True):
            dictionary = Dictionary.from_counts(symbols, nwords=vocabulary_size)
            tokenizers.append(maker(dictionary, bpe_codes=codes))
        same = joint and len(set(languages)) == 1
        return tokenizers[:1] * len(sides) if same else tokenizers

    def _split(self, text: str) -> list[str]:
        if self.normalize:
            text = _moses(self.language)[0].normalize(text)
        if self.moses:
            text = _moses(self.language)[1].tokenize(
                text,
                aggressive_dash_splits=self.aggressive_dash_splits,
                escape=self.escape,
                return_str=True,
            )
        words = (text.lower() if self.lowercase else text).split()
        if self._bpe is None:
            return words
        if len(self._bpe.cache) > _MOST_WORDS:  # subword-nmt keeps every word
            self._bpe.cache = {}
        return self._bpe.segment_tokens([word[:_LONGEST_WORD] for word in words])

    def join(self, tokens: Iterable[str]) -> str:
        """Returns the text of tokens."""
        text = " ".join(tokens)
        if self.remove_bpe:
            text = f"{text} ".replace("@@ ", "").rstrip()
        if self.moses:
            _, _, detokenizer = _moses(self.language)
            text = detokenizer.detokenize(text.split(), unescape=self.escape)
        return text

    def text_in_pieces(self, ids: Iterable[int]) -> Iterator[str]:
        if self.moses:  # which looks at the whole text
            yield from super().text_in_pieces(ids)
            return
        held = ""
        for token in self._each_token(ids):
            text = f"{held}{token} "
            piece = text[:-1]
            if self.remove_bpe:
                text = text.removesuffix("@@ ")
                piece = text.rstrip()
            held = text[len(piece) :]
            yield piece

    @property
    def trackables(self) -> list:
        """Resources of the graph methods, for an exported module to hold."""
        return [self._table, *(self._pairs.trackables if self.bpe else ())]

    @functools.cached_property
    def _pairs(self) -> BytePairsInGraph:
        return BytePairsInGraph(self._bpe)

    def _split_tensor(self, texts):
        if self.lowercase:
            texts = lower(texts)
        words = tf.strings.split(tf.strings.regex_replace(texts, WHITE_SPACE, " "))
        if not self.bpe:
            return words
        cut = tf.strings.substr(words.values, 0, _LONGEST_WORD, unit="UTF8_CHAR")
        different, indices = tf.unique(cut)
        pieces = tf.gather(self._pairs.segment(different), indices)
        return words.with_values(pieces).merge_dims(1, 2)

    def _join_tensor(self, tokens):
        texts = tf.strings.reduce_join(tokens, axis=-1, separator=" ")
        if self.remove_bpe:
            texts = tf.strings.regex_replace(texts + " ", "@@ ", "")
            texts = tf.strings.regex_replace(texts, f"{WHITE_SPACE}+$", "")
        return texts

    def _files(self) -> dict[str, bytes]:
        files = {"dict.txt": self.dictionary.to_text().encode()}
        return files | ({"bpe.codes": self.bpe_codes.encode()} if self.bpe else {})

    @staticmethod
    def _read(directory: Path, settings: dict) -> dict:
        codes = None
        if check_boolean("bpe", settings.pop("bpe", False)):
            codes = read_text(directory / "bpe.codes")
        dictionary = Dictionary.read(directory / "dict.txt")
        return {"dictionary": dictionary, "bpe_codes": codes, **settings}


def _count_pieces(words: Mapping[str, int], split: Callable) -> Counter:
    """Counts the pieces of all words, each by `split(word)`."""
    pieces = Counter()
    for word, count in words.items():
        for piece in split(word):
            pieces[piece] += count
    return pieces


# --- Moses. ---


@functools.cache
def _moses(language: str) -> tuple:
    """sacremoses' normalizer, tokenizer and detokenizer of a language."""
    package = require("sacremoses", "mt")
    return (
        package.MosesPunctNormalizer(language),
        package.MosesTokenizer(language),
        package.MosesDetokenizer(language),
    )


def check_language(name: str, language: str) -> str:
    """`language`, or ValueError unless Moses has it: it builds file names of it."""
    if not isinstance(language, str) or not re.fullmatch("[a-z]{2,3}", language):
        raise ValueError(
            f"`{name}` must be two or three small letters, such as 'de', for Moses' "
            f"steps. Received: {name}={language!r}"
        )
    return language


# --- Python's notions of letters in a graph. ---

# What `str.isspace` is true of, as a class of RE2.
WHITE_SPACE = (
    r"[\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)


def lower(texts):
    """`str.lower` of `texts` (N,), valid UTF-8."""
    # ICU's follows the server's locale, and knows fewer letters. So Python's letters
    # come first; it is left with the capital sigma, which depends on its neighbours.
    texts = tf.strings.regex_replace(texts, "İ", "İ".lower())
    upper, lower = tf.unstack(tf.constant(_lower_codes()), axis=1)
    codes = tf.strings.unicode_decode(texts, "UTF-8")
    indices = tf.searchsorted(upper, codes.values)
    indices = tf.minimum(indices, tf.size(upper) - 1)
    lowered = tf.where(
        tf.gather(upper, indices) == codes.values,
        tf.gather(lower, indices),
        codes.values,
    )
    texts = tf.strings.unicode_encode(codes.with_values(lowered), "UTF-8")
    # The op believes that a text ends at NUL.
    parts = tf.strings.split(texts, "\0")
    lowered = tf.strings.lower(parts.values, encoding="utf-8") + "\0"
    texts = tf.strings.reduce_join(parts.with_values(lowered), axis=-1)
    lengths = tf.strings.length(texts) - 1
    return tf.strings.substr(texts, tf.zeros_like(lengths), lengths)


@functools.cache
def _lower_codes() -> list[tuple[int, int]]:
    """Code points and those that they have in lower case, where both are one."""
    letters = [chr(code) for code in range(sys.maxunicode + 1) if chr(code) not in "Σİ"]
    return [
        (ord(letter), ord(letter.lower()))
        for letter in letters
        if letter != letter.lower()
    ]
