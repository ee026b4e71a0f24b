"""Models for TensorFlow Serving: text in, text out, nothing of Python in between."""

from keras_seqconv.export.writing import next_version, saved_model

__all__ = ["next_version", "saved_model"]
