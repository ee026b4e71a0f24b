"""Convolutional sequence learning for Keras 3."""

from keras_seqconv import layers as layers
from keras_seqconv import ops as ops
from keras_seqconv.version import __version__ as __version__
