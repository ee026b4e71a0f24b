"""Text files, one sentence a line: parallel files, and text for language models."""

import bz2
import collections
import fractions
import gzip
import itertools
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_seqconv.data.rows import Chunk, Rules, to_dataset
from keras_seqconv.support.arguments import check_choice, is_number

Files = str | os.PathLike | Sequence[str | os.PathLike]

LINES_AT_ONCE = 8192
BYTES_AT_ONCE = 1 << 20
# A longer "line" is hardly text, and would have to be held in memory.
LONGEST_LINE = 16 << 20
# By content, not by name: a file may have been renamed.
_COMPRESSED = (
    (b"\x1f\x8b\x08", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


def from_files(
    source_files: Files,
    target_files: Files,
    *,
    upsample: float | Sequence[float] | None = None,
    on_error: str = "raise",
    counts: collections.Counter | None = None,
):
    """Pairs of lines of parallel files, in the order of the files.

    Files are UTF-8, plain or compressed with gzip, bzip2 or xz, which is told by their
    first bytes. A line ends with LF or CRLF and nothing else (not with U+2028, not
    with a lone CR); the last line needs no end. A byte order mark is left out. Every
    other byte of a line is kept. Memory does not grow with the files, and each
    iteration reads them anew.

    Args:
        source_files: a path, or several.
        target_files: as many, with as many lines each.
        upsample: how often each pair of files comes up: a number > 0 for each, or one
            number for the first pair (fairseq's `upsample_primary`), 1 for the others.
            With 2.5 a file is read twice, and then every second of its pairs (the
            first left out) follows. Default: once each.
        on_error: "raise", or "skip" what cannot be used.
        counts: receives, at the end of each complete pass, how many pairs were
            "kept" and how many left out, each file counted once: "empty" (either side
            without text), "invalid_utf8", "nul", "unpaired" (lines beyond the end of
            the shorter file: look at these, the files may be shifted).

    Returns:
        A tf.data.Dataset of {"source": (), "target": ()} strings.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: of an argument, at once. While reading, wrapped by tf.data unless
            `keras_seqconv.data.rows.plain_errors` is used: what `on_error` is for,
            with file and line; a broken compressed file, a line of more than 16 MiB,
            and no pair at all, whatever `on_error` is.
    """
    sources = _paths("source_files", source_files)
    targets = _paths("target_files", target_files)
    if len(sources) != len(targets):
        raise ValueError(
            "`target_files` must be as many as `source_files`. Received: "
            f"{len(sources)} source files, {len(targets)} target files"
        )
    groups = list(zip(sources, targets, strict=True))
    return _dataset(groups, ("source", "target"), upsample, Rules(on_error), counts)


def from_tsv(
    files: Files, *, on_error: str = "raise", counts: collections.Counter | None = None
):
    """Pairs in the first two columns, between tabs, of the lines of text files.

    What stands behind a second tab is left out. A line without a tab has no target and
    counts as "empty".

    Args:
        files: a path, or several; as of `from_files`.
        on_error, counts: as of `from_files`.

    Returns, Raises:
        As `from_files`.
    """
    paths = _paths("files", files)
    rules = Rules(on_error)

    def one_pass(own):
        for chunk in itertools.chain.from_iterable(
            _chunks((path,), rules, own) for path in paths
        ):
            rows = [line.split(b"\t", 2) for line in chunk.columns[0]]
            columns = [[row[0] for row in rows], [b"".join(row[1:2]) for row in rows]]
            yield rules.apply(
                Chunk(columns, lambda _, row, where=chunk.where: where(0, row)), own
            )

    what = ", ".join(map(str, paths))
    return to_dataset(one_pass, ("source", "target"), counts, what)


def from_lines(
    files: Files,
    *,
    upsample: float | Sequence[float] | None = None,
    empty: str = "keep",
    on_error: str = "raise",
    counts: collections.Counter | None = None,
):
    """Lines of text files for a language model, in the order of the files.

    Args:
        files: a path, or several; as of `from_files`.
        upsample: as of `from_files`.
        empty: "keep" lines without text, as fairseq does (they become an end token;
            the break mode "complete_doc" divides documents at them), or treat them as
            an "error" that `on_error` is for.
        on_error: as of `from_files`.
        counts: as of `from_files`.

    Returns:
        A tf.data.Dataset of {"target": ()} strings.

    Raises:
        As `from_files`.
    """
    check_choice("empty", empty, ("keep", "error"))
    groups = [(path,) for path in _paths("files", files)]
    rules = Rules(on_error, keep_empty=empty == "keep")
    return _dataset(groups, ("target",), upsample, rules, counts)


def _dataset(groups, names, upsample, rules, counts):
    factors = _factors(upsample, len(groups))

    def one_pass(own):
        for group, factor in zip(groups, factors, strict=True):
            yield from _repeated(group, factor, rules, own)

    what = ", ".join(str(path) for path in itertools.chain(*groups))
    return to_dataset(one_pass, names, counts, what)


def _paths(name: str, files: Files) -> list[Path]:
    if isinstance(files, (str, os.PathLike)):
        files = [files]
    paths = [Path(file) for file in files]
    if not paths:
        raise ValueError(f"`{name}` must name at least one file. Received: {files!r}")
    for path in paths:
        if path.is_dir():
            raise ValueError(f"`{name}` must be files. A folder: {path}")
        if not path.exists():
            raise FileNotFoundError(f"`{name}` must exist. No such file: {path}")
    return paths


def _factors(upsample, number: int) -> list[fractions.Fraction]:
    if upsample is None:
        values = [1] * number
    elif isinstance(upsample, Sequence) and not isinstance(upsample, str):
        values = list(upsample)
    else:
        values = [upsample] + [1] * (number - 1)
    if len(values) != number or not all(is_number(v) and v > 0 for v in values):
        raise ValueError(
            "`upsample` must be a number > 0, or one for each of the files "
            f"({number}). Received: upsample={upsample!r}"
        )
    exact = [fractions.Fraction(value) for value in values]
    # 1 / 3 and 0.1 mean what they say, not the binary number nearest to it.
    return [value.limit_denominator(10_000) or value for value in exact]


def _repeated(group, factor, rules, counts) -> Iterator[list[list[bytes]]]:
    """The good rows of a group of files, `factor` times."""
    whole, part = divmod(factor, 1)
    for number in range(int(whole)):
        # What is left out is counted in the first pass only.
        own = counts if number == 0 else collections.Counter()
        for chunk in _chunks(group, rules, own):
            yield rules.apply(chunk, own)
    if not part:
        return
    own = counts if whole == 0 else collections.Counter()
    above, below = part.as_integer_ratio()
    position = 0
    for chunk in _chunks(group, rules, own):
        columns = rules.apply(chunk, own)
        first, position = position, position + len(columns[0])
        chosen = [
            row
            for row in range(position - first)
            if (first + row + 1) * above // below > (first + row) * above // below
        ]
        yield [[texts[row] for row in chosen] for texts in columns]


def _chunks(group, rules, counts) -> Iterator[Chunk]:
    """The rows of a group of files, unchecked; each file is a column."""
    readers = [_Reader(path) for path in group]
    try:
        while True:
            columns = [reader.read(LINES_AT_ONCE) for reader in readers]
            first = readers[0].lines - len(columns[0])
            length = min(len(lines) for lines in columns)
            if length:
                yield Chunk(
                    [lines[:length] for lines in columns],
                    lambda column, row, first=first: (
                        f"{group[column]}, line {first + row + 1:,},"
                    ),
                )
            if length < LINES_AT_ONCE:
                break
        _check_same_length(readers, rules, counts)
    finally:
        for reader in readers:
            reader.close()


def _check_same_length(readers, rules, counts):
    """Called where the shortest file has ended."""
    for reader in readers:
        while reader.read(LINES_AT_ONCE):
            pass
    lengths = [reader.lines for reader in readers]
    if len(set(lengths)) == 1:
        return
    if rules.on_error == "raise":
        longer = readers[lengths.index(max(lengths))].path
        raise ValueError(
            "Parallel files must have the same number of lines: "
            + ", ".join(f"{r.path} has {r.lines:,}" for r in readers)
            + f". Line {min(lengths) + 1:,} of {longer} has no partner."
        )
    counts["unpaired"] += max(lengths) - min(lengths)


def _opener(path: Path):
    with open(path, "rb") as stream:
        start = stream.read(10)
    for magic, opener in _COMPRESSED:
        # "BZh" and a digit may well begin a text.
        if start.startswith(magic) and (magic != b"BZh" or start[4:] == b"1AY&SY"):
            return opener
    return open


class _Reader:
    """Lines of one file, as bytes without their ends.

    Attributes:
        path: of the file.
        lines: number of lines read so far.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lines = 0
        self._ready = []
        self._rest = b""
        self._at_end = False
        self._stream = _opener(path)(path, "rb")
        self._at_start = True

    def read(self, number: int) -> list[bytes]:
        """The next `number` lines, fewer only at the end of the file."""
        while len(self._ready) < number and not self._at_end:
            self._read_block()
        lines, self._ready = self._ready[:number], self._ready[number:]
        self.lines += len(lines)
        return lines

    def close(self):
        self._stream.close()

    def _read_block(self):
        try:
            block = self._stream.read(BYTES_AT_ONCE)
        except _BROKEN as error:
            raise ValueError(
                f"{self.path} must be a complete compressed file. It breaks off after "
                f"line {self._seen():,}: {error}"
            ) from error
        text = self._rest + block
        if self._at_start:
            text = self._without_mark(text)
        self._at_start = False
        if block:
            end = text.rfind(b"\n") + 1
            self._rest = text[end:]
            if len(self._rest) > LONGEST_LINE:
                raise ValueError(
                    f"{self.path}, line {self._seen() + 1:,}, must not be longer than "
                    f"{LONGEST_LINE >> 20} MiB. Is it text, one sentence a line?"
                )
            text = text[:end]
        else:
            self._at_end = True
            text = text + b"\n" if text else b""
        if text:
            self._ready += text.replace(b"\r\n", b"\n")[:-1].split(b"\n")

    def _seen(self) -> int:
        return self.lines + len(self._ready)

    def _without_mark(self, text: bytes) -> bytes:
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ValueError(
                f"{self.path}, line 1, must be UTF-8. It starts like UTF-16: convert "
                "it, for example with iconv -f UTF-16 -t UTF-8."
            )
        return text.removeprefix(b"\xef\xbb\xbf")
