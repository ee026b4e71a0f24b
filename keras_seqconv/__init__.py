"""Convolutional sequence learning for Keras 3."""

import importlib
import sys

import wrapt

from keras_seqconv.support import attached
from keras_seqconv.version import __version__ as __version__

__getattr__, __dir__, __all__ = attached(__name__, __file__)


# Modules with classes that Keras' files may hold, and what these modules import.
_REGISTERED = (
    "ops", "layers", "losses", "metrics", "optimizers", "schedules", "models",
)  # fmt: skip
_imported = set()


def _register(module) -> None:
    """Registers with Keras all that its files may hold, once Keras is imported.

    Called after the import of Keras, and of each of the modules. Where one of them
    imports Keras, the others wait for its end.
    """
    _imported.add(module.__name__)
    if "keras" not in _imported:
        return
    backend = sys.modules["keras"].backend.backend()
    if backend not in ("tensorflow", "jax"):
        if module.__name__ == "keras":  # which others may use
            return
        raise ImportError(
            "keras_seqconv works on the Keras backends tensorflow and jax. Set the "
            "environment variable KERAS_BACKEND to one of them before importing Keras. "
            f"Received: KERAS_BACKEND={backend}"
        )
    names = [f"{__name__}.{name}" for name in _REGISTERED]
    if all(name in _imported for name in names if name in sys.modules):
        for name in names:
            importlib.import_module(name)


for _name in ("keras", *(f"{__name__}.{name}" for name in _REGISTERED)):
    wrapt.register_post_import_hook(_register, _name)
