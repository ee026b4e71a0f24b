"""Label smoothing against its definition, with the numbers of the specification."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.losses import LabelSmoothedCrossentropy, symmetric_divergence
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


@pytest.mark.parametrize(
    "kind, wanted", [("others", 0.5512660), ("uniform", 0.5026182)]
)
def test_golden_values(kind, wanted):
    logits = np.log(np.array([[[0.7, 0.1, 0.1, 0.1]]], "float32"))
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
    (slope,) = gradients(
        lambda x: ops.sum(ops.multiply(loss.call(labels, x), upstream)), logits
    )
    for place in [(0, 1, 2), (1, 3, int(labels[1, 3])), (0, 3, 2), (2, 0, 1)]:
        step = np.zeros(logits.shape)
        step[place] = 1e-4
        difference = by_definition(labels, logits + step, rate, kind, 1)
        difference -= by_definition(labels, logits - step, rate, kind, 1)
        difference = (difference * upstream).sum() / 2e-4
        np.testing.assert_allclose(to_numpy(slope)[place], difference, atol=1e-5)


def test_equals_label_smoothing_of_keras():
    """Also where no word is padding, and padding no word."""
    logits = keras.random.normal((2, 5, 9), seed=1)
    labels = np.array([[3, 4, 5, 6, 7], [8, 0, 1, 3, -1]])
    ours = LabelSmoothedCrossentropy(0.2, pad_id=-1)(labels, logits)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    wanted = theirs(np.eye(9)[labels], logits, sample_weight=labels >= 0)
    np.testing.assert_allclose(ours, wanted * 10 / 9, rtol=1e-6)


def test_smoothing_leaves_nll_and_success_alone():
    logits = np.array([[[0.0, 3, 1], [0, 3, 1], [0, 3, 1]]], "float32")
    labels = np.array([[1, 2, 0]])
    found = LabelSmoothedCrossentropy(0.3, pad_id=0).token_losses(labels, logits)
    normalizer = np.log(np.exp([0, 3, 1]).sum())
    np.testing.assert_allclose(found.nll, [[normalizer - 3, normalizer - 1, 0]], 1e-5)
    assert to_numpy(found.correct).tolist() == [[True, False, False]]
    assert np.all(to_numpy(found.loss)[0, :2] != to_numpy(found.nll)[0, :2])


def test_weights_padding_and_extreme_logits():
    loss = LabelSmoothedCrossentropy(0.0)
    logits = np.zeros((2, 2, 4), "float32")
    logits[0, 0, 2] = 1e4
    labels = np.array([[3, 1], [2, 2]])
    np.testing.assert_allclose(
        loss(labels, logits, np.array([2.0, 1.0])), (2e4 + 2 * np.log(4)) / 4, rtol=1e-6
    )
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


def test_symmetric_divergence():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 3, 4, 6))
    p, q = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in (first, second))
    wanted = (p * np.log(p / q)).sum(axis=-1) + (q * np.log(q / p)).sum(axis=-1)
    found = symmetric_divergence(first.astype("float32"), second.astype("float32"))
    np.testing.assert_allclose(found, wanted / 2, rtol=1e-4)


def two_by_definition(labels, first, second, alpha):
    """Mean of both losses and alpha times the divergence, by loops in float64."""
    found = (
        sum(by_definition(labels, x, 0.1, "uniform", 1) for x in (first, second)) / 2
    )
    for place in np.ndindex(*labels.shape):
        if labels[place] == 1:
            continue
        p, q = (np.exp(x[place]) / np.exp(x[place]).sum() for x in (first, second))
        found[place] += alpha * np.sum((p - q) * np.log(p / q)) / 2
    return found


def test_losses_of_two_dropouts_and_their_gradients():
    rng = np.random.default_rng(2)
    first, second = 3 * rng.normal(size=(2, 3, 4, 7)).astype("float32")
    second += 5  # moves no probability
    labels = rng.integers(2, 7, (3, 4)).astype("int32")
    labels[0, 2:] = labels[2] = 1
    loss = LabelSmoothedCrossentropy(0.1)
    wanted = two_by_definition(labels, first, second, 0.7)

    def of_two(x, y):
        return loss.token_losses_of_two(labels, x, y, 0.7)

    for mode, call in modes(lambda x, y: of_two(x, y).loss).items():
        np.testing.assert_allclose(
            call(first, second), wanted, rtol=1e-5, atol=1e-5, err_msg=mode
        )
    found = of_two(first, second)
    parts = [loss.token_losses(labels, x) for x in (first, second)]
    nll, correct = (
        sum(to_numpy(getattr(part, name)).astype("float32") for part in parts) / 2
        for name in ("nll", "correct")
    )
    np.testing.assert_allclose(found.nll, nll, rtol=1e-6)
    np.testing.assert_array_equal(to_numpy(found.correct), correct)

    upstream = rng.normal(size=(3, 4)).astype("float32")
    slopes = gradients(
        lambda x, y: ops.sum(ops.multiply(of_two(x, y).loss, upstream)), first, second
    )
    for side, place in [
        (0, (0, 1, 2)), (1, (0, 1, 2)), (0, (1, 3, int(labels[1, 3]))), (1, (2, 0, 1)),
    ]:  # fmt: skip
        step = np.zeros((2, *first.shape))
        step[side][place] = 1e-4
        above = two_by_definition(labels, first + step[0], second + step[1], 0.7)
        below = two_by_definition(labels, first - step[0], second - step[1], 0.7)
        difference = ((above - below) * upstream).sum() / 2e-4
        np.testing.assert_allclose(to_numpy(slopes[side])[place], difference, atol=2e-5)


def test_losses_of_two_dropouts_in_half_precision():
    first, second = (
        ops.cast(keras.random.normal((2, 3, 5000), seed=seed), "bfloat16")
        for seed in (1, 2)
    )
    labels = np.array([[5, 6, 7], [8, 9, 1]])
    loss = LabelSmoothedCrossentropy(0.1)
    half = loss.token_losses_of_two(labels, first, second, 2.0).loss
    wide = [ops.cast(logits, "float32") for logits in (first, second)]
    full = loss.token_losses_of_two(labels, *wide, 2.0).loss
    np.testing.assert_allclose(to_numpy(half), to_numpy(full), rtol=1e-6)
    (slope,) = gradients(
        lambda x: ops.sum(loss.token_losses_of_two(labels, x, second, 2.0).loss), first
    )
    assert keras.backend.standardize_dtype(slope.dtype) == "bfloat16"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"label_smoothing": 1.0}, "`label_smoothing` must be at least 0 and less"),
        ({"kind": "keras"}, "`kind` must be one of"),
        ({"pad_id": True}, "`pad_id` must be an integer"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        LabelSmoothedCrossentropy(**arguments)
