"""Pairs of lines of a corpus: found, read, without markup, and made tokens of.

Files are plain, compressed or in archives, which are read where they are: nothing is
unpacked to the disk. Tokens are made in this process or, in the same order, in several.
"""

import bz2
import contextlib
import dataclasses
import functools
import gzip
import itertools
import lzma
import multiprocessing
import os
import re
import signal
import tarfile
import threading
import unicodedata
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from keras_seqconv.tokenizers.moses_bpe import moses_steps

LONGEST_LINE = 16 << 20  # bytes; a longer one is hardly text
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BROKEN = (
    EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError
)  # fmt: skip
_DROPPED = (b"<url>", b"<talkid>", b"<keywords>")
_DELETED = re.compile(rb"</?title>|</?description>")
_SEGMENT_TAGS = re.compile(rb'<seg id="[0-9]*">\s*|\s*</seg>\s*')

# Few, so that an interrupted process has soon done with them.
_PAIRS_AT_ONCE = 250
_CHUNKS_AHEAD = 100


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
    archive = data
    if data.is_dir():
        for name in names:
            if (data / name).is_file():
                return Place(data / name)
        archive = data / (wanted.archive or "")
    if archive.is_file():
        members = _members(archive)
        for name in names:
            if name in members:
                return Place(archive, name)
    return None


@functools.lru_cache
def _members(archive: Path) -> frozenset[str]:
    try:
        with tarfile.open(archive, "r|*") as stream:
            return frozenset(_name(member) for member in stream if member.isreg())
    except _BROKEN as error:
        raise ValueError(f"{archive} must be a complete tar file ({error}).") from None


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./")


def lines(place: Place) -> Iterator[bytes]:
    """Lines without LF at their ends; LF alone ends a line, not U+2028 nor a lone CR.

    Raises:
        ValueError: a broken compressed file, or a line of more than 16 MiB.
    """
    number = 0
    try:
        with _opened(place) as stream:
            while line := stream.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise ValueError(
                        f"{place}, line {number:,}, must be shorter than "
                        f"{LONGEST_LINE >> 20} MiB. Is it text, one sentence a line?"
                    )
                mark = b"\xef\xbb\xbf" if number == 1 else b""
                yield line.removeprefix(mark).removesuffix(b"\n")
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


def read_pairs(
    places: Sequence[Place], markup: str, on_error: str, counts: Counter
) -> Iterator[list[str]]:
    """Pairs of lines, without markup and without blanks at their ends.

    Args:
        places: the files of source and target.
        markup, on_error: see `Part` and `Recipe`.
        counts: goes up by what was read and left out, of the source's file.

    Raises:
        ValueError: the files have different numbers of lines (says both), or a line is
            not UTF-8 and `on_error` is "raise".
    """
    sides = [
        _without_markup(place, markup, counter)
        for place, counter in zip(places, (counts, Counter()), strict=True)
    ]
    for number, pair in enumerate(itertools.zip_longest(*sides), 1):
        if None in pair:
            what = {"tags": "lines of text", "segments": "lines of <seg id"}
            totals = [
                f"{place} has {number - (line is None) + sum(1 for _ in side):,}"
                for place, line, side in zip(places, pair, sides, strict=True)
            ]
            raise ValueError(
                "Parallel files must have the same number of "
                f"{what.get(markup, 'lines')}: {', '.join(totals)}"
            )
        counts["pairs"] += 1
        # NUL would not come back from a dataset of texts.
        texts = [line.decode(errors="replace").replace("\0", " ") for line in pair]
        bad = [
            place
            for place, line, text in zip(places, pair, texts, strict=True)
            if "\ufffd" in text and text.encode() != line.replace(b"\0", b" ")
        ]
        if bad and on_error == "raise":
            raise ValueError(
                f"{bad[0]}, pair {number:,}, is not valid UTF-8. "
                'Correct it, or leave out such pairs: `on_error` "skip".'
            )
        if bad:
            replaced = on_error == "replace"
            counts["not UTF-8, repaired" if replaced else "not UTF-8"] += 1
            if not replaced:
                continue
        yield [text.strip() for text in texts]


def _without_markup(place: Place, markup: str, counts: Counter) -> Iterator[bytes]:
    for line in lines(place):
        counts["lines"] += 1
        if markup == "tags":
            dropped = [tag for tag in _DROPPED if tag in line]
            if dropped:
                counts[f"lines with {dropped[0].decode()}"] += 1
                continue
            line = _DELETED.sub(b"", line)
        elif markup == "segments":
            if b"<seg id" not in line:
                counts["lines without <seg id"] += 1
                continue
            # As fairseq's `sed`: apostrophes are made plain, nothing is unescaped.
            line = _SEGMENT_TAGS.sub(b"", line).replace("\u2019".encode(), b"'")
        yield line


# --- Tokens. ---


def steps(
    text: str,
    *,
    language: str | None = None,
    normalize: bool = False,
    remove_nonprinting: bool = False,
    **moses,
) -> str:
    """`moses_steps` of the tokenizers, with `remove_nonprinting` in their middle."""
    if normalize:
        text = moses_steps(text, language, normalize=True)
    if remove_nonprinting:
        text = without_nonprinting(text)
    return moses_steps(text, language, **moses)


def without_nonprinting(text: str) -> str:
    """Moses' remove-non-printing-char.perl: a blank for each character of category C.

    That is: control, format, unassigned, ...
    """
    if text.isprintable():  # also false of blanks other than the usual one
        return text
    category = unicodedata.category
    return "".join(" " if category(one)[0] == "C" else one for one in text)


@contextlib.contextmanager
def executor_of(workers: int) -> Iterator[Executor]:
    """A thread of this process, or several processes, which end when the block does."""
    if workers == 1:
        executor = ThreadPoolExecutor(1)
    else:
        # Not forked: that would share the threads of TensorFlow or JAX. The command
        # line's processes import no Keras, as this module needs none.
        spawn = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(workers, spawn, _end_with_parent)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _no_interrupts():
    """Processes that are started in the block never see Ctrl-C: their parent does."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent():
    """Ends this process when its parent is gone, however that was ended."""

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def with_tokens(
    pairs: Iterator[list[str]], sides: list[dict], executor: Executor
) -> Iterator[tuple[list[str], list[str]]]:
    """(tokens, texts) of each pair, in their order; pairs are read a little ahead.

    Args:
        pairs: texts of source and target.
        sides: arguments of `steps` for each.
        executor: of `executor_of`.

    Raises:
        OSError: a process ended too early.
    """
    chunks = iter(lambda: list(itertools.islice(pairs, _PAIRS_AT_ONCE)), [])
    waiting = deque()

    def first():
        texts, tokens = waiting.popleft()
        return zip(tokens.result(), texts, strict=True)

    try:
        for chunk in chunks:
            with _no_interrupts():
                waiting.append((chunk, executor.submit(_tokens, sides, chunk)))
            if len(waiting) > _CHUNKS_AHEAD:
                yield from first()
        while waiting:
            yield from first()
    except BrokenProcessPool:
        raise OSError(
            "A process that prepares text ended too early (killed, or out of memory?). "
            "The same command goes on from the last finished stage; fewer `workers` "
            "need less memory."
        ) from None


def _tokens(sides: list[dict], pairs: list[list[str]]) -> list[list[str]]:
    return [
        [steps(text, **side) for text, side in zip(pair, sides, strict=True)]
        for pair in pairs
    ]
