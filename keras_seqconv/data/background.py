"""What tf.data does in the background: Python functions, and a thread that may hang.

When the interpreter ends while tf.data waits for a Python function, which can then
never return, the process hangs: after Ctrl-C, for example, as prefetching goes on.
Functions that go through here are refused once the interpreter is about to end, and it
does not end before the last one has returned.
"""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Iterator

# tf.data calls again at once if it calls again at all, in seconds.
_STILL = 0.1


class _Calls:
    """How many calls run, and whether there may be more."""

    def __init__(self):
        self._lock = threading.Lock()
        self._running, self._last, self._closed = 0, None, False

    def __enter__(self):
        with self._lock:
            if self._last is None:
                atexit.register(self.close)
            self._last = time.monotonic()
            if self._closed:
                raise RuntimeError("no more data: Python is ending")
            self._running += 1

    def __exit__(self, *error):
        with self._lock:
            self._running -= 1
            self._last = time.monotonic()

    def close(self):
        """Refuses more calls; returns when none runs and none was tried lately."""
        self._closed = True
        while self._running or time.monotonic() < self._last + _STILL:
            time.sleep(0.01)


_CALLS = _Calls()


def guarded(function: Callable) -> Callable:
    """A function for `tf.numpy_function` that does not keep Python from ending."""

    @functools.wraps(function)
    def call(*arguments):
        with _CALLS:
            return function(*arguments)

    return call


def guarded_generator(function: Callable[[], Iterator]) -> Callable[[], Iterator]:
    """A generator function for `Dataset.from_generator`, likewise."""

    @functools.wraps(function)
    def generate():
        items = function()
        while True:
            with _CALLS:
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    return generate


def untuned(dataset):
    """The same `tf.data.Dataset`, whose iterators start no thread that tunes it.

    The end of an iterator waits for this thread, which looks whether it is needed after
    ever longer pauses, in the end of a minute, and does not always hear that it is not
    (TensorFlow 2.21): training stood still at the ends of epochs.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
