"""Checkpoints of training: everything that the next update depends on, in one file.

A checkpoint is an HDF5 file `update-00001234.h5` with the arrays of all variables of
the model (weights and the states of `SeedGenerator`s, which Keras' own files drop) and
of the built optimizer, and `index`, JSON as bytes: names, dtypes, shapes and CRC-32 of
the arrays, and a state {update, position, epoch, ...} of the caller's. Files appear
complete or not at all. Reading executes nothing: arrays, JSON, no links.

An array is called after the path of its variable ("/" becomes ".", a repeated path
gets "~1", "~2", ...), so that no two can be taken for each other.
"""

import contextlib
import io
import itertools
import json
import os
import re
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import h5py
import keras
import numpy as np
from keras import ops

from keras_seqconv.support import files
from keras_seqconv.support.arguments import check_choice, check_positive_integer
from keras_seqconv.version import __version__

FORMAT_VERSION = 1
_NAME = re.compile(r"update-(\d{8,})\.h5")
_GROUPS = ("model", "optimizer")
# dtypes that HDF5 has; others are kept as unsigned integers of their width.
_NATIVE = {
    f"{kind}{bits}"
    for kind, widths in (("float", (16, 32, 64)), ("int", (8, 16, 32, 64)))
    for bits in widths
} | {f"uint{bits}" for bits in (8, 16, 32, 64)}
_ERRORS = (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError)


# --- Files of a folder ---


def path_of(directory: str | os.PathLike, update: int) -> Path:
    """The file of an update: `update-00001234.h5`."""
    return Path(directory) / f"update-{update:08d}.h5"


def update_of(path: str | os.PathLike) -> int:
    """The update in the name of a checkpoint.

    Raises:
        ValueError: it has another name.
    """
    match = _NAME.fullmatch(Path(path).name)
    if match is None:
        raise ValueError(f"`path` must be named update-<8 digits>.h5. Received: {path}")
    return int(match[1])


def find(directory: str | os.PathLike) -> list[Path]:
    """The checkpoints in a folder, oldest update first; none where it is missing."""
    folder = Path(directory)
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=update_of)


def latest(directory: str | os.PathLike) -> Path | None:
    """The newest checkpoint that is whole; None where there is none.

    A damaged file is left where it is, and a warning names it.
    """
    return next(filter(_whole, reversed(find(directory))), None)


def last_updates(
    directory: str | os.PathLike, count: int, up_to: int | None = None
) -> list[Path]:
    """The `count` newest checkpoints, oldest first, none after the update `up_to`.

    Here and in `last_epochs` and `best`, a damaged file is skipped with a warning that
    names it, and the next one takes its place. ValueError where there is none.
    """
    check_positive_integer("count", count)
    found = [path for path in find(directory) if up_to is None or _upto(path, up_to)]
    return _first(reversed(found), count, directory)[::-1]


def last_epochs(
    directory: str | os.PathLike, count: int, up_to: int | None = None
) -> list[Path]:
    """The `count` newest checkpoints that were written at the end of an epoch."""
    check_positive_integer("count", count)
    found = [
        path
        for path, state in _states(directory)
        if (up_to is None or _upto(path, up_to)) and state.get("epoch_end")
    ]
    return _first(reversed(found), count, directory, " of a whole epoch")[::-1]


def best(
    directory: str | os.PathLike,
    count: int,
    monitor: str = "val_nll",
    mode: str = "min",
) -> list[Path]:
    """The `count` checkpoints with the best value of a metric, best first.

    Args:
        directory: the folder.
        count: how many; fewer where there are fewer, with a warning.
        monitor: a metric in the states, as `callbacks.Checkpoints` writes them.
        mode: "min" or "max"; of two equal ones the newer is better.

    Raises:
        ValueError: no checkpoint has the metric.
    """
    check_positive_integer("count", count)
    check_choice("mode", mode, ("min", "max"))
    scored = []
    for path, state in _states(directory):
        value = state.get("metrics", {}).get(monitor)
        if isinstance(value, (int, float)) and np.isfinite(value):
            scored.append((value if mode == "min" else -value, -update_of(path), path))
    found = [path for _, _, path in sorted(scored)]
    return _first(found, count, directory, f" with the metric {monitor}")


def _upto(path: Path, update: int) -> bool:
    return update_of(path) <= update


def _states(directory) -> Iterator[tuple[Path, dict]]:
    """Checkpoints and their states, oldest update first."""
    for path in find(directory):
        try:
            yield path, read_state(path)
        except (ValueError, OSError) as error:
            _skip(error)


def _whole(path: Path) -> bool:
    try:
        check(path)
    except (ValueError, OSError) as error:
        _skip(error)
        return False
    return True


def _skip(error: Exception) -> None:
    warnings.warn(f"Skipped a checkpoint. {error}", stacklevel=3)


def _first(paths: Iterable, count: int, directory, what: str = "") -> list[Path]:
    """The first `count` that are whole."""
    found = list(itertools.islice(filter(_whole, paths), count))
    if not found:
        raise ValueError(f"{directory} has no checkpoint{what}.")
    if len(found) < count:
        warnings.warn(
            f"{directory} has {len(found)} checkpoints{what}, not {count}.",
            stacklevel=3,
        )
    return found


def remove_parts(directory: str | os.PathLike) -> None:
    """Removes what a killed process left of files it was writing."""
    files.remove_parts(directory, _NAME.pattern)


# --- One file ---


def save(path: str | os.PathLike, model: keras.Model, state: dict) -> None:
    """Writes a checkpoint; `path` is as it was until the new file is on the disk.

    Args:
        path: the file, or a folder: then `update-<state["update"]>.h5` in it.
        model: its variables, and those of its optimizer where there is a built one.
        state: anything that JSON can hold; `restore` and `read_state` give it back.

    Raises:
        OSError: as of writing (a full disk, for example); names the file.
        TypeError: JSON cannot hold the state.
    """
    path = Path(path)
    if path.is_dir():
        path = path_of(path, state["update"])
    path.parent.mkdir(parents=True, exist_ok=True)
    index = {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "backend": keras.backend.backend(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "state": state,
    }
    json.dumps(index)  # before any work
    try:
        with files.atomic_file(path) as part, _created(part) as file:
            for group, variables in _variables(model).items():
                index[group] = [
                    _write(file, group, name, variable)
                    for name, variable in _named(variables)
                ]
            content = json.dumps(index).encode()
            file.create_dataset("index", data=np.frombuffer(content, "uint8"))
            file.attrs["index_crc32"] = zlib.crc32(content)
        _sync(path.parent)
    except (OSError, RuntimeError) as error:
        reason = f"the checkpoint could not be written ({error})"
        raise OSError(getattr(error, "errno", None), reason, str(path)) from error


def read_state(path: str | os.PathLike) -> dict:
    """The state that a checkpoint was saved with. Reads no array.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged or no checkpoint; names the file.
    """
    with _opened(path) as (_, index):
        return index["state"]


def check(path: str | os.PathLike) -> None:
    """Reads a checkpoint whole. ValueError, naming it, where it is damaged."""
    with _opened(path) as (file, index):
        for group in _GROUPS:
            for entry in index[group]:
                _read(file, group, entry)


def restore(
    path: str | os.PathLike, model: keras.Model, weights_only: bool = False
) -> dict:
    """Sets all variables of a model and its optimizer to those of a checkpoint.

    The optimizer is built first where it is not. Nothing is changed unless the file is
    whole and has exactly the variables of the model: names, shapes and dtypes. Numbers
    that Keras gives to layers without a name ("dense_3") may differ, as they do when a
    model is made for the second time. Integers may differ in width, as they do between
    the backends.

    Args:
        path: the file.
        model: a model made as the saved one was, also under a `tf.distribute` scope.
        weights_only: leave the optimizer alone.

    Returns:
        The state that the checkpoint was saved with.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or not of this model or optimizer; names the first
            differences.

    Example:

    ```python
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    keras_seqconv.checkpoints.save("/tmp/update-00000000.h5", model, {"update": 0})
    state = keras_seqconv.checkpoints.restore("/tmp/update-00000000.h5", model)
    ```
    """
    check(path)
    with _opened(path) as (file, index), _scope(model):
        if weights_only:
            variables = {"model": model.variables}
        else:
            _check_optimizer(path, model, index)
            variables = _variables(model)
        matched = {
            group: _match(path, group, index[group], variables[group])
            for group in variables
        }
        for group, pairs in matched.items():
            for entry, variable in pairs:
                variable.assign(_fitting(path, _read(file, group, entry), variable))
        return index["state"]


def average(paths: Iterable[str | os.PathLike], model: keras.Model) -> None:
    """Sets the weights of a model to the arithmetic mean of those of checkpoints.

    Sums are float64 and one array at a time, so that memory does not grow with the
    number of files. Weight normalization's g and v are averaged each for itself, as
    fairseq does. Integers and the states of `SeedGenerator`s are those of the newest
    checkpoint. The optimizer is left alone.

    Args:
        paths: checkpoints, as from `last_epochs`, `last_updates` or `best`.
        model: a model made as the saved ones were.

    Raises:
        ValueError: there are none, one is damaged, or they are not of this model.
    """
    paths = sorted((Path(path) for path in paths), key=update_of)
    if not paths:
        raise ValueError("`paths` must name at least one checkpoint. Received: none")
    for path in paths:
        check(path)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_opened(path)) for path in paths]
        stack.enter_context(_scope(model))
        matched = [
            _match(path, "model", index["model"], model.variables)
            for path, (_, index) in zip(paths, opened, strict=True)
        ]
        files = [file for file, _ in opened]
        for row in zip(*matched, strict=True):
            variable = row[-1][1]
            entries = [entry for entry, _ in row]
            value = _mean(files, entries, variable)
            variable.assign(_fitting(paths[-1], value, variable))


def _mean(files: Sequence, entries: Sequence[dict], variable) -> np.ndarray:
    if "float" not in keras.backend.standardize_dtype(variable.dtype):
        return _read(files[-1], "model", entries[-1])
    total = 0.0
    for file, entry in zip(files, entries, strict=True):
        total = total + _read(file, "model", entry).astype("float64")
    dtype = _dtype(entries[-1]["dtype"])
    return np.asarray(total / len(files)).astype(dtype)


# --- Variables and their names ---


def _variables(model) -> dict[str, list]:
    optimizer = getattr(model, "optimizer", None)
    built = optimizer is not None and optimizer.built
    return {
        "model": model.variables,
        "optimizer": list(optimizer.variables) if built else [],
    }


def _named(variables: Iterable) -> list[tuple[str, object]]:
    return list(zip(_unique(v.path for v in variables), variables, strict=True))


def _unique(paths: Iterable[str]) -> list[str]:
    """Names without "/", the second of its kind with "~1" and so on."""
    counts, names = {}, []
    for path in paths:
        name = path.replace("/", ".")
        count = counts.get(name, 0)
        counts[name] = count + 1
        names.append(f"{name}~{count}" if count else name)
    return names


def _without_numbers(paths: Iterable[str]) -> list[str]:
    # Up to 2026-11 all parts of blocks were called "residual".
    parts = r"(encoder|decoder|block)_\d+_(mixer|attention|feed_forward)"
    paths = (re.sub(parts, "residual", path) for path in paths)
    return _unique(re.sub(r"_\d+(?=[_/.]|$)", "", path) for path in paths)


def _match(path, group: str, entries: list[dict], variables: Sequence) -> list:
    """(entry of the file, variable) for each variable.

    Names must agree, or else agree without numbers when both are taken in their order.
    """
    stored = [entry["name"] for entry in entries]
    own = [name for name, _ in _named(variables)]
    if set(stored) != set(own):
        plain = _without_numbers(entry["path"] for entry in entries)
        plain_own = _without_numbers(variable.path for variable in variables)
        if set(plain) == set(plain_own):
            stored, own = plain, plain_own
    by_name = dict(zip(stored, entries, strict=True))
    known = set(own)
    differences = [f"{name} is not in the file" for name in own if name not in by_name]
    differences += [f"only the file has {name}" for name in stored if name not in known]
    pairs = [
        (by_name[name], variable)
        for name, variable in zip(own, variables, strict=True)
        if name in by_name
    ]
    for entry, variable in pairs:
        differences += _differences(entry, variable)
    if differences:
        shown = "; ".join(differences[:5])
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise _wrong(path, f"its {group} is not the one in memory: {shown}{more}")
    return pairs


def _differences(entry: dict, variable) -> list[str]:
    name, shape = entry["name"], tuple(entry["shape"])
    if shape != tuple(variable.shape):
        return [f"{name} has shape {shape}, not {tuple(variable.shape)}"]
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if entry["dtype"] != dtype and not ("int" in entry["dtype"] and "int" in dtype):
        return [f"{name} has dtype {entry['dtype']}, not {dtype}"]
    return []


def _fitting(path, value: np.ndarray, variable) -> np.ndarray:
    """Integers in the width of the variable."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if value.dtype.name == dtype:
        return value
    converted = value.astype(dtype)
    if not np.array_equal(converted, value):
        raise _wrong(path, f"{variable.path} does not fit into {dtype}")
    return converted


def _check_optimizer(path, model, index: dict) -> None:
    """Builds the optimizer where the file has one."""
    optimizer = getattr(model, "optimizer", None)
    if index["optimizer"] and optimizer is None:
        raise _wrong(
            path,
            "it has the state of an optimizer and the model has none: compile it "
            "first, or pass weights_only=True",
        )
    if optimizer is None:
        return
    if not index["optimizer"] and (optimizer.built or index["state"].get("update")):
        raise _wrong(
            path,
            "it has no state of an optimizer and the model has one: pass "
            "weights_only=True to restore only the weights",
        )
    if index["optimizer"] and not optimizer.built:
        optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _scope(model) -> Iterator[None]:
    """Where variables of a distributed model can be made and assigned."""
    if keras.backend.backend() == "tensorflow":
        with model.distribute_strategy.scope():
            yield
    else:
        yield


# --- HDF5 ---


def _write(file, group: str, name: str, variable) -> dict:
    value = np.ascontiguousarray(ops.convert_to_numpy(variable))
    value = value.reshape(tuple(variable.shape))
    dtype = value.dtype.name
    if dtype not in _NATIVE:
        value = value.view(f"uint{8 * value.dtype.itemsize}")
    file.create_dataset(f"{group}/{name}", data=value)
    return {
        "name": name,
        "path": variable.path,
        "dtype": dtype,
        "shape": list(value.shape),
        "crc32": _crc32(value),
    }


def _crc32(value: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view("uint8"))


def _read(file, group: str, entry: dict) -> np.ndarray:
    name = f"{group}/{entry['name']}"
    path = file.filename
    try:
        dataset = _dataset(file, name)
        if list(dataset.shape) != entry["shape"]:
            raise ValueError(f"{name} has shape {dataset.shape}")
        dtype = _dtype(entry["dtype"])
        if dataset.dtype.itemsize != dtype.itemsize or dataset.dtype.hasobject:
            raise ValueError(f"{name} has dtype {dataset.dtype}")
        value = dataset[()]
        value = np.asarray(value)
        crc32 = _crc32(value)
    except _ERRORS as error:
        raise _wrong(path, f"it is damaged or cut off ({error})") from error
    if crc32 != entry["crc32"]:
        raise _wrong(path, f"it is damaged (checksum of {name})")
    return value.view(dtype)


def _dataset(file, name: str):
    """An array kept in this very file: no link, no other file, no filter."""
    where = file
    for part in name.split("/"):
        if not isinstance(where.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is missing or a link")
        where = where[part]
    unusual = where.is_virtual or where.external is not None or where.chunks is not None
    if unusual or where.shape is None:
        raise ValueError(f"{name} is not an array as this package writes them")
    return where


def _dtype(name: str) -> np.dtype:
    if name in _NATIVE or name == "bool":
        return np.dtype(name)
    import ml_dtypes

    if not re.fullmatch(r"bfloat16|float[48]_\w+|u?int[24]", name):
        raise ValueError(f"dtype {name!r} is unknown")
    return np.dtype(getattr(ml_dtypes, name))


@contextlib.contextmanager
def _created(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file; OSError at the end where it could not all be written."""
    with open(path, "wb+", buffering=0) as raw:
        sink = _Sink(raw)
        with h5py.File(sink, "w") as file:
            yield file
        if sink.error is not None:
            raise sink.error


class _Sink:
    """Notes an error of writing instead of raising it.

    HDF5 that could not write (a full disk) crashes the process later, at the closing of
    another file. So it is told that all went well.
    """

    def __init__(self, raw: io.RawIOBase):
        self._raw = raw
        self.error = None
        self.read, self.readinto = raw.read, raw.readinto
        self.seek, self.tell = raw.seek, raw.tell

    def write(self, data) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.error is None and len(rest):
                rest = rest[self._raw.write(rest) :]
        except OSError as error:
            self.error = error
        return size

    def truncate(self, size: int) -> int:
        try:
            self._raw.truncate(size)
        except OSError as error:
            self.error = error
        return size

    def flush(self) -> None:
        pass


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[tuple[h5py.File, dict]]:
    """The file and its index."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint {path}.")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(h5py.File(path, "r"))
            content = _dataset(file, "index")[()].tobytes()
            crc32 = int(file.attrs["index_crc32"])
        except _ERRORS as error:
            raise _wrong(
                path, f"it is damaged, cut off or no checkpoint ({error})"
            ) from error
        if zlib.crc32(content) != crc32:
            raise _wrong(path, "it is damaged (checksum of its index)")
        index = json.loads(content)
        if not isinstance(index, dict) or index.get("format_version") != FORMAT_VERSION:
            raise _wrong(path, f"its `format_version` must be {FORMAT_VERSION}")
        yield file, index


def _sync(directory: Path) -> None:
    """The new name has reached the disk too, before older files may be deleted."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wrong(path, reason: str) -> ValueError:
    return ValueError(f"{path}: {reason}.")
