"""ConvS2S and the gated convolutional language model of fairseq.

(fairseq `fconv`, `fconv_lm`; weight norm over either axis of old and new files.)
"""

import numpy as np

from keras_seqconv.convert.records import integer, integers, switches
from keras_seqconv.models import ConvLanguageModel, ConvS2S
from keras_seqconv.models.gated_stack import parse_convolutions


def conv_s2s(options, weights, dtype) -> ConvS2S:
    """A ConvS2S model with all weights."""
    sides = ("encoder", "decoder")
    tables = {side: f"{side}.embed_positions.weight" for side in sides}
    embeddings = {side: f"{side}.embed_tokens.weight" for side in sides}
    positions = all(map(weights.has, tables.values()))
    shared = options.flag("share_input_output_embed")
    options.refuse("adaptive_softmax_cutoff")
    output_dim = weights.size("decoder.fc2.bias", 0)
    options.must_be("decoder_out_embed_dim", output_dim)
    # Row 0 and 1 belong to ids that are no positions (pad is 1).
    lengths = {side: weights.size(tables[side], 0) - 2 for side in sides}
    model = ConvS2S(
        weights.size(embeddings["encoder"], 0),
        weights.size(embeddings["decoder"], 0),
        embedding_dim={side: weights.size(embeddings[side], 1) for side in sides},
        convolutions={side: _convolutions(options, weights, side) for side in sides},
        attention=options.get("decoder_attention", switches, True),
        output_dim=output_dim,
        share_output_embedding=shared,
        dropout=options.number("dropout", 0.1),
        positions=positions,
        max_length=lengths if positions else 1024,
        dtype=dtype,
    )
    for side, embedder, stack in (
        ("encoder", model.source_embedder, model.encoder_stack),
        ("decoder", model.target_embedder, model.decoder_stack),
    ):
        options.get(f"{side}_embed_dim", integer)
        weights.put(embedder.tokens.embeddings, embeddings[side])
        if positions:
            table = embedder.position.embeddings
            weights.put(table, tables[side], arrange=lambda table: table[2:])
        _fill_stack(weights, side, stack)
        _fill_dense(weights, getattr(model, f"{side}_input"), f"{side}.fc1")
        _fill_dense(weights, getattr(model, f"{side}_output"), f"{side}.fc2")
    if shared:
        weights.must_equal("decoder.fc3.weight", embeddings["decoder"])
        weights.put(model.target_embedder.tokens.bias, "decoder.fc3.bias")
    else:
        _fill_dense(weights, model.output_dense, "decoder.fc3")
    return model


def conv_language_model(options, weights, dtype) -> ConvLanguageModel:
    """A gated convolutional language model with all weights."""
    softmax = {
        "cutoffs": options.get("adaptive_softmax_cutoff", integers),
        "dropout": options.number("adaptive_softmax_dropout"),
    }
    adaptive = weights.any("decoder.adaptive_softmax.")
    options.get("decoder_attention", switches)
    options.get("decoder_embed_dim", integer)
    options.get("decoder_out_embed_dim", integer)
    options.refuse("share_input_output_embed")
    table = "decoder.embed_tokens.weight"
    model = ConvLanguageModel(
        weights.size(table, 0),
        embedding_dim=weights.size(table, 1),
        convolutions=_convolutions(options, weights, "decoder"),
        dropout=options.number("dropout", 0.1),
        adaptive_softmax=softmax if adaptive else None,
        dtype=dtype,
    )
    weights.put(model.embedder.tokens.embeddings, table)
    _fill_dense(weights, model.input_dense, "decoder.fc1")
    _fill_stack(weights, "decoder", model.stack)
    if adaptive:
        fill_adaptive_softmax(weights, model.adaptive_softmax)
    else:
        _fill_dense(weights, model.feature_dense, "decoder.fc2")
        _fill_dense(weights, model.output_dense, "decoder.fc3")
    return model


def _convolutions(options, weights, side):
    """The layers of one side; ValueError before far too much memory is taken."""
    layers = parse_convolutions(options.get(f"{side}_layers"))
    size = sum(
        before.channels * layer.kernel_size * layer.channels
        for before, layer in zip([layers[0], *layers], layers, strict=False)
    )
    if size > 100 * weights.total():
        raise ValueError(f"option {side}_layers describes far more than is stored")
    return layers


def _fill_stack(weights, side, stack):
    for index, block in enumerate(stack.blocks):
        # v (K, in, out) as Keras has it; g (1, 1, out), and (K, 1, 1) before 2018.
        name = f"{side}.convolutions.{index}"
        _fill(weights, block.convolution, name, lambda v: v)
        attention, residual = stack.attentions[index], stack.residuals[index]
        if attention is not None:
            prefix = f"{side}.attention.{index}"
            _fill_dense(weights, attention.in_projection, f"{prefix}.in_projection")
            _fill_dense(weights, attention.out_projection, f"{prefix}.out_projection")
        if residual is not None and residual.projection is not None:
            _fill_dense(weights, residual.projection, f"{side}.projections.{index}")


def _fill_dense(weights, layer, name):
    """v (out, in), g (out, 1), or a plain matrix (out, in) of a folded file."""
    _fill(weights, layer, name, np.transpose)


def _fill(weights, layer, name, arrange):
    weights.put(layer.bias, f"{name}.bias")
    names = [f"{name}.weight_v", f"{name}.weight_g"]
    if not any(map(weights.has, names)):
        arrays = {f"{name}.weight": weights.take(f"{name}.weight")}
    else:
        v, g = map(weights.take, names)
        if v is None or g is None:
            return
        arrays = {names[0]: v}
        if v.ndim != 3 or g.shape != (len(v), 1, 1):
            weights.assign(layer.v, arrays, arrange)
            weights.assign(layer.g, {names[1]: g}, np.ravel)
            return
        # The norm over axes 1 and 2: g is no gain of an output channel there.
        norms = np.sqrt(np.sum(np.square(v, dtype=np.float64), axis=(1, 2)))
        arrays[names[0]] = (v * (g / norms[:, None, None])).astype("float32")
    # A plain kernel is v, and its norm g.
    weights.assign(layer.v, arrays, arrange)
    weights.assign(layer.g, arrays, lambda kernel: _norms(arrange(kernel)))


def _norms(kernel):
    axes = tuple(range(kernel.ndim - 1))
    return np.sqrt(np.sum(np.square(kernel, dtype="float64"), axis=axes))


def fill_adaptive_softmax(weights, layer):
    """Head and tails, alone or tied to an adaptive input."""
    prefix = "decoder.adaptive_softmax"
    if not weights.has(f"{prefix}.version"):
        weights.problems.append(
            f"tensor {prefix}.version is missing: without it the clusters of the head "
            "are one row off"
        )
    tied = layer.adaptive_input is not None
    if tied:
        table = "decoder.embed_tokens.embeddings.0.0.weight"
        weights.must_equal(f"{prefix}.head.word_proj.weight", table)
        weights.put(layer.head, f"{prefix}.head.class_proj.weight")
    else:
        weights.put(layer.head, f"{prefix}.head.weight")
    for tail in range(len(layer.cutoffs) - 1):
        projection, table = (f"{prefix}.tail.{tail}.{part}.weight" for part in (0, 2))
        band = f"decoder.embed_tokens.embeddings.{tail + 1}"
        if layer.tie_projections:
            weights.must_equal(projection, f"{band}.1.weight")
        else:
            variable = layer.tail_projections[tail]
            weights.put(variable, projection, arrange=np.transpose)
        if tied:
            weights.must_equal(table, f"{band}.0.weight")
        else:
            weights.put(layer.tails[tail], table)
