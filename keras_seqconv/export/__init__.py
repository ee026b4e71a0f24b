"""Models for other runtimes: TensorFlow Serving, text in and out, and ONNX Runtime."""

from keras_seqconv.export.onnx import onnx_model, web_page
from keras_seqconv.export.writing import saved_model

__all__ = ["onnx_model", "saved_model", "web_page"]
