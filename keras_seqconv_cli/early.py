"""Imported first: until the command line is loaded, Ctrl-C ends it with one line."""

import _signal as signal  # the built-in part: `signal` takes a moment itself
import os


def _end(*_) -> None:
    # There is nothing to tidy up yet, and a half-imported Python prints tracebacks.
    os.write(2, b"\nInterrupted.\n")
    os._exit(130)


def loaded() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


try:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
except ValueError:  # only the main thread has signals
    pass
