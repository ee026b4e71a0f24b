"""Convolutional sequence learning for Keras 3."""

import keras as _keras

if _keras.backend.backend() not in ("tensorflow", "jax"):
    raise ImportError(
        "keras_seqconv works on the Keras backends tensorflow and jax. Set the "
        "environment variable KERAS_BACKEND to one of them before importing Keras. "
        f"Received: KERAS_BACKEND={_keras.backend.backend()}"
    )

from keras_seqconv import bootstrap as bootstrap
from keras_seqconv import callbacks as callbacks
from keras_seqconv import checkpoints as checkpoints
from keras_seqconv import convert as convert
from keras_seqconv import data as data
from keras_seqconv import decoding as decoding
from keras_seqconv import evaluation as evaluation
from keras_seqconv import inspection as inspection
from keras_seqconv import layers as layers
from keras_seqconv import losses as losses
from keras_seqconv import metrics as metrics
from keras_seqconv import models as models
from keras_seqconv import ops as ops
from keras_seqconv import optimizers as optimizers
from keras_seqconv import perplexity as perplexity
from keras_seqconv import plots as plots
from keras_seqconv import schedules as schedules
from keras_seqconv import tokenizers as tokenizers
from keras_seqconv.fitting import fit_stream as fit_stream
from keras_seqconv.language_generator import LanguageGenerator as LanguageGenerator
from keras_seqconv.memory import keep_freed_memory as keep_freed_memory
from keras_seqconv.translator import Translator as Translator
from keras_seqconv.translator import load as load
from keras_seqconv.version import __version__ as __version__

# Whole jobs; with packages of their own, so they are imported when they are used.
_LAZY = ("export", "preparation", "training")


def __getattr__(name: str):
    if name in _LAZY:
        import importlib

        return importlib.import_module(f"keras_seqconv.{name}")
    raise AttributeError(f"module 'keras_seqconv' has no attribute {name!r}")
