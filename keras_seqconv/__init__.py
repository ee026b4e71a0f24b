"""Convolutional sequence learning for Keras 3."""

import importlib
import sys
from typing import TYPE_CHECKING

import wrapt

from keras_seqconv.support import imported_when_used
from keras_seqconv.version import __version__

if TYPE_CHECKING:  # for editors; in a running program each is loaded at first use
    from keras_seqconv import (  # noqa: F401
        callbacks,
        checkpoints,
        convert,
        data,
        decoding,
        evaluation,
        export,
        layers,
        losses,
        metrics,
        models,
        ops,
        optimizers,
        presets,
        schedules,
        tokenizers,
        training,
    )
    from keras_seqconv.callbacks import fit_stream  # noqa: F401
    from keras_seqconv.devices import keep_freed_memory  # noqa: F401
    from keras_seqconv.evaluation import demo, inspection, plots  # noqa: F401
    from keras_seqconv.translation import load  # noqa: F401
    from keras_seqconv.translation.translator import (  # noqa: F401
        LanguageGenerator,
        Translator,
    )

# Modules, and where other names are.
_HOMES = {
    name: name
    for name in (
        "callbacks", "checkpoints", "convert", "data", "decoding", "evaluation",
        "export", "layers", "losses", "metrics", "models", "ops", "optimizers",
        "presets", "schedules", "tokenizers", "training",
    )
} | {
    "demo": "evaluation.demo",
    "inspection": "evaluation.inspection",
    "plots": "evaluation.plots",
    "fit_stream": "callbacks",
    "LanguageGenerator": "translation.translator",
    "keep_freed_memory": "devices",
    "Translator": "translation.translator",
    "load": "translation",
}  # fmt: skip
__all__ = ["__version__", *_HOMES]

if not TYPE_CHECKING:  # to type checkers every name would be there
    __getattr__ = imported_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__


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
