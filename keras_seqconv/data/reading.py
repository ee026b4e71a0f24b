"""Rows of text: read from files, checked, counted.

A row is a sentence of each language, or a line of text alone; a *column* holds the
texts of one language. Rows are handled some thousands at a time.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_seqconv.support.lines import iterate_lines

ROWS_AT_ONCE = 8192
# What is wrong with a row, as a key of the counts -> in words.
_PROBLEMS = {
    "empty": "has no text",
    "invalid_utf8": "is not valid UTF-8",
    "nul": "holds a NUL character",
}


class Rows(NamedTuple):
    """Some rows, unchecked.

    Attributes:
        columns: for each column, the texts of the rows; what is not UTF-8 in them as
            lone surrogates.
        place: (column, row) -> where that text is from, in words.
    """

    columns: Sequence[Sequence[str]]
    place: Callable[[int, int], str]


def read_parallel(
    paths: Sequence[Path], on_error: str, counts: collections.Counter
) -> Iterator[Rows]:
    """The rows of parallel files, a column each.

    A line ends with LF or CRLF and nothing else (not with U+2028, not with a lone CR);
    the last line needs no end. A byte order mark is left out.

    Raises:
        ValueError: a broken compressed file; a line of more than 16 MiB; one file
            has more lines than another, unless `on_error` is "skip"; then
            these lines are counted as "unpaired".
    """
    readers = [iterate_lines(path, "keep") for path in paths]
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
        rows = [line.split("\t", 2) for line in lines]
        columns = [[row[0] for row in rows], ["".join(row[1:2]) for row in rows]]
        yield Rows(columns, lambda _, row, place=place: place(0, row))


def checked(
    parts: Iterable[Rows], on_error: str, keep_empty: bool, counts: collections.Counter
) -> Iterator[list[list[str]]]:
    """The columns of the rows that can be used; never empty.

    Args:
        parts: of the corpus.
        on_error: "raise", or "skip" and count what cannot be used.
        keep_empty: whether a row without text is a row like others.
        counts: go up under "kept", and under the reason for each row left out.

    Raises:
        ValueError: the first row that cannot be used, with its place.
    """
    for columns, place in parts:
        bad = set()
        for column, texts in enumerate(columns):
            if _all_good(texts, keep_empty):
                continue
            for row, text in enumerate(texts):
                problem = _problem(text, keep_empty)
                if problem is None or row in bad:
                    continue
                if on_error == "raise":
                    raise ValueError(
                        f"{place(column, row)} {_PROBLEMS[problem]}. Correct it, or "
                        "leave out such rows (`on_error`='skip')."
                    )
                bad.add(row)
                counts[problem] += 1
        if bad:
            columns = [
                [text for row, text in enumerate(texts) if row not in bad]
                for texts in columns
            ]
        counts["kept"] += len(columns[0])
        if columns[0]:
            yield columns


def _all_good(texts: Sequence[str], keep_empty: bool) -> bool:
    """All at once, which is much faster than text by text."""
    joined = "".join(texts)
    return (
        "\0" not in joined
        and _is_unicode(joined)
        and (keep_empty or all(map(str.strip, texts)))
    )


def _problem(text: str, keep_empty: bool) -> str | None:
    if not _is_unicode(text):
        return "invalid_utf8"
    if "\0" in text:
        return "nul"
    return None if keep_empty or text.strip() else "empty"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True
