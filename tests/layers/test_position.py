import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers.embedding import PositionEncoding
from tests.backends import layer_gradients, modes, to_numpy
from tests.layers.check_layer import check_layer, check_steps
from tests.layers.values import random

BATCH, LENGTH, CHANNELS = 2, 6, 8
CLOSE = dict(rtol=1e-5, atol=1e-6)
KINDS = {
    "fairseq": dict(),
    "paper": dict(layout="paper"),
    "learned": dict(kind="learned", max_length=9),
}


def encodings(layer, length, channels=CHANNELS):
    return to_numpy(layer(np.zeros((1, length, channels), "float32")))[0]


def fairseq_row(position, channels):
    """As fairseq has it, one number at a time."""
    half, row = channels // 2, []
    rates = [math.exp(-math.log(10000) * i / max(half - 1, 1)) for i in range(half)]
    row += [math.sin((position + 2) * rate) for rate in rates]
    row += [math.cos((position + 2) * rate) for rate in rates]
    return row + [0.0] * (channels - len(row))


def paper_row(position, channels):
    row = []
    for c in range(channels):
        angle = position / 10000 ** ((c - c % 2) / channels)
        row.append(math.cos(angle) if c % 2 else math.sin(angle))
    return row


def test_golden_values_of_fairseq():
    row = encodings(PositionEncoding(), 1, 4)[0]
    np.testing.assert_allclose(
        row, [0.909297, 0.00019999, -0.416147, 0.99999998], atol=1e-6
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize(
    ("layout", "row"), [("fairseq", fairseq_row), ("paper", paper_row)]
)
def test_sinusoids_equal_the_formula(layout, row, channels):
    got = encodings(PositionEncoding(layout=layout), 40, channels)
    expected = [row(position, channels) for position in range(40)]
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_sinusoids_far_along():
    got = encodings(PositionEncoding(), 5000, 4)[-1]
    np.testing.assert_allclose(got, fairseq_row(4999, 4), atol=1e-3)


def test_learned_rows_in_order():
    layer = PositionEncoding("learned", max_length=9)
    layer.build((None, None, CHANNELS))
    table = random(9, CHANNELS)
    layer.embeddings.assign(table)
    inputs = random(BATCH, LENGTH, CHANNELS, seed=1)
    np.testing.assert_allclose(
        to_numpy(layer(inputs)), inputs + table[:LENGTH], **CLOSE
    )


def test_initial_table():
    keras.utils.set_random_seed(0)
    layer = PositionEncoding("learned", max_length=200)
    layer.build((None, None, 64))
    table = to_numpy(layer.embeddings)
    assert table.shape == (200, 64)
    assert np.isclose(table.std(), 64**-0.5, rtol=0.05) and abs(table.mean()) < 0.01
    layer = PositionEncoding("learned", max_length=4, embeddings_initializer="ones")
    layer.build((None, None, 3))
    np.testing.assert_array_equal(to_numpy(layer.embeddings), np.ones((4, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_only_real_tokens_count(kind):
    layer = PositionEncoding(**KINDS[kind])
    real = encodings(layer, LENGTH)
    mask = np.array([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0]], bool)
    inputs = random(BATCH, LENGTH, CHANNELS)
    expected = inputs.copy()
    for b in range(BATCH):
        count = 0
        for t in range(LENGTH):
            if mask[b, t]:
                expected[b, t] += real[count]
                count += 1
    for name, function in modes(lambda x, m: layer(x, mask=m)).items():
        got = to_numpy(function(ops.convert_to_tensor(inputs), mask))
        np.testing.assert_allclose(got, expected, err_msg=name, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_left_padding_equals_right_padding(kind):
    layer = PositionEncoding(**KINDS[kind])
    inputs = random(BATCH, 4, CHANNELS)
    alone = to_numpy(layer(inputs))
    junk = random(BATCH, 3, CHANNELS, seed=1)
    real, padding = np.ones((BATCH, 4), bool), np.zeros((BATCH, 3), bool)
    right = layer(
        np.concatenate([inputs, junk], 1), mask=np.concatenate([real, padding], 1)
    )
    left = layer(
        np.concatenate([junk, inputs], 1), mask=np.concatenate([padding, real], 1)
    )
    np.testing.assert_array_equal(to_numpy(right)[:, :4], alone)
    np.testing.assert_array_equal(to_numpy(left)[:, 3:], alone)
    np.testing.assert_array_equal(to_numpy(right)[:, 4:], junk)
    np.testing.assert_array_equal(to_numpy(left)[:, :3], junk)


def test_the_mask_of_an_embedding_is_used_and_kept():
    ids = np.array([[0, 0, 3, 4], [1, 2, 3, 0]])
    embedding = keras.layers.Embedding(5, CHANNELS, mask_zero=True)
    layer = PositionEncoding()
    given = to_numpy(layer(to_numpy(embedding(ids)), mask=ids != 0))
    np.testing.assert_array_equal(to_numpy(layer(embedding(ids))), given)
    inputs = keras.Input((None,), dtype="int32")
    outputs = layer(embedding(inputs))
    pooled = keras.layers.GlobalAveragePooling1D()(outputs)  # over real tokens only
    got, mean = keras.Model(inputs, [outputs, pooled]).predict(ids, verbose=0)
    np.testing.assert_allclose(got, given, **CLOSE)
    np.testing.assert_allclose(mean[0], given[0, 2:].mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_layer_manners(kind):
    inputs = random(BATCH, LENGTH, CHANNELS)
    check_layer(
        lambda: PositionEncoding(**KINDS[kind]),
        inputs,
        inputs.shape,
        trainable=1 if kind == "learned" else 0,
        mask=np.arange(LENGTH) < np.array([[3], [6]]),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_split_into_steps_equals_the_full_pass(kind):
    layer = PositionEncoding(**KINDS[kind])
    inputs = random(BATCH, LENGTH, CHANNELS)
    check_steps(layer, inputs)
    check_steps(layer, inputs, max_length=LENGTH)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_keeps_far_positions_apart(kind, policy):
    """Only the result is rounded: positions and angles stay in float32."""
    arguments = dict(KINDS[kind], max_length=600)
    layer = PositionEncoding(**arguments, dtype=policy)
    exact = PositionEncoding(**arguments)
    got, expected = encodings(layer, 600), encodings(exact, 600)
    if kind == "learned":
        expected = to_numpy(layer.embeddings)
    np.testing.assert_allclose(got, expected, atol=5e-3)
    state = {"position": ops.convert_to_tensor(590, "int32")}
    outputs, state = layer.step(np.zeros((1, 2, CHANNELS), "float32"), state)
    assert keras.backend.standardize_dtype(outputs.dtype) == policy[6:]
    assert int(state["position"]) == 592
    np.testing.assert_array_equal(to_numpy(outputs)[0], got[590:592])
    mask = np.ones((1, 600), bool)
    mask[0, 0] = False
    shifted = to_numpy(layer(np.zeros((1, 600, CHANNELS), "float32"), mask=mask))
    np.testing.assert_array_equal(shifted[0, 1:], got[:-1])


def test_gradient_reaches_the_rows_in_use():
    layer = PositionEncoding("learned", max_length=5)
    layer.build((None, None, 2))
    mask = np.array([[False, True, True]])
    inputs = np.ones((1, 3, 2), "float32")
    by_input, by_table = layer_gradients(layer, lambda x: layer(x, mask=mask), inputs)
    outputs = to_numpy(layer(inputs, mask=mask))
    np.testing.assert_allclose(to_numpy(by_input), 2 * outputs, **CLOSE)
    by_table = to_numpy(ops.convert_to_tensor(by_table))
    np.testing.assert_allclose(by_table[:2], 2 * outputs[0, 1:], **CLOSE)
    assert not np.any(by_table[2:])


class TestBeyondTheTable:
    def make(self):
        return PositionEncoding("learned", max_length=4)

    def test_known_lengths_raise(self):
        with pytest.raises(ValueError, match="`max_length`.*length=5, max_length=4"):
            self.make()(np.zeros((1, 5, 3), "float32"))
        layer = self.make()
        layer.build((None, None, 3))
        with pytest.raises(ValueError, match="`max_length`"):
            layer(np.zeros((1, 5, 3), "float32"))
        with pytest.raises(ValueError, match="`max_length`"):
            self.make()(keras.Input((5, 3)))
        with pytest.raises(ValueError, match="`max_length`"):
            layer.get_initial_state(1, max_length=5)
        with pytest.raises(ValueError, match="`max_length`"):
            layer.step(np.zeros((1, 5, 3), "float32"), layer.get_initial_state(1))

    def test_steps_become_nan(self):
        layer = self.make()
        layer.build((None, None, 3))
        inputs = ops.zeros((1, 3, 3))
        for function in modes(layer.step).values():
            first, state = function(inputs, layer.get_initial_state(1))
            second, state = function(inputs, state)
            assert np.all(np.isfinite(to_numpy(first)))
            nan = np.isnan(to_numpy(second)[0]).all(-1)
            np.testing.assert_array_equal(nan, [False, True, True])

    @pytest.mark.tensorflow
    def test_unknown_lengths_become_nan(self):
        import tensorflow as tf

        layer = self.make()
        layer.build((None, None, 3))
        signature = [tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, None), bool)]

        @tf.function(input_signature=signature, autograph=False)
        def call(inputs, mask):
            return layer(inputs, mask=mask)

        mask = np.array([[True] * 6, [False] * 3 + [True] * 3])
        outputs = to_numpy(call(np.zeros((2, 6, 3), "float32"), mask))
        nan = np.isnan(outputs).any(-1)
        # padding needs no row, so the second sentence is whole
        np.testing.assert_array_equal(nan, [[0, 0, 0, 0, 1, 1], [0] * 6])


@pytest.mark.parametrize(
    "arguments",
    [
        dict(kind="rotary"),
        dict(layout="interleaved"),
        dict(kind="learned", max_length=None),
        dict(max_length=0),
        dict(max_length=True),
        dict(max_length=3.0),
    ],
)
def test_bad_arguments_are_named(arguments):
    name = list(arguments)[-1]
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}="):
        PositionEncoding(**arguments)


@pytest.mark.parametrize("shape", [(2, 8), (2, 5, None)])
def test_bad_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="`inputs` must have shape"):
        PositionEncoding().build(shape)
