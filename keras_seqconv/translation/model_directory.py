"""Model directory: a model with its tokenizers and search options.

| name                | content                                                        |
|---------------------|----------------------------------------------------------------|
| `config.json`       | `format_version`, `package_version`, `model` (class and        |
|                     | arguments of its constructor), `folded`, `search`,             |
|                     | `max_source_length`, `languages`, the folders of the tokenizers|
|                     | `weights_sha256`, `trained` (notes about the training)         |
| `model.weights.h5`  | weights, as `keras.Model.save_weights` writes them             |
| `source_tokenizer/` | if there is one; none for language models                      |
| `target_tokenizer/` | if there is one and it is not the source's                     |
| `onnx/`             | graphs for ONNX Runtime, with digests of their files and of the|
|                     | weights that they were made of, if they were asked for         |

Nothing in the folder is executed, whoever wrote it: the class is one of the four below,
its arguments are plain JSON, and no file can name another file (Keras ensures this for
weights). An error names a damaged file. All backends read the folder.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from keras_seqconv.support.files import (
    atomic_directory,
    check_version,
    digest,
    naming_file,
    read_json,
    refuse_folder,
    write_json,
)
from keras_seqconv.tokenizers import load_tokenizer
from keras_seqconv.version import __version__

FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
SOURCE, TARGET = "source_tokenizer", "target_tokenizer"
GRAPHS, _NOTES = "onnx", "graphs.json"
_GRAPH_FILES = ("start.onnx", "step.onnx", "weights.bin")
_WRITE_GRAPHS = f"import {__name__} as m, sys; m.write_model_graphs(sys.argv[1])"
_REQUIRED = {"model", "folded", "search", "max_source_length", SOURCE, TARGET}
# Of a serialized Keras object, which no argument from a file may be.
_SERIALIZED = ('"class_name":', '"module":', '"registered_name":')
# The most bytes of an HDF5 file for each array, besides its values.
_MOST_OVERHEAD = 1 << 16


def model_folder(path: str | os.PathLike) -> Path:
    """Returns the model directory: `path` itself, or `model` in the folder of a run.

    Keras is not loaded. FileNotFoundError names the missing file and a remedy.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder} with a saved model.")
    if (folder / "run.json").is_file():
        if not (folder / "model").is_dir():
            raise FileNotFoundError(
                f"The run {folder} has no model yet: `keras-seqconv train` makes it at "
                f"its end, `keras-seqconv average {folder}` makes one of what is there."
            )
        folder = folder / "model"
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder / CONFIG} is missing: {folder} is no model directory, and no "
            "folder of a run."
        )
    return folder


# --- Writing ---


def check_writable(directory: str | os.PathLike, overwrite: bool = False) -> None:
    """ValueError where `write` could not write, before any work is done."""
    path = Path(directory)
    if not overwrite and path.is_dir() and _is_model(path):
        raise ValueError(f"{path} must be empty: `overwrite` replaces a saved model.")
    refuse_folder(path, _is_model if overwrite else None)


def _is_model(path: Path) -> bool:
    """Whether it holds a saved model and nothing else."""
    killed = {f".{GRAPHS}.part", f".{GRAPHS}.lock"}  # a writer of graphs
    names = {entry.name for entry in path.iterdir()} - killed
    return {CONFIG, WEIGHTS} <= names <= {CONFIG, WEIGHTS, SOURCE, TARGET, GRAPHS}


def save_with_graphs(text_model, directory: str | os.PathLike, overwrite: bool) -> str:
    """Saves a `TextModel`, with its graphs if it can be converted; says what is there.

    The model comes first: to convert a large one may take more memory than there is.

    Raises:
        ValueError, OSError: see `write`.
    """
    text_model.save(directory, overwrite)
    try:
        write_model_graphs(directory, text_model.model)
        return f"Written to {directory}, with graphs for ONNX Runtime"
    except Exception as error:  # of any kind, where a converter does not know a model
        reason = " ".join(str(error).split()) or type(error).__name__
        return f"Written to {directory}, without graphs for ONNX Runtime: {reason}"


def write(
    directory: str | os.PathLike, text_model, overwrite: bool, onnx: bool = False
) -> None:
    """Writes the folder of a `TextModel`, completely or not at all.

    A tokenizer of both sides is written once. `onnx`: whether to write the graphs.

    Raises:
        ImportError: `onnx` needs a package that is not installed.
        ValueError: `directory` is neither empty nor a model that `overwrite` replaces;
            the model is not one of the package's, cannot be converted to ONNX, or its
            configuration holds serialized objects (quantizers that are not Keras'
            default).
    """
    from keras_seqconv import models

    check_writable(directory, overwrite)
    model = text_model.model
    name = type(model).__name__
    if models.CLASSES.get(name) is not type(model):
        raise ValueError(
            f"`model` must be of one of the classes {[*models.CLASSES]} to be saved. "
            f"Received: {name}"
        )
    arguments = model.get_config()
    _refuse_objects(arguments)
    source, target = [None, None, *text_model.tokenizers.values()][-2:]
    sides = {SOURCE: source, TARGET: target}
    kept_in = {SOURCE: None if source is None else SOURCE}
    kept_in[TARGET] = kept_in[SOURCE] if source is target else TARGET
    config = {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "model": {"class": name, "config": arguments},
        # g is the norm of the weights, which `fold` takes away.
        "folded": any(
            hasattr(layer, "g") and layer.g is None for layer in model._flatten_layers()
        ),
        "search": text_model.search_config(),
        "max_source_length": text_model.chosen_length,
        "languages": (text_model.source_language, text_model.target_language),
        "trained": text_model.trained,
        **kept_in,
    }
    with atomic_directory(directory, _is_model if overwrite else None) as folder:
        _save_weights(model, folder / WEIGHTS)
        config["weights_sha256"] = digest(folder / WEIGHTS)
        for side, tokenizer in sides.items():
            if kept_in[side] == side:
                tokenizer.save(folder / side)
        write_json(folder / CONFIG, config)
        if onnx:
            write_model_graphs(folder, model)


def write_model_graphs(folder: str | os.PathLike, model=None) -> None:
    """Adds the graphs for ONNX Runtime to a model directory, completely or not at all.

    Args:
        folder: without graphs.
        model: that of the directory, which is read by default. On JAX it is read by a
            process of TensorFlow.
    """
    import keras

    if keras.backend.backend() == "jax":
        hidden = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, "-c", _WRITE_GRAPHS, os.path.abspath(folder)],
            env={**os.environ, **hidden, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ValueError((done.stderr.splitlines() or ["a process has ended"])[-1])
        return
    from keras_seqconv.models.onnx_graphs import write_graphs

    folder = Path(folder)
    model = model or read(folder)["model"]
    with atomic_directory(folder / GRAPHS) as graphs:
        write_graphs(model, graphs, weights_digest=digest(folder / WEIGHTS))
        notes = read_json(graphs / _NOTES)
        notes["files"] = {name: digest(graphs / name) for name in _GRAPH_FILES}
        write_json(graphs / _NOTES, notes)


def _save_weights(model, path: Path) -> None:
    # Keras would write the state of the optimizer as well.
    optimizer, model.optimizer = getattr(model, "optimizer", None), None
    try:
        model.save_weights(path)
    finally:
        model.optimizer = optimizer


def tokenizer_fingerprint(tokenizer) -> str:
    """A digest of what `tokenizer.save` writes; "" for None."""
    fingerprint = hashlib.sha256()
    if tokenizer is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        for path in sorted(Path(folder).iterdir()):
            content = path.read_bytes()
            fingerprint.update(f"{path.name}\n{len(content)}\n".encode() + content)
    return fingerprint.hexdigest()


# --- Reading ---


def find_graphs(folder: Path) -> Path:
    """The folder with the graphs of a model directory.

    Raises:
        FileNotFoundError: there are none.
        ValueError: they are damaged, or of other weights than those of the directory.
    """
    graphs = folder / GRAPHS
    if not graphs.is_dir():
        raise FileNotFoundError(f"{folder} has no graphs for ONNX Runtime.")
    with naming_file(graphs, "holds no graphs of this model"):
        notes = read_json(graphs / _NOTES)
        if notes["weights_digest"] != digest(folder / WEIGHTS):
            raise ValueError(f"they were made of other weights than {WEIGHTS}")
        for name in _GRAPH_FILES:
            if notes["files"][name] != digest(graphs / name):
                raise ValueError(f"{name} is damaged")
    return graphs


def read(directory: str | os.PathLike, dtype=None, with_model: bool = True) -> dict:
    """Reads a folder of `write`, safely also from unknown sources.

    Args:
        directory: model directory, or the folder of a run with one.
        dtype: dtype or policy of the model; by default that of the saved model.
        with_model: False leaves the model out, and needs no Keras.

    Returns:
        Arguments of a `Translator`: `model`, the tokenizers, `search`,
        `max_source_length`, `languages`; and `trained`.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: names the file and its error.
        ImportError: a tokenizer needs a package that is not installed.
    """
    folder = model_folder(directory)
    path = folder / CONFIG
    config = read_json(path)
    check_version(config, path, FORMAT_VERSION)
    if missing := sorted(_REQUIRED - set(config)):
        raise ValueError(f"{path}: missing are {missing}.")
    model = _read_model(folder, config, dtype) if with_model else None
    tokenizers = {None: None}
    for name in (SOURCE, TARGET):
        if name in (config[SOURCE], config[TARGET]):
            with naming_file(folder / name, "holds no tokenizer"):
                tokenizers[name] = load_tokenizer(folder / name)
    with naming_file(path, "names wrong tokenizers"):
        source, target = tokenizers[config[SOURCE]], tokenizers[config[TARGET]]
    return {
        "model": model,
        SOURCE: source,
        TARGET: target,
        "search": config["search"],
        "max_source_length": config["max_source_length"],
        "languages": config.get("languages", (None, None)),
        "trained": config.get("trained"),
    }


def _read_model(folder: Path, config: dict, dtype):
    """The model of Keras, with its weights."""
    import keras

    from keras_seqconv import models
    from keras_seqconv.models.limits import at_most

    path, weights = folder / CONFIG, folder / WEIGHTS
    if not weights.is_file():
        raise FileNotFoundError(f"{weights} is missing.")
    if dtype is not None:
        try:
            keras.dtype_policies.get(dtype)
        except ValueError:
            raise ValueError(
                "`dtype` must be the name of a float dtype or of a dtype policy, or a "
                f"policy. Received: dtype={dtype!r}"
            ) from None
    wrong_weights = f"is damaged, or not of the model in {CONFIG}"
    with naming_file(weights, wrong_weights):
        elements, arrays = _check_arrays(weights)
    with naming_file(path, "describes no model"):
        name, arguments = config["model"]["class"], config["model"]["config"]
        if name not in (classes := models.CLASSES):
            raise ValueError(f"the class must be one of {[*classes]}, not {name!r}")
        _refuse_objects(arguments)
        if dtype is not None:
            arguments = {**arguments, "dtype": dtype}
        # A number takes half a byte or more, and is made as a float before.
        with at_most(2 * elements, arrays):
            model = classes[name].from_config(arguments)
        if config["folded"]:
            model.fold()
    expected = config.get("weights_sha256")
    if expected is not None and expected != digest(weights):
        raise ValueError(
            f"{weights} is damaged or not the file that {path} was written with "
            "(remove `weights_sha256` there if you changed the weights on purpose)."
        )
    with naming_file(weights, wrong_weights), warnings.catch_warnings():
        # Keras warns of layers that keep their random weights.
        warnings.simplefilter("error", UserWarning)
        model.load_weights(weights)
    return model


def _check_arrays(path: Path) -> tuple[int, int]:
    """Numbers of elements and arrays of a file of weights, which is not read.

    ValueError where it has less than its arrays, as packed ones, or far more.
    """
    import h5py

    arrays = []

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            arrays.append((math.prod(item.shape), item.dtype.itemsize))

    with h5py.File(path) as file:
        file.visititems(add)
    size, stored = path.stat().st_size, sum(map(math.prod, arrays))
    if not stored <= size <= 2 * stored + _MOST_OVERHEAD * (len(arrays) + 16):
        raise ValueError(f"it has {size:,} bytes, and arrays of {stored:,}")
    return sum(count for count, _ in arrays), len(arrays)


def _refuse_objects(config) -> None:
    """Refuse arguments of a model with serialized Keras objects, which may be any."""
    text = json.dumps(config)
    if any(key in text for key in _SERIALIZED):
        raise ValueError(
            "the `config` of a model directory must hold no serialized objects, such "
            "as policies or quantizers that are not Keras' default"
        )
