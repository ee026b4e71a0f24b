"""What every layer promises, shown for a table of all of them.

What a row of the table computes is compared with NumPy in the test file of its layer.
"""

import json
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv import layers
from tests.backends import cheaply, compiled, layer_gradients, modes, to_numpy
from tests.cases import quick_and_slow
from tests.layers.table import (
    COMPILED,
    DIFFERENT,
    HIDDEN,
    INPUTS,
    MASKABLE,
    MASKS,
    ROWS,
    STEPPING,
    B,
    C,
    S,
    T,
    built,
    functional,
    symbols,
    with_junk,
)  # fmt: skip
from tests.layers.values import assert_close, randomized, run_steps

TENSORFLOW = keras.backend.backend() == "tensorflow"


def test_the_table_has_every_layer():
    exported = {name for name in vars(layers) if name[0].isupper()}
    seen = {type(row.make()).__name__ for row in ROWS.values()}
    assert seen == exported - {"ConvS2SInitializer"}


@pytest.mark.parametrize("name", DIFFERENT)
def test_configuration_shapes_and_weights(name):
    row = ROWS[name]
    layer = built(name)
    config = layer.get_config()
    json.dumps(config)
    again = type(layer).from_config(config)
    assert again.get_config() == config
    registered = keras.saving.get_registered_name(type(layer))
    assert registered == f"keras_seqconv>{type(layer).__name__}"
    assert len(layer.trainable_weights) == row.weights
    states = [v for v in layer.non_trainable_variables if "seed" in v.path]
    assert len(states) == row.seeds
    outputs = again(**symbols(row.arguments()))
    assert tuple(outputs.shape) == (None, None, row.channels)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    if not row.further:
        shape = layer.compute_output_shape(row.inputs.shape)
        assert tuple(shape) == (B, T, row.channels)
        unknown = (None, None, *row.inputs.shape[2:])
        assert layer.compute_output_shape(unknown) == (None, None, row.channels)


@pytest.mark.parametrize("name", COMPILED)
def test_all_ways_of_running_agree_also_after_reloading(name, tmp_path):
    row = ROWS[name]
    layer = randomized(built(name))
    names, arrays = list(row.arguments()), list(row.arguments().values())
    expected = to_numpy(layer(**row.arguments()))
    assert expected.shape == (B, T, row.channels) and np.all(np.isfinite(expected))

    def call(*values):
        return layer(**dict(zip(names, values, strict=True)))

    if TENSORFLOW:
        import tensorflow as tf

        graph = tf.function(call, autograph=False)
        assert_close(graph(*map(ops.convert_to_tensor, arrays)), expected)
    model, values = functional(row, layer)
    assert_close(model.predict(values, verbose=0), expected)  # by XLA
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(again(values), expected)
    assert [w.name for w in again.weights] == [w.name for w in model.weights]
    if not row.further:
        assert_close(keras.Sequential([layer])(row.inputs), expected)


POLICIES = {"mixed_bfloat16": 2e-2, "mixed_float16": 2e-3, "bfloat16": 4e-2}
POLICY_CASES = quick_and_slow(["mixed_float16"], ["mixed_bfloat16", "bfloat16"])


@pytest.mark.parametrize("policy", POLICY_CASES)
@pytest.mark.parametrize("name", COMPILED)
def test_policies(name, policy):
    """Of the dtype of the policy, and near to float32 with the same weights."""
    row, reference = ROWS[name], built(name)
    expected = to_numpy(reference(**row.arguments()))
    layer = built(name, dtype=policy)
    layer.set_weights(reference.get_weights())
    outputs = layer(**row.arguments())
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    for weight in layer.trainable_weights:
        wanted = "float32" if "mixed" in policy else policy
        assert keras.backend.standardize_dtype(weight.dtype) == wanted
    scale = max(1.0, np.abs(expected).max())
    assert np.abs(to_numpy(outputs) - expected).max() <= POLICIES[policy] * scale
    if row.steps:
        full = to_numpy(outputs)
        state = layer.get_initial_state(B, max_length=T)
        output, state = layer.step(row.inputs[:, :1], state)
        rest, state = layer.step(row.inputs[:, 1:], state)
        tensors = [output, rest, *state.values()]
        dtypes = {keras.backend.standardize_dtype(value.dtype) for value in tensors}
        assert dtypes <= {layer.compute_dtype, "int32"}
        got = np.concatenate([to_numpy(output), to_numpy(rest)], axis=1)
        limit = 2 ** (-7 if "bfloat16" in policy else -10)
        np.testing.assert_allclose(got, full, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", [n for n in DIFFERENT if n != "scale gradient"])
def test_gradients_equal_differences(name):
    """Along random directions, in training too, where every run drops the same."""
    row = ROWS[name]
    dtype, step, limit = "float64", 1e-6, 1e-6
    if not TENSORFLOW:  # JAX has float64 only behind a global switch
        dtype, step, limit = "float32", 3e-3, 0.03
    layer = randomized(built(name, dtype=dtype))
    names = [n for n, a in row.arguments().items() if a.dtype == "float32"]
    arrays = [row.arguments()[n].astype(dtype) for n in names]
    states = [v for v in layer.non_trainable_variables if "seed" in v.path]
    weights = layer.trainable_weights
    drawn, start = [[to_numpy(v) for v in group] for group in (states, weights)]
    rng = np.random.default_rng(3)
    directions = [rng.normal(size=a.shape).astype(dtype) for a in arrays + start]

    def assign(variables, values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    for options in [{}] + [{"training": True}] * bool(states):

        def call(*values, options=options):
            arguments = row.arguments() | dict(zip(names, values, strict=True))
            return layer(**arguments, **options)

        def loss(distance, call=call):
            moved = [
                value + distance * direction
                for value, direction in zip(arrays + start, directions, strict=True)
            ]
            assign([*states, *weights], [*drawn, *moved[len(arrays) :]])
            return float(ops.sum(ops.square(call(*moved[: len(arrays)]))))

        numeric = (loss(step) - loss(-step)) / (2 * step)
        assign([*states, *weights], [*drawn, *start])
        slope = sum(
            np.sum(to_numpy(ops.convert_to_tensor(gradient)) * direction)
            for gradient, direction in zip(
                layer_gradients(layer, call, *arrays), directions, strict=True
            )
            if gradient is not None
        )
        assert abs(numeric - slope) <= limit * max(1, abs(slope)), (options, slope)


@pytest.mark.parametrize(("name", "mask_name"), MASKABLE)
def test_what_a_mask_hides_changes_nothing(name, mask_name):
    """Not the outputs and no gradient: that of what it hides is zero."""
    row, mask = ROWS[name], MASKS[mask_name]
    layer = randomized(built(name))
    real = mask if mask_name == "mask" else np.ones((B, T), bool)
    chosen = ops.convert_to_tensor(real[..., None])

    def call(*values):
        arguments = dict(zip(row.arguments(), values, strict=True))
        outputs = layer(**arguments, **{mask_name: mask})
        return ops.where(chosen, outputs, ops.zeros_like(outputs))

    def results(arguments):
        arrays = [arguments[argument] for argument in row.arguments()]
        gradients = layer_gradients(layer, call, *arrays)
        return [call(*arrays), *(g for g in gradients if g is not None)]

    expected = results(row.arguments())
    expected[1 : len(row.arguments()) + 1] = [
        np.where(mask[..., None], gradient, 0) if n in HIDDEN[mask_name] else gradient
        for n, gradient in zip(row.arguments(), expected[1:], strict=False)
    ]
    for got, value in zip(results(with_junk(row, mask_name)), expected, strict=True):
        assert_close(got, to_numpy(ops.convert_to_tensor(value)))


@pytest.mark.parametrize(
    ("name", "mask_name"), [one for one in MASKABLE if one[0] in COMPILED]
)
def test_sentences_without_any_token_are_finite(name, mask_name):
    row = ROWS[name]
    layer = built(name, dtype="mixed_float16")
    mask = np.zeros_like(MASKS[mask_name])
    mask[0] = True

    def call(*values):
        arguments = dict(zip(row.arguments(), values, strict=True))
        return layer(**arguments, **{mask_name: mask})

    assert np.all(np.isfinite(to_numpy(call(*row.arguments().values()))))
    for gradient in layer_gradients(layer, call, *row.arguments().values()):
        if gradient is not None:
            assert np.all(np.isfinite(to_numpy(ops.convert_to_tensor(gradient))))


@pytest.mark.parametrize(("name", "mask_name"), MASKABLE)
def test_attached_masks_arrive(name, mask_name):
    row = ROWS[name]
    mask, carrier = MASKS[mask_name], HIDDEN[mask_name][0]
    layer = randomized(built(name))
    arguments = row.arguments()
    arguments[carrier] = np.where(mask[..., None], arguments[carrier], np.float32(-1))
    expected = to_numpy(layer(**arguments, **{mask_name: mask}))
    arguments[carrier] = keras.layers.Masking(-1.0)(arguments[carrier])
    real = mask if mask_name == "mask" else np.ones((B, T), bool)
    assert_close(to_numpy(layer(**arguments))[real], expected[real])


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.inputs.ndim == 3])
def test_outputs_carry_the_mask_of_the_inputs(name):
    inputs = symbols(ROWS[name].arguments())
    inputs["inputs"] = keras.layers.Masking()(inputs["inputs"])
    assert ROWS[name].make()(**inputs)._keras_mask is inputs["inputs"]._keras_mask


@pytest.mark.parametrize("name", [name for name in STEPPING if name in DIFFERENT])
def test_any_split_into_steps_equals_the_full_pass(name):
    row = ROWS[name]
    layer = randomized(built(name))
    full = to_numpy(layer(row.inputs))
    step = cheaply(layer.step)
    for split in ([1, T - 1], [3, 2, 2]):
        assert_close(run_steps(step, layer, row.inputs, split, T), full)
    step = compiled(layer.step) if name in COMPILED else step
    assert_close(run_steps(step, layer, row.inputs, [1] * T, 9), full)


# Products with zeros: of bands, of masked weights.
BY_ZEROS = ["dynamic, long", "attention causal", "attention causal, canon"]


@pytest.mark.parametrize("name", [n for n in DIFFERENT if ROWS[n].inputs.ndim == 3])
def test_nan_reaches_what_depends_on_it(name):
    """Not another sentence nor, in a full pass and in steps, the past."""
    row = ROWS[name]
    layer = randomized(built(name))
    expected = to_numpy(layer(**row.arguments()))
    spoiled = row.inputs.copy()
    spoiled[0, 4, 1] = np.nan

    def call(inputs):
        return layer(**{**row.arguments(), "inputs": inputs})

    for mode, function in (
        modes(call).items() if name in BY_ZEROS else [("eager", call)]
    ):
        outputs = to_numpy(function(spoiled))
        assert_close(outputs[1], expected[1], err_msg=mode)
        assert np.isnan(outputs[0, 4]).any(), mode
        if row.steps:
            assert_close(outputs[0, :4], expected[0, :4], err_msg=mode)
    if row.steps:
        for chunks in ([1] * T, [2, T - 2]):  # with the NaN inside
            steps = run_steps(layer.step, layer, spoiled, chunks, T)
            assert_close(steps[0, :4], expected[0, :4])
            assert_close(steps[1], expected[1])
            spoiled_positions = np.isnan(outputs).any(-1)
            np.testing.assert_array_equal(np.isnan(steps).any(-1), spoiled_positions)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", [name for name in STEPPING if name in COMPILED])
def test_steps_of_unknown_sizes_in_a_graph_without_xla(name):
    """A stock TensorFlow Serving runs no XLA at all."""
    import tensorflow as tf

    from keras_seqconv.ops import jit_scope

    row = ROWS[name]
    layer = randomized(built(name))
    signature = [tf.TensorSpec((None, None, C))] * 2

    @tf.function(input_signature=signature, autograph=False)
    def run(first, rest):
        state = layer.get_initial_state(tf.shape(first)[0], max_length=9)
        shapes = [value.shape[1:] for value in state.values()]
        first, state = layer.step(first, state)
        assert [value.shape[1:] for value in state.values()] == shapes
        rest, state = layer.step(rest, state)
        return tf.concat([first, rest], axis=1)

    expected = to_numpy(layer(row.inputs))
    with jit_scope(False):
        for size in (1, 4):
            assert_close(run(row.inputs[:, :size], row.inputs[:, size:]), expected)
    graph = run.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    assert not [node.op for node in nodes if "xla" in node.op.lower()]


@pytest.mark.parametrize("name", ["dynamic", "convolution", "block", "attention"])
def test_steps_need_weights_and_a_causal_layer(name):
    layer = built(name)
    for call in (
        lambda: layer.get_initial_state(2, max_length=3),
        lambda: layer.step(INPUTS[:, :1], {"inputs": INPUTS[:, :2]}),
    ):
        with pytest.raises(ValueError, match="Steps need.*(padding='same'|=False)"):
            call()
    with pytest.raises(ValueError, match="has no weights yet"):
        ROWS[f"{name} causal"].make().get_initial_state(2, max_length=3)


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.inputs.ndim == 3])
def test_shapes_that_a_layer_was_not_built_for(name):
    """Wider, narrower, of another rank, named when a functional model is built."""
    row, layer = ROWS[name], built(name)
    for argument, array in row.arguments().items():
        named = "expected (axis|ndim|min_ndim)" if argument == "inputs" else argument
        width, shapes = array.shape[-1], []
        if name != "scale gradient":
            shapes += [(None, None, 2 * width), (None, None, 1)]
        if argument != "inputs" or getattr(layer.input_spec, "ndim", None):
            shapes += [(None, width), (None, None, 2, width)]
        for shape in shapes:
            arguments = symbols(row.arguments()) | {argument: keras.Input(shape[1:])}
            with pytest.raises(ValueError, match=named):
                layer(**arguments)


@pytest.mark.parametrize("name", STEPPING)
def test_steps_of_wrong_shapes(name):
    layer = built(name)
    state, new = layer.get_initial_state(B, max_length=T), INPUTS[:, :1]
    for inputs in ({"inputs": new}, new[:, 0], new[..., None], new[..., 1:]):
        with pytest.raises(ValueError, match="`inputs` must .* Received: inputs"):
            layer.step(inputs, state)
    for wrong in (new, list(state), {**state, "further": new}):
        with pytest.raises(ValueError, match="`state` must be a dict .*Received: stat"):
            layer.step(new, wrong)
    for key, value in state.items():
        shape = tuple(value.shape)
        axes = range(len(shape))
        longer = [tuple(n + (a == axis) for a, n in enumerate(shape)) for axis in axes]
        for wrong in (*longer, (*shape, 1)):
            error = r"`state\['\w+'\]` must have the shape .*Received: state\["
            with pytest.raises(ValueError, match=error):
                layer.step(new, {**state, key: ops.zeros(wrong, value.dtype)})


@pytest.mark.parametrize(("name", "mask_name"), MASKABLE)
def test_masks_of_wrong_shapes(name, mask_name):
    row, layer = ROWS[name], built(name)
    length = T if mask_name == "mask" else S
    for shape in [(B, length - 1), (B + 1, length), (B,), (B, 1, length)]:
        error = f"`{mask_name}` must have the shape.*{mask_name}.shape="
        with pytest.raises(ValueError, match=error + re.escape(f"{shape}")):
            layer(**row.arguments(), **{mask_name: np.ones(shape, bool)})
