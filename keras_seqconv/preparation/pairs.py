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
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from keras_seqconv.support.files import iterate_lines
from keras_seqconv.tokenizers.moses_bpe import moses_steps

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)
_DROPPED = ("<url>", "<talkid>", "<keywords>")
_DELETED = re.compile(r"</?title>|</?description>")
_SEGMENT_TAGS = re.compile(r'<seg id="[0-9]*">\s*|\s*</seg>\s*', re.ASCII)

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
    members = _members(archive) if archive.is_file() else ()
    return next((Place(archive, name) for name in names if name in members), None)


@functools.lru_cache
def _members(archive: Path) -> frozenset[str]:
    try:
        with tarfile.open(archive, "r|*") as stream:
            names = [member.name for member in stream if member.isreg()]
    except (*_BROKEN, gzip.BadGzipFile) as error:
        raise ValueError(f"{archive} must be a complete tar file ({error}).") from None
    return frozenset(name.removeprefix("./") for name in names)


def lines(place: Place) -> Iterator[str]:
    """Lines as `iterate_lines` has them, with "keep" for what is not UTF-8.

    Raises:
        ValueError: a broken file, or a line of more than 16 MiB.
    """
    if place.member is None:
        yield from iterate_lines(place.path, "keep")
        return
    opener = _OPENERS.get(Path(place.member).suffix, contextlib.nullcontext)
    try:
        with tarfile.open(place.path, "r|*") as archive:
            names = place.member, f"./{place.member}"
            member = next(one for one in archive if one.name in names)
            with opener(archive.extractfile(member)) as stream:
                yield from iterate_lines(stream, "keep")
    except (ValueError, *_BROKEN) as error:
        raise ValueError(f"{place}: {error}") from None


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
        texts = [
            line.encode(errors="surrogateescape").decode(errors="replace")
            for line in pair
        ]
        if texts != list(pair):
            if on_error == "raise":
                bad = places[texts[0] == pair[0]]
                raise ValueError(
                    f"{bad}, pair {number:,}, is not valid UTF-8. "
                    'Correct it, or leave out such pairs: `on_error` "skip".'
                )
            counts["not UTF-8" + ", repaired" * (on_error == "replace")] += 1
            if on_error == "skip":
                continue
        # NUL would not come back from a dataset of texts.
        yield [text.replace("\0", " ").strip() for text in texts]


def _without_markup(place: Place, markup: str, counts: Counter) -> Iterator[str]:
    for line in lines(place):
        counts["lines"] += 1
        if markup == "tags":
            dropped = [tag for tag in _DROPPED if tag in line]
            if dropped:
                counts[f"lines with {dropped[0]}"] += 1
                continue
            line = _DELETED.sub("", line)
        elif markup == "segments":
            if "<seg id" not in line:
                counts["lines without <seg id"] += 1
                continue
            # As fairseq's `sed`: apostrophes are made plain, nothing is unescaped.
            line = _SEGMENT_TAGS.sub("", line).replace("\u2019", "'")
        yield line


# --- Tokens. ---


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


def _end_with_parent():
    """Ends this process when its parent is gone, however that was ended."""

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def with_tokens(
    pairs: Iterator[list[str]], sides: list[dict], executor: Executor
) -> Iterator[tuple[list[str], list[str]]]:
    """(tokens, texts) of each pair, in their order; pairs are read a little ahead.

    `sides` are arguments of `moses_steps` for source and target. OSError where a
    process of the executor, which is one of `executor_of`, ended too early.
    """
    chunks = iter(lambda: list(itertools.islice(pairs, _PAIRS_AT_ONCE)), [])
    waiting = deque()
    try:
        # Empty ones at the end let those that wait go through.
        for chunk in itertools.chain(chunks, itertools.repeat([], _CHUNKS_AHEAD)):
            with _no_interrupts():
                waiting.append((executor.submit(_tokens, sides, chunk), chunk))
            if len(waiting) > _CHUNKS_AHEAD:
                tokens, texts = waiting.popleft()
                yield from zip(tokens.result(), texts, strict=True)
    except BrokenProcessPool:
        raise OSError(
            "A process that prepares text ended too early (killed, or out of memory?). "
            "The same command goes on from the last finished stage; fewer `workers` "
            "need less memory."
        ) from None


def _tokens(sides: list[dict], pairs: list[list[str]]) -> list[list[str]]:
    return [
        [moses_steps(text, **side) for text, side in zip(pair, sides, strict=True)]
        for pair in pairs
    ]
