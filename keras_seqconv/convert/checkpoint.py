"""Options and weights out of fairseq's checkpoints, without running what is in them.

A checkpoint is a pickle, and a pickle is a program. Three gates stand before it: every
global it names must be on a short list, and what it would make is counted; then
`torch.load(weights_only=True)` executes it with a list of its own; and what is not
torch's there (`argparse.Namespace`, numpy, fairseq) is replaced by the inert classes
below. Nothing of fairseq is imported, nothing that the file names is called.
"""

import contextlib
import itertools
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

# What torch needs to rebuild tensors, and containers of data. Far fewer than torch
# allows by itself: no tensor constructors, no subclasses, no quantised tensors.
_REBUILD = {
    "_codecs.encode",  # bytes in pickles of protocol 2
    "__builtin__.set",  # its name in protocol 2
    "collections.Counter",
    "collections.OrderedDict",
    "torch.Size",
    "torch.device",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
}
_STORAGES = re.compile(
    r"torch\.(Float|Half|BFloat16|Double|Long|Int|Short|Char|Byte|Bool)Storage"
    r"|torch\.(float|bfloat|u?int)(8|16|32|64)|torch\.(bool|half|float|double|long|int)"
)
_FAIRSEQ = re.compile(r"fairseq(\.\w+)+")
_NUMPY_DTYPES = re.compile(r"numpy\.dtypes\.\w+")
_ZIP_MAGIC = b"PK\x03\x04"
# Bounds against hostile files, far above what training writes.
_MOST_VALUES = 10**7
_MOST_OPTIONS = 10**5
# The parts of cfg["task"] that say something about the model or its text.
_TASK_OPTIONS = (
    "source_lang", "target_lang", "left_pad_source", "left_pad_target",
    "max_source_positions", "max_target_positions", "tokens_per_sample",
    "add_bos_token",
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """What a model is rebuilt from.

    Attributes:
        path: the file or folder that was read.
        file_format: "zip" or "legacy" (PyTorch's formats since and before 1.6) or
            "arrays" (`weights.npz` and `args.json`).
        options: fairseq's hyper-parameters by their names there, as plain Python
            values; an object that is none is an `Inert`.
        weights: name -> array; floating point is float32, integers are as stored.
    """

    path: str
    file_format: str
    options: dict = field(repr=False)
    weights: dict[str, np.ndarray] = field(repr=False)


class Inert:
    """Stands for every class of fairseq: takes any arguments and state, keeps none."""

    __slots__ = ()

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass


class _Namespace:
    """Stands for `argparse.Namespace`: its attributes as a dict."""

    __slots__ = ("values",)

    def __new__(cls):
        self = super().__new__(cls)
        self.values = {}
        return self

    def __setstate__(self, state):
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise ValueError("an argparse.Namespace whose state is no dict of names")
        self.values = state


class _Dtype:
    """Stands for `numpy.dtype`, whose own `__setstate__` trusts its argument."""

    __slots__ = ("name", "order")
    _PLAIN = re.compile(r"[biufc]\d{1,2}|[SU]\d{1,4}")

    def __init__(self, name, align=False, copy=False):
        self.name, self.order = name, "="

    def __setstate__(self, state):
        if type(state) is tuple and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = state[1]

    def resolve(self) -> np.dtype:
        if type(self.name) is not str or not self._PLAIN.fullmatch(self.name):
            raise ValueError("a numpy dtype of neither numbers nor text")
        return np.dtype(self.order + self.name)


class _Array:
    """Stands for `numpy.ndarray`: the array once its state was checked."""

    __slots__ = ("value",)

    def __init__(self, *args):
        self.value = np.zeros(0)

    def __setstate__(self, state):
        _, shape, dtype, by_columns, data = state
        if type(dtype) is not _Dtype or type(data) is not bytes:
            raise ValueError("the state of a numpy array holds no dtype or no bytes")
        order = "F" if by_columns else "C"
        self.value = np.frombuffer(data, dtype.resolve()).reshape(shape, order=order)


def _scalar(dtype, data=b""):
    """Stands for `numpy.core.multiarray.scalar`: the Python value."""
    if type(dtype) is not _Dtype or type(data) is not bytes:
        raise ValueError("a numpy scalar without dtype or bytes")
    if dtype.resolve().itemsize != len(data):
        raise ValueError(f"a numpy scalar of type {dtype.name} in {len(data)} bytes")
    return np.frombuffer(data, dtype.resolve())[0].item()


def _reconstruct(*args):
    """Stands for `numpy.core.multiarray._reconstruct`: an array before its state."""
    return _Array()


_REPLACED = {
    "argparse.Namespace": _Namespace,
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
}


def read_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Reads a checkpoint of fairseq, of any year, without running anything in it.

    The options come from `args`, or else from `cfg["model"]` and what `cfg["task"]`
    says about languages, padding and positions (`arch`, `task`, `criterion`, `bpe` and
    `tokenizer` are the names of those sections). Tied tensors appear under every name.

    Args:
        path: a checkpoint file, in PyTorch's zip format or the one before it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no checkpoint, is damaged, or names globals that are
            not allowed (all of them are listed, and nothing was executed).
        ImportError: torch is not installed, or older than 2.6.

    Example:

    ```python
    from keras_seqconv.convert.checkpoint import read_checkpoint
    # checkpoint = read_checkpoint("checkpoint_best.pt")
    # checkpoint.options["arch"], checkpoint.weights["encoder.embed_tokens.weight"]
    ```
    """
    path = _regular_file(path)
    torch = _torch()
    with open(path, "rb") as stream:
        names: set[str] = set()
        # One bad byte can raise anything in pickletools, zipfile or torch.
        try:
            file_format, size = _scan(stream, names)
        except Exception as error:
            _refuse_globals(path, names)
            raise _unreadable(path, error) from error
        _refuse_globals(path, names)
        try:
            stream.seek(0)
            with _replacements(torch, names):
                content = torch.load(
                    stream, map_location=_at_most(size), weights_only=True
                )
            options = _options(content)
            weights = _weights(torch, content, size)
        except Exception as error:
            raise _unreadable(path, error) from error
    return Checkpoint(str(path), file_format, options, weights)


def _torch():
    try:
        import torch
    except ImportError:
        found = "none"
    else:
        if torch.__version__ >= "2.6":
            return torch
        found = torch.__version__
    # `weights_only` of older ones can be made to execute code (CVE-2025-32434).
    raise ImportError(
        "Reading fairseq's checkpoints needs torch 2.6 or newer: "
        f"pip install 'keras-seqconv[convert]'. Received: {found}"
    )


def read_arrays(
    weights: str | os.PathLike, options: str | os.PathLike | None = None
) -> Checkpoint:
    """Reads the same from `weights.npz` and `args.json`, without torch and pickle.

    Args:
        weights: an `.npz` file, or the folder of `weights.npz` and `args.json`.
        options: the `.json` file; by default `args.json` beside the weights.
    """
    path = Path(weights)
    file = _regular_file(path / "weights.npz" if path.is_dir() else path)
    options = _regular_file(file.with_name("args.json") if options is None else options)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            claimed = sum(record.file_size for record in arrays.zip.infolist())
            if claimed > 20 * file.stat().st_size:
                raise ValueError("its records are compressed too well to be weights")
            found = {name: _float32(name, arrays[name]) for name in arrays.files}
    except Exception as error:
        raise _unreadable(file, error) from error
    try:
        values = json.loads(options.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _unreadable(options, error) from error
    if not isinstance(values, dict):
        raise _unreadable(options, "it holds no JSON object")
    return Checkpoint(str(path), "arrays", values, found)


def _regular_file(path: str | os.PathLike) -> Path:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    if not path.is_file():
        raise _unreadable(path, "it is not a file")
    if path.stat().st_size == 0:
        raise _unreadable(path, "it is empty")
    return path


def _unreadable(path: Path, reason) -> ValueError:
    if isinstance(reason, Exception):
        # torch wraps the reason in advice to switch its protection off.
        text = str(reason).split("WeightsUnpickler error: ")[-1]
        text = text.split("\n\nCheck the documentation")[0].strip()
        reason = text.splitlines()[-1][:300] if text else type(reason).__name__
    return ValueError(
        f"{path} cannot be read: it is damaged, cut off or no checkpoint of fairseq "
        f"({reason})."
    )


# --- Before anything is executed: what the pickles ask for. ---


def _scan(stream: BinaryIO, names: set[str]) -> tuple[str, int]:
    """The format of the file and the bytes in it that may be of storages.

    Adds every global that its pickles name to `names`.
    """
    size = os.fstat(stream.fileno()).st_size
    magic = stream.read(len(_ZIP_MAGIC))
    stream.seek(0)
    if magic == _ZIP_MAGIC:
        with zipfile.ZipFile(stream) as archive:
            _scan_archive(archive, size, names)
        return "zip", size
    # The old format: magic number, protocol, sizes, content, keys of the storages.
    for _ in range(5):
        _scan_pickle(stream, names)
    return "legacy", size - stream.tell()


def _scan_archive(archive: zipfile.ZipFile, size: int, names: set[str]):
    records = archive.infolist()
    # torch looks for them without regard to case.
    members = [record.filename.lower() for record in records]
    if len(set(members)) < len(members):
        raise ValueError("two records of the archive have the same name")
    pickles = [
        record
        for record, name in zip(records, members, strict=True)
        if name.split("/")[1:] == ["data.pkl"]
    ]
    if len(pickles) != 1:
        raise ValueError(f"an archive with {len(pickles)} records data.pkl")
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise ValueError("a record is compressed, and PyTorch compresses none")
    if sum(record.file_size for record in records) > size:
        raise ValueError("its records claim more bytes than it has")
    with archive.open(pickles[0]) as member:
        _scan_pickle(member, names)
    # torch does not compare check sums.
    damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the record {damaged} does not match its check sum")


def _scan_pickle(stream: BinaryIO, names: set[str]):
    """Adds the globals of a pickle to `names`; refuses what would take forever.

    The memo lets a few bytes make a value of any size, and to hash it, or to write it
    into a message, takes accordingly. So a value (a list of its size) counts with all
    that it holds, each time that it comes from the memo. The stack follows the tables
    of pickletools; where this goes wrong, so does torch.
    """
    stack, marks, memo, count, a_global = [], [], {}, 0, [0]
    for opcode, argument, _ in pickletools.genops(stream):
        name, before = opcode.name, opcode.stack_before
        if name == "PROTO" and argument != 2:
            raise ValueError(f"pickle protocol {argument}, PyTorch writes 2")
        if name == "MARK":
            marks.append(len(stack))
            continue
        if name.endswith("PUT"):
            memo[argument] = stack[-1]
            continue
        start = len(stack) - len(before)
        if pickletools.markobject in before:
            start = marks.pop() - before.index(pickletools.markobject)
        taken = stack[start:]
        del stack[start:]
        if name in ("REDUCE", "NEWOBJ") and taken[0] is not a_global:
            raise ValueError("it calls what is no global")
        if name == "GLOBAL":
            names.add(argument.replace(" ", ".", 1))
            value = a_global
        elif name.endswith("GET"):
            value = memo[argument]
            count += value[0]
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"):
            value = taken[0]
            value[0] += sum(held[0] for held in taken[1:])
        else:
            length = len(argument) if isinstance(argument, (str, bytes)) else 1
            value = [length + sum(held[0] for held in taken)]
        stack += [value] * len(opcode.stack_after)
        count += 1
        if count > _MOST_VALUES:
            raise ValueError(f"it holds more than {_MOST_VALUES} values")


def _allowed(name: str) -> bool:
    return (
        name in _REBUILD
        or name in _REPLACED
        or any(rule.fullmatch(name) for rule in (_STORAGES, _FAIRSEQ, _NUMPY_DTYPES))
    )


def _refuse_globals(path: Path, names: set[str]):
    refused = sorted(name for name in names if not _allowed(name))
    if refused:
        raise ValueError(
            f"{path} is refused, and nothing of it was executed: a checkpoint may name "
            "tensors, argparse.Namespace, numpy's scalars, arrays and dtypes, and "
            f"classes of fairseq. Received: {', '.join(refused)}"
        )


# --- Loading. ---


@contextlib.contextmanager
def _replacements(torch, names: set[str]) -> Iterator[None]:
    """While active, torch allows our stand-ins, and nothing that others allowed."""
    before = torch.serialization.get_safe_globals()
    inert = {
        name: Inert
        for name in names
        if _FAIRSEQ.fullmatch(name) or _NUMPY_DTYPES.fullmatch(name)
    }
    torch.serialization.clear_safe_globals()
    try:
        torch.serialization.add_safe_globals(
            [(stand_in, name) for name, stand_in in (inert | _REPLACED).items()]
        )
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _at_most(size: int) -> Callable:
    """A `map_location` that leaves storages where they are, and adds up their bytes.

    What is claimed but not there, the old format leaves as memory that no one wrote.
    """

    def keep(storage, location):
        nonlocal size
        size -= 8 + storage.nbytes()  # in the old format, behind their number
        if size < 0:
            raise ValueError("its storages claim more bytes than it has")
        return storage

    return keep


def _options(content) -> dict:
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__} instead of a dict")
    arguments, configuration = content.get("args"), content.get("cfg")
    if arguments is not None:
        return _section(arguments, "args")
    if configuration is None:
        raise ValueError('it has neither "args" nor "cfg"')
    configuration = _section(configuration, "cfg")
    if "model" not in configuration:
        raise ValueError('"cfg" has no "model"')
    options = _section(configuration["model"], "cfg.model")
    task = configuration.get("task")
    task = task if isinstance(task, dict) else {}
    for name in _TASK_OPTIONS:
        if name in task:
            options.setdefault(name, task[name])
    for name in ("model", "task", "criterion", "bpe", "tokenizer"):
        section = configuration.get(name)
        if isinstance(section, dict) and isinstance(section.get("_name"), str):
            options.setdefault("arch" if name == "model" else name, section["_name"])
    options.pop("_name", None)
    return options


def _section(value, name: str) -> dict:
    values = _plain(value, itertools.count())
    if not isinstance(values, dict):
        raise ValueError(f'"{name}" is neither a Namespace nor a dict')
    return dict(values)


def _plain(value, number: Iterator[int]):
    """Python values only. What is shared counts (`number`) wherever it stands."""
    if next(number) > _MOST_OPTIONS:
        raise ValueError(f"its options hold more than {_MOST_OPTIONS} values")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is _Namespace:
        return _plain(value.values, number)
    if isinstance(value, Mapping):
        return {_plain(key, number): _plain(value[key], number) for key in value}
    if type(value) in (list, tuple, set):
        return type(value)(_plain(item, number) for item in value)
    return value.value if type(value) is _Array else Inert()


def _weights(torch, content: dict, size: int) -> dict[str, np.ndarray]:
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError('it has no "model", the dict of weights')
    odd = [
        name
        for name, tensor in model.items()
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor)
    ]
    if odd:
        raise ValueError(f'what "model" holds under {odd} is not a tensor with a name')
    # Tied tensors are one array. All others are not more than the file has.
    tensors = {name: _place(tensor) for name, tensor in model.items()}
    different = dict(zip(tensors.values(), model.items(), strict=True))
    if sum(tensor.nbytes for _, tensor in different.values()) > size:
        raise ValueError("its tensors claim more bytes than it has")
    arrays = {place: _array(torch, *different[place]) for place in different}
    return {name: arrays[place] for name, place in tensors.items()}


def _place(tensor) -> tuple:
    """Equal for tensors that are the same part of one storage."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _array(torch, name: str, tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    return _float32(name, tensor.numpy())


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.asarray(array, "float32")
    if array.dtype.kind in "iub":
        return array
    raise ValueError(f"{name} holds numbers of the type {array.dtype}")
