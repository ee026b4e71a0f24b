"""What a user of any model relies on, checked alike for all families.

Models are built once per configuration and shared: no check changes their weights.
`Family` says how a family is made, fed and stepped. Shapes are tiny, for every check
of a model compiles anew.
"""

import dataclasses
import json
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from tests.backends import (
    UNCOMPILED,
    cheaply,
    compiled,
    layer_gradients,
    to_numpy,
)

VOCABULARY, PAD = 23, 1
TOLERANCE = dict(rtol=1e-4, atol=1e-4)
# Sentences of 5, 2 and 4 tokens; targets of 4, 3 and 2. The middle target has a bos.
SOURCES = np.array([[5, 6, 7, 22, 2], [8, 2, 1, 1, 1], [9, 4, 5, 2, 1]], "int32")
TARGETS = np.array([[2, 5, 6, 7], [2, 21, 0, 1], [2, 9, 1, 1]], "int32")
LENGTHS = np.array([4, 3, 2])


@dataclasses.dataclass(frozen=True)
class Family:
    """One model class with small sizes, `make(**options)`, and what it is fed."""

    make: Callable
    has_source: bool

    def inputs(self, rows=slice(None)):
        """The sentences above as the model takes them."""
        inputs = {"target_ids": TARGETS[rows]}
        if self.has_source:
            inputs["source_ids"] = SOURCES[rows]
        return inputs

    def start(self, model, inputs, **options):
        """The state before the first step."""
        if self.has_source:
            return model.get_initial_state(inputs["source_ids"], **options)
        return model.get_initial_state(ops.shape(inputs["target_ids"])[0], **options)


def randomize(model, scale=0.4, seed=0):
    """Give every float weight numbers that differ, biases and gains too."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "float" in keras.backend.standardize_dtype(weight.dtype):
            weight.assign(scale * rng.normal(size=weight.shape))
    return model


def tensors(inputs):
    return {name: ops.convert_to_tensor(ids) for name, ids in inputs.items()}


def scores(model, inputs, **options):
    """(B, T, V), of adaptive models too, whose softmax is not in the graph."""
    outputs = model(tensors(inputs), **options)
    if getattr(model, "adaptive_softmax", None) is not None:
        outputs = model.adaptive_softmax.full_log_prob(outputs)
    return outputs


def logits_of(model, inputs):
    """The same as an array."""
    return to_numpy(cheaply(lambda inputs: scores(model, inputs))(tensors(inputs)))


def real(values):
    """Those at real target positions of (3, T, ...)."""
    mask = np.arange(values.shape[1])[None] < LENGTHS[:, None]
    return values[mask]


def check_config(model):
    """The configuration is plain JSON and makes the same model again."""
    config = model.get_config()
    again = type(model).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    shapes = [weight.shape for weight in model.weights]
    assert [weight.shape for weight in again.weights] == shapes
    return again


def check_copies(family, model, folder):
    """Weights go through a file into a model of the configuration; `summary` works."""
    inputs, expected = family.inputs(), logits_of(model, family.inputs())
    again = check_config(model)
    assert np.abs(logits_of(again, inputs) - expected).max() > 0.01
    model.save_weights(folder / "model.weights.h5")
    again.load_weights(folder / "model.weights.h5")
    np.testing.assert_allclose(logits_of(again, inputs), expected, **TOLERANCE)
    lines = []
    model.summary(print_fn=lambda line, **kwargs: lines.append(line))
    assert f"{model.count_params():,}" in "\n".join(lines)


def check_clone(family, model):
    """Keras clones the graph alone: a plain functional model of the same outputs.

    Not for tied adaptive layers: Keras makes every layer anew from its configuration,
    and so two of the one that they share.
    """
    inputs = tensors(family.inputs())
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    expected = to_numpy(model(inputs))
    np.testing.assert_allclose(to_numpy(clone(inputs)), expected, **TOLERANCE)


def check_modes(family, model):
    """Eager = graph of unknown shapes = XLA; predict sees the same."""
    inputs = tensors(family.inputs())
    expected = to_numpy(model(inputs))
    assert keras.backend.standardize_dtype(model(inputs).dtype) == "float32"
    got = to_numpy(compiled(lambda x: model(x))(inputs))
    np.testing.assert_allclose(got, expected, **TOLERANCE)
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    signature = {name: tf.TensorSpec((None, None), tf.int32) for name in inputs}
    graph = tf.function(lambda x: model(x), input_signature=[signature])
    np.testing.assert_allclose(graph(inputs), expected, **TOLERANCE)
    one = {name: ids[1:2, :2] for name, ids in inputs.items()}
    np.testing.assert_allclose(graph(one), model(one), **TOLERANCE)


def check_padding(family, model):
    """Neither padding nor the other sentences of a batch change a result."""
    expected = logits_of(model, family.inputs())
    assert np.all(np.isfinite(expected))
    pad = np.full((3, 2), PAD, "int32")
    for side, where in (("source_ids", 0), ("source_ids", 1), ("target_ids", 1)):
        inputs = family.inputs()
        if side in inputs:
            parts = [pad, inputs[side]] if where == 0 else [inputs[side], pad]
            inputs[side] = np.concatenate(parts, axis=1)
            got = logits_of(model, inputs)[:, : TARGETS.shape[1]]
            np.testing.assert_allclose(real(got), real(expected), **TOLERANCE)
    for row, length in enumerate(LENGTHS):
        inputs = {"target_ids": TARGETS[row : row + 1, :length]}
        if family.has_source:
            source = SOURCES[row]
            inputs["source_ids"] = source[None, source != PAD]
        got = logits_of(model, inputs)[0]
        np.testing.assert_allclose(got, expected[row, :length], **TOLERANCE)


def with_a_row_of_padding(family):
    inputs = family.inputs()
    for name, ids in inputs.items():
        inputs[name] = np.concatenate([ids, np.full_like(ids[:1], PAD)])
    return inputs


def gradients(model, inputs):
    """Of the sum of the squared outputs, for every trainable weight, as arrays."""
    found = layer_gradients(model, lambda: scores(model, inputs, training=False))
    missing = [
        weight.path
        for weight, gradient in zip(model.trainable_variables, found, strict=True)
        if gradient is None
    ]
    assert not missing, f"no gradient: {missing}"
    return [to_numpy(ops.convert_to_tensor(gradient)) for gradient in found]


def check_gradients(family, model):
    """Somewhere far from zero for every weight; finite with a row of padding alone.

    But for the biases of attention's keys: softmax does not see them. The row disturbs
    no other.
    """
    inputs = with_a_row_of_padding(family)
    got = logits_of(model, inputs)
    assert np.all(np.isfinite(got))
    expected = logits_of(model, family.inputs())
    np.testing.assert_allclose(real(got[:3]), real(expected), **TOLERANCE)
    found = gradients(model, inputs)
    assert all(np.all(np.isfinite(gradient)) for gradient in found)
    sizes = {
        weight.path: np.abs(gradient).max()
        for weight, gradient in zip(model.trainable_variables, found, strict=True)
        if weight.name != "key_bias"
    }
    dead = [path for path, size in sizes.items() if not size > 1e-6]
    assert not dead, dead


def shapes_of(state):
    return [tuple(ops.shape(leaf)) for leaf in keras.tree.flatten(state)]


def check_steps(family, model, splits=((1, 1, 1, 1), (4,), (1, 3))):
    """After each chunk of any split: the logits of the full pass at its last token."""
    inputs = family.inputs()
    full = logits_of(model, inputs)
    for split in splits:
        state, start = family.start(model, inputs, max_length=6), 0
        shapes = shapes_of(state)
        for size in split:
            ids = ops.convert_to_tensor(TARGETS[:, start : start + size])
            logits, state = model.step(ids, state)
            start += size
            assert keras.backend.standardize_dtype(logits.dtype) == "float32"
            assert shapes_of(state) == shapes, "the state must keep its shapes"
            np.testing.assert_allclose(
                to_numpy(logits), full[:, start - 1], **TOLERANCE, err_msg=str(split)
            )


def check_beams(family, model):
    """Three beams of a sentence = the sentence three times, its source held once."""
    inputs = family.inputs()
    targets = np.random.default_rng(3).integers(3, VOCABULARY, (9, 3)).astype("int32")
    state = family.start(model, inputs, num_beams=3, max_length=6)
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


def check_loop(family, model):
    """Steps inside `while_loop`: in a graph of unknown shapes and under XLA."""

    def run(inputs):
        ids = ops.transpose(inputs["target_ids"])
        length, rows = ops.shape(ids)
        state = family.start(model, inputs, max_length=length)
        # What a search asks for: graphs know that the state keeps its shapes.
        logits = ops.zeros((length, rows, VOCABULARY), dtype="float32")

        def step(time, logits, state):
            new = ops.reshape(ops.take(ids, time, axis=0), (-1, 1))
            found, state = model.step(new, state)
            place = ops.reshape(time, (1, 1))
            return time + 1, ops.scatter_update(logits, place, found[None]), state

        loop = (ops.zeros((), dtype="int32"), logits, state)
        _, logits, _ = ops.while_loop(lambda time, *_: time < length, step, loop)
        return ops.transpose(logits, (1, 0, 2))

    inputs = family.inputs()
    expected = logits_of(model, inputs)
    inputs = tensors(inputs)
    np.testing.assert_allclose(
        to_numpy(compiled(run)(inputs)), expected, **TOLERANCE, err_msg="XLA"
    )
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        signature = {name: tf.TensorSpec((None, None), tf.int32) for name in inputs}
        graph = tf.function(run, input_signature=[signature], autograph=False)
        np.testing.assert_allclose(graph(inputs), expected, **TOLERANCE)


def check_policy(family, model, policy):
    """Close to the float32 model, in float32, by the full pass and by steps."""
    other = type(model).from_config({**model.get_config(), "dtype": policy})
    other.set_weights(model.get_weights())
    assert other.get_config()["dtype"] == other.dtype_policy.name == policy
    assert other.compute_dtype == policy.removeprefix("mixed_")
    inputs = family.inputs()
    expected, got = logits_of(model, inputs), logits_of(other, inputs)
    assert got.dtype == ("float64" if policy == "float64" else "float32")
    limit = {"mixed_bfloat16": 2e-2, "mixed_float16": 3e-3, "float64": 1e-6}[policy]
    scale = limit * np.abs(expected).max()
    assert np.abs(real(got) - real(expected)).max() < scale
    state = family.start(other, inputs, max_length=4)
    logits, state = other.step(TARGETS[:, :1], state)
    logits, state = other.step(TARGETS[:, 1:2], state)
    assert np.abs(to_numpy(logits) - got[:, 1]).max() < scale


def check_attention(family, model):
    """Sums to 1 over real tokens, and is what the steps keep in their state."""
    inputs = family.inputs()
    weights = to_numpy(model.attention_weights(tensors(inputs)))
    assert weights.dtype == "float32"
    assert weights.shape == (3, TARGETS.shape[1], SOURCES.shape[1])
    assert np.all(weights >= 0)
    padding = np.broadcast_to((SOURCES == PAD)[:, None], weights.shape)
    assert np.all(weights[padding] == 0)
    state = model.get_initial_state(SOURCES, num_beams=2, return_attention=True,
                                    max_length=6)  # fmt: skip
    assert np.all(to_numpy(state["beams"]["attention"]) == 0)
    targets = np.repeat(TARGETS, 2, axis=0)
    for start, end in ((0, 1), (1, 3), (3, 4)):
        _, state = model.step(targets[:, start:end], state)
        kept = to_numpy(state["beams"]["attention"])
        expected = np.repeat(weights[:, end - 1], 2, axis=0)
        np.testing.assert_allclose(kept, expected, atol=1e-5)
    plain = model.get_initial_state(SOURCES, max_length=6)
    assert "attention" not in plain["beams"]
    return weights


def seeds_of(model):
    """The start of every stream of random numbers in the model."""
    states = [v for v in model.non_trainable_variables if "seed" in v.path]
    return [tuple(ops.convert_to_numpy(state).tolist()) for state in states]


def check_seeds(family, **options):
    """Same seed, same dropout; another seed or none, another; layers all differ."""
    inputs = tensors(family.inputs())
    models = [family.make(**options, seed=seed) for seed in (7, 7, 8, None)]
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


def loss_function(labels, logits):
    """Cross-entropy over labels that are no padding."""
    found = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True, ignore_class=PAD
    )
    return ops.sum(found) / ops.sum(ops.cast(ops.not_equal(labels, PAD), found.dtype))


def check_fit(family, model, loss=loss_function):
    """A step of `fit` moves every trainable weight, `evaluate` sees the loss fall."""
    inputs = {name: ids[:2] for name, ids in family.inputs().items()}
    labels = np.array([[5, 6, 7, 2], [21, 0, 2, 1]], "int32")
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=UNCOMPILED)
    before = [to_numpy(weight) for weight in model.trainable_variables]
    losses = model.fit(inputs, labels, epochs=4, verbose=0).history["loss"]
    assert np.all(np.isfinite(losses)) and losses[-1] < losses[0]
    for weight, old in zip(model.trainable_variables, before, strict=True):
        new = to_numpy(weight)
        assert np.all(np.isfinite(new))
        assert weight.name == "key_bias" or np.any(new != old), weight.path
