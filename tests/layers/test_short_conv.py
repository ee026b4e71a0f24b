"""Short convolutions as layers: packed sequences, masks of Keras, shorter outputs."""

import keras
import numpy as np
import pytest

from keras_seqconv.layers import GatedShortConv, ShortConv
from tests.backends import to_numpy
from tests.layers.values import assert_close, random, randomized

INPUTS = random(1, 9, 4)


def behind_mask(mask):
    """The inputs with -1 where the mask, which Keras attaches, is False."""
    return keras.layers.Masking(-1.0)(np.where(mask[..., None], INPUTS, -1.0))


@pytest.mark.parametrize("layer_class", [ShortConv, GatedShortConv])
def test_packed_sequences_between_padding_equal_each_alone(layer_class):
    layer = randomized(layer_class(3), (None, None, 4))
    mask = np.array([[0, 0, 1, 1, 1, 1, 1, 1, 0]], bool)
    segments = [[0, 0, 0, 0, 0, 1, 1, 1, 1]]
    outputs = layer(behind_mask(mask), segment_ids=np.array(segments))
    assert_close(layer(INPUTS, mask=mask, segment_ids=segments), to_numpy(outputs))
    for part in (slice(2, 5), slice(5, 8)):
        assert_close(outputs[:, part], to_numpy(layer(INPUTS[:, part])))


@pytest.mark.parametrize(("start", "end"), [(0, 9), (2, 9), (0, 7), (1, 8), (3, 6)])
def test_valid_outputs_are_those_whose_taps_are_real(start, end):
    layer = randomized(ShortConv(3, padding="valid", dilation_rate=2), (None, None, 4))
    positions = np.arange(9)[None]
    outputs = layer(behind_mask((positions >= start) & (positions < end)))
    expected = to_numpy(layer(INPUTS[:, start:end]))[0]
    assert len(expected) == max(0, end - start - 4)
    assert_close(to_numpy(outputs)[to_numpy(outputs._keras_mask)], expected)
    symbol = layer(keras.layers.Masking()(keras.Input((None, 4))))
    assert symbol.shape == symbol._keras_mask.shape + (4,) == (None, None, 4)


def test_a_valid_output_with_a_masked_tap_is_masked():
    layer = randomized(ShortConv(3, padding="valid", dilation_rate=2), (None, None, 4))
    mask = np.array([[1, 1, 0, 1, 1, 1, 1, 1, 1]], bool)
    found = to_numpy(layer(behind_mask(mask))._keras_mask)
    assert found.tolist() == [[False, True, False, True, True]]


def test_a_mask_of_lists_is_that_of_the_outputs():
    rows = [[True] * 6 + [False] * 3]
    for padding, length in (("causal", 9), ("valid", 7)):
        layer = randomized(ShortConv(3, padding=padding), (None, None, 4))
        outputs = layer(INPUTS, mask=rows)
        expected = layer(INPUTS, mask=np.array(rows))
        assert_close(outputs, to_numpy(expected))
        assert outputs._keras_mask.shape == (1, length)


@pytest.mark.parametrize("layer_class", [ShortConv, GatedShortConv])
def test_rematerialized_activations_are_the_same(layer_class):
    layer = randomized(layer_class(3, "silu"), (None, None, 4))
    with keras.RematScope(mode="activations"):
        again = layer_class(3, "silu")
        again.build((None, None, 4))
    again.set_weights(layer.get_weights())
    assert_close(again(INPUTS), to_numpy(layer(INPUTS)))


def test_valid_outputs_of_gates_are_the_last_of_the_causal_ones():
    causal = randomized(GatedShortConv(3), (None, None, 4))
    valid = GatedShortConv(3, padding="valid")
    valid.build((None, None, 4))
    valid.set_weights(causal.get_weights())
    assert_close(valid(INPUTS), to_numpy(causal(INPUTS))[:, 2:])


def test_segments_that_do_not_fit_are_named_also_symbolically():
    segments = np.zeros((1, 8), "int32")
    for inputs, ids in (
        (INPUTS, segments),
        (keras.Input((9, 4)), keras.Input((8,), dtype="int32")),
    ):
        with pytest.raises(ValueError, match="`segment_ids` must have the shape"):
            ShortConv(3)(inputs, segment_ids=ids)
        with pytest.raises(ValueError, match="`segment_ids` needs padding=.causal"):
            ShortConv(3, padding="same")(inputs, segment_ids=ids)
