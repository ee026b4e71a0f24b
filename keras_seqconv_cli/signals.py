"""Ctrl-C and SIGTERM end a command, whatever it is doing.

Python raises an exception for a signal wherever the main thread happens to be. In the
middle of TensorFlow's own code it may be swallowed by a caller in C++, come out as
another error ("None values not supported"), or leave a lock behind that nobody releases
any more. And while TensorFlow or SentencePiece compute, nothing is raised at all. So
every error after a signal counts as that signal, and a thread ends the process where
the command does not end.

This module is imported first, and until `loaded` Ctrl-C ends the process with one line:
there is nothing to tidy up yet, and a half-imported Python prints tracebacks. So it
does before and after the command of a process (`ends_process`), and when it is ending.
"""

# ruff: noqa: E402
import _signal  # the built-in part of `signal`, which takes a moment itself
import os


def _end(number: int, frame) -> None:
    os.write(2, b"\nInterrupted.\n")
    os._exit(128 + number)


try:
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)
except ValueError:  # only the main thread has signals
    pass

import contextlib
import select
import signal
import threading
import time
from collections.abc import Iterator

# Seconds to tidy up in. Docker kills after ten.
PATIENCE = 8.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def loaded() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ends_process() -> None:
    """From now on Ctrl-C ends the process with one line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def endable() -> Iterator[None]:
    """Ctrl-C ends the block as KeyboardInterrupt, SIGTERM as SystemExit with 143.

    Where the block has not ended `PATIENCE` seconds after the signal, the process ends
    with 130 or 143, as if it had been killed; with a second signal, at once. Handlers
    that are set inside, and a SIGINT that is ignored, as in a background job, keep
    their meaning. Outside of the main thread, where Python has no signals, nothing is
    done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = []

    def handle(number, frame):
        if received:
            _end(number, frame)
        received.append(number)
        raise _exception(number)

    usual = (signal.default_int_handler, signal.SIG_DFL, _end)
    before = {
        number: signal.signal(number, handle)
        for number in _SIGNALS
        if signal.getsignal(number) in usual
    }
    try:
        with _watched(handle):
            yield
    except Exception as error:
        if received:
            raise _exception(received[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exception(number: int) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(128 + number)


@contextlib.contextmanager
def _watched(handle):
    """A thread that looks after the block; Python's C code tells it of every signal."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watch = threading.Thread(target=_watch, args=(reader, handle), daemon=True)
    watch.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        watch.join()
        os.close(reader)


def _watch(reader: int, handle) -> None:
    while received := os.read(reader, 1):
        number = received[0]
        if number in _SIGNALS and signal.getsignal(number) is handle:
            break
    else:
        return
    end = time.monotonic() + PATIENCE
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        if not os.read(reader, 1):
            return
    name = signal.Signals(number).name
    text = f"\n{name}: not ended after {PATIENCE:g} seconds, so the process is.\n"
    os.write(2, text.encode())
    os._exit(128 + number)
