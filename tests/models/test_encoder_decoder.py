"""EncoderDecoder: what users of any configuration rely on."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv import decoding
from keras_seqconv.layers import DynamicConv, LightConv, TokenEmbedding
from keras_seqconv.models import EncoderDecoder, from_preset
from tests.backends import UNCOMPILED, to_numpy
from tests.cases import all_but, quick_and_slow
from tests.models import check_model
from tests.models.check_model import SOURCES, TARGETS, VOCABULARY, Family

SMALL = dict(
    hidden_dim=8, intermediate_dim=12, num_heads=2, num_encoder_layers=2,
    num_decoder_layers=2, kernel_sizes=[3, 4],
)  # fmt: skip


@keras.saving.register_keras_serializable("tests")
class Previous(keras.layers.Layer):
    """A mixer of a user's: a map of the input before."""

    def __init__(self, hidden_dim, padding, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim, self.padding = hidden_dim, padding
        self.dense = keras.layers.Dense(hidden_dim, dtype=self.dtype_policy)

    def build(self, inputs_shape):
        self.dense.build(inputs_shape)

    def call(self, inputs):
        assert self.padding == "causal"
        return self.dense(ops.pad(inputs, [(0, 0), (1, 0), (0, 0)])[:, :-1])

    def get_initial_state(self, batch_size, max_length=None):
        return {"last": ops.zeros((batch_size, 1, self.hidden_dim), self.compute_dtype)}

    def step(self, inputs, state):
        inputs = ops.concatenate([state["last"], inputs], axis=1)
        return self.dense(inputs[:, :-1]), {"last": inputs[:, -1:]}


@keras.saving.register_keras_serializable("tests")
def narrow_conv(num_heads, padding, dtype, seed=None):
    return LightConv(num_heads, 2, padding, seed=seed, dtype=dtype)


def make(**options):
    vocabularies = options.pop("vocabularies", (VOCABULARY, VOCABULARY))
    return EncoderDecoder(*vocabularies, **{**SMALL, **options})


# One block a side, where more show nothing else.
ONE = dict(num_encoder_layers=1, num_decoder_layers=1, kernel_sizes=3)
FAMILY = Family(make, has_source=True)
LEARNED = {"kind": "learned", "max_length": 9}
QUERY = {"kind": "query_conv", "gate": "gau", "query_dim": 6, "query_groups": 2,
         "compat": True, "permute_channels": True}  # fmt: skip

CONFIGS = {
    "dynamic_conv": ONE,
    "light_conv": dict(
        mixer={"kind": "light_conv", "use_glu": False, "num_heads": 3, "conv_dim": 6},
        share_embeddings="all", positions=LEARNED, normalize_first=True,
    ),
    "transformer": dict(
        mixer="attention", share_embeddings="decoder", normalize_first=True,
        final_norm=False, activation="gelu", positions=LEARNED, **ONE,
    ),
    "mixed": dict(
        mixer={"encoder": [{"kind": "light_conv", "kernel_softmax": False},
                           "attention"],
               "decoder": ["attention", {"kind": "query_conv", "gate": "glu"}]},
        vocabularies=(29, VOCABULARY),
        num_encoder_layers=2, kernel_sizes={"encoder": 5, "decoder": [1, 3]},
    ),
    "query_conv": dict(
        mixer=QUERY, embedding_dim=10, share_embeddings="decoder", positions=None,
        **ONE,
    ),
    "own": dict(
        mixer={"encoder": [narrow_conv, "attention"],
               "decoder": [DynamicConv, Previous]},
    ),
    "sides": dict(
        hidden_dim={"encoder": 12, "decoder": 8}, num_encoder_layers=1,
        num_heads={"encoder": 3, "decoder": 2}, positions={"encoder": None,
        "decoder": "sinusoidal"}, kernel_sizes={"encoder": [3], "decoder": None},
        normalize_first={"encoder": True, "decoder": False},
        mixer={"encoder": {"kind": "dynamic_conv", "use_glu": False},
               "decoder": {"kind": "dynamic_conv"}}, output_dim=6,
        embedding_dim={"encoder": 10, "decoder": 5},
    ),
}  # fmt: skip


@functools.cache
def model_of(name):
    return check_model.randomize(make(**CONFIGS[name]))


QUICK = ["mixed", "sides"]
each_config = pytest.mark.parametrize("name", all_but(QUICK, CONFIGS))


@pytest.mark.parametrize("name", all_but(["mixed", "own", "sides"], CONFIGS))
def test_config_weights_file_and_clone(name, tmp_path):
    check_model.check_copies(FAMILY, model_of(name), tmp_path)
    check_model.check_clone(FAMILY, model_of(name))


@pytest.mark.parametrize(
    "name", quick_and_slow(["query_conv"], ["dynamic_conv", "mixed"])
)
def test_eager_graph_and_xla_agree(name):
    check_model.check_modes(FAMILY, model_of(name))


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


@pytest.mark.parametrize(
    "name", quick_and_slow(["mixed"], ["light_conv", "query_conv"])
)
def test_steps_in_a_loop(name):
    check_model.check_loop(FAMILY, model_of(name))


@pytest.mark.parametrize("name", all_but(["mixed", "sides"], CONFIGS))
def test_bfloat16(name):
    check_model.check_policy(FAMILY, model_of(name), "mixed_bfloat16")


@pytest.mark.parametrize("name", quick_and_slow(["mixed"], ["sides"]))
def test_float16(name):
    check_model.check_policy(FAMILY, model_of(name), "mixed_float16")


@pytest.mark.tensorflow  # JAX has float64 only behind a global switch
def test_float64():
    check_model.check_policy(FAMILY, model_of("mixed"), "float64")


@each_config
def test_attention(name):
    weights = check_model.check_attention(FAMILY, model_of(name))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_attention_is_the_mean_of_the_heads_of_the_last_block():
    model = model_of("light_conv")  # pre-norm: the norm comes first
    memory, mask = model.encode(SOURCES)
    x = model.target_embedder(TARGETS)
    first, last = model.decoder_blocks
    x = first.feed_forward(first.attention(first.mixer(x), memory, value_mask=mask))
    x = last.attention.layer_norm(last.mixer(x))
    heads = last.attention.layer.attention_weights(x, memory, value_mask=mask)
    expected = np.mean(to_numpy(heads), axis=1)
    weights = to_numpy(model.attention_weights(FAMILY.inputs()))
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_seeds():
    rates = ("dropout", "attention_dropout", "activation_dropout", "weight_dropout")
    mixers = {
        "encoder": [{"kind": "query_conv", "input_dropout": 0.3}, "light_conv"],
        "decoder": "dynamic_conv",
    }
    check_model.check_seeds(FAMILY, mixer=mixers, **dict.fromkeys(rates, 0.3))


@pytest.mark.parametrize(
    "rate",
    ["dropout", "attention_dropout", "activation_dropout", "weight_dropout", "input"],
)
def test_every_dropout_acts_in_training_only(rate):
    """By itself, the others being zero."""
    mixer = {"kind": "dynamic_conv"}
    options = {**ONE, "mixer": mixer, "dropout": 0.0, "seed": 1}
    (mixer if rate == "input" else options)[
        "input_dropout" if rate == "input" else rate
    ] = 0.5
    model = make(**options)
    inputs = FAMILY.inputs()
    expected = to_numpy(model(inputs))
    np.testing.assert_array_equal(to_numpy(model(inputs, training=False)), expected)
    assert np.abs(to_numpy(model(inputs, training=True)) - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        (dict(dropout=0.1, weight_dropout=0.1), "float32"),
        pytest.param(CONFIGS["query_conv"], "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_fit(options, policy):
    check_model.check_fit(FAMILY, make(**{**ONE, **options}, dtype=policy))


def test_float16_scales_its_loss():
    """Keras asks the policy of the model, not those of its layers."""
    model = make(**ONE, dtype="mixed_float16", mixer="light_conv", dropout=0.0)
    inputs, labels = FAMILY.inputs(), np.roll(TARGETS, -1, axis=1)
    before = to_numpy(model.negative_log_likelihood(model(inputs), labels))
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, check_model.loss_function, jit_compile=UNCOMPILED)
    inner = model.optimizer.inner_optimizer
    assert isinstance(inner, keras.optimizers.LossScaleOptimizer)
    losses = [model.train_on_batch(inputs, labels) for _ in range(8)]
    assert np.all(np.isfinite(losses))
    assert to_numpy(model.negative_log_likelihood(model(inputs), labels)) < before


def test_policy_of_the_model_is_that_of_its_layers():
    for policy in ("float32", "mixed_bfloat16", "bfloat16"):
        model = make(**ONE, dtype=policy)
        assert model.dtype_policy.name == policy
        again = EncoderDecoder.from_config(model.get_config())
        assert again.dtype_policy.name == policy
        for layer in layers_of(again):
            if not isinstance(layer, keras.layers.InputLayer):
                assert layer.dtype_policy.name == policy, layer
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make(**ONE)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.get_config()["dtype"] == "mixed_bfloat16" == model.dtype_policy.name
    # Saved is what the model has, not that the global policy was asked.
    assert EncoderDecoder.from_config(model.get_config()).compute_dtype == "bfloat16"


def layers_of(model):
    return model._flatten_layers(include_self=False)


def tables(model):
    return {
        id(layer) for layer in layers_of(model) if isinstance(layer, TokenEmbedding)
    }


@pytest.mark.parametrize(
    ("share", "matrices"), [("none", 3), ("decoder", 2), ("all", 1)]
)
def test_shared_embeddings(share, matrices):
    """One table of V * C numbers each; a change is seen wherever it is shared."""
    model = make(share_embeddings=share, **ONE)
    counts = [w.shape for w in model.weights if VOCABULARY in w.shape]
    assert len(counts) == matrices and len(tables(model)) == min(matrices, 2)
    inputs = FAMILY.inputs()
    before = to_numpy(model(inputs)), to_numpy(model.encode(SOURCES)[0])
    table = model.target_embedder.tokens.embeddings
    table.assign(0 * table)
    after = to_numpy(model(inputs)), to_numpy(model.encode(SOURCES)[0])
    assert np.any(after[0] != before[0])
    assert np.all(after[0] == 0) == (share != "none")
    assert np.any(after[1] != before[1]) == (share == "all")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Blocks of the encoder 2 * (2 Dense + taps + FFN + 2 norms), then the decoder.
        (
            dict(mixer="light_conv", share_embeddings="all", kernel_sizes=3),
            23 * 8
            + 2 * ((8 * 16 + 16) + 2 * 3 + (8 * 8 + 8) + (8 * 12 + 12 + 12 * 8 + 8)
                   + 2 * 16)
            + 2 * ((8 * 16 + 16) + 2 * 3 + (8 * 8 + 8) + (8 * 12 + 12 + 12 * 8 + 8)
                   + 3 * 16 + 4 * (8 * 8 + 8)),
        ),
        (
            dict(mixer={"kind": "dynamic_conv", "use_glu": False}, kernel_sizes=[3, 5]),
            3 * 23 * 8
            + sum(2 * (8 * 8 + 8) + 8 * 2 * k + 212 + 2 * 16 for k in (3, 5))
            + sum(2 * (8 * 8 + 8) + 8 * 2 * k + 212 + 3 * 16 + 288 for k in (3, 5)),
        ),
        (
            dict(mixer="attention", positions=LEARNED,
                 normalize_first=True, share_embeddings="decoder", embedding_dim=6),
            2 * 23 * 6 + 2 * 6 * 8 + 8 * 6 + 2 * 9 * 8
            + 2 * (288 + 212 + 32) + 2 * (2 * 288 + 212 + 48) + 2 * 16,
        ),
        (
            dict(mixer={**QUERY, "permute_channels": False, "compat": False},
                 share_embeddings="all", kernel_sizes=3),
            23 * 8
            + 2 * ((8 * 16 + 16) + (8 * 12 + 12) + 3 * 2 * 3 + (8 * 8 + 8) + 212 + 32)
            + 2 * ((8 * 16 + 16) + (8 * 12 + 12) + 3 * 2 * 3 + (8 * 8 + 8) + 212 + 48
                   + 288),
        ),
    ],
    ids=["light_conv", "dynamic_conv", "attention", "query_conv"],
)  # fmt: skip
def test_number_of_parameters(options, expected):
    assert make(**options).count_params() == expected


def kernel_sizes_of(blocks):
    return [block.mixer.layer.kernel_size for block in blocks]


def test_kernel_sizes():
    """The paper's by default, one for all, or one by one and by side."""
    deep = make(
        num_encoder_layers=5, num_decoder_layers=1, kernel_sizes=None,
        mixer="light_conv",
    )  # fmt: skip
    assert kernel_sizes_of(deep.encoder_blocks) == [3, 7, 15, 31, 31]
    assert kernel_sizes_of(deep.decoder_blocks) == [3]
    model = make(kernel_sizes={"encoder": 5, "decoder": [4, 6]})
    assert kernel_sizes_of(model.encoder_blocks) == [5, 5]
    assert kernel_sizes_of(model.decoder_blocks) == [4, 6]
    assert kernel_sizes_of(make(kernel_sizes=[9]).encoder_blocks) == [9, 9]


def test_without_positions_order_matters_to_convolutions_alone():
    swapped = SOURCES[:1, [1, 0, 2, 3, 4]]
    for mixer, sees in (("attention", False), ("light_conv", True)):
        model = make(mixer=mixer, positions=None, **ONE)
        memory = to_numpy(model.encode(SOURCES[:1])[0])[0]
        other = to_numpy(model.encode(swapped)[0])[0]
        same = np.allclose(memory[[1, 0, 2, 3, 4]], other, atol=1e-5)
        assert same != sees


def test_learned_positions_end():
    positions = {"encoder": LEARNED, "decoder": {**LEARNED, "max_length": 3}}
    model = make(**ONE, positions=positions)
    assert model.max_target_length == 3
    assert model_of("mixed").max_target_length is None
    with pytest.raises(ValueError, match="`max_length`.*length=4, max_length=3"):
        model(FAMILY.inputs())
    with pytest.raises(ValueError, match="length=5, max_length=3"):
        model.get_initial_state(SOURCES, max_length=5)
    state = model.get_initial_state(SOURCES, max_length=3)
    for time in range(3):
        logits, state = model.step(TARGETS[:, time : time + 1], state)
        assert np.all(np.isfinite(to_numpy(logits)))
    logits, _ = model.step(TARGETS[:, 3:], state)
    assert np.all(np.isnan(to_numpy(logits)))


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", quick_and_slow(["transformer"], ["mixed"]))
def test_the_past_of_a_search_grows(kind):
    """And finds what XLA finds, where all sizes stay."""
    model = model_of(kind)
    options = dict(num_beams=3, max_length=5, max_length_ratio=0.5)
    found, scores = decoding.beam_search(model, SOURCES, **options)
    wanted, wanted_scores = decoding.beam_search(
        model, SOURCES, jit_compile=True, **options
    )
    assert np.array_equal(found, wanted)
    np.testing.assert_allclose(scores, wanted_scores, atol=1e-5)


def test_log_prob():
    model, inputs = model_of("dynamic_conv"), FAMILY.inputs()
    logits = to_numpy(model(inputs)).astype("float64")
    labels = np.roll(TARGETS, -1, axis=1)
    expected = np.zeros((3, 4))
    for b in range(3):
        for t in range(4):
            total = np.log(np.sum(np.exp(logits[b, t])))
            expected[b, t] = logits[b, t, labels[b, t]] - total
    found = model.log_prob(model(inputs), labels)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-4)
    wanted = -expected[labels != 1].sum()
    total = model.negative_log_likelihood(model(inputs), labels)
    np.testing.assert_allclose(total, wanted, rtol=1e-4)


def test_other_special_ids():
    """Padding is what `pad_id` says."""
    model = make(**ONE, special_ids={"pad": 0, "start": 1, "unk": 4})
    assert (model.pad_id, model.start_id, model.end_id, model.unk_id) == (0, 1, 2, 4)
    short = {"source_ids": SOURCES[:1, :3], "target_ids": TARGETS[:1]}
    padded = {**short, "source_ids": np.pad(SOURCES[:1, :3], ((0, 0), (1, 2)))}
    np.testing.assert_allclose(
        to_numpy(model(padded)), to_numpy(model(short)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(vocabularies=(0, 23)), "`source_vocabulary_size`.*=0"),
        (dict(vocabularies=(23, 2.5)), "`target_vocabulary_size`.*=2.5"),
        (dict(hidden_dim=-1), "`hidden_dim` must be a positive integer.*-1"),
        (dict(hidden_dim={"encoder": 8}), "`hidden_dim`.*keys"),
        (
            dict(num_heads=3, mixer={"kind": "light_conv", "num_heads": 2}),
            "channels of `inputs`.*multiple of `num_heads`.*8.*=3",
        ),
        (dict(num_heads=0), "`num_heads`.*=0"),
        (dict(mixer={"kind": "light_conv", "conv_dim": 5}), "num_heads.*=2"),
        (dict(mixer={"kind": "light_conv", "conv_dim": 0}), "`conv_dim`.*=0"),
        (dict(mixer={"kind": "light_conv", "gate": 0}), "option `gate`.*light_conv"),
        (dict(mixer={"kind": "attention", "seed": 0}), "option `seed`.*attention"),
        (dict(mixer={"kind": "query_conv", "gate": "x"}), "`gate` must be one of.*x"),
        (dict(mixer={"kind": "query_conv", "query_dim": 0}), "`query_dim`.*=0"),
        (dict(mixer={"conv_dim": 6}), "`mixer` must be one value.*conv_dim"),
        (dict(mixer=[{"conv_dim": 6}]), "`mixer` must be one of.*conv_dim"),
        (dict(mixer="lstm"), "`mixer` must be one of.*lstm"),
        (dict(mixer=["light_conv"] * 3), "`mixer`.*2 layers"),
        (dict(mixer=[]), "`mixer`.*2 layers"),
        (dict(kernel_sizes=[3, 3, 3]), "`kernel_sizes`.*2 layers"),
        (dict(kernel_sizes=[3, 0]), "`kernel_sizes`.*=0"),
        (dict(kernel_sizes={"encoder": 3, "dec": 3}), "`kernel_sizes`.*dec"),
        (dict(dropout=-0.1), "`dropout`.*-0.1"),
        (dict(attention_dropout=1), "`attention_dropout`.*=1"),
        (dict(activation_dropout=2), "`activation_dropout`.*=2"),
        (dict(positions="x"), "`positions` must be one of.*'x'"),
        (dict(positions={"kind": "learned"}), "`max_length`.*None"),
        (dict(embedding_dim=0), "`embedding_dim`.*=0"),
        (dict(output_dim=0), "`output_dim`.*=0"),
        (dict(output_dim=6, share_embeddings="decoder"), "`output_dim`.*=6.*width 8"),
        (dict(share_embeddings=True), "`share_embeddings` must be one of.*True"),
        (dict(share_embeddings="all", vocabularies=(23, 24)), "one vocabulary.*23.*24"),
        (
            dict(share_embeddings="all", hidden_dim={"encoder": 8, "decoder": 4}),
            r"one width.*\(8, 4\)",
        ),
        (dict(activation="nope"), "activation.*nope"),
        (dict(normalize_first="yes"), "`normalize_first`.*'yes'"),
        (dict(special_ids={"pad": -1}), "`special_ids`.*-1"),
        (dict(special_ids={"end": 23}), "`special_ids`.*23"),
        (dict(special_ids={"bos": 0}), "`special_ids`.*keys.*bos"),
        (
            dict(vocabularies=(2, 23), special_ids={"pad": 3}),
            "`special_ids`.*source_vocabulary_size=2",
        ),
        (dict(num_encoder_layers=0), "`num_encoder_layers`.*=0"),
        (dict(intermediate_dim=True), "`intermediate_dim`.*=True"),
        (dict(seed="a"), "`seed`.*'a'"),
    ],
)
def test_wrong_arguments_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        make(**options)


def test_own_mixers_of_presets_and_wrong_ones():
    model = from_preset(
        "dynamic_conv_multi30k", source_vocabulary_size=9, target_vocabulary_size=9,
        hidden_dim=8, num_encoder_layers=1, num_decoder_layers=1, mixer=LightConv,
        num_heads=2, dtype="mixed_bfloat16",
    )  # fmt: skip
    layer = model.decoder_blocks[0].mixer.layer
    assert isinstance(layer, LightConv)
    assert (layer.padding, layer.compute_dtype) == ("causal", "bfloat16")
    assert model.get_config()["mixer"] == "keras_seqconv>LightConv"
    for wrong in (LightConv(2, 3), "tests>Unknown", 3):
        with pytest.raises(ValueError, match="`mixer` must be one of"):
            make(mixer=wrong)


def test_names_of_parts():
    names = [layer.name for layer in model_of("mixed").layers]
    parts = [name for name in names if name[7:10] in ("_1_", "_2_")]
    assert [name for name in parts if name.startswith("decoder")] == [
        f"decoder_{block}_{part}"
        for block in (1, 2)
        for part in ("mixer", "attention", "feed_forward")
    ]
    assert [name for name in parts if name.startswith("encoder")] == [
        f"encoder_{block}_{part}"
        for block in (1, 2)
        for part in ("mixer", "feed_forward")
    ]
