"""Multi-head attention against its formula and Keras; steps; attention to a source."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import MultiHeadAttention
from tests.backends import layer_gradients, modes, to_numpy
from tests.layers.values import (
    assert_close,
    lengths_mask,
    random,
    randomized,
)

BATCH, TARGET, SOURCE, CHANNELS, HEADS = 2, 5, 6, 8, 2


def reference(layer, query, value=None, key=None, allowed=True):
    """Outputs and probabilities by the formula, in float64."""
    value = query if value is None else value
    key = value if key is None else key
    weights = iter([to_numpy(weight).astype(float) for weight in layer.weights])
    query, key, value = (
        np.einsum("btc,chd->bhtd", x, next(weights)) + next(weights)[:, None]
        for x in (query, key, value)
    )
    odds = np.exp(query @ key.swapaxes(2, 3) / np.sqrt(key.shape[-1]))
    odds *= np.broadcast_to(allowed, odds[:, 0].shape)[:, None]
    shares = odds / np.maximum(odds.sum(-1, keepdims=True), 1e-300)
    outputs = np.einsum("bhtd,hdc->btc", shares @ value, next(weights))
    return outputs + next(weights), shares


SELF_CASES = {
    "plain": {},
    "padding": dict(mask=lengths_mask([3, 5], TARGET)),
    "left padding": dict(mask=lengths_mask([3, 5], TARGET)[:, ::-1]),
    "attention mask (T, S)": dict(attention_mask=random(TARGET, TARGET) > -0.5),
    "attention mask (B, T, S)": dict(
        attention_mask=random(BATCH, TARGET, TARGET) > -0.5
    ),
    "all masks": dict(
        mask=lengths_mask([3, 5], TARGET),
        attention_mask=random(BATCH, TARGET, TARGET) > -0.5,
    ),
}


def allowed_of(mask=None, attention_mask=None, value_mask=None, causal=False, size=5):
    allowed = np.ones((BATCH, TARGET, size), bool)
    if mask is not None:
        allowed &= mask[:, None]
    if value_mask is not None:
        allowed &= value_mask[:, None]
    if attention_mask is not None:
        allowed &= attention_mask
    if causal:
        allowed &= np.tri(TARGET, size, dtype=bool)
    return allowed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", SELF_CASES)
def test_self_attention_equals_the_formula(case, causal):
    masks = SELF_CASES[case]
    inputs = random(BATCH, TARGET, CHANNELS)
    layer = randomized(MultiHeadAttention(HEADS, use_causal_mask=causal), inputs.shape)
    allowed = allowed_of(**masks, causal=causal)
    real = masks.get("mask", np.ones((BATCH, TARGET), bool))
    zeroed = np.where(real[..., None], inputs, 0).astype("float32")
    outputs, weights = reference(layer, zeroed, allowed=allowed)
    assert_close(layer(inputs, **masks), outputs)
    got = layer.attention_weights(inputs, **masks)
    assert keras.backend.standardize_dtype(got.dtype) == "float32"
    assert_close(got, weights)


@pytest.mark.parametrize("with_key", [False, True])
def test_cross_attention_equals_the_formula(with_key):
    query, value = random(BATCH, TARGET, CHANNELS), random(BATCH, SOURCE, 7, seed=1)
    key = random(BATCH, SOURCE, 9, seed=2) if with_key else None
    shapes = [query.shape, value.shape] + ([key.shape] if with_key else [])
    layer = MultiHeadAttention(3, head_dim=4, output_dim=10)
    layer = randomized(layer, *shapes)
    masks = dict(
        value_mask=lengths_mask([4, 6], SOURCE),
        attention_mask=random(BATCH, TARGET, SOURCE) > -0.5,
    )
    allowed = allowed_of(**masks, size=SOURCE)
    outputs, weights = reference(layer, query, value, key, allowed)
    got = layer(query, value=value, key=key, **masks)
    assert_close(got, outputs)
    got = layer.attention_weights(query, value=value, key=key, **masks)
    assert_close(got, weights)


def test_equals_keras_with_the_same_weights():
    query, value = random(BATCH, TARGET, CHANNELS), random(BATCH, SOURCE, CHANNELS)
    value_mask = lengths_mask([4, 6], SOURCE)
    theirs = keras.layers.MultiHeadAttention(HEADS, CHANNELS // HEADS)
    theirs.build(query.shape, value.shape)
    ours = randomized(MultiHeadAttention(HEADS), query.shape, value.shape)
    # query, key, value and output, each kernel then bias: the order of Keras, too
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    theirs.set_weights(ours.get_weights())
    expected = theirs(query, value, value_mask=value_mask)
    assert_close(ours(query, value=value, value_mask=value_mask), to_numpy(expected))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_without_any_key_get_the_output_bias(policy, causal):
    mask = np.array([[False] * TARGET, [False, False, True, True, False]])
    layer = MultiHeadAttention(HEADS, use_causal_mask=causal, dtype=policy)
    layer = randomized(layer, (None, None, CHANNELS))
    inputs = random(BATCH, TARGET, CHANNELS)
    outputs = to_numpy(layer(inputs, mask=mask))
    bias = to_numpy(layer.output_bias)
    blind = ~allowed_of(mask=mask, causal=causal).any(-1)
    assert blind[0].all() and blind[1].any() == causal
    wanted = np.broadcast_to(bias, outputs.shape)
    np.testing.assert_allclose(outputs[blind], wanted[blind], rtol=1e-2)
    assert np.abs(outputs - bias)[~blind].max() > 0.1
    weights = to_numpy(layer.attention_weights(inputs, mask=mask))
    assert not np.any(np.moveaxis(weights, 1, 2)[blind])
    gradients = layer_gradients(layer, lambda x: layer(x, mask=mask), inputs)
    assert all(np.all(np.isfinite(to_numpy(g))) for g in gradients)
    assert not np.any(to_numpy(gradients[0])[0])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_attention_to_one_masked_and_one_real_key_is_exact(policy):
    """The masked logit vanishes however large the others are."""
    layer = MultiHeadAttention(1, dtype=policy)
    layer = randomized(layer, (None, None, 4))
    inputs = random(1, 2, 4) * np.array([[[1.0], [1e4]]], "float32")
    weights = layer.attention_weights(inputs, mask=np.array([[True, False]]))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_array_equal(to_numpy(weights)[0, 0], [[1, 0], [1, 0]])


def test_dropout_acts_on_probabilities_in_training_only():
    """Each row, head and query drops its own keys."""
    ones = np.ones((2, 40, 4), "float32")
    layer = MultiHeadAttention(2, dropout=0.5, seed=3)
    layer.build(ones.shape)
    # zero queries: uniform probabilities; values and outputs pass through
    layer.query_kernel.assign(np.zeros((4, 2, 2)))
    layer.value_kernel.assign(np.eye(4).reshape(4, 2, 2))
    layer.output_kernel.assign(np.eye(4).reshape(2, 2, 4))
    assert_close(layer(ones), ones)
    outputs = to_numpy(layer(ones, training=True))
    # 2/40 times the number of kept keys out of 40, the same in a head's channels
    kept = outputs[..., ::2] * 20
    np.testing.assert_allclose(outputs[..., 1::2] * 20, kept, atol=1e-4)
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-4)
    assert abs(kept.mean() - 20) < 1
    by_query = np.round(kept).transpose(0, 2, 1).reshape(4, 40)
    assert len(np.unique(by_query, axis=0)) == 4
    assert all(len(set(row)) > 3 for row in by_query)
    assert np.any(to_numpy(layer(ones, training=True)) != outputs)
    again = MultiHeadAttention(2, dropout=0.5, seed=3)
    again.build(ones.shape)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(to_numpy(again(ones, training=True)), outputs)
    assert not hasattr(MultiHeadAttention(1), "seed_generator")


def test_steps_past_the_maximum_are_nan():
    layer = MultiHeadAttention(HEADS, use_causal_mask=True)
    layer = randomized(layer, (None, None, CHANNELS))
    inputs = random(BATCH, 4, CHANNELS)
    for function in modes(layer.step).values():
        state = layer.get_initial_state(BATCH, max_length=6)
        for check in (np.isfinite, np.isnan, np.isnan):
            outputs, state = function(inputs, state)
            assert np.all(check(to_numpy(outputs)))
    with pytest.raises(ValueError, match="more positions"):
        layer.step(inputs, layer.get_initial_state(BATCH, 3))


@pytest.mark.parametrize("masked", [False, True])
def test_beams_share_a_memory(masked):
    """Outputs and weights are those of a call with the value repeated."""
    value, key = random(BATCH, SOURCE, 7), random(BATCH, SOURCE, 5, seed=4)
    mask = lengths_mask([0, 4], SOURCE) if masked else None
    layer = MultiHeadAttention(HEADS, output_dim=6)
    layer = randomized(layer, (None, None, CHANNELS), value.shape, key.shape)
    memory = layer.project_memory(value, key)
    assert memory["keys"].shape == memory["values"].shape == (BATCH, 2, SOURCE, 4)

    def both(inputs):
        memory = layer.project_memory(value, key)
        return layer.attend(inputs, memory, mask), layer.memory_weights(
            inputs, memory, mask
        )

    ways = modes(both)
    if "graph" in ways:
        import tensorflow as tf

        signature = [tf.TensorSpec((None, None, CHANNELS))]
        ways["unknown sizes"] = tf.function(both, signature, autograph=False)
    for beams, new in ((1, 1), (1, 3), (3, 2)):
        inputs = random(BATCH * beams, new, CHANNELS, seed=new)
        repeated = {
            "value": np.repeat(value, beams, 0),
            "key": np.repeat(key, beams, 0),
        }
        if masked:
            repeated["value_mask"] = np.repeat(mask, beams, 0)
        expected = to_numpy(layer(inputs, **repeated))
        weights = to_numpy(layer.attention_weights(inputs, **repeated))
        total = np.ones((BATCH * beams, HEADS, new))
        total[:beams] = 0 if masked else 1  # no token: no attention
        np.testing.assert_allclose(weights.sum(-1), total, atol=1e-5)
        for name, function in ways.items():
            outputs, shown = function(ops.convert_to_tensor(inputs))
            assert_close(outputs, expected, err_msg=name)
            assert_close(shown, weights, err_msg=name)


def test_memories_that_do_not_fit():
    free, causal = (
        randomized(MultiHeadAttention(HEADS, **options), (None, None, CHANNELS))
        for options in ({}, {"use_causal_mask": True})
    )
    memory = free.project_memory(random(2, SOURCE, CHANNELS))
    with pytest.raises(ValueError, match="multiple"):
        free.attend(random(3, 1, CHANNELS), memory)
    with pytest.raises(ValueError, match="use_causal_mask=True"):
        causal.attend(random(2, 1, CHANNELS), memory)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        ([(2, 5, 9)], "multiple of `num_heads`"),
        ([(2, 8)], "`inputs` must have shape"),
        ([(2, 5, None)], "`inputs` must have shape"),
        ([(2, 5, 8), (2, 8)], "`value` must have shape"),
        ([(2, 5, 8), (2, 6, 8), (2, 7, 8)], "same length"),
    ],
)
def test_bad_shapes_are_refused(shapes, match):
    with pytest.raises(ValueError, match=match):
        MultiHeadAttention(HEADS).build(*shapes)


def test_what_users_of_keras_type():
    inputs = random(BATCH, TARGET, CHANNELS)
    with pytest.raises(ValueError, match="`key_dim` is called `head_dim`.*key_dim=4"):
        MultiHeadAttention(2, key_dim=4)
    layer = randomized(MultiHeadAttention(HEADS), inputs.shape)
    causal = randomized(MultiHeadAttention(HEADS, use_causal_mask=True), inputs.shape)
    assert_close(layer(inputs, inputs, use_causal_mask=True), to_numpy(causal(inputs)))
    for shape in ((BATCH, 1, TARGET, TARGET), (TARGET, TARGET + 1), (BATCH,)):
        with pytest.raises(ValueError, match="`attention_mask` must have") as error:
            layer(inputs, attention_mask=np.ones(shape, bool))
        assert f"attention_mask.shape={shape}" in str(error.value)


def test_values_that_some_queries_may_not_see():
    """NaN of a memory reaches the queries that see it, and no others."""
    layer = randomized(MultiHeadAttention(HEADS), (None, None, CHANNELS))
    inputs, value = random(1, TARGET, CHANNELS), random(1, SOURCE, CHANNELS, seed=1)
    allowed = np.ones((TARGET, SOURCE), bool)
    allowed[:-1, 2] = False
    expected = to_numpy(layer(inputs, value, attention_mask=allowed))
    value[0, 2, 1] = np.nan
    got = to_numpy(layer(inputs, value, attention_mask=allowed))
    assert_close(got[0, :-1], expected[0, :-1])
    assert np.isnan(got[0, -1]).all()
    mask = np.arange(SOURCE)[None] != 2
    hidden = to_numpy(layer(inputs, value, value_mask=mask))
    assert_close(layer.attend(inputs, layer.project_memory(value), mask), hidden)
    assert np.all(np.isfinite(hidden))
