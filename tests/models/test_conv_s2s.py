"""ConvS2S: what sets it apart from the other families, and fairseq's notation."""

import time

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqconv.layers import ConvS2SAttention, WeightNormConv1D, WeightNormDense
from keras_seqconv.models.gated_stack import Convolution, parse_convolutions
from tests.backends import layer_gradients, to_numpy
from tests.models.families import (
    SOURCES,
    TARGETS,
    TOLERANCE,
    cases,
    conv_s2s,
    model_of,
    tensors,
)

INPUTS = {"source_ids": SOURCES, "target_ids": TARGETS}


@cases(("conv_s2s",), ("conv_s2s_small",))
def test_the_gradient_of_the_encoder_is_scaled_by_half_per_attention(name, monkeypatch):
    """Its convolutions get 1 / 2A of it; its embeddings more, past them."""
    model, inputs = model_of(name), tensors(INPUTS)
    attentions = sum(x.attention is not None for x in model.decoder_blocks)
    first = model.encoder_input.v
    place = [weight is first for weight in model.trainable_variables].index(True)
    table = model.source_embedder.tokens.embeddings
    table_place = [weight is table for weight in model.trainable_variables].index(True)

    def gradients(scale):
        monkeypatch.setattr(model.gradient_scale, "scale", scale)
        values = layer_gradients(model, lambda: model.decode(
            inputs["target_ids"], *model.encode(inputs["source_ids"])))  # fmt: skip
        values = [values[place], values[table_place]]
        return [to_numpy(ops.convert_to_tensor(value)) for value in values]

    scale = model.gradient_scale.scale
    assert scale == 1 / (2 * attentions)
    scaled, unscaled, past = (gradients(x) for x in (scale, 1.0, 0.0))
    assert np.all(past[0] == 0) and np.abs(past[1]).max() > 1e-3
    for found, whole, rest in zip(scaled, unscaled, past, strict=True):
        expected = rest + (whole - rest) * scale
        limit = 1e-4 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=limit)


# --- The notation: what is understood, and that nothing is executed ---


def test_fairseq_notation():
    found = parse_convolutions("[(512, 3)] * 2 + [(1024, 4, 2)] + 1 * [(7, 1, 0)]")
    assert found == [(512, 3, 1), (512, 3, 1), (1024, 4, 2), (7, 1, 0)]
    assert all(isinstance(layer, Convolution) for layer in found)
    assert parse_convolutions("\n [(512, 3)]*1 ") == [Convolution(512, 3)]
    assert len(parse_convolutions("([(2, 3)] * 2 + [(4, 5)]) * 3")) == 9
    assert parse_convolutions("[(2 * 4, 1 + 2)]") == [Convolution(8, 3)]
    # A residual may reach the input of the stack.
    assert parse_convolutions([(4, 3, 1), (4, 3, 2)])[1].residual == 2


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="[](),*+0123456789 -x.'\"\n", max_size=40) | st.text())
def test_any_text_is_read_or_refused(text):
    try:
        layers = parse_convolutions(text)
    except ValueError as error:
        assert "`convolutions`" in str(error)
    else:
        assert layers and all(layer.channels >= 1 for layer in layers)


REFUSED = [
    "", "[]", "512", "(512, 3)", "[512, 3]", "[(512,)]", "[(512, 3, 1, 1)]",
    "[(0, 3)]", "[(512, 0)]", "[(512, 3)] * 0", "[(512, 3)] - [1]", "[(512, 3.0)]",
    "[('512', 3)]", "[(True, 3)]", "[(512, 3, -1)]", "[(512, 3, 2)]", "[(512, 3)",
    "[(512, 3)]; 1", "[(a, 3)]", "[(1, 3) for i in range(3)]", "list(((1, 3),))",
    "[(1, 3)] ** 2", "{1: 3}", "(lambda: [(1, 3)])()", "[*[(1, 3)]]",
    "__import__('os').system('true')", "[(1, 3)] * '3'", "[(1, 3)\0]", "x" * 99999,
    "(" * 500 + "[(1, 3)]" + ")" * 500, "[(1, 3), 4]", "[(1, 3)] + 4", "f'{1}'",
    # No huge list is made.
    "[(1,1)]*10000000000", "10000000000*[(1,1)]", "[(1,1)]*1000*1000*1000",
    "[(1,1)]*(99999*99999*99999)", "[(1,1)*1000000000]",
    "([(1,1)]*600)+([(1,1)]*600)", "[[[(1,1)]*1000]*1000]*1000",
]  # fmt: skip


def test_anything_else_is_refused():
    start = time.process_time()
    for text in REFUSED:
        with pytest.raises(ValueError, match="`convolutions` must be.*Rec") as caught:
            parse_convolutions(text)
        assert len(str(caught.value)) < 600
    assert time.process_time() - start < 3
    for layers, words in (
        (None, "holds no layer"),
        ([(4, 3), (4, 3.5)], r"layer 2 is \(4, 3.5\)"),
        (["43"], "layer 1 is '43'"),
        ([(4, 3, 1), (4, 3, 3)], "residual of layer 2 must be 0 to 2, not 3"),
        ([(1, 1)] * 1001, "1000 layers at most"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_convolutions(layers)


def test_steps_compute_no_norms(monkeypatch):
    """The state carries the kernels of the decoder; the encoder is not touched."""
    model = model_of("conv_s2s")
    state = model.get_initial_state(SOURCES)

    def forbidden(layer):
        raise AssertionError(f"{layer.path} normalizes its weights")

    for layer_class in (WeightNormConv1D, WeightNormDense):
        monkeypatch.setattr(layer_class, "effective_kernel", forbidden)
    logits, _ = model.step(TARGETS[:, :2], state)
    monkeypatch.undo()
    full = to_numpy(model(INPUTS))[:, 1]
    np.testing.assert_allclose(to_numpy(logits), full, **TOLERANCE)


def test_one_mask_for_all_keys_of_a_row():
    layer, inputs = ConvS2SAttention(), np.ones((2, 3, 4), "float32")
    arguments = inputs, inputs, np.ones((2, 5, 4), "float32"), np.ones((2, 5, 4))
    mask = np.array([[True], [False]])
    expected = layer(*arguments, keys_mask=np.broadcast_to(mask, (2, 5)))
    found = layer(*arguments, keys_mask=mask)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), rtol=1e-6)
    with pytest.raises(ValueError, match="has no weights yet"):
        ConvS2SAttention().attention_weights(*arguments[:3])


@pytest.mark.tensorflow
def test_padding_beyond_the_positions_changes_no_training():
    import tensorflow as tf

    def trained(width):
        ids = np.full((4, width), 1, "int32")
        ids[:, :5] = 7
        spec = tf.TensorSpec((None, None), tf.int32)
        spec = {"source_ids": spec, "target_ids": spec}, spec
        batches = [({"source_ids": ids, "target_ids": ids}, ids)]
        data = tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)
        keras.utils.set_random_seed(1)
        model = conv_s2s((20, 20), max_length=8, dropout=0.0, seed=1)
        model.compile("sgd")
        model.fit(data.repeat(), steps_per_epoch=1, verbose=0, shuffle=False)
        return model.get_weights()

    for found, expected in zip(trained(12), trained(6), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
