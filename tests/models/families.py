"""Small models of every family, built once per configuration and shared.

No test changes their weights. Shapes are tiny, for every check compiles anew.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import DynamicConv, LightConv
from keras_seqconv.models import (
    ConvLanguageModel,
    ConvS2S,
    EncoderDecoder,
    LanguageModel,
)
from tests.backends import cheaply, to_numpy
from tests.cases import quick_and_slow

VOCABULARY, PAD = 23, 1
TOLERANCE = dict(rtol=1e-4, atol=1e-4)
# Sentences of 5, 2 and 4 tokens; targets of 4, 3 and 2. The middle target has a bos.
SOURCES = np.array([[5, 6, 7, 22, 2], [8, 2, 1, 1, 1], [9, 4, 5, 2, 1]], "int32")
TARGETS = np.array([[2, 5, 6, 7], [2, 21, 0, 1], [2, 9, 1, 1]], "int32")
LENGTHS = np.array([4, 3, 2])


@keras.saving.register_keras_serializable("tests")
class Previous(keras.layers.Layer):
    """A mixer of a user's: a map of the input `reach` positions before."""

    def __init__(self, hidden_dim, padding, reach=1, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim, self.padding, self.reach = hidden_dim, padding, reach
        self.dense = keras.layers.Dense(hidden_dim, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape):
        self.dense.build(inputs_shape)

    def call(self, inputs, mask=None):
        if mask is not None:
            inputs = ops.where(mask[..., None], inputs, 0.0)
        shifted = ops.pad(inputs, [(0, 0), (self.reach, 0), (0, 0)])
        return self.dense(shifted[:, : -self.reach])

    def get_initial_state(self, batch_size, max_length=None):
        shape = (batch_size, self.reach, self.hidden_dim)
        return {"last": ops.zeros(shape, self.compute_dtype)}

    def step(self, inputs, state):
        inputs = ops.concatenate([state["last"], inputs], axis=1)
        return self.dense(inputs[:, : -self.reach]), {"last": inputs[:, -self.reach :]}

    def get_config(self):
        return {
            **super().get_config(), "hidden_dim": self.hidden_dim,
            "padding": self.padding, "reach": self.reach,
        }  # fmt: skip


@keras.saving.register_keras_serializable("tests")
def narrow_conv(num_heads, padding, dtype, seed=None):
    return LightConv(num_heads, 2, padding, seed=seed, dtype=dtype)


def encoder_decoder(vocabularies=(VOCABULARY, VOCABULARY), **options):
    small = dict(
        hidden_dim=8, intermediate_dim=12, num_heads=2, num_encoder_layers=2,
        num_decoder_layers=2, kernel_sizes=[3, 4],
    )  # fmt: skip
    return EncoderDecoder(*vocabularies, **{**small, **options})


def language_model(size=VOCABULARY, **options):
    small = dict(
        hidden_dim=8, intermediate_dim=12, num_heads=2, num_layers=2,
        kernel_sizes=[3, 4],
    )  # fmt: skip
    return LanguageModel(size, **{**small, **options})


def conv_s2s(vocabularies=(VOCABULARY, VOCABULARY), **options):
    small = dict(embedding_dim=8, convolutions="[(6, 3)] * 2", output_dim=5)
    return ConvS2S(*vocabularies, **{**small, **options})


def conv_language_model(size=VOCABULARY, **options):
    small = dict(embedding_dim=8, convolutions="[(6, 3)] + [(6, 2, 2)]")
    return ConvLanguageModel(size, **{**small, **options})


# One block a side, where more show nothing else.
ONE = dict(num_encoder_layers=1, num_decoder_layers=1, kernel_sizes=3)
LEARNED = {"kind": "learned", "max_length": 9}
QUERY = {
    "kind": "query_conv", "gate": "gau", "query_dim": 6, "query_groups": 2,
    "compat": True, "permute_channels": True,
}  # fmt: skip
ADAPTIVE = {"cutoffs": [6, 12], "factor": 2.0}
TIED = dict(
    adaptive_softmax=ADAPTIVE, adaptive_input=ADAPTIVE, tie_adaptive_weights=True
)

CONFIGS = {
    "dynamic_conv": (encoder_decoder, ONE),
    "light_conv": (encoder_decoder, dict(
        mixer={"kind": "light_conv", "use_glu": False, "num_heads": 3, "conv_dim": 6},
        share_embeddings="all", positions=LEARNED, normalize_first=True,
    )),
    "transformer": (encoder_decoder, dict(
        mixer="attention", share_embeddings="decoder", normalize_first=True,
        final_norm=False, activation="gelu", positions=LEARNED, canon="b", **ONE,
    )),
    "mixed": (encoder_decoder, dict(
        mixer={"encoder": [{"kind": "light_conv", "kernel_softmax": False},
                           "attention"],
               "decoder": ["attention", {"kind": "query_conv", "gate": "glu"}]},
        vocabularies=(29, VOCABULARY), kernel_sizes={"encoder": 5, "decoder": [1, 3]},
    )),
    "query_conv": (encoder_decoder, dict(
        mixer=QUERY, embedding_dim=10, share_embeddings="decoder", positions=None,
        **ONE,
    )),
    "short_conv": (encoder_decoder, dict(
        mixer={"encoder": "short_conv", "decoder": ["attention", "short_conv"]},
        canon={"encoder": "acd", "decoder": "abcd"}, num_encoder_layers=1,
        kernel_sizes=3, normalize_first=True,
    )),
    "own": (encoder_decoder, dict(
        mixer={"encoder": [narrow_conv, "attention"],
               "decoder": [DynamicConv, {"kind": Previous, "reach": 2}]},
    )),
    "sides": (encoder_decoder, dict(
        hidden_dim={"encoder": 12, "decoder": 8}, num_encoder_layers=1,
        num_heads={"encoder": 3, "decoder": 2}, positions={"encoder": None,
        "decoder": "sinusoidal"}, kernel_sizes={"encoder": [3], "decoder": None},
        normalize_first={"encoder": True, "decoder": False}, output_dim=6,
        mixer={"encoder": {"kind": "dynamic_conv", "use_glu": False},
               "decoder": "dynamic_conv"},
        embedding_dim={"encoder": 10, "decoder": 5},
    )),
    "lm": (language_model, {}),
    "lm_attention": (language_model, dict(
        mixer="attention", share_embeddings=True, embedding_dim=6, positions=LEARNED,
        normalize_first=True,
    )),
    "lm_mixed": (language_model, dict(
        mixer=["light_conv", {"kind": "query_conv", "gate": "glu"}], positions=None,
        output_dim=6, normalize_first=True, final_norm=False, embedding_dim=6,
    )),
    "lm_adaptive": (language_model, dict(mixer="light_conv",
                                         adaptive_softmax=ADAPTIVE)),
    "lm_adaptive_input": (language_model, dict(mixer="light_conv",
                                               adaptive_input=ADAPTIVE)),
    "lm_tied": (language_model, dict(mixer={"kind": "light_conv", "use_glu": False},
                                     **TIED)),
    "lm_tied_projections": (language_model, dict(mixer="attention", **TIED,
                                                 tie_adaptive_projections=True)),
    "conv_lm": (conv_language_model, {}),
    "conv_lm_adaptive": (conv_language_model, dict(adaptive_softmax=ADAPTIVE)),
    # Residuals from further back, projected and none; attention in some layers.
    "conv_s2s": (conv_s2s, dict(
        convolutions={"encoder": "[(6, 3)] + [(4, 4, 2)]",
                      "decoder": [(6, 2), (7, 1, 0), (7, 3, 2), (6, 3, 3)]},
        attention=[False, True, False, True], share_output_embedding=True,
        output_dim=8, vocabularies=(29, VOCABULARY),
    )),
    "conv_s2s_small": (conv_s2s, {}),
    "conv_s2s_no_positions": (conv_s2s, dict(positions=False,
                                             convolutions="[(8, 2)]", output_dim=8)),
}  # fmt: skip
_QUICK = ("mixed", "sides", "short_conv", "lm_tied_projections", "conv_lm", "conv_s2s")


def cases(quick, slow=()):
    """A `parametrize` of these models: those of `slow` only with slow tests."""
    return pytest.mark.parametrize("name", quick_and_slow(quick, slow))


each_model = cases(_QUICK, [name for name in CONFIGS if name not in _QUICK])


def make(name, **options):
    factory, config = CONFIGS[name]
    return factory(**{**config, **options})


@functools.cache
def model_of(name):
    return randomize(make(name))


def randomize(model, scale=0.4, seed=0):
    """Give every float weight numbers that differ, biases and gains too."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "float" in keras.backend.standardize_dtype(weight.dtype):
            weight.assign(scale * rng.normal(size=weight.shape))
    return model


def inputs_of(model, rows=slice(None)):
    """The sentences above as the model takes them."""
    inputs = {"target_ids": TARGETS[rows]}
    if model.has_source:
        inputs["source_ids"] = SOURCES[rows]
    return inputs


def start(model, inputs, **options):
    """The state before the first step."""
    source = inputs.get("source_ids")
    if source is None:
        source = ops.shape(inputs["target_ids"])[0]
    return model.get_initial_state(source, **options)


def tensors(inputs):
    return {name: ops.convert_to_tensor(ids) for name, ids in inputs.items()}


def scores(model, inputs, **options):
    """(B, T, V), of adaptive models too, whose softmax is not in the graph."""
    outputs = model(tensors(inputs), **options)
    if model.adaptive_softmax is not None:
        outputs = model.adaptive_softmax.full_log_prob(outputs)
    return outputs


def logits_of(model, inputs):
    """The same as an array."""
    return to_numpy(cheaply(lambda inputs: scores(model, inputs))(tensors(inputs)))


def check_steps(model, splits=((1, 1, 1, 1), (4,), (1, 3))):
    """After each chunk of any split: the logits of the full pass at its last token."""
    inputs = inputs_of(model)
    full = logits_of(model, inputs)
    for split in splits:
        state, position = start(model, inputs, max_length=6), 0
        shapes = shapes_of(state)
        for size in split:
            ids = ops.convert_to_tensor(TARGETS[:, position : position + size])
            logits, state = model.step(ids, state)
            position += size
            assert keras.backend.standardize_dtype(logits.dtype) == "float32"
            assert shapes_of(state) == shapes, "the state must keep its shapes"
            np.testing.assert_allclose(
                to_numpy(logits), full[:, position - 1], **TOLERANCE, err_msg=str(split)
            )


def shapes_of(state):
    return [tuple(ops.shape(leaf)) for leaf in keras.tree.flatten(state)]
