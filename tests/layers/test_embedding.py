"""The token table, forwards and backwards, against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import TokenEmbedding
from tests.backends import layer_gradients, modes, to_numpy
from tests.layers.values import random, randomized

IDS = np.array([[3, 0, 10, 3], [9, 1, 1, 1]], "int32")
TOLERANCE = dict(rtol=1e-5, atol=1e-5)


def make(**options):
    return randomized(TokenEmbedding(11, 5, **options), (None, None))


def test_rows_and_logits():
    layer = make(use_bias=True)
    table, bias = (to_numpy(weight) for weight in layer.weights)
    assert table.shape == (11, 5) and bias.shape == (11,)
    x = random(2, 4, 5)
    logits = np.zeros((2, 4, 11))
    for b in range(2):
        for t in range(4):
            for v in range(11):
                logits[b, t, v] = sum(x[b, t] * table[v]) + bias[v]
    for name, function in modes(layer).items():
        np.testing.assert_array_equal(to_numpy(function(IDS)), table[IDS], name)
    for name, function in modes(lambda x: layer(x, reverse=True)).items():
        np.testing.assert_allclose(
            to_numpy(function(ops.convert_to_tensor(x))), logits, **TOLERANCE,
            err_msg=name,
        )  # fmt: skip
    got = to_numpy(layer(x[:, 1], reverse=True))
    np.testing.assert_allclose(got, logits[:, 1], **TOLERANCE)
    products = x @ to_numpy(layer.output_kernel())
    np.testing.assert_allclose(to_numpy(layer.to_logits(products)), logits, **TOLERANCE)


def test_ids_of_any_integer_type():
    layer = make()
    for dtype in ("uint8", "int64", "int32"):
        got = to_numpy(layer(IDS.astype(dtype)))
        np.testing.assert_array_equal(got, to_numpy(layer(IDS)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(policy):
    """Rows are half, logits float32 of half products; ids beyond 256 stay whole."""
    layer = TokenEmbedding(1000, 4, use_bias=True, dtype=policy)
    ids = np.array([[257, 999, 514]], "int32")
    rows = layer(ids)
    table = to_numpy(layer.embeddings)
    assert keras.backend.standardize_dtype(rows.dtype) == layer.compute_dtype
    assert keras.backend.standardize_dtype(layer.embeddings.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(rows), table[ids], rtol=1e-2)
    kernel = layer.output_kernel()
    assert keras.backend.standardize_dtype(kernel.dtype) == layer.compute_dtype
    logits = layer(rows, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(logits), table[ids] @ table.T, atol=0.02)


def test_first_values():
    layer = TokenEmbedding(4000, 64)
    layer.build()
    values = to_numpy(layer.embeddings)
    assert abs(values.std() * 8 - 1) < 0.02 and abs(values.mean()) < 1e-3
    ones = TokenEmbedding(7, 3, embeddings_initializer="ones", use_bias=True)
    assert np.all(to_numpy(ones(np.array([[1]]))) == 1)
    assert np.all(to_numpy(ones.bias) == 0)


def test_one_gradient_from_both_uses():
    """Input rows and output matrix are one variable: their gradients add up."""
    layer = make()
    (gradient,) = layer_gradients(layer, lambda: layer(layer(IDS), reverse=True))
    table = to_numpy(layer.embeddings).astype(float)

    def loss(table):
        return np.sum((table[IDS] @ table.T) ** 2)

    got = to_numpy(ops.convert_to_tensor(gradient))
    for place in ((3, 0), (1, 4), (7, 2)):
        moved = np.zeros_like(table)
        moved[place] = 1e-5
        expected = (loss(table + moved) - loss(table - moved)) / 2e-5
        np.testing.assert_allclose(got[place], expected, rtol=1e-3)


def test_symbolic_shapes_and_a_file(tmp_path):
    layer = make(use_bias=True, embeddings_initializer="zeros")
    config = layer.get_config()
    assert TokenEmbedding.from_config(config).get_config() == config
    ids = keras.Input((None,), dtype="int32")
    x = layer(ids)
    assert x.shape == (None, None, 5) == layer.compute_output_shape((None, None))
    outputs = layer(x, reverse=True)
    assert outputs.shape == (None, None, 11)
    assert layer.compute_output_shape((2, None, 5), reverse=True) == (2, None, 11)
    model = keras.Model(ids, outputs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(IDS)), to_numpy(model(IDS)), **TOLERANCE)
    assert len(again.trainable_weights) == 2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 5), "`vocabulary_size`.*=0"),
        ((11, -1), "`embedding_dim`.*-1"),
        ((True, 5), "`vocabulary_size`.*True"),
    ],
)
def test_wrong_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        TokenEmbedding(*arguments)
