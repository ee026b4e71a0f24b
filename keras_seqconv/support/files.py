"""Files: read line by line, written complete or not at all; JSON, folders, locks."""

import bz2
import contextlib
import gzip
import hashlib
import itertools
import json
import lzma
import numbers
import os
import re
import reprlib
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

# Bytes that are read of a file, and of JSON, which takes up to 40 times as many. A log
# of a million records has 220 MiB, a vocabulary of 262,144 words some 10.
_MOST_BYTES, MOST_JSON, _MOST_LEVELS = 256 << 20, 32 << 20, 100
_KINDS = {dict: "a JSON object", list: "a JSON array", str: "a text", int: "an integer"}
_KINDS[numbers.Real] = "a number"

# --- Files ---


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yields the path of a new file beside `path`, and renames it at the end.

    When the block raises or is interrupted, the new file is removed and `path` is as
    it was. The content has reached the disk before the name does. Of a link, the file
    it leads to is replaced. ValueError for a folder, a device or a pipe.
    """
    path = _regular(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with naming(path, part):
            yield part
            with open(part, "rb+") as stream:
                os.fsync(stream.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _regular(path: str | os.PathLike) -> Path:
    """The file that a link leads to; ValueError for what is there and no such file."""
    if os.path.exists(path) and not os.path.isfile(path):  # also a pipe without a name
        mode = stat.filemode(os.stat(path).st_mode)
        raise ValueError(f"{path} must be a regular file. Received: {mode}")
    return Path(os.path.realpath(path))


def check_output(path: str | os.PathLike) -> None:
    """The errors of `atomic_file`, before there is something to write."""
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"The folder {Path(path).parent} does not exist.")
    _regular(path)


def write_file(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file at once, see `atomic_file`; OSError names it."""
    with atomic_file(path) as part:
        part.write_bytes(content)


def write_json(path: str | os.PathLike, value) -> None:
    """Writes JSON that people can read at once, see `atomic_file`."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_file(path, text.encode())


@contextlib.contextmanager
def open_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yields a regular file, open for reading; ValueError, which names it, for others.

    A pipe may have no writer, and a device no end.
    """
    with open(path, "rb", opener=_open_at_once) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            mode = stat.filemode(mode)
            raise ValueError(f"{path} must be a regular file. Received: {mode}")
        yield stream


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_bytes(path: str | os.PathLike) -> bytes:
    """The content of a regular file of 256 MiB at most, or ValueError, which names it.

    The bound is on the bytes that are read, whatever size the file is said to have.
    """
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(min(size, _MOST_BYTES) + 1)
    if len(content) > _MOST_BYTES:
        most = f"{_MOST_BYTES >> 20} MiB at most"
        raise ValueError(f"{path} must have {most}. Received: {size:,} bytes")
    return content


def read_text(path: str | os.PathLike) -> str:
    """The content of a UTF-8 file to the byte, or ValueError, which names it."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be valid UTF-8 ({error}).") from None


def read_json(path: str | os.PathLike, kind: type = dict, **kinds: type):
    """The dict (or list) that a file holds as JSON; see `from_json`."""
    return from_json(read_bytes(path), path, kind, **kinds)


def from_json(content: bytes | str, name, kind: type = dict, **kinds: type):
    """The dict (or list) of JSON; ValueError with its `name` for other content.

    `kinds` are those of entries of the dict, where it has them.
    """
    if len(content) > MOST_JSON:
        raise ValueError(f"{name} must be JSON of {MOST_JSON >> 20} MiB at most.")
    try:
        value = json.loads(content)
        if _levels(value) > _MOST_LEVELS:
            raise ValueError(f"more than {_MOST_LEVELS} levels")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON ({error}).") from None
    if not isinstance(value, kind):
        value = reprlib.repr(value)
        raise ValueError(f"{name} must hold {_KINDS[kind]}. Received: {value}")
    check_kinds(value, name, **kinds)
    return value


def check_kinds(value: dict, name, **kinds: type) -> None:
    """ValueError where an entry is there and of another kind."""
    for key in kinds.keys() & value:
        if not isinstance(value[key], kinds[key]):
            raise ValueError(
                f"{name}: `{key}` must be {_KINDS[kinds[key]]}. "
                f"Received: {reprlib.repr(value[key])}"
            )


def _levels(value) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_levels, parts), default=0)


def check_records(archive: zipfile.ZipFile, most: int) -> None:
    """ValueError where they are larger than `most` bytes, packed or overlapping."""
    size = sum(record.file_size for record in archive.infolist())
    if size > most:
        raise ValueError(f"its records have {size:,} bytes, far more than the file")


def digest(path: str | os.PathLike) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def naming(path: str | os.PathLike, part: Path | None = None) -> Iterator[None]:
    """Errors of the system in the block, such as a full disk, name at least `path`.

    That is also named in place of `part`, the file that becomes it.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and str(error.filename) in ("None", str(part)):
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def naming_file(path: str | os.PathLike, problem: str) -> Iterator[None]:
    """Turns errors of the block into a ValueError of one line that names the file."""
    try:
        yield
    except (FileNotFoundError, ImportError):
        raise
    except Exception as error:
        text = f"missing is {error}" if isinstance(error, KeyError) else str(error)
        # Keras ends its many lines with a list of all layers that do not fit.
        reason = " ".join(text.partition("\n\nList of objects")[0].split())
        raise ValueError(f"{path} {problem} ({reason}).") from error


def check_version(content: dict, name, version: int, key="format_version") -> None:
    """ValueError unless the content of file `name` is of this version of its format."""
    if content.get(key) != version:
        writer = content.get("package_version")
        version_of_writer = f" (package_version={writer!r})" if writer else ""
        raise ValueError(
            f"{name}: {key} must be {version}; perhaps another version of the package "
            f"wrote it{version_of_writer}. Received: {key}={content.get(key)!r}"
        )


def remove_parts(folder: str | os.PathLike, name: str) -> None:
    """Removes what killed writers have left of files whose names match `name`."""
    parts = re.compile(rf"\.{name}\.[0-9a-f]{{8}}\.part")
    for path in Path(folder).iterdir():
        if parts.fullmatch(path.name):
            path.unlink(missing_ok=True)


# --- Folders ---


@contextlib.contextmanager
def atomic_directory(
    path: str | os.PathLike, replaceable: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yields a new folder beside `path`, and renames it to `path` at the end.

    When the block raises or is interrupted, the new folder is removed and `path` is as
    it was. A process that is killed leaves `.<name>.part`, or `.<name>.old` with what
    it was about to replace; the next that writes `path` removes the one and takes the
    other back. Writers of the same `path` wait for each other.

    Args:
        path: the folder to appear. Missing folders above it are made and stay.
        replaceable: told a folder that is there and not empty, says whether it is one
            of ours and may be replaced as a whole. By default none may.

    Raises:
        ValueError: `path` is a file, or a folder that may not be replaced; before the
            block runs, and once more after it.
    """
    # Through a link, so that what is replaced is the folder and not the link.
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part, old = (path.with_name(f".{path.name}.{end}") for end in ("part", "old"))
    with locked(path.with_name(f".{path.name}.lock")):
        if old.exists() and not path.exists():
            old.rename(path)
        refuse_folder(path, replaceable)
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)
        part.mkdir()
        try:
            with naming(path):
                yield part
            refuse_folder(path, replaceable)
            if path.exists():
                path.rename(old)
            try:
                part.rename(path)
            except BaseException:
                if old.exists():
                    old.rename(path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def refuse_folder(path: Path, replaceable: Callable[[Path], bool] | None) -> None:
    """ValueError where `atomic_directory` would make no folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} must be a folder or not exist. It is a file.")
    if path.samefile("."):
        raise ValueError(
            f"{path} must not be the working directory, which would be replaced. "
            "Name a folder in it, or go to another one."
        )
    if any(path.iterdir()) and not (replaceable is not None and replaceable(path)):
        others = "" if replaceable is None else ", or hold an earlier result"
        raise ValueError(
            f"{path} must be empty or not exist{others}. It holds: "
            + ", ".join(sorted(entry.name for entry in path.iterdir())[:8])
        )


def remove_folder(path: Path) -> None:
    """Removes a folder if there is one; of a link to one, the link alone."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


# --- Locks ---


@contextlib.contextmanager
def locked(path: str | os.PathLike, taken: str | None = None) -> Iterator[None]:
    """One thread of one process at a time is in the block; its end frees the lock.

    `path` is there while the block runs. If somebody else has the lock, that is a
    ValueError with the message `taken`; without one the block waits.
    """
    lock = FileLock(path, timeout=-1 if taken is None else 0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(taken) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file
            os.unlink(path)
        lock.release()


# --- Lines ---

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


def iterate_lines(
    input: str | os.PathLike | BinaryIO, on_error: str | None = None
) -> Iterator[str]:
    r"""The lines of UTF-8, read as they are asked for.

    A line ends with "\n" alone; a "\r" before it and a byte order mark at the start are
    dropped.

    Args:
        input: a file, plain or compressed with gzip, bzip2 or xz, or a binary stream.
        on_error: where a line is not UTF-8: None to raise, or "raise" to name this
            option as well, or "replace" what is wrong by U+FFFD, or "keep" it, as
            Python's "surrogateescape" does.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is not UTF-8 or has more than 16 MiB, or the file is damaged;
            names the line by its number from 1.
    """
    with contextlib.ExitStack() as stack:
        stream, name = input, "the input"
        if not hasattr(input, "read"):
            stream, name = stack.enter_context(open(input, "rb")), str(input)
            start = stream.peek(10)  # a pipe cannot be read twice
            for magic, opened in _COMPRESSED:
                if re.match(magic, start):
                    stream = stack.enter_context(opened(stream))
        for number in itertools.count(1):
            try:
                line = stream.readline(_LONGEST + 1)
            except (*_BROKEN, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of the system; bz2's have no number
                raise ValueError(
                    f"{name} is damaged or cut off after line {number - 1} ({error})"
                ) from error
            if not line:
                return
            if len(line) > _LONGEST:
                raise ValueError(
                    f"Each line of {name} must have at most {_LONGEST:,} bytes; "
                    f"line {number} has more. Is it a text?"
                )
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                if on_error in (None, "raise"):
                    hint = ' (`on_error` "replace" goes on)' if on_error else ""
                    raise ValueError(
                        f"{name} must be UTF-8; line {number} has the byte "
                        f"0x{line[error.start]:02x} at position {error.start + 1}"
                        f"{hint}."
                    ) from None
                text = line.decode(errors=_CODEC[on_error])
            yield text


def read_lines(path: str | os.PathLike) -> list[str]:
    """All lines of a file; see `iterate_lines`."""
    return list(iterate_lines(path))
