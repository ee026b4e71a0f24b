"""Models for TensorFlow Serving: text in, text out, nothing of Python in between."""

from keras_seqconv.export.writing import saved_model

__all__ = ["saved_model"]
