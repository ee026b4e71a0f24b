"""Byte pairs of subword-nmt: learned from counted words, applied in a graph."""

import contextlib
import io
import re
from collections.abc import Mapping

from keras_seqconv.support import require
from keras_seqconv.tokenizers.common import lookup_table


def learn_codes(counts: Mapping[str, int], merges: int) -> str:
    """The codes file that `subword-nmt learn-bpe -s merges` writes for a text.

    Args:
        counts: occurrences of each word of the text.
        merges: the most pairs to learn; fewer when none is left that comes twice.

    Raises:
        ValueError: no word has two letters.
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
    return codes.getvalue()


def read_codes(codes: str):
    """`subword_nmt.apply_bpe.BPE`, or ValueError for codes that it cannot read."""
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
        keys = (self._key(numbers[left], numbers[right]) for left, right in pairs)
        self._merged = [numbers[left + right] for left, right in pairs]
        self._numbers = lookup_table(numbers, 0)
        self._ranks = lookup_table({key: i for i, key in enumerate(keys)}, len(pairs))
        # Version 0.1 has the end of a word as a symbol of its own.
        self._separate_end = bpe.version == (0, 1)
        self.trackables = [self._numbers, self._ranks]

    def _key(self, left, right):
        """The number of a pair of numbers."""
        return self._base * left + right

    def segment(self, words):
        """Ragged (N, None) parts of `words` (N,), not empty and valid UTF-8."""
        import tensorflow as tf

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
        """What is left when no pair of any word can be merged: rows, and row splits.

        Each step merges, in every word, all occurrences of its pair of lowest rank.
        """
        import tensorflow as tf

        numbers = tf.constant(self._merged, tf.int64)
        none = len(self._merged)
        # One row more, so that there always is a symbol.
        symbols = tf.concat([symbols, [0]], axis=0)
        rows = tf.concat([rows, [count]], axis=0)
        splits = tf.range(tf.size(rows, tf.int64))

        def step(_, symbols, rows, splits):
            ranks = self._ranks.lookup(self._key(symbols[:-1], symbols[1:]))
            ranks = tf.where(rows[:-1] == rows[1:], ranks, none)
            best = tf.math.unsorted_segment_min(ranks, rows[:-1], count + 1)
            chosen = (ranks < none) & (ranks == tf.gather(best, rows[:-1]))
            # Of x x x the first two: every other one of a run that overlaps.
            places = tf.range(tf.size(ranks))
            runs = tf.cumsum(tf.cast(~chosen, tf.int32))
            firsts = tf.where(chosen, places, places[-1:])
            firsts = tf.math.unsorted_segment_min(firsts, runs, tf.size(symbols))
            chosen &= (places - tf.gather(firsts, runs)) % 2 == 0
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
    import tensorflow as tf

    starts = splits[1:-1]
    ones = tf.ones_like(starts)
    return tf.cumsum(tf.math.unsorted_segment_sum(ones, starts, splits[-1]))
