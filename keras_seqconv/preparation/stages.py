"""Work in stages, each a folder that is there when the stage is finished."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_seqconv.support.files import locked, naming

_PLAN = "plan.json"
_UNFINISHED = ".part"


class Stages:
    """Folders of finished stages in one folder, which survives interruptions.

    Args:
        folder: must exist.
        plan: all that the stages depend on, for JSON. Finished stages of another plan
            are refused.
    """

    def __init__(self, folder: Path, plan: dict):
        self.folder = folder
        plan = json.loads(json.dumps(plan))
        path = folder / _PLAN
        if self.finished:
            if not path.exists() or read_json(path) != plan:
                raise ValueError(
                    f"{folder} holds the stages of a preparation with other inputs, "
                    "options or packages. Delete it, or choose another `output`."
                )
        else:
            write_json(path, plan)

    @property
    def finished(self) -> list[str]:
        """Names of the stages that are finished."""
        names = (path.name for path in _folders(self.folder))
        return sorted(name for name in names if not name.endswith(_UNFINISHED))

    def run(
        self, name: str, work: Callable[[Path], dict], report: str = "done.json"
    ) -> tuple[Path, dict]:
        """The folder of a stage and what its work returned.

        Args:
            name: of the stage.
            work: called with a new folder, unless the stage was finished before.
            report: the file in it for what `work` returns.
        """
        folder = self.folder / name
        if not folder.exists():
            part = self.folder / f"{name}{_UNFINISHED}"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            with naming(folder):
                write_json(part / report, work(part))
                _to_disk(part)
            part.rename(folder)
        return folder, read_json(folder / report)


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """Makes a folder for stages; keeps other processes out, where the system can.

    At the end it is deleted, if it is still there, unless a stage is finished in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock", f"Another process works in {folder}."):
        try:
            yield
        finally:
            unfinished = (path.name.endswith(_UNFINISHED) for path in _folders(folder))
            if all(unfinished):
                shutil.rmtree(folder, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.is_dir()]


def _to_disk(folder: Path):
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb+") as stream:
                os.fsync(stream.fileno())


def read_json(path: Path):
    return json.loads(path.read_bytes())


def write_json(path: Path, value):
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
