"""Arrays, weights and formulas that the layer tests share."""

import numpy as np

from tests.backends import to_numpy

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def random(*shape, seed=0):
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def lengths_mask(lengths, size):
    """Boolean (B, size): True for the first positions of each row."""
    return np.arange(size)[None] < np.array(lengths)[:, None]


def randomized(layer, *shapes):
    """Build the layer and give it weights, biases too, that all differ."""
    if shapes:
        layer.build(*shapes)
    rng = np.random.default_rng(7)
    for weight in layer.weights:
        if weight.dtype != "int32":
            weight.assign(0.5 * rng.normal(size=weight.shape))
    return layer


def assert_close(got, expected, **tolerance):
    np.testing.assert_allclose(to_numpy(got), expected, **{**CLOSE, **tolerance})


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def softmax(values):
    values = np.exp(values - values.max(axis=-1, keepdims=True))
    return values / values.sum(axis=-1, keepdims=True)


def run_steps(step, layer, inputs, chunks, max_length=None):
    """Outputs of `step` for the inputs in chunks; the state keeps its shapes."""
    state = layer.get_initial_state(inputs.shape[0], max_length=max_length)
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    outputs, start = [], 0
    for size in chunks:
        chunk = np.ascontiguousarray(inputs[:, start : start + size])
        output, state = step(chunk, state)
        outputs.append(to_numpy(output))
        start += size
        now = {name: tuple(value.shape) for name, value in state.items()}
        if "keys" in shapes and "position" not in shapes:  # attention that may grow
            for name in ("keys", "values"):
                shapes[name] = (*shapes[name][:2], start, *shapes[name][3:])
        assert now == shapes
    return np.concatenate(outputs, axis=1)
