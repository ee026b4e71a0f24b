"""From a checkpoint of fairseq to a model with the same logits.

LightConv, DynamicConv, the query-projected DynamicConv and the Transformer (fairseq
`lightconv`, `lightconv_lm`, `transformer`, `transformer_lm` in the key layouts of 2018
to HEAD; choyi0521's `ddynamic`); ConvS2S is in `conv_s2s.py`. What tensors say
themselves (widths, gates, which mixer), they are asked first: the options of old files
have gaps.
"""

import functools
import os

import numpy as np

from keras_seqconv.convert import conv_s2s
from keras_seqconv.convert.checkpoint import Checkpoint, read_checkpoint
from keras_seqconv.convert.records import (
    Options,
    Weights,
    activation,
    integers,
)
from keras_seqconv.models import EncoderDecoder, LanguageModel, SequenceModel
from keras_seqconv.tokenizers import Dictionary


class ConversionError(ValueError):
    """A checkpoint that cannot become a model; `problems` lists all that was found."""

    def __init__(self, path, problems: list[str]):
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{path} cannot be converted:{lines}")


def from_fairseq(
    checkpoint: str | os.PathLike | Checkpoint,
    source_dictionary: str | os.PathLike | Dictionary | None = None,
    target_dictionary: str | os.PathLike | Dictionary | None = None,
    dtype=None,
) -> SequenceModel:
    """A model from a checkpoint of fairseq.

    LightConv, DynamicConv, mixtures of both, the query-projected DynamicConv of
    choyi0521's branch dev6, ConvS2S and the Transformer, and their language models;
    files of 2018 to today. Nothing that is in the file is executed and fairseq is not
    needed. Ids are those of fairseq: 0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`; decoding
    starts from `</s>`.

        logits = model({"source_ids": ids, "target_ids": ids})   those of fairseq

    Args:
        checkpoint: a file that `fairseq-train` wrote (needs the package torch, extra
            `convert`), or a folder with `weights.npz` and `args.json`, or what
            `read_checkpoint` made of one.
        source_dictionary: `dict.<language>.txt` or a `Dictionary`; where given, its
            size must be that of the embedding.
        target_dictionary: the same of the target, or of a language model.
        dtype: dtype or policy of the model.

    Returns:
        `EncoderDecoder`, `ConvS2S`, `LanguageModel` or `ConvLanguageModel`.

    Raises:
        FileNotFoundError: without such a file.
        ImportError: without torch, for a file that needs it.
        ConversionError: a ValueError that lists everything in the way at once: options
            that are set and not supported, tensors that are missing, of other shapes
            than the options say, or left over.
        ValueError: for a file that is damaged, no checkpoint, or names anything in its
            pickle that a checkpoint does not need.
    """
    dictionaries = {"source": source_dictionary, "target": target_dictionary}
    sizes = {
        side: len(given if isinstance(given, Dictionary) else Dictionary.read(given))
        for side, given in dictionaries.items()
        if given is not None
    }
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = read_checkpoint(checkpoint)
    problems = []
    options = Options(checkpoint.options, problems)
    weights = Weights(checkpoint.weights, problems)
    # The names of the tensors tell the family: `arch` may be any user's own.
    if weights.any("decoder.convolutions."):
        families = conv_s2s.conv_s2s, conv_s2s.conv_language_model
    elif weights.any("decoder.layers."):
        families = _encoder_decoder, _language_model
    else:
        problem = (
            "its tensors are of no model that the package knows (no `fc1` in layers)"
        )
        raise ConversionError(checkpoint.path, [problem])
    build = families[not weights.any("encoder.")]
    try:
        model = build(options, weights, dtype)
    except ValueError as error:
        # What the options describe is no model; what was noted so far may say why.
        raise ConversionError(checkpoint.path, [*problems, str(error)]) from error
    weights.check_all_used()
    options.check_all_understood()
    known = {"target": model.target_vocabulary_size}
    if hasattr(model, "source_embedder"):
        known["source"] = model.source_embedder.tokens.vocabulary_size
    problems += [
        f"the {side} dictionary has {size} symbols, the embedding "
        f"{known.get(side, 'is missing')}"
        for side, size in sizes.items()
        if size != known.get(side)
    ]
    if problems:
        raise ConversionError(checkpoint.path, problems)
    return model


# --- What the options and tensors describe ---


def _encoder_decoder(options, weights, dtype) -> EncoderDecoder:
    encoder, decoder = (
        {
            **_side(options, weights, side),
            "embedding_dim": _vocabulary(weights, side)[1],
        }
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
    table = "encoder.embed_tokens.weight"
    if everything:
        weights.must_equal(table, "decoder.embed_tokens.weight")
    else:
        weights.put(model.source_embedder.tokens.embeddings, table)
    _fill_positions(weights, "encoder", model.source_embedder)
    _fill_stack(weights, "encoder", model.encoder_blocks, model.encoder_norm)
    _fill_embedder(weights, model.target_embedder)
    _fill_stack(weights, "decoder", model.decoder_blocks, model.decoder_norm)
    _fill_output(weights, model)
    return model


def _language_model(options, weights, dtype) -> LanguageModel:
    tied = options.flag("tie_adaptive_weights")
    options.refuse("character_embeddings")
    vocabulary_size, embedding_dim = _vocabulary(weights, "decoder")
    softmax, inputs = (
        {
            "cutoffs": options.get(f"adaptive_{kind}_cutoff", integers),
            "factor": options.number(f"adaptive_{kind}_factor", 4.0),
        }
        for kind in ("softmax", "input")
    )
    softmax["dropout"] = options.number("adaptive_softmax_dropout")
    # Its cutoffs count with the criterion of adaptive losses only.
    adaptive = weights.any("decoder.adaptive_softmax.")
    model = LanguageModel(
        vocabulary_size,
        embedding_dim=embedding_dim,
        output_dim=None if tied else _output_dim(weights),
        share_embeddings=options.flag("share_decoder_input_output_embed"),
        adaptive_softmax=softmax if adaptive else None,
        adaptive_input=inputs if options.flag("adaptive_input") else None,
        tie_adaptive_weights=tied,
        tie_adaptive_projections=options.flag("tie_adaptive_proj"),
        **_side(options, weights, "decoder"),
        **_common(options),
        dtype=dtype,
    )
    _fill_embedder(weights, model.embedder)
    _fill_stack(weights, "decoder", model.blocks, model.final_norm)
    _fill_output(weights, model)
    return model


def _common(options) -> dict:
    """Arguments that have no sides."""
    attention_dropout = options.number("attention_dropout")
    old_name = options.number("relu_dropout")
    return {
        "dropout": options.number("dropout", 0.1),
        "attention_dropout": attention_dropout,
        "activation_dropout": options.number("activation_dropout") or old_name,
        "weight_dropout": options.number("weight_dropout", attention_dropout),
        "activation": options.get("activation_fn", activation, "relu"),
    }


def _side(options, weights, side) -> dict:
    """Arguments of one side."""
    count = weights.count(rf"{side}\.layers\.(\d+)\.")
    options.must_be(f"{side}_layers", count)
    layers = [f"{side}.layers.{index}" for index in range(count)]
    kinds = [_mixer_kind(weights, layer) for layer in layers]
    convolutional = any(kind != "attention" for kind in kinds)
    positions, table = "sinusoidal", f"{side}.embed_positions.weight"
    if options.flag(f"{side}_learned_pos"):
        # Row 0 and 1 belong to ids that are no positions (pad is 1).
        rows = weights.size(table, 0) - 2 if weights.has(table) else 1024
        positions = {"kind": "learned", "max_length": rows}
    if options.flag("no_token_positional_embeddings"):
        positions = None
    arguments = {
        "num_layers": count,
        "hidden_dim": weights.size(f"{side}.layers.0.fc2.weight", 0),
        "intermediate_dim": weights.size(f"{side}.layers.0.fc1.weight", 0),
        "num_heads": options.required(f"{side}_attention_heads"),
        "mixer": kinds,
        "kernel_sizes": None,
        "normalize_first": options.flag(f"{side}_normalize_before")
        # The LightConv language model is pre-norm whatever the options say.
        or (convolutional and not weights.has("encoder.layers.0.fc1.weight")),
        "final_norm": weights.has(f"{side}.layer_norm.weight"),
        "positions": positions,
    }
    options.must_be(f"{side}_embed_dim", arguments["hidden_dim"])
    options.must_be(f"{side}_ffn_embed_dim", arguments["intermediate_dim"])
    input_dropout = options.number("input_dropout")
    kernel_softmax = options.flag("weight_softmax", True)
    if convolutional:
        heads = arguments["num_heads"]
        mixers = _mixers(weights, layers[0], kinds, input_dropout, kernel_softmax)
        sizes = _kernel_sizes(options, weights, side, layers, kinds, heads, mixers)
        arguments |= {"mixer": mixers, "kernel_sizes": sizes}
    return arguments


def _mixer_kind(weights, layer) -> str:
    if weights.has(f"{layer}.conv.weight"):
        return "light_conv"
    if not weights.has(f"{layer}.conv.weight_linear.weight"):
        return "attention"
    query = (f"{layer}.linear1_query.weight", f"{layer}.linear_query_gate_tanh.weight")
    return "query_conv" if any(map(weights.has, query)) else "dynamic_conv"


def _mixers(weights, first, kinds, input_dropout, kernel_softmax) -> list[dict]:
    """Mixers with gate and widths, from the shapes of the first layer's tensors."""
    conv_dim = weights.size(f"{first}.linear2.weight", 1)
    gau = weights.has(f"{first}.linear_gate_tanh.weight")
    glu = not gau and weights.size(f"{first}.linear1.weight", 0) == 2 * conv_dim
    common = {
        "conv_dim": conv_dim,
        "input_dropout": input_dropout,
        "weight_dropout_mask": "position",
    }
    plain = {**common, "use_glu": glu, "kernel_softmax": kernel_softmax}
    query = {**common, "gate": "gau" if gau else "glu" if glu else "none"}
    if kinds[0] == "query_conv":
        name = "linear_query_gate_tanh" if gau else "linear1_query"
        query_dim = weights.size(f"{first}.{name}.weight", 0) // (2 if glu else 1)
        generator = weights.size(f"{first}.conv.weight_linear.weight", 1)
        query["query_dim"] = query_dim
        query["query_groups"] = max(query_dim // max(generator, 1), 1)
        query["permute_channels"] = weights.has(f"{first}.conv.perm")
    query["compat"] = True
    options = {"attention": {}, "query_conv": query}
    return [{"kind": kind, **options.get(kind, plain)} for kind in kinds]


def _kernel_sizes(options, weights, side, layers, kinds, heads, mixers) -> list[int]:
    """Taps, from the shapes of the tensors."""
    groups = mixers[0].get("query_groups", 1)
    sizes = [
        weights.size(f"{layer}.conv.weight", -1)
        if kind == "light_conv"
        else weights.size(f"{layer}.conv.weight_linear.weight", 0) // (groups * heads)
        for layer, kind in zip(layers, kinds, strict=True)
    ]
    name = f"{side}_kernel_size_list"
    declared = options.get(name, integers)
    if declared is not None:
        declared = declared * len(layers) if len(declared) == 1 else declared
        options.must_be(name, sizes, declared)
        if len(declared) == len(layers) and max(declared) < 1000:
            # Where they differ, the tensor that is wrong is named when it does not fit.
            return declared
    return sizes


def _vocabulary(weights, side) -> tuple[int, int]:
    """Number of ids and width of the embedding of one side."""
    names = [f"{side}.embed_tokens.weight"]
    bands = weights.count(r"decoder\.embed_tokens\.embeddings\.(\d+)\.")
    if side == "decoder" and bands:
        names = [f"decoder.embed_tokens.embeddings.{i}.0.weight" for i in range(bands)]
    return sum(weights.size(name, 0) for name in names), weights.size(names[0], 1)


def _output_dim(weights) -> int | None:
    """Width of what the output matrix multiplies, None for that of the model."""
    name = "decoder.project_out_dim.weight"
    return weights.size(name, 0) if weights.has(name) else None


# --- Where the tensors go ---


def _fill_embedder(weights, embedder):
    """Embedding, projection and positions of a decoder."""
    tokens = embedder.tokens
    if hasattr(tokens, "projections"):
        for band, table in enumerate(tokens.embeddings):
            prefix = f"decoder.embed_tokens.embeddings.{band}"
            weights.put(table, f"{prefix}.0.weight")
            projection = tokens.projections[band]
            weights.put(projection, f"{prefix}.1.weight", arrange=np.transpose)
    else:
        weights.put(tokens.embeddings, "decoder.embed_tokens.weight")
    if embedder.projection is not None:
        weights.dense(embedder.projection, "decoder.project_in_dim")
    _fill_positions(weights, "decoder", embedder)


def _fill_positions(weights, side, embedder):
    if embedder.position is not None and embedder.position.kind == "learned":
        name = f"{side}.embed_positions.weight"
        weights.put(embedder.position.embeddings, name, arrange=lambda table: table[2:])


def _fill_stack(weights, side, blocks, final_norm):
    for index, block in enumerate(blocks):
        layer = f"{side}.layers.{index}"
        _fill_mixer(weights, layer, block.mixer.layer)
        parts = [block.mixer, block.attention, block.feed_forward]
        parts = [part for part in parts if part is not None]
        if block.attention is not None:
            _fill_attention(weights, f"{layer}.encoder_attn", block.attention.layer)
        weights.dense(block.feed_forward.layer.intermediate_dense, f"{layer}.fc1")
        weights.dense(block.feed_forward.layer.output_dense, f"{layer}.fc2")
        for place, part in enumerate(parts):
            # In each of the key layouts.
            names = [f"layer_norms.{place}", f"layer_norm{place + 1}"]
            if place == 0:
                names += ["conv_layer_norm", "self_attn_layer_norm"]
            elif place == len(parts) - 1:
                names += ["final_layer_norm"]
            else:
                names += ["encoder_attn_layer_norm"]
            name = weights.first(*(f"{layer}.{name}.weight" for name in names))
            weights.norm(part.layer_norm, name.removesuffix(".weight"))
    if final_norm is not None:
        weights.norm(final_norm, f"{side}.layer_norm")


def _fill_mixer(weights, layer, mixer):
    if not hasattr(mixer, "convolution"):
        _fill_attention(weights, f"{layer}.self_attn", mixer)
        return
    _fill_projection(weights, mixer.input_projection, layer, "linear1", "linear_gate")
    weights.dense(mixer.output_projection, f"{layer}.linear2")
    if hasattr(mixer, "query_projection"):
        names = "linear1_query", "linear_query_gate"
        _fill_projection(weights, mixer.query_projection, layer, *names)
    if getattr(mixer, "permute_channels", False):
        weights.put(mixer.permutation, f"{layer}.conv.perm")
    name = f"{layer}.conv.weight"
    if weights.has(name):
        # (H, 1, K) of the PyTorch class, (H, K) of the CUDA class
        kernel = mixer.convolution.kernel
        weights.put(kernel, name, arrange=lambda w: w.reshape(len(w), w.shape[-1]))
    else:
        name, kernel = (
            f"{name}_linear.weight",
            mixer.convolution.kernel_generator.kernel,
        )
        weights.put(kernel, name, arrange=np.transpose)


def _fill_projection(weights, dense, layer, name, gate):
    """A projection, or the two halves of one that are stored apart ("gau")."""
    if not weights.has(f"{layer}.{gate}_tanh.weight"):
        weights.dense(dense, f"{layer}.{name}")
        return
    for variable, part in ((dense.kernel, "weight"), (dense.bias, "bias")):
        names = [f"{layer}.{gate}_{kind}.{part}" for kind in ("tanh", "sigmoid")]
        weights.put(variable, *names, arrange=lambda *halves: np.concatenate(halves).T)


def _fill_attention(weights, prefix, layer):
    """Multi-head attention, its projections stored apart or as one matrix."""
    heads, head_dim = layer.query_kernel.shape[1:]
    split = functools.partial(_split_heads, heads=heads)
    names = "query", "key", "value"
    for part, of_torch in (("kernel", "weight"), ("bias", "bias")):
        variables = [getattr(layer, f"{name}_{part}") for name in names]
        if not weights.has(f"{prefix}.in_proj_weight"):
            for variable, letter in zip(variables, "qkv", strict=True):
                name = f"{prefix}.{letter}_proj.{of_torch}"
                weights.put(variable, name, arrange=split)
            continue
        together = f"{prefix}.in_proj_{of_torch}"
        arrays = {together: weights.take(together)}
        for row, variable in enumerate(variables):
            weights.assign(
                variable, arrays, lambda array, row=row: split(np.split(array, 3)[row])
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


def _fill_output(weights, model):
    """The matrix in front of the logits, or the adaptive softmax."""
    output = model.vocabulary_map
    if output.projection is not None:
        weights.dense(output.projection, "decoder.project_out_dim")
    # By the names of HEAD and of 2018; the former when tied.
    name = weights.first("decoder.output_projection.weight", "decoder.embed_out")
    if getattr(model, "adaptive_softmax", None) is not None:
        conv_s2s.fill_adaptive_softmax(weights, model.adaptive_softmax)
    elif output.dense is None:
        weights.must_equal(name, "decoder.embed_tokens.weight")
    else:
        weights.put(output.dense.kernel, name, arrange=np.transpose)
