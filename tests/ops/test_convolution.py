"""light_conv and dynamic_conv: values, gradients, dtypes, shapes and errors."""

import json

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqconv.ops import dynamic_conv, formulas, jit_scope, light_conv
from tests.backends import compiled, gradients, modes, to_numpy
from tests.cases import quick_and_slow
from tests.ops import oracle

WIDE = "float64" if keras.backend.backend() == "tensorflow" else "float32"
# Relative to the largest value of the reference.
LIMITS = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


def case(batch, length, channels, heads, taps, dynamic, dtype="float32", seed=0):
    """Inputs, kernel and an upstream gradient, rounded to `dtype`."""
    rng = np.random.default_rng(seed)
    leading = (batch, length) if dynamic else ()
    shapes = (batch, length, channels), (*leading, heads, taps)
    values = [rng.normal(size=shape) for shape in (*shapes, shapes[0])]
    tensors = [
        ops.cast(ops.convert_to_tensor(v.astype("float32")), dtype) for v in values
    ]
    return tensors


def test_xla_multiplies_many_rows():
    """Excludes versions of XLA with the fault of jax-ml/jax 39103, as jaxlib 0.10.2."""

    def squares(inputs):
        matrix = ops.eye(3)
        return ops.vectorized_map(
            lambda row: ops.sum(ops.square(ops.matmul(matrix, row))), inputs
        )

    rows = np.zeros((32_769, 3), "float32")
    rows[:, 0] = np.arange(len(rows))
    found = to_numpy(compiled(squares)(ops.convert_to_tensor(rows)))
    np.testing.assert_allclose(found, rows[:, 0] ** 2, rtol=1e-6)


def op_of(dynamic):
    return dynamic_conv if dynamic else light_conv


def with_gradients(dynamic, padding="causal"):
    """A function: outputs and both gradients of sum(upstream * outputs)."""

    def results(inputs, kernel, upstream):
        def loss(inputs, kernel):
            return ops.sum(op_of(dynamic)(inputs, kernel, padding) * upstream)

        outputs = op_of(dynamic)(inputs, kernel, padding)
        return [outputs, *gradients(loss, inputs, kernel)]

    return results


def with_loops(got, inputs, kernel, upstream, padding="causal"):
    """Pairs of what `with_gradients` gave and what the loops give."""
    *pair, upstream = map(to_numpy, (inputs, kernel, upstream))
    by_loops = oracle.gradients(upstream, *pair, padding)
    return zip(got, [oracle.convolve(*pair, padding), *by_loops], strict=True)


def assert_equal_the_loops(got, *tensors_and_padding):
    for value, loops in with_loops(got, *tensors_and_padding):
        assert_close(value, loops, 1e-5)


def assert_close(got, expected, limit):
    got, expected = to_numpy(got), np.asarray(expected)
    assert got.shape == expected.shape
    scale = 1 + np.abs(expected).max(initial=0)
    assert np.abs(got - expected).max(initial=0) <= limit * scale


SHAPES = st.tuples(
    st.integers(0, 3),  # B
    st.integers(0, 9),  # T
    st.integers(1, 3),  # H
    st.integers(1, 3),  # R
    st.integers(1, 12),  # K
)


@pytest.mark.parametrize("dynamic", [False, True])
# JAX compiles every shape anew, so it gets fewer.
@settings(max_examples=25 if WIDE == "float64" else 10, deadline=None)
@given(
    shape=SHAPES,
    padding=st.sampled_from(["same", "causal"]),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    jit_compile=st.booleans(),
)
@example(shape=(2, 0, 2, 1, 1), padding="same", dtype="float32", jit_compile=False)
def test_any_shape_equals_the_loops(dynamic, shape, padding, dtype, jit_compile):
    batch, length, heads, ratio, taps = shape
    dtype = WIDE if dtype == "float64" else dtype
    inputs, kernel, _ = case(batch, length, heads * ratio, heads, taps, dynamic, dtype)
    with jit_scope(jit_compile):
        outputs = op_of(dynamic)(inputs, kernel, padding)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    expected = oracle.convolve(to_numpy(inputs), to_numpy(kernel), padding)
    assert_close(outputs, expected, LIMITS[dtype])


# (B, T, C, H, K): even K, the three taps of "same" that TensorFlow has a loop for, K
# over a block, T over several blocks, sums in lanes, wide rows; K over what XLA shifts,
# K > T, H = 1, H = C, one tap, no row. Each is compiled.
CASES = [
    ((2, 9, 12, 3, 4), "same"),
    ((2, 5, 6, 3, 3), "same"),
    ((2, 40, 8, 4, 31), "same"),
    ((2, 70, 4, 2, 45), "causal"),
    ((2, 10, 48, 3, 7), "same"),
    ((2, 6, 512, 4, 3), "causal"),
]
OTHERS = [
    ((1, 90, 4, 2, 80), "causal"),
    ((1, 1, 2, 1, 7), "causal"),
    ((3, 11, 6, 1, 5), "same"),
    ((1, 11, 6, 6, 5), "causal"),
    ((2, 3, 4, 2, 1), "same"),
    ((0, 4, 4, 2, 3), "same"),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shape", "padding"), quick_and_slow(CASES, OTHERS), ids=str)
def test_gradients_equal_the_loops(shape, dynamic, padding):
    tensors = case(*shape, dynamic)
    run = with_gradients(dynamic, padding)
    assert_equal_the_loops(compiled(run)(*tensors), *tensors, padding)
    with jit_scope(False):
        assert_equal_the_loops(run(*tensors), *tensors, padding)


@pytest.mark.parametrize(("dynamic", "padding"), [(False, "same"), (True, "causal")])
def test_all_ways_of_running_agree(dynamic, padding):
    tensors = case(2, 21, 12, 3, 8, dynamic)
    for jit_compile in (True, False):
        functions = modes(with_gradients(dynamic, padding))
        if not jit_compile:
            functions.pop("xla")
        with jit_scope(jit_compile):
            for function in functions.values():
                assert_equal_the_loops(function(*tensors), *tensors, padding)


@pytest.mark.parametrize(
    ("dynamic", "jit"),
    quick_and_slow([(False, False), (True, True)], [(True, False), (False, True)]),
)
def test_second_derivatives_equal_finite_differences(dynamic, jit):
    """A gradient penalty, differentiated along random directions."""
    inputs, kernel, _ = case(2, 7, 6, 3, 4, dynamic, WIDE)
    directions = case(2, 7, 6, 3, 4, dynamic, WIDE, seed=1)[:2]

    def penalty(inputs, kernel):
        def loss(inputs, kernel):
            return ops.sum(op_of(dynamic)(inputs, kernel, "causal") ** 3)

        first = gradients(loss, inputs, kernel)
        return sum(ops.sum(gradient**2) for gradient in first)

    function = compiled(penalty) if jit else penalty
    slopes = gradients(function, inputs, kernel)
    slope = sum(
        float(ops.sum(gradient * direction))
        for gradient, direction in zip(slopes, directions, strict=True)
    )
    step, limit = (1e-6, 1e-6) if WIDE == "float64" else (3e-3, 2e-2)
    upper, lower = (
        float(penalty(inputs + s * directions[0], kernel + s * directions[1]))
        for s in (step, -step)
    )
    assert abs((upper - lower) / (2 * step) - slope) <= limit * abs(slope)


@pytest.mark.slow
def test_equals_fairseq(golden):
    """With the softmax, and the generator, of the layer around the op."""
    cases = json.loads((golden / "ops.json").read_text())
    arrays = np.load(golden / "ops.npz")
    assert len(cases) >= 18
    for prefix, spec in cases.items():
        light = prefix.startswith("light/")
        heads_and_taps = spec["num_heads"], spec["kernel_size"]

        def layer(x, weight, bias, light=light, spec=spec, shape=heads_and_taps):
            if not light:
                logits = ops.matmul(x, ops.transpose(weight))
                weight = ops.reshape(logits, (*x.shape[:2], *shape))
            kernel = ops.softmax(weight, axis=-1)
            return op_of(not light)(x, kernel, spec["padding"]) + bias

        def loss(*arguments, layer=layer, upstream=arrays[prefix + "dy"]):
            return ops.sum(layer(*arguments) * upstream)

        names = ("x", "weight" if light else "weight_linear", "bias")
        arguments = [ops.convert_to_tensor(arrays[prefix + name]) for name in names]
        assert_close(layer(*arguments), arrays[prefix + "y"], 1e-5)
        for name, gradient in zip(names, gradients(loss, *arguments), strict=True):
            assert_close(gradient, arrays[f"{prefix}d{name}"], 1e-5)


# Taps that XLA shifts, and taps of bands.
@pytest.mark.parametrize(
    ("dtype", "taps", "xla"),
    quick_and_slow(
        [("bfloat16", 31, True), ("float16", 70, False)],
        [("float16", 70, True), ("bfloat16", 31, False)],
    ),
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_half_precision_accumulates_in_float32(dynamic, dtype, taps, xla):
    """Sums of positive terms are rounded once, in outputs and both gradients."""
    tensors = [ops.abs(value) for value in case(1, 40, 16, 2, taps, dynamic, dtype)]
    run = with_gradients(dynamic)
    with jit_scope(xla):
        got = (compiled(run) if xla else run)(*tensors)
    half_a_place = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    for value, loops in with_loops(got, *tensors):
        limits = (half_a_place + 1e-5) * loops + 1e-7
        assert (np.abs(to_numpy(value) - loops) <= limits).all()


@pytest.mark.parametrize(
    ("inputs", "kernel", "options", "words"),
    [
        ((2, 5), (2, 3), {}, ["inputs", "(B, T, C)", "(2, 5)"]),
        ((2, 5, 4), (3,), {}, ["kernel", "(H, K)", "(3,)"]),
        ((2, 5, 4), (3, 3), {}, ["inputs", "multiple", "(2, 5, 4)", "(3, 3)"]),
        ((2, 5, 4), (2, 0), {}, ["kernel", "at least 1", "(2, 0)"]),
        ((2, 5, 4), (0, 2), {}, ["kernel", "at least 1", "(0, 2)"]),
        ((2, 5, 4), (2, 3), {"padding": "valid"}, ["padding", "valid"]),
        ((2, 5, 4), (2, 3), {"dynamic": True}, ["kernel", "(B, T, H, K)"]),
        ((2, 5, 4), (2, 6, 2, 3), {"dynamic": True}, ["kernel", "agree"]),
        ((2, 5, 4), (3, 5, 2, 3), {"dynamic": True}, ["inputs", "agree"]),
        ((2, 5, 4), (2, 3), {"dtypes": ("int32", "int32")}, ["inputs", "int32"]),
        ((2, 5, 4), (2, 3), {"dtypes": ("float32", "float16")}, ["kernel", "float16"]),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_errors_name_argument_rule_and_value(inputs, kernel, options, words, symbolic):
    make = keras.KerasTensor if symbolic else ops.zeros
    options = {
        "dynamic": False,
        "padding": "same",
        "dtypes": ("float32",) * 2,
    } | options
    shapes_and_dtypes = zip((inputs, kernel), options["dtypes"], strict=True)
    arguments = [make(shape, dtype=dtype) for shape, dtype in shapes_and_dtypes]
    with pytest.raises(ValueError) as error:
        op_of(options["dynamic"])(*arguments, options["padding"])
    for word in words:
        assert word in str(error.value)


def test_symbolic_shapes_and_unknown_channels():
    with pytest.raises(ValueError, match="`inputs`.*must be known.*None"):
        light_conv(keras.KerasTensor((2, 5, None)), keras.KerasTensor((2, 3)))
    light = light_conv(keras.KerasTensor((None, None, 6)), keras.KerasTensor((3, 5)))
    assert light.shape == (None, None, 6)
    outputs = dynamic_conv(
        keras.KerasTensor((None, 7, 6), "bfloat16"),
        keras.KerasTensor((4, None, 3, 5), "bfloat16"),
    )
    assert outputs.shape == (4, 7, 6)
    assert outputs.dtype == "bfloat16"


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("dynamic", "jit_compile", "jit"),
    [(True, True, False), (True, True, True), (False, False, False)],
)
def test_batch_and_time_unknown_while_tracing(dynamic, jit_compile, jit):
    import tensorflow as tf

    kernel_shape = (None, None, 3, 4) if dynamic else (3, 4)
    shapes = (None, None, 6), kernel_shape, (None, None, 6)
    run = tf.function(
        with_gradients(dynamic),
        input_signature=[tf.TensorSpec(shape) for shape in shapes],
        jit_compile=jit,
    )
    with jit_scope(jit_compile):
        outputs, *_ = run.get_concrete_function().structured_outputs
        assert outputs.shape[-1] == 6
        for batch, length in [(2, 5), (1, 40), (0, 3), (2, 0), (1, 1)]:
            tensors = case(batch, length, 6, 3, 4, dynamic)
            assert_equal_the_loops(run(*tensors), *tensors)


@pytest.mark.parametrize("dtype", quick_and_slow(["float16"], ["float32"]))
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_gpus_compute(dynamic, dtype, monkeypatch):
    """Their formulas, here on a CPU, of a K that no other test keeps compiled."""
    monkeypatch.setattr(formulas, "on_cpu", lambda: False)
    tensors = case(2, 70, 12, 3, 37, dynamic, dtype)
    got = compiled(with_gradients(dynamic))(*tensors)
    for value, loops in with_loops(got, *tensors):
        assert keras.backend.standardize_dtype(value.dtype) == dtype
        assert_close(value, loops, LIMITS[dtype])


@pytest.mark.parametrize(
    ("taps", "how"),
    quick_and_slow([(70, "xla"), (3, "plain")], [(70, "plain"), (35, "gpu")]),
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_not_finite_reaches_what_it_is_convolved_with(
    taps, how, dynamic, monkeypatch
):
    """One NaN among inputs, upstream gradients or kernels, over several blocks.

    It may reach the other channels of its head.
    """
    if how == "gpu":
        monkeypatch.setattr(formulas, "on_cpu", lambda: False)
    run = with_gradients(dynamic)
    run = run if how == "plain" else compiled(run)
    length, place, channel = 100, 60, 1
    values = case(2, length, 4, 2, taps, dynamic)
    time = np.arange(length)
    reached = (time >= place) & (time < place + taps)  # outputs that see `place`
    reaching = (time <= place) & (time > place - taps)

    def finite(number):
        """Of outputs and both gradients, with NaN in one channel or head."""
        arrays = [to_numpy(value).copy() for value in values]
        arrays[number][0, place, 0 if number == 1 else channel] = np.nan
        with jit_scope(how != "plain"):
            results = [to_numpy(value) for value in run(*arrays)]
        assert all(np.isfinite(value[1]).all() for value in results[: 2 + dynamic])
        return [np.isfinite(value[0]) for value in results]

    def assert_spoiled(finite, where):
        assert not finite[where, channel].any()
        assert finite[~where].all() and finite[:, 2:].all()

    outputs, _, by_kernel = finite(0)
    assert_spoiled(outputs, reached)
    if dynamic:
        np.testing.assert_array_equal(by_kernel[:, 0].all(-1), ~reached)
        assert by_kernel[:, 1].all()
        outputs, by_inputs, _ = finite(1)
        assert_spoiled(outputs, time == place)
        assert_spoiled(by_inputs, reaching)
    _, by_inputs, _ = finite(2)
    assert_spoiled(by_inputs, reaching)
