"""Arrays and weights that the layer tests are fed with."""

import numpy as np


def random(*shape, seed=0):
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def lengths_mask(lengths, size):
    """Boolean (B, size): True for the first positions of each row."""
    return np.arange(size)[None] < np.array(lengths)[:, None]


def randomized(layer, *shapes):
    """Build the layer and give it weights, biases too, that all differ."""
    layer.build(*shapes)
    rng = np.random.default_rng(7)
    layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer
