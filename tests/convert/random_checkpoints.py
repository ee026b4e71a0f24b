"""Checkpoints of fairseq's names and shapes, with random numbers.

`options` as in `reference`: fairseq's names, plain values. `dialect` is the layout of
keys: "2018" (one matrix for the inputs of an attention), "2019", or "head".
"""

import json

import numpy as np

SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11


class Maker:
    """Collects tensors; vectors around 1 or 0, matrices of a moderate size."""

    def __init__(self):
        self.rng = np.random.default_rng(7)
        self.weights = {}

    def __call__(self, name, *shape, centre=0.0, scale=None):
        if scale is None:
            scale = 0.3 if len(shape) == 1 else 0.9 / np.sqrt(shape[-1])
        array = centre + scale * self.rng.normal(size=shape)
        self.weights[name] = array.astype("float32")

    def linear(self, name, rows, columns, bias=True):
        self(f"{name}.weight", rows, columns)
        if bias:
            self(f"{name}.bias", rows)

    def norm(self, name, width):
        self(f"{name}.weight", width, centre=1.0)
        self(f"{name}.bias", width)

    def table(self, name, rows, width):
        self(name, rows, width, scale=1 / np.sqrt(width))
        self.weights[name][1] = 0  # of padding

    def number(self, name, value):
        self.weights[name] = np.array([value], "float32")


def random_blocks(options, dialect="head"):
    """Tensors of lightconv(_lm), transformer(_lm), or ddynamic."""
    make = Maker()
    language_model = options["arch"].endswith("_lm")
    for side in ["decoder"] if language_model else ["encoder", "decoder"]:
        width = options[f"{side}_embed_dim"]
        _embeddings(make, options, side, language_model)
        for index in range(options[f"{side}_layers"]):
            _layer(make, options, dialect, side, index, language_model)
        if _final_norm(options, side):
            make.norm(f"{side}.layer_norm", width)
        make.number(f"{side}.version", 3)
        make.number(f"{side}.embed_positions._float_tensor", 1)
    if options.get("share_all_embeddings"):
        name = "embed_tokens.weight"
        make.weights[f"encoder.{name}"] = make.weights[f"decoder.{name}"]
    _output(make, options, dialect, language_model)
    return make.weights


def _final_norm(options, side):
    if side == "encoder":
        return options.get("encoder_normalize_before", False)
    return (
        options.get("decoder_normalize_before", False)
        and not options.get("no_decoder_final_norm", False)
        and options["arch"] != "lightconv_lm"
    )


def _embeddings(make, options, side, language_model):
    width = options[f"{side}_embed_dim"]
    rows = SOURCE_VOCABULARY if side == "encoder" else TARGET_VOCABULARY
    if options.get("share_all_embeddings"):
        rows = TARGET_VOCABULARY
    inner = options.get("decoder_input_dim", width) if side == "decoder" else width
    if side == "decoder" and options.get("adaptive_input"):
        limits = [int(n) for n in options["adaptive_input_cutoff"].split(",")]
        limits = [0, *limits, rows]
        for band in range(len(limits) - 1):
            prefix = f"decoder.embed_tokens.embeddings.{band}"
            inner_dim = int(inner // options["adaptive_input_factor"] ** band)
            size = limits[band + 1] - limits[band]
            make.table(f"{prefix}.0.weight", size, inner_dim)
            make.linear(f"{prefix}.1", width, inner_dim, bias=False)
        make.number("decoder.embed_tokens._float_tensor", 1)
    else:
        make.table(f"{side}.embed_tokens.weight", rows, inner)
        if inner != width:
            make.linear("decoder.project_in_dim", width, inner, bias=False)
    if options.get(f"{side}_learned_pos"):
        names = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
        positions = options.get(names[side], 1024) + 2
        make.table(f"{side}.embed_positions.weight", positions, width)


def _layer(make, options, dialect, side, index, language_model):
    layer = f"{side}.layers.{index}"
    width, inner = options[f"{side}_embed_dim"], options[f"{side}_ffn_embed_dim"]
    convolutional = not options["arch"].startswith("transformer")
    if convolutional:
        _convolution(make, options, dialect, side, index)
    else:
        _attention(make, dialect, f"{layer}.self_attn", width)
    parts = 2
    if side == "decoder" and not language_model:
        parts = 3
        _attention(make, dialect, f"{layer}.encoder_attn", width)
    make.linear(f"{layer}.fc1", inner, width)
    make.linear(f"{layer}.fc2", width, inner)
    # The decoder of LightConv always had names, the Transformer and encoders since.
    if dialect != "head" and (side == "encoder" or not convolutional):
        names = [f"layer_norms.{part}" for part in range(parts)]
    elif convolutional and side == "encoder":
        names = ["layer_norm1", "layer_norm2"]
    else:
        first = "conv_layer_norm" if convolutional else "self_attn_layer_norm"
        names = [first, "encoder_attn_layer_norm", "final_layer_norm"]
        names = names if parts == 3 else [names[0], names[2]]
    for name in names:
        make.norm(f"{layer}.{name}", width)


def _convolution(make, options, dialect, side, index):
    layer = f"{side}.layers.{index}"
    width = options[f"{side}_embed_dim"]
    heads = options[f"{side}_attention_heads"]
    conv_dim = options.get(f"{side}_conv_dim", width)
    sizes = options[f"{side}_kernel_size_list"]
    taps = sizes[index if len(sizes) > 1 else 0]
    kind = options.get(f"{side}_conv_type", "dynamic")
    of = "encoder" if kind == "ddynamic" else side  # whose flags dev6 reads
    branches = [("linear1", "linear_gate", conv_dim)]
    generator_input = conv_dim
    if kind == "ddynamic":
        query_dim = options[f"{side}_query_dim"]
        branches.append(("linear1_query", "linear_query_gate", query_dim))
        groups = options.get(f"{side}_attention_query_heads", 1)
        generator_input, taps = query_dim // groups, taps * groups
        if options.get("conv_mixed"):
            order = make.rng.permutation(conv_dim)
            make.weights[f"{layer}.conv.perm"] = order
    for name, gate, size in branches:
        if options.get(f"{of}_gau"):
            make.linear(f"{layer}.{gate}_tanh", size, width)
            make.linear(f"{layer}.{gate}_sigmoid", size, width)
        else:
            glu = options.get(f"{of}_glu", True)
            make.linear(f"{layer}.{name}", 2 * size if glu else size, width)
    make.linear(f"{layer}.linear2", width, conv_dim)
    if kind == "lightweight":
        make(f"{layer}.conv.weight", heads, 1, taps, scale=1.0)
        return
    make.linear(
        f"{layer}.conv.weight_linear", heads * taps, generator_input, bias=False
    )
    if dialect == "head":  # made and never used
        make.weights[f"{layer}.conv.conv_bias"] = np.full(
            (1, 1, conv_dim), np.nan, "float32"
        )


def _attention(make, dialect, prefix, width):
    if dialect == "2018":
        make(f"{prefix}.in_proj_weight", 3 * width, width)
        make(f"{prefix}.in_proj_bias", 3 * width)
        make.linear(f"{prefix}.out_proj", width, width)
        return
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        make.linear(f"{prefix}.{name}", width, width)


def _output(make, options, dialect, language_model):
    width = options["decoder_embed_dim"]
    output_dim = options.get("decoder_output_dim", width)
    if output_dim != width and not options.get("tie_adaptive_weights"):
        make.linear("decoder.project_out_dim", output_dim, width, bias=False)
    if language_model and options.get("adaptive_softmax_cutoff"):
        _adaptive_softmax(make, options, output_dim)
        return
    shared = options.get("share_decoder_input_output_embed")
    if shared or options.get("share_all_embeddings"):
        if dialect == "head":  # 2019 had no name for it when it was tied
            make.weights["decoder.output_projection.weight"] = make.weights[
                "decoder.embed_tokens.weight"
            ]
        return
    head = dialect == "head"
    name = "decoder.output_projection.weight" if head else "decoder.embed_out"
    make(name, TARGET_VOCABULARY, output_dim)


def _adaptive_softmax(make, options, width):
    prefix = "decoder.adaptive_softmax"
    limits = [int(n) for n in options["adaptive_softmax_cutoff"].split(",")]
    limits += [TARGET_VOCABULARY] * (limits[-1] < TARGET_VOCABULARY)
    tails = len(limits) - 1
    bands = "decoder.embed_tokens.embeddings"
    tied = options.get("tie_adaptive_weights")
    if tied:
        make.weights[f"{prefix}.head.word_proj.weight"] = make.weights[
            f"{bands}.0.0.weight"
        ]
        make(f"{prefix}.head.class_proj.weight", tails, width)
        make.number(f"{prefix}.head._float_tensor", 1)
    else:
        make(f"{prefix}.head.weight", limits[0] + tails, width)
    for tail in range(tails):
        factor = options.get("adaptive_softmax_factor", 4)
        size = int(width // factor ** (tail + 1))
        name = f"{prefix}.tail.{tail}"
        if options.get("tie_adaptive_proj"):
            weight = make.weights[f"{bands}.{tail + 1}.1.weight"]
            make.weights[f"{name}.0.weight"] = weight
        else:
            make(f"{name}.0.weight", size, width)
        if tied:
            weight = make.weights[f"{bands}.{tail + 1}.0.weight"]
            make.weights[f"{name}.2.weight"] = weight
        else:
            make(f"{name}.2.weight", limits[tail + 1] - limits[tail], size)
    make.weights[f"{prefix}.version"] = np.array([1])


def random_convolutional(options, norm="channel"):
    """Tensors of fconv(_lm).

    `norm`: "channel", "tap" (the decoder's convolutions before 2018), or "folded"
    (plain kernels).
    """
    make = Maker()
    language_model = options["arch"].endswith("_lm")
    for side in ["decoder"] if language_model else ["encoder", "decoder"]:
        rows = SOURCE_VOCABULARY if side == "encoder" else TARGET_VOCABULARY
        _convolutional_side(make, options, norm, side, rows, language_model)
    make.number("decoder.version", 1 if norm == "tap" else 2)
    last = eval(options["decoder_layers"], {})[-1][0]
    if options.get("adaptive_softmax_cutoff"):
        _adaptive_softmax(make, options, last)
        return make.weights
    out = options.get("decoder_out_embed_dim", 256)
    out = options["decoder_embed_dim"] if language_model else out
    _normed(make, norm, "decoder.fc2", out, last)
    if options.get("share_input_output_embed"):
        table = make.weights["decoder.embed_tokens.weight"]
        make.weights["decoder.fc3.weight"] = table
        make("decoder.fc3.bias", TARGET_VOCABULARY)
    else:
        _normed(make, norm, "decoder.fc3", TARGET_VOCABULARY, out)
    return make.weights


def _convolutional_side(make, options, norm, side, rows, language_model):
    width = options[f"{side}_embed_dim"]
    make.table(f"{side}.embed_tokens.weight", rows, width)
    if not language_model:
        names = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
        positions = options.get(names[side], 1024)
        make.table(f"{side}.embed_positions.weight", positions, width)
    specification = eval(options[f"{side}_layers"], {})
    channels = [specification[0][0]]
    _normed(make, norm, f"{side}.fc1", channels[0], width)
    attention = eval(str(options.get("decoder_attention", "True")), {})
    for index, (size, taps, *residual) in enumerate(specification):
        distance = residual[0] if residual else 1
        if distance and channels[-distance] != size:
            name = f"{side}.projections.{index}"
            _normed(make, norm, name, size, channels[-distance])
        name = f"{side}.convolutions.{index}"
        _normed(make, norm, name, taps, channels[-1], 2 * size)
        here = attention[index] if isinstance(attention, list) else attention
        if side == "decoder" and not language_model and here:
            prefix = f"decoder.attention.{index}"
            _normed(make, norm, f"{prefix}.in_projection", width, size)
            _normed(make, norm, f"{prefix}.out_projection", size, width)
        channels.append(size)
    if side == "encoder":
        _normed(make, norm, "encoder.fc2", width, channels[-1])


def _normed(make, norm, name, *shape):
    """A linear layer (out, in) or a convolution (K, in, out)."""
    convolution = len(shape) == 3
    make(f"{name}.bias", shape[-1] if convolution else shape[0])
    if norm == "folded":
        make(f"{name}.weight", *shape, scale=0.3)
        return
    make(f"{name}.weight_v", *shape, scale=0.5)
    if not convolution:
        gains = (shape[0], 1)
    elif norm == "tap" and name.startswith("decoder."):
        gains = (shape[0], 1, 1)
    else:
        gains = (1, 1, shape[2])
    make(f"{name}.weight_g", *gains, centre=1.0, scale=0.2)


def write_checkpoint(folder, weights, options):
    """A folder that `from_fairseq` reads without torch."""
    np.savez(folder / "weights.npz", **weights)
    (folder / "args.json").write_text(json.dumps(options))
    return folder
