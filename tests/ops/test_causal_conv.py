"""causal_conv1d: values, gradients and states against loops, and its errors."""

import itertools

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqconv.ops import (
    causal_conv1d,
    causal_conv1d_update,
    dynamic_conv,
    light_conv,
)
from tests.backends import compiled, gradients, to_numpy

LIMITS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}


def loops(
    inputs, kernel, bias=None, activation=None, residual=None, initial_state=None,
    segment_ids=None, mask=None, dilation=1,
):  # fmt: skip
    """The definition in loops: the outputs and the final state."""
    batch, length, channels = inputs.shape
    heads, taps = kernel.shape
    history = (taps - 1) * dilation
    mask = np.ones((batch, length), bool) if mask is None else mask
    segments = np.zeros((batch, length), int) if segment_ids is None else segment_ids
    state = np.zeros((batch, history, channels)) if initial_state is None else (
        initial_state
    )  # fmt: skip
    rows = np.concatenate([state, np.where(mask[..., None], inputs, 0)], axis=1)
    outputs = np.zeros((batch, length, channels))
    for b, t, c, tap in itertools.product(
        range(batch), range(length), range(channels), range(taps)
    ):
        source = t - (taps - 1 - tap) * dilation
        if segments[b, max(source, 0)] == segments[b, t]:
            weight = kernel[c * heads // channels, tap]
            outputs[b, t, c] += weight * rows[b, source + history, c]
    outputs += 0 if bias is None else bias
    if activation == "silu":
        outputs = outputs / (1 + np.exp(-outputs))
    ends = [max((t + 1 for t in range(length) if mask[b, t]), default=0)
            for b in range(batch)]  # fmt: skip
    final = [rows[b, end : end + history] for b, end in enumerate(ends)]
    for b, end in enumerate(ends):  # a continued segment begins with its own inputs
        for place in range(history):
            of_row, source = segments[b], max(end - history + place, 0)
            if length and of_row[source] != of_row[max(end - 1, 0)]:
                final[b][place] = 0
    return outputs + (0 if residual is None else residual), np.stack(final)


def case(rng, batch, length, heads, ratio, taps, dilation, names):
    channels = heads * ratio
    shapes = {
        "inputs": (batch, length, channels),
        "kernel": (heads, taps),
        "bias": (channels,),
        "residual": (batch, length, channels),
        "initial_state": (batch, (taps - 1) * dilation, channels),
    }
    arrays = {
        name: rng.normal(size=shape).astype("float32")
        for name, shape in shapes.items()
        if name in ("inputs", "kernel", *names)
    }
    if "segment_ids" in names:
        borders = rng.random((batch, length)) < 0.3
        arrays["segment_ids"] = np.cumsum(borders, axis=1).astype("int32")
    if "mask" in names:
        arrays["mask"] = rng.random((batch, length)) < 0.7
    return arrays


OPTIONAL = ("bias", "residual", "initial_state", "segment_ids", "mask")


def assert_close(actual, expected, limit=2e-5):
    actual = to_numpy(ops.cast(actual, "float32"))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=limit, atol=limit)


@settings(
    max_examples=25 if keras.backend.backend() == "tensorflow" else 8, deadline=None
)
@given(
    seed=st.integers(0, 99),
    shape=st.tuples(
        st.integers(1, 3), st.integers(0, 9), st.integers(1, 3), st.integers(1, 2),
        st.integers(1, 6), st.integers(1, 3),
    ),
    names=st.sets(st.sampled_from(OPTIONAL)),
    activation=st.sampled_from([None, "silu"]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)  # fmt: skip
@example(0, (2, 0, 2, 1, 3, 1), {"segment_ids", "mask"}, None, "float32")
def test_any_arguments_equal_the_loops(seed, shape, names, activation, dtype):
    arrays = case(np.random.default_rng(seed), *shape, names)
    tensors = {}
    for name, array in arrays.items():
        tensors[name] = ops.convert_to_tensor(array)
        if array.dtype == "float32":
            tensors[name] = ops.cast(array, dtype)
            arrays[name] = to_numpy(ops.cast(tensors[name], "float32"))
    options = {"activation": activation, "dilation": shape[-1]}
    outputs, state = causal_conv1d(**tensors, **options, return_final_state=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    expected, expected_state = loops(**arrays, **options)
    assert_close(outputs, expected, LIMITS[dtype])
    assert_close(state, expected_state, LIMITS[dtype])


@pytest.mark.parametrize("names", [(), OPTIONAL], ids=["bare", "everything"])
def test_gradients_of_all_arguments(names):
    """Against differences of the loops, in the direction of random tensors."""
    rng = np.random.default_rng(0)
    arrays = case(rng, 2, 7, 2, 2, 3, 2, names)
    upstream = rng.normal(size=arrays["inputs"].shape)
    floats = [name for name, array in arrays.items() if array.dtype == "float32"]
    rest = {name: array for name, array in arrays.items() if name not in floats}

    def loss(*tensors):
        given_tensors = dict(zip(floats, tensors, strict=True))
        outputs = causal_conv1d(**given_tensors, **rest, activation="silu", dilation=2)
        return ops.sum(outputs * upstream.astype("float32"))

    tensors = [ops.convert_to_tensor(arrays[name]) for name in floats]
    for function in (gradients, compiled(lambda *t: gradients(loss, *t))):
        found = (
            function(loss, *tensors) if function is gradients else function(*tensors)
        )
        for name, gradient in zip(floats, found, strict=True):
            direction = rng.normal(size=arrays[name].shape)
            sides = []
            for sign in (1, -1):
                moved = {
                    k: v.astype("float64") for k, v in arrays.items() if k in floats
                }
                moved[name] = moved[name] + sign * 1e-5 * direction
                outputs, _ = loops(**moved, **rest, activation="silu", dilation=2)
                sides.append((outputs * upstream).sum())
            slope = (sides[0] - sides[1]) / 2e-5
            product = (to_numpy(gradient) * direction).sum()
            np.testing.assert_allclose(product, slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dilation", [1, 3])
def test_any_split_gives_the_full_pass(dilation):
    rng = np.random.default_rng(1)
    arrays = case(rng, 2, 9, 4, 1, 4, dilation, ("bias",))
    options = {"activation": "silu", "dilation": dilation}
    whole, last = causal_conv1d(**arrays, **options, return_final_state=True)
    state, pieces = np.zeros((2, 3 * dilation, 4), "float32"), []
    inputs = arrays.pop("inputs")
    for piece in np.split(inputs, [1, 2, 6], axis=1):
        outputs, state = causal_conv1d_update(piece, state, **arrays, **options)
        pieces.append(to_numpy(outputs))
    np.testing.assert_allclose(np.concatenate(pieces, 1), to_numpy(whole), atol=1e-5)
    np.testing.assert_allclose(to_numpy(state), to_numpy(last), atol=1e-6)


def test_a_segment_goes_on_in_another_call():
    arrays = case(np.random.default_rng(1), 2, 8, 2, 1, 4, 1, ())
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 3], [1, 1, 2, 2, 2, 2, 3, 3]])
    whole = causal_conv1d(**arrays, segment_ids=segments)
    inputs = arrays.pop("inputs")
    first, state = causal_conv1d(
        inputs[:, :5], **arrays, segment_ids=segments[:, :5], return_final_state=True
    )
    rest = causal_conv1d(
        inputs[:, 5:], **arrays, segment_ids=segments[:, 5:], initial_state=state
    )
    found = np.concatenate([to_numpy(first), to_numpy(rest)], axis=1)
    np.testing.assert_allclose(found, to_numpy(whole), atol=1e-5)


def test_rows_move_by_their_lengths():
    rng = np.random.default_rng(2)
    arrays = case(rng, 3, 4, 2, 1, 3, 1, ("initial_state",))
    state = arrays.pop("initial_state")
    lengths = np.array([0, 2, 4])
    outputs, moved = causal_conv1d_update(
        arrays["inputs"], state, arrays["kernel"], lengths=lengths
    )
    for row, length in enumerate(lengths):
        expected, last = loops(
            arrays["inputs"][row : row + 1, :length], arrays["kernel"],
            initial_state=state[row : row + 1],
        )  # fmt: skip
        assert_close(outputs[row : row + 1, :length], expected)
        assert_close(moved[row : row + 1], last)
    arguments = [arrays["inputs"], state, arrays["kernel"]]
    assert_close(causal_conv1d_update(*arguments, lengths=[0, 2, 4])[1], moved)
    symbols = [keras.Input(array.shape[1:]) for array in arguments[:2]]
    symbols.append(keras.Input((), dtype="int32"))
    *inputs, symbol = symbols
    made = causal_conv1d_update(*inputs, arrays["kernel"], lengths=symbol)
    assert [tensor.shape for tensor in made] == [(None, 4, 2), (None, 2, 2)]
    values = keras.Model(symbols, made)([*arguments[:2], lengths])
    for tensor, expected in zip(values, (outputs, moved), strict=True):
        assert_close(tensor, to_numpy(expected))
    with pytest.raises(ValueError, match="`lengths` must have the shape"):
        causal_conv1d_update(*arguments, lengths=[0, 2])


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dilated_kernels_are_kernels_with_zeros_between_their_taps(dynamic, padding):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(2, 11, 4)).astype("float32")
    shape = (2, 11, 2, 3) if dynamic else (2, 3)
    kernel = rng.normal(size=shape).astype("float32")
    wide_kernel = np.zeros((*shape[:-1], 7), "float32")
    wide_kernel[..., ::3] = kernel
    op = dynamic_conv if dynamic else light_conv
    outputs = op(inputs, kernel, padding, dilation=3)
    assert_close(outputs, to_numpy(op(inputs, wide_kernel, padding)), 1e-5)


def test_padding_of_any_value_changes_nothing():
    rng = np.random.default_rng(4)
    arrays = case(rng, 1, 4, 2, 1, 3, 1, ("bias",))
    alone, state = causal_conv1d(**arrays, return_final_state=True)
    rubbish = np.full((1, 2, 2), np.nan, "float32")
    for side in ("left", "right"):
        parts = [arrays["inputs"], rubbish]
        real = [np.ones((1, 4), bool), np.zeros((1, 2), bool)]
        if side == "left":
            parts, real = parts[::-1], real[::-1]
        outputs, last = causal_conv1d(
            np.concatenate(parts, 1), arrays["kernel"], arrays["bias"],
            mask=np.concatenate(real, 1), return_final_state=True,
        )  # fmt: skip
        outputs = outputs[:, 2:] if side == "left" else outputs[:, :4]
        assert_close(outputs, to_numpy(alone))
        assert_close(last, to_numpy(state))


@pytest.mark.parametrize("name", ["bias", "residual"])
def test_one_argument_alone_may_be_symbolic(name):
    inputs, kernel = np.ones((2, 5, 4), "float32"), np.ones((4, 3), "float32")
    sizes = {"bias": (4,), "residual": (2, 5, 4)}[name]
    symbol = keras.Input(sizes[1:], batch_size=sizes[0])
    outputs = causal_conv1d(inputs, kernel, **{name: symbol})
    assert outputs.shape == (2, 5, 4)
    value = np.full(sizes, 3.0, "float32")
    expected = causal_conv1d(inputs, kernel, **{name: value})
    assert_close(keras.Model(symbol, outputs)(value), to_numpy(expected))


def test_a_node_of_a_functional_model_is_saved(tmp_path):
    inputs = keras.Input((None, 4))
    kernel = keras.Input((3,), batch_size=4)
    outputs, state = causal_conv1d(
        inputs, kernel, activation="silu", dilation=2, return_final_state=True
    )
    assert outputs.shape == (None, None, 4) and state.shape == (None, 4, 4)
    model = keras.Model([inputs, kernel], [outputs, state])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    rng = np.random.default_rng(5)
    values = [rng.normal(size=shape).astype("float32") for shape in ((4, 5, 4), (4, 3))]
    expected, last = loops(*values, activation="silu", dilation=2)
    for tensor, array in zip(again(values), (expected, last), strict=True):
        assert_close(tensor, array)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kernel": np.ones((3, 2), "float32")}, "multiple of H"),
        ({"bias": np.ones(3, "float32")}, "`bias` must have the shape"),
        ({"initial_state": np.ones((2, 1, 4), "float32")}, "`initial_state` must"),
        ({"mask": np.ones((2, 4), bool)}, "`mask` must have the shape"),
        ({"segment_ids": np.ones((3, 5), "int32")}, "`segment_ids` must have"),
        ({"residual": np.ones((2, 5, 3), "float32")}, "`residual` must have"),
        ({"activation": "relu"}, "`activation` must be one of"),
        ({"dilation": 0}, "`dilation` must be"),
    ],
)
def test_wrong_arguments(changes, message):
    arguments = {
        "inputs": np.ones((2, 5, 4), "float32"),
        "kernel": np.ones((4, 3), "float32"),
    }
    with pytest.raises(ValueError, match=message):
        causal_conv1d(**{**arguments, **changes})


def test_a_state_takes_the_dtype_of_the_inputs():
    kernel = np.ones((8, 4), "float32")
    for dtype in ("float32", "bfloat16"):
        inputs, state = ops.ones((3, 1, 8), dtype), np.zeros((3, 3, 8))
        for found in causal_conv1d_update(inputs, state, ops.cast(kernel, dtype)):
            assert keras.backend.standardize_dtype(found.dtype) == dtype


def test_arguments_that_do_not_fit_are_named_with_states_and_segments():
    inputs, kernel = np.ones((3, 1, 8), "float32"), np.ones((8, 4), "float32")
    state, segments = np.zeros((3, 3, 8), "float32"), np.zeros((3, 1), "int32")
    for call, words in (
        (lambda: causal_conv1d_update(inputs, state, kernel[:3]), "multiple of H"),
        (lambda: causal_conv1d(inputs.astype("int32"), kernel, segment_ids=segments),
         "must be float64, float32"),
        (lambda: causal_conv1d(inputs, kernel.astype("float16"), segment_ids=segments),
         "`kernel` must have the dtype of `inputs`"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^[^\n]*{words}"):
            call()
