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

_MODULES = (
    "callbacks", "checkpoints", "convert", "data", "decoding", "evaluation", "export",
    "layers", "losses", "metrics", "models", "ops", "optimizers", "presets",
    "schedules", "tokenizers", "training",
)  # fmt: skip
# Where other names are; a path that ends in a name is a module.
_HOMES = {
    "demo": "evaluation.demo",
    "inspection": "evaluation.inspection",
    "plots": "evaluation.plots",
    "fit_stream": "callbacks",
    "LanguageGenerator": "translation.translator",
    "keep_freed_memory": "devices",
    "Translator": "translation.translator",
    "load": "translation",
}
__all__ = ["__version__", *_HOMES, *_MODULES]


if not TYPE_CHECKING:  # to type checkers every name would be there

    def __getattr__(name: str):
        if name not in __all__:
            raise AttributeError(f"module 'keras_seqconv' has no attribute {name!r}")
        path = _HOMES.get(name, name)
        try:
            home = importlib.import_module(f"keras_seqconv.{path}")
        except ImportError as error:  # an extra is missing: `hasattr` answers False
            raise AttributeError(str(error)) from error
        globals()[name] = home if path.endswith(name) else getattr(home, name)
        return globals()[name]


def __dir__() -> list[str]:
    return __all__


def _register() -> None:
    """Registers with Keras all that its files may hold."""
    import keras

    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ImportError(
            "keras_seqconv works on the Keras backends tensorflow and jax. Set the "
            "environment variable KERAS_BACKEND to one of them before importing Keras. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    for name in ("layers", "losses", "metrics", "models", "optimizers", "schedules"):
        importlib.import_module(f"keras_seqconv.{name}")


# The command line answers wrong flags and tables before it loads Keras.
if "keras_seqconv_cli" not in sys.modules:
    _register()
