"""Lines of text files and streams of any size."""

import bz2
import contextlib
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO

# A line with more bytes is no sentence: perhaps the file is no text.
_LONGEST = 1 << 24
# By content, not by name: a file may have been renamed, and a text may begin with BZh.
_COMPRESSED = (
    (rb"\x1f\x8b\x08", gzip.open),
    (rb"BZh\d1AY&SY", bz2.open),
    (rb"\xfd7zXZ\x00", lzma.open),
)
_CODEC = {"replace": "replace", "keep": "surrogateescape"}
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


class LineReader:
    r"""Iterates over the lines of a binary stream of UTF-8, as texts.

    A line ends with "\n" alone; a "\r" before it and a byte order mark at the start are
    dropped.

    Args:
        stream: is read from where it stands.
        name: of the stream, for errors.
        on_error: where a line is not UTF-8: "raise", or "replace" what is wrong by
            U+FFFD, or "keep" it, as Python's "surrogateescape" does.

    Attributes:
        count: lines that have been read.
        bytes: how many these were.

    Raises:
        ValueError: from iterating: a line is not UTF-8 or has more than 16 MiB, or the
            stream is damaged; names the line by its number from 1.
    """

    def __init__(self, stream: BinaryIO, name="the input", on_error: str = "raise"):
        self._stream, self._name, self._on_error = stream, name, on_error
        self.count = self.bytes = 0

    def __iter__(self) -> "LineReader":
        return self

    def __next__(self) -> str:
        try:
            line = self._stream.readline(_LONGEST + 1)
        except _BROKEN as error:
            raise ValueError(
                f"{self._name} is damaged or cut off after line {self.count} ({error})"
            ) from error
        if not line:
            raise StopIteration
        self.count += 1
        self.bytes += len(line)
        if len(line) > _LONGEST:
            raise ValueError(
                f"Each line of {self._name} must have at most {_LONGEST:,} bytes; "
                f"line {self.count} has more. Is it a text?"
            )
        if self.count == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            if self._on_error != "raise":
                return line.decode(errors=_CODEC[self._on_error])
            raise ValueError(
                f"{self._name} must be UTF-8; line {self.count} has the byte "
                f"0x{line[error.start]:02x} at position {error.start + 1} "
                '(`on_error` "replace" goes on).'
            ) from None


@contextlib.contextmanager
def open_lines(
    path: str | os.PathLike, on_error: str = "raise"
) -> Iterator[LineReader]:
    """The lines of a file, plain or compressed with gzip, bzip2 or xz.

    Raises:
        OSError: it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(path, "rb"))
        start = stream.peek(10)  # a pipe cannot be read twice
        for magic, opened in _COMPRESSED:
            if re.match(magic, start):
                stream = stack.enter_context(opened(stream))
        yield LineReader(stream, str(path), on_error)


def iterate_lines(path: str | os.PathLike, on_error: str = "raise") -> Iterator[str]:
    """The lines of a file, read as they are asked for; see `open_lines`."""
    with open_lines(path, on_error) as lines:
        yield from lines


def read_lines(path: str | os.PathLike, on_error: str = "raise") -> list[str]:
    """All lines of a file; see `open_lines`."""
    return list(iterate_lines(path, on_error))
