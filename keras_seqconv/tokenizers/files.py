"""The files of a tokenizer's folder. Their names are fixed: no setting names one."""

import json
import os
from pathlib import Path

from keras_seqconv.support.files import write_file

SETTINGS = "settings.json"
_FORMAT_VERSION = 1


def bad_line(path, number: int, problem: str) -> ValueError:
    """The error of a line of a file."""
    return ValueError(f"{path}, line {number}: {problem}")


def read_file(path: str | os.PathLike) -> bytes:
    """The content of a file, or an error that names it."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file.")
    return path.read_bytes()


def read_text(path: str | os.PathLike) -> str:
    """The content of a file of UTF-8, line ends as they are."""
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be valid UTF-8 ({error}).") from None


def read_json(path: str | os.PathLike):
    """The value that a file of JSON holds."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON ({error}).") from None


def write_json(path: str | os.PathLike, value):
    """Writes a value as JSON; the file appears at once or not at all."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_file(path, text.encode())


def write_settings(directory: Path, kind: str, settings: dict):
    """Writes `settings.json`, by which `load_tokenizer` finds the class."""
    start = {"format_version": _FORMAT_VERSION, "kind": kind}
    write_json(directory / SETTINGS, start | settings)


def read_kind(directory: Path) -> object:
    """The `kind` in `settings.json`, whatever it is."""
    return _read(directory).get("kind")


def read_settings(directory: Path, kind: str, names: tuple[str, ...]) -> dict:
    """The settings of a tokenizer of some kind.

    Raises:
        ValueError: names the file when it is no JSON object, of a newer format, of
            another kind, or holds a setting that is none of `names`.
    """
    settings = _read(directory)
    unknown = sorted(set(settings) - {"format_version", "kind", *names})
    if unknown or settings.get("kind") != kind:
        raise ValueError(
            f"{directory / SETTINGS} must be of the kind {kind!r} and without other "
            f"settings than its own. Received: kind={settings.get('kind')!r}, "
            f"unknown settings {unknown}"
        )
    return {name: settings[name] for name in names if name in settings}


def _read(directory: Path) -> dict:
    path = directory / SETTINGS
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {settings!r}")
    version = settings.get("format_version")
    if version != _FORMAT_VERSION:
        raise ValueError(
            f"`format_version` in {path} must be {_FORMAT_VERSION}; perhaps a newer "
            f"package wrote it. Received: format_version={version!r}"
        )
    return settings
