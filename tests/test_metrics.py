"""Metrics count tokens, not batches, exactly and without padding."""

import keras
import numpy as np

from keras_seqconv.metrics import Perplexity, TokenAccuracy, TokenMetrics
from tests.backends import modes, to_numpy
from tests.test_losses import by_definition


def test_exact_over_batches_of_all_shapes():
    rng = np.random.default_rng(0)
    metrics = [TokenMetrics(), Perplexity(), TokenAccuracy()]
    nll, right, tokens = 0.0, 0, 0
    for rows, length in [(5, 3), (1, 9), (2, 1), (2, 4)]:
        logits = rng.normal(size=(rows, length, 6)).astype("float32")
        labels = rng.integers(2, 6, (rows, length)).astype("int32")
        for row, end in enumerate(rng.integers(0, length + 1, rows)):
            labels[row, end:] = 1
        if length == 4:
            labels[:] = 1  # nothing but padding
        nll += by_definition(labels, logits, 0.0, "uniform", 1).sum()
        right += np.sum((np.argmax(logits, -1) == labels) & (labels != 1))
        tokens += np.sum(labels != 1)
        for metric in metrics:
            metric.update_state(labels, logits)
    found = metrics[0].result()
    wanted = {
        "nll": nll / tokens, "perplexity": np.exp(nll / tokens),
        "accuracy": right / tokens, "tokens": tokens,
    }  # fmt: skip
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    for metric, name in zip(metrics[1:], ("perplexity", "accuracy"), strict=True):
        np.testing.assert_allclose(metric.result(), wanted[name], rtol=1e-6)


def test_perplexity_is_finite_and_reset():
    metric = TokenMetrics()
    metric.add(np.array([1e6, 1e6, 0.0, 1.0], "float32"))
    assert np.isfinite(to_numpy(metric.result()["perplexity"]))
    assert float(metric.result()["nll"]) == 1e6
    metric.reset_state()
    assert {float(value) for value in metric.result().values()} == {0.0}


def test_sums_beyond_the_precision_of_float32():
    """2^24 tokens, then one more each time: plain float32 would lose all of these."""
    metric, number = TokenMetrics(), 2**24
    metric.add(np.array([0.0, 0, 0, number], "float32"))

    def add():
        metric.add(np.ones(4, "float32"))
        return metric.totals + 0.0

    runs = modes(add)
    if keras.backend.backend() == "jax":
        del runs["xla"]  # no side effects there
    for run in runs.values():
        for _ in range(300):
            run()
        number += 300
        assert to_numpy(metric.totals).astype("float64")[:, 3].sum() == number


def test_sample_weight_and_padding_outside_of_the_vocabulary():
    metric = TokenMetrics(pad_id=-1)
    logits = np.log(np.array([[[0.5, 0.5]], [[0.9, 0.1]]], "float32"))
    metric.update_state(np.array([[0], [1]]), logits, np.array([3.0, 1.0]))
    metric.update_state(np.array([[-1], [-1]]), logits)
    wanted = (3 * np.log(2) - np.log(0.1)) / 4
    np.testing.assert_allclose(metric.result()["nll"], wanted, rtol=1e-6)
    np.testing.assert_allclose(metric.result()["accuracy"], 0.75)


def test_metrics_of_any_model_and_config():
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), keras.layers.Embedding(9, 9)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[Perplexity(0), TokenAccuracy(0)])
    labels = np.array([[3, 4], [5, 6], [7, 8]])
    found = model.evaluate(labels, labels, batch_size=1, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["perplexity"], np.exp(found["loss"]), rtol=1e-5)
    for metric in (TokenMetrics(3, has_accuracy=False), Perplexity(2)):
        config = keras.saving.serialize_keras_object(metric)
        again = keras.saving.deserialize_keras_object(config)
        assert type(again) is type(metric)
        assert again.get_config() == metric.get_config()
    assert "accuracy" not in TokenMetrics(has_accuracy=False).result()


def test_what_stands_at_padding_does_not_count():
    logits = np.zeros((1, 3, 6), "float32")
    logits[..., 0], logits[0, 2] = -np.inf, np.nan
    metric = Perplexity()
    metric.update_state(np.array([[3, 4, 1]]), logits)
    np.testing.assert_allclose(float(metric.result()), 5.0, rtol=1e-6)
