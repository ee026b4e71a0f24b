"""Transformations of JAX are those of that backend only."""

import keras

collect_ignore = [] if keras.backend.backend() == "jax" else ["test_transforms.py"]
