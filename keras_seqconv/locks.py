"""Locks between processes, on files and folders."""

import contextlib
import os
from typing import Any, BinaryIO

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


def open_alone(path: str | os.PathLike, taken: str) -> BinaryIO:
    """Opens a file for appending, made where it is missing, and locks it until closed.

    The end of a process, however it comes, closes it. Where the file system has no
    locks, the file is only opened.

    Raises:
        ValueError: another process, or this one elsewhere, has it; the message `taken`.
    """
    while True:
        file = open(path, "ab")  # noqa: SIM115
        try:
            lock(file, wait=False)
        except BlockingIOError:
            file.close()
            raise ValueError(taken) from None
        except OSError:
            return file
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                return file
        file.close()  # its holder has renamed or removed it meanwhile
