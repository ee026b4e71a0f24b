"""Where the files of a corpus lie, and their lines: plain, compressed or in archives.

Archives are read where they are: nothing is unpacked to the disk.
"""

import bz2
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

LONGEST_LINE = 16 << 20  # bytes; a longer one is hardly text
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BROKEN = (
    EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A file that a recipe reads.

    Attributes:
        names: where it may lie in the folder or archive; the first one found is taken,
            also with .gz, .bz2 or .xz after it.
        archive: name of the tar file that holds it, when it was not unpacked, or None.
        url: where to get it.
    """

    names: tuple[str, ...]
    archive: str | None = None
    url: str = ""


@dataclasses.dataclass(frozen=True)
class Place:
    """A file that was found: at `path`, or a member of the archive there."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)


def find(wanted: Wanted, data: Path) -> Place | None:
    """Looks in the folder `data`, or in the archive `data`, or in archives there."""
    names = [name + end for name in wanted.names for end in ("", *_OPENERS)]
    archives = [data]
    if data.is_dir():
        for name in names:
            if (data / name).is_file():
                return Place(data / name)
        archives = [data / wanted.archive] if wanted.archive else []
    for archive in archives:
        if archive.is_file():
            held = _members(archive)
            for name in names:
                if name in held:
                    return Place(archive, name)
    return None


@functools.lru_cache
def _members(archive: Path) -> frozenset[str]:
    try:
        with tarfile.open(archive, "r|*") as stream:
            return frozenset(_name(one) for one in stream if one.isreg())
    except _BROKEN as error:
        raise ValueError(f"{archive} must be a complete tar file ({error}).") from None


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./")


def lines(place: Place) -> Iterator[bytes]:
    """Lines without LF at their ends; LF alone ends a line, not U+2028 nor a lone CR.

    Raises:
        ValueError: a broken compressed file, a line of more than 16 MiB, UTF-16.
    """
    number = 0
    try:
        with _opened(place) as stream:
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise ValueError(
                        f"{place}, line {number:,}, must not be longer than "
                        f"{LONGEST_LINE >> 20} MiB. Is it text, one sentence a line?"
                    )
                if number == 1:
                    line = _without_mark(line, place)
                yield line.removesuffix(b"\n")
    except _BROKEN as error:
        raise ValueError(
            f"{place} must be a complete file. It breaks off after line {number:,}: "
            f"{error}"
        ) from None


@contextlib.contextmanager
def _opened(place: Place):
    opener = _OPENERS.get(Path(place.member or place.path.name).suffix)
    with contextlib.ExitStack() as stack:
        if place.member is None:
            yield stack.enter_context((opener or open)(place.path, "rb"))
            return
        archive = stack.enter_context(tarfile.open(place.path, "r|*"))
        for member in archive:
            if member.isreg() and _name(member) == place.member:
                stream = stack.enter_context(archive.extractfile(member))
                yield stack.enter_context(opener(stream, "rb")) if opener else stream
                return
    raise FileNotFoundError(f"No such file: {place}")


def _without_mark(line: bytes, place: Place) -> bytes:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{place}, line 1, must be UTF-8. It starts like UTF-16.")
    return line.removeprefix(b"\xef\xbb\xbf")


def describe(path: Path, name: str) -> dict:
    """Size and SHA-256 of a file, under a name."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"file": name, "bytes": path.stat().st_size, "sha256": digest}
