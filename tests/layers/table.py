"""One row for every layer, and for options that change the way through its code."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

from keras_seqconv import layers
from tests.layers.values import lengths_mask, random

B, T, S, C = 2, 7, 5, 6
INPUTS, VALUE = random(B, T, C), random(B, S, 4, seed=1)
IDS = np.array([[3, 0, 10, 3, 1, 9, 7], [9, 1, 1, 8, 2, 2, 5]], "int32")
MASKS = {
    "mask": lengths_mask([4, 7], T),
    "value_mask": lengths_mask([5, 2], S),
    "keys_mask": lengths_mask([5, 2], S),
}
HIDDEN = {
    "mask": ["inputs", "query", "skip", "target_embeddings"],
    "value_mask": ["value", "key"], "keys_mask": ["keys", "values"],
}  # fmt: skip


@dataclasses.dataclass
class Row:
    """One layer: how it is made (from a dtype policy), called and what it returns."""

    make: Callable
    weights: int
    channels: int = C
    further: dict = dataclasses.field(default_factory=dict)  # arguments by name
    inputs: np.ndarray = dataclasses.field(default_factory=lambda: INPUTS)
    masks: tuple = ("mask",)
    steps: bool = False
    seeds: int = 0

    def arguments(self):
        return {"inputs": self.inputs, **self.further}


def of(name, *arguments, **options):
    """How the layer of that name is made."""
    return lambda **dtype: getattr(layers, name)(*arguments, **options, **dtype)


def residual(*arguments, mixer="MultiHeadAttention", **options):
    inner = of(mixer, *arguments)
    if options.pop("causal", False):
        canon = options.get("canon")
        inner = of(mixer, *arguments, use_causal_mask=True, canon=canon)
    return lambda **dtype: layers.Residual(inner(**dtype), **options, **dtype)


HALF = {"weight_dropout": 0.5, "seed": 1}
CAUSAL = {"padding": "causal"}
STEPS = {"steps": True}
SOURCE = {"target_embeddings": random(B, T, 4, seed=2), "keys": VALUE,
          "values": random(B, S, 3, seed=3)}  # fmt: skip
ADAPTIVE = {"cutoffs": (4, 8), "factor": 2.0}

ROWS = {
    "glu": Row(of("GLU"), 0, 3),
    "light": Row(of("LightConv", 3, 4, use_bias=True), 2),
    "light causal": Row(
        of("LightConv", 2, 9, use_bias=True, **CAUSAL), 2, **STEPS
    ),
    "light, dropped by position": Row(
        of("LightConv", 3, 4, weight_dropout_mask="position", **HALF),
        1, seeds=1,
    ),
    "depthwise": Row(
        of("LightConv", 6, 3, kernel_softmax=False, **HALF), 1, seeds=1
    ),
    "dynamic": Row(
        of("DynamicConv", 3, 4, use_bias=True, **HALF), 2, seeds=1
    ),
    "dynamic causal": Row(
        of("DynamicConv", 3, 4, use_bias=True, **CAUSAL), 2, **STEPS
    ),
    "dynamic, long": Row(of("DynamicConv", 2, 70, **CAUSAL), 1, **STEPS),
    "dynamic, one tap": Row(of("DynamicConv", 2, 1, kernel_softmax=False, **CAUSAL), 1,
                            **STEPS),
    "dynamic, dropped alike": Row(
        of("DynamicConv", 3, 4, weight_dropout_mask="shared", **HALF), 1, seeds=1
    ),
    "dynamic, bias of kernels": Row(of("DynamicConv", 3, 4, use_kernel_bias=True), 2),
    "query": Row(
        of("DynamicConv", 6, 3, query_groups=2),
        1, further={"query": random(B, T, 4, seed=1)},
    ),
    "query groups": Row(
        of("DynamicConv", 6, 3, query_groups=3, **CAUSAL), 1, **STEPS
    ),
    "light, dilated": Row(
        of("LightConv", 3, 3, use_bias=True, dilation_rate=2, **CAUSAL), 2, **STEPS
    ),
    "dynamic, dilated": Row(
        of("DynamicConv", 2, 3, dilation_rate=2, **CAUSAL), 1, **STEPS
    ),
    "short": Row(of("ShortConv", 4), 2, **STEPS),
    "short, dilated": Row(
        of("ShortConv", 3, None, dilation_rate=2, residual=True), 2, **STEPS
    ),
    "short, gated": Row(of("GatedShortConv", use_bias=True), 6, **STEPS),
    "light module": Row(
        of("LightConvModule", 2, 3, conv_dim=4, input_dropout=0.5, **HALF),
        5, seeds=2,
    ),
    "light module causal": Row(
        of("LightConvModule", 2, 4, **CAUSAL), 5, **STEPS
    ),
    "dynamic module": Row(
        of("DynamicConvModule", 2, 4, use_glu=False, **CAUSAL), 5, **STEPS
    ),
    "dynamic module, no biases": Row(
        of("DynamicConvModule", 2, 4, use_bias=False, **CAUSAL), 3, **STEPS
    ),
    "query module": Row(
        of("QueryConvModule", 2, 3, conv_dim=8, query_dim=4, gate="gau", query_groups=2,
           permute_channels=True, **CAUSAL),
        7, **STEPS,
    ),
    "query module, compatible": Row(
        of("QueryConvModule", 1, 3, gate="glu", query_groups=2, compat=True,
           input_dropout=0.5, **HALF),
        7, seeds=2,
    ),
    "dense": Row(of("WeightNormDense", 5), 3, 5),
    "dense, folded": Row(of("WeightNormDense", 5, use_bias=False, folded=True), 1, 5),
    "convolution": Row(of("WeightNormConv1D", 5, 4), 3, 5),
    "convolution causal": Row(
        of("WeightNormConv1D", 5, 4, **CAUSAL), 3, 5, **STEPS
    ),
    "convolution, folded": Row(
        of("WeightNormConv1D", 5, 1, folded=True, use_bias=False, **CAUSAL),
        1, 5, **STEPS,
    ),
    "block": Row(of("ConvS2SBlock", C, 3, dropout=0.5, seed=7), 3, seeds=1),
    "block causal": Row(of("ConvS2SBlock", 5, 4, **CAUSAL), 6, 5, **STEPS),
    "block alone": Row(
        of("ConvS2SBlock", 5, 2, residual=False, folded=True, **CAUSAL),
        2, 5, **STEPS,
    ),
    "scaled residual": Row(of("ScaledResidual"), 0, further={"skip": INPUTS + 1}),
    "scaled residual, projected": Row(
        of("ScaledResidual"), 3, further={"skip": random(B, T, 3)}
    ),
    "scale gradient": Row(of("ScaleGradient", 0.25), 0),
    "ConvS2S attention": Row(
        of("ConvS2SAttention"), 6, further=SOURCE, masks=("mask", "keys_mask")
    ),
    "attention": Row(
        of("MultiHeadAttention", 2, dropout=0.5, seed=1), 8, seeds=1
    ),
    "attention causal": Row(
        of("MultiHeadAttention", 2, use_causal_mask=True), 8, **STEPS
    ),
    "attention, canon": Row(of("MultiHeadAttention", 2, canon="same"), 9),
    "attention causal, canon": Row(
        of("MultiHeadAttention", 2, use_causal_mask=True, canon="causal"), 9, **STEPS
    ),
    "attention to a source": Row(
        of("MultiHeadAttention", 2, head_dim=4, output_dim=5),
        8, 5, further={"value": VALUE}, masks=("mask", "value_mask"),
    ),
    "attention, no biases": Row(
        of("MultiHeadAttention", 3, use_bias=False),
        4, further={"value": VALUE, "key": random(B, S, 3)},
        masks=("mask", "value_mask"),
    ),
    "feed forward": Row(
        of("FeedForward", 9, activation="gelu", dropout=0.5, seed=1),
        4, seeds=1, **STEPS,
    ),
    "feed forward, canon": Row(of("FeedForward", 9, canon="causal"), 5, **STEPS),
    "feed forward, no biases": Row(of("FeedForward", 9, use_bias=False), 2, **STEPS),
    "residual": Row(
        residual(2, causal=True, dropout=0.5, seed=1), 10, seeds=1, **STEPS
    ),
    "residual, norm first": Row(
        residual(2, causal=True, dropout=0.5, seed=1, normalize_first=True),
        10, seeds=1, **STEPS,
    ),
    "residual, canon": Row(
        residual(2, causal=True, normalize_first=True, canon="causal"), 12, **STEPS
    ),
    "residual to a source": Row(
        residual(2, normalize_first=True),
        10, further={"value": VALUE}, masks=("mask", "value_mask"),
    ),
    "residual, feed forward": Row(residual(9, mixer="FeedForward"), 6, **STEPS),
    "positions": Row(of("PositionEncoding"), 0, **STEPS),
    "positions of the paper": Row(
        of("PositionEncoding", layout="paper"), 0, **STEPS
    ),
    "positions learned": Row(
        of("PositionEncoding", "learned", max_length=9), 1, **STEPS
    ),
    "tokens": Row(of("TokenEmbedding", 11, 5), 1, 5, inputs=IDS, masks=()),
    "adaptive input": Row(
        of("AdaptiveInput", 11, C, pad_id=1, **ADAPTIVE), 6, inputs=IDS, masks=()
    ),
    "adaptive softmax": Row(
        of("AdaptiveSoftmax", 11, dropout=0.5, seed=1, **ADAPTIVE), 5, seeds=1
    ),
}  # fmt: skip
# Rows that repeat the code of others see fewer tests.
ALIKE = [
    "light", "light, dropped by position", "dynamic causal", "dynamic, one tap",
    "dynamic, dropped alike", "depthwise", "query groups", "light module",
    "dynamic module, no biases",
    "query module, compatible", "dense, folded", "convolution", "convolution, folded",
    "block alone", "feed forward, no biases", "scaled residual",
    "attention to a source", "residual, norm first", "residual, feed forward",
    "positions of the paper",
]  # fmt: skip
DIFFERENT = [name for name in ROWS if name not in ALIKE]
# What is compiled, and saved, takes a row for each way of computing.
COMPILED = [
    "light causal", "dynamic", "dynamic, long", "query module", "short, dilated",
    "convolution causal", "block causal", "scaled residual, projected",
    "ConvS2S attention", "attention causal", "feed forward, canon",
    "residual to a source", "positions learned", "adaptive input",
]  # fmt: skip
MASKABLE = [(name, mask) for name in DIFFERENT for mask in ROWS[name].masks]
STEPPING = [name for name in ROWS if ROWS[name].steps]


def built(name, **dtype):
    """The layer of a row, called once, so with weights."""
    row = ROWS[name]
    layer = row.make(**dtype)
    layer(**row.arguments())
    return layer


def symbols(arguments):
    """Keras inputs of unknown batch and time."""
    return {
        name: keras.Input(
            (None, array.shape[-1]) if array.ndim == 3 else (None,),
            dtype=array.dtype.name,
        )
        for name, array in arguments.items()
    }


def functional(row, layer):
    """A model of the layer, and what it is called with."""
    arguments = symbols(row.arguments())
    model = keras.Model(list(arguments.values()), layer(**arguments))
    return model, list(row.arguments().values())


def with_junk(row, mask_name):
    """The arguments of a row and a mask, with NaN and infinity where it hides them."""
    mask, arguments = MASKS[mask_name], row.arguments()
    for name in HIDDEN[mask_name]:
        if name in arguments:
            array = arguments[name]
            junk = np.resize(np.float32([np.nan, np.inf, -np.inf]), array.shape)
            arguments[name] = np.where(mask[..., None], array, junk)
    return arguments | {mask_name: mask}
