"""LanguageModel and ConvLanguageModel, with plain and with adaptive outputs."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import AdaptiveInput, TokenEmbedding
from keras_seqconv.models import ConvLanguageModel, LanguageModel
from tests.backends import to_numpy
from tests.cases import all_but, quick_and_slow
from tests.models import check_model
from tests.models.check_model import PAD, TARGETS, TOLERANCE, VOCABULARY, Family

ADAPTIVE = {"cutoffs": [6, 12], "factor": 2.0}


def make(**options):
    small = dict(
        hidden_dim=8, intermediate_dim=12, num_heads=2, num_layers=2,
        kernel_sizes=[3, 4],
    )  # fmt: skip
    return LanguageModel(options.pop("size", VOCABULARY), **{**small, **options})


def make_conv(**options):
    small = dict(embedding_dim=8, convolutions="[(6, 3)] + [(6, 2, 2)]")
    return ConvLanguageModel(options.pop("size", VOCABULARY), **{**small, **options})


BLOCKS, CONV = Family(make, has_source=False), Family(make_conv, has_source=False)

CONFIGS = {
    "dynamic_conv": (BLOCKS, {}),
    "attention": (
        BLOCKS,
        dict(mixer="attention", share_embeddings=True, embedding_dim=6,
             positions={"kind": "learned", "max_length": 9}, normalize_first=True),
    ),
    "mixed": (
        BLOCKS,
        dict(mixer=["light_conv", {"kind": "query_conv", "gate": "glu"}],
             positions=None, output_dim=6, normalize_first=True, final_norm=False,
             embedding_dim=6),
    ),
    "adaptive": (BLOCKS, dict(mixer="light_conv", adaptive_softmax=ADAPTIVE)),
    "adaptive_input": (BLOCKS, dict(mixer="light_conv", adaptive_input=ADAPTIVE)),
    "tied": (
        BLOCKS,
        dict(mixer={"kind": "light_conv", "use_glu": False}, adaptive_softmax=ADAPTIVE,
             adaptive_input=ADAPTIVE, tie_adaptive_weights=True),
    ),
    "tied_projections": (
        BLOCKS,
        dict(mixer="attention", adaptive_softmax=ADAPTIVE, adaptive_input=ADAPTIVE,
             tie_adaptive_weights=True, tie_adaptive_projections=True),
    ),
    "gated": (CONV, {}),
    "gated_adaptive": (CONV, dict(adaptive_softmax=ADAPTIVE)),
}  # fmt: skip
ADAPTIVE_OUTPUTS = ("adaptive", "tied", "tied_projections", "gated_adaptive")


@functools.cache
def model_of(name):
    family, options = CONFIGS[name]
    return check_model.randomize(family.make(**options))


def pair(name):
    return CONFIGS[name][0], model_of(name)


QUICK = ["mixed", "adaptive", "tied_projections", "gated"]
each_config = pytest.mark.parametrize("name", all_but(QUICK, CONFIGS))
each_adaptive = pytest.mark.parametrize("name", ADAPTIVE_OUTPUTS)


@each_config
def test_config_weights_file_and_clone(name, tmp_path):
    check_model.check_copies(*pair(name), tmp_path)
    if not name.startswith("tied"):
        check_model.check_clone(*pair(name))


@pytest.mark.parametrize("name", quick_and_slow(["mixed"], ["tied", "gated"]))
def test_eager_graph_and_xla_agree(name):
    check_model.check_modes(*pair(name))


@each_config
def test_padding_changes_nothing(name):
    check_model.check_padding(*pair(name))


@each_config
def test_no_weight_is_dead_and_padding_alone_is_finite(name):
    check_model.check_gradients(*pair(name))


@each_config
def test_steps_equal_the_full_pass(name):
    check_model.check_steps(*pair(name))


@each_config
def test_beams(name):
    check_model.check_beams(*pair(name))


@pytest.mark.parametrize("name", quick_and_slow(["tied"], ["attention", "gated"]))
def test_steps_in_a_loop(name):
    check_model.check_loop(*pair(name))


@each_config
def test_bfloat16(name):
    family, model = pair(name)
    if model.adaptive_softmax is None:
        check_model.check_policy(family, model, "mixed_bfloat16")


@pytest.mark.parametrize("name", quick_and_slow(["gated"], ["attention"]))
def test_float16(name):
    check_model.check_policy(*pair(name), "mixed_float16")


@pytest.mark.tensorflow  # JAX has float64 only behind a global switch
@pytest.mark.parametrize("name", ["adaptive", "mixed", "gated"])
def test_float64(name):
    check_model.check_policy(*pair(name), "float64")


@each_adaptive
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_adaptive_models_in_half_precision(name, policy):
    """Features are half precision, log-probabilities float32 and near."""
    model = model_of(name)
    other = type(model).from_config({**model.get_config(), "dtype": policy})
    other.set_weights(model.get_weights())
    features = other(check_model.tensors(BLOCKS.inputs()))
    assert keras.backend.standardize_dtype(features.dtype) == other.compute_dtype
    labels = np.roll(TARGETS, -1, axis=1)
    found = other.log_prob(features, labels)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    wide = model(check_model.tensors(BLOCKS.inputs()))
    expected = to_numpy(model.log_prob(wide, labels))
    np.testing.assert_allclose(to_numpy(found), expected, atol=0.03)


def test_seeds():
    rates = dict.fromkeys(
        ["dropout", "attention_dropout", "activation_dropout", "weight_dropout"], 0.3,
    )  # fmt: skip
    adaptive = {**ADAPTIVE, "dropout": 0.3}
    check_model.check_seeds(BLOCKS, **rates, adaptive_softmax=adaptive)
    check_model.check_seeds(CONV, dropout=0.3)


@pytest.mark.parametrize("family", [BLOCKS, CONV], ids=["blocks", "conv"])
def test_fit(family):
    check_model.check_fit(family, family.make(dropout=0.1))


@pytest.mark.parametrize("name", ["tied_projections", "gated_adaptive"])
@pytest.mark.slow
def test_adaptive_models_learn_by_their_own_loss(name):
    """`compile` may take the model's loss and leaves it usable."""
    family, options = CONFIGS[name]
    model = family.make(**options)
    check_model.check_fit(
        family, model, lambda labels, out: model.negative_log_likelihood(out, labels)
    )
    outputs = model(check_model.tensors(family.inputs()))
    assert np.isfinite(to_numpy(model.negative_log_likelihood(outputs, TARGETS)))


def log_softmax(logits):
    logits = logits.astype("float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@each_config
def test_log_prob_and_loss(name):
    """The label's own log-probability; the loss is minus their sum over real labels."""
    model = model_of(name)
    outputs = model(check_model.tensors(BLOCKS.inputs()))
    everything = check_model.logits_of(model, BLOCKS.inputs())
    if model.adaptive_softmax is None:
        everything = log_softmax(everything)
    np.testing.assert_allclose(np.exp(everything).sum(-1), 1, atol=1e-4)
    labels = np.array([[3, 7, 13, 2], [0, 22, 2, 1], [12, 11, 6, 5]], "int32")
    expected = np.take_along_axis(everything, labels[..., None], axis=-1)[..., 0]
    found = model.log_prob(outputs, labels)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(found), expected, **TOLERANCE)
    total = -expected[labels != PAD].sum()
    np.testing.assert_allclose(
        to_numpy(model.negative_log_likelihood(outputs, labels)), total, rtol=1e-4
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", quick_and_slow(["gated_adaptive"], ["adaptive"]))
def test_training_with_an_adaptive_softmax_never_makes_all_logits(name):
    """No tensor of the training graph has V numbers, or V numbers per position.

    But for the weights: with V = 5000 no cluster is as wide as 3000.
    """
    import tensorflow as tf

    family, options = CONFIGS[name]
    cutoffs = {"cutoffs": [1000, 2500], "factor": 2.0}
    model = family.make(**{**options, "adaptive_softmax": cutoffs}, size=5000)

    @tf.function(autograph=False)
    def step(ids, labels):
        with tf.GradientTape() as tape:
            features = model({"target_ids": ids}, training=True)
            loss = model.negative_log_likelihood(features, labels, training=True)
            loss -= ops.sum(model.log_prob(features, labels))
        return loss, tape.gradient(loss, model.trainable_variables)

    ids = tf.constant(np.random.default_rng(0).integers(3, 5000, (2, 50)), tf.int32)
    concrete = step.get_concrete_function(ids, ids)

    def tensors(graph):
        for operation in graph.get_operations():
            yield from operation.outputs
        for function in graph._functions.values():
            yield from tensors(function.graph) if hasattr(function, "graph") else ()

    widths = {
        tensor.shape[-1]
        for tensor in tensors(concrete.graph)
        if tensor.shape.rank and tensor.shape.rank > 1
    }
    # The head with a word per tail, and both tails, in loops, were looked at.
    assert {1002, 1500, 2500} <= widths and 5000 not in widths
    # Nor in what ran: an operation on (100, 2500) and more would take as many bytes.
    loss, gradients = step(ids, ids)
    assert np.isfinite(loss) and all(gradient is not None for gradient in gradients)


def embeddings_of(model):
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, (TokenEmbedding, AdaptiveInput))
    ]


def test_tied_weights_are_the_same_variables():
    normal = {
        name: model_of(name)
        for name in ("adaptive", "tied", "tied_projections", "attention")
    }
    for name in ("tied", "tied_projections"):
        model = normal[name]
        assert model.adaptive_softmax.adaptive_input is model.embedder.tokens
        assert len({id(layer) for layer in embeddings_of(model)}) == 1
        assert model.adaptive_softmax.tails == []
        shapes = [weight.shape for weight in model.weights]
        # The head's own rows are those of the two tails alone.
        assert (2, 8) in shapes and (8, 8) not in [
            weight.shape for weight in model.adaptive_softmax.trainable_weights[:1]
        ]
    assert normal["tied_projections"].adaptive_softmax.tail_projections == []
    assert len(normal["tied"].adaptive_softmax.tail_projections) == 2
    assert normal["attention"].vocabulary_map.dense is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 2 blocks: input map with its gate, taps, output map, network, two norms.
        ("adaptive", 2 * (144 + 72 + 212 + 32) + 2 * (3 + 4) + 23 * 8
         + (8 * 8) + (8 * 4 + 6 * 4) + (8 * 2 + 11 * 2)),
        ("tied_projections", 2 * (288 + 212 + 32)
         + (6 * 8 + 8 * 8) + (6 * 4 + 4 * 8) + (11 * 2 + 2 * 8) + 2 * 8),
        ("attention", 23 * 6 + 6 * 8 + 8 * 6 + 9 * 8 + 2 * (288 + 212 + 32) + 16),
        # v, g and bias of each map; the second residual is 8 -> 6 wide... of layer 0.
        ("gated", 23 * 8 + (8 * 6 + 12) + (3 * 6 * 12 + 24) + (2 * 6 * 12 + 24)
         + (6 * 8 + 16) + (8 * 23 + 46)),
        ("gated_adaptive", 23 * 8 + (8 * 6 + 12) + (3 * 6 * 12 + 24)
         + (2 * 6 * 12 + 24) + 8 * 6 + (6 * 3 + 6 * 3) + (6 * 1 + 11 * 1)),
    ],
)  # fmt: skip
def test_number_of_parameters(name, expected):
    assert model_of(name).count_params() == expected


@pytest.mark.parametrize("name", ["gated", "gated_adaptive"])
def test_fold_keeps_outputs_steps_and_files(name, tmp_path):
    family, options = CONFIGS[name]
    model = family.make(**options)
    model.set_weights(model_of(name).get_weights())
    inputs = family.inputs()
    expected = to_numpy(model(inputs))
    model.fold()
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, **TOLERANCE)
    assert not [weight for weight in model.weights if weight.name == "g"]
    check_model.check_steps(family, model, splits=((1, 3),))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(inputs)), expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["dynamic_conv", "gated"])
def test_the_future_is_not_seen(name):
    model = model_of(name)
    ids = TARGETS[:1]
    expected = to_numpy(model({"target_ids": ids}))[0]
    for time in range(3):
        other = ids.copy()
        other[:, time + 1 :] = 15
        got = to_numpy(model({"target_ids": other}))[0]
        np.testing.assert_allclose(got[: time + 1], expected[: time + 1], **TOLERANCE)
        assert np.abs(got[time + 1] - expected[time + 1]).max() > 1e-3


def test_learned_positions_end():
    model = make(positions={"kind": "learned", "max_length": 3})
    assert model.max_target_length == 3 and make_conv().max_target_length is None
    with pytest.raises(ValueError, match="`max_length`.*length=4, max_length=3"):
        model(BLOCKS.inputs())


def test_no_attention_to_a_source():
    with pytest.raises(ValueError, match="no attention to a source"):
        make().get_initial_state(2, return_attention=True)


def test_dropout_of_the_adaptive_softmax_acts_when_asked():
    model = make(adaptive_softmax={**ADAPTIVE, "dropout": 0.5}, dropout=0.0)
    features = model(check_model.tensors(BLOCKS.inputs()))
    labels = ops.full((3, 4), 22, dtype="int32")  # a word of the last tail
    plain = to_numpy(model.log_prob(features, labels))
    same = to_numpy(model.log_prob(features, labels, training=False))
    np.testing.assert_array_equal(same, plain)
    assert np.any(to_numpy(model.log_prob(features, labels, training=True)) != plain)
    total = to_numpy(model.negative_log_likelihood(features, labels))
    assert np.any(
        to_numpy(model.negative_log_likelihood(features, labels, training=True))
        != total
    )


TIED = dict(
    adaptive_softmax=ADAPTIVE, adaptive_input=ADAPTIVE, tie_adaptive_weights=True
)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(size=0), "`vocabulary_size`.*=0"),
        (dict(num_layers=0), "`num_layers`.*=0"),
        (dict(hidden_dim={"encoder": 8, "decoder": 8}), "`hidden_dim`.*encoder"),
        (dict(mixer={"encoder": "attention"}), "`mixer`.*encoder"),
        (dict(mixer=["attention"] * 3), "`mixer`.*2 layers"),
        (dict(num_heads=3, mixer="attention"), "multiple of `num_heads`"),
        (dict(share_embeddings="all"), "`share_embeddings`.*True or False.*all"),
        (dict(share_embeddings=True, output_dim=5), "`output_dim`.*=5.*width 8"),
        (
            dict(share_embeddings=True, adaptive_softmax=ADAPTIVE),
            "tie_adaptive_weights",
        ),
        (dict(share_embeddings=True, adaptive_input=ADAPTIVE), "tie_adaptive_weights"),
        (dict(tie_adaptive_weights=True), "needs `adaptive_softmax` and"),
        (dict(tie_adaptive_projections=True), "needs `tie_adaptive_weights`"),
        (dict(adaptive_softmax=[10]), r"`adaptive_softmax`.*'cutoffs'.*\[10\]"),
        (dict(adaptive_softmax={}), "`adaptive_softmax`.*'cutoffs'"),
        (dict(adaptive_softmax={"cutoffs": [9], "div": 3}), "`adaptive_softmax`.*div"),
        (
            dict(adaptive_softmax={"cutoffs": [9, 8]}),
            r"`cutoffs`.*increasing.*\[9, 8\]",
        ),
        (dict(adaptive_softmax={"cutoffs": [24]}), "`cutoffs`.*24.*23"),
        (dict(adaptive_softmax={"cutoffs": [2, 4, 6, 8]}), "factor.*width of 8"),
        (dict(adaptive_softmax={**ADAPTIVE, "dropout": 1}), "`dropout`.*=1"),
        (
            dict(adaptive_input={**ADAPTIVE, "dropout": 0.1}),
            "`adaptive_input`.*dropout",
        ),
        (
            dict(TIED, adaptive_input={"cutoffs": [9]}),
            "`(cutoffs|factor)` must be that",
        ),
        (dict(TIED, embedding_dim=4), "as wide as `adaptive_input.embedding_dim`.*4"),
        (dict(output_dim=0), "`output_dim`.*=0"),
        (dict(special_ids={"unk": 23}), "`special_ids`.*23.*vocabulary_size=23"),
        (dict(seed=True), "`seed`.*True"),
    ],
)
def test_wrong_arguments_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        make(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(size=-1), "`vocabulary_size`.*-1"),
        (dict(embedding_dim=0), "`embedding_dim`.*=0"),
        (dict(convolutions=[(8,)]), r"`convolutions`.*layer 1 is \(8,\)"),
        (dict(dropout=2), "`dropout`.*=2"),
        (dict(adaptive_softmax=4), "`adaptive_softmax`.*=4"),
    ],
)
def test_wrong_arguments_of_the_gated_model_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        make_conv(**options)
