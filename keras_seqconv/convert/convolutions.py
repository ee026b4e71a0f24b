"""ConvS2S and the gated convolutional language model of fairseq.

(fairseq `fconv`, `fconv_lm`; weight norm over either axis of old and new files.)
"""

import numpy as np

from keras_seqconv.convert.blocks import fill_adaptive_softmax
from keras_seqconv.convert.options import Options
from keras_seqconv.convert.weights import Weights
from keras_seqconv.models import ConvLanguageModel, ConvS2S
from keras_seqconv.models.convolutions import parse_convolutions


def conv_s2s(options: Options, weights: Weights, dtype) -> ConvS2S:
    """A ConvS2S model with all weights."""
    convolutions = {
        side: _convolutions(options, weights, side) for side in ("encoder", "decoder")
    }
    tables = {side: f"{side}.embed_positions.weight" for side in convolutions}
    positions = all(weights.has(name) for name in tables.values())
    embeddings = {side: f"{side}.embed_tokens.weight" for side in convolutions}
    shared = options.flag("share_input_output_embed")
    options.refuse("adaptive_softmax_cutoff")
    output_dim = weights.size("decoder.fc2.bias", 0)
    options.must_be("decoder_out_embed_dim", output_dim)
    model = ConvS2S(
        weights.size(embeddings["encoder"], 0),
        weights.size(embeddings["decoder"], 0),
        embedding_dim={side: weights.size(embeddings[side], 1) for side in tables},
        convolutions=convolutions,
        attention=options.switches("decoder_attention", True),
        output_dim=output_dim,
        share_output_embedding=shared,
        dropout=options.number("dropout", 0.1),
        positions=positions,
        # Row 0 and 1 belong to ids that are no positions (pad is 1).
        max_length={side: weights.size(tables[side], 0) - 2 for side in tables}
        if positions
        else 1024,
        dtype=dtype,
    )
    options.integer("encoder_embed_dim")
    options.integer("decoder_embed_dim")
    for side, embedder, stack in (
        ("encoder", model.source_embedder, model.encoder_stack),
        ("decoder", model.target_embedder, model.decoder_stack),
    ):
        weights.put(embedder.tokens.embeddings, embeddings[side])
        if positions:
            table = embedder.position.embeddings
            weights.put(table, tables[side], arrange=lambda table: table[2:])
        _fill_stack(weights, side, stack)
    _fill_dense(weights, model.encoder_input, "encoder.fc1")
    _fill_dense(weights, model.encoder_output, "encoder.fc2")
    _fill_dense(weights, model.decoder_input, "decoder.fc1")
    _fill_dense(weights, model.decoder_output, "decoder.fc2")
    if shared:
        weights.must_equal("decoder.fc3.weight", embeddings["decoder"])
        weights.put(model.target_embedder.tokens.bias, "decoder.fc3.bias")
    else:
        _fill_dense(weights, model.output_dense, "decoder.fc3")
    return model


def conv_language_model(options: Options, weights: Weights, dtype) -> ConvLanguageModel:
    """A gated convolutional language model with all weights."""
    adaptive = None
    cutoffs = options.numbers("adaptive_softmax_cutoff")
    if weights.any("decoder.adaptive_softmax."):
        dropout = options.number("adaptive_softmax_dropout", 0.0)
        adaptive = {"cutoffs": cutoffs, "dropout": dropout}
    options.switches("decoder_attention", False)
    options.integer("decoder_embed_dim")
    options.integer("decoder_out_embed_dim")
    options.refuse("share_input_output_embed")
    model = ConvLanguageModel(
        weights.size("decoder.embed_tokens.weight", 0),
        embedding_dim=weights.size("decoder.embed_tokens.weight", 1),
        convolutions=_convolutions(options, weights, "decoder"),
        dropout=options.number("dropout", 0.1),
        adaptive_softmax=adaptive,
        dtype=dtype,
    )
    weights.put(model.embedder.tokens.embeddings, "decoder.embed_tokens.weight")
    _fill_dense(weights, model.input_dense, "decoder.fc1")
    _fill_stack(weights, "decoder", model.stack)
    if adaptive is not None:
        fill_adaptive_softmax(weights, model.adaptive_softmax)
    else:
        _fill_dense(weights, model.feature_dense, "decoder.fc2")
        _fill_dense(weights, model.output_dense, "decoder.fc3")
    return model


def _convolutions(options, weights, side):
    """The layers of one side; ValueError before far too much memory is taken."""
    layers = parse_convolutions(options.raw(f"{side}_layers"))
    size = sum(
        before.channels * layer.kernel_size * layer.channels
        for before, layer in zip([layers[0], *layers], layers, strict=False)
    )
    if size > 100 * weights.total():
        raise ValueError(f"option {side}_layers describes far more than is stored")
    return layers


def _fill_stack(weights, side, stack):
    for index, block in enumerate(stack.blocks):
        _fill_convolution(weights, block.convolution, f"{side}.convolutions.{index}")
        attention, residual = stack.attentions[index], stack.residuals[index]
        if attention is not None:
            prefix = f"{side}.attention.{index}"
            _fill_dense(weights, attention.in_projection, f"{prefix}.in_projection")
            _fill_dense(weights, attention.out_projection, f"{prefix}.out_projection")
        if residual is not None and residual.projection is not None:
            _fill_dense(weights, residual.projection, f"{side}.projections.{index}")


def _fill_dense(weights, layer, name):
    """v (out, in), g (out, 1), or a plain matrix (out, in) of a folded file."""
    _fill(weights, layer, name, direction=np.transpose)


def _fill_convolution(weights, layer, name):
    """v (K, in, out) as Keras has it; g (1, 1, out), and (K, 1, 1) before 2018."""
    _fill(weights, layer, name, direction=lambda v: v)


def _fill(weights, layer, name, direction):
    weights.put(layer.bias, f"{name}.bias")
    names = [f"{name}.weight_v", f"{name}.weight_g"]
    if not any(map(weights.has, names)):
        kernel = weights.take(f"{name}.weight")
        _assign_kernel(weights, layer, {f"{name}.weight": kernel}, direction)
        return
    v, g = map(weights.take, names)
    if v is None or g is None:
        return
    if v.ndim == 3 and g.shape == (len(v), 1, 1):
        # The norm over axes 1 and 2: g is no gain of an output channel there.
        norms = np.sqrt(np.sum(np.square(v, dtype=np.float64), axis=(1, 2)))
        kernel = (v * (g / norms[:, None, None])).astype("float32")
        _assign_kernel(weights, layer, {names[0]: kernel}, direction)
        return
    weights.assign(layer.v, {names[0]: v}, direction)
    weights.assign(layer.g, {names[1]: g}, np.ravel)


def _assign_kernel(weights, layer, arrays, direction):
    """A plain kernel (name -> array) as v, and its norm as g."""
    if any(array is None for array in arrays.values()):
        return
    weights.assign(layer.v, arrays, direction)
    weights.assign(layer.g, arrays, lambda kernel: _norms(direction(kernel)))


def _norms(kernel):
    axes = tuple(range(kernel.ndim - 1))
    return np.sqrt(np.sum(np.square(kernel, dtype="float64"), axis=axes))
