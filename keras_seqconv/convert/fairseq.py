"""Convert a checkpoint of fairseq to a model with the same logits.

LightConv, DynamicConv, the query-projected DynamicConv, the Transformer and ConvS2S
(fairseq `lightconv`, `transformer`, `fconv` and their `_lm` in the key layouts of 2018
to HEAD; choyi0521's `ddynamic`). Widths, gates, kernel sizes and mixers are read from
the tensors, because the options of old files are incomplete.
"""

import os
import re

import numpy as np

from keras_seqconv.convert.checkpoint import Checkpoint, read_checkpoint
from keras_seqconv.convert.records import ConversionError, FairseqOptions, Weights
from keras_seqconv.models import (
    ConvLanguageModel,
    ConvS2S,
    EncoderDecoder,
    LanguageModel,
    SequenceModel,
)
from keras_seqconv.models.limits import at_most
from keras_seqconv.tokenizers import Dictionary

_SIDES = ("encoder", "decoder")


def from_fairseq(
    checkpoint: str | os.PathLike | Checkpoint,
    source_dictionary: str | os.PathLike | Dictionary | None = None,
    target_dictionary: str | os.PathLike | Dictionary | None = None,
) -> SequenceModel:
    """Builds a model from a checkpoint of fairseq.

    LightConv, DynamicConv, mixtures of both, the query-projected DynamicConv of
    choyi0521's branch dev6, ConvS2S and the Transformer, and their language models, in
    files from 2018 to today. Nothing in the file is executed, and fairseq is not
    needed. Ids are those of fairseq: 0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`; decoding
    starts from `</s>`.

        logits = model({"source_ids": ids, "target_ids": ids})   those of fairseq

    Args:
        checkpoint: file of `fairseq-train` (needs torch, extra `convert`), or folder
            with `weights.npz` and `args.json`, or result of `read_checkpoint`.
        source_dictionary: `dict.<language>.txt` or a `Dictionary` of the embedding's
            size, or None.
        target_dictionary: dictionary of the target, or of a language model.

    Returns:
        `EncoderDecoder`, `ConvS2S`, `LanguageModel` or `ConvLanguageModel`.

    Raises:
        FileNotFoundError: the file is missing.
        ImportError: torch is not installed, for a file that needs it.
        ConversionError: a ValueError that lists all problems together: options that are
            set and not supported, tensors that are missing, left over or of
            inconsistent shapes, and two dictionaries of one shared embedding.
        ValueError: the file is damaged, no checkpoint, or its pickle names anything
            that a checkpoint does not need.
    """
    arguments = {"source": source_dictionary, "target": target_dictionary}
    dictionaries = {
        side: value if isinstance(value, Dictionary) else Dictionary.read(value)
        for side, value in arguments.items()
        if value is not None
    }
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = read_checkpoint(checkpoint)
    problems = []
    options = FairseqOptions(checkpoint.options, problems)
    weights = Weights(checkpoint.weights, problems)
    translates = is_translation_model(checkpoint)
    families = _language_model, _encoder_decoder
    # The names of the tensors tell the family: `arch` may be any user's own.
    if weights.count("decoder.convolutions."):
        families = _conv_language_model, _conv_s2s
    arrays = checkpoint.weights
    numbers = sum(array.size for array in arrays.values())
    # Queries, keys and values may be stored as one, and kernels without their norms.
    variables = sum(3 if ".in_proj_" in name else 2 for name in arrays)
    try:
        with at_most(2 * numbers, variables):
            model = families[translates](options, weights)
    except ValueError as error:
        # What the options describe is no model; what was noted so far may say why.
        raise ConversionError(checkpoint.path, [*problems, str(error)]) from error
    weights.check_all_used()
    options.check_all_understood()
    sizes = {"target": model.target_vocabulary_size}
    if translates:
        sizes["source"] = model.source_embedder.tokens.vocabulary_size
    problems += [
        f"the {side} dictionary has {len(dictionary)} symbols, the embedding "
        f"{sizes.get(side, 'is missing')}"
        for side, dictionary in dictionaries.items()
        if len(dictionary) != sizes.get(side)
    ]
    shared = model.get_config().get("share_embeddings") == "all"
    if shared and len({entry.symbols for entry in dictionaries.values()}) > 1:
        problems.append("the dictionaries differ, and the model shares all embeddings")
    if problems:
        raise ConversionError(checkpoint.path, problems)
    return model


def is_translation_model(checkpoint: Checkpoint) -> bool:
    """Whether it is one or a language model; ConversionError where it is neither."""
    names = list(checkpoint.weights)
    if not any(re.match(r"decoder\.(convolutions|layers)\.", name) for name in names):
        problem = "its tensors are of no model that the package knows. Received: "
        names = ", ".join(names[:3]) or "no tensors"
        raise ConversionError(checkpoint.path, [f"{problem}{names}"])
    return any(name.startswith("encoder.") for name in names)


# --- LightConv, DynamicConv, Transformer ---


def _encoder_decoder(options, weights) -> EncoderDecoder:
    encoder, decoder = (_side(options, weights, side) for side in _SIDES)
    everything = options.get("share_all_embeddings", bool)
    shared = options.get("share_decoder_input_output_embed", bool)
    options.refuse("adaptive_softmax_cutoff")
    model = EncoderDecoder(
        encoder.pop("vocabulary_size"),
        decoder.pop("vocabulary_size"),
        num_encoder_layers=encoder.pop("num_layers"),
        num_decoder_layers=decoder.pop("num_layers"),
        output_dim=_output_dim(weights),
        share_embeddings="all" if everything else "decoder" if shared else "none",
        **{
            name: {"encoder": encoder[name], "decoder": decoder[name]}
            for name in encoder
        },
        **_common(options),
    )
    _fill_embedder(weights, "encoder", model.source_embedder, tied=everything)
    _fill_stack(weights, "encoder", model.encoder_blocks, model.encoder_norm)
    _fill_decoder(weights, model)
    return model


def _language_model(options, weights) -> LanguageModel:
    tied = options.get("tie_adaptive_weights", bool)
    options.refuse("character_embeddings")
    softmax, inputs = (
        {
            "cutoffs": options.get(f"adaptive_{kind}_cutoff", list),
            "factor": options.get(f"adaptive_{kind}_factor", float, 4.0),
        }
        for kind in ("softmax", "input")
    )
    softmax["dropout"] = options.get("adaptive_softmax_dropout", float)
    # Its cutoffs count with the criterion of adaptive losses only.
    adaptive = weights.count("decoder.adaptive_softmax.")
    shared = options.get("share_decoder_input_output_embed", bool)
    tied_projections = options.get("tie_adaptive_proj", bool)
    # Models that have this older option say by it that they are tied.
    tied_projections |= not options.get("no_tie_adaptive_proj", bool, True)
    model = LanguageModel(
        output_dim=None if tied else _output_dim(weights),
        share_embeddings=shared and not adaptive,
        adaptive_softmax=softmax if adaptive else None,
        adaptive_input=inputs if options.get("adaptive_input", bool) else None,
        tie_adaptive_weights=tied,
        tie_adaptive_projections=tied and tied_projections,
        **_side(options, weights, "decoder"),
        **_common(options),
    )
    _fill_decoder(weights, model)
    return model


def _common(options) -> dict:
    """Arguments that have no sides."""
    attention_dropout = options.get("attention_dropout", float)
    old_name = options.get("relu_dropout", float)
    return {
        "dropout": options.get("dropout", float, 0.1),
        "attention_dropout": attention_dropout,
        "activation_dropout": options.get("activation_dropout", float) or old_name,
        "weight_dropout": options.get("weight_dropout", float, attention_dropout),
        "activation": options.get("activation_fn", str, "relu"),
    }


def _side(options, weights, side) -> dict:
    """Arguments of one side."""
    count, first = weights.count(f"{side}.layers."), f"{side}.layers.0"
    heads = options.get(f"{side}_attention_heads", int)
    declared = options.get(f"{side}_layers", int, count)
    if heads is None:
        raise ValueError(
            f"option {side}_attention_heads is missing: no tensor tells it"
        )
    if declared != count:
        raise ValueError(f"option {side}_layers={declared}: the tensors have {count}")
    bands = f"{side}.embed_tokens.embeddings."  # of an adaptive input
    tables = [f"{bands}{band}.0.weight" for band in range(weights.count(bands))]
    tables = tables or [f"{side}.embed_tokens.weight"]
    mixer, kernel_sizes = ["attention"] * count, None
    if weights.count(f"{first}.conv."):
        mixer, kernel_sizes = _mixers(options, weights, side, count, heads)
    positions, table = "sinusoidal", f"{side}.embed_positions.weight"
    if options.get(f"{side}_learned_pos", bool):
        rows = weights.size(table, 0) - 2 if table in weights.arrays else 1024
        positions = {"kind": "learned", "max_length": rows}
    if options.get("no_token_positional_embeddings", bool):
        positions = None
    return {
        "vocabulary_size": sum(weights.size(table, 0) for table in tables),
        "embedding_dim": weights.size(tables[0], 1),
        "num_layers": count,
        "hidden_dim": weights.size(f"{first}.fc2.weight", 0),
        "intermediate_dim": weights.size(f"{first}.fc1.weight", 0),
        "num_heads": heads,
        "mixer": mixer,
        "kernel_sizes": kernel_sizes,
        "normalize_first": options.get(f"{side}_normalize_before", bool)
        # The LightConv language model is pre-norm whatever the options say.
        or (kernel_sizes is not None and not weights.count("encoder.")),
        "final_norm": f"{side}.layer_norm.weight" in weights.arrays,
        "positions": positions,
    }


def _mixers(options, weights, side, count, heads) -> tuple[list[dict], list[int]]:
    """Gate and widths from the first layer's tensors; kinds and taps from each's."""
    first, groups = f"{side}.layers.0", 1
    conv_dim = weights.size(f"{first}.linear2.weight", 1)
    gau = f"{first}.linear_gate_tanh.weight" in weights.arrays
    glu = not gau and weights.size(f"{first}.linear1.weight", 0) == 2 * conv_dim
    query = f"{first}.linear_query_gate_tanh" if gau else f"{first}.linear1_query"
    projected = f"{query}.weight" in weights.arrays
    mixer = {
        "conv_dim": conv_dim,
        "input_dropout": options.get("input_dropout", float),
        "weight_dropout_mask": "position",
    }
    kernel_softmax = options.get("weight_softmax", bool, True)
    if projected and not kernel_softmax:
        raise ValueError(
            "option weight_softmax=False is not supported with kernels of queries"
        )
    if projected:
        query_dim = weights.size(f"{query}.weight", 0) // (2 if glu else 1)
        generator = weights.size(f"{first}.conv.weight_linear.weight", 1)
        groups = max(query_dim // max(generator, 1), 1)
        mixer |= {
            "gate": "gau" if gau else "glu" if glu else "none",
            "query_dim": query_dim,
            "query_groups": groups,
            "permute_channels": f"{first}.conv.perm" in weights.arrays,
            "compat": True,
        }
    else:
        mixer |= {"use_glu": glu, "kernel_softmax": kernel_softmax}
    mixers, kernel_sizes = [], []
    for index in range(count):
        name = f"{side}.layers.{index}.conv.weight"
        kind, size = "light_conv", weights.size(name, -1)
        if name not in weights.arrays:
            kind = "query_conv" if projected else "dynamic_conv"
            size = weights.size(f"{name}_linear.weight", 0) // (groups * heads)
        mixers.append({"kind": kind, **mixer})
        kernel_sizes.append(max(size, 1))
    return mixers, kernel_sizes


def _output_dim(weights) -> int | None:
    """Width of what the output matrix multiplies, None for that of the model."""
    name = "decoder.project_out_dim.weight"
    return weights.size(name, 0) if name in weights.arrays else None


def _fill_embedder(weights, side, embedder, tied=False):
    """Embedding, tied to the decoder's or not, projection and positions."""
    tokens, table = embedder.tokens, f"{side}.embed_tokens"
    if tied:
        weights.must_equal(f"{table}.weight", "decoder.embed_tokens.weight")
    elif hasattr(tokens, "projections"):
        bands = zip(tokens.embeddings, tokens.projections, strict=True)
        for band, (embeddings, projection) in enumerate(bands):
            prefix = f"{table}.embeddings.{band}"
            weights.put(embeddings, f"{prefix}.0.weight")
            weights.put(projection, f"{prefix}.1.weight", arrange=np.transpose)
    else:
        weights.put(tokens.embeddings, f"{table}.weight")
    if embedder.projection is not None:
        weights.dense(embedder.projection, f"{side}.project_in_dim")
    if embedder.position is not None and embedder.position.kind == "learned":
        # Row 0 and 1 belong to ids that are no positions (pad is 1).
        name = f"{side}.embed_positions.weight"
        weights.put(embedder.position.embeddings, name, arrange=lambda table: table[2:])


def _fill_stack(weights, side, blocks, final_norm):
    for index, block in enumerate(blocks):
        layer = f"{side}.layers.{index}"
        parts = [block.mixer, block.attention, block.feed_forward]
        names = [
            ["conv_layer_norm", "self_attn_layer_norm"],
            ["encoder_attn_layer_norm"],
            ["final_layer_norm"],
        ]
        _fill_mixer(weights, layer, block.mixer.layer)
        if block.attention is None:
            del parts[1], names[1]
        else:
            _fill_attention(weights, f"{layer}.encoder_attn", block.attention.layer)
        weights.dense(block.feed_forward.layer.intermediate_dense, f"{layer}.fc1")
        weights.dense(block.feed_forward.layer.output_dense, f"{layer}.fc2")
        for place, part in enumerate(parts):
            # In each of the key layouts.
            kinds = [f"layer_norms.{place}", f"layer_norm{place + 1}", *names[place]]
            weights.norm(part.layer_norm, *(f"{layer}.{kind}" for kind in kinds))
    if final_norm is not None:
        weights.norm(final_norm, f"{side}.layer_norm")


def _fill_mixer(weights, layer, mixer):
    if not hasattr(mixer, "convolution"):
        _fill_attention(weights, f"{layer}.self_attn", mixer)
        return
    projections = [(mixer.input_projection, "linear1", "linear_gate")]
    if hasattr(mixer, "query_projection"):
        names = "linear1_query", "linear_query_gate"
        projections.append((mixer.query_projection, *names))
    for dense, name, gate in projections:
        if f"{layer}.{gate}_tanh.weight" not in weights.arrays:
            weights.dense(dense, f"{layer}.{name}")
            continue
        # The two halves of "gau" are stored apart.
        for variable, part in ((dense.kernel, "weight"), (dense.bias, "bias")):
            names = [f"{layer}.{gate}_{kind}.{part}" for kind in ("tanh", "sigmoid")]
            weights.put(
                variable, *names, arrange=lambda *halves: np.concatenate(halves).T
            )
    weights.dense(mixer.output_projection, f"{layer}.linear2")
    if getattr(mixer, "permute_channels", False):
        weights.put(mixer.permutation, f"{layer}.conv.perm")
    name = f"{layer}.conv.weight"
    if name in weights.arrays:
        # (H, 1, K) of the PyTorch class, (H, K) of the CUDA class
        kernel = mixer.convolution.kernel
        weights.put(kernel, name, arrange=lambda w: w.reshape(len(w), w.shape[-1]))
    else:
        kernel = mixer.convolution.kernel_generator.kernel
        weights.put(kernel, f"{name}_linear.weight", arrange=np.transpose)


def _fill_attention(weights, prefix, layer):
    """Multi-head attention: head h is the block h of rows (out, in) of torch."""
    heads, head_dim = layer.query_kernel.shape[1:]
    for part, end in (("kernel", "weight"), ("bias", "bias")):
        names = [f"{prefix}.{letter}_proj.{end}" for letter in "qkv"]
        weights.split(f"{prefix}.in_proj_{end}", names)
        for kind, name in zip(("query", "key", "value"), names, strict=True):
            weights.put(
                getattr(layer, f"{kind}_{part}"),
                name,
                # (H * D, in) -> (in, H, D), and (H * D,) -> (H, D)
                arrange=lambda w: w.T.reshape(*w.shape[1:], heads, -1),
            )
    weights.put(
        layer.output_kernel,
        f"{prefix}.out_proj.weight",
        arrange=lambda w: w.T.reshape(heads, head_dim, -1),
    )
    weights.put(layer.output_bias, f"{prefix}.out_proj.bias")


def _fill_decoder(weights, model):
    """And the matrix in front of the logits, or the adaptive softmax."""
    output = model.vocabulary_map
    _fill_embedder(weights, "decoder", model.target_embedder)
    _fill_stack(weights, "decoder", model.decoder_blocks, output.norm)
    if output.projection is not None:
        weights.dense(output.projection, "decoder.project_out_dim")
    # By the names of 2018 and of HEAD.
    name = weights.first("decoder.embed_out", "decoder.output_projection.weight")
    if getattr(model, "adaptive_softmax", None) is not None:
        _fill_adaptive_softmax(weights, model.adaptive_softmax)
    elif output.dense is None:
        weights.must_equal(name, "decoder.embed_tokens.weight")
    else:
        weights.put(output.dense.kernel, name, arrange=np.transpose)


def _fill_adaptive_softmax(weights, layer):
    """Head and tails, alone or tied to an adaptive input."""
    prefix, bands = "decoder.adaptive_softmax", "decoder.embed_tokens.embeddings"
    if f"{prefix}.version" not in weights.arrays:
        raise ValueError(
            f"tensor {prefix}.version is missing: without it the clusters of the head "
            "are one row off"
        )
    tied = layer.adaptive_input is not None
    if tied:
        weights.must_equal(f"{prefix}.head.word_proj.weight", f"{bands}.0.0.weight")
    name = "head.class_proj" if tied else "head"
    weights.put(layer.head, f"{prefix}.{name}.weight")
    for tail in range(len(layer.cutoffs) - 1):
        projection, table = (f"{prefix}.tail.{tail}.{part}.weight" for part in (0, 2))
        band = f"{bands}.{tail + 1}"
        if layer.tie_projections:
            weights.must_equal(projection, f"{band}.1.weight")
        else:
            variable = layer.tail_projections[tail]
            weights.put(variable, projection, arrange=np.transpose)
        if tied:
            weights.must_equal(table, f"{band}.0.weight")
        else:
            weights.put(layer.tails[tail], table)


# --- ConvS2S ---


def _conv_s2s(options, weights) -> ConvS2S:
    tables = {side: f"{side}.embed_positions.weight" for side in _SIDES}
    embeddings = {side: f"{side}.embed_tokens.weight" for side in _SIDES}
    positions = all(table in weights.arrays for table in tables.values())
    shared = options.get("share_input_output_embed", bool)
    options.refuse("adaptive_softmax_cutoff")
    lengths = {side: weights.size(tables[side], 0) - 2 for side in _SIDES}
    model = ConvS2S(
        weights.size(embeddings["encoder"], 0),
        weights.size(embeddings["decoder"], 0),
        embedding_dim={side: weights.size(embeddings[side], 1) for side in _SIDES},
        convolutions={side: options.get(f"{side}_layers", str) for side in _SIDES},
        attention=options.get("decoder_attention", object, True),
        output_dim=weights.size("decoder.fc2.bias", 0),
        share_output_embedding=shared,
        dropout=options.get("dropout", float, 0.1),
        positions=positions,
        max_length=lengths if positions else 1024,
    )
    for side, embedder, blocks in (
        ("encoder", model.source_embedder, model.encoder_blocks),
        ("decoder", model.target_embedder, model.decoder_blocks),
    ):
        _fill_embedder(weights, side, embedder)
        _fill_gated_stack(weights, side, blocks)
        weights.weight_norm(getattr(model, f"{side}_input"), f"{side}.fc1")
        weights.weight_norm(getattr(model, f"{side}_output"), f"{side}.fc2")
    if shared:
        weights.must_equal("decoder.fc3.weight", embeddings["decoder"])
        weights.put(model.target_embedder.tokens.bias, "decoder.fc3.bias")
    else:
        weights.weight_norm(model.output_dense, "decoder.fc3")
    return model


def _conv_language_model(options, weights) -> ConvLanguageModel:
    softmax = {
        "cutoffs": options.get("adaptive_softmax_cutoff", list),
        "dropout": options.get("adaptive_softmax_dropout", float),
    }
    adaptive = weights.count("decoder.adaptive_softmax.")
    options.refuse("share_input_output_embed")
    table = "decoder.embed_tokens.weight"
    model = ConvLanguageModel(
        weights.size(table, 0),
        embedding_dim=weights.size(table, 1),
        convolutions=options.get("decoder_layers", str),
        dropout=options.get("dropout", float, 0.1),
        adaptive_softmax=softmax if adaptive else None,
    )
    _fill_embedder(weights, "decoder", model.target_embedder)
    weights.weight_norm(model.decoder_input, "decoder.fc1")
    _fill_gated_stack(weights, "decoder", model.decoder_blocks)
    if adaptive:
        _fill_adaptive_softmax(weights, model.adaptive_softmax)
    else:
        weights.weight_norm(model.decoder_output, "decoder.fc2")
        weights.weight_norm(model.output_dense, "decoder.fc3")
    return model


def _fill_gated_stack(weights, side, blocks):
    for index, block in enumerate(blocks):
        weights.weight_norm(block.mixer.convolution, f"{side}.convolutions.{index}")
        attention, residual = block.attention, block.residual
        if attention is not None:
            for name in ("in_projection", "out_projection"):
                layer = getattr(attention, name)
                weights.weight_norm(layer, f"{side}.attention.{index}.{name}")
        if residual is not None and residual.projection is not None:
            weights.weight_norm(residual.projection, f"{side}.projections.{index}")
