"""Texts beside their references: exact match, error rates, confusions of symbols.

jiwer (extra `mt`) aligns the texts. Where a text has several references, the nearest
one counts: that with the fewest errors, and the longest of those.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_seqconv.support import require
from keras_seqconv.support.arguments import check_choice

UNITS = ("words", "characters")
References = Sequence[str] | Sequence[Sequence[str | None]]


class Confusion(NamedTuple):
    """A substitution and its count; "" for the reference of an insertion, and for the
    hypothesis of a deletion.
    """

    reference: str
    hypothesis: str
    count: int


class ErrorRate(NamedTuple):
    """Errors in a corpus, in all, and symbols of the references that they are of."""

    substitutions: int
    insertions: int
    deletions: int
    symbols: int

    @property
    def errors(self) -> int:
        return self.substitutions + self.insertions + self.deletions

    @property
    def percent(self) -> float:
        return 100 * self.errors / max(1, self.symbols)


def check_references(references: References) -> list[list[str | None]]:
    """Each list of references, with None for an empty one: sacreBLEU leaves None out.

    ValueError for an empty text in the first list.
    """
    columns = [*references]
    if columns and isinstance(columns[0], str | None):
        columns = [columns]
    columns = [[text if text and text.strip() else None for text in c] for c in columns]
    if columns and None in columns[0]:
        raise ValueError(
            "The first of `references` must have no empty line (in a further one, an "
            "empty line is no reference). "
            f"Received: line {columns[0].index(None) + 1} is empty"
        )
    return columns


def columns_of(hypotheses: Sequence[str], references: References) -> list[list]:
    """Hypotheses and each list of references, of one length.

    ValueError where the lengths differ, or for no text, or a text in place of a list.
    """
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError(
            "`hypotheses` and `references` must be lists of texts. "
            f"Received: {hypotheses!r:.50} and {references!r:.50}"
        )
    columns = [list(hypotheses), *check_references(references)]
    lengths = [*map(len, columns)]
    if len(columns) == 1 or len({*lengths}) > 1 or not lengths[0]:
        raise ValueError(
            "`hypotheses` and `references` must have as many texts, at least one. "
            f"Received: {' and '.join(map(str, lengths))}"
        )
    return columns


def matches(hypotheses: Sequence[str], references: References) -> list[bool]:
    """Whether each text equals one of its references but for white space."""
    texts, *references = columns_of(hypotheses, references)
    rows = zip(texts, zip(*references, strict=True), strict=True)
    return [
        text.split() in [other.split() for other in row if other is not None]
        for text, row in rows
    ]


def error_rate(
    hypotheses: Sequence[str], references: References, unit: str = "words"
) -> ErrorRate:
    """Errors of a corpus in words, or in characters, blanks included.

    Args:
        hypotheses, references: as of `scores`, which also has the errors.
        unit: "words" between white space, or "characters".
    """
    counts = Counter()
    for reference, _, chunks in _nearest(hypotheses, references, unit):
        counts["symbols"] += len(reference)
        for chunk in chunks:
            counts[chunk.type] += _errors_in(chunk)
    kinds = ("substitute", "insert", "delete", "symbols")
    return ErrorRate(*(counts[kind] for kind in kinds))


def errors_by_text(
    hypotheses: Sequence[str], references: References, unit: str
) -> list[tuple[int, int]]:
    """Errors of each text, and symbols of its nearest reference."""
    return [
        (sum(map(_errors_in, chunks)), len(reference))
        for reference, _, chunks in _nearest(hypotheses, references, unit)
    ]


def confusions(
    hypotheses: Sequence[str], references: References, unit: str = "words"
) -> list[Confusion]:
    """Substitutions, insertions and deletions of symbols, the most frequent first.

    Args:
        hypotheses, references, unit: see `error_rate`.
    """
    counts = Counter()
    for reference, hypothesis, chunks in _nearest(hypotheses, references, unit):
        for chunk in chunks:
            if chunk.type == "equal":
                continue
            before = reference[chunk.ref_start_idx : chunk.ref_end_idx]
            after = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
            before, after = before or [""] * len(after), after or [""] * len(before)
            counts.update(zip(before, after, strict=True))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [Confusion(*pair, count) for pair, count in ordered]


def _nearest(hypotheses, references, unit: str) -> Iterator[tuple]:
    """Yields for each text the symbols of its nearest reference, its own, the chunks of
    their alignment.
    """
    check_choice("unit", unit, UNITS)
    process = getattr(require("jiwer", "mt"), f"process_{unit}")
    hypotheses, *references = columns_of(hypotheses, references)
    nearest = [None] * len(hypotheses)
    for column in references:
        rows = [row for row, text in enumerate(column) if text is not None]
        if not rows:
            continue
        sides = [
            [" ".join(texts[row].split()) for row in rows]
            for texts in (column, hypotheses)
        ]
        output = process(*sides)
        parts = output.references, output.hypotheses, output.alignments
        for row, *aligned in zip(rows, *parts, strict=True):
            order = sum(map(_errors_in, aligned[2])), -len(aligned[0])
            if nearest[row] is None or order < nearest[row][0]:
                nearest[row] = order, aligned
    return (aligned for _, aligned in nearest)


def _errors_in(chunk) -> int:
    if chunk.type == "equal":
        return 0
    of_reference = chunk.ref_end_idx - chunk.ref_start_idx
    return max(of_reference, chunk.hyp_end_idx - chunk.hyp_start_idx)
