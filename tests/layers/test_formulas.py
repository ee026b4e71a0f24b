"""Every layer, with options that change its formula, against NumPy."""

import keras
import numpy as np
import pytest

from keras_seqconv.layers import ConvS2SAttention, DynamicConv, MultiHeadAttention
from tests.backends import to_numpy
from tests.layers import formulas
from tests.layers.table import IDS, INPUTS, ROWS, SOURCE, VALUE, B, S, T, of, residual
from tests.layers.values import assert_close, random, randomized

# Holes, padding on both sides; a sentence without any token.
MASKS = {
    "holes": {
        T: np.array([[1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 1, 1]], bool),
        S: np.array([[1, 1, 1, 1, 1], [0, 1, 0, 0, 1]], bool),
    },
    "empty": {
        T: np.array([[1] * T, [0] * T], bool),
        S: np.array([[1] * S, [0] * S], bool),
    },
}
ATTENTION_MASKS = [random(T, T) > -0.5, random(B, T, T) > -0.5]


def variants():
    """Name, how the layer is made, further arguments, the name of its mask."""
    for padding in ("same", "causal"):
        options = {"padding": padding, "use_bias": True}
        for taps, softmax in ((4, True), (4, False), (9, True)):
            make = of("LightConv", 3, taps, kernel_softmax=softmax, **options)
            yield f"LightConv {padding} {taps} {softmax}", make, {}, "mask"
        for taps in (4, 9):
            make = of("DynamicConv", 3, taps, **options)
            yield f"DynamicConv {padding} {taps}", make, {}, "mask"
        for taps in (1, 4, 9):
            make = of("WeightNormConv1D", 5, taps, padding=padding)
            yield f"WeightNormConv1D {padding} {taps}", make, {}, None
            for filters, added in ((6, True), (5, False)):
                make = of("ConvS2SBlock", filters, taps, padding, residual=added)
                yield f"block {padding} {taps} {filters} {added}", make, {}, "mask"
    for name in ("LightConvModule", "DynamicConvModule"):
        for glu in (True, False):
            make = of(name, 2, 3, conv_dim=4, use_glu=glu, kernel_softmax=glu)
            yield f"{name} {glu}", make, {}, "mask"
    for gate in ("none", "glu", "gau"):
        for groups, compat, permute in ((1, False, True), (2, False, False),
                                        (2, True, True)):  # fmt: skip
            make = of(
                "QueryConvModule", 2, 3, conv_dim=8, query_dim=6, gate=gate,
                query_groups=groups, compat=compat, permute_channels=permute,
            )  # fmt: skip
            yield f"QueryConvModule {gate} {groups} {compat}", make, {}, "mask"
    for causal in (False, True):
        make = of("MultiHeadAttention", 2, use_causal_mask=causal)
        for mask in ATTENTION_MASKS:
            further = {"attention_mask": mask}
            yield f"attention {causal} {mask.ndim}", make, further, "mask"
    further = {"value": VALUE, "key": random(B, S, 3)}
    further["attention_mask"] = random(T, S) > -1
    make = of("MultiHeadAttention", 3, head_dim=4, output_dim=10)
    yield "attention to keys", make, further, "value_mask"
    make = of("AdaptiveInput", 11, 5, (4, 8), factor=2.0, embedding_dim=17)
    yield "AdaptiveInput", make, {"inputs": IDS}, None
    for first in (False, True):
        make = residual(9, mixer="FeedForward", normalize_first=first)
        yield f"residual {first}", make, {}, None


CASES = {
    f"{name}, {mask}": (make, further, mask_name, mask)
    for name, make, further, mask_name in [
        *variants(),
        *(
            (name, row.make, row.arguments(), mask)
            for name, row in ROWS.items()
            for mask in row.masks[-1:] or [None]
        ),
    ]
    for mask in (
        ["holes"] + ["none", "empty"] * (name in ROWS) if mask_name else ["none"]
    )
}


@pytest.mark.parametrize("case", CASES)
def test_layer_equals_its_formula(case):
    make, further, mask_name, mask = CASES[case]
    arguments = {"inputs": INPUTS, **further}
    layer = make()
    layer(**arguments)
    randomized(layer)
    if mask != "none":
        arguments[mask_name] = MASKS[mask][T if mask_name == "mask" else S]
    assert_close(layer(**arguments), formulas.of(layer, **arguments))


@pytest.mark.parametrize("mask", [None, *MASKS])
def test_kernels_and_weights_that_are_shown(mask):
    time, source = (MASKS[mask][size] if mask else None for size in (T, S))
    layer = randomized(DynamicConv(3, 4, query_groups=3), INPUTS.shape)
    expected = formulas.dynamic_kernel(layer, INPUTS, mask=time)
    assert_close(layer.kernels(INPUTS, mask=time), expected)
    query = random(B, T, 4)
    layer = randomized(DynamicConv(3, 4), INPUTS.shape, query.shape)
    expected = formulas.dynamic_kernel(layer, INPUTS, query, time)
    assert_close(layer.kernels(INPUTS, query, time), expected)
    weights = []
    for causal in (False, True):
        layer = MultiHeadAttention(2, use_causal_mask=causal)
        further = {"mask": time, "attention_mask": ATTENTION_MASKS[causal]}
        weights.append((randomized(layer, INPUTS.shape), (INPUTS,), further))
    layer = randomized(MultiHeadAttention(2), INPUTS.shape, VALUE.shape)
    weights.append((layer, (INPUTS, VALUE), {"value_mask": source}))
    for layer, arguments, further in weights:
        got = layer.attention_weights(*arguments, **further)
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        given = {name: x for name, x in further.items() if x is not None}
        assert_close(got, formulas.attention_weights(layer, *arguments, **given))


@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("beams", [1, 3])
def test_beams_share_keys_and_values_of_conv_s2s(beams, mask):
    """Also where no shape is known."""
    mask = mask and MASKS[mask][S]
    layer = randomized(
        ConvS2SAttention(), *(x.shape for x in (INPUTS, *SOURCE.values()))
    )
    given = {"inputs": random(B * beams, T, 6), **SOURCE, "keys_mask": mask}
    given["target_embeddings"] = random(B * beams, T, 4, seed=1)
    expected = formulas.conv_s2s_attention(layer, **given)
    assert_close(layer(**given), expected)
    values = given.pop("values")
    weights = layer.attention_weights(**given)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(weights, formulas.conv_s2s_weights(layer, **given))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function(
            input_signature=[tf.TensorSpec([None, None, n]) for n in (6, 4, 4, 3)]
        )
        def run(*tensors):
            return layer(*tensors, keys_mask=mask)

        tensors = [given["inputs"], given["target_embeddings"], VALUE, values]
        assert_close(run(*tensors), expected)
        if mask is None:
            assert run(*(x[:0] for x in tensors)).shape == (0, T, 6)


@pytest.mark.tensorflow
def test_attention_in_float64_is_float64_throughout():
    mask = MASKS["holes"][S]
    given = {"inputs": INPUTS, **SOURCE}
    given = {name: values.astype("float64") for name, values in given.items()}
    layer = ConvS2SAttention(dtype="float64")
    outputs = to_numpy(layer(**given, keys_mask=mask))
    expected = formulas.conv_s2s_attention(layer, **given, keys_mask=mask)
    np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-12)
    layer = MultiHeadAttention(2, dtype="float64")
    outputs = to_numpy(layer(given["inputs"], mask=MASKS["holes"][T]))
    expected = formulas.attention(layer, given["inputs"], mask=MASKS["holes"][T])
    np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-12)
