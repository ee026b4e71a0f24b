"""fairseq's dictionaries, words in place of `<unk>`, and byte pairs of subword-nmt."""

import contextlib
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from keras_seqconv.support import require, tf
from keras_seqconv.support.arguments import plain
from keras_seqconv.support.files import read_bytes
from keras_seqconv.tokenizers.common import (
    SPECIAL_SYMBOLS,
    UNK_ID,
    lookup_table,
    most_frequent,
)

_OVERWRITE = "#fairseq:overwrite"


class Dictionary:
    """Symbols of a vocabulary with their counts, in fairseq's format and order.

    Ids 0 to 3 are <s>, <pad>, </s> and <unk>, which no file lists; the file's lines
    follow from 4 on. A symbol may contain blanks, as a line is split at the last one. A
    line that ends in `#fairseq:overwrite` may repeat an earlier symbol, or a special
    one; the symbol's id is then the later one.

    Args:
        entries: (symbol, count) in the order of their ids.

    Example:

    ```python
    from keras_seqconv.tokenizers import Dictionary
    dictionary = Dictionary.from_counts({"house": 3, "the": 9})
    assert dictionary.symbols[4:6] == ("the", "house")
    assert dictionary.id_of("the") == 4 and dictionary.id_of("castle") == 3
    ```
    """

    def __init__(self, entries: Iterable[tuple[str, int]] = ()):
        self._symbols = list(SPECIAL_SYMBOLS)
        self._counts = [1] * len(SPECIAL_SYMBOLS)
        self._ids = {symbol: i for i, symbol in enumerate(SPECIAL_SYMBOLS)}
        self._overwrite = set()
        for symbol, count in entries:
            self._add(symbol, count)

    def _add(self, symbol: str, count: int):
        index, count, problem = len(self), plain(count), None
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
            raise ValueError(f"{problem}: {symbol!r:.100}")
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
                    raise ValueError(f"must be '<symbol> <count>': {line!r:.100}")
                if not re.fullmatch(r"[+-]?[0-9]{1,18}", count):
                    raise ValueError(f"the count must be an integer: {count!r:.100}")
                self._add(symbol, int(count))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
        return self

    def to_text(self) -> str:
        """Returns the content of the file."""
        return "".join(
            f"{self._symbols[i]} {self._counts[i]}"
            + (f" {_OVERWRITE}\n" if i in self._overwrite else "\n")
            for i in range(len(SPECIAL_SYMBOLS), len(self))
        )

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], nwords: int | None = None
    ) -> "Dictionary":
        """Makes the dictionary of fairseq's preprocessing from counts of a corpus.

        `madeupwordNNNN 0` are added up to a multiple of 8.

        Args:
            counts: symbol -> occurrences; special symbols are ignored.
            nwords: limit of symbols, including four special ones, or None.
        """
        limit = None if nwords is None else max(0, nwords - len(SPECIAL_SYMBOLS))
        self = cls(most_frequent(counts, limit))
        number = 0
        while len(self) % 8:
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
    lines = read_bytes(path).split(b"\n")
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


# --- Byte pairs: learned from counted words, applied in a graph. ---


def learn_codes(counts: Mapping[str, int], merges: int) -> str:
    """The codes file that `subword-nmt learn-bpe -s merges` writes for a text.

    Args:
        counts: occurrences of each word of the text.
        merges: the most pairs to learn; fewer when none is left that comes twice.

    Raises:
        ValueError: no word has two letters, or no pair comes twice.
        ImportError: subword-nmt is missing (extra `mt`).
    """
    if not counts or max(map(len, counts)) < 2:
        raise ValueError(
            "The texts must hold a word of two letters to learn merges. "
            f"Received: {len(counts)} different words"
        )
    learn = require("subword_nmt.learn_bpe", "mt").learn_bpe
    lines = (f"{word} {count}\n" for word, count in counts.items())
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        learn(lines, codes, merges, is_dict=True)
    if codes.getvalue().count("\n") < 2:  # a header alone
        raise ValueError("The texts must hold a pair of letters that comes twice.")
    return codes.getvalue()


def read_codes(codes: str):
    """`subword_nmt.apply_bpe.BPE` of its codes or of those of fastBPE.

    fastBPE's lines have a count behind the two symbols, and merge as version 0.2.
    ValueError for other codes.
    """
    if not isinstance(codes, str):
        raise ValueError(
            "`bpe_codes` must be the text of a codes file. "
            f"Received: {type(codes).__name__}"
        )
    lines = codes.rstrip("\n").split("\n")
    header = lines[0].startswith("#version:")
    if header and not re.fullmatch(r"#version: 0\.[12]\s*", lines[0]):
        raise ValueError(
            "Line 1 of the byte-pair codes must be of version 0.1 or 0.2, "
            f"'#version: 0.2'. Received: {lines[0]!r}"
        )
    if re.fullmatch(r"\S+ \S+ \d+\s*", lines[0]):
        lines = [re.sub(r" \d+\s*$", "", line) for line in lines]
        codes = "\n".join(["#version: 0.2", *lines])
    # subword-nmt ends the whole process at a bad line.
    for number, line in enumerate(lines[header:] or [""], 1 + header):
        if len(line.strip("\r\n ").split(" ")) != 2:
            raise ValueError(
                f"Line {number} of the byte-pair codes must be two symbols. "
                f"Received: {line!r}"
            )
    return require("subword_nmt.apply_bpe", "mt").BPE(io.StringIO(codes))


class BytePairsInGraph:
    """Byte pairs of subword-nmt, by TensorFlow ops and tables only.

    Args:
        bpe: `subword_nmt.apply_bpe.BPE`.

    Attributes:
        trackables: resources, for an exported module to hold.
    """

    def __init__(self, bpe):
        pairs = sorted(bpe.bpe_codes, key=bpe.bpe_codes.get)
        # Symbols are numbered from 1 on; 0 is one that no pair holds.
        symbols = {symbol for pair in pairs for symbol in (*pair, "".join(pair))}
        numbers = {symbol: number for number, symbol in enumerate(sorted(symbols), 1)}
        self._base = len(numbers) + 1
        keys = (self._base * numbers[left] + numbers[right] for left, right in pairs)
        self._merged = [numbers[left + right] for left, right in pairs]
        self._numbers = lookup_table(numbers, 0)
        self._ranks = lookup_table({key: i for i, key in enumerate(keys)}, len(pairs))
        # Version 0.1 has the end of a word as a symbol of its own.
        self._separate_end = bpe.version == (0, 1)
        self.trackables = [self._numbers, self._ranks]

    def segment(self, words):
        """Ragged (N, None) parts of `words` (N,), not empty and valid UTF-8."""
        count = tf.size(words, tf.int64)
        letters = tf.strings.unicode_split(
            words + " " if self._separate_end else words, "UTF-8"
        )
        rows = _row_ids(letters.row_splits)
        letters = letters.values
        last = rows != tf.concat([rows[1:], [count]], axis=0)
        ends = "</w>" if self._separate_end else letters + "</w>"
        symbols = self._numbers.lookup(tf.where(last, ends, letters))
        rows, splits = self._merge(symbols, rows, count)
        parts = tf.strings.unsorted_segment_join(
            letters, _row_ids(splits), tf.size(rows)
        )
        parts = tf.strings.strip(parts)
        spelled = parts != ""  # not so a separate end of a word
        rows, parts = rows[spelled], parts[spelled]
        within = rows == tf.concat([rows[1:], [count]], axis=0)
        parts = tf.where(within, parts + "@@", parts)
        return tf.RaggedTensor.from_value_rowids(parts, rows, count, validate=False)

    def _merge(self, symbols, rows, count):
        """Pieces after all merges: rows, and row splits.

        Each step merges, in every word, all occurrences of its pair of lowest rank.
        """
        numbers = tf.constant(self._merged, tf.int64)
        none = len(self._merged)
        # One row more, so that there always is a symbol.
        symbols = tf.concat([symbols, [0]], axis=0)
        rows = tf.concat([rows, [count]], axis=0)
        splits = tf.range(tf.size(rows, tf.int64))

        def step(_, symbols, rows, splits):
            ranks = self._ranks.lookup(self._base * symbols[:-1] + symbols[1:])
            ranks = tf.where(rows[:-1] == rows[1:], ranks, none)
            best = tf.math.unsorted_segment_min(ranks, rows[:-1], count + 1)
            chosen = (ranks < none) & (ranks == tf.gather(best, rows[:-1]))
            # Of x x x the first two: every other one of a run that overlaps.
            positions = tf.range(tf.size(ranks))
            runs = tf.cumsum(tf.cast(~chosen, tf.int32))
            firsts = tf.where(chosen, positions, positions[-1:])
            firsts = tf.math.unsorted_segment_min(firsts, runs, tf.size(symbols))
            chosen &= (positions - tf.gather(firsts, runs)) % 2 == 0
            merged = tf.gather(numbers, tf.where(chosen, ranks, 0))
            merged = tf.where(chosen, merged, symbols[:-1])
            symbols = tf.concat([merged, symbols[-1:]], axis=0)
            kept = tf.concat([[True], ~chosen], axis=0)
            return tf.reduce_any(chosen), symbols[kept], rows[kept], splits[kept]

        some = tf.TensorShape([None])
        _, _, rows, splits = tf.while_loop(
            lambda going, *_: going,
            step,
            (True, symbols, rows, splits),
            shape_invariants=(tf.TensorShape([]), some, some, some),
        )
        return rows[:-1], splits


def _row_ids(splits):
    """The row of each value; no row is empty. (TensorFlow's way is quadratic.)"""
    starts = splits[1:-1]
    ones = tf.ones_like(starts)
    return tf.cumsum(tf.math.unsorted_segment_sum(ones, starts, splits[-1]))
