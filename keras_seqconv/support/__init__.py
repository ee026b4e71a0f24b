"""Imports at first use, packages of extras, lines of progress."""

import ast
import contextlib
import importlib.metadata
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import TextIO

from keras_seqconv.version import __version__


class _Lazy:
    """A module that is imported when one of its names is used."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self._name), name)


tf = _Lazy("tensorflow")
jax, onnx, onnxruntime = map(_Lazy, ("jax", "onnx", "onnxruntime"))


def attached(package: str, file: str) -> tuple[Callable, Callable, list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package with a stub beside `file`.

    A name of the stub is imported at its first use.
    """
    homes = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            module = node.module.removeprefix(package)[1:]
            homes |= {alias.name: module or alias.name for alias in node.names}

    def find(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path = homes[name]
        try:
            home = __import__(f"{package}.{path}", fromlist=[name])
        except ImportError as error:  # an extra is missing: `hasattr` answers False
            raise AttributeError(str(error)) from error
        value = home if path.split(".")[-1] == name else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: [*homes], [*homes]


def require(module: str, extra: str) -> ModuleType:
    """The imported module, or ImportError with the extra that installs it."""
    try:
        # A builtin: in a graph, AutoGraph would warn that it cannot convert importlib.
        __import__(module)
        return sys.modules[module]
    except ImportError as error:
        raise ImportError(
            f"This needs the package {module.partition('.')[0]}: "
            f"pip install 'keras-seqconv[{extra}]' ({error})"
        ) from error


def require_tensorflow() -> None:
    """ValueError on another backend."""
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "An export is made on the TensorFlow backend: `save` the model, and load "
            "and export it in a process with KERAS_BACKEND=tensorflow. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )


def not_finite(variables) -> list[str]:
    """Paths of the variables that have an infinity or NaN."""
    from keras import backend, ops

    return [
        variable.path
        for variable in variables
        if "float" in backend.standardize_dtype(variable.dtype)
        and not ops.convert_to_numpy(ops.all(ops.isfinite(variable)))
    ]


@contextlib.contextmanager
def warnings_as_lines(say: Callable[[str], None]) -> Iterator[None]:
    """Warnings in the block are lines, each once, without the code they come from."""
    shown = set()

    def show(message, *place, **more):
        if str(message) not in shown:
            shown.add(str(message))
            say(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class ProgressLine:
    """One line that is written anew on a terminal; elsewhere a line now and then.

    Args:
        stream: a text stream, such as `sys.stderr`; None: nothing is shown.
        terminal_seconds: between two lines on a terminal, at least.
        plain_seconds: between two lines elsewhere.
    """

    def __init__(
        self,
        stream: TextIO | None,
        terminal_seconds: float = 0.2,
        plain_seconds: float = 10.0,
    ):
        self._stream = stream
        self._terminal = stream is not None and stream.isatty()
        self._pause = terminal_seconds if self._terminal else plain_seconds
        self._start = self._shown = monotonic()

    @property
    def seconds(self) -> float:
        """Since the start; never 0."""
        return max(1e-9, monotonic() - self._start)

    def update(self, line: Callable[[], str]) -> None:
        """Shows what `line` returns, if it is time to."""
        if self._stream is not None and monotonic() - self._shown >= self._pause:
            self._show(line())

    def end(self, line: Callable[[], str]) -> None:
        """Shows what `line` returns, to stay."""
        if self._stream is not None:
            self._show(line())
            if self._terminal:
                print(file=self._stream, flush=True)

    def _show(self, line: str) -> None:
        self._shown = monotonic()
        start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(f"{start}{line}", end=end, file=self._stream, flush=True)


def versions(*packages: str) -> dict[str, str]:
    """Versions of this package, of Python, and of those packages that there are."""
    numbers = {"keras_seqconv": __version__, "python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            numbers[package] = importlib.metadata.version(package)
    return numbers


def clock(seconds: float) -> str:
    """A time as people write it: 0:05, 1:00:30."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
