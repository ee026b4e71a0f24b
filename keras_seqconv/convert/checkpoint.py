"""Options and weights out of fairseq's checkpoints, without running what is in them.

A checkpoint is a pickle, and a pickle is a program. Three gates stand before it: its
opcodes are read without executing any, and every global it names must be on a short
list; then `torch.load(weights_only=True)` executes it with a list of its own; and what
is not torch's there (`argparse.Namespace`, numpy, fairseq) is replaced by the inert
classes below. Nothing of fairseq is imported, nothing that the file names is called.
"""

import _compat_pickle
import contextlib
import json
import math
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

# What torch needs to rebuild tensors, and containers of data. Far fewer than torch
# allows by itself: no tensor constructors, no subclasses, no quantised tensors.
_REBUILD = {
    "_codecs.encode",  # bytes in pickles of protocol 2
    "builtins.set",
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
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
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
            raise ValueError(f"a numpy dtype of neither numbers nor text: {self.name}")
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
        ImportError: torch is not installed.

    Example:

    ```python
    from keras_seqconv.convert.checkpoint import read_checkpoint
    # checkpoint = read_checkpoint("checkpoint_best.pt")
    # checkpoint.options["arch"], checkpoint.weights["encoder.embed_tokens.weight"]
    ```
    """
    path = _regular_file(path)
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "Reading fairseq's checkpoints needs torch: "
            "pip install 'keras-seqconv[convert]'"
        ) from error
    with open(path, "rb") as stream:
        names: set[str] = set()
        # One bad byte can raise anything in pickletools, zipfile or torch.
        try:
            file_format = _scan(stream, names)
        except Exception as error:
            _refuse_globals(path, names)
            raise _unreadable(path, error) from error
        _refuse_globals(path, names)
        try:
            if file_format == "zip":
                _check_sums(stream)
            stream.seek(0)
            with _replacements(torch, names):
                content = torch.load(stream, map_location="cpu", weights_only=True)
            options = _options(content)
            weights = _weights(torch, content)
        except Exception as error:
            raise _unreadable(path, error) from error
    return Checkpoint(str(path), file_format, options, weights)


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
            found = {name: _float32(name, arrays[name]) for name in arrays.files}
    except Exception as error:
        raise _unreadable(file, error) from error
    try:
        values = json.loads(options.read_bytes())
    except ValueError as error:
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
        reason = text.splitlines()[-1] if text else type(reason).__name__
    return ValueError(
        f"{path} cannot be read: it is damaged, cut off or no checkpoint of fairseq "
        f"({reason})."
    )


# --- Before anything is executed: what the pickles ask for. ---


def _scan(stream: BinaryIO, names: set[str]) -> str:
    """The format of the file; adds every global that its pickles name to `names`."""
    magic = stream.read(len(_ZIP_MAGIC))
    stream.seek(0)
    if magic == _ZIP_MAGIC:
        with zipfile.ZipFile(stream) as archive:
            _scan_archive(archive, names)
        return "zip"
    # The old format: magic number, protocol, sizes, content, keys of the storages.
    if _Pickle(stream, names).numbers != [_LEGACY_MAGIC]:
        raise ValueError("neither an archive nor a pickle that PyTorch wrote")
    _, _, content, keys = [_Pickle(stream, names) for _ in range(4)]
    # A storage that is not listed would be left as uninitialised memory.
    if content.storages != set(keys.strings):
        raise ValueError("its storages are not those that its tensors name")
    return "legacy"


def _scan_archive(archive: zipfile.ZipFile, names: set[str]):
    members = archive.namelist()
    if len(set(members)) < len(members):
        raise ValueError("two records of the archive have the same name")
    pickles = [name for name in members if name.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1:
        raise ValueError(f"an archive with {len(pickles)} records data.pkl")
    with archive.open(pickles[0]) as member:
        _Pickle(member, names)


class _Pickle:
    """What one pickle of a stream holds, from its opcodes; executes none of them.

    The globals it names are added to `names`, also when it then turns out damaged.
    """

    def __init__(self, stream: BinaryIO, names: set[str]):
        self.names = names
        self.strings: list[str] = []
        self.numbers: list[int] = []
        self.storages: set[str] = set()
        self._memo: dict[int, str | None] = {}
        self._since_mark: list[str] = []
        self._protocol: int | None = None
        self._last: str | None = None  # the string on top of the stack, if it is one
        for opcode, argument, _ in pickletools.genops(stream):
            self._read(opcode.name, argument)
        if self._protocol not in (None, 2):
            raise ValueError(f"pickle protocol {self._protocol}, PyTorch writes 2")

    def _read(self, opcode: str, argument):
        if opcode in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._last
            return
        if opcode == "MEMOIZE":
            self._memo[len(self._memo)] = self._last
            return
        self._last = None
        if opcode in ("GET", "BINGET", "LONG_BINGET"):
            self._push(self._memo.get(argument))
        elif isinstance(argument, str) and opcode not in ("GLOBAL", "INST", "PERSID"):
            self._push(argument)
        elif opcode in ("LONG1", "LONG4"):
            self.numbers.append(argument)
        elif opcode == "PROTO":
            self._protocol = argument
        elif opcode == "MARK":
            self._since_mark = []
        elif opcode in ("GLOBAL", "INST"):
            self.names.add(_full_name(*argument.split(" ")))
        elif opcode == "STACK_GLOBAL":
            self.names.add(".".join(self.strings[-2:]))
        elif opcode in ("EXT1", "EXT2", "EXT4"):
            self.names.add(f"copyreg extension {argument}")
        elif opcode in ("BINPERSID", "PERSID"):
            if opcode == "PERSID" or self._since_mark[:1] != ["storage"]:
                raise ValueError("it refers to something outside that is no storage")
            self.storages.add(self._since_mark[1])

    def _push(self, text: str | None):
        self._last = text
        if text is not None:
            self.strings.append(text)
            self._since_mark.append(text)


def _full_name(*words: str) -> str:
    """Module and name; protocol 2 writes some as Python 2 had them."""
    if len(words) != 2:  # a name with a blank, which no rule allows
        return " ".join(words)
    module, name = words
    module = _compat_pickle.IMPORT_MAPPING.get(module, module)
    return ".".join(_compat_pickle.NAME_MAPPING.get(words, (module, name)))


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


def _check_sums(stream: BinaryIO):
    """Compares the check sum of every record; torch does not."""
    with zipfile.ZipFile(stream) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the record {damaged} does not match its check sum")


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
    values = _plain(value, {})
    if not isinstance(values, dict):
        raise ValueError(f'"{name}" is neither a Namespace nor a dict')
    return dict(values)


_OPEN = object()


def _plain(value, done: dict):
    """Python values only. `done` keeps what is shared shared, and finds circles."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if id(value) in done:
        if done[id(value)] is _OPEN:
            raise ValueError("an option contains itself")
        return done[id(value)]
    done[id(value)] = _OPEN
    if type(value) is _Namespace:
        plain = _plain(value.values, done)
    elif isinstance(value, Mapping):
        plain = {_plain(key, done): _plain(value[key], done) for key in value}
    elif type(value) in (list, tuple, set):
        plain = type(value)(_plain(item, done) for item in value)
    elif type(value) is _Array:
        plain = value.value
    else:
        plain = Inert()
    done[id(value)] = plain
    return plain


def _weights(torch, content: dict) -> dict[str, np.ndarray]:
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
    return {name: _array(torch, name, tensor) for name, tensor in model.items()}


def _array(torch, name: str, tensor) -> np.ndarray:
    tensor = tensor.detach()
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    if math.prod(tensor.shape) > stored:
        raise ValueError(f"{name} claims {tuple(tensor.shape)}, stored are {stored}")
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    return _float32(name, tensor.numpy())


def _float32(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.asarray(array, "float32")
    if array.dtype.kind in "iub":
        return array
    raise ValueError(f"{name} holds numbers of the type {array.dtype}")
