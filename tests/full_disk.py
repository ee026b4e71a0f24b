"""A disk that is full, as far as one file goes."""

import contextlib
import resource
import signal


@contextlib.contextmanager
def full_disk(size: int = 3000):
    """Files cannot grow beyond so many bytes: writing fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
