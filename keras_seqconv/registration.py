"""Registers with Keras all that a file may hold; `import keras_seqconv` does so."""

import keras

if keras.backend.backend() not in ("tensorflow", "jax"):
    raise ImportError(
        "keras_seqconv works on the Keras backends tensorflow and jax. Set the "
        "environment variable KERAS_BACKEND to one of them before importing Keras. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}"
    )

from keras_seqconv import layers, losses, metrics, models, optimizers, schedules

__all__ = ["layers", "losses", "metrics", "models", "optimizers", "schedules"]
