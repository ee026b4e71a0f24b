"""Checkpoints of a training: its whole state, in one file.

`update-00001234.npz` is a zip archive, as in `numpy.savez`: `header.json`, and one
array for each variable, `model/0.npy`, ... and `optimizer/0.npy`, ..., in the order of
`model.variables` (weights and the states of `SeedGenerator`s, which Keras' own files
drop) and of `optimizer.variables`. The header has their paths, dtypes and shapes, and
the caller's state {update, position, epoch, ...}. Files appear complete or not at all.
Reading executes nothing.
"""

import contextlib
import itertools
import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqconv.support import files
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    plain,
    public_names,
)

__dir__ = public_names(globals())

FORMAT_VERSION = 2
_NAME = re.compile(r"update-(\d{8,})\.npz")


# --- Files of a folder ---


def path_of(directory: str | os.PathLike, update: int) -> Path:
    """The file of an update: `update-00001234.npz`."""
    return Path(directory) / f"update-{update:08d}.npz"


def update_of(path: str | os.PathLike) -> int:
    """Returns the update in a checkpoint's name; ValueError for other names."""
    match = _NAME.fullmatch(Path(path).name)
    if match is None:
        raise ValueError(
            f"`path` must be named update-<8 digits>.npz. Received: {path}"
        )
    return int(match[1])


def find(directory: str | os.PathLike) -> list[Path]:
    """Lists the checkpoints in a folder, oldest first; none if it is missing."""
    paths = Path(directory).glob("*.npz")
    paths = [path for path in paths if _NAME.fullmatch(path.name)]
    return sorted(paths, key=update_of)


def latest(directory: str | os.PathLike) -> Path | None:
    """Returns the newest undamaged checkpoint, or None.

    A warning names damaged files, which stay in the folder.
    """
    for path in reversed(find(directory)):
        if _tried(check, path) is not None:
            return path
    return None


def select(
    directory: str | os.PathLike,
    kind: str,
    count: int,
    *,
    monitor: str = "val_nll",
    mode: str = "auto",
    up_to: int | None = None,
) -> list[Path]:
    """Chooses checkpoints of a folder, for example to average them.

    A damaged file is skipped with a warning that names it, and the next one replaces
    it.

    Args:
        directory: the folder.
        kind: "last_epochs": ends of epochs, newest first; if training ended inside of
            an epoch, its end counts as well. "best": those with the best value of a
            metric, best first.
        count: number of checkpoints; fewer if there are fewer.
        monitor: metric in the states of `callbacks.Checkpoints`, for "best".
        mode: "min", "max" or "auto", see `direction`; of two equal checkpoints the
            newer is better.
        up_to: latest update of the checkpoints.

    Raises:
        ValueError: there is none.
    """
    check_integer("count", count, 1)
    known_states = dict(states(directory, up_to))
    newest = latest(directory)
    if newest in known_states:
        known_states[newest] = {**known_states[newest], "epoch_end": True}
    paths = ranked(known_states, kind, monitor, mode)
    undamaged = (path for path in paths if _tried(check, path) is not None)
    chosen = list(itertools.islice(undamaged, count))
    if not chosen:
        what = f"with the metric {monitor}" if kind == "best" else "of a whole epoch"
        what += "" if up_to is None else f" up to update {up_to} (`up_to`)"
        raise ValueError(f"{directory} has no undamaged checkpoint {what}.")
    return chosen


def direction(monitor: str, mode: str = "auto") -> str:
    """Where a metric is better, "min" or "max"; "auto": "max" for accuracy and BLEU."""
    if check_choice("mode", mode, ("auto", "min", "max")) == "auto":
        mode = "max" if monitor.endswith(("accuracy", "bleu")) else "min"
    return mode


def ranked(
    states: dict[Path, dict], kind: str, monitor: str = "val_nll", mode: str = "auto"
) -> list[Path]:
    """Ranks checkpoints as `select` does; `states` come newest first."""
    if check_choice("kind", kind, ("last_epochs", "best")) == "last_epochs":
        return [path for path in states if states[path].get("epoch_end")]
    sign = {"min": 1, "max": -1}[direction(monitor, mode)]
    scores = {}
    for path, state in states.items():
        value = state.get("metrics", {}).get(monitor)
        if isinstance(value, (int, float)) and abs(value) < np.inf:
            scores[path] = sign * value
    return sorted(scores, key=scores.get)


def remove_parts(directory: str | os.PathLike) -> None:
    """Removes incomplete files of a killed process."""
    files.remove_parts(directory, _NAME.pattern)


def states(
    directory: str | os.PathLike, up_to: int | None = None
) -> Iterator[tuple[Path, dict]]:
    """Yields checkpoints and states, newest first; warns about damaged ones."""
    for path in reversed(find(directory)):
        wanted = up_to is None or update_of(path) <= up_to
        if wanted and (state := _tried(read_state, path)) is not None:
            yield path, state


def _tried(read: Callable[[Path], dict], path: Path) -> dict | None:
    """`read(path)`; None, with a warning, for a damaged file."""
    try:
        return read(path)
    except (ValueError, OSError) as error:
        warnings.warn(f"Skipped a checkpoint. {error}", stacklevel=3)
        return None


# --- One file ---


def save(path: str | os.PathLike, model: keras.Model, state: dict) -> None:
    """Writes a checkpoint; `path` is unchanged until the new file is complete.

    Args:
        path: the file; missing folders are made.
        model: model whose variables, and its optimizer's if any, are written.
        state: JSON value; `restore` and `read_state` return it.

    Raises:
        OSError: the file cannot be written (for example, a full disk); names it.
        TypeError: JSON cannot hold the state.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = _variables(model)
    header = {
        "format_version": FORMAT_VERSION,
        "state": plain(state),
        **{group: [_entry(v) for v in groups[group]] for group in groups},
    }
    content = json.dumps(header)
    with files.atomic_file(path) as part, zipfile.ZipFile(part, "w") as file:
        file.writestr("header.json", content)
        for group, variables in groups.items():
            for number, variable in enumerate(variables):
                value = np.asarray(ops.convert_to_numpy(variable))
                with file.open(f"{group}/{number}.npy", "w", force_zip64=True) as array:
                    np.lib.format.write_array(array, value, allow_pickle=False)
    # The new name has reached the disk too, before older files may be deleted.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_state(path: str | os.PathLike) -> dict:
    """Returns the state of a checkpoint without reading its arrays.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged or no checkpoint; names the file.
    """
    with _opened(path, whole=False) as file:
        return file.header["state"]


def check(path: str | os.PathLike) -> dict:
    """Reads a whole checkpoint; see `read_state`."""
    with _opened(path) as file:
        return file.header["state"]


def restore(path: str | os.PathLike, model: keras.Model) -> dict:
    """Sets all variables of a model and its optimizer from a checkpoint.

    The optimizer is built first if necessary. Nothing is changed unless the file is
    complete and has exactly the variables of the model in their order, with shapes and
    dtypes. (Names and widths of integers may differ, as between the backends.)

    Args:
        path: the file.
        model: model made like the saved one, also under a `tf.distribute` scope.

    Returns:
        The state of the checkpoint.

    Raises:
        FileNotFoundError, ValueError: as in `read_state`, or the checkpoint belongs to
            another model or optimizer.
    """
    with _opened(path) as file, _scope(model):
        groups = _variables(model)
        for group, variables in groups.items():
            file.compare(group, variables)
        for group, variables in groups.items():
            for number, variable in enumerate(variables):
                _assign(variable, file.read(group, number))
        return file.header["state"]


def average(paths: Iterable[str | os.PathLike], model: keras.Model) -> None:
    """Sets the weights of a model to the arithmetic mean of checkpoints.

    Sums are float64, one array at a time, so memory does not grow with the number of
    files. g and v of weight normalization are averaged separately, as in fairseq.
    Integers and states of `SeedGenerator`s are those of the newest checkpoint. The
    optimizer is unchanged.

    Args:
        paths: checkpoints, as from `select`.
        model: model made like the saved ones.

    Raises:
        ValueError: no checkpoints, a damaged one, or one of another model.
    """
    paths = sorted(map(Path, paths), key=update_of)
    if not paths:
        raise ValueError("`paths` must name at least one checkpoint. Received: none")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_opened(path)) for path in paths]
        stack.enter_context(_scope(model))
        for file in opened:
            file.compare("model", model.variables)
        for number, variable in enumerate(model.variables):
            _assign(variable, _mean(opened, number))


def _mean(opened: list["_File"], number: int) -> np.ndarray:
    newest = opened[-1].read("model", number)
    if "float" not in newest.dtype.name:
        return newest
    values = (file.read("model", number).astype("float64") for file in opened)
    return np.asarray(sum(values) / len(opened)).astype(newest.dtype)


# --- Variables and arrays ---


def _variables(model) -> dict[str, list]:
    """Variables by group; builds the optimizer if necessary."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with _scope(model):
            optimizer.build(model.trainable_variables)
    of_optimizer = [] if optimizer is None else optimizer.variables
    return {"model": model.variables, "optimizer": of_optimizer}


def _entry(variable) -> dict:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return {"path": variable.path, "dtype": dtype, "shape": list(variable.shape)}


def _assign(variable, value: np.ndarray) -> None:
    """Integers in the width of the variable."""
    variable.assign(value.astype(keras.backend.standardize_dtype(variable.dtype)))


def _scope(model):
    """Scope of the model's strategy, for variables to be made and assigned."""
    if keras.backend.backend() == "tensorflow":
        return model.distribute_strategy.scope()
    return contextlib.nullcontext()


class _File(NamedTuple):
    """A checkpoint that is open for reading."""

    path: Path
    archive: zipfile.ZipFile
    header: dict

    def read(self, group: str, number: int) -> np.ndarray:
        entry = self.header[group][number]
        with self.archive.open(f"{group}/{number}.npy") as stream:
            value = np.lib.format.read_array(stream, allow_pickle=False)
        if value.dtype.kind == "V":  # bfloat16, which NumPy does not know
            value = value.view(entry["dtype"])
        if (value.dtype.name, [*value.shape]) != (entry["dtype"], entry["shape"]):
            raise ValueError(f"{stream.name} is no array {entry}")
        return value

    def compare(self, group: str, variables: list) -> None:
        """ValueError unless shapes and dtypes are those of the variables."""
        stored, expected = self.header[group], [_entry(v) for v in variables]
        reason = None
        if len(stored) != len(expected):
            reason = f"it has {len(stored)} variables, not {len(expected)}"
        for number, pair in enumerate(zip(stored, expected, strict=False)):
            first, second = pair
            integers = "int" in first["dtype"] and "int" in second["dtype"]
            same = first["dtype"] == second["dtype"] or integers
            if not same or first["shape"] != second["shape"]:
                first, second = (" ".join(map(str, e.values())) for e in pair)
                reason = f"number {number} is {first} in the file, {second} in memory"
                break
        if reason is not None:
            where = "in memory"
            if group == "optimizer":
                where += " (`average([path], model)` takes only the weights)"
            raise ValueError(
                f"{self.path}: its {group} is not the one {where}: {reason}."
            )


@contextlib.contextmanager
def _opened(path: str | os.PathLike, whole: bool = True) -> Iterator[_File]:
    """Yields a checkpoint, whose checksums were compared if `whole`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint {path}.")
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(files.open_file(path))
            archive = stack.enter_context(zipfile.ZipFile(opened))
            files.check_records(archive, path.stat().st_size)
            with archive.open("header.json") as stream:
                content = stream.read(files.MOST_JSON + 1)
            header = files.from_json(content, stream.name, state=dict, model=list)
            kinds = {"update": int, "epoch": int, "position": int, "metrics": dict}
            files.check_kinds(header["state"], "its state", callbacks=dict, **kinds)
            files.check_version(header, "its header", FORMAT_VERSION)
            file = _File(path, archive, header)
            for group in ("model", "optimizer") if whole else ():
                for number in range(len(header[group])):
                    file.read(group, number)  # which compares its checksum
        except Exception as error:
            raise ValueError(
                f"{path}: it is damaged, cut off or no checkpoint ({error})."
            ) from error
        yield file
