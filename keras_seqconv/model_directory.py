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

Safe to read from strangers: nothing in it is executed. The class is looked up in the
table below, its arguments are plain JSON, no file can name another file, and sizes are
compared before memory is taken. Written on one backend, it is read on all.
"""

import collections
import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

import h5py
import keras
import numpy as np

from keras_seqconv.folders import model_folder
from keras_seqconv.models import (
    ConvLanguageModel,
    ConvS2S,
    EncoderDecoder,
    LanguageModel,
    SequenceModel,
)
from keras_seqconv.support.files import atomic_directory
from keras_seqconv.tokenizers import load_tokenizer
from keras_seqconv.version import __version__

FORMAT_VERSION = 1
CLASSES = {
    cls.__name__: cls
    for cls in (EncoderDecoder, ConvS2S, LanguageModel, ConvLanguageModel)
}
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
SOURCE, TARGET = "source_tokenizer", "target_tokenizer"
_FILES = {CONFIG, WEIGHTS, SOURCE, TARGET}
_KEYS = {
    "format_version", "package_version", "model", "folded", "search",
    "max_source_length", "languages", SOURCE, TARGET, "weights_sha256",
}  # fmt: skip
# Of a serialized Keras object, which no argument from a file may be.
_SERIALIZED = {"class_name", "module", "registered_name"}
_LARGEST_CONFIG = 1 << 20
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
    return {CONFIG, WEIGHTS} <= names <= _FILES


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
            is no longer what its arguments make (layers were changed or quantized).
    """
    check_writable(directory, overwrite)
    config = _config(contents)
    replaceable = _replaceable if overwrite else None
    with atomic_directory(directory, replaceable) as folder:
        _save_weights(contents.model, folder / WEIGHTS)
        config["weights_sha256"] = _digest(folder / WEIGHTS)
        for name in (SOURCE, TARGET):
            if config[name] == name:
                getattr(contents, name).save(folder / name)
        text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")


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
    folded = any(getattr(layer, "folded", False) for layer in model.layers)
    shapes = _expected_shapes(type(model), arguments, folded)
    if shapes != _shapes(model.weights):
        raise ValueError(
            "`model` must have the weights that its arguments make, to be saved. "
            "Received: a model that was changed after it was made (quantized or "
            "partly folded, perhaps)"
        )
    shared = contents.source_tokenizer is contents.target_tokenizer
    target = SOURCE if shared else TARGET
    return {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "model": {"class": type(model).__name__, "config": arguments},
        "folded": folded,
        "search": contents.search,
        "max_source_length": contents.max_source_length,
        "languages": contents.languages,
        SOURCE: None if contents.source_tokenizer is None else SOURCE,
        TARGET: None if contents.target_tokenizer is None else target,
    }


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
    config = _read_config(folder / CONFIG)
    _check_digest(folder / WEIGHTS, config.get("weights_sha256"), folder / CONFIG)
    model = _read_model(folder, config, dtype)
    source = target = None
    if config[SOURCE] is not None:
        source = _read_tokenizer(folder / SOURCE)
    if config[TARGET] == TARGET:
        target = _read_tokenizer(folder / TARGET)
    elif config[TARGET] is not None:
        target = source
    return Contents(
        model,
        source,
        target,
        config["search"],
        config["max_source_length"],
        tuple(config.get("languages", (None, None))),
    )


def wrong(directory: str | os.PathLike, error: Exception) -> ValueError:
    """The error of contents that do not fit each other."""
    return _wrong(Path(directory) / CONFIG, str(error))


# --- config.json ---


def _read_config(path: Path) -> dict:
    size = _size(path)
    if size > _LARGEST_CONFIG:
        raise _wrong(path, f"it must have at most {_LARGEST_CONFIG} bytes, not {size}")
    content = path.read_bytes()
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"it must be JSON ({error})") from error
    if not isinstance(config, dict):
        raise _wrong(path, "it must hold a JSON object")
    version = config.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise _wrong(
            path,
            f"`format_version` must be {FORMAT_VERSION}; perhaps a newer package wrote "
            f"it (package_version={config.get('package_version')!r}). "
            f"Received: format_version={version!r}",
        )
    _check_config(path, config)
    return config


def _save_weights(model, path: Path) -> None:
    """Not tried where the disk is full: HDF5 that cannot write crashes the process."""
    sizes = [math.prod(w.shape) * np.dtype(w.dtype).itemsize for w in model.weights]
    if shutil.disk_usage(path.parent).free < sum(sizes) + _OVERHEAD * len(sizes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    try:
        with _without_optimizer(model):
            model.save_weights(path)
    except (OSError, RuntimeError) as error:
        # Room for what HDF5 still writes when it closes the file.
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, 0)
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error)
        raise OSError(number, f"{reason} (writing weights)", str(path)) from error


@contextlib.contextmanager
def _without_optimizer(model):
    """Keras writes the state of a compiled model's optimizer into the weights file."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        yield
        return
    model.optimizer = None
    try:
        yield
    finally:
        model.optimizer = optimizer


def _check_config(path: Path, config: dict):
    # These two came later.
    missing = sorted(_KEYS - {"weights_sha256", "languages"} - set(config))
    unknown = sorted(set(config) - _KEYS)
    if missing or unknown:
        raise _wrong(path, f"missing are {missing}, unknown are {unknown}")
    model = config["model"]
    if not isinstance(model, dict) or set(model) != {"class", "config"}:
        raise _wrong(path, "`model` must have the keys 'class' and 'config'")
    if not isinstance(model["class"], str) or model["class"] not in CLASSES:
        raise _wrong(
            path,
            f"the class of the model must be one of {[*CLASSES]}. "
            f"Received: class={model['class']!r}",
        )
    arguments = model["config"]
    if not isinstance(arguments, dict) or not isinstance(arguments.get("dtype"), str):
        raise _wrong(path, "`config` of the model must be an object with a `dtype`")
    if not _plain(arguments):
        raise _wrong(path, "`config` of the model must hold no serialized objects")
    languages = config.get("languages", [None, None])
    if not (
        isinstance(languages, list)
        and len(languages) == 2
        and all(one is None or isinstance(one, str) for one in languages)
    ):
        raise _wrong(path, f"`languages` must be two texts or nulls, not {languages}")
    if not isinstance(config["folded"], bool) or not isinstance(config["search"], dict):
        raise _wrong(path, "`folded` must be true or false, `search` an object")
    if config[SOURCE] not in (None, SOURCE) or config[TARGET] not in (
        None,
        TARGET,
        config[SOURCE],
    ):
        raise _wrong(
            path,
            f"`{SOURCE}` must be null or '{SOURCE}', `{TARGET}` null, '{TARGET}' or "
            f"the same as the source's. Received: {config[SOURCE]!r}, "
            f"{config[TARGET]!r}",
        )


def _plain(value) -> bool:
    if isinstance(value, dict):
        return not _SERIALIZED & set(value) and all(map(_plain, value.values()))
    return not isinstance(value, list) or all(map(_plain, value))


# --- The model and its weights ---


def _read_model(folder: Path, config: dict, dtype) -> SequenceModel:
    cls, arguments = CLASSES[config["model"]["class"]], config["model"]["config"]
    stored = _stored_shapes(folder / WEIGHTS)
    for name, value in arguments.items():
        layers = name in ("num_layers", "num_encoder_layers", "num_decoder_layers")
        if layers and isinstance(value, int) and value > stored.total():
            raise _wrong(
                folder / CONFIG,
                f"{name}={value} is more than there are weights in {WEIGHTS}",
            )
    if dtype is not None:
        arguments = {**arguments, "dtype": dtype}
    try:
        expected = _expected_shapes(cls, arguments, config["folded"])
    except Exception as error:
        raise _wrong(
            folder / CONFIG, f"it describes no {cls.__name__} ({error})"
        ) from error
    if stored != expected:
        raise _wrong(folder / WEIGHTS, _difference(stored, expected))
    model = cls.from_config(arguments)
    if config["folded"]:
        model.fold()
    try:
        model.load_weights(folder / WEIGHTS)
    except Exception as error:
        raise _wrong(folder / WEIGHTS, f"it does not fit ({error})") from error
    return model


def _expected_shapes(cls, arguments: dict, folded: bool) -> collections.Counter:
    """Shapes of the weights of a model that is described but takes no memory.

    In a thread of its own, as Keras keeps a list of variables without a value for each
    thread, and would fill them in later.
    """
    result = []

    def build():
        try:
            with keras.StatelessScope(initialize_variables=False):
                weights = cls.from_config(arguments).weights
            # `fold` multiplies the lengths g of weight normalization into the kernels.
            kept = [weight for weight in weights if not (folded and weight.name == "g")]
            result.append(_shapes(kept))
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def _shapes(weights) -> collections.Counter:
    return collections.Counter(tuple(weight.shape) for weight in weights)


def _stored_shapes(path: Path) -> collections.Counter:
    """Shapes of the arrays of a file that holds arrays and nothing else."""
    shapes, total = collections.Counter(), 0
    try:
        size = _size(path)
        with h5py.File(path, "r") as file:
            for dataset in _datasets(path, file, set()):
                shapes[dataset.shape] += 1
                total += math.prod(dataset.shape) * dataset.dtype.itemsize
    except (OSError, RuntimeError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise _wrong(path, f"it is damaged or cut off ({error})") from error
    if total > size:
        raise _wrong(path, f"it claims {total} bytes of weights in a file of {size}")
    return shapes


def _datasets(path: Path, group, seen: set):
    """The arrays of a group; `seen` are the addresses of what was in others."""
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise _wrong(path, f"{group.name}/{name} is a link")
        entry = group[name]
        address = h5py.h5o.get_info(entry.id).addr
        if address in seen:
            raise _wrong(path, f"{entry.name} is a link to what is elsewhere too")
        seen.add(address)
        if isinstance(entry, h5py.Group):
            yield from _datasets(path, entry, seen)
        elif not isinstance(entry, h5py.Dataset) or _unusual(entry):
            raise _wrong(path, f"{entry.name} is not an array that Keras wrote")
        else:
            yield entry


def _unusual(dataset) -> bool:
    return (
        dataset.shape is None
        or dataset.is_virtual
        or dataset.external is not None
        or dataset.chunks is not None
        or dataset.dtype.hasobject
    )


def _difference(stored: collections.Counter, expected: collections.Counter) -> str:
    missing, extra = expected - stored, stored - expected
    sizes = (
        f"{counter.total()} {word} ({', '.join(map(str, list(counter)[:4]))})"
        for word, counter in (("missing", missing), ("too many", extra))
        if counter
    )
    return (
        f"its {stored.total()} weights are not the {expected.total()} of the model in "
        f"{CONFIG}: " + ", ".join(sizes)
    )


# --- Files ---


def _read_tokenizer(folder: Path):
    try:
        return load_tokenizer(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or folder} is missing.") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _wrong(folder, str(error)) from error


def _check_digest(path: Path, expected, config: Path):
    _size(path)
    if expected is not None and _digest(path) != expected:
        raise _wrong(
            path,
            f"it is damaged or not the file that {config} was written with (remove "
            "`weights_sha256` there if you changed the weights on purpose)",
        )


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _size(path: Path) -> int:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing.")
    if not path.is_file():
        raise _wrong(path, "it is not a file")
    return path.stat().st_size


def _wrong(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: {reason.rstrip('.')}.")
