"""Rows of text files: lines of parallel files, cells of a table, and what is wrong.

Rows are handled some thousands at a time, as columns: lists of texts.
"""

import collections
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_seqconv.support.files import iterate_lines

_ROWS_AT_ONCE = 8192
# What is wrong with a text, as a key of the counts -> in words.
_PROBLEMS = {
    "empty": "has no text",
    "invalid_utf8": "is not valid UTF-8",
    "nul": "holds a NUL character",
    "no_tab": "has no tab between source and target",
}
_NO_TAB = "\ud800"  # of a line without one: no file holds it
# Words of a cell that names a column, beside the two languages.
_COLUMNS = {
    "source", "target", "src", "tgt", "text", "translation", "sentence", "english",
    "german", "french", "spanish", "italian", "dutch", "portuguese", "russian",
    "chinese", "japanese", "czech", "polish",
}  # fmt: skip


def checked(
    rows: Iterable[tuple], skip: bool, keep_empty: bool, counts: collections.Counter
) -> Iterator[list[list[str]]]:
    """The columns of the rows that can be used; counts them, and those left out.

    `rows` are parts of (columns, what each column is, number of each row); what is not
    UTF-8 stands as lone surrogates in the texts.
    """
    for columns, names, numbers in rows:
        bad = {}
        for name, texts in zip(names, columns, strict=True):
            # All at once, which is much faster than text by text.
            filled = keep_empty or all(map(str.strip, texts))
            if filled and _problem("".join(texts)) is None:
                continue
            for row, text in enumerate(texts):
                empty = not keep_empty and not text.strip()
                problem = _problem(text) or ("empty" if empty else None)
                if problem is not None and not skip:
                    raise ValueError(
                        f"{name} {numbers[row]:,}, {_PROBLEMS[problem]}. Correct it, "
                        "or leave out such rows (`on_error`='skip')."
                    )
                if problem is not None:
                    bad.setdefault(row, problem)
        if bad:
            counts.update(bad.values())
            columns = [
                [text for row, text in enumerate(texts) if row not in bad]
                for texts in columns
            ]
        counts["kept"] += len(columns[0])
        if columns[0]:
            yield columns


def _problem(text: str) -> str | None:
    if text == _NO_TAB:
        return "no_tab"
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return "invalid_utf8"
    return "nul" if "\0" in text else None


def read_tsv(path: Path, languages: set[str], header: bool | None) -> Iterator[tuple]:
    """The rows of the first two columns of a file, for `checked`."""
    quoted, third = 0, ""
    for (lines,), names, numbers in read_parallel([path], False, collections.Counter()):
        rows = [[*line.split("\t"), _NO_TAB][: max(2, line.count("\t") + 1)]
                for line in lines]  # fmt: skip
        if numbers[0] == 1:
            if header is None and _names_columns(rows[0][:2], languages):
                raise ValueError(
                    f"`tsv_header` must say whether line 1 of {path} names the columns "
                    f"(true) or is text (false). Received: {' | '.join(rows[0])}"
                )
            rows, numbers = rows[bool(header) :], numbers[bool(header) :]
        texts = [[row[side] for row in rows] for side in (0, 1)]
        quoted += sum(
            len(text) > 1 and text[0] == '"' == text[-1]
            for text in itertools.chain(*texts)
        )
        third = third or next((row[2] for row in rows if len(row) > 2), "")
        yield texts, names * 2, numbers
    if quoted:
        warnings.warn(
            f"{path}: {quoted:,} cells stand in quotes, as spreadsheets write them; "
            "the quotes are read as text.",
            stacklevel=2,
        )
    if third:
        warnings.warn(
            f"{path}: columns from the third on are left out, such as {third[:60]!r}.",
            stacklevel=2,
        )


def _names_columns(cells: list[str], languages: set[str]) -> bool:
    known = _COLUMNS | {language.lower() for language in languages}
    words = [set(re.split(r"[\W_]+", cell.lower().strip('"'))) for cell in cells]
    return all(one & known and len(one) <= 3 for one in words)


def read_parallel(
    paths: Sequence[Path], skip: bool, counts: collections.Counter
) -> Iterator[tuple]:
    """The rows of parallel files, for `checked`.

    Lines beyond the end of the shortest file are an error, or counted as "unpaired".
    """
    readers = [iterate_lines(path, "keep") for path in paths]
    names = [f"{path}, line" for path in paths]
    done = 0  # rows
    while True:
        columns = [[*itertools.islice(one, _ROWS_AT_ONCE)] for one in readers]
        for path, lines in zip(paths, columns, strict=True):
            if not done and len(lines) == 1 and "\r" in lines[0]:
                raise ValueError(
                    f"Lines of {path} must end with LF or CRLF. It has one line, with "
                    f"{lines[0].count(chr(13)):,} times CR alone."
                )
        common = min(map(len, columns))
        texts = [lines[:common] for lines in columns]
        if common:
            yield texts, names, range(done + 1, done + common + 1)
        done += common
        if common < _ROWS_AT_ONCE:
            break
    more = [
        len(lines) - common + sum(1 for _ in reader)
        for lines, reader in zip(columns, readers, strict=True)
    ]
    if any(more) and not skip:
        sizes = zip(paths, more, strict=True)
        raise ValueError(
            "Parallel files must have the same number of lines: "
            + ", ".join(f"{path} has {done + number:,}" for path, number in sizes)
            + f". Line {done + 1:,} of {paths[more.index(max(more))]} has no partner."
        )
    counts["unpaired"] += max(more)
