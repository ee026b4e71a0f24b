"""LightConv, DynamicConv, query-projected DynamicConv and Transformer of fairseq.

(fairseq `lightconv`, `lightconv_lm`, `transformer`, `transformer_lm` in the key layouts
of 2018 to HEAD; choyi0521's `ddynamic`.) What tensors say, they are asked first.
"""

import functools

import numpy as np

from keras_seqconv.convert.options import Options
from keras_seqconv.convert.weights import Weights
from keras_seqconv.models import EncoderDecoder, LanguageModel

# Arguments that both sides must name, also one that has attention only.
_WITHOUT_CONVOLUTION = {
    "conv_dim": None,
    "query_dim": None,
    "kernel_sizes": None,
    "gate": "none",
    "query_groups": 1,
    "permute_channels": False,
}


def encoder_decoder(options: Options, weights: Weights, dtype) -> EncoderDecoder:
    """A translation model with all weights."""
    encoder, decoder = (
        _side(options, weights, side) | {"embedding_dim": _vocabulary(weights, side)[1]}
        for side in ("encoder", "decoder")
    )
    everything = options.flag("share_all_embeddings")
    shared = everything or options.flag("share_decoder_input_output_embed")
    options.refuse("adaptive_softmax_cutoff")
    model = EncoderDecoder(
        _vocabulary(weights, "encoder")[0],
        _vocabulary(weights, "decoder")[0],
        num_encoder_layers=encoder.pop("num_layers"),
        num_decoder_layers=decoder.pop("num_layers"),
        output_dim=_output_dim(weights),
        share_embeddings="all" if everything else "decoder" if shared else "none",
        **{
            name: {"encoder": encoder[name], "decoder": decoder[name]}
            for name in encoder
        },
        **_common(options),
        dtype=dtype,
    )
    if everything:
        weights.must_equal("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    else:
        weights.put(
            model.source_embedder.tokens.embeddings, "encoder.embed_tokens.weight"
        )
    _positions(weights, "encoder", model.source_embedder)
    _stack(weights, "encoder", model.encoder_blocks, model.encoder_norm)
    _embedder(weights, model.target_embedder)
    _stack(weights, "decoder", model.decoder_blocks, model.decoder_norm)
    _output(weights, model)
    return model


def language_model(options: Options, weights: Weights, dtype) -> LanguageModel:
    """A language model with all weights, also with adaptive layers."""
    side = _side(options, weights, "decoder")
    tied = options.flag("tie_adaptive_weights")
    options.refuse("character_embeddings")
    vocabulary_size, embedding_dim = _vocabulary(weights, "decoder")
    model = LanguageModel(
        vocabulary_size,
        embedding_dim=embedding_dim,
        output_dim=None if tied else _output_dim(weights),
        share_embeddings=options.flag("share_decoder_input_output_embed"),
        adaptive_softmax=_adaptive(options, weights, "softmax"),
        adaptive_input=_adaptive(options, weights, "input"),
        tie_adaptive_weights=tied,
        tie_adaptive_projections=options.flag("tie_adaptive_proj"),
        **side,
        **_common(options),
        dtype=dtype,
    )
    _embedder(weights, model.embedder)
    _stack(weights, "decoder", model.blocks, model.final_norm)
    _output(weights, model)
    return model


def _common(options):
    """Arguments that have no sides."""
    attention_dropout = options.number("attention_dropout", 0.0)
    old_name = options.number("relu_dropout", 0.0)
    return {
        "dropout": options.number("dropout", 0.1),
        "attention_dropout": attention_dropout,
        "activation_dropout": options.number("activation_dropout", 0.0) or old_name,
        "input_dropout": options.number("input_dropout", 0.0),
        "weight_dropout": options.number("weight_dropout", attention_dropout),
        "weight_dropout_mask": "position",
        "kernel_softmax": options.flag("weight_softmax", True),
        "activation": options.activation(),
        "compat": True,  # of a query-projected mixer; the others have no such option
    }


def _side(options, weights, side):
    """Arguments of one side."""
    number = weights.count(rf"{side}\.layers\.(\d+)\.")
    options.must_be(f"{side}_layers", number)
    layers = [f"{side}.layers.{index}" for index in range(number)]
    mixers = [_mixer(weights, layer) for layer in layers]
    convolutional = any(mixer != "attention" for mixer in mixers)
    table = f"{side}.embed_positions.weight"
    arguments = {
        "num_layers": number,
        "hidden_dim": weights.size(f"{side}.layers.0.fc2.weight", 0),
        "intermediate_dim": weights.size(f"{side}.layers.0.fc1.weight", 0),
        "num_heads": options.positive(f"{side}_attention_heads"),
        "mixer": mixers,
        "normalize_first": options.flag(f"{side}_normalize_before")
        # The LightConv language model is pre-norm whatever the options say.
        or (convolutional and not weights.has("encoder.layers.0.fc1.weight")),
        "final_norm": weights.has(f"{side}.layer_norm.weight"),
        "positions": _positions_kind(options, side),
        # Row 0 and 1 belong to ids that are no positions (pad is 1).
        "max_length": weights.size(table, 0) - 2 if weights.has(table) else 1024,
    }
    options.must_be(f"{side}_embed_dim", arguments["hidden_dim"])
    options.must_be(f"{side}_ffn_embed_dim", arguments["intermediate_dim"])
    if convolutional:
        heads = arguments["num_heads"]
        arguments |= _convolutions(options, weights, layers, mixers, side, heads)
    return _WITHOUT_CONVOLUTION | arguments


def _positions_kind(options, side):
    if options.flag("no_token_positional_embeddings"):
        options.flag(f"{side}_learned_pos")
        return None
    return "learned" if options.flag(f"{side}_learned_pos") else "sinusoidal"


def _mixer(weights, layer):
    if weights.has(f"{layer}.conv.weight"):
        return "light_conv"
    if not weights.has(f"{layer}.conv.weight_linear.weight"):
        return "attention"
    query = (f"{layer}.linear1_query.weight", f"{layer}.linear_query_gate_tanh.weight")
    return "query_conv" if any(map(weights.has, query)) else "dynamic_conv"


def _convolutions(options, weights, layers, mixers, side, heads):
    """Gate, widths and taps, from the shapes of the tensors."""
    first = layers[0]
    conv_dim = weights.size(f"{first}.linear2.weight", 1)
    gau = weights.has(f"{first}.linear_gate_tanh.weight")
    glu = not gau and weights.size(f"{first}.linear1.weight", 0) == 2 * conv_dim
    found = {"conv_dim": conv_dim, "gate": "gau" if gau else "glu" if glu else "none"}
    groups = 1
    if mixers[0] == "query_conv":
        name = "linear_query_gate_tanh" if gau else "linear1_query"
        query_dim = weights.size(f"{first}.{name}.weight", 0) // (2 if glu else 1)
        generator = weights.size(f"{first}.conv.weight_linear.weight", 1)
        groups = max(query_dim // max(generator, 1), 1)
        found |= {"query_dim": query_dim, "query_groups": groups}
        found["permute_channels"] = weights.has(f"{first}.conv.perm")
    found["kernel_sizes"] = [
        weights.size(f"{layer}.conv.weight", -1)
        if mixer == "light_conv"
        else weights.size(f"{layer}.conv.weight_linear.weight", 0) // (groups * heads)
        for layer, mixer in zip(layers, mixers, strict=True)
    ]
    declared = options.numbers(f"{side}_kernel_size_list")
    if declared is not None and len(declared) == 1:
        declared = declared * len(layers)
    options.must_agree(f"{side}_kernel_size_list", declared, found["kernel_sizes"])
    if declared is not None and len(declared) == len(layers) and max(declared) < 1000:
        # Where they differ, the tensor that is wrong is named when it does not fit.
        found["kernel_sizes"] = declared
    return found


def _vocabulary(weights, side):
    """Number of ids and width of the embedding of one side."""
    bands = weights.count(r"decoder\.embed_tokens\.embeddings\.(\d+)\.")
    if side == "decoder" and bands:
        names = [f"decoder.embed_tokens.embeddings.{i}.0.weight" for i in range(bands)]
        size = sum(weights.size(name, 0) for name in names)
        return size, weights.size(names[0], 1)
    name = f"{side}.embed_tokens.weight"
    return weights.size(name, 0), weights.size(name, 1)


def _output_name(weights):
    """The output matrix, by the names of HEAD and of 2018; the former when tied."""
    return weights.first("decoder.output_projection.weight", "decoder.embed_out")


def _output_dim(weights):
    """Width of what the output matrix multiplies, None for that of the model."""
    name = "decoder.project_out_dim.weight"
    return weights.size(name, 0) if weights.has(name) else None


def _adaptive(options, weights, kind):
    """The arguments of an adaptive layer, or None where there is none."""
    cutoffs = options.numbers(f"adaptive_{kind}_cutoff")
    factor = options.number(f"adaptive_{kind}_factor", 4.0)
    if kind == "input":
        wanted = options.flag("adaptive_input")
        return {"cutoffs": cutoffs, "factor": factor} if wanted else None
    dropout = options.number("adaptive_softmax_dropout", 0.0)
    if not weights.any("decoder.adaptive_softmax."):
        return None  # cutoffs count with the criterion of adaptive losses only
    return {"cutoffs": cutoffs, "factor": factor, "dropout": dropout}


def _embedder(weights, embedder):
    """Embedding, projection and positions of a decoder."""
    tokens = embedder.tokens
    if hasattr(tokens, "projections"):
        prefix = "decoder.embed_tokens.embeddings"
        for band, table in enumerate(tokens.embeddings):
            weights.put(table, f"{prefix}.{band}.0.weight")
            weights.put(
                tokens.projections[band],
                f"{prefix}.{band}.1.weight",
                arrange=np.transpose,
            )
    else:
        weights.put(tokens.embeddings, "decoder.embed_tokens.weight")
    if embedder.projection is not None:
        weights.dense(embedder.projection, "decoder.project_in_dim")
    _positions(weights, "decoder", embedder)


def _positions(weights, side, embedder):
    if embedder.position is not None and embedder.position.kind == "learned":
        name = f"{side}.embed_positions.weight"
        weights.put(embedder.position.embeddings, name, arrange=lambda table: table[2:])


def _stack(weights, side, blocks, final_norm):
    for index, block in enumerate(blocks):
        layer = f"{side}.layers.{index}"
        _fill_mixer(weights, layer, block.mixer.layer)
        parts = [block.mixer, block.attention, block.feed_forward]
        parts = [part for part in parts if part is not None]
        if block.attention is not None:
            fill_attention(weights, f"{layer}.encoder_attn", block.attention.layer)
        weights.dense(block.feed_forward.layer.intermediate_dense, f"{layer}.fc1")
        weights.dense(block.feed_forward.layer.output_dense, f"{layer}.fc2")
        for number, part in enumerate(parts):
            weights.norm(
                part.layer_norm, _norm_name(weights, layer, number, len(parts))
            )
    if final_norm is not None:
        weights.norm(final_norm, f"{side}.layer_norm")


def _norm_name(weights, layer, number, parts):
    """Where the normalization of a part stands, in each of the key layouts."""
    names = [f"layer_norms.{number}", f"layer_norm{number + 1}"]
    if number == 0:
        names += ["conv_layer_norm", "self_attn_layer_norm"]
    elif number == parts - 1:
        names += ["final_layer_norm"]
    else:
        names += ["encoder_attn_layer_norm"]
    found = weights.first(*(f"{layer}.{name}.weight" for name in names))
    return found.removesuffix(".weight")


def _fill_mixer(weights, layer, mixer):
    if not hasattr(mixer, "convolution"):
        fill_attention(weights, f"{layer}.self_attn", mixer)
        return
    _fill_projection(weights, mixer.input_projection, layer, "linear1", "linear_gate")
    weights.dense(mixer.output_projection, f"{layer}.linear2")
    if hasattr(mixer, "query_projection"):
        _fill_projection(
            weights,
            mixer.query_projection,
            layer,
            "linear1_query",
            "linear_query_gate",
        )
    if getattr(mixer, "permute_channels", False):
        weights.put(mixer.permutation, f"{layer}.conv.perm")
    convolution = mixer.convolution
    if weights.has(f"{layer}.conv.weight"):
        # (H, 1, K) of the PyTorch class, (H, K) of the CUDA class
        name = f"{layer}.conv.weight"
        weights.put(
            convolution.kernel,
            name,
            arrange=lambda w: w.reshape(w.shape[0], w.shape[-1]),
        )
    else:
        name = f"{layer}.conv.weight_linear.weight"
        weights.put(convolution.kernel_generator.kernel, name, arrange=np.transpose)


def _fill_projection(weights, dense, layer, name, gate):
    """A projection, or the two halves of one that are stored apart ("gau")."""
    if not weights.has(f"{layer}.{gate}_tanh.weight"):
        weights.dense(dense, f"{layer}.{name}")
        return
    for variable, part in ((dense.kernel, "weight"), (dense.bias, "bias")):
        names = [f"{layer}.{gate}_{kind}.{part}" for kind in ("tanh", "sigmoid")]
        weights.put(variable, *names, arrange=lambda *halves: np.concatenate(halves).T)


def fill_attention(weights, prefix, layer):
    """Multi-head attention, its projections stored apart or as one matrix."""
    heads, head_dim = layer.query_kernel.shape[1:]
    split = functools.partial(_split_heads, heads=heads)
    variables = {
        part: [getattr(layer, f"{name}_{part}") for name in ("query", "key", "value")]
        for part in ("kernel", "bias")
    }
    for part, of_torch in (("kernel", "weight"), ("bias", "bias")):
        together = f"{prefix}.in_proj_{of_torch}"
        if not weights.has(f"{prefix}.in_proj_weight"):
            for variable, letter in zip(variables[part], "qkv", strict=True):
                name = f"{prefix}.{letter}_proj.{of_torch}"
                weights.put(variable, name, arrange=split)
            continue
        array = weights.take(together)
        for row, variable in enumerate(variables[part] if array is not None else ()):
            weights.assign(
                variable,
                {together: array},
                lambda array, row=row: split(np.split(array, 3)[row]),
            )
    weights.put(
        layer.output_kernel,
        f"{prefix}.out_proj.weight",
        arrange=lambda w: w.T.reshape(heads, head_dim, -1),
    )
    weights.put(layer.output_bias, f"{prefix}.out_proj.bias")


def _split_heads(array, heads):
    """(H * D, in) -> (in, H, D), and (H * D,) -> (H, D): head h is a block of rows."""
    if array.ndim == 1:
        return array.reshape(heads, -1)
    return array.T.reshape(array.shape[1], heads, -1)


def _output(weights, model):
    """The matrix in front of the logits, or the adaptive softmax."""
    output = model.vocabulary_map
    if output.projection is not None:
        weights.dense(output.projection, "decoder.project_out_dim")
    if getattr(model, "adaptive_softmax", None) is not None:
        fill_adaptive_softmax(weights, model.adaptive_softmax)
    elif output.dense is None:
        weights.must_equal(_output_name(weights), "decoder.embed_tokens.weight")
    else:
        weights.put(output.dense.kernel, _output_name(weights), arrange=np.transpose)


def fill_adaptive_softmax(weights, layer):
    """Head and tails, alone or tied to an adaptive input."""
    prefix = "decoder.adaptive_softmax"
    weights.require(
        f"{prefix}.version", "without it the clusters of the head are one row off"
    )
    tied = layer.adaptive_input is not None
    if tied:
        weights.must_equal(
            f"{prefix}.head.word_proj.weight",
            "decoder.embed_tokens.embeddings.0.0.weight",
        )
        weights.put(layer.head, f"{prefix}.head.class_proj.weight")
    else:
        weights.put(layer.head, f"{prefix}.head.weight")
    for tail in range(len(layer.cutoffs) - 1):
        names = [f"{prefix}.tail.{tail}.{part}.weight" for part in (0, 2)]
        band = f"decoder.embed_tokens.embeddings.{tail + 1}"
        if layer.tie_projections:
            weights.must_equal(names[0], f"{band}.1.weight")
        else:
            weights.put(layer.tail_projections[tail], names[0], arrange=np.transpose)
        if tied:
            weights.must_equal(names[1], f"{band}.0.weight")
        else:
            weights.put(layer.tails[tail], names[1])
