"""Ctrl-C and SIGTERM end a command.

The one handler raises an exception in the main thread. TensorFlow's C++ code may
swallow it or turn it into another error ("None values not supported"). So every error
after a signal counts as that signal, and a timer ends the process where the command
does not end. Training has handlers of its own (`callbacks.GracefulStop`).

This module is imported first. Until `loaded`, and before and after the command of a
process (`ends_process`), Ctrl-C ends the process with one line: there is nothing to
tidy up, and a half-imported Python prints tracebacks.
"""

# ruff: noqa: E402
import _signal  # the built-in part of `signal`, which takes a moment itself
import os


def _end(number: int, frame=None) -> None:
    os.write(2, b"\nInterrupted.\n")
    os._exit(128 + number)


try:
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)
except ValueError:  # only the main thread has signals
    pass

import contextlib
import signal
import threading
from collections.abc import Iterator

# Time for tidying up. (Docker kills after ten seconds.)
SECONDS = 2.0
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

    Where the block has not ended `SECONDS` after the signal, the process ends with 130
    or 143; with a second signal, at once. Handlers that are set inside, and a SIGINT
    that is ignored, as in a background job, stay. Outside the main thread, where Python
    has no signals, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, timers = [], []

    def handle(number, frame):
        if received:
            _end(number)
        received.append(number)
        timers.append(threading.Timer(SECONDS, _end, [number]))
        timers[0].start()
        raise _exception(number)

    replaced = (signal.default_int_handler, signal.SIG_DFL, _end)
    before = {
        number: signal.signal(number, handle)
        for number in _SIGNALS
        if signal.getsignal(number) in replaced
    }
    try:
        yield
    except Exception as error:
        if received:
            raise _exception(received[0]) from error
        raise
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
