"""GLU in half precision, dropout of the modules, what does not fit together."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    GLU,
    LightConvModule,
    QueryConvModule,
    SurplusDynamicConv,
)
from tests.backends import to_numpy
from tests.layers.values import random

INPUTS = random(2, 6, 4)


def test_an_odd_width_cannot_be_halved():
    with pytest.raises(ValueError, match=r"`inputs` must be even.*\(2, 6, 3\)"):
        GLU()(INPUTS[..., :3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_glu_rounds_once(dtype):
    inputs = ops.cast(np.random.default_rng(0).normal(size=(64, 32)) * 4, dtype)
    outputs = GLU(dtype=dtype)(inputs)
    expected = GLU(dtype="float32")(ops.cast(inputs, "float32"))
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    # Rounded twice, by the sigmoid and by the product, a third of them would differ.
    different = ops.cast(outputs != ops.cast(expected, dtype), "float32")
    assert float(ops.mean(different)) < 0.001


@pytest.mark.parametrize("module_class", [LightConvModule, QueryConvModule])
def test_input_dropout_acts_before_the_projections(module_class):
    """In training only; the same inputs, dropped by hand, give the same outputs."""
    module = module_class(2, 3, input_dropout=0.5, seed=3)
    inputs = 1 + np.abs(INPUTS)
    plain = to_numpy(module(inputs))
    np.testing.assert_array_equal(to_numpy(module(inputs, training=False)), plain)
    seen = []
    projection = module.input_projection.call

    def noted(inputs, training=None):
        seen.append(to_numpy(inputs))
        return projection(inputs)

    module.input_projection.call = noted
    outputs = to_numpy(module(inputs, training=True))
    module.input_projection.call = projection
    (dropped,) = seen
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(dropped[kept], 2 * inputs[kept], rtol=1e-5)
    np.testing.assert_allclose(to_numpy(module(dropped)), outputs, atol=1e-5)
    assert np.any(to_numpy(module(inputs, training=True)) != outputs)
    assert not hasattr(module_class(2, 3), "seed_generator")


def test_wrong_combinations():
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        LightConvModule(3, 3)(INPUTS)
    with pytest.raises(ValueError, match="`renormalize_padding` is not defined here"):
        SurplusDynamicConv(2, 3, renormalize_padding=True)
