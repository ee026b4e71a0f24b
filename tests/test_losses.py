"""Label smoothing against its definition, with the numbers of the specification."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.losses import LabelSmoothedCrossentropy
from keras_seqconv.ops import jit_scope
from tests.backends import gradients, modes, to_numpy


def by_definition(labels, logits, rate, kind, pad_id):
    """-(sum of q log p) of each token, by loops in float64."""
    logits = np.asarray(logits, "float64")
    size = logits.shape[-1]
    found = np.zeros(labels.shape)
    for place in np.ndindex(*labels.shape):
        if labels[place] == pad_id:
            continue
        log_p = logits[place] - np.log(np.exp(logits[place]).sum())
        q = np.full(size, rate / size if kind == "uniform" else rate / (size - 1))
        q[labels[place]] = 1 - rate + (rate / size if kind == "uniform" else 0)
        found[place] = -(q * log_p).sum()
    return found


def test_golden_values():
    logits = np.log(np.array([[[0.7, 0.1, 0.1, 0.1]]], "float32"))
    for kind, wanted in [("others", 0.5512660), ("uniform", 0.5026182)]:
        loss = LabelSmoothedCrossentropy(0.1, kind)
        np.testing.assert_allclose(loss(np.array([[0]]), logits), wanted, atol=2e-7)


@pytest.mark.parametrize("kind", ["uniform", "others"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_losses_and_gradients(kind, rate):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 4, 7)).astype("float32") * 3
    labels = rng.integers(2, 7, (3, 4)).astype("int32")
    labels[0, 2:] = labels[2] = 1
    loss = LabelSmoothedCrossentropy(rate, kind)
    wanted = by_definition(labels, logits, rate, kind, 1)
    for mode, call in modes(lambda x: loss.call(labels, x)).items():
        np.testing.assert_allclose(call(logits), wanted, atol=1e-5, err_msg=mode)
    np.testing.assert_allclose(loss(labels, logits), wanted.sum() / 6, rtol=1e-6)

    upstream = rng.normal(size=(3, 4)).astype("float32")

    def total(x):
        return ops.sum(ops.multiply(loss.call(labels, x), upstream))

    (slope,) = gradients(total, logits)
    with jit_scope(False):  # in place
        np.testing.assert_allclose(gradients(total, logits)[0], slope, atol=1e-6)
    for place in [(0, 1, 2), (1, 3, int(labels[1, 3])), (0, 3, 2), (2, 0, 1)]:
        step = np.zeros(logits.shape)
        step[place] = 1e-4
        difference = by_definition(labels, logits + step, rate, kind, 1)
        difference -= by_definition(labels, logits - step, rate, kind, 1)
        difference = (difference * upstream).sum() / 2e-4
        np.testing.assert_allclose(to_numpy(slope)[place], difference, atol=1e-5)


def test_smoothing_leaves_nll_and_success_alone():
    logits = np.array([[[0.0, 3, 2.5], [0, 3, 2.5], [0, 3, 2.5]]], "float32")
    labels = np.array([[1, 2, 0]])
    loss = LabelSmoothedCrossentropy(0.3, pad_id=0)
    loss, nll, correct = map(to_numpy, loss.token_losses(labels, logits))
    normalizer = np.log(np.exp([0, 3, 2.5]).sum())
    np.testing.assert_allclose(nll, [[normalizer - 3, normalizer - 2.5, 0]], 1e-5)
    assert correct.tolist() == [[True, False, False]]
    assert np.all(loss[0, :2] != nll[0, :2])


def test_weights_padding_and_extreme_logits():
    loss = LabelSmoothedCrossentropy(0.0)
    logits = np.zeros((2, 2, 4), "float32")
    logits[0, 0, 2] = 1e4
    found = loss(np.array([[3, 1], [2, 2]]), logits, np.array([2.0, 1.0]))
    np.testing.assert_allclose(found, (2e4 + 2 * np.log(4)) / 4, rtol=1e-6)
    labels, weights = np.array([[3, 2], [2, 3]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    logits[1, 1, 3] = 5
    np.testing.assert_allclose(
        loss(labels, logits, weights[..., None]), loss(labels, logits, weights)
    )
    for shape in ((2, 2, 2), (2, 3), (3,)):
        with pytest.raises(ValueError, match="`sample_weight` must have the shape"):
            loss(labels, logits, np.ones(shape))
    assert float(loss(np.ones((2, 2)), logits)) == 0  # nothing but padding
    (slope,) = gradients(lambda x: loss(np.ones((2, 2), "int32"), x), logits)
    assert not np.any(to_numpy(slope))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype):
    logits = ops.cast(keras.random.normal((2, 3, 5000), seed=1), dtype)
    labels = np.array([[5, 6, 7], [8, 9, 1]])
    half = LabelSmoothedCrossentropy(0.1).call(labels, logits)
    full = LabelSmoothedCrossentropy(0.1).call(labels, ops.cast(logits, "float32"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"
    np.testing.assert_array_equal(to_numpy(half), to_numpy(full))


def test_any_model_trains_with_it_and_saves_it(tmp_path):
    layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(9, 9)]
    model = keras.Sequential(layers)
    loss = LabelSmoothedCrossentropy(0.1, "others", pad_id=0)
    model.compile(keras.optimizers.SGD(1.0), loss)
    labels = np.array([[3, 4, 0], [5, 6, 7]])
    losses = model.fit(labels, labels, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == loss.get_config()


def test_labels_of_another_shape_are_refused():
    """In a graph of unknown sizes by their number."""
    loss, logits = LabelSmoothedCrossentropy(pad_id=-1), np.ones((2, 10, 5), "float32")
    for shape in ((2, 9), (10, 2), (2, 10, 1), (20,)):
        with pytest.raises(ValueError, match=r"`labels` must have the shape \(2, 10\)"):
            loss(np.zeros(shape, "int32"), logits)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        specs = tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, None, 5))
        for compiled in (False, True):
            graph = tf.function(loss, input_signature=specs, jit_compile=compiled)
            np.testing.assert_allclose(graph(np.zeros((2, 10)), logits), np.log(5))
            with pytest.raises(tf.errors.InvalidArgumentError, match="100 values"):
                graph(np.zeros((2, 9), "int32"), logits)


def test_equals_label_smoothing_of_keras():
    """Also where no word is padding, and padding no word."""
    logits = keras.random.normal((2, 5, 9), seed=1)
    labels = np.array([[3, 4, 5, 6, 7], [8, 0, 1, 3, -1]])
    ours = LabelSmoothedCrossentropy(0.2, pad_id=-1)(labels, logits)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    wanted = theirs(np.eye(9)[labels], logits, sample_weight=labels >= 0)
    np.testing.assert_allclose(ours, wanted * 10 / 9, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_none_of_labels_and_logits(dtype):
    logits = np.zeros((1, 2, 3000), "float32")
    logits[0, 0, 2049] = logits[0, 1, 5] = 9.01
    labels = np.array([[2049, 5]])
    found = LabelSmoothedCrossentropy(0.0, dtype=dtype)(labels, logits)
    assert float(found) == float(LabelSmoothedCrossentropy(0.0)(labels, logits))
