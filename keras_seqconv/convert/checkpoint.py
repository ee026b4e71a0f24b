"""Reads options and weights of fairseq's checkpoints without executing them.

A checkpoint is a pickle, and a pickle is a program. Two gates stand before it: every
global that it names must be on a short list here, and `torch.load(weights_only=True)`
executes it with a list of its own. What is of fairseq and numpy becomes an `Inert`, so
nothing of fairseq is imported, and nothing that the file names is called.
"""

import argparse
import contextlib
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from keras_seqconv.support import require
from keras_seqconv.support.files import check_records, open_file, read_json

# What torch needs to rebuild tensors, and containers of data. Far fewer than torch
# allows by itself: no tensor constructors, no subclasses, no quantised tensors.
_ALLOWED = re.compile(
    r"_codecs\.encode|__builtin__\.set|argparse\.Namespace"
    r"|collections\.(Counter|OrderedDict)|torch\.(Size|device)"
    r"|torch\._utils\._rebuild_(parameter|tensor|tensor_v2)"
    r"|torch\.(Float|Half|BFloat16|Double|Long|Int|Short|Char|Byte|Bool)Storage"
    r"|torch\.(float|bfloat|u?int)(8|16|32|64)|torch\.(bool|half|float|double|long|int)"
)
_INERT = re.compile(
    r"fairseq(\.\w+)+|numpy\.(dtype|ndarray|dtypes\.\w+)"
    r"|numpy\._?core\.multiarray\.(scalar|_reconstruct)"
)
_KNOWN = re.compile(f"{_ALLOWED.pattern}|{_INERT.pattern}")
# A checkpoint of a large Transformer with its optimizer has some 50,000 objects.
MOST_OBJECTS, MOST_LEVELS = 500_000, 100
# Larger integers share hashes, and a dictionary of many keys of one hash takes hours.
_LARGEST_KEY = 2**61 - 2
# For files of fairseq 0.10; the CLI prints an error as one line, hence the semicolon.
_TO_PLAIN_DICT = """
Its cfg is of omegaconf. Where fairseq is installed, and if you trust the file, two \
lines of Python write a file with a plain dict:
import torch, omegaconf; content = torch.load({path!r}, "cpu", weights_only=False);
content["cfg"] = omegaconf.OmegaConf.to_container(content["cfg"], resolve=True, \
enum_to_str=True); torch.save(content, "plain.pt")"""

_FILL = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint that a model is built from.

    Attributes:
        path: the file or folder that was read.
        options: fairseq's hyper-parameters by their names there, as plain Python
            values; an object that is none, also a numpy number, is an `Inert`.
        weights: name -> array; floating point is float32, integers are as stored.
    """

    path: str
    options: dict = field(repr=False)
    weights: dict[str, np.ndarray] = field(repr=False)


class Inert:
    """Stands for classes and functions: takes any arguments and state, keeps none."""

    __slots__ = ()

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass


def read_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Reads a checkpoint of any version of fairseq without executing it.

    The options come from `args`, or else from `cfg["model"]` (its name is `arch`), with
    the languages of `cfg["task"]`. Tied tensors appear under every name. Names have no
    `module.` of PyTorch's wrappers for several devices.

    Args:
        path: a checkpoint file, in PyTorch's zip format or the one before it; or a
            folder with `weights.npz` and `args.json`, which needs no torch.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no checkpoint, is damaged, or names globals that are
            not allowed (all of them are listed, and nothing was executed); also
            without torch.
        ImportError: torch is not installed, or older than 2.6.
    """
    path = Path(path)
    if path.is_dir():
        options = read_json(path / "args.json")
        with (
            _reading(path / "weights.npz") as file,
            open_file(file) as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            # Weights hardly get smaller when they are packed.
            check_records(archive, 20 * file.stat().st_size)
            weights = dict(_array(archive, name) for name in archive.namelist())
        return Checkpoint(str(path), options, _unwrapped(weights))
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    with _reading(path):
        names = _globals_of(path)
    if refused := sorted(name for name in names if not _KNOWN.fullmatch(name)):
        of_omegaconf = any(name.startswith("omegaconf.") for name in refused)
        raise ValueError(
            f"{path} is refused, and nothing of it was executed: a checkpoint may name "
            "tensors, argparse.Namespace, numpy's scalars, arrays and dtypes, and "
            f"classes of fairseq. Received: {', '.join(refused)}"
            + (_TO_PLAIN_DICT.format(path=str(path)) if of_omegaconf else "")
        )
    torch = require("torch", "convert")
    # `weights_only` of older ones can be made to execute code (CVE-2025-32434).
    if torch.__version__ < "2.6":
        raise ImportError(
            f"torch must be 2.6 or newer. Received: torch {torch.__version__}"
        )
    stand_ins = [(Inert, name) for name in names if _INERT.fullmatch(name)]
    with _reading(path), _only(torch.serialization, [argparse.Namespace, *stand_ins]):
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__} instead of a dict")
        limit = 16 * path.stat().st_size
        weights = _unwrapped(_weights(torch, content, limit))
        return Checkpoint(str(path), _options(content), weights)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Turns any error of a library that reads the file into one that names it."""
    try:
        yield path
    except FileNotFoundError:
        raise
    except Exception as error:
        # torch wraps the reason in advice to switch its protection off.
        text = str(error).split("WeightsUnpickler error: ")[-1]
        text = text.split("\n\nCheck the documentation")[0].strip()
        reason = text.splitlines()[-1][:300] if text else type(error).__name__
        raise ValueError(
            f"{path} cannot be read: it is empty, damaged, cut off or no checkpoint of "
            f"fairseq ({reason})."
        ) from error


@contextlib.contextmanager
def _only(serialization, allowed: list) -> Iterator[None]:
    """While active, torch allows these, and nothing that others allowed."""
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    try:
        serialization.add_safe_globals(allowed)
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def _globals_of(path: Path) -> set[str]:
    """Every global that the pickles of a file name; see `look_at`."""
    with open_file(path) as stream:
        zipped = stream.read(4) == b"PK\3\4"  # as torch tells them apart
        stream.seek(0)
        if not zipped:
            # Magic number, protocol, sizes, content, keys of the storages.
            return set().union(*(look_at(stream) for _ in range(5)))
        _check_directory(stream)
        with zipfile.ZipFile(stream) as archive:
            check_records(archive, path.stat().st_size)
            # torch does not compare check sums.
            damaged = archive.testzip()
            if damaged is not None:
                raise ValueError(f"the record {damaged} does not match its check sum")
            records = archive.namelist()
            records = [r for r in records if r.lower().endswith("/data.pkl")]
            if len(records) != 1:
                raise ValueError(f"an archive with {len(records)} records data.pkl")
            with archive.open(records[0]) as record:
                return look_at(record)


def _check_directory(stream: BinaryIO) -> None:
    """ValueError for a zip file in which torch might see other records than Python."""
    end = stream.seek(-98, os.SEEK_END) + 76
    ends = stream.read()
    length, start, comment = struct.unpack("<IIH", ends[-10:])
    if ends[56:60] == b"PK\6\7":  # of more than 4 GB, and all that torch writes
        end -= 76
        length, start = struct.unpack("<QQ", ends[40:56])
        if struct.unpack("<Q", ends[64:72]) != (end,):
            start = -1
    if ends[76:80] != b"PK\5\6" or comment or start + length != end:
        raise ValueError("the directory of the archive is not at its end")


# --- A look at a pickle ---
#
# A small file can hold an object that is nearly endless to whoever hashes, compares or
# prints it, for shared parts are walked through once for each reference to them. Here a
# pickle's opcodes run on a stack of objects, each the list of its parts.


class _Object(list):
    """Parts of an object, the opcode that made it, and the argument of the opcode."""

    __slots__ = ("argument", "opcode")

    def __init__(self, parts: list, opcode: str, argument):
        super().__init__(parts)
        self.opcode, self.argument = opcode, argument


def look_at(stream: BinaryIO) -> set[str]:
    """The globals that one pickle names. After one that is refused only names are read.

    Raises:
        ValueError: the pickle is damaged, breaks a rule of `_check_use`, or makes more
            than `MOST_OBJECTS`, shared ones counted for each reference, or more levels
            than `MOST_LEVELS`.
    """
    names, stack, memo, dropped, refused = set(), [], {}, [], False
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number > MOST_OBJECTS:
            raise ValueError(f"more than {MOST_OBJECTS:,} steps of a pickle")
        if opcode.name in ("GLOBAL", "INST"):  # torch knows no other that names one
            argument = argument.replace(" ", ".", 1)
            names.add(argument)
            refused = refused or not _KNOWN.fullmatch(argument)
        if refused:
            continue
        if opcode.name in _PUT or opcode.name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif opcode.name in _GET:
            stack.append(memo[argument])
        else:
            parts = _popped(stack, opcode.stack_before)
            _check_use(opcode.name, parts)
            if opcode.name in _FILL:
                parts[0].extend(parts[1:])
                stack.append(parts[0])
            elif opcode.stack_after:
                made = _Object(parts, opcode.name, argument)
                stack.extend([made] * len(opcode.stack_after))
            else:
                dropped.append(parts)
    _check_size([*stack, *dropped])
    return names


def _popped(stack: list, kinds: list) -> list:
    """Pops the arguments of an opcode, whose kinds are given, from the stack."""
    marked = pickletools.markobject in kinds
    count = kinds.index(pickletools.markobject) if marked else len(kinds)
    start = len(stack)
    if marked:
        indices = range(start - 1, -1, -1)
        start = next(i for i in indices if stack[i].opcode == "MARK")
    parts = stack[start + 1 :]
    if start < count:
        raise ValueError("a pickle that takes more than there is")
    parts = stack[start - count : start] + parts
    del stack[start - count :]
    return parts


def _check_use(opcode: str, parts: list) -> None:
    """ValueError where torch would hash keys of other kinds, or calls take minutes.

    All but text and small integers can be made to share one hash. A tensor in the place
    of arguments stands for as many as its shape says.
    """
    keys = []
    if opcode in ("SETITEM", "SETITEMS"):
        keys = parts[1::2]
    elif opcode == "BINPERSID":  # "storage", type, key, location, size, perhaps a view
        keys = parts[0][2:3] + [view[0] for view in parts[0][5:] if view]
    elif opcode == "BUILD" and parts[1].opcode not in ("EMPTY_DICT", "DICT"):
        if not (parts[0] and _INERT.fullmatch(parts[0][0].argument)):
            raise ValueError("the state of an object is no dictionary")
    elif opcode in ("REDUCE", "NEWOBJ"):
        function, arguments = parts[0].argument, parts[1]
        if "TUPLE" not in arguments.opcode:
            raise ValueError(f"the arguments of {function} are no tuple")
        if function == "_codecs.encode":
            if [part.argument for part in arguments[1:]] != ["latin1"]:
                raise ValueError("a codec other than latin1")
        elif _ALLOWED.fullmatch(function) and not function.startswith("torch._utils."):
            keys = [entry for argument in arguments for entry in argument]
    for key in keys:
        number = key.argument if isinstance(key.argument, int) else 0
        if key or abs(number) > _LARGEST_KEY:
            raise ValueError("a key is neither text nor a small integer")


def _check_size(root: list) -> None:
    """ValueError where a walk through all parts would take too long, or never end."""
    todo, seen = [(root, 0)], 0
    while todo:
        parts, level = todo.pop()
        seen += len(parts)
        if seen > MOST_OBJECTS or level > MOST_LEVELS:
            raise ValueError(
                f"more than {MOST_OBJECTS:,} objects, shared ones counted for each "
                f"reference, or {MOST_LEVELS} levels"
            )
        todo += [(part, level + 1) for part in parts if part]


# --- What was loaded ---


def _options(content: dict) -> dict:
    if content.get("args") is not None:
        return _section(content["args"], "args")
    if content.get("cfg") is None:
        raise ValueError('it has neither "args" nor "cfg"')
    configuration = _section(content["cfg"], "cfg")
    options = _section(configuration.get("model"), "cfg.model")
    names = {"arch": options.pop("_name", None)}
    if isinstance(task := configuration.get("task"), dict):
        names |= {name: task.get(name) for name in ("source_lang", "target_lang")}
    return {name: names[name] for name in names if names[name] is not None} | options


def _section(value, name: str) -> dict:
    values = _python_value(value)
    if not isinstance(values, dict):
        raise ValueError(f'"{name}" is neither a Namespace nor a dict')
    return values


def _python_value(value):
    """Python values only."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is argparse.Namespace:
        value = vars(value)
    if isinstance(value, Mapping):
        return {_python_value(key): _python_value(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(_python_value, value))
    return Inert()


def _weights(torch, content: dict, limit: int) -> dict[str, np.ndarray]:
    """The tensors as arrays, float32 if floating; at most `limit` bytes in all.

    Half precision under several names, as float32, stays below 16 times the file.
    """
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError('it has no "model", the dict of weights')
    weights = {}
    for name, tensor in model.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f'what "model" holds under {name!r} is not a tensor with a name'
            )
        limit -= 4 * tensor.numel()
        if limit < 0:
            raise ValueError(f"the tensors up to {name} show far more than is stored")
        if tensor.is_floating_point():
            tensor = tensor.to(torch.float32)  # NumPy has no bfloat16
        weights[name] = _float32(name, tensor.detach().numpy())
    return weights


def _array(archive: zipfile.ZipFile, record: str) -> tuple[str, np.ndarray]:
    """Name and array of a record of an npz file."""
    name = record.removesuffix(".npy")
    with archive.open(record) as stream:
        # The header of another version may have 4 GB.
        if stream.read(8) != np.lib.format.magic(1, 0):
            raise ValueError(f"{name} is no array in version 1.0 of NumPy's format")
        stream.seek(0)
        return name, _float32(name, np.lib.format.read_array(stream))


def _unwrapped(weights: dict) -> dict:
    """By the names in a model that was wrapped, as DistributedDataParallel does."""
    while weights and all(name.startswith("module.") for name in weights):
        weights = {name.removeprefix("module."): weights[name] for name in weights}
    return weights


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.asarray(array, "float32")
    if array.dtype.kind in "iub":
        return array
    raise ValueError(f"{name} holds numbers of the type {array.dtype}")
