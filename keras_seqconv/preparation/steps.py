"""Steps on texts, in this process or, in the order of the texts, in several."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import unicodedata
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from keras_seqconv.tokenizers.moses_bpe import moses_steps

# Few, so that an interrupted process has soon done with them.
_PAIRS_AT_ONCE = 250
_CHUNKS_AHEAD = 100


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
