"""What is not finite stays where it is: masks and time select, they do not multiply.

NaN at one position must leave results and gradients of what does not see it alone. (An
overflow of float16, for one, is reason enough for NaN.)
"""

import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    ConvS2SAttention,
    ConvS2SBlock,
    DynamicConv,
    DynamicConvModule,
    LightConv,
    MultiHeadAttention,
    QueryConvModule,
)
from keras_seqconv.models import EncoderDecoder
from tests.backends import layer_gradients, modes, to_numpy
from tests.layers.check_layer import _run_steps

INPUTS = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
FUTURE = INPUTS.copy()
FUTURE[0, 4, 1] = np.nan  # position 4 of the first row
MASK = np.array([[1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 0]], bool)

CAUSAL = [
    lambda: LightConv(2, 3, padding="causal"),
    lambda: DynamicConv(2, 70, padding="causal"),
    lambda: QueryConvModule(2, 3, padding="causal"),
    lambda: ConvS2SBlock(8, 3, padding="causal"),
    lambda: MultiHeadAttention(2, use_causal_mask=True),
]


@pytest.mark.parametrize("number", range(len(CAUSAL)))
def test_the_past_does_not_see_the_future(number):
    layer = CAUSAL[number]()
    expected = to_numpy(layer(INPUTS))
    for mode, function in modes(layer).items():
        outputs = to_numpy(function(FUTURE))
        np.testing.assert_allclose(outputs[0, :4], expected[0, :4], 1e-4, 1e-5, mode)
        np.testing.assert_allclose(outputs[1], expected[1], 1e-4, 1e-5, mode)
        assert np.isnan(outputs[0, 4]).any(), mode
    for chunks in ([1] * 6, [2, 4]):  # 4: with the NaN inside
        steps = _run_steps(layer.step, layer, FUTURE, chunks, 8, False)
        np.testing.assert_allclose(steps, outputs, 1e-4, 1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LightConv(2, 3),
        lambda: DynamicConv(2, 70, renormalize_padding=True),
        lambda: DynamicConvModule(2, 3),
        lambda: QueryConvModule(2, 3),
        lambda: ConvS2SBlock(8, 3),
        lambda: MultiHeadAttention(2),
        lambda: MultiHeadAttention(2, use_causal_mask=True),
    ],
)
def test_real_positions_do_not_see_masked_ones(make):
    layer = make()

    def call(inputs):
        outputs = layer(inputs, mask=MASK)
        return ops.where(ops.convert_to_tensor(MASK)[..., None], outputs, 0.0)

    def results(inputs):
        return [
            to_numpy(call(inputs)),
            to_numpy(layer_gradients(layer, call, inputs)[0]),
        ]

    expected = results(INPUTS)
    for got, value in zip(results(FUTURE), expected, strict=True):
        np.testing.assert_allclose(got[MASK], value[MASK], 1e-4, 1e-5)


@pytest.mark.parametrize("ours", [True, False])
def test_queries_do_not_see_masked_memory(ours):
    layer = MultiHeadAttention(2) if ours else ConvS2SAttention()
    mask = "value_mask" if ours else "keys_mask"

    def call(inputs, memory):
        memory = (memory,) if ours else (INPUTS, memory, memory)
        return layer(inputs, *memory, **{mask: MASK})

    def results(memory):
        outputs = call(INPUTS, memory)
        gradients = layer_gradients(layer, call, INPUTS, memory)
        return [to_numpy(value) for value in (outputs, *gradients)]

    expected = results(INPUTS)
    for got, value in zip(results(FUTURE), expected, strict=True):
        np.testing.assert_allclose(got, value, 1e-4, 1e-5)
    if ours:
        attended = layer.attend(INPUTS, layer.project_memory(FUTURE), MASK)
        np.testing.assert_allclose(attended, expected[0], 1e-4, 1e-5)
        hidden = np.repeat(MASK[:, None], 6, axis=1)
        hidden[:, 5] = True  # to the last query nothing is hidden
        got = to_numpy(layer(INPUTS, FUTURE, attention_mask=hidden))
        assert np.isnan(got[0, 5]).all() and np.isfinite(np.delete(got, 5, 1)).all()


@pytest.mark.parametrize("mixer", ["light_conv", "query_conv", "attention"])
def test_padding_ids_reach_no_logits(mixer):
    """Whatever stands in the row of the padding, also NaN."""
    model = EncoderDecoder(
        *(9, 9), hidden_dim=8, intermediate_dim=8, num_heads=2, mixer=mixer,
        num_encoder_layers=2, num_decoder_layers=1, kernel_sizes=70,
    )  # fmt: skip
    inputs = {
        "source_ids": np.array([[5, 6, 2, 1, 1], [1, 1, 5, 6, 2]]),
        "target_ids": np.array([[2, 7, 1], [2, 7, 8]]),
    }
    expected = to_numpy(model(inputs))
    for embedder in (model.source_embedder, model.target_embedder):
        table = embedder.tokens.embeddings
        table.assign(np.where(np.arange(9)[:, None] == 1, np.nan, to_numpy(table)))
    np.testing.assert_allclose(
        to_numpy(model(inputs))[:, :2], expected[:, :2], 1e-4, 1e-5
    )
    state = model.get_initial_state(inputs["source_ids"], max_length=3)
    logits, _ = model.step(inputs["target_ids"][:, :2], state)
    np.testing.assert_allclose(to_numpy(logits), expected[:, 1], 1e-4, 1e-5)


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_is_convolved_to_nothing(shape, padding):
    layer = ConvS2SBlock(4, 3, padding=padding)
    layer.build((None, None, 4))
    for function in modes(layer).values():
        assert function(ops.zeros((*shape, 4))).shape == (*shape, 4)
    gradients = layer_gradients(layer, layer, np.zeros((*shape, 4), "float32"))
    assert not any(np.any(to_numpy(gradient)) for gradient in gradients)
