"""What users of Keras' own layers type: taken, or an error that says what to do."""

import keras
import numpy as np
import pytest

from keras_seqconv.layers import (
    ConvS2SAttention,
    ConvS2SBlock,
    DynamicConv,
    DynamicConvModule,
    LightConv,
    MultiHeadAttention,
    PositionEncoding,
    WeightNormConv1D,
)
from tests.backends import to_numpy

INPUTS = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
CONVOLUTIONS = [LightConv, DynamicConv, DynamicConvModule, ConvS2SBlock]


@pytest.mark.parametrize("layer", [*CONVOLUTIONS, WeightNormConv1D])
def test_convolutions(layer):
    made = layer(2, (3,))
    assert made.get_config()["kernel_size"] == 3
    for name in ("kernel_regularizer", "bias_constraint"):
        with pytest.raises(ValueError, match=f"`{name}` is set on a weight.*'l2'"):
            layer(2, 3, **{name: "l2"})
    with pytest.raises(ValueError, match=r"`kernel_size`.*\(3, 4\)"):
        layer(2, (3, 4))


def test_a_regularizer_is_set_on_the_weight():
    layer = LightConv(2, 3)
    layer.build((None, None, 4))
    layer.weights[0].regularizer = keras.regularizers.L2(1.0)
    (loss,) = layer.losses
    np.testing.assert_allclose(loss, np.sum(to_numpy(layer.kernel) ** 2), rtol=1e-5)


def test_attention():
    with pytest.raises(ValueError, match="`key_dim` is called `head_dim`.*key_dim=4"):
        MultiHeadAttention(2, key_dim=4)
    layer, causal = MultiHeadAttention(2), MultiHeadAttention(2, use_causal_mask=True)
    outputs = layer(INPUTS, INPUTS, use_causal_mask=True)
    causal.build(INPUTS.shape)
    causal.set_weights(layer.get_weights())
    np.testing.assert_allclose(to_numpy(outputs), to_numpy(causal(INPUTS)), rtol=1e-5)
    with pytest.raises(ValueError, match="`attention_weights`"):
        layer(INPUTS, return_attention_scores=True)


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (2,), (2, 5, 3)])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("mask", lambda mask: LightConv(2, 3)(INPUTS, mask=mask)),
        ("mask", lambda mask: ConvS2SBlock(4, 3)(INPUTS, mask=mask)),
        ("mask", lambda mask: MultiHeadAttention(2)(INPUTS, mask=mask)),
        (
            "value_mask",
            lambda mask: MultiHeadAttention(2)(INPUTS, INPUTS, value_mask=mask),
        ),
        (
            "attention_mask",
            lambda mask: MultiHeadAttention(2)(INPUTS, attention_mask=mask),
        ),
        (
            "keys_mask",
            lambda mask: ConvS2SAttention()(*[INPUTS] * 4, keys_mask=mask),
        ),
    ],
)
def test_masks_of_wrong_shapes(name, call, shape):
    with pytest.raises(ValueError, match=f"`{name}` must have (the )?shape") as error:
        call(np.ones(shape, bool))
    assert f"{name}.shape={shape}" in str(error.value)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "call",
    [
        *[lambda x, layer=layer: layer(2, 3)(x) for layer in CONVOLUTIONS],
        lambda x: MultiHeadAttention(2)(x),
        lambda x: PositionEncoding()(x),
    ],
)
def test_ragged_tensors(call):
    import tensorflow as tf

    ragged = tf.ragged.constant([[[1.0] * 4] * 3, [[1.0] * 4]], ragged_rank=1)
    with pytest.raises(ValueError, match=r"`inputs` must be a dense.*RaggedTensor"):
        call(ragged)
