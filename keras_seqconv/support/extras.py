"""Packages that not everyone needs, imported where they are used, and backends."""

import sys
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """The imported module.

    Args:
        module: as after `import`, for example "sacremoses".
        extra: the extra of this package that installs it, for example "mt".

    Raises:
        ImportError: it is missing or broken; says which extra to install.
    """
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
