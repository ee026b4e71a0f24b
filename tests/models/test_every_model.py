"""What a user of any model relies on, checked alike for all families."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from tests.backends import compiled, layer_gradients, to_numpy
from tests.cases import few_on_jax, quick_and_slow
from tests.models import families
from tests.models.families import (
    ADAPTIVE,
    LENGTHS,
    PAD,
    SOURCES,
    TARGETS,
    TOLERANCE,
    VOCABULARY,
    cases,
    each_model,
    inputs_of,
    logits_of,
    make,
    model_of,
    scores,
    start,
    tensors,
)
from tests.processes import run_python


@cases(("own", "lm_tied_projections", "conv_s2s"), ("mixed", "sides"))
def test_configuration_weights_file_and_clone(name, tmp_path):
    """The configuration is plain JSON and makes the same model; `summary` works."""
    model = model_of(name)
    inputs, expected = inputs_of(model), logits_of(model, inputs_of(model))
    config = model.get_config()
    again = type(model).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    shapes = [weight.shape for weight in model.weights]
    assert [weight.shape for weight in again.weights] == shapes
    assert np.abs(logits_of(again, inputs) - expected).max() > 0.01
    model.save_weights(tmp_path / "model.weights.h5")
    again.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(logits_of(again, inputs), expected, **TOLERANCE)
    lines = []
    model.summary(print_fn=lambda line, **kwargs: lines.append(line))
    assert f"{model.count_params():,}" in "\n".join(lines)
    # Keras clones the graph alone: a plain functional model of the same outputs. Of
    # tied adaptive layers it would make two.
    if "tied" not in name:
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        inputs = tensors(inputs)
        expected = to_numpy(model(inputs))
        np.testing.assert_allclose(to_numpy(clone(inputs)), expected, **TOLERANCE)


@cases(("conv_s2s",), ("mixed",))
def test_eager_graph_of_unknown_shapes_and_xla_agree(name):
    model = model_of(name)
    inputs = tensors(inputs_of(model))
    expected = to_numpy(model(inputs))
    assert keras.backend.standardize_dtype(model(inputs).dtype) == "float32"
    got = to_numpy(compiled(lambda x: model(x))(inputs))
    np.testing.assert_allclose(got, expected, **TOLERANCE)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        signature = {name: tf.TensorSpec((None, None), tf.int32) for name in inputs}
        graph = tf.function(lambda x: model(x), input_signature=[signature])
        np.testing.assert_allclose(graph(inputs), expected, **TOLERANCE)
        one = {name: ids[1:2, :2] for name, ids in inputs.items()}
        np.testing.assert_allclose(graph(one), model(one), **TOLERANCE)


def real(values):
    """Those at real target positions of (3, T, ...)."""
    mask = np.arange(values.shape[1])[None] < LENGTHS[:, None]
    return values[mask]


@each_model
def test_neither_padding_nor_other_sentences_change_a_result(name):
    model = model_of(name)
    expected = logits_of(model, inputs_of(model))
    assert np.all(np.isfinite(expected))
    pad = np.full((3, 2), PAD, "int32")
    for side, left in (("source_ids", True), ("source_ids", False),
                       ("target_ids", False)):  # fmt: skip
        inputs = inputs_of(model)
        if side in inputs:
            both = [pad, inputs[side]] if left else [inputs[side], pad]
            inputs[side] = np.concatenate(both, axis=1)
            got = logits_of(model, inputs)[:, : TARGETS.shape[1]]
            np.testing.assert_allclose(real(got), real(expected), **TOLERANCE)
    for row, length in enumerate(LENGTHS):
        inputs = inputs_of(model, slice(row, row + 1))
        inputs["target_ids"] = inputs["target_ids"][:, :length]
        if "source_ids" in inputs:
            inputs["source_ids"] = SOURCES[row][None, SOURCES[row] != PAD]
        got = logits_of(model, inputs)[0]
        np.testing.assert_allclose(got, expected[row, :length], **TOLERANCE)


@each_model
def test_no_weight_is_dead_and_a_row_of_padding_is_finite(name):
    """But for the biases of attention's keys: softmax does not see them."""
    model = model_of(name)
    expected = logits_of(model, inputs_of(model))
    inputs = {
        side: np.concatenate([ids, np.full_like(ids[:1], PAD)])
        for side, ids in inputs_of(model).items()
    }
    got = logits_of(model, inputs)
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(real(got[:3]), real(expected), **TOLERANCE)
    gradients = layer_gradients(model, lambda: scores(model, inputs, training=False))
    for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None, weight.path
        gradient = to_numpy(ops.convert_to_tensor(gradient))
        assert np.all(np.isfinite(gradient)), weight.path
        assert weight.name == "key_bias" or np.abs(gradient).max() > 1e-6, weight.path


@each_model
def test_steps_equal_the_full_pass(name):
    families.check_steps(model_of(name))


@cases(("short_conv", "mixed", "conv_s2s"), ("sides", "lm_mixed"))
def test_beams(name):
    """Three beams of a sentence = the sentence three times, its source held once."""
    model = model_of(name)
    inputs = inputs_of(model)
    targets = np.random.default_rng(3).integers(3, VOCABULARY, (9, 3)).astype("int32")
    state = start(model, inputs, num_beams=3, max_length=6)
    repeated = {name: np.repeat(ids, 3, axis=0) for name, ids in inputs.items()}
    full = logits_of(model, {**repeated, "target_ids": targets})
    for leaf in keras.tree.flatten(state["beams"]):
        assert len(leaf.shape) == 0 or leaf.shape[0] == 9
    for leaf in keras.tree.flatten(state["shared"]):
        assert leaf.shape[0] == 3
    logits, state = model.step(targets[:, :2], state)
    np.testing.assert_allclose(to_numpy(logits), full[:, 1], **TOLERANCE)
    logits, state = model.step(targets[:, 2:], state)
    np.testing.assert_allclose(to_numpy(logits), full[:, 2], **TOLERANCE)


def in_policy(name, policy):
    model = model_of(name)
    other = type(model).from_config({**model.get_config(), "dtype": policy})
    other.set_weights(model.get_weights())
    return model, other


# JAX has float64 only behind a global switch.
POLICIES = few_on_jax(
    ["mixed_bfloat16", "mixed_float16"], ["mixed_bfloat16", "mixed_float16", "float64"]
)


@pytest.mark.parametrize("policy", POLICIES)
@cases(("mixed", "lm_tied_projections"), ("conv_s2s", "lm_mixed"))
def test_policies(name, policy):
    """Close to the float32 model, in float32, by the full pass and by steps."""
    model, other = in_policy(name, policy)
    assert other.get_config()["dtype"] == other.dtype_policy.name == policy
    assert other.compute_dtype == policy.removeprefix("mixed_")
    inputs = inputs_of(model)
    expected, got = logits_of(model, inputs), logits_of(other, inputs)
    assert got.dtype == ("float64" if policy == "float64" else "float32")
    limit = {"mixed_bfloat16": 2e-2, "mixed_float16": 3e-3, "float64": 1e-6}[policy]
    scale = limit * np.abs(expected).max()
    assert np.abs(real(got) - real(expected)).max() < scale
    state = start(other, inputs, max_length=4)
    logits, state = other.step(TARGETS[:, :1], state)
    logits, state = other.step(TARGETS[:, 1:2], state)
    assert np.abs(to_numpy(logits) - got[:, 1]).max() < scale


@cases(("mixed", "conv_s2s"))
def test_attention_weights(name):
    """Sum to 1 over real tokens, and are what the steps keep in their state."""
    model = model_of(name)
    weights = to_numpy(model.attention_weights(tensors(inputs_of(model))))
    assert weights.dtype == "float32"
    assert weights.shape == (3, TARGETS.shape[1], SOURCES.shape[1])
    assert np.all(weights >= 0)
    padding = np.broadcast_to((SOURCES == PAD)[:, None], weights.shape)
    assert np.all(weights[padding] == 0)
    # fairseq divides by the number of ConvS2S' layers, also those without attention.
    expected = 2 / 4 if name == "conv_s2s" else 1
    np.testing.assert_allclose(weights.sum(-1), expected, atol=1e-5)
    state = model.get_initial_state(SOURCES, num_beams=2, return_attention=True,
                                    max_length=6)  # fmt: skip
    assert np.all(to_numpy(state["beams"]["attention"]) == 0)
    targets = np.repeat(TARGETS, 2, axis=0)
    for begin, end in ((0, 1), (1, 3), (3, 4)):
        _, state = model.step(targets[:, begin:end], state)
        kept = to_numpy(state["beams"]["attention"])
        expected = np.repeat(weights[:, end - 1], 2, axis=0)
        np.testing.assert_allclose(kept, expected, atol=1e-5)
    plain = model.get_initial_state(SOURCES, max_length=6)
    assert "attention" not in plain["beams"]


RATES = ("dropout", "attention_dropout", "activation_dropout", "weight_dropout")


def test_numbers_of_numpy_and_maps_of_policies(tmp_path):
    """A vocabulary is often as large as `ids.max() + 1`; files bring all back."""
    five, rate = np.int64(5), np.float32(0.5)
    numbers = {"dropout": rate, "seed": five, "special_ids": {"unk": np.int32(0)}}
    wide = keras.dtype_policies.DTypePolicy("float32")
    policies = [
        keras.dtype_policies.DTypePolicyMap("mixed_bfloat16", entries)
        for entries in ({}, {"block_2_mixer": wide})
    ]
    for model in (
        families.language_model(five * 4, mixer="attention", **numbers),
        families.conv_s2s((five * 4, five * 5), convolutions=[(five, 3)], **numbers),
        *(families.language_model(mixer="attention", dtype=p) for p in policies),
    ):
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.get_config() == model.get_config()
        dtypes = [layer.compute_dtype for layer in again.layers]
        assert dtypes == [layer.compute_dtype for layer in model.layers]
    mixers = [again.get_layer(f"block_{number}_mixer") for number in (1, 2)]
    assert [mixer.compute_dtype for mixer in mixers] == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("factory", "options"),
    quick_and_slow([
        (families.encoder_decoder, dict(
            mixer={"encoder": [{"kind": "query_conv", "input_dropout": 0.3},
                               "light_conv"], "decoder": "dynamic_conv"},
            **dict.fromkeys(RATES, 0.3))),
        (families.conv_s2s, dict(dropout=0.3)),
    ], [
        (families.language_model, dict(adaptive_softmax={**ADAPTIVE, "dropout": 0.3},
                                       **dict.fromkeys(RATES, 0.3))),
        (families.conv_language_model, dict(dropout=0.3)),
    ]),
)  # fmt: skip
def test_seeds(factory, options):
    """Same seed, same dropout; another seed or none, another; layers all differ."""

    def seeds_of(model):
        states = [v for v in model.non_trainable_variables if "seed" in v.path]
        return [tuple(ops.convert_to_numpy(state).tolist()) for state in states]

    models = [factory(**options, seed=seed) for seed in (7, 7, 8, None)]
    inputs = tensors(inputs_of(models[0]))
    for model in models[1:]:
        model.set_weights(models[0].get_weights())
    # `set_weights` leaves the streams alone: they are no weights.
    assert len(set(seeds_of(models[0]))) == len(seeds_of(models[0])) > 0
    assert seeds_of(models[0]) == seeds_of(models[1])
    first, same, *others = (to_numpy(model(inputs, training=True)) for model in models)
    np.testing.assert_allclose(same, first, **TOLERANCE)
    for other in others:
        assert np.abs(other - first).max() > 1e-3
    assert np.abs(to_numpy(models[0](inputs, training=True)) - first).max() > 1e-3
    assert np.abs(to_numpy(models[0](inputs)) - first).max() > 1e-3


@cases(("mixed", "lm_tied_projections"), ("lm_adaptive",))
def test_log_prob_and_negative_log_likelihood(name):
    """The label's own log-probability; minus their sum over real labels."""
    model = model_of(name)
    outputs = model(tensors(inputs_of(model)))
    logits = logits_of(model, inputs_of(model)).astype("float64")
    if model.has_logits:
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.exp(logits).sum(-1), 1, atol=1e-4)
    labels = np.array([[3, 7, 13, 2], [0, 22, 2, 1], [12, 11, 6, 5]], "int32")
    expected = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    log_prob = model.log_prob(outputs, labels)
    assert keras.backend.standardize_dtype(log_prob.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(log_prob), expected, **TOLERANCE)
    total = to_numpy(model.negative_log_likelihood(outputs, labels))
    np.testing.assert_allclose(total, -expected[labels != PAD].sum(), rtol=1e-4)


@cases(("conv_s2s",), ("conv_lm_adaptive",))
def test_fold_keeps_outputs_steps_and_files(name, tmp_path):
    model = make(name)
    model.set_weights(model_of(name).get_weights())
    inputs = inputs_of(model)
    expected, size = to_numpy(model(inputs)), model.count_params()
    model.fold()
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, **TOLERANCE)
    assert model.count_params() < size
    assert not [weight for weight in model.weights if weight.name == "g"]
    families.check_steps(model, splits=((1, 3),))
    model.fold()  # twice is once
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, **TOLERANCE)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(again(inputs)), expected, **TOLERANCE)
    assert again.count_params() == model.count_params()


RELOAD = """
import sys, numpy as np, keras, keras_seqconv
for path in sys.argv[1:]:
    arrays = dict(np.load(path + ".npz"))
    expected = arrays.pop("expected")
    outputs = keras.saving.load_model(path)(arrays)
    outputs = keras.ops.cast(outputs, "float32")
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.slow
def test_every_family_reloads_in_a_fresh_process(tmp_path):
    kinds = ("query_conv", "lm_tied_projections")
    paths = []
    for model in (
        *map(model_of, kinds),
        families.encoder_decoder(dtype="mixed_bfloat16", share_embeddings="all"),
        families.conv_s2s(dtype="mixed_float16"),
    ):
        paths.append(str(tmp_path / f"{len(paths)}.keras"))
        inputs = inputs_of(model)
        expected = to_numpy(model(tensors(inputs)))
        np.savez(f"{paths[-1]}.npz", expected=expected, **inputs)
        model.save(paths[-1])
    run_python(RELOAD, *paths)
