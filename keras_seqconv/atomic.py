"""Files and directories that appear complete or not at all."""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_seqconv.locks import lock


@contextlib.contextmanager
def atomic_directory(
    path: str | os.PathLike,
    replaceable: Callable[[Path], bool] | None = None,
    equal: Callable[[Path], bool] | None = None,
) -> Iterator[Path]:
    """Yields a new folder beside `path`, and renames it to `path` at the end.

    When the block raises or is interrupted, the new folder is removed and `path` is as
    it was. A process that is killed leaves a folder `.<name>.<8 digits>.part` (or
    .old), which the next that writes `path` removes. The new folder is locked, so that
    a living one is not taken for such; no `atomic_directory` can be made inside of it.

    Args:
        path: the folder to appear. Missing folders above it are made and stay.
        replaceable: told a folder that is there and not empty, says whether it is one
            of ours and may be replaced as a whole. By default none may.
        equal: told such a folder when the block has ended, says whether it is as good
            as the new one. Then it stays, for those who read it, and the new one is
            removed. So writers of the same content do not disturb each other.

    Raises:
        ValueError: `path` is a file, or a folder that may not be replaced; before the
            block runs, and once more after it.

    Example:

    ```python
    import tempfile
    from keras_seqconv.atomic import atomic_directory
    with tempfile.TemporaryDirectory() as parent:
        with atomic_directory(parent + "/model") as folder:
            (folder / "config.json").write_text("{}")
    ```
    """
    # Through a link, so that what is replaced is the folder and not the link.
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with contextlib.ExitStack() as stack:
        with _lock(path.parent):
            _refuse(path, replaceable)
            part.mkdir()
            stack.callback(shutil.rmtree, part, ignore_errors=True)
            stack.enter_context(_lock(part))
        yield part
        with _lock(path.parent):
            _refuse(path, replaceable)
            if equal is None or not path.exists() or not equal(path):
                _move(part, path)
            for left in _leftovers(path.parent, re.escape(path.name)):
                _remove_unlocked(left)


def write_file(path: str | os.PathLike, content: bytes):
    """Writes a file beside `path`, and renames it to `path` when it is on the disk.

    Raises:
        OSError: as of writing; `path` is then as it was.
    """
    with atomic_file(path) as part:
        part.write_bytes(content)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yields the path of a new file beside `path`, and renames it at the end.

    When the block raises or is interrupted, the new file is removed and `path` is as
    it was. The content has reached the disk before the name does.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        with open(part, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: str | os.PathLike, name: str) -> None:
    """Removes what killed processes have left of files that nobody is writing now.

    Args:
        folder: where the files are.
        name: a regular expression for their names.
    """
    for left in _leftovers(Path(folder), name):
        left.unlink(missing_ok=True)


def _leftovers(folder: Path, name: str) -> list[Path]:
    parts = re.compile(rf"\.{name}\.[0-9a-f]{{8}}\.(part|old)")
    return [path for path in folder.iterdir() if parts.fullmatch(path.name)]


def _remove_unlocked(folder: Path):
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        lock(descriptor, wait=False)
        shutil.rmtree(folder)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Among threads and processes, one at a time looks at a folder and renames in it.

    Where there are no such locks (Windows, some network file systems), without.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            lock(descriptor)
        yield


def _refuse(path: Path, replaceable: Callable[[Path], bool] | None):
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} must be a folder or not exist. It is a file.")
    if any(path.iterdir()) and not (replaceable is not None and replaceable(path)):
        raise ValueError(
            f"{path} must be empty, not exist, or hold what may be replaced. It holds: "
            + ", ".join(sorted(entry.name for entry in path.iterdir())[:8])
        )


def _move(part: Path, path: Path):
    """Renames `part` to `path`; what was there comes back if that fails."""
    if not path.exists():
        part.rename(path)
        return
    old = part.with_suffix(".old")
    path.rename(old)
    try:
        part.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
