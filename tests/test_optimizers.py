"""AdamW equals Keras' own, step by step, wherever it runs."""

import keras
import numpy as np
import pytest

from keras_seqconv.optimizers import AdamW
from tests.backends import to_numpy

SETTINGS = [
    {},
    {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-8, "weight_decay": 1e-2},
    {"amsgrad": True},
    {"global_clipnorm": 0.1, "gradient_accumulation_steps": 2},
]


class OneHot(keras.layers.Layer):
    """Ids to unit vectors: with a `Dense` behind it, an embedding of dense gradient."""

    def call(self, inputs):
        return keras.ops.one_hot(keras.ops.cast(inputs, "int32"), 20)


def model_with(optimizer, jit_compile=False, embedding=False):
    keras.utils.set_random_seed(1)
    start = keras.initializers.RandomNormal(seed=2)
    table = [OneHot(), keras.layers.Dense(8, use_bias=False, kernel_initializer=start)]
    if embedding:
        table = [keras.layers.Embedding(20, 8, embeddings_initializer=start)]
    layers = [*table, keras.layers.Dense(8, "tanh"), keras.layers.Dense(20)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    return model


def trained(optimizer, steps=7, **options):
    rng = np.random.default_rng(0)
    model = model_with(optimizer, **options)
    for _ in range(steps):
        ids = rng.integers(0, 20, (6, 5))
        model.train_on_batch(ids, (ids + 1) % 20)
    return model


@pytest.mark.parametrize("settings", SETTINGS)
def test_same_weights_as_keras(settings):
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)
    ours = trained(AdamW(schedule, **settings))
    theirs = trained(keras.optimizers.AdamW(schedule, **settings))
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=2e-5, atol=1e-6)


def test_repeated_ids_of_an_embedding_are_summed_first():
    """Keras would square the gradient of each occurrence on its own (TensorFlow)."""
    sparse = trained(AdamW(1e-2), embedding=True)
    dense = trained(AdamW(1e-2))
    for one, other in zip(sparse.weights, dense.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=2e-4, atol=2e-6)


@pytest.mark.tensorflow
def test_compiled_step_and_mixed_precision():
    plain, compiled = trained(AdamW(1e-2)), trained(AdamW(1e-2), jit_compile=True)
    for one, other in zip(plain.weights, compiled.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-4, atol=1e-6)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = trained(AdamW(1e-2))
    finally:
        keras.config.set_dtype_policy(before)
    assert all(np.isfinite(to_numpy(weight)).all() for weight in model.weights)


def test_state_survives_saving(tmp_path):
    model = trained(AdamW(1e-2, weight_decay=0.0))
    model.save(tmp_path / "model.keras")
    objects = {"OneHot": OneHot}
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects=objects)
    assert type(loaded.optimizer) is AdamW
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    ids = np.arange(20).reshape(4, 5)
    for each in (model, loaded):
        each.train_on_batch(ids, ids)
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-5, atol=1e-7)
