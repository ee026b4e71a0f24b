"""Constructors: wrong arguments are named; first weights; what users of Keras type."""

import json

import keras
import numpy as np
import pytest

from keras_seqconv import layers
from tests.backends import to_numpy
from tests.layers.table import of

# Values that an argument refuses, by layer: a value for each rule, and for each layer
# that has an argument of its own. First what the layer needs.
WRONG = {
    "LightConv": ({"num_heads": 2, "kernel_size": 3}, {
        "num_heads": [0, True], "kernel_size": [(3, 4), 2.0], "weight_dropout": [1.0],
        "weight_dropout_mask": ["row"], "kernel_softmax": ["false"],
        "padding": ["valid"], "seed": ["x"],
    }),
    "DynamicConv": ({"num_heads": 2, "kernel_size": 3}, {"query_groups": [0]}),
    "QueryConvModule": ({"num_heads": 2, "kernel_size": 3}, {
        "gate": ["relu"], "query_dim": [-1], "input_dropout": [1], "seed": ["x"],
    }),
    "MultiHeadAttention": ({"num_heads": 2}, {"head_dim": [0], "dropout": [1.0]}),
    "Residual": ({"layer": keras.layers.Identity()}, {
        "layer": ["relu"], "epsilon": [0, None],
    }),
    "PositionEncoding": ({}, {"kind": ["rotary"], "layout": ["interleaved"]}),
    "ConvS2SInitializer": ({}, {"gain": [0, float("nan")]}),
    "FeedForward": ({"intermediate_dim": 4}, {"canon": ["valid", True, ""]}),
    "ScaleGradient": ({}, {"scale": [float("inf"), True, "1", None]}),
    "AdaptiveInput": (
        {"vocabulary_size": 11, "output_dim": 8, "cutoffs": (4, 8)},
        {"pad_id": [-1, 11, True],
         "cutoffs": [(), (5, 5), (0, 3), (1.5, 3), 7, (7, 42)]},
    ),
    "AdaptiveSoftmax": (
        {"vocabulary_size": 11, "cutoffs": (4, 8)}, {"factor": [0.5, "4", True]},
    ),
}  # fmt: skip
RULES = {
    "num_heads": "a positive integer", "padding": "one of", "layer": "a Keras layer",
    "weight_dropout": ">= 0 and < 1", "scale": "a finite number",
    "epsilon": "> 0", "gain": "> 0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (layer, name, value)
        for layer, (_, arguments) in WRONG.items()
        for name, values in arguments.items()
        for value in values
    ],
)
def test_wrong_arguments_are_named(layer, name, value):
    rule = f"must (be|not exceed) .*({RULES.get(name, '')}).*Received: "
    with pytest.raises(ValueError, match=f"(?s)`{name}` {rule}") as error:
        getattr(layers, layer)(**{**WRONG[layer][0], name: value})
    assert f"{name}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    ("make", "kernels"),
    [
        (of("LightConv", 2, 3), 1), (of("DynamicConv", 2, 3), 1),
        (of("FeedForward", 3), 2), (of("MultiHeadAttention", 2), 4),
        (of("WeightNormDense", 3), 1), (of("WeightNormConv1D", 3, 2), 1),
        (of("LightConvModule", 2, 3), 3), (of("DynamicConvModule", 2, 3), 3),
        (of("QueryConvModule", 2, 3), 4), (of("ConvS2SBlock", 6, 3), 2),
    ],
)  # fmt: skip
def test_regularizers_and_constraints_are_saved(make, kernels):
    options = {"kernel_regularizer": "l2", "kernel_constraint": "non_neg"}
    layer = make(**options)
    layer = type(layer).from_config(layer.get_config())
    layer.build((None, None, 4))
    assert_regularized(layer, kernels)


def test_regularizers_of_attention_of_conv_s2s():
    layer = layers.ConvS2SAttention(
        kernel_regularizer="l2", kernel_constraint="non_neg"
    )
    layer.build(*((None, None, width) for width in (4, 3, 3, 5)))
    assert_regularized(layer, 2)


def test_numbers_of_numpy_count_as_pythons():
    three, rate = np.int64(3), np.float32(0.5)
    for layer in (
        layers.FeedForward(three, dropout=rate, use_bias=np.True_, seed=three),
        layers.LightConvModule(three, (three,), input_dropout=rate, seed=three),
        layers.AdaptiveInput(three * 4, three, np.array([three, 8]), factor=1),
        layers.AdaptiveSoftmax(three * 4, [three, np.int32(8)], factor=1),
    ):
        config = layer.get_config()
        again = type(layer).from_config(json.loads(json.dumps(config)))
        assert again.get_config() == config


def assert_regularized(layer, kernels):
    found = [w for w in layer.trainable_weights if w.constraint is not None]
    assert len(found) == kernels
    expected = [0.01 * np.sum(to_numpy(weight) ** 2) for weight in found]
    got = [float(loss) for loss in layer.losses]
    np.testing.assert_allclose(sorted(got), sorted(expected), rtol=1e-5)


# Layer, shapes it is built for, and the limit of the uniform distribution of weights.
UNIFORM = [
    (of("LightConv", 4, 31), [512], {"kernel": (6 / (31 + 4 * 31)) ** 0.5}),
    (of("DynamicConv", 4, 31), [512], {"kernel_generator.kernel": 512**-0.5}),
    # Glorot on the flat matrix (fan in, H * D), gain 1/sqrt(2) but for the output
    (of("MultiHeadAttention", 8, head_dim=16, output_dim=96), [128, 64], {
        "query_kernel": (0.5 * 6 / (128 + 128)) ** 0.5,
        "key_kernel": (0.5 * 6 / (64 + 128)) ** 0.5,
        "value_kernel": (0.5 * 6 / (64 + 128)) ** 0.5,
        "output_kernel": (6 / (128 + 96)) ** 0.5,
    }),
    # as fairseq of 2019 had it: one matrix (3d, d)
    (of("MultiHeadAttention", 4), [512], {"query_kernel": (6 / (4 * 512)) ** 0.5}),
    (of("FeedForward", 96), [64], {
        "intermediate_dense.kernel": (6 / 160) ** 0.5,
        "output_dense.kernel": (6 / 160) ** 0.5,
    }),
    # Both halves of a gau are linear maps of their own.
    (of("QueryConvModule", 4, 31, conv_dim=512, query_dim=256, gate="gau"), [512], {
        "input_projection.kernel": (6 / (512 + 512)) ** 0.5,
        "query_projection.kernel": (6 / (512 + 256)) ** 0.5,
    }),
    (of("AdaptiveSoftmax", 1000, [100, 300]), [64], {
        "head": (6 / (102 + 64)) ** 0.5, "tails.1": (6 / (700 + 4)) ** 0.5,
        "tail_projections.0": (6 / (64 + 16)) ** 0.5,
    }),
    (of("AdaptiveInput", 3000, 64, (1000, 2000)), [64], {
        "projections.1": (6 / (16 + 64)) ** 0.5,
    }),
]  # fmt: skip
# The same with the standard deviation of a normal distribution.
NORMAL = [
    (of("TokenEmbedding", 4000, 64), [64], {"embeddings": 64**-0.5}),
    (of("PositionEncoding", "learned", max_length=200), [64], {"embeddings": 64**-0.5}),
    (of("AdaptiveInput", 3000, 64, (1000, 2000), factor=2.0), [64], {
        "embeddings.0": 64**-0.5, "embeddings.2": 16**-0.5,
    }),
    (of("ConvS2SBlock", 200, 3, dropout=0.2), [100], {
        "convolution.v": (4 * 0.8 / 300) ** 0.5,
    }),
]  # fmt: skip


def first_weights(make, widths, expected):
    """The weights of a new layer, as arrays, with what is expected of them."""
    keras.utils.set_random_seed(0)
    layer = make()
    layer.build(*((None, None, width) for width in widths))
    for weight in layer.trainable_weights:
        if weight.name.endswith("bias"):
            assert not np.any(to_numpy(weight))
    for path, value in expected.items():
        weight = layer
        for name in path.split("."):
            weight = weight[int(name)] if name.isdigit() else getattr(weight, name)
        yield to_numpy(weight), value


@pytest.mark.parametrize(("make", "widths", "limits"), UNIFORM)
def test_first_weights_are_uniform(make, widths, limits):
    for values, limit in first_weights(make, widths, limits):
        assert 0.93 * limit < np.abs(values).max() <= limit
        assert np.isclose(values.std(), limit / np.sqrt(3), rtol=0.15)


@pytest.mark.parametrize(("make", "widths", "deviations"), NORMAL)
def test_first_weights_are_normal(make, widths, deviations):
    for values, deviation in first_weights(make, widths, deviations):
        assert np.isclose(values.std(), deviation, rtol=0.05)
        assert abs(values.mean()) < 0.1 * deviation
        assert np.abs(values).max() > 2.5 * deviation
