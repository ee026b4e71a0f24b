"""Weight normalisation: the kernel it makes, both layers, folding, the initializer."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import ConvS2SInitializer, WeightNormConv1D, WeightNormDense
from tests.backends import layer_gradients, to_numpy
from tests.cases import quick_and_slow
from tests.layers.formulas import kernel_of
from tests.layers.values import assert_close, random, randomized


def weights_of(layer):
    return [to_numpy(weight) for weight in (layer.v, layer.g, layer.bias)]


LAYERS = {
    "dense": lambda **kwargs: WeightNormDense(5, **kwargs),
    "same": lambda **kwargs: WeightNormConv1D(5, 4, **kwargs),
    "causal": lambda **kwargs: WeightNormConv1D(5, 4, padding="causal", **kwargs),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_first_kernel_is_the_sampled_one(make):
    layer = make(kernel_initializer=keras.initializers.RandomNormal(0, 0.7, seed=3))
    layer.build((None, None, 3))
    sampled = keras.initializers.RandomNormal(0, 0.7, seed=3)(layer.v.shape)
    assert_close(layer.effective_kernel(), to_numpy(sampled))
    first, other = make(), make()
    with keras.StatelessScope():
        first.build((None, None, 3))
    other.build((None, None, 3))
    v, g, _ = weights_of(first)
    lengths = np.sqrt(np.sum(v**2, axis=tuple(range(v.ndim - 1))))
    np.testing.assert_allclose(g, lengths, rtol=1e-5)
    assert np.any(to_numpy(other.v) != v)
    gain = make().kernel_initializer.get_config()["gain"]
    assert gain == (1.0 if layer.v.ndim == 2 else 4.0)


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_zero_direction_gives_zeros_and_finite_gradients(make):
    layer = make()
    layer.build((None, None, 3))
    v = to_numpy(layer.v)
    v[..., 1] = 0.0
    layer.v.assign(v)
    inputs = random(2, 7, 3)
    assert np.all(to_numpy(layer(inputs))[..., 1] == 0.0)
    for gradient in layer_gradients(layer, layer, inputs):
        assert np.all(np.isfinite(to_numpy(gradient)))
    layer.fold()
    assert np.all(to_numpy(layer(inputs))[..., 1] == 0.0)


def test_the_norm_does_not_overflow_in_half_precision():
    layer = WeightNormDense(5, dtype="float16")
    layer.build((None, 64))
    layer.v.assign(300 * np.ones((64, 5)))  # 300**2 is beyond float16
    layer.g.assign(np.arange(5))
    outputs = to_numpy(layer(np.ones((1, 64), "float32")))
    np.testing.assert_allclose(outputs[0], 8 * np.arange(5), rtol=2e-3)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_kernel_is_rounded_to_half_precision_only_once(policy):
    layer = WeightNormDense(64, dtype=policy)
    randomized(layer, (None, 16))
    layer.bias.assign(np.zeros(64))
    kernel = layer.effective_kernel()
    assert keras.backend.standardize_dtype(kernel.dtype) == "float32"
    assert_close(kernel, kernel_of(layer))
    # The products with ones and zeros are exact.
    outputs = layer(np.eye(16, dtype="float32"))
    rounded = ops.cast(kernel, layer.compute_dtype)
    assert np.array_equal(to_numpy(outputs), to_numpy(rounded))


@pytest.mark.parametrize(
    ("name", "policy"),
    quick_and_slow(
        [("dense", "mixed_bfloat16"), ("causal", "float32")],
        [("same", "float32"), ("same", "mixed_bfloat16")],
    ),
)
def test_folding_keeps_the_outputs_also_after_reloading(name, policy, tmp_path):
    make = LAYERS[name]
    layer = make(dtype=policy)
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, layer(inputs))
    randomized(layer)
    x = random(2, 7, 3)
    before = model.predict(x, verbose=0)
    kernel = kernel_of(layer)
    layer.fold()
    layer.fold()
    # A function that was traced before and one that is traced now.
    assert_close(model.predict(x, verbose=0), before)
    assert_close(model(x), before)
    assert layer.v is None and layer.g is None and layer.get_config()["folded"]
    assert_close(layer.kernel, kernel)
    assert [w.name for w in layer.trainable_weights] == ["kernel", "bias"]
    model.save(tmp_path / "folded.keras")
    again = keras.saving.load_model(tmp_path / "folded.keras")
    assert [w.name for w in again.trainable_weights] == ["kernel", "bias"]
    assert_close(again.predict(x, verbose=0), before)
    unbuilt = make()
    unbuilt.fold()
    unbuilt.build((None, None, 3))
    assert [w.name for w in unbuilt.weights] == ["kernel", "bias"]
    if keras.backend.backend() == "tensorflow":  # an export holds the kernel alone
        import tensorflow as tf

        model.export(tmp_path / "exported", verbose=False)
        served = tf.saved_model.load(tmp_path / "exported")
        assert len(served.variables) == 2
        assert_close(served.serve(x), before)


@pytest.mark.parametrize(
    "shape, fan_in", [((400, 500), 400), ((5, 80, 500), 400), ((3, 100, 1), 300)]
)
@pytest.mark.parametrize("dropout, gain", [(0.0, 1.0), (0.2, 4.0)])
def test_initializer_has_the_variance_of_the_paper(shape, fan_in, dropout, gain):
    initializer = ConvS2SInitializer(dropout=dropout, gain=gain, seed=1)
    values = to_numpy(initializer(shape))
    stddev = np.sqrt(gain * (1 - dropout) / fan_in)
    error = 5 * stddev / np.sqrt(values.size)  # five standard errors
    assert abs(values.mean()) < error
    assert abs(values.std() - stddev) < error
    if values.size > 1e5:
        assert np.abs(values).max() > 3 * stddev, "the distribution is truncated"
    again = keras.initializers.deserialize(keras.initializers.serialize(initializer))
    assert again.get_config() == {"dropout": dropout, "gain": gain, "seed": 1}
    assert np.array_equal(to_numpy(again(shape)), values)
