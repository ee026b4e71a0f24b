"""Search by ONNX Runtime, without Keras, TensorFlow or JAX."""
