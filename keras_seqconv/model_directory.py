"""The folder that a model is kept in, with its tokenizers and search options.

| name                | content                                                        |
|---------------------|----------------------------------------------------------------|
| `config.json`       | `format_version`, `package_version`, `model` (class and        |
|                     | arguments of its constructor), `folded`, `search`,             |
|                     | `max_source_length`, `languages`, the folders of the tokenizers|
|                     | `weights_sha256`                                               |
| `model.weights.h5`  | weights, as `keras.Model.save_weights` writes them             |
| `source_tokenizer/` | if there is one; none for language models                      |
| `target_tokenizer/` | if there is one and it is not the source's                     |

Nothing in it is executed, also if a stranger wrote it: the class is one of the four
below, its arguments are plain JSON, and no file can name another one (of weights Keras
sees to that). A damaged file is an error that names it. Written on one backend, it is
read on all.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_seqconv.folders import model_folder
from keras_seqconv.models import (
    ConvLanguageModel,
    ConvS2S,
    EncoderDecoder,
    LanguageModel,
    SequenceModel,
)
from keras_seqconv.support.files import atomic_directory, read_json, write_json
from keras_seqconv.tokenizers import load_tokenizer
from keras_seqconv.version import __version__

FORMAT_VERSION = 1
CLASSES = {
    cls.__name__: cls
    for cls in (EncoderDecoder, ConvS2S, LanguageModel, ConvLanguageModel)
}
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
SOURCE, TARGET = "source_tokenizer", "target_tokenizer"
_KEYS = {
    "format_version", "package_version", "model", "folded", "search",
    "max_source_length", "languages", SOURCE, TARGET, "weights_sha256",
}  # fmt: skip
# These two came later.
_OPTIONAL = {"languages", "weights_sha256"}
# Of a serialized Keras object, which no argument from a file may be.
_SERIALIZED = {"class_name", "module", "registered_name"}
# Bytes of an HDF5 file for each array, besides its values.
_OVERHEAD = 4096


class Contents(NamedTuple):
    """What such a folder holds. Tokenizers are None where there are none."""

    model: SequenceModel
    source_tokenizer: object
    target_tokenizer: object
    search: dict
    max_source_length: int | None = None
    languages: tuple[str | None, str | None] = (None, None)


# --- Writing ---


def check_writable(directory: str | os.PathLike, overwrite: bool = False) -> None:
    """ValueError where `write` could not write, before any work is done.

    A folder that holds more than `write` writes is never replaced.
    """
    path = Path(directory)
    if path.is_dir() and any(path.iterdir()):
        if overwrite and _replaceable(path):
            return
        rule = (
            "hold a saved model and nothing else to be overwritten"
            if overwrite
            else "be empty or not exist (`overwrite`=True replaces a saved model)"
        )
        names = sorted(entry.name for entry in path.iterdir())
        raise ValueError(f"{path} must {rule}. It holds: {', '.join(names[:8])}")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} must be a folder or not exist. It is a file.")


def _replaceable(path: Path) -> bool:
    names = {entry.name for entry in path.iterdir()}
    return {CONFIG, WEIGHTS} <= names <= {CONFIG, WEIGHTS, SOURCE, TARGET}


def write(
    directory: str | os.PathLike, contents: Contents, overwrite: bool = False
) -> None:
    """Writes the folder; it appears complete or not at all.

    Args:
        directory: must be empty or not exist.
        contents: what to write. A tokenizer of both sides is written once.
        overwrite: replace a folder that this function wrote.

    Raises:
        ValueError: `directory` is in use, or the model is not one of the package's, or
            is no longer what its arguments make (quantized or partly folded).
    """
    check_writable(directory, overwrite)
    config = _config(contents)
    with atomic_directory(directory, _replaceable if overwrite else None) as folder:
        _save_weights(contents.model, folder / WEIGHTS)
        config["weights_sha256"] = _digest(folder / WEIGHTS)
        for name in (SOURCE, TARGET):
            if config[name] == name:
                getattr(contents, name).save(folder / name)
        write_json(folder / CONFIG, config)


def _config(contents: Contents) -> dict:
    model = contents.model
    if CLASSES.get(type(model).__name__) is not type(model):
        raise ValueError(
            f"`model` must be of one of the classes {[*CLASSES]} to be saved. "
            f"Received: {type(model).__name__}"
        )
    arguments = model.get_config()
    if not isinstance(arguments["dtype"], str):
        raise ValueError(
            "`model` must have a dtype policy with a name, such as 'mixed_bfloat16', "
            f"to be saved. Received: dtype={arguments['dtype']}"
        )
    layers = list(model._flatten_layers())
    # g is the norm of the weights, which `fold` takes away.
    folded = {layer.g is None for layer in layers if hasattr(layer, "g")}
    if len(folded) > 1 or any(
        getattr(layer, "quantization_mode", None) for layer in layers
    ):
        raise ValueError(
            "`model` must have the weights that its arguments make, to be saved. "
            "Received: a model that was changed after it was made (quantized or "
            "partly folded)"
        )
    shared = contents.source_tokenizer is contents.target_tokenizer
    target = SOURCE if shared else TARGET
    return {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "model": {"class": type(model).__name__, "config": arguments},
        "folded": True in folded,
        "search": contents.search,
        "max_source_length": contents.max_source_length,
        "languages": contents.languages,
        SOURCE: None if contents.source_tokenizer is None else SOURCE,
        TARGET: None if contents.target_tokenizer is None else target,
    }


def _save_weights(model, path: Path) -> None:
    """Not tried where the disk is full: HDF5 that cannot write crashes the process."""
    sizes = [np.prod(w.shape) * np.dtype(w.dtype).itemsize for w in model.weights]
    if shutil.disk_usage(path.parent).free < sum(sizes) + _OVERHEAD * len(sizes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    # Keras would write the state of the optimizer as well.
    optimizer, model.optimizer = getattr(model, "optimizer", None), None
    try:
        model.save_weights(path)
    except (OSError, RuntimeError) as error:
        # Room for what HDF5 still writes when it closes the file.
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, 0)
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error)
        raise OSError(number, f"{reason} (writing weights)", str(path)) from error
    finally:
        model.optimizer = optimizer


# --- Reading ---


def read(directory: str | os.PathLike, dtype=None) -> Contents:
    """Reads what `write` wrote, also from a stranger.

    Args:
        directory: the folder, or that of a run with such a folder in it.
        dtype: dtype or policy of the model; by default the one it was saved with.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: names the file and what is wrong with it.
        ImportError: a tokenizer needs a package that is not installed.
    """
    folder = model_folder(directory)
    try:
        config = read_json(folder / CONFIG)
    except RecursionError as error:
        raise _wrong(folder / CONFIG, str(error)) from error
    problem = _problem(config)
    if problem is not None:
        raise _wrong(folder / CONFIG, problem)
    model = _read_model(folder, config, dtype)
    source = None if config[SOURCE] is None else _read_tokenizer(folder / SOURCE)
    target = source if config[TARGET] == SOURCE else None
    if config[TARGET] == TARGET:
        target = _read_tokenizer(folder / TARGET)
    languages = tuple(config.get("languages", (None, None)))
    return Contents(
        model, source, target, config["search"], config["max_source_length"], languages
    )


def wrong(directory: str | os.PathLike, error: Exception) -> ValueError:
    """The error of contents that do not fit each other."""
    return _wrong(Path(directory) / CONFIG, str(error))


def _wrong(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: {reason.rstrip('.')}.")


def _problem(config: dict) -> str | None:
    """The first rule that the content of `config.json` breaks."""
    version = config.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        return (
            f"`format_version` must be {FORMAT_VERSION}; perhaps a newer package wrote "
            f"it (package_version={config.get('package_version')!r}). "
            f"Received: format_version={version!r}"
        )
    missing, unknown = _KEYS - _OPTIONAL - set(config), set(config) - _KEYS
    if missing or unknown:
        return f"missing are {sorted(missing)}, unknown are {sorted(unknown)}"
    model = config["model"]
    if not isinstance(model, dict) or set(model) != {"class", "config"}:
        return "`model` must have the keys 'class' and 'config'"
    name, arguments = model["class"], model["config"]
    if not isinstance(name, str) or name not in CLASSES:
        return (
            f"the class of the model must be one of {[*CLASSES]}. "
            f"Received: class={name!r}"
        )
    if not isinstance(arguments, dict) or not isinstance(arguments.get("dtype"), str):
        return "`config` of the model must be an object with a `dtype`"
    if not _plain(arguments):
        return "`config` of the model must hold no serialized objects"
    languages = config.get("languages", [None, None])
    if (
        not isinstance(languages, list)
        or len(languages) != 2
        or not all(isinstance(language, str | None) for language in languages)
    ):
        return f"`languages` must be two texts or nulls, not {languages}"
    if not isinstance(config["folded"], bool) or not isinstance(config["search"], dict):
        return "`folded` must be true or false, `search` an object"
    source, target = config[SOURCE], config[TARGET]
    if source not in (None, SOURCE) or target not in (None, TARGET, source):
        return (
            f"`{SOURCE}` must be null or '{SOURCE}', `{TARGET}` null, '{TARGET}' or "
            f"the same as the source's. Received: {source!r}, {target!r}"
        )
    return None


def _plain(value) -> bool:
    if isinstance(value, dict):
        return not _SERIALIZED & set(value) and all(map(_plain, value.values()))
    return not isinstance(value, list) or all(map(_plain, value))


def _read_model(folder: Path, config: dict, dtype) -> SequenceModel:
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing.")
    expected = config.get("weights_sha256")
    if expected is not None and _digest(path) != expected:
        raise _wrong(
            path,
            f"it is damaged or not the file that {folder / CONFIG} was written with "
            "(remove `weights_sha256` there if you changed the weights on purpose)",
        )
    cls, arguments = CLASSES[config["model"]["class"]], config["model"]["config"]
    if dtype is not None:
        arguments = {**arguments, "dtype": dtype}
    try:
        model = cls.from_config(arguments)
        if config["folded"]:
            model.fold()
    except Exception as error:
        reason = f"it describes no {cls.__name__} ({error})"
        raise _wrong(folder / CONFIG, reason) from error
    try:
        model.load_weights(path)
    except Exception as error:
        reason = f"it is damaged, or not of the model in {CONFIG} ({error})"
        raise _wrong(path, reason) from error
    return model


def _read_tokenizer(folder: Path):
    try:
        return load_tokenizer(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or folder} is missing.") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _wrong(folder, str(error)) from error


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
