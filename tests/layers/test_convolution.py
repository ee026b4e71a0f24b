"""LightConv and DynamicConv against loops and published values."""

from functools import partial

import numpy as np
import pytest

from keras_seqconv.layers import DynamicConv, LightConv
from tests.backends import layer_gradients, to_numpy
from tests.layers.values import assert_close, lengths_mask, random, run_steps, softmax
from tests.ops import oracle

BOTH = [LightConv, DynamicConv]
INPUTS = random(2, 7, 6)
MASK = lengths_mask([7, 4], 7)


def dynamic_kernel(layer, query, mask=None):
    """(B, T, H, K), softmax of the generator; written from the definition.

    With a mask (B, T) over the taps that reach real positions only.
    """
    logits = query @ to_numpy(layer.kernel_generator.kernel)
    shape = (*query.shape[:2], layer.num_heads, layer.kernel_size)
    kernel = softmax(logits.reshape(shape))
    if mask is not None:
        left = oracle.padding_left(layer.kernel_size, layer.padding)
        for b, t, j in np.ndindex(*query.shape[:2], layer.kernel_size):
            s = t + j - left
            kernel[b, t, :, j] *= 0 <= s < mask.shape[1] and mask[b, s]
        kernel /= np.maximum(kernel.sum(-1, keepdims=True), 1e-30)
    return kernel


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("kernel_softmax", [True, False])
def test_light_conv_equals_the_loops(padding, kernel_softmax):
    layer = LightConv(
        3, 4, padding=padding, kernel_softmax=kernel_softmax, use_bias=True
    )
    layer.build(INPUTS.shape)
    layer.bias.assign(np.arange(6.0))
    kernel = to_numpy(layer.kernel)
    kernel = softmax(kernel) if kernel_softmax else kernel
    zeroed = np.where(MASK[..., None], INPUTS, 0)
    expected = oracle.convolve(zeroed, kernel, padding) + np.arange(6.0)
    outputs = to_numpy(layer(INPUTS, mask=MASK))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_dynamic_conv_equals_the_loops(padding, renormalize):
    """Kernels come from the zeroed inputs, as in fairseq's encoder."""
    layer = DynamicConv(
        3, 4, padding=padding, use_bias=True, renormalize_padding=renormalize
    )
    layer.build(INPUTS.shape)
    layer.bias.assign(np.arange(6.0))
    zeroed = np.where(MASK[..., None], INPUTS, 0)
    kernel = dynamic_kernel(layer, zeroed, MASK if renormalize else None)
    assert_close(layer.kernels(INPUTS, mask=MASK), kernel)
    expected = oracle.convolve(zeroed, kernel, padding) + np.arange(6.0)
    outputs = to_numpy(layer(INPUTS, mask=MASK))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_dynamic_conv_with_query_groups_equals_the_loops():
    """Group p of the query makes the kernels of heads p * H / P and following."""
    query = np.random.default_rng(1).normal(size=(2, 7, 4)).astype("float32")
    layer = DynamicConv(6, 3, query_groups=2)
    outputs = to_numpy(layer(INPUTS, query=query))
    weight = to_numpy(layer.kernel_generator.kernel)
    assert weight.shape == (2, 3 * 3)
    kernel = np.zeros((2, 7, 6, 3))
    for head in range(6):
        group, inside = divmod(head, 3)
        part = query[..., 2 * group : 2 * group + 2] @ weight
        kernel[:, :, head] = softmax(part[..., 3 * inside : 3 * inside + 3])
    assert_close(layer.kernels(INPUTS, query), kernel)
    expected = oracle.convolve(INPUTS, kernel, "same")
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


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


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "make", [LightConv, DynamicConv, partial(DynamicConv, renormalize_padding=True)]
)
def test_fully_masked_rows_give_zeros(make, policy):
    mask = np.array([[True] * 7, [False] * 7])
    layer = make(3, 4, dtype=policy)
    assert np.all(to_numpy(layer(INPUTS, mask=mask))[1] == 0)
    by_inputs, *_ = layer_gradients(layer, lambda x: layer(x, mask=mask), INPUTS)
    assert np.all(to_numpy(by_inputs)[1] == 0)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_softmax_is_computed_in_float32(policy):
    """Logits that differ by less than half precision shows still order the taps."""
    layer = LightConv(1, 2, padding="causal", dtype=policy)
    layer.build((None, None, 1))
    layer.kernel.assign([[100.0, 100.01]])
    kernel = to_numpy(layer.normalized_kernel())
    np.testing.assert_allclose(kernel, softmax(np.array([[100.0, 100.01]])), rtol=1e-5)


def test_wrong_shapes_and_combinations():
    with pytest.raises(ValueError, match="multiple of `num_heads`.*6.*num_heads=4"):
        LightConv(4, 3)(INPUTS)
    with pytest.raises(ValueError, match="multiple of `query_groups`"):
        DynamicConv(3, 3, query_groups=2)
    with pytest.raises(ValueError, match="`query`.*multiple of `query_groups`"):
        DynamicConv(2, 3, query_groups=2)(INPUTS, query=INPUTS[..., :3])
    with pytest.raises(ValueError, match="`renormalize_padding`"):
        DynamicConv(3, 3, kernel_softmax=False, renormalize_padding=True)
