"""ConvS2S: what users rely on, and what sets it apart from other families."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import WeightNormConv1D, WeightNormDense
from keras_seqconv.models import ConvS2S
from tests.backends import layer_gradients, to_numpy
from tests.cases import few_on_jax
from tests.models import check_model
from tests.models.check_model import SOURCES, TARGETS, TOLERANCE, VOCABULARY, Family


def make(**options):
    vocabularies = options.pop("vocabularies", (VOCABULARY, VOCABULARY))
    small = dict(embedding_dim=8, convolutions="[(6, 3)] * 2", output_dim=5)
    return ConvS2S(*vocabularies, **{**small, **options})


FAMILY = Family(make, has_source=True)

CONFIGS = {
    "small": {},
    # Residuals from further back, projected and none; attention in some layers.
    "layers": dict(
        convolutions={"encoder": "[(6, 3)] + [(4, 4, 2)]",
                      "decoder": [(6, 2), (7, 1, 0), (7, 3, 2), (6, 3, 3)]},
        attention=[False, True, False, True], share_output_embedding=True,
        output_dim=8, vocabularies=(29, VOCABULARY),
    ),
    "no_positions": dict(positions=False, convolutions="[(8, 2)]", output_dim=8),
}  # fmt: skip


@functools.cache
def model_of(name):
    return check_model.randomize(make(**CONFIGS[name]))


each_config = pytest.mark.parametrize("name", few_on_jax(["layers"], CONFIGS))


@each_config
def test_config_weights_file_and_clone(name, tmp_path):
    check_model.check_copies(FAMILY, model_of(name), tmp_path)
    check_model.check_clone(FAMILY, model_of(name))


def test_eager_graph_and_xla_agree():
    check_model.check_modes(FAMILY, model_of("layers"))


@each_config
def test_padding_changes_nothing(name):
    check_model.check_padding(FAMILY, model_of(name))


@each_config
def test_no_weight_is_dead_and_padding_alone_is_finite(name):
    check_model.check_gradients(FAMILY, model_of(name))


@each_config
def test_steps_equal_the_full_pass(name):
    check_model.check_steps(FAMILY, model_of(name))


@each_config
def test_beams(name):
    check_model.check_beams(FAMILY, model_of(name))


def test_steps_in_a_loop():
    check_model.check_loop(FAMILY, model_of("layers"))


@each_config
def test_bfloat16(name):
    check_model.check_policy(FAMILY, model_of(name), "mixed_bfloat16")


def test_float16():
    check_model.check_policy(FAMILY, model_of("layers"), "mixed_float16")


@pytest.mark.tensorflow  # JAX has float64 only behind a global switch
def test_float64():
    check_model.check_policy(FAMILY, model_of("layers"), "float64")


def test_seeds():
    check_model.check_seeds(FAMILY, dropout=0.3)


def test_fit():
    check_model.check_fit(FAMILY, make(dropout=0.1))


def test_attention_is_the_mean_over_all_layers():
    """fairseq divides by the number of layers, also those without attention."""
    weights = check_model.check_attention(FAMILY, model_of("small"))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    weights = check_model.check_attention(FAMILY, model_of("layers"))
    np.testing.assert_allclose(weights.sum(-1), 2 / 4, atol=1e-5)


def test_a_decoder_layer_without_attention_has_no_such_weights():
    decoder = model_of("layers").decoder_stack
    wanted = [attention is not None for attention in decoder.attentions]
    assert wanted == [False, True, False, True]
    one, two = make(attention=[True, False]), make()
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
    assert make().count_params() == expected
    # The output matrix becomes the target embedding with a bias of its own.
    tied = make(output_dim=8, share_output_embedding=True)
    other = make(output_dim=8)
    assert other.count_params() - tied.count_params() == normed(8, 23) - 23


def test_shared_output_embedding():
    model = model_of("layers")
    table = model.target_embedder.tokens
    assert model.output_dense is None and table.bias.shape == (VOCABULARY,)
    before = to_numpy(model(FAMILY.inputs()))
    # Token 11 stands in no input: only its own logit depends on its row and bias.
    row = to_numpy(table.embeddings[11])
    table.bias.assign(to_numpy(table.bias) + np.eye(VOCABULARY)[11])
    try:
        after = to_numpy(model(FAMILY.inputs()))
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


@each_config
def test_logits_equal_the_formulas_of_the_paper(name):
    model = model_of(name)
    for row, (source, target) in enumerate(((5, 4), (2, 3))):
        source, target = SOURCES[row, :source], TARGETS[row, :target]
        expected = oracle(model, source, target)
        got = to_numpy(
            model({"source_ids": source[None], "target_ids": target[None]})
        )[0]  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["small", "layers"])
def test_the_gradient_of_the_encoder_is_scaled_by_half_per_attention(name):
    """Its convolutions get 1 / 2A of it; embeddings get all, past them."""
    model = model_of(name)
    inputs = check_model.tensors(FAMILY.inputs())
    number = sum(attention is not None for attention in model.decoder_stack.attentions)

    def gradients():
        found = layer_gradients(
            model,
            lambda: model.decode(
                inputs["target_ids"], *model.encode(inputs["source_ids"])
            ),
        )
        found = [to_numpy(ops.convert_to_tensor(gradient)) for gradient in found]
        return dict(
            zip((v.path for v in model.trainable_variables), found, strict=True)
        )

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


@each_config
def test_fold_keeps_outputs_steps_and_files(name, tmp_path):
    model = make(**CONFIGS[name])
    model.set_weights(model_of(name).get_weights())
    inputs = FAMILY.inputs()
    expected, size = to_numpy(model(inputs)), model.count_params()
    model.fold()
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, **TOLERANCE)
    assert model.count_params() < size
    assert not [weight for weight in model.weights if weight.name == "g"]
    check_model.check_steps(FAMILY, model, splits=((1, 3),))
    model.fold()  # twice is once
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, **TOLERANCE)


def test_a_folded_model_is_saved_and_loaded(tmp_path):
    model = make(**CONFIGS["layers"])
    expected = to_numpy(model(FAMILY.inputs()))
    model.fold()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(FAMILY.inputs())), expected, **TOLERANCE)
    assert again.count_params() == model.count_params()


def test_steps_compute_no_norms(monkeypatch):
    """The state carries the kernels of the decoder; the encoder is not touched."""
    model = model_of("layers")
    state = model.get_initial_state(SOURCES)

    def forbidden(layer):
        raise AssertionError(f"{layer.path} normalizes its weights")

    for layer_class in (WeightNormConv1D, WeightNormDense):
        monkeypatch.setattr(layer_class, "effective_kernel", forbidden)
    logits, _ = model.step(TARGETS[:, :2], state)
    monkeypatch.undo()
    full = to_numpy(model(FAMILY.inputs()))[:, 1]
    np.testing.assert_allclose(to_numpy(logits), full, **TOLERANCE)


def test_learned_positions_end():
    model = make(max_length={"encoder": 9, "decoder": 3})
    assert model.max_target_length == 3
    assert make(positions=False).max_target_length is None
    with pytest.raises(ValueError, match="`max_length`.*length=4, max_length=3"):
        model(FAMILY.inputs())
    with pytest.raises(ValueError, match="length=5, max_length=3"):
        model.get_initial_state(SOURCES, max_length=5)


def test_a_side_may_have_convolutions_of_its_own():
    model = model_of("layers")
    assert [block.filters for block in model.encoder_stack.blocks] == [6, 4]
    assert [block.filters for block in model.decoder_stack.blocks] == [6, 7, 7, 6]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(vocabularies=(0, 23)), "`source_vocabulary_size`.*=0"),
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
        (dict(special_ids={"pad": 23}), "`special_ids`.*23"),
        (dict(seed=1.5), "`seed`.*1.5"),
    ],
)
def test_wrong_arguments_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        make(**options)
