"""Pairs of lines of a part of a corpus, in chunks."""

import itertools
from collections import Counter
from collections.abc import Iterator

from keras_seqconv.preparation import text
from keras_seqconv.preparation.files import Place, lines
from keras_seqconv.preparation.recipes import Located
from keras_seqconv.preparation.workers import Columns

PAIRS_AT_ONCE = 2000
_DROPPED = (b"<url>", b"<talkid>", b"<keywords>")
_DELETED = (b"<title>", b"</title>", b"<description>", b"</description>")
_INVALID = "not UTF-8"


def read_pairs(located: Located, on_error: str, counts: Counter) -> Iterator[Columns]:
    """Chunks of [source lines, target lines], without blanks at the ends of lines.

    Args:
        located: the part.
        on_error: what is done to lines that are not UTF-8, see `Recipe`.
        counts: goes up by what was read and left out, of the source's file.

    Raises:
        ValueError: the files have different numbers of lines (says both), or a line is
            not UTF-8 and `on_error` is "raise".
    """
    sides = [
        _marked_lines(place, located.part.markup, counts if side == 0 else Counter())
        for side, place in enumerate(located.places)
    ]
    number = 0
    while True:
        chunk = [list(itertools.islice(side, PAIRS_AT_ONCE)) for side in sides]
        if len(chunk[0]) != len(chunk[1]):
            _raise_unequal(located, chunk, sides, number)
        if not chunk[0]:
            return
        counts["pairs"] += len(chunk[0])
        yield _decoded(chunk, located.places, number, on_error, counts)
        number += len(chunk[0])


def _raise_unequal(located, chunk, sides, number):
    totals = [
        number + len(got) + sum(1 for _ in side)
        for got, side in zip(chunk, sides, strict=True)
    ]
    what = {"plain": "lines", "tags": "lines of text", "segments": "lines of <seg id"}
    raise ValueError(
        f"Parallel files must have the same number of {what[located.part.markup]}: "
        + ", ".join(
            f"{place} has {total:,}"
            for place, total in zip(located.places, totals, strict=True)
        )
    )


def _marked_lines(place: Place, markup: str, counts: Counter) -> Iterator[bytes]:
    for line in lines(place):
        counts["lines"] += 1
        if markup == "tags":
            dropped = [tag for tag in _DROPPED if tag in line]
            if dropped:
                counts[f"lines with {dropped[0].decode()}"] += 1
                continue
            for tag in _DELETED:
                line = line.replace(tag, b"")
        elif markup == "segments":
            if b"<seg id" not in line:
                counts["lines without <seg id"] += 1
                continue
            # Bytes that are no UTF-8 come through, and are looked at later.
            line = text.segment(line.decode(errors="surrogateescape"))
            line = line.encode(errors="surrogateescape")
        yield line


def _decoded(chunk, places, number, on_error, counts) -> Columns:
    try:
        columns = [[line.decode() for line in column] for column in chunk]
    except UnicodeDecodeError:
        columns = _repaired(chunk, places, number, on_error, counts)
    # NUL would not come back from a dataset of texts.
    return [[line.replace("\0", " ").strip() for line in column] for column in columns]


def _repaired(chunk, places, number, on_error, counts) -> Columns:
    bad = set()
    for place, column in zip(places, chunk, strict=True):
        for row, line in enumerate(column):
            try:
                line.decode()
            except UnicodeDecodeError:
                if on_error == "raise":
                    raise ValueError(
                        f"{place}, pair {number + row + 1:,}, is not valid UTF-8. "
                        'Correct it, or leave out such pairs: `on_error` "skip".'
                    ) from None
                bad.add(row)
    counts[_INVALID + (", repaired" if on_error == "replace" else "")] += len(bad)
    return [
        [
            line.decode(errors="replace")
            for row, line in enumerate(column)
            if on_error == "replace" or row not in bad
        ]
        for column in chunk
    ]
