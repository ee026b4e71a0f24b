"""What the convolutions of a model do, as arrays: to look at or to plot.

Letters: B sentences, S source time, T time, H heads, K taps.
"""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_seqconv.layers.convolution import DynamicConv, LightConv
from keras_seqconv.models import stacks


class LayerKernels(NamedTuple):
    """The kernels of one layer.

    Attributes:
        name: "encoder 1", "decoder 1" and so on; "layer 1" of a language model.
        values: (H, K) of a LightConv; (B, T, H, K) of a DynamicConv, one for each
            position.
        left: P: tap j looks at the position that is j - P after its own.
    """

    name: str
    values: np.ndarray
    left: int


def light_conv_kernels(model) -> list[LayerKernels]:
    """The kernels (H, K) of all `LightConv` layers of a model, softmax applied.

    Raises:
        ValueError: there are none.
    """
    found = [
        LayerKernels(name, ops.convert_to_numpy(conv.normalized_kernel()), _left(conv))
        for name, block in _blocks(model)
        if isinstance(conv := _convolution(block.mixer), LightConv)
    ]
    return _some(found, model, "LightConv")


def dynamic_conv_kernels(model, inputs: dict) -> list[LayerKernels]:
    """The kernels that all `DynamicConv` layers of a model make for sentences.

    Args:
        model: `EncoderDecoder` or `LanguageModel`.
        inputs: as of the model.

    Returns:
        Kernels (B, S, H, K) of the encoder's layers, (B, T, H, K) of the decoder's, as
        they are applied without dropout.

    Raises:
        ValueError: there are none.
    """
    names = {id(block.mixer): name for name, block in _blocks(model)}
    found = []

    def noting(mixer, x, mask=None):
        convolution = _convolution(mixer)
        if isinstance(convolution, DynamicConv):
            inner = mixer.layer_norm(x) if mixer.normalize_first else x
            values = ops.convert_to_numpy(mixer.layer.kernels(inner, mask=mask))
            found.append(LayerKernels(names[id(mixer)], values, _left(convolution)))
        return mixer(x) if mask is None else mixer(x, mask=mask)

    if hasattr(model, "encoder_blocks"):
        _run_both(model, inputs, noting)
    elif hasattr(model, "blocks"):
        x = model.embedder(ops.convert_to_tensor(inputs["target_ids"], "int32"))
        stacks.run(model.blocks, x, noting)
    return _some(found, model, "DynamicConv")


def _run_both(model, inputs, noting):
    source_ids, target_ids = (
        ops.convert_to_tensor(inputs[name], "int32")
        for name in ("source_ids", "target_ids")
    )
    mask = ops.not_equal(source_ids, model.pad_id)
    x = model.source_embedder(source_ids, mask)
    stacks.run(model.encoder_blocks, x, lambda mixer, x: noting(mixer, x, mask))
    memory, _ = model.encode(source_ids)
    stacks.run(
        model.decoder_blocks,
        model.target_embedder(target_ids),
        noting,
        lambda attention, x: attention(x, value=memory, value_mask=mask),
    )


def _blocks(model) -> list[tuple]:
    """All blocks with their names."""
    sides = {
        "encoder": getattr(model, "encoder_blocks", []),
        "decoder": getattr(model, "decoder_blocks", []),
        "layer": getattr(model, "blocks", []),
    }
    return [
        (f"{side} {number}", block)
        for side, stack in sides.items()
        for number, block in enumerate(stack, 1)
        # ConvS2S has stacks of another kind under some of these names.
        if isinstance(block, stacks.Block)
    ]


def _convolution(mixer):
    return getattr(mixer.layer, "convolution", None)


def _left(convolution) -> int:
    taps = convolution.kernel_size
    return taps - 1 if convolution.padding == "causal" else (taps - 1) // 2


def _some(found, model, kind):
    if not found:
        raise ValueError(
            f"`model` must have a {kind} layer. Received: {type(model).__name__} "
            "without one"
        )
    return found
