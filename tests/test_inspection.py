"""Kernels read from models: they are those that the models apply."""

import numpy as np
import pytest
from keras import ops

from keras_seqconv.decoding import Ensemble
from keras_seqconv.evaluation.inspection import dynamic_conv_kernels, light_conv_kernels
from keras_seqconv.layers import convolution
from tests.models.families import encoder_decoder

INPUTS = {
    "source_ids": np.array([[5, 6, 7, 2], [8, 2, 1, 1]]),
    "target_ids": np.array([[2, 4, 5], [2, 9, 1]]),
}


def test_light_conv_kernels():
    model = encoder_decoder(mixer="light_conv", kernel_sizes=[3, 5])
    found = light_conv_kernels(model)
    assert [(one.name, one.values.shape, one.left) for one in found] == [
        ("encoder 1", (2, 3), 1), ("encoder 2", (2, 5), 2),
        ("decoder 1", (2, 3), 2), ("decoder 2", (2, 5), 4),
    ]  # fmt: skip
    kernel = model.encoder_blocks[1].mixer.layer.convolution.kernel
    logits = np.exp(ops.convert_to_numpy(kernel))
    expected = logits / logits.sum(axis=-1, keepdims=True)
    assert np.allclose(found[1].values, expected, atol=1e-6)


@pytest.mark.parametrize(
    "mixer, normalize_first, canon",
    (("dynamic_conv", True, "a"), ("query_conv", False, None)),
)
def test_dynamic_conv_kernels(mixer, normalize_first, canon, monkeypatch):
    model = encoder_decoder(
        mixer=mixer, normalize_first=normalize_first, kernel_sizes=[3, 5], canon=canon
    )
    found = dynamic_conv_kernels(model, INPUTS)
    assert [(one.name, one.values.shape, one.left) for one in found] == [
        ("encoder 1", (2, 4, 2, 3), 1), ("encoder 2", (2, 4, 2, 5), 2),
        ("decoder 1", (2, 3, 2, 3), 2), ("decoder 2", (2, 3, 2, 5), 4),
    ]  # fmt: skip
    # What the op is given, in the order of the calls.
    given, original = [], convolution.dynamic_conv

    def noting(inputs, kernel, *options):
        given.append(ops.convert_to_numpy(kernel))
        return original(inputs, kernel, *options)

    monkeypatch.setattr(convolution, "dynamic_conv", noting)
    model(INPUTS)
    for one, expected in zip(found, given, strict=True):
        assert np.allclose(one.values, expected, atol=1e-5)
        assert np.allclose(one.values.sum(axis=-1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="must have a DynamicConv layer.*Ensemble"):
        dynamic_conv_kernels(Ensemble([model]), INPUTS)
