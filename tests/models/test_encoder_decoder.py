"""EncoderDecoder: what sets it apart from the other families."""

import keras
import numpy as np
import pytest

from keras_seqconv.layers import TokenEmbedding
from keras_seqconv.models import EncoderDecoder
from tests.backends import to_numpy
from tests.cases import quick_and_slow
from tests.models.families import (
    ONE,
    SOURCES,
    TARGETS,
    VOCABULARY,
    encoder_decoder,
    model_of,
)

INPUTS = {"source_ids": SOURCES, "target_ids": TARGETS}


def test_attention_is_the_mean_of_the_heads_of_the_last_block():
    model = model_of("light_conv")  # pre-norm: the norm comes first
    memory, mask = model.encode(SOURCES)
    x = model.target_embedder(TARGETS)
    first, last = model.decoder_blocks
    x = first.feed_forward(first.attention(first.mixer(x), memory, value_mask=mask))
    x = last.attention.layer_norm(last.mixer(x))
    heads = last.attention.layer.attention_weights(x, memory, value_mask=mask)
    expected = np.mean(to_numpy(heads), axis=1)
    weights = to_numpy(model.attention_weights(INPUTS))
    np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize(
    "rate",
    ["dropout", "attention_dropout", "activation_dropout", "weight_dropout", "input"],
)
def test_every_dropout_acts_in_training_only(rate):
    """By itself, the others being zero."""
    chosen = {"dropout": 0.0, rate: 0.5}
    mixer = {"kind": "dynamic_conv", "input_dropout": chosen.pop("input", 0.0)}
    model = encoder_decoder(**ONE, mixer=mixer, **chosen, seed=1)
    expected = to_numpy(model(INPUTS))
    np.testing.assert_array_equal(to_numpy(model(INPUTS, training=False)), expected)
    assert np.abs(to_numpy(model(INPUTS, training=True)) - expected).max() > 1e-3


def test_policy_of_the_model_is_that_of_its_layers():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = encoder_decoder(**ONE)
    finally:
        keras.config.set_dtype_policy("float32")
    # Saved is what the model has, not that the global policy was asked.
    for each in (model, EncoderDecoder.from_config(model.get_config())):
        assert each.get_config()["dtype"] == "mixed_bfloat16" == each.dtype_policy.name
        for layer in each._flatten_layers(include_self=False):
            if not isinstance(layer, keras.layers.InputLayer):
                assert layer.dtype_policy.name == "mixed_bfloat16", layer


@pytest.mark.parametrize(
    ("share", "matrices"), quick_and_slow([("decoder", 2), ("all", 1)], [("none", 3)])
)
def test_shared_embeddings(share, matrices):
    """One table of V * C numbers each; a change is seen wherever it is shared."""
    model = encoder_decoder(share_embeddings=share, **ONE)
    counts = [w.shape for w in model.weights if VOCABULARY in w.shape]
    layers = model._flatten_layers(include_self=False)
    tables = {id(layer) for layer in layers if isinstance(layer, TokenEmbedding)}
    assert len(counts) == matrices and len(tables) == min(matrices, 2)
    before = to_numpy(model(INPUTS)), to_numpy(model.encode(SOURCES)[0])
    table = model.target_embedder.tokens.embeddings
    table.assign(0 * table)
    after = to_numpy(model(INPUTS)), to_numpy(model.encode(SOURCES)[0])
    assert np.any(after[0] != before[0])
    assert np.all(after[0] == 0) == (share != "none")
    assert np.any(after[1] != before[1]) == (share == "all")


def kernel_sizes_of(blocks):
    return [block.mixer.layer.kernel_size for block in blocks]


def test_kernel_sizes():
    """The paper's by default."""
    deep = encoder_decoder(
        num_encoder_layers=5, num_decoder_layers=1, kernel_sizes=None,
        mixer="light_conv",
    )  # fmt: skip
    assert kernel_sizes_of(deep.encoder_blocks) == [3, 7, 15, 31, 31]
    assert kernel_sizes_of(deep.decoder_blocks) == [3]
