"""Constructors: wrong arguments are named, and what users of Keras' layers type."""

import keras
import numpy as np
import pytest

from keras_seqconv import layers
from tests.backends import to_numpy

WRONG = [
    ("LightConv", {"num_heads": 0}, "must be a positive integer"),
    ("LightConv", {"num_heads": True}, ""),
    ("DynamicConv", {"kernel_size": 2.0}, ""),
    ("LightConv", {"kernel_size": (3, 4)}, ""),
    ("DynamicConv", {"padding": "valid"}, "must be one of"),
    ("LightConv", {"weight_dropout": 1.0}, "less than 1"),
    ("DynamicConv", {"weight_dropout": -0.1}, ""),
    ("LightConv", {"weight_dropout_mask": "row"}, ""),
    ("DynamicConv", {"query_groups": 0}, ""),
    ("LightConvModule", {"input_dropout": 1}, ""),
    ("LightConvModule", {"conv_dim": 0}, ""),
    ("QueryConvModule", {"gate": "relu"}, ""),
    ("QueryConvModule", {"query_dim": -1}, ""),
    ("QueryConvModule", {"query_groups": 0}, ""),
    ("MultiHeadAttention", {"num_heads": 2.0}, ""),
    ("MultiHeadAttention", {"head_dim": 0}, ""),
    ("MultiHeadAttention", {"output_dim": -1}, ""),
    ("MultiHeadAttention", {"dropout": 1.0}, ""),
    ("FeedForward", {"intermediate_dim": 0}, ""),
    ("FeedForward", {"dropout": 1.0}, ""),
    ("Residual", {"layer": "relu"}, "must be a Keras layer"),
    ("Residual", {"dropout": 1.0}, ""),
    ("Residual", {"epsilon": 0}, "must be positive"),
    ("PositionEncoding", {"kind": "rotary"}, ""),
    ("PositionEncoding", {"layout": "interleaved"}, ""),
    ("PositionEncoding", {"kind": "learned", "max_length": None}, "must be given"),
    ("PositionEncoding", {"max_length": True}, ""),
    ("TokenEmbedding", {"vocabulary_size": 0}, ""),
    ("TokenEmbedding", {"embedding_dim": -1}, ""),
    ("WeightNormDense", {"units": True}, ""),
    ("WeightNormConv1D", {"filters": 2.0}, ""),
    ("WeightNormConv1D", {"kernel_size": 0}, ""),
    ("WeightNormConv1D", {"padding": "valid"}, ""),
    ("ConvS2SBlock", {"filters": 0}, ""),
    ("ConvS2SBlock", {"kernel_size": 0}, ""),
    ("ConvS2SBlock", {"padding": "valid"}, ""),
    ("ConvS2SBlock", {"dropout": -0.1}, ""),
    ("ConvS2SInitializer", {"dropout": "a"}, ""),
    ("ConvS2SInitializer", {"gain": 0}, "must be positive"),
    ("ConvS2SInitializer", {"gain": float("nan")}, "finite"),
    *[("ScaleGradient", {"scale": scale}, "finite number")
      for scale in (float("inf"), float("nan"), True, "1", None)],
    *[("AdaptiveInput", {"pad_id": pad_id}, "") for pad_id in (-1, 11, True, 1.0)],
    *[("AdaptiveInput", {name: 0}, "")
      for name in ("vocabulary_size", "output_dim", "embedding_dim")],
    *[(name, {"cutoffs": cutoffs}, "")
      for name in ("AdaptiveInput", "AdaptiveSoftmax")
      for cutoffs in ((), (5, 5), (7, 3), (0, 3), (1.5, 3), 7, (True, 3), (7, 42))],
    *[("AdaptiveSoftmax", {"factor": factor}, "")
      for factor in (0.5, "4", True, float("nan"))],
    ("AdaptiveSoftmax", {"dropout": 1.0}, ""),
    ("AdaptiveSoftmax", {"tie_projections": 1}, ""),
]  # fmt: skip
NEEDED = {
    "LightConv": {"num_heads": 2, "kernel_size": 3},
    "DynamicConv": {"num_heads": 2, "kernel_size": 3},
    "LightConvModule": {"num_heads": 2, "kernel_size": 3},
    "QueryConvModule": {"num_heads": 2, "kernel_size": 3},
    "MultiHeadAttention": {"num_heads": 2},
    "FeedForward": {"intermediate_dim": 2},
    "Residual": {"layer": keras.layers.Identity()},
    "TokenEmbedding": {"vocabulary_size": 11, "embedding_dim": 5},
    "WeightNormDense": {"units": 5},
    "WeightNormConv1D": {"filters": 5, "kernel_size": 3},
    "ConvS2SBlock": {"filters": 5, "kernel_size": 3},
    "AdaptiveInput": {"vocabulary_size": 11, "output_dim": 8, "cutoffs": (4, 8)},
    "AdaptiveSoftmax": {"vocabulary_size": 11, "cutoffs": (4, 8)},
}


@pytest.mark.parametrize(("layer", "arguments", "rule"), WRONG)
def test_wrong_arguments_are_named(layer, arguments, rule):
    *_, (name, value) = arguments.items()
    with pytest.raises(ValueError, match=f"(?s)`{name}`.*{rule}.*Received: ") as error:
        getattr(layers, layer)(**{**NEEDED.get(layer, {}), **arguments})
    assert f"{name}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    "layer", ["LightConv", "DynamicConv", "DynamicConvModule", "ConvS2SBlock",
              "WeightNormConv1D"]
)  # fmt: skip
def test_what_users_of_keras_type(layer):
    """Taken, or an error that says what to do."""
    make = getattr(layers, layer)
    assert make(2, (3,)).get_config()["kernel_size"] == 3
    for name in ("kernel_regularizer", "bias_constraint"):
        with pytest.raises(ValueError, match=f"`{name}` is set on a weight.*'l2'"):
            make(2, 3, **{name: "l2"})
    light = layers.LightConv(2, 3)
    light.build((None, None, 4))
    light.weights[0].regularizer = keras.regularizers.L2(1.0)
    (loss,) = light.losses
    np.testing.assert_allclose(loss, np.sum(to_numpy(light.kernel) ** 2), rtol=1e-5)
