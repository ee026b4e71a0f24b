"""Text to ids and back.

What `translator` asks of a tokenizer, whatever its kind:

- `tokenize(texts)` -> one list of ids per text, with `end_id` at its end;
  `detokenize(ids)` -> texts; both take and return lists, as sentences differ in length;
- `vocabulary_size`, `pad_id`, `start_id`, `end_id`, `unk_id`;
- `in_graph`: whether it can run inside a TensorFlow graph, and so inside an export;
- `save(directory)` and a class method `load(directory)`; `settings.json` there holds
  `kind`, by which `load_tokenizer` finds the class.

Ids are fairseq's: <s> 0, <pad> 1, </s> 2, <unk> 3; sentences start and end with </s>.
"""

import io
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
BOS_ID, PAD_ID, END_ID, UNK_ID = range(4)
_OVERWRITE = "#fairseq:overwrite"
_FORMAT_VERSION = 1


class Dictionary:
    """The symbols of a vocabulary with their counts, in fairseq's format and order.

    Ids 0 to 3 are <s>, <pad>, </s> and <unk>, which no file lists; the file's lines
    follow from 4 on. A symbol may contain blanks, as a line is split at the last one.

    Args:
        entries: (symbol, count) in the order of their ids.
        overwrite: ids of entries that may repeat an earlier symbol, or a special one;
            the symbol's id is then the later (fairseq's flag `#fairseq:overwrite`).

    Example:

    ```python
    from keras_seqconv.tokenizers import Dictionary
    dictionary = Dictionary.from_counts({"house": 3, "the": 9}, padding_factor=1)
    assert dictionary.symbols[4:] == ("the", "house")
    assert dictionary.id_of("the") == 4 and dictionary.id_of("castle") == 3
    ```
    """

    def __init__(
        self, entries: Iterable[tuple[str, int]] = (), overwrite: Iterable[int] = ()
    ):
        self._symbols = list(SPECIAL_SYMBOLS)
        self._counts = [1] * len(SPECIAL_SYMBOLS)
        self._ids = {symbol: i for i, symbol in enumerate(SPECIAL_SYMBOLS)}
        self._overwrite: set[int] = set()
        flagged = set(overwrite)
        for symbol, count in entries:
            self._add(symbol, count, len(self._symbols) in flagged)

    def _add(self, symbol: str, count: int, overwrite: bool = False):
        if not isinstance(symbol, str) or not symbol:
            raise ValueError(f"a symbol must be a text that is not empty: {symbol!r}")
        if "\n" in symbol or "\r" in symbol:
            raise ValueError(f"a symbol must not hold a line break: {symbol!r}")
        if isinstance(count, bool) or not isinstance(count, int):
            raise ValueError(f"the count must be an integer: {symbol!r} {count!r}")
        try:
            symbol.encode()
        except UnicodeEncodeError:
            raise ValueError(f"a symbol must be valid Unicode: {symbol!r}") from None
        if symbol in self._ids and not overwrite:
            raise ValueError(
                f"a symbol must appear once (it has id {self._ids[symbol]} already) "
                f"unless its line ends in {_OVERWRITE}: {symbol!r}"
            )
        if overwrite:
            self._overwrite.add(len(self._symbols))
        self._ids[symbol] = len(self._symbols)
        self._symbols.append(symbol)
        self._counts.append(count)

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Dictionary":
        """Reads fairseq's `dict.<language>.txt`.

        Raises:
            ValueError: names file, line and rule when a line has no count, one that is
                no integer, an empty symbol, or one that appeared before; or when the
                file is not UTF-8.
        """
        content = _read_file(path)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            received = content[error.start : error.start + 4]
            raise _bad_line(path, line, f"must be valid UTF-8: {received!r}") from None
        self = cls()
        # Not `splitlines`: symbols may hold what Unicode calls line breaks.
        lines = text.split("\n")
        for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
            try:
                self._add_line(line.rstrip())
            except ValueError as error:
                raise _bad_line(path, number, str(error)) from None
        return self

    def _add_line(self, line: str):
        symbol, blank, count = line.rpartition(" ")
        overwrite = blank != "" and count == _OVERWRITE
        if overwrite:
            symbol, blank, count = symbol.rpartition(" ")
        if not blank:
            raise ValueError(f"must be '<symbol> <count>': {line!r}")
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", count):
            raise ValueError(f"the count must be an integer: {count!r} in {line!r}")
        self._add(symbol, int(count), overwrite)

    def write(self, path: str | os.PathLike):
        """Writes fairseq's format; the file appears at once or not at all."""
        _write_file(path, self.to_text().encode())

    def to_text(self) -> str:
        """The content of the file."""
        return "".join(
            f"{self._symbols[i]} {self._counts[i]}"
            + (f" {_OVERWRITE}\n" if i in self._overwrite else "\n")
            for i in range(len(SPECIAL_SYMBOLS), len(self))
        )

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        threshold: int = -1,
        nwords: int = -1,
        padding_factor: int = 8,
    ) -> "Dictionary":
        """The dictionary that fairseq's preprocessing makes of a corpus.

        Args:
            counts: symbol -> occurrences; special symbols among them are left out.
            threshold: symbols seen less often are dropped.
            nwords: most symbols kept, the four special ones included; none when <= 0.
            padding_factor: `madeupwordNNNN 0` are added up to a multiple of it.
        """
        words = [item for item in counts.items() if item[0] not in SPECIAL_SYMBOLS]
        # By falling count, equal counts by code points.
        words.sort(key=lambda item: (-item[1], item[0]))
        if nwords > 0:
            words = words[: max(0, nwords - len(SPECIAL_SYMBOLS))]
        self = cls((word, count) for word, count in words if count >= threshold)
        number = 0
        while padding_factor > 1 and len(self) % padding_factor:
            filler = f"madeupword{number:04d}"
            if filler not in self:
                self._add(filler, 0)
            number += 1
        return self

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbol of every id."""
        return tuple(self._symbols)

    @property
    def counts(self) -> tuple[int, ...]:
        """Count of every id."""
        return tuple(self._counts)

    def id_of(self, symbol: str) -> int:
        """The id of a symbol, 3 of an unknown one."""
        return self._ids.get(symbol, UNK_ID)

    def symbol_of(self, index: int) -> str:
        """The symbol of an id, `<unk>` of an id outside the dictionary."""
        known = 0 <= index < len(self._symbols)
        return self._symbols[index] if known else SPECIAL_SYMBOLS[UNK_ID]

    def __len__(self) -> int:
        return len(self._symbols)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._ids

    def __eq__(self, other) -> bool:
        if not isinstance(other, Dictionary):
            return NotImplemented
        return self.to_text() == other.to_text()

    __hash__ = None

    def __repr__(self) -> str:
        return f"<Dictionary of {len(self)} symbols>"


class DictionaryTokenizer:
    """Words of a text, through a fairseq dictionary, to ids and back.

    A text is split at white space, after the steps that were asked for, in this order:
    Moses' normalisation of punctuation, Moses' tokenisation, lower-casing, byte-pair
    encoding. They come from sacremoses and subword-nmt (extra `mt`) and cannot run
    inside a graph, so a model with this tokenizer exports as ids to ids.

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
        self.normalize = _flag("normalize", normalize)
        self.moses = _flag("moses", moses)
        self.aggressive_dash_splits = _flag(
            "aggressive_dash_splits", aggressive_dash_splits
        )
        self.escape = _flag("escape", escape)
        self.lowercase = _flag("lowercase", lowercase)
        self.bpe_codes = bpe_codes
        remove_bpe = bpe_codes is not None if remove_bpe is None else remove_bpe
        self.remove_bpe = _flag("remove_bpe", remove_bpe)
        self._normalizer = _normalizer(language) if normalize else None
        self._moses = _moses(language) if moses else None
        self._bpe = None if bpe_codes is None else _bpe(bpe_codes)

    @property
    def vocabulary_size(self) -> int:
        return len(self.dictionary)

    def tokenize(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of each text, with the end id."""
        if isinstance(texts, str):
            raise ValueError(f"`texts` must be a list of texts. Received: {texts!r}")
        return [self.to_ids(self.split(text)) for text in texts]

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
        return tokens if self._bpe is None else self._bpe.segment_tokens(tokens)

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
        tokens = []
        for i in map(int, ids):
            if i == END_ID:
                break
            if i not in (BOS_ID, PAD_ID):
                tokens.append(self.dictionary.symbol_of(i))
        return tokens

    def save(self, directory: str | os.PathLike):
        """Writes `dict.txt`, `bpe.codes` if there are any, and `settings.json`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.dictionary.write(directory / "dict.txt")
        if self.bpe_codes is not None:
            _write_file(directory / "bpe.codes", self.bpe_codes.encode())
        settings = {
            "format_version": _FORMAT_VERSION,
            "kind": self.kind,
            "bpe": self.bpe_codes is not None,
        } | {name: getattr(self, name) for name in _SETTINGS}
        text = json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
        _write_file(directory / "settings.json", text.encode())

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "DictionaryTokenizer":
        """Reads what `save` wrote. File names are fixed, no setting can name one."""
        directory = Path(directory)
        settings = _read_settings(directory)
        unknown = sorted(set(settings) - {"format_version", "kind", "bpe", *_SETTINGS})
        if unknown or settings.get("kind") != cls.kind:
            raise ValueError(
                f"{directory / 'settings.json'} must be of the kind {cls.kind!r} and "
                f"without other settings than its own. Received: "
                f"kind={settings.get('kind')!r}, unknown settings {unknown}"
            )
        codes = None
        if _flag("bpe", settings.get("bpe", False)):
            codes = _read_text(directory / "bpe.codes")
        given = {name: settings[name] for name in _SETTINGS if name in settings}
        return cls(Dictionary.read(directory / "dict.txt"), bpe_codes=codes, **given)


# Arguments of DictionaryTokenizer that settings.json holds.
_SETTINGS = (
    "language", "normalize", "moses", "aggressive_dash_splits", "escape", "lowercase",
    "remove_bpe",
)  # fmt: skip
_KINDS = {DictionaryTokenizer.kind: DictionaryTokenizer}


def load_tokenizer(directory: str | os.PathLike) -> DictionaryTokenizer:
    """Reads a folder that the `save` of some tokenizer wrote; safe to do to strangers'.

    Raises:
        ValueError: the settings are no JSON object, of a newer format, or of an unknown
            kind.
    """
    directory = Path(directory)
    kind = _read_settings(directory).get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"`kind` in {directory / 'settings.json'} must be one of {sorted(_KINDS)}. "
            f"Received: kind={kind!r}"
        )
    return _KINDS[kind].load(directory)


def replace_unknowns(
    hypothesis: Sequence[str],
    source: Sequence[str],
    attention,
    alignment_dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Puts the source token with the most attention for each `<unk>`.

    That is fairseq's `--replace-unk`, on tokens before byte pairs are joined. When the
    most attention lies on the source's end, the token is `<eos>`, as there.

    Args:
        hypothesis: tokens without the end symbol.
        source: tokens of the source without the end symbol.
        attention: (L, S) with L >= len(hypothesis); the columns after the source's end
            are padding and play no part.
        alignment_dictionary: source token -> what to write instead of it; see
            `read_alignment_dictionary`.
    """
    candidates = [*source, "<eos>"]
    attention = np.asarray(attention)
    if attention.ndim != 2 or len(attention) < len(hypothesis):
        raise ValueError(
            "`attention` must be of shape (L, S), with a row for each token of the "
            f"hypothesis. Received: shape {attention.shape}, {len(hypothesis)} tokens"
        )
    replaced = list(hypothesis)
    for i, token in enumerate(hypothesis):
        if token == SPECIAL_SYMBOLS[UNK_ID]:
            best = candidates[int(attention[i, : len(candidates)].argmax())]
            replaced[i] = (alignment_dictionary or {}).get(best, best)
    return replaced


def read_alignment_dictionary(path: str | os.PathLike) -> dict[str, str]:
    """Reads lines `source target`; of several for one source, the last counts."""
    pairs = {}
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        words = line.split()
        if len(words) == 1:
            raise _bad_line(path, number, f"must be '<source> <target>': {line!r}")
        if words:
            pairs[words[0]] = words[1]
    return pairs


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


def _flag(name: str, value) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def _missing(package: str, error: ImportError) -> ImportError:
    return ImportError(
        f"This tokenizer needs {package}: pip install 'keras-seqconv[mt]' ({error})"
    )


def _normalizer(language: str):
    try:
        from sacremoses import MosesPunctNormalizer
    except ImportError as error:
        raise _missing("sacremoses", error) from error
    return MosesPunctNormalizer(language)


def _moses(language: str):
    try:
        from sacremoses import MosesDetokenizer, MosesTokenizer
    except ImportError as error:
        raise _missing("sacremoses", error) from error
    return MosesTokenizer(language), MosesDetokenizer(language)


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
    for number, line in enumerate(lines[header:], 1 + header):
        if len(line.strip("\r\n ").split(" ")) != 2:
            raise ValueError(
                f"Line {number} of the byte-pair codes must be two symbols. "
                f"Received: {line!r}"
            )
    try:
        from subword_nmt.apply_bpe import BPE
    except ImportError as error:
        raise _missing("subword-nmt", error) from error
    return BPE(io.StringIO(codes))


# --- Files. ---


def _bad_line(path, number: int, problem: str) -> ValueError:
    return ValueError(f"{path}, line {number}: {problem}")


def _read_file(path: str | os.PathLike) -> bytes:
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file.")
    return path.read_bytes()


def _read_text(path: str | os.PathLike) -> str:
    try:
        return _read_file(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be valid UTF-8 ({error}).") from None


def _read_settings(directory: Path) -> dict:
    path = directory / "settings.json"
    try:
        settings = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} must be JSON ({error}).") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {settings!r}")
    version = settings.get("format_version")
    if version != _FORMAT_VERSION:
        raise ValueError(
            f"`format_version` in {path} must be {_FORMAT_VERSION}; perhaps a newer "
            f"package wrote it. Received: format_version={version!r}"
        )
    return settings


def _write_file(path: str | os.PathLike, content: bytes):
    """Writes beside the file and renames, so that no one sees half of it."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
