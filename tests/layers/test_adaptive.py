"""Adaptive input and softmax against their formulas."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import AdaptiveInput, AdaptiveSoftmax
from keras_seqconv.ops import fused
from tests.backends import compiled, layer_gradients, modes, to_numpy
from tests.cases import quick_and_slow
from tests.convert.reference import log_softmax
from tests.layers.values import assert_close, random, randomized

WORDS, CUTOFFS, CHANNELS = 41, (7, 15, 26), 16
BANDS = [(0, 7), (7, 15), (15, 26), (26, 41)]


@pytest.fixture
def blocks(request, monkeypatch):
    """Rows of a block: few, as of large vocabularies, or None if all fit in one."""
    if request.param is not None:
        monkeypatch.setattr(fused, "BLOCK_SIZE", 1)
        monkeypatch.setattr(fused, "FEWEST_ROWS", request.param)


def softmax_layer(**kwargs):
    layer = AdaptiveSoftmax(WORDS, CUTOFFS, factor=2.0, **kwargs)
    return randomized(layer, (2, 9, CHANNELS))


def input_layer(**kwargs):
    layer = AdaptiveInput(WORDS, CHANNELS, CUTOFFS, factor=2.0, **kwargs)
    return randomized(layer, (2, 9))


def words():
    """All words of the vocabulary but a few, in random order, (2, 9)."""
    return np.random.default_rng(3).permutation(WORDS)[:18].reshape(2, 9)


def distributions(features, head, projections, tables):
    """Log-probabilities of all words after each feature vector, by the formula."""
    features = features.astype("float64")
    of_head = log_softmax(features @ head.T)
    found = [of_head[..., : CUTOFFS[0]]]
    for i, (projection, table) in enumerate(zip(projections, tables, strict=True)):
        inside = log_softmax(features @ projection @ table.T)
        found.append(of_head[..., CUTOFFS[0] + i, None] + inside)
    return np.concatenate(found, axis=-1)


def weights_of(layer):
    """Head, projections and tables of a layer, tied or not, as arrays."""
    own, source = [to_numpy(weight) for weight in layer.weights], layer.adaptive_input
    if source is None:
        return own[0], own[1::2], own[2::2]
    first, *tables = map(to_numpy, source.embeddings)
    projections = [to_numpy(w) for w in layer.tail_projections] or [
        to_numpy(w).T for w in source.projections[1:]
    ]
    return np.concatenate([first, to_numpy(layer.head)]), projections, tables


def test_ids_of_another_shape_than_the_features_are_refused():
    layer = softmax_layer()
    features = random(2, 6, CHANNELS)
    assert np.shape(to_numpy(layer.log_prob(features, [[1] * 6] * 2))) == (2, 6)
    for shape in ((6, 2), (2, 5), (12,)):
        with pytest.raises(ValueError, match=r"`ids` must have the shape \(2, 6\)"):
            layer.log_prob(features, np.ones(shape, "int32"))


def test_ids_that_come_as_floats_stay_whole():
    """As `keras.Input((None,))` gives them, under any policy."""
    for policy in ("mixed_bfloat16", "float16"):
        layer = AdaptiveInput(3000, 4, (1000, 2000), factor=2.0, dtype=policy)
        ids = np.array([[257, 1999, 2999]])
        expected = to_numpy(layer(ids))
        np.testing.assert_array_equal(to_numpy(layer(ids.astype("float32"))), expected)


class TestAdaptiveSoftmax:
    @pytest.mark.parametrize(
        ("blocks", "tied"),
        quick_and_slow([(3, "projections too")], [(3, "tables"), (None, "nothing")]),
        indirect=["blocks"],
    )
    def test_equals_the_formula(self, blocks, tied):
        """For every word, also those with offset 1, which fairseq's criterion skips."""
        features = random(1, WORDS, CHANNELS)
        ids = np.random.default_rng(3).permutation(WORDS)[None]
        source = None if tied == "nothing" else input_layer()
        options = {"tie_projections": tied == "projections too"}
        layer = softmax_layer(adaptive_input=source, **options)
        count = {"nothing": 7, "tables": 4 + 8, "projections too": 1 + 8}[tied]
        assert len(layer.trainable_weights) == count
        expected = distributions(features, *weights_of(layer))
        np.testing.assert_allclose(np.exp(expected).sum(-1), 1, rtol=1e-9)
        full = to_numpy(layer.full_log_prob(features))
        assert_close(full, expected)
        chosen = np.take_along_axis(expected, ids[..., None], -1)[..., 0]
        tensors = [ops.convert_to_tensor(features), ops.convert_to_tensor(ids)]
        for mode, function in modes(layer.log_prob).items():
            got = to_numpy(function(*tensors))
            assert got.dtype == np.float32
            assert_close(got, chosen, err_msg=mode)

    @pytest.mark.parametrize(
        ("blocks", "only"),
        quick_and_slow([(3, None), (None, 2)], [(3, 0), (None, None)]),
        indirect=["blocks"],
    )
    def test_gradients_are_those_of_the_full_distribution(self, blocks, only):
        """Words of all clusters or, in the extreme, of one."""
        features, ids = random(2, 9, CHANNELS), words()
        if only is not None:
            first, end = BANDS[only]
            ids = first + ids % (end - first)
        ids = ops.convert_to_tensor(ids)
        layer = softmax_layer()

        def direct(x):
            found = layer.full_log_prob(x)
            return ops.take_along_axis(found, ids[..., None], axis=-1)

        def gradients(x):
            return layer_gradients(layer, lambda x: layer.log_prob(x, ids), x)

        expected = layer_gradients(layer, direct, features)
        function = gradients if only is None else compiled(gradients)
        got = function(ops.convert_to_tensor(features))
        for gradient, value in zip(got, expected, strict=True):
            scale = max(1, np.abs(to_numpy(value)).max())
            difference = np.abs(to_numpy(gradient) - to_numpy(value)).max()
            assert difference < 1e-5 * scale

    @pytest.mark.tensorflow
    @pytest.mark.slow
    @pytest.mark.parametrize("blocks", [3], indirect=True)
    def test_graph_with_unknown_shapes(self, blocks):
        import tensorflow as tf

        layer = softmax_layer()

        @tf.function(
            input_signature=[
                tf.TensorSpec((None, None, CHANNELS)),
                tf.TensorSpec((None, None), "int32"),
            ]
        )
        def run(features, ids):
            with tf.GradientTape() as tape:
                tape.watch(features)
                loss = layer.loss(features, ids)
            return layer.log_prob(features, ids), tape.gradient(loss, features)

        for shape in [(2, 9), (0, 3)]:
            features = random(*shape, CHANNELS)
            ids = np.resize(words(), shape).astype("int32")
            got, gradient = run(features, ids)
            assert_close(got, to_numpy(layer.log_prob(features, ids)))
            (first, *_) = layer_gradients(
                layer, lambda x, ids=ids: ops.sqrt(layer.loss(x, ids)), features
            )
            np.testing.assert_allclose(gradient, first, rtol=1e-3, atol=1e-4)

    def test_weights_of_the_loss(self):
        layer, features, ids = softmax_layer(), random(2, 9, CHANNELS), words()
        weight = 0.5 * (np.arange(9) < 4) * np.ones((2, 9))
        log_prob = to_numpy(layer.log_prob(features, ids))
        for kept in (weight, weight > 0):
            loss = to_numpy(layer.loss(features, ids, kept))
            np.testing.assert_allclose(loss, -(log_prob * kept).sum(), rtol=1e-5)

    def test_dropout_of_features_and_tails(self):
        features, ids = random(2, 9, CHANNELS), words()
        layer = softmax_layer(dropout=0.5, seed=1)
        np.testing.assert_array_equal(to_numpy(layer(features)), features)
        dropped = to_numpy(layer(features, training=True))
        assert set(np.unique((dropped / features).round(3))) == {0.0, 2.0}
        clean = to_numpy(layer.log_prob(features, ids))
        noisy = to_numpy(layer.log_prob(features, ids, training=True))
        tail = ids >= CUTOFFS[0]
        assert_close(noisy[~tail], clean[~tail])
        assert np.all(noisy[tail & (ids < 26)] != clean[tail & (ids < 26)])

    def test_gradient_sees_the_same_dropout(self):
        """Where a draw decides the loss, the gradient is that of the same draw."""
        features = ops.convert_to_tensor(random(2, 9, CHANNELS))
        ids = words()

        def run(step):
            layer = softmax_layer(dropout=0.5, seed=1)
            if step is None:
                call = lambda x: ops.sqrt(layer.loss(x, ids, training=True))  # noqa: E731
                return to_numpy(layer_gradients(layer, call, features)[0])
            return to_numpy(layer.loss(features + step, ids, training=True))

        direction = random(2, 9, CHANNELS, seed=5)
        got = (run(None) * direction).sum()
        expected = (run(0.01 * direction) - run(-0.01 * direction)) / 0.02
        np.testing.assert_allclose(got, expected, rtol=5e-3)


class TestTied:
    def test_tie_survives_saving(self, tmp_path):
        ids = keras.Input((None,), dtype="int32")
        source = AdaptiveInput(WORDS, CHANNELS, CUTOFFS, factor=2.0, name="source")
        softmax = AdaptiveSoftmax(
            WORDS, CUTOFFS, factor=2.0, adaptive_input=source, name="softmax"
        )
        model = keras.Model(ids, softmax(source(ids)))
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        loaded = again.get_layer("softmax")
        assert loaded.adaptive_input is again.get_layer("source")
        assert again.count_params() == model.count_params()
        x = words()
        expected = to_numpy(softmax.log_prob(model(x), x))
        assert_close(loaded.log_prob(again(x), x), expected)


@pytest.mark.tensorflow
def test_ids_beyond_the_vocabulary_are_refused():
    for wrong in (-1, WORDS):
        with pytest.raises(Exception, match=r"is not in \[0, "):
            input_layer()(np.array([[wrong]]))
