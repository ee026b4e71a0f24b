"""Rows of text: read from files, checked, counted.

A row is a sentence of each language, or a line of text alone; a *column* holds the
texts of one language. Rows are handled some thousands at a time.
"""

import bz2
import collections
import gzip
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROWS_AT_ONCE = 8192
# A longer "line" is hardly text, and would have to be held in memory.
LONGEST_LINE = 16 << 20
# By content, not by name: a file may have been renamed, and a text may begin with BZh.
_COMPRESSED = (
    (rb"\x1f\x8b\x08", gzip.open),
    (rb"BZh\d1AY&SY", bz2.open),
    (rb"\xfd7zXZ\x00", lzma.open),
)
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
# What is wrong with a row, as a key of the counts -> in words.
_PROBLEMS = {
    "empty": "has no text",
    "invalid_utf8": "is not valid UTF-8",
    "nul": "holds a NUL character",
}


class Rows(NamedTuple):
    """Some rows, unchecked.

    Attributes:
        columns: for each column, the UTF-8 texts of the rows.
        place: (column, row) -> where that text is from, in words.
    """

    columns: Sequence[Sequence[bytes]]
    place: Callable[[int, int], str]


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, plain or compressed with gzip, bzip2 or xz.

    A line ends with LF or CRLF and nothing else (not with U+2028, not with a lone CR);
    the last line needs no end. A byte order mark is left out. Every other byte of a
    line is kept.

    Raises:
        ValueError: while reading, with file and line: a broken compressed file, a line
            of more than 16 MiB, UTF-16.
    """
    number = 0
    with _opener(path)(path, "rb") as stream:
        lines = iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
        try:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise ValueError(
                            f"{path}, line 1, must be UTF-8. It starts like UTF-16: "
                            "convert it, for example with iconv -f UTF-16 -t UTF-8."
                        )
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if len(line) > LONGEST_LINE:
                    raise ValueError(
                        f"{path}, line {number:,}, must not be longer than "
                        f"{LONGEST_LINE >> 20} MiB. Is it text, one sentence a line?"
                    )
                yield line.removesuffix(b"\n").removesuffix(b"\r")
        except _BROKEN as error:
            raise ValueError(
                f"{path} must be a complete compressed file. It breaks off after "
                f"line {number:,}: {error}"
            ) from error


def _opener(path: Path) -> Callable:
    with open(path, "rb") as stream:
        start = stream.read(10)
    for magic, opener in _COMPRESSED:
        if re.match(magic, start):
            return opener
    return open


def read_parallel(
    paths: Sequence[Path], on_error: str, counts: collections.Counter
) -> Iterator[Rows]:
    """The rows of parallel files, a column each.

    Raises:
        ValueError: one has more lines than another, unless `on_error` is "skip"; then
            these lines are counted as "unpaired".
    """
    readers = [read_lines(path) for path in paths]
    done = 0  # rows
    while True:
        columns = [[*itertools.islice(one, ROWS_AT_ONCE)] for one in readers]
        common = min(map(len, columns))
        if common:
            yield Rows(
                [lines[:common] for lines in columns],
                lambda column, row, first=done + 1: (
                    f"{paths[column]}, line {first + row:,},"
                ),
            )
        done += common
        if common < ROWS_AT_ONCE:
            break
    more = [
        len(lines) - common + sum(1 for _ in reader)
        for lines, reader in zip(columns, readers, strict=True)
    ]
    if any(more) and on_error == "raise":
        sizes = zip(paths, more, strict=True)
        raise ValueError(
            "Parallel files must have the same number of lines: "
            + ", ".join(f"{path} has {done + number:,}" for path, number in sizes)
            + f". Line {done + 1:,} of {paths[more.index(max(more))]} has no partner."
        )
    counts["unpaired"] += max(more)


def read_tsv(path: Path) -> Iterator[Rows]:
    """The first two columns, between tabs, of the lines of a file.

    What stands behind a second tab is left out; a line without a tab has no target.
    """
    for (lines,), place in read_parallel([path], "raise", collections.Counter()):
        rows = [line.split(b"\t", 2) for line in lines]
        columns = [[row[0] for row in rows], [b"".join(row[1:2]) for row in rows]]
        yield Rows(columns, lambda _, row, place=place: place(0, row))


def checked(
    parts: Iterable[Rows], on_error: str, keep_empty: bool, counts: collections.Counter
) -> Iterator[list[list[str]]]:
    """The columns of the rows that can be used, as strings; never empty.

    Args:
        parts: of the corpus.
        on_error: "raise", or "skip" and count what cannot be used.
        keep_empty: whether a row without text is a row like others.
        counts: go up under "kept", and under the reason for each row left out.

    Raises:
        ValueError: the first row that cannot be used, with its place.
    """
    for columns, place in parts:
        texts = [_decoded(column, keep_empty) for column in columns]
        if None in texts:
            texts = _without_bad(columns, place, on_error, keep_empty, counts)
        counts["kept"] += len(texts[0])
        if texts[0]:
            yield texts


def _decoded(column: Sequence[bytes], keep_empty: bool) -> list[str] | None:
    """All texts, or None if one is bad; some fifty times as fast as one by one."""
    try:
        joined = b"\n".join(column).decode()
    except UnicodeDecodeError:
        return None
    texts = joined.split("\n")
    good = "\0" not in joined and (keep_empty or all(map(str.strip, texts)))
    return texts if good else None


def _without_bad(columns, place, on_error, keep_empty, counts) -> list[list[str]]:
    kept = []
    for row, texts in enumerate(zip(*columns, strict=True)):
        problems = [_problem(text, keep_empty) for text in texts]
        if not any(problems):
            kept.append([text.decode() for text in texts])
            continue
        column, problem = next((c, p) for c, p in enumerate(problems) if p)
        if on_error == "raise":
            raise ValueError(
                f"{place(column, row)} {_PROBLEMS[problem]}. Correct it, or leave out "
                "such rows (`on_error`='skip')."
            )
        counts[problem] += 1
    return [list(texts) for texts in zip(*kept, strict=True)] or [[] for _ in columns]


def _problem(text: bytes, keep_empty: bool) -> str | None:
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return "invalid_utf8"
    if "\0" in decoded:
        return "nul"
    return None if keep_empty or decoded.strip() else "empty"
