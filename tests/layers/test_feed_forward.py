"""The position-wise network and the residual wrapper against their formulas."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import FeedForward, MultiHeadAttention, Residual
from tests.backends import modes, to_numpy
from tests.layers import formulas
from tests.layers.values import assert_close, lengths_mask, random, randomized

BATCH, TARGET, SOURCE, CHANNELS, HEADS = 2, 5, 6, 8, 2


class TestFeedForward:
    def test_dropout_after_the_activation(self):
        """Dropped hidden units of value 2 come out as 0 or 4; the biases never drop."""
        layer = FeedForward(1, activation="sigmoid", dropout=0.5, seed=1)
        layer.build((None, None, 1))
        layer.set_weights([np.zeros((1, 1)), np.zeros(1), np.ones((1, 1)), np.ones(1)])
        zeros = np.zeros((1, 200, 1), "float32")
        np.testing.assert_allclose(to_numpy(layer(zeros)), 1.5)
        values, counts = np.unique(
            to_numpy(layer(zeros, training=True)), return_counts=1
        )
        np.testing.assert_allclose(values, [1.0, 2.0])
        assert min(counts) > 60
        assert not hasattr(FeedForward(1), "seed_generator")

    def test_an_initializer_may_be_a_function(self):
        layer = FeedForward(3, kernel_initializer=lambda shape, dtype: ops.ones(shape))
        layer.build((None, None, 2))
        assert_close(layer(np.ones((1, 1, 2), "float32")), [[[6.0, 6.0]]])


class Halved(keras.layers.Layer):
    """Takes nothing but its inputs."""

    def call(self, inputs):
        return inputs / 2


class Noted(keras.layers.Layer):
    """Writes down what it was called with."""

    def __init__(self, seen):
        super().__init__()
        self.supports_masking = True
        self.note = seen.update

    def call(self, inputs, mask=None, training=None):
        self.note(mask=mask, training=training)
        return inputs

    def compute_output_shape(self, inputs_shape):
        return inputs_shape


class TestResidual:
    def test_arguments_go_where_they_are_accepted(self):
        inputs = random(BATCH, TARGET, CHANNELS)
        mask = lengths_mask([3, 5], TARGET)
        further = dict(value_mask=lengths_mask([4, 6], SOURCE), mask=mask)
        layer = Residual(Halved())
        plain = to_numpy(layer(inputs))
        expected = formulas.normalized(1.5 * inputs, layer.layer_norm)
        assert_close(plain, expected)
        masked = to_numpy(layer(inputs, **further))
        real = to_numpy(mask)
        np.testing.assert_array_equal(masked[real], plain[real])
        seen = {}
        layer = Residual(Noted(seen))
        layer(inputs, training=True, **further)
        np.testing.assert_array_equal(to_numpy(seen["mask"]), mask)
        assert seen["training"] is True
        layer(inputs)
        assert seen["mask"] is None and not seen["training"]

    def test_wraps_layers_of_keras(self, tmp_path):
        inputs, value = random(BATCH, TARGET, CHANNELS), random(BATCH, SOURCE, 7)
        attention = keras.layers.MultiHeadAttention(HEADS, 4)
        symbols = [keras.Input((None, CHANNELS)), keras.Input((None, 7))]
        x = Residual(attention)(symbols[0], value=symbols[1])
        dense = keras.layers.Dense(CHANNELS, activation="tanh")
        outputs = Residual(keras.Sequential([dense]))(x)
        model = keras.Model(symbols, outputs)
        got = model.predict([inputs, value], verbose=0)
        norm = keras.layers.LayerNormalization()
        norm.build(inputs.shape)  # gamma 1, beta 0
        first = formulas.normalized(inputs + to_numpy(attention(inputs, value)), norm)
        second = formulas.normalized(first + to_numpy(dense(first)), norm)
        assert_close(got, second)
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert_close(again.predict([inputs, value], verbose=0), got)

    @pytest.mark.parametrize("normalize_first", [False, True])
    def test_attend_equals_call(self, normalize_first):
        inner = MultiHeadAttention(HEADS)
        layer = Residual(inner, normalize_first=normalize_first)
        value, mask = random(BATCH, SOURCE, 7), lengths_mask([4, 6], SOURCE)
        layer = randomized(layer, (None, None, CHANNELS), value.shape)
        inputs = random(BATCH * 3, 2, CHANNELS, seed=1)
        expected = layer(
            inputs, value=np.repeat(value, 3, 0), value_mask=np.repeat(mask, 3, 0)
        )
        memory = inner.project_memory(value, mask=mask)
        for name, function in modes(layer.attend).items():
            got = to_numpy(function(ops.convert_to_tensor(inputs), memory))
            assert_close(got, to_numpy(expected), err_msg=name)
        x = formulas.normalized(inputs, layer.layer_norm) if normalize_first else inputs
        expected = inner.memory_weights(x.astype("float32"), memory)
        got = layer.memory_weights(inputs, memory)
        assert_close(got, to_numpy(expected))

    @pytest.mark.parametrize("normalize_first", [False, True])
    def test_dropout_on_the_sub_layer_only(self, normalize_first):
        """In training, where each call drops others; how: tests/ops/test_fused.py."""
        inputs = random(2, 25, CHANNELS)
        zeros = keras.layers.Dense(CHANNELS, kernel_initializer="zeros")
        for inner, drops in ((zeros, False), (keras.layers.Identity(), True)):
            layer = Residual(inner, 0.5, normalize_first=normalize_first, seed=1)
            still = to_numpy(layer(inputs))
            first, second = (to_numpy(layer(inputs, training=True)) for _ in range(2))
            for other in (still, second):
                assert (np.abs(first - other).max() > 1e-3) == drops

    def test_training_reaches_dropout_inside(self):
        inputs = random(1, 50, CHANNELS)
        layer = Residual(FeedForward(12, dropout=0.5, seed=1))
        still = to_numpy(layer(inputs))
        np.testing.assert_array_equal(to_numpy(layer(inputs, training=False)), still)
        moved = to_numpy(layer(inputs, training=True))
        assert np.abs(moved - still).max() > 0.1
        # past `__call__`, where Keras does not hand `training` on by itself
        weights = layer.trainable_variables, layer.non_trainable_variables
        moved, _ = layer.stateless_call(*weights, inputs, training=True)
        assert np.abs(to_numpy(moved) - still).max() > 0.1

    def test_no_steps_around_a_layer_without(self):
        with pytest.raises(ValueError, match="`layer` must have .*Received: Dense"):
            Residual(keras.layers.Dense(CHANNELS)).get_initial_state(1)

    def test_no_cross_attention_behind_a_canon_layer(self):
        inputs = random(1, 3, CHANNELS)
        layer = Residual(MultiHeadAttention(2), canon="same")
        layer = randomized(layer, inputs.shape)
        memory = layer.layer.project_memory(inputs)
        for call in (layer.attend, layer.memory_weights):
            with pytest.raises(ValueError, match="`canon` must be None.*canon='same'"):
                call(inputs, memory)
