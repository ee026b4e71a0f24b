"""ConvS2S: what sets it apart from the other families, and fairseq's notation."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqconv.layers import WeightNormConv1D, WeightNormDense
from keras_seqconv.models.gated_stack import Convolution, parse_convolutions
from tests.backends import layer_gradients, to_numpy
from tests.models.families import (
    SOURCES,
    TARGETS,
    TOLERANCE,
    VOCABULARY,
    cases,
    conv_s2s,
    model_of,
    tensors,
)

CONFIGS = ("conv_s2s", "conv_s2s_small", "conv_s2s_no_positions")
INPUTS = {"source_ids": SOURCES, "target_ids": TARGETS}


def test_sides_and_layers_differ_in_convolutions_and_attention():
    encoder, decoder = (model_of("conv_s2s").encoder_stack,
                        model_of("conv_s2s").decoder_stack)  # fmt: skip
    assert [block.filters for block in encoder.blocks] == [6, 4]
    assert [block.filters for block in decoder.blocks] == [6, 7, 7, 6]
    wanted = [attention is not None for attention in decoder.attentions]
    assert wanted == [False, True, False, True]
    one, two = conv_s2s(attention=[True, False]), conv_s2s()
    # Both projections with v, g and bias.
    size = (6 * 8 + 8 + 8) + (8 * 6 + 6 + 6)
    assert two.count_params() - one.count_params() == size


def test_number_of_parameters():
    """fairseq's v and bias, and one g for each output channel."""

    def normed(inputs, outputs):
        return inputs * outputs + 2 * outputs

    expected = (
        2 * 23 * 8 + 2 * 1024 * 8
        + normed(8, 6) + 2 * normed(3 * 6, 12) + normed(6, 8)  # encoder
        + normed(8, 6) + 2 * normed(3 * 6, 12) + normed(6, 5) + normed(5, 23)
        + 2 * (normed(6, 8) + normed(8, 6))  # attention
    )  # fmt: skip
    assert conv_s2s().count_params() == expected
    # The output matrix becomes the target embedding with a bias of its own.
    tied = conv_s2s(output_dim=8, share_output_embedding=True)
    other = conv_s2s(output_dim=8)
    assert other.count_params() - tied.count_params() == normed(8, 23) - 23


def test_shared_output_embedding():
    model = model_of("conv_s2s")
    table = model.target_embedder.tokens
    assert model.output_dense is None and table.bias.shape == (VOCABULARY,)
    before = to_numpy(model(INPUTS))
    # Token 11 stands in no input: only its own logit depends on its row and bias.
    row = to_numpy(table.embeddings[11])
    table.bias.assign(to_numpy(table.bias) + np.eye(VOCABULARY)[11])
    try:
        after = to_numpy(model(INPUTS))
    finally:
        table.bias.assign(to_numpy(table.bias) - np.eye(VOCABULARY)[11])
    difference = np.zeros_like(before) + np.eye(VOCABULARY)[11]
    np.testing.assert_allclose(after - before, difference, atol=1e-5)
    assert np.any(row != 0)


def oracle(model, source, target):
    """Logits (T, V) of one sentence in loops, after Gehring et al. 2017."""

    def dense(layer, x):
        v, g, bias = (to_numpy(weight) for weight in (layer.v, layer.g, layer.bias))
        return x @ (g * v / np.sqrt((v**2).sum(0))) + bias

    def embed(embedder, ids):
        x = to_numpy(embedder.tokens.embeddings)[ids]
        if embedder.position is not None:
            x = x + to_numpy(embedder.position.embeddings)[: len(ids)]
        return x

    def convolve(layer, x, left):
        v, g, bias = (to_numpy(weight) for weight in (layer.v, layer.g, layer.bias))
        kernel = g * v / np.sqrt((v**2).sum((0, 1)))
        y = np.zeros((len(x), kernel.shape[-1])) + bias
        for t in range(len(x)):
            for j in range(len(kernel)):
                if 0 <= t + j - left < len(x):
                    y[t] += x[t + j - left] @ kernel[j]
        first, second = np.split(y, 2, axis=-1)
        return first / (1 + np.exp(-second))

    def stack(layers, x, causal, attend=None):
        outputs = [x]
        for index, layer in enumerate(layers.convolutions):
            taps = layer.kernel_size
            left = taps - 1 if causal else (taps - 1) // 2
            x = convolve(layers.blocks[index].convolution, outputs[-1], left)
            if layers.attentions[index] is not None:
                x = attend(layers.attentions[index], x)
            if layer.residual:
                skip = outputs[-layer.residual]
                projection = layers.residuals[index].projection
                skip = skip if projection is None else dense(projection, skip)
                x = (x + skip) * np.sqrt(0.5)
            outputs.append(x)
        return outputs[-1]

    embedded = embed(model.source_embedder, source)
    x = stack(model.encoder_stack, dense(model.encoder_input, embedded), False)
    keys = dense(model.encoder_output, x)
    values = (keys + embedded) * np.sqrt(0.5)
    targets = embed(model.target_embedder, target)

    def attend(attention, x):
        query = (dense(attention.in_projection, x) + targets) * np.sqrt(0.5)
        weights = np.exp(query @ keys.T)
        weights /= weights.sum(-1, keepdims=True)
        context = weights @ values * np.sqrt(len(keys))
        return (dense(attention.out_projection, context) + x) * np.sqrt(0.5)

    x = stack(model.decoder_stack, dense(model.decoder_input, targets), True, attend)
    x = dense(model.decoder_output, x)
    if model.output_dense is not None:
        return dense(model.output_dense, x)
    table = model.target_embedder.tokens
    return x @ to_numpy(table.embeddings).T + to_numpy(table.bias)


@cases(CONFIGS)
def test_logits_equal_the_formulas_of_the_paper(name):
    model = model_of(name)
    for row, (source, target) in enumerate(((5, 4), (2, 3))):
        source, target = SOURCES[row, :source], TARGETS[row, :target]
        expected = oracle(model, source, target)
        got = to_numpy(
            model({"source_ids": source[None], "target_ids": target[None]})
        )[0]  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["conv_s2s_small", "conv_s2s"])
def test_the_gradient_of_the_encoder_is_scaled_by_half_per_attention(name):
    """Its convolutions get 1 / 2A of it; embeddings get all, past them."""
    model = model_of(name)
    inputs = tensors(INPUTS)
    number = sum(attention is not None for attention in model.decoder_stack.attentions)

    def logits():
        return model.decode(inputs["target_ids"], *model.encode(inputs["source_ids"]))

    def gradients():
        paths = [weight.path for weight in model.trainable_variables]
        values = map(ops.convert_to_tensor, layer_gradients(model, logits))
        return dict(zip(paths, map(to_numpy, values), strict=True))

    scaled = gradients()
    model.gradient_scale.scale, scale = 1.0, model.gradient_scale.scale
    try:
        unscaled = gradients()
        model.gradient_scale.scale = 0.0
        past_the_encoder = gradients()
    finally:
        model.gradient_scale.scale = scale
    assert scale == 1 / (2 * number)
    encoder = {
        weight.path
        for layer in (model.encoder_input, model.encoder_output,
                      *model.encoder_stack.blocks,
                      *filter(None, model.encoder_stack.residuals))
        for weight in layer.trainable_variables
    }  # fmt: skip
    embedder = model.source_embedder
    table = embedder.tokens.embeddings.path
    embedded = {table, embedder.position.embeddings.path}
    for path, gradient in scaled.items():
        expected = unscaled[path]
        if path in encoder:
            expected = expected * scale
        elif path in embedded:
            through = unscaled[path] - past_the_encoder[path]
            expected = past_the_encoder[path] + through * scale
        limit = 1e-4 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=limit)
    assert np.abs(past_the_encoder[table]).max() > 1e-3


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


def test_learned_positions_end():
    model = conv_s2s(max_length={"encoder": 9, "decoder": 3})
    assert model.max_target_length == 3
    assert conv_s2s(positions=False).max_target_length is None
    with pytest.raises(ValueError, match="`max_length`.*length=4, max_length=3"):
        model(INPUTS)
    with pytest.raises(ValueError, match="length=5, max_length=3"):
        model.get_initial_state(SOURCES, max_length=5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(embedding_dim=0), "`embedding_dim`.*=0"),
        (dict(embedding_dim={"encoder": 8, "decoder": 6}), "same on both sides.*6"),
        (dict(convolutions="[(6, 3)] *"), "`convolutions`"),
        (dict(convolutions="[(1, 1)] * 1000000000"), "more than 1000 entries"),
        (dict(convolutions={"encoder": "[(8, 3)]"}), "`convolutions`.*keys"),
        (dict(output_dim=0), "`output_dim`.*=0"),
        (dict(attention=False), "`attention`.*2 decoder layers.*False"),
        (dict(attention=[True]), r"`attention`.*2 decoder layers.*\[True\]"),
        (dict(attention=[1, 0]), "`attention`"),
        (dict(attention=[False, False]), "at least one of them True"),
        (dict(share_output_embedding=True), "`output_dim`.*=5.*embedding_dim=8"),
        (dict(share_output_embedding="x", output_dim=8), "`share_output_embedding`.*x"),
        (dict(dropout=1), "`dropout`.*=1"),
        (dict(max_length=0), "`max_length`.*=0"),
        (dict(positions="learned"), "`positions`.*learned"),
    ],
)
def test_wrong_arguments_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        conv_s2s(**options)


# --- The notation: what is understood, and that nothing is executed ---

LAYERS = st.tuples(st.integers(1, 5000), st.integers(1, 99))
# Groups of equal layers: fairseq's way of writing them down.
GROUPS = st.lists(st.tuples(LAYERS, st.integers(1, 20)), min_size=1, max_size=6)


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
@given(GROUPS)
def test_text_and_list_mean_the_same(groups):
    text = " + ".join(f"[{layer}] * {times}" for layer, times in groups)
    layers = [layer for layer, times in groups for _ in range(times)]
    expected = [(*layer, 1) for layer in layers]
    assert parse_convolutions(text) == expected
    assert parse_convolutions(layers) == expected
    assert parse_convolutions([list(layer) for layer in layers]) == expected
    assert parse_convolutions(expected) == expected  # as it comes from a configuration


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="[](),*+0123456789 -x.'\"\n", max_size=40) | st.text())
def test_any_text_is_read_or_refused(text):
    try:
        layers = parse_convolutions(text)
    except ValueError as error:
        assert "`convolutions`" in str(error)
    else:
        assert layers and all(layer.channels >= 1 for layer in layers)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "()", "512", "(512, 3)", "[512, 3]", "[(512,)]", "[(512, 3, 1, 1)]",
        "[(0, 3)]", "[(512, 0)]", "[(-1, 3)]", "[(512, 3)] * 0", "[(512, 3)] - [1]",
        "[(512, 3.0)]", "[('512', 3)]", "[(True, 3)]", "[(512, 3)] * -1",
        "[(512, 3, -1)]", "[(512, 3, 2)]", "[(512, 3)", "[(512, 3)]; 1", "[(a, 3)]",
        "[(1, 3) for i in range(3)]", "list(((1, 3),))", "[(1, 3)] ** 2", "{1: 3}",
        "[(9**9, 3)]", "(lambda: [(1, 3)])()", "[(1, 3)][0:1]", "[*[(1, 3)]]",
        "__import__('os').system('true')", "[(1, 3)] * '3'", "[(1, 3)\0]", "x" * 99999,
        "(" * 500 + "[(1, 3)]" + ")" * 500, "+".join(["[(1, 3)]"] * 1111),
        "[(1, 3), 4]", "[[(1, 3)]]", '"[(1, 3)]"', "[(1, 3)] + 4", "[(1, 3)] + (4,)",
        "[(1j, 3)]", "[(1, 3)] if 1 else 2", "f'{1}'",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="`convolutions` must be.*Received") as caught:
        parse_convolutions(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "[(1,1)]*10000000000",
        "10000000000*[(1,1)]",
        "[(1,1)]*1000*1000*1000",
        "[(1,1)]*(99999*99999*99999)",
        "[(1,1)*1000000000]",
        "([(1,1)]*600)+([(1,1)]*600)",
        "[[[(1,1)]*1000]*1000]*1000",
    ],
)
def test_a_short_text_makes_no_huge_list(text):
    start = time.monotonic()
    with pytest.raises(ValueError, match="`convolutions`"):
        parse_convolutions(text)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        (None, "holds no layer"),
        ([], "holds no layer"),
        (7, "holds no layer"),
        ([(4, 3), (4, 3.5)], r"layer 2 is \(4, 3.5\)"),
        ([(True, 3)], r"layer 1 is \(True, 3\)"),
        (["43"], "layer 1 is '43'"),
        ([(4, 3, 1), (4, 3, 3)], "residual of layer 2 must be 0 to 2, not 3"),
        ([(1, 1)] * 1001, "1000 layers at most"),
    ],
)
def test_wrong_lists_say_what_is_wrong(layers, match):
    with pytest.raises(ValueError, match=match):
        parse_convolutions(layers)
