"""GLU and the modules of the papers against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    GLU,
    DynamicConvModule,
    LightConvModule,
    QueryConvModule,
    SurplusDynamicConv,
)
from tests.backends import to_numpy
from tests.layers.values import dense, lengths_mask, random, sigmoid, softmax
from tests.ops import oracle

INPUTS = random(2, 6, 4)
MASK = lengths_mask([6, 3], 6)


def gate(values, kind):
    if kind == "none":
        return values
    first, second = np.split(values, 2, axis=-1)
    return (np.tanh(first) if kind == "gau" else first) * sigmoid(second)


def test_glu():
    expected = INPUTS[..., :2] * sigmoid(INPUTS[..., 2:])
    np.testing.assert_allclose(to_numpy(GLU()(INPUTS)), expected, rtol=1e-5)
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


@pytest.mark.parametrize("use_glu", [True, False])
@pytest.mark.parametrize("module_class", [LightConvModule, DynamicConvModule])
def test_modules_equal_their_formula(module_class, use_glu):
    module = module_class(
        2, 3, conv_dim=6, use_glu=use_glu, kernel_softmax=use_glu, padding="causal"
    )
    normal = softmax if use_glu else np.asarray
    outputs = to_numpy(module(INPUTS, mask=MASK))
    values = gate(dense(module.input_projection, INPUTS), "glu" if use_glu else "none")
    values = np.where(MASK[..., None], values, 0)
    if module_class is LightConvModule:
        kernel = normal(to_numpy(module.convolution.kernel))
    else:
        logits = values @ to_numpy(module.convolution.kernel_generator.kernel)
        kernel = normal(logits.reshape(2, 6, 2, 3))
    hidden = oracle.convolve(values, kernel, "causal")
    expected = dense(module.output_projection, hidden)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "glu", "gau"])
@pytest.mark.parametrize(("groups", "compat"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("permute", [False, True])
def test_query_projected_module_equals_its_formula(kind, groups, compat, permute):
    """spec/fairseq.md 6.1 and 6.2, groups and heads as loops."""
    heads, taps, conv_dim, query_dim = 2, 3, 8, 6
    module = QueryConvModule(
        heads, taps, conv_dim=conv_dim, query_dim=query_dim, gate=kind,
        query_groups=groups, compat=compat, permute_channels=permute, seed=4,
    )  # fmt: skip
    outputs = to_numpy(module(INPUTS, mask=MASK))
    values = gate(dense(module.input_projection, INPUTS), kind)
    if permute:
        order = to_numpy(module.permutation).astype(int)
        assert sorted(order) == list(range(conv_dim))
        values = values[..., order]
    values = np.where(MASK[..., None], values, 0)
    query = gate(dense(module.query_projection, INPUTS), kind)
    query = np.where(MASK[..., None], query, 0)
    generator = to_numpy(module.convolution.kernel_generator.kernel)
    width = query_dim // groups
    kernel = np.zeros((2, 6, groups * heads, taps))
    for group in range(groups):
        made = query[..., group * width : (group + 1) * width] @ generator
        per_head = made.reshape(2, 6, heads, -1)
        if compat:
            assert per_head.shape[-1] == groups * taps
        kernel[:, :, group * heads : (group + 1) * heads] = softmax(per_head)[
            ..., :taps
        ]
    hidden = oracle.convolve(values, kernel, "same")
    expected = dense(module.output_projection, hidden)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


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


def test_input_dropout_and_drop_connect_draw_other_numbers():
    module = LightConvModule(2, 3, input_dropout=0.5, weight_dropout=0.5, seed=3)
    module.build(INPUTS.shape)
    first, second = (
        to_numpy(variable).tolist()
        for variable in module.non_trainable_variables
        if "seed" in variable.path
    )
    assert first != second


def test_wrong_combinations():
    with pytest.raises(ValueError, match="multiple of `num_heads`"):
        LightConvModule(3, 3)(INPUTS)
    with pytest.raises(ValueError, match="`renormalize_padding` is not defined here"):
        SurplusDynamicConv(2, 3, renormalize_padding=True)
