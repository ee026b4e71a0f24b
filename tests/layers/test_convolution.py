"""LightConv and DynamicConv: published values, DropConnect, half precision."""

import keras
import numpy as np
import pytest

from keras_seqconv.layers import DynamicConv, LightConv
from tests.backends import to_numpy
from tests.layers.values import random, run_steps, softmax

BOTH = [LightConv, DynamicConv]
INPUTS = random(2, 7, 6)


@pytest.mark.parametrize(
    ("renormalize", "expected"), [(False, [0.6, 1.8, 3.6]), (True, [3.0, 4.5, 6.0])]
)
def test_published_values_of_dynamic_conv_shorter_than_its_kernel(
    renormalize, expected
):
    """K = 5, even taps, inputs 3, 6, 9 (spec/fairseq.md 2.3 and 2.5), also in steps."""
    layer = DynamicConv(
        1,
        5,
        padding="causal",
        renormalize_padding=renormalize,
        kernel_initializer="zeros",
    )
    inputs = np.array([[[3.0], [6.0], [9.0]]], "float32")
    np.testing.assert_allclose(to_numpy(layer(inputs))[0, :, 0], expected, rtol=1e-6)
    steps = run_steps(layer.step, layer, inputs, [1, 1, 1])
    np.testing.assert_allclose(steps[0, :, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("granularity", ["shared", "position"])
@pytest.mark.parametrize("layer_class", BOTH)
def test_drop_connect(layer_class, granularity):
    """Taps are dropped or scaled by 1 / (1 - rate), with the chosen granularity."""
    chosen = {"weight_dropout_mask": granularity}
    if granularity == {LightConv: "shared", DynamicConv: "position"}[layer_class]:
        chosen = {}  # the default
    layer = layer_class(
        2, 3, weight_dropout=0.5, seed=3, kernel_initializer="zeros", **chosen
    )
    inputs = np.ones((4, 50, 2), "float32")
    inner = to_numpy(layer(inputs, training=True))[:, 1:-1]
    np.testing.assert_allclose(to_numpy(layer(inputs))[:, 1:-1], 1, rtol=1e-5)
    thirds = inner / (2 / 3)  # each of three taps is 0 or 1/3 * 2
    np.testing.assert_allclose(thirds, np.round(thirds), atol=1e-5)
    different = {tuple(np.round(row)) for row in thirds.reshape(-1, 2)}
    if granularity == "shared":
        assert len(different) == 1
        calls = [to_numpy(layer(inputs, training=True))[:, 1] for _ in range(10)]
        assert len({call.tobytes() for call in calls}) > 1
    else:
        assert len(different) > 4
        assert len({row.tobytes() for row in inner}) == 4  # each draws its own
        assert abs(inner.mean() - 1) < 0.1


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_softmax_is_computed_in_float32(policy):
    """Logits that differ by less than half precision shows still order the taps."""
    layer = LightConv(1, 2, padding="causal", dtype=policy)
    layer.build((None, None, 1))
    layer.kernel.assign([[100.0, 100.01]])
    kernel = to_numpy(layer.normalized_kernel())
    np.testing.assert_allclose(kernel, softmax(np.array([[100.0, 100.01]])), rtol=1e-5)


@pytest.mark.parametrize("renormalize_padding", [False, True])
def test_softmax_of_made_kernels_is_computed_in_float32(renormalize_padding):
    layer = DynamicConv(2, 5, renormalize_padding=renormalize_padding, dtype="bfloat16")
    layer(INPUTS)
    kernels = layer.kernels(INPUTS)
    assert keras.backend.standardize_dtype(kernels.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(kernels).sum(-1), 1, atol=1e-6)


def test_wrong_shapes_and_combinations():
    with pytest.raises(ValueError, match="multiple of `num_heads`.*6.*num_heads=4"):
        LightConv(4, 3)(INPUTS)
    with pytest.raises(ValueError, match="multiple of `query_groups`"):
        DynamicConv(3, 3, query_groups=2)
    with pytest.raises(ValueError, match="`query`.*multiple of `query_groups`"):
        DynamicConv(2, 3, query_groups=2)(INPUTS, query=INPUTS[..., :3])
    with pytest.raises(ValueError, match="`renormalize_padding`"):
        DynamicConv(3, 3, kernel_softmax=False, renormalize_padding=True)
