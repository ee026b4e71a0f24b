"""Multi-head attention against Keras; rows without keys; attention to a source."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import MultiHeadAttention, Residual
from tests.backends import modes, to_numpy
from tests.cases import quick_and_slow
from tests.layers.values import assert_close, lengths_mask, random, randomized

BATCH, TARGET, SOURCE, CHANNELS, HEADS = 2, 5, 6, 8, 2


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


@pytest.mark.parametrize("masked", quick_and_slow([True], [False]))
def test_beams_share_a_memory(masked):
    """Outputs and weights are those of a call with the value repeated."""
    value, key = random(BATCH, SOURCE, 7), random(BATCH, SOURCE, 5, seed=4)
    mask = lengths_mask([0, 4], SOURCE) if masked else None
    layer = MultiHeadAttention(HEADS, output_dim=6)
    layer = randomized(layer, (None, None, CHANNELS), value.shape, key.shape)
    memory = layer.project_memory(value, key)
    assert memory["keys"].shape == memory["values"].shape == (BATCH, 2, SOURCE, 4)

    def both(inputs):
        memory = layer.project_memory(value, key, mask)
        return layer.attend(inputs, memory), layer.memory_weights(inputs, memory)

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
    alone = MultiHeadAttention(HEADS, canon="same")
    alone.build((None, None, CHANNELS))
    for call in (
        lambda: alone(random(2, 1, CHANNELS), random(2, SOURCE, CHANNELS)),
        lambda: alone.project_memory(random(2, SOURCE, CHANNELS)),
        lambda: alone.attend(random(2, 1, CHANNELS), memory),
    ):
        with pytest.raises(ValueError, match="takes no `value`.*canon='same'"):
            call()
    with pytest.raises(ValueError, match=f"`key` must .* with {CHANNELS} channels"):
        free.project_memory(random(2, SOURCE, 2 * CHANNELS))
    with pytest.raises(ValueError, match=f"`inputs` must .* with {CHANNELS} channels"):
        free.attend(random(2, 1, CHANNELS // 2), memory)
    with pytest.raises(ValueError, match="`mask` must have the shape"):
        free.project_memory(random(2, SOURCE, CHANNELS), mask=np.ones((2, 1, SOURCE)))


def test_what_users_of_keras_type():
    inputs = random(BATCH, TARGET, CHANNELS)
    with pytest.raises(ValueError, match="`key_dim` is called `head_dim`.*key_dim=4"):
        MultiHeadAttention(2, key_dim=4)
    layer = randomized(MultiHeadAttention(HEADS), inputs.shape)
    causal = randomized(MultiHeadAttention(HEADS, use_causal_mask=True), inputs.shape)
    assert_close(layer(inputs, inputs, use_causal_mask=True), to_numpy(causal(inputs)))
    weights = layer.attention_weights(inputs, use_causal_mask=True)
    assert_close(weights, to_numpy(causal.attention_weights(inputs)))
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
    memory = layer.project_memory(value, mask=mask)
    assert_close(layer.attend(inputs, memory), hidden)
    assert np.all(np.isfinite(hidden))


def test_masks_of_keys_and_values_count_together():
    """Given, and attached by Keras; a key that either hides changes nothing."""
    query, value = random(1, TARGET, CHANNELS), random(1, 4, CHANNELS, seed=1)
    key = random(1, 4, CHANNELS, seed=2)
    layer = randomized(MultiHeadAttention(HEADS), *[query.shape] * 3)
    expected = to_numpy(layer(query, value[:, 1:3], key[:, 1:3]))
    masks = {"value_mask": [[False, True, True, True]]}
    masks["key_mask"] = [[True, True, True, False]]
    assert_close(layer(query, value, key, **masks), expected)
    weights = to_numpy(layer.attention_weights(query, value, key, **masks))
    assert not weights[..., [0, 3]].any()
    value[:, 0] = key[:, 3] = -1
    attached = [keras.layers.Masking(-1.0)(x) for x in (value, key)]
    assert_close(layer(query, *attached), expected)
    block = Residual(layer)
    expected = to_numpy(block(query, value, key, **masks))
    assert_close(block(query, *attached), expected)
    with pytest.raises(ValueError, match="`key_mask` must have the shape"):
        layer(query, value, key, key_mask=np.ones((1, 5), bool))
    for shorter in (key[:, :3], keras.Input((3, CHANNELS), batch_size=1)):
        with pytest.raises(ValueError, match=r"`key` must have the shape \(1, 4, None"):
            layer(query, value, shorter)


@pytest.mark.parametrize("name", ["value_mask", "key_mask"])
def test_in_self_attention_all_masks_hide_keys(name):
    """That of the inputs, here of an embedding, stays when another one is given."""
    embedding = keras.layers.Embedding(9, CHANNELS, mask_zero=True)
    layer = randomized(MultiHeadAttention(HEADS), (None, None, CHANNELS))
    ids, hidden = np.array([[5, 6, 7, 8, 0, 0]]), np.array([[1, 0, 1, 1, 1, 1]], bool)
    expected = to_numpy(layer(embedding(ids[:, :4]), **{name: hidden[:, :4]}))
    found = to_numpy(layer(embedding(ids), **{name: hidden}))
    assert_close(found[:, :4], expected)
    weights = to_numpy(
        layer.attention_weights(embedding(ids), mask=ids > 0, **{name: hidden})
    )
    assert not weights[..., [1, 4, 5]].any()
