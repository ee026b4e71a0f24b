"""Kernels of a model's convolutions, as arrays to inspect or plot.

Letters: B sentences, S source time, T time, H heads, K taps.
"""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_seqconv.layers.convolution import DynamicConv, LightConv
from keras_seqconv.models import stacks
from keras_seqconv.translation.translator import Translator


class LayerKernels(NamedTuple):
    """Kernels of one layer.

    Attributes:
        name: "encoder 1", "decoder 1", ...; "layer 1" of a language model.
        values: (H, K) of a LightConv; (B, T, H, K) of a DynamicConv, one for each
            position.
        left: P: tap j reads the position j - P after its own.
    """

    name: str
    values: np.ndarray
    left: int


def sentence(model, text: str, translation: str | None = None) -> tuple[dict, dict]:
    """Returns the model's inputs for one text, and the tokens at its positions.

    Args:
        model: `Translator` or `LanguageGenerator`, with tokenizers.
        text: source text, or text of a language model.
        translation: target text; by default the model's translation.

    Returns:
        Inputs (1, S) and (1, T) of `model.model`, and its tokens by side, named as in
        `LayerKernels.name`: "encoder" with the end of the source, "decoder" or "layer"
        with the start before them.

    Raises:
        ValueError: the model has no tokenizers.
    """
    if not model.tokenizers:
        raise ValueError("`model` must have tokenizers. Received: a model of ids only")
    inputs, tokens, side = {}, {}, "layer"
    if isinstance(model, Translator):
        if translation is None:
            translation = model.translate([text])[0]
        ids = model.source_ids([text])[0][0]
        inputs["source_ids"] = ops.convert_to_tensor([ids], "int32")
        tokens["encoder"] = [*model.source_tokenizer.to_tokens(ids), "</s>"]
        text, side = translation, "decoder"
    tokenizer = [*model.tokenizers.values()][-1]
    ids = tokenizer.tokenize([text])[0]
    inputs["target_ids"] = ops.convert_to_tensor(
        [[model.model.start_id, *ids[:-1]]], "int32"
    )
    tokens[side] = ["</s>", *tokenizer.to_tokens(ids)]
    return inputs, tokens


def light_conv_kernels(model) -> list[LayerKernels]:
    """Returns the kernels (H, K) of all `LightConv` layers, after the softmax.

    Raises:
        ValueError: the model has no such layer.
    """
    layers = []
    for mixer, name, left in _convolutions(model, LightConv):
        kernel = mixer.layer.convolution.normalized_kernel()
        layers.append(LayerKernels(name, ops.convert_to_numpy(kernel), left))
    return layers


def dynamic_conv_kernels(model, inputs: dict) -> list[LayerKernels]:
    """Returns the kernels of all `DynamicConv` layers for given sentences.

    Args:
        model: `EncoderDecoder` or `LanguageModel`.
        inputs: inputs of the model.

    Returns:
        Kernels (B, S, H, K) of the encoder's layers, (B, T, H, K) of the decoder's,
        without dropout.

    Raises:
        ValueError: the model has no such layer.
    """
    layers, mix = _collecting(_convolutions(model, DynamicConv))

    def attend(attention, x):
        return attention(x, value=memory, value_mask=mask)

    if model.has_source:
        source_ids = ops.convert_to_tensor(inputs["source_ids"], "int32")
        mask = ops.not_equal(source_ids, model.pad_id)
        layers += encoder_kernels(model, source_ids)
        memory, _ = model.encode(source_ids)
    target_ids = ops.convert_to_tensor(inputs["target_ids"], "int32")
    embedded = model.target_embedder(target_ids, pad_id=model.pad_id)
    stacks.run_blocks(model.decoder_blocks, embedded, mix, attend)
    return [
        layer._replace(values=ops.convert_to_numpy(layer.values)) for layer in layers
    ]


def encoder_kernels(model, source_ids) -> list[LayerKernels]:
    """The encoder's part of `dynamic_conv_kernels`, as tensors, in a graph too.

    source_ids: (B, S) int32. The list is empty where there is no such layer.
    """
    convolutions = _convolutions(model, DynamicConv, required=False)
    if not convolutions:
        return []
    layers, mix = _collecting(convolutions)
    mask = ops.not_equal(source_ids, model.pad_id)
    x = model.source_embedder(source_ids, mask)
    stacks.run_blocks(model.encoder_blocks, x, lambda mixer, x: mix(mixer, x, mask))
    return layers


def _collecting(convolutions) -> tuple:
    """A list, and a function that calls a mixer and appends the kernels it makes."""
    labels, layers = {id(mixer): label for mixer, *label in convolutions}, []

    def mix(mixer, x, mask=None):
        if id(mixer) in labels:
            name, left = labels[id(mixer)]
            read = mixer.layer_norm(x) if mixer.normalize_first else x
            if mixer.canon_layer:
                read = mixer.canon_layer(read, mask=mask)
            values = mixer.layer.kernels(read, mask=mask)
            layers.append(LayerKernels(name, values, left))
        return mixer(x, mask=mask)

    return layers, mix


def _convolutions(model, kind: type, required: bool = True) -> list[tuple]:
    """Mixer, name and P of each block with a convolution of this kind."""
    convolutions, encoder = [], getattr(model, "encoder_blocks", [])
    sides = (
        ("encoder", encoder),
        ("decoder" if encoder else "layer", getattr(model, "decoder_blocks", [])),
    )
    for side, blocks in sides:
        # ConvS2S has stacks of another kind under some of these names.
        for number, block in enumerate(blocks, 1):
            layer = getattr(getattr(block, "mixer", None), "layer", None)
            convolution = getattr(layer, "convolution", None)
            if isinstance(convolution, kind):
                taps, causal = convolution.kernel_size, convolution.padding == "causal"
                left = taps - 1 if causal else (taps - 1) // 2
                convolutions.append((block.mixer, f"{side} {number}", left))
    if required and not convolutions:
        raise ValueError(
            f"`model` must have a {kind.__name__} layer. Received: "
            f"{type(model).__name__} without one"
        )
    return convolutions
