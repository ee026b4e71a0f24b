"""Locks between processes, on files and folders."""

from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def lock(file: Any, wait: bool = True) -> None:
    """Locks an open file until it is closed; threads and processes keep each other out.

    Each opening of a file counts as an own holder. Where the system has no such locks
    (Windows), nothing happens.

    Args:
        file: an open file, or the descriptor of one or of a folder.
        wait: whether to wait until the lock is free.

    Raises:
        OSError: the file system has no locks. BlockingIOError: the lock is taken and
            `wait` is False.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
