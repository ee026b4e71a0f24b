"""One check of the manners of Keras 3, run for every layer.

`check_layer` covers what any user of any layer relies on: configuration, shapes,
the three kinds of models, eager = graph = XLA, saving, training, dtype policies and
masks. `check_steps` covers the contract of the causal sequence mixers.
"""

import json
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from tests.backends import cheaply, compiled, modes, to_numpy

TOLERANCE = dict(rtol=1e-4, atol=1e-5)


def check_layer(
    make: Callable[[], keras.layers.Layer],
    inputs: np.ndarray,
    output_shape: tuple,
    *,
    call_kwargs: dict[str, np.ndarray] | None = None,
    trainable: int | None = None,
    seed_generators: int = 0,
    mask: np.ndarray | None = None,
) -> None:
    """Check the layer that `make` returns on `inputs` (B, T, C).

    Args:
        make: returns a fresh, unbuilt layer.
        inputs: float32 array, the first argument of the call.
        output_shape: expected shape of the output for `inputs`.
        call_kwargs: further arrays passed by name.
        trainable: expected number of trainable weights.
        seed_generators: expected number of seed generators, sub-layers included.
        mask: boolean (B, T); real outputs must not depend on masked inputs.
    """
    call_kwargs = call_kwargs or {}
    _check_config(make)
    layer = make()
    outputs = to_numpy(layer(inputs, **call_kwargs))
    assert outputs.shape == tuple(output_shape)
    assert np.all(np.isfinite(outputs))
    if trainable is not None:
        assert len(layer.trainable_weights) == trainable
    found = [v for v in layer.non_trainable_variables if "seed" in v.path]
    assert len(found) == seed_generators, [v.path for v in found]
    _check_shapes(layer, inputs, outputs.shape, call_kwargs)
    _check_modes(layer, inputs, outputs, call_kwargs)
    _check_models(layer, inputs, outputs, call_kwargs)
    _check_saving(make, inputs, call_kwargs)
    _check_training(make, inputs, call_kwargs)
    _check_policies(make, inputs, outputs, call_kwargs)
    if mask is not None:
        _check_mask(layer, inputs, mask, call_kwargs)


def check_steps(
    layer: keras.layers.Layer,
    inputs: np.ndarray,
    *,
    max_length: int | None = None,
    grows: bool = False,
) -> None:
    """Check that the full pass equals every tested split into chunks.

    The state keeps its shapes, or, with `grows`, has all positions on its third axis.
    """
    full = to_numpy(layer(inputs))
    length = inputs.shape[1]
    splits = {(1,) * length, (length,), (1, length - 1), (length - 1, 1)}
    splits |= {tuple(len(p) for p in np.array_split(range(length), 3))}
    for split in splits:
        chunks = [size for size in split if size]
        step = cheaply(layer.step)
        parts = _run_steps(step, layer, inputs, chunks, max_length, grows)
        np.testing.assert_allclose(parts, full, **TOLERANCE, err_msg=str(split))
    step = compiled(layer.step)
    parts = _run_steps(step, layer, inputs, [1] * length, max_length, grows)
    np.testing.assert_allclose(parts, full, **TOLERANCE)


def _run_steps(step, layer, inputs, chunks, max_length, grows):
    state = layer.get_initial_state(inputs.shape[0], max_length=max_length)
    shapes = _shapes(state)
    outputs, start = [], 0
    for size in chunks:
        chunk = ops.convert_to_tensor(inputs[:, start : start + size])
        output, state = step(chunk, state)
        outputs.append(to_numpy(output))
        start += size
        if grows:
            shapes = {key: (*s[:2], start, *s[3:]) for key, s in shapes.items()}
        assert _shapes(state) == shapes
    return np.concatenate(outputs, axis=1)


def _shapes(state):
    return {name: tuple(value.shape) for name, value in state.items()}


def _check_config(make):
    layer = make()
    config = layer.get_config()
    json.dumps(config)
    again = type(layer).from_config(config)
    assert again.get_config() == config
    name = keras.saving.get_registered_name(type(layer))
    assert name == f"keras_seqconv>{type(layer).__name__}"


def _symbolic(inputs, call_kwargs):
    def one(array):
        dtype = "bool" if array.dtype == bool else array.dtype.name
        free = [None] * (array.ndim - 1)
        if array.dtype != bool and array.ndim > 1:
            free[-1] = array.shape[-1]
        return keras.Input(free, dtype=dtype)

    return one(inputs), {name: one(value) for name, value in call_kwargs.items()}


def _check_shapes(layer, inputs, shape, call_kwargs):
    given = {
        f"{name}_shape": value.shape
        for name, value in call_kwargs.items()
        if not name.endswith("mask")
    }
    if not given:
        assert tuple(layer.compute_output_shape(inputs.shape)) == shape
        unknown = layer.compute_output_shape((None, None, inputs.shape[-1]))
        assert tuple(unknown)[2:] == shape[2:]
    symbol, kwargs = _symbolic(inputs, call_kwargs)
    output = layer(symbol, **kwargs)
    assert tuple(output.shape) == (None, None) + tuple(shape[2:])
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype


def _check_modes(layer, inputs, outputs, call_kwargs):
    names = list(call_kwargs)

    def run(value, *rest):
        return layer(value, **dict(zip(names, rest, strict=True)))

    tensors = [ops.convert_to_tensor(v) for v in (inputs, *call_kwargs.values())]
    for mode, function in modes(run).items():
        got = to_numpy(function(*tensors))
        np.testing.assert_allclose(got, outputs, **TOLERANCE, err_msg=mode)


def _functional(layer, inputs, call_kwargs):
    symbol, kwargs = _symbolic(inputs, call_kwargs)
    return keras.Model([symbol, *kwargs.values()], layer(symbol, **kwargs))


class Subclassed(keras.Model):
    """A model that calls one layer with arguments by name."""

    def __init__(self, layer, names):
        super().__init__()
        self.layer = layer
        self.names = names

    def call(self, values):
        kwargs = dict(zip(self.names, values[1:], strict=True))
        return self.layer(values[0], **kwargs)


def _check_models(layer, inputs, outputs, call_kwargs):
    values = [inputs, *call_kwargs.values()]
    functional = _functional(layer, inputs, call_kwargs)
    # Through `predict` only once: each compiles the layer anew.
    found = [
        functional.predict(values, verbose=0),
        Subclassed(layer, list(call_kwargs))(values),
    ]
    if not call_kwargs:
        found.append(keras.Sequential([layer])(inputs))
    for got in found:
        np.testing.assert_allclose(to_numpy(got), outputs, **TOLERANCE)


def _check_saving(make, inputs, call_kwargs, suffix=".keras"):
    import tempfile
    from pathlib import Path

    model = _functional(make(), inputs, call_kwargs)
    values = [inputs, *call_kwargs.values()]
    expected = to_numpy(model(values))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        model.save(path)
        again = keras.saving.load_model(path)
    np.testing.assert_allclose(to_numpy(again(values)), expected, **TOLERANCE)


def _check_training(make, inputs, call_kwargs):
    values = [inputs, *call_kwargs.values()]
    for jit_compile in (False, True):
        model = _functional(make(), inputs, call_kwargs)
        if not model.trainable_weights:
            return
        before = [to_numpy(weight) for weight in model.trainable_weights]
        model.compile("adam", "mse", jit_compile=jit_compile)
        target = 1 + to_numpy(model(values))
        loss = model.fit(values, target, epochs=1, verbose=0).history["loss"][0]
        assert np.isfinite(loss)
        for weight, value in zip(model.trainable_weights, before, strict=True):
            moved = np.abs(to_numpy(weight) - value).max()
            # A softmax does not depend on the bias of the keys.
            assert moved > 1e-4 or weight.name == "key_bias", weight.path
            assert np.isfinite(moved), weight.path


def _check_policies(make, inputs, outputs, call_kwargs):
    reference = make()
    config = reference.get_config()
    for policy in ("mixed_bfloat16", "mixed_float16", "float64"):
        keras.utils.set_random_seed(0)
        reference = make()
        expected = to_numpy(reference(inputs, **call_kwargs))
        if policy == "float64" and keras.backend.backend() == "jax":
            continue  # JAX has float64 only behind a global switch
        layer = _with_policy(type(reference), config, policy)
        output = layer(inputs, **call_kwargs)
        layer.set_weights(reference.get_weights())
        output = layer(inputs, **call_kwargs)
        assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
        for weight in layer.trainable_weights:
            wanted = "float64" if policy == "float64" else "float32"
            assert keras.backend.standardize_dtype(weight.dtype) == wanted
        limit = {"mixed_bfloat16": 2e-2, "mixed_float16": 2e-3, "float64": 1e-6}[policy]
        scale = max(1.0, np.abs(expected).max())
        difference = np.abs(to_numpy(output) - expected).max()
        assert difference <= limit * scale, (policy, difference)


def _with_policy(layer_class, config, policy):
    """The layer of `config`, wrapped layers included, under another policy."""

    def replace(value):
        if isinstance(value, dict):
            if value.get("class_name") == "DTypePolicy":
                policy_config = dict(value["config"], name=policy)
                return dict(value, config=policy_config)
            return {key: replace(item) for key, item in value.items()}
        return value

    return layer_class.from_config(dict(replace(config), dtype=policy))


def _check_mask(layer, inputs, mask, call_kwargs):
    kept = to_numpy(layer(inputs, mask=mask, **call_kwargs))
    junk = np.where(mask[..., None], inputs, inputs + 7.0).astype(inputs.dtype)
    again = to_numpy(layer(junk, mask=mask, **call_kwargs))
    np.testing.assert_allclose(again[mask], kept[mask], **TOLERANCE)
    assert np.all(np.isfinite(again))
    assert layer.supports_masking
    symbol, kwargs = _symbolic(inputs, call_kwargs)
    masked = keras.layers.Masking()(symbol)
    assert layer(masked, **kwargs)._keras_mask is not None, "the mask is lost"
