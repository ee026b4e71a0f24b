"""Convolutional sequence learning for Keras 3."""

import importlib
import sys
from typing import TYPE_CHECKING

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
        preparation,
        presets,
        schedules,
        tokenizers,
        training,
    )
    from keras_seqconv.devices import keep_freed_memory  # noqa: F401
    from keras_seqconv.evaluation import demo, inspection, plots  # noqa: F401
    from keras_seqconv.fitting import fit_stream  # noqa: F401
    from keras_seqconv.translation import load  # noqa: F401
    from keras_seqconv.translation.translator import (  # noqa: F401
        LanguageGenerator,
        Translator,
    )

_MODULES = (
    "callbacks", "checkpoints", "convert", "data", "decoding", "evaluation", "export",
    "layers", "losses", "metrics", "models", "ops", "optimizers", "preparation",
    "presets", "schedules", "tokenizers", "training",
)  # fmt: skip
_VIEWS = ("demo", "inspection", "plots")
_HOMES = {
    "fit_stream": "fitting",
    "LanguageGenerator": "translation.translator",
    "keep_freed_memory": "devices",
    "Translator": "translation.translator",
    "load": "translation",
}
__all__ = ["__version__", *_HOMES, *_MODULES, *_VIEWS]


def __getattr__(name: str):
    try:
        if name in _MODULES:
            return importlib.import_module(f"keras_seqconv.{name}")
        if name in _VIEWS:
            return importlib.import_module(f"keras_seqconv.evaluation.{name}")
        if name in _HOMES:
            home = importlib.import_module(f"keras_seqconv.{_HOMES[name]}")
            globals()[name] = getattr(home, name)
            return globals()[name]
    except ImportError as error:  # an extra is missing: `hasattr` answers False
        raise AttributeError(str(error)) from error
    raise AttributeError(f"module 'keras_seqconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


# The command line answers wrong flags and tables before it loads Keras.
if "keras_seqconv_cli" not in sys.modules:
    importlib.import_module("keras_seqconv.registration")
