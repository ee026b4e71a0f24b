"""The version of the package, readable without importing Keras."""

__version__ = "0.1.0"
