"""fairseq's dictionaries: symbols with their counts, and words in place of `<unk>`."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_seqconv.support.files import write_file
from keras_seqconv.tokenizers.common import SPECIAL_SYMBOLS, UNK_ID

_OVERWRITE = "#fairseq:overwrite"


class Dictionary:
    """Symbols of a vocabulary with their counts, in fairseq's format and order.

    Ids 0 to 3 are <s>, <pad>, </s> and <unk>, which no file lists; the file's lines
    follow from 4 on. A symbol may contain blanks, as a line is split at the last one.

    Args:
        entries: (symbol, count) in the order of their ids.
        overwrite: ids of entries that may repeat an earlier symbol, or a special one;
            the symbol's id is then the later one (fairseq's `#fairseq:overwrite`).

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
        self._overwrite = set(overwrite)
        for symbol, count in entries:
            self._add(symbol, count)

    def _add(self, symbol: str, count: int):
        index, problem = len(self), None
        if not isinstance(symbol, str) or not symbol or re.search("[\r\n]", symbol):
            problem = "a symbol must be a text that is not empty, without a line break"
        elif isinstance(count, bool) or not isinstance(count, int):
            problem = f"the count must be an integer, not {count!r}"
        elif re.search("[\ud800-\udfff]", symbol):
            problem = "a symbol must be valid Unicode"
        elif symbol in self._ids and index not in self._overwrite:
            problem = (
                f"a symbol must appear once (it has id {self._ids[symbol]} already) "
                f"unless its line ends in {_OVERWRITE}"
            )
        if problem is not None:
            raise ValueError(f"{problem}: {symbol!r}")
        self._ids[symbol] = index
        self._symbols.append(symbol)
        self._counts.append(count)

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Dictionary":
        """Reads fairseq's `dict.<language>.txt`.

        Raises:
            ValueError: a line has no integer count, an empty or repeated symbol, or
                bytes that are not UTF-8; names file, line and rule.
        """
        self = cls()
        for number, line in _lines(path):
            line = line.rstrip()
            entry = line.removesuffix(f" {_OVERWRITE}")
            if entry != line:
                self._overwrite.add(len(self))
            symbol, blank, count = entry.rpartition(" ")
            try:
                if not blank:
                    raise ValueError(f"must be '<symbol> <count>': {line!r}")
                if not re.fullmatch(r"[+-]?[0-9]{1,18}", count):
                    raise ValueError(f"the count must be an integer: {count!r}")
                self._add(symbol, int(count))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
        return self

    def write(self, path: str | os.PathLike):
        """Writes fairseq's format, completely or not at all."""
        write_file(path, self.to_text().encode())

    def to_text(self) -> str:
        """Returns the content of the file."""
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
        """Makes the dictionary of fairseq's preprocessing from counts of a corpus.

        Args:
            counts: symbol -> occurrences; special symbols are ignored.
            threshold: less frequent symbols are dropped.
            nwords: limit of symbols, including four special ones; no limit if <= 0.
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
            if filler not in self._ids:
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
        """Returns the id of a symbol; 3 for unknown symbols."""
        return self._ids.get(symbol, UNK_ID)

    def __len__(self) -> int:
        return len(self._symbols)

    def __eq__(self, other) -> bool:
        if not isinstance(other, Dictionary):
            return NotImplemented
        return self.to_text() == other.to_text()

    def __repr__(self) -> str:
        return f"<Dictionary of {len(self)} symbols>"


def _lines(path: str | os.PathLike):
    """Numbers, from 1, and lines; not `splitlines`, as symbols may hold its breaks."""
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        try:
            yield number, line.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"{path}, line {number}: must be valid UTF-8: {line[:40]!r}"
            ) from None


# --- Source words in the place of unknown ones. ---


def replace_unknowns(
    hypothesis: Sequence[str],
    source: Sequence[str],
    attention,
    alignment_dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Replaces each `<unk>` by the source token with the most attention.

    This is fairseq's `--replace-unk`, on tokens before byte pairs are joined. If the
    source's end has the most attention, the token is `<eos>`, as in fairseq.

    Args:
        hypothesis: tokens without the end symbol.
        source: tokens of the source without the end symbol.
        attention: (L, S) with L >= len(hypothesis); columns after the source's end are
            padding and ignored.
        alignment_dictionary: source token -> its replacement; see
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
    """Reads lines `source target`; the last line of a source wins."""
    pairs = {}
    for number, line in _lines(path):
        words = line.split()
        if len(words) == 1:
            raise ValueError(
                f"{path}, line {number}: must be '<source> <target>': {line!r}"
            )
        if words:
            pairs[words[0]] = words[1]
    return pairs
