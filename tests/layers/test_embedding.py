"""The token table, forwards and backwards, and positions, against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import PositionEncoding, TokenEmbedding
from keras_seqconv.layers.sequences import loop_kernels
from tests.backends import modes, to_numpy
from tests.layers import formulas
from tests.layers.values import assert_close, random, randomized

IDS = np.array([[3, 0, 10, 3], [9, 1, 1, 1]], "int32")
CHANNELS = 8
KINDS = {
    "fairseq": dict(),
    "paper": dict(layout="paper"),
    "learned": dict(kind="learned", max_length=9),
}


def make(**options):
    return randomized(TokenEmbedding(11, 5, **options), (None, None))


def test_rows_and_logits():
    layer = make(use_bias=True)
    table, bias = (to_numpy(weight) for weight in layer.weights)
    assert table.shape == (11, 5) and bias.shape == (11,)
    x = random(2, 4, 5)
    logits = x @ table.T + bias
    for name, function in modes(layer).items():
        np.testing.assert_array_equal(to_numpy(function(IDS)), table[IDS], name)
    for name, function in modes(lambda x: layer(x, reverse=True)).items():
        assert_close(function(ops.convert_to_tensor(x)), logits, err_msg=name)
    got = to_numpy(layer(x[:, 1], reverse=True))
    assert_close(got, logits[:, 1])
    with loop_kernels([layer], [layer.step_kernel()]):
        assert_close(layer(x, reverse=True), logits)
    masked = keras.layers.Masking()(x)
    assert layer(masked, reverse=True)._keras_mask is masked._keras_mask


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"]
)
def test_half_precision(policy):
    """Rows are half, logits float32 of half products; ids beyond 256 stay whole."""
    layer = TokenEmbedding(1000, 4, use_bias=True, dtype=policy)
    ids = np.array([[257, 999, 514]], "int32")
    rows = layer(ids)
    table = to_numpy(layer.embeddings)
    assert keras.backend.standardize_dtype(rows.dtype) == layer.compute_dtype
    wanted = "float32" if "mixed" in policy else policy
    assert keras.backend.standardize_dtype(layer.embeddings.dtype) == wanted
    np.testing.assert_allclose(to_numpy(rows), table[ids], rtol=1e-2)
    kernel = layer.step_kernel()
    assert keras.backend.standardize_dtype(kernel.dtype) == layer.compute_dtype
    logits = layer(rows, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(logits), table[ids] @ table.T, atol=0.02)


def encodings(layer, length, channels=CHANNELS):
    return to_numpy(layer(np.zeros((1, length, channels), "float32")))[0]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("layout", ["fairseq", "paper"])
def test_sinusoids_equal_the_formula(layout, channels):
    layer = PositionEncoding(layout=layout)
    got = encodings(layer, 5000, channels)
    expected = formulas.encodings(layer, 5000, channels)
    np.testing.assert_allclose(got[:40], expected[:40], atol=1e-5)
    np.testing.assert_allclose(got[4999], expected[4999], atol=1e-3)
    if (layout, channels) == ("fairseq", 4):  # what fairseq itself gave
        golden = [0.909297, 0.00019999, -0.416147, 0.99999998]
        np.testing.assert_allclose(got[0], golden, atol=1e-6)


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


class TestBeyondTheTable:
    def make(self):
        layer = PositionEncoding("learned", max_length=4)
        layer.build((None, None, 3))
        return layer

    def test_steps_become_nan(self):
        layer = self.make()
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
        signature = [tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, None), bool)]

        @tf.function(input_signature=signature, autograph=False)
        def call(inputs, mask):
            return layer(inputs, mask=mask)

        mask = np.array([[True] * 6, [False] * 3 + [True] * 3])
        outputs = to_numpy(call(np.zeros((2, 6, 3), "float32"), mask))
        nan = np.isnan(outputs).any(-1)
        # padding needs no row, so the second sentence is whole
        np.testing.assert_array_equal(nan, [[0, 0, 0, 0, 1, 1], [0] * 6])


def test_one_mask_for_all_positions_of_a_row():
    layer = PositionEncoding()
    inputs, mask = random(2, 4, CHANNELS), np.array([[True], [False]])
    expected = layer(inputs, mask=np.broadcast_to(mask, (2, 4)))
    assert_close(layer(inputs, mask=mask), to_numpy(expected))
