"""fairseq's forward passes in NumPy (float64), by fairseq's names of tensors.

Written after the descriptions of the models, with the structure taken from the options
and never from shapes, so that it shares nothing with the converter. Options are Python
values by fairseq's names; a missing one has fairseq's default.

A reference that is given no weights draws each tensor when it is asked for, and so
makes a checkpoint: see `drawn`. `layout` is how its keys are: "2018" (one matrix for
the inputs of an attention), "2019" or "head"; of ConvS2S how kernels are stored: "tap"
(norms of the decoder's convolutions before 2018), "folded" (plain), or by channel.

Letters: B sentences, T time, S source time, C channels, H heads, K taps, V vocabulary.
"""

import json

import numpy as np

from tests.layers.values import sigmoid, softmax
from tests.ops.oracle import convolve

PAD = 1
SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11


def load_golden(folder):
    """The reference of a golden folder."""
    weights = dict(np.load(folder / "weights.npz"))
    options = json.loads((folder / "args.json").read_text())
    options.setdefault("arch", "lightconv")
    return reference_of(options, "2019" if "2019" in folder.name else "head", weights)


def drawn(options, layout="head"):
    """A reference with random tensors of its own, `weights`."""
    reference = reference_of(options, layout)
    reference(np.array([[5, 2]]), np.array([[2, 5]]))
    return reference


def reference_of(options, layout, weights=None):
    convolutional = options["arch"].startswith("fconv")
    return (Convolutional if convolutional else Blocks)(options, layout, weights)


def write_checkpoint(folder, weights, options):
    """A folder that `from_fairseq` reads without torch."""
    np.savez(folder / "weights.npz", **weights)
    (folder / "args.json").write_text(json.dumps(options))
    return folder


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def glu(x):
    values, gates = np.split(x, 2, axis=-1)
    return values * sigmoid(gates)


def position_ids(ids):
    """The first real token of a sentence is 2, padding 1."""
    real = ids != PAD
    return np.where(real, np.cumsum(real, 1) + PAD, PAD)


def sinusoids(positions, width):
    half = width // 2
    frequencies = np.exp(-np.log(10000) * np.arange(half) / (half - 1))
    angles = positions[..., None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    table = np.pad(table, ((0, 0), (0, 0), (0, width % 2)))
    return np.where((positions == PAD)[..., None], 0, table)


def shifted(x, offset):
    """x[:, t + offset], zero where that is outside."""
    size = abs(offset)
    padded = np.pad(x, ((0, 0), (size, size), (0, 0)))
    return padded[:, size + offset : size + offset + x.shape[1]]


class Reference:
    """Tensors by name, given or drawn, and what all models do with them."""

    def __init__(self, options, layout="head", weights=None):
        self.options, self.layout = options, layout
        self.given, self.weights = weights is not None, weights or {}
        self.rng = np.random.default_rng(7)
        self.language_model = options["arch"].endswith("_lm")
        self.rows = {"encoder": SOURCE_VOCABULARY, "decoder": TARGET_VOCABULARY}
        if self.given:
            self.rows = {
                side: len(weights[f"{side}.embed_tokens.weight"]) for side in self.rows
            }
        elif self.option("share_all_embeddings"):
            self.rows["encoder"] = TARGET_VOCABULARY

    def option(self, name, default=None):
        value = self.options.get(name)
        return default if value is None else value

    def tensor(self, name, *shape, centre=0.0, scale=None):
        """One of this shape; vectors around 1 or 0, matrices of a moderate size."""
        if not self.given and name not in self.weights:
            if scale is None:
                scale = 0.3 if len(shape) == 1 else 0.9 / np.sqrt(shape[-1])
            array = centre + scale * self.rng.normal(size=shape)
            self.weights[name] = array.astype("float32")
            if "embed_" in name:
                self.weights[name][1] = 0  # of padding
        assert not shape or self.weights[name].shape == shape, name
        return self.weights[name].astype("float64")

    def also(self, name, value):
        """What a checkpoint holds beside; the name of a tensor is one that is tied."""
        if not self.given:
            tied = isinstance(value, str)
            self.weights[name] = self.weights[value] if tied else np.array(value)

    def table(self, name, rows, width):
        return self.tensor(name, rows, width, scale=1 / np.sqrt(width))

    def positions(self, ids, side, extra):
        """Learned ones."""
        name = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
        rows, width = self.option(name[side], 1024), self.options[f"{side}_embed_dim"]
        table = self.table(f"{side}.embed_positions.weight", rows + extra, width)
        return table[position_ids(ids)]

    def limits(self, kind):
        """Where the bands of an adaptive softmax or input end."""
        limits = [int(n) for n in self.options[f"adaptive_{kind}_cutoff"].split(",")]
        return limits + [TARGET_VOCABULARY] * (limits[-1] < TARGET_VOCABULARY)

    def adaptive_softmax(self, x):
        prefix, width = "decoder.adaptive_softmax", x.shape[-1]
        limits, tied = self.limits("softmax"), self.option("tie_adaptive_weights")
        tails, bands = len(limits) - 1, "decoder.embed_tokens.embeddings"
        if tied:
            self.also(f"{prefix}.head.word_proj.weight", f"{bands}.0.0.weight")
            classes = self.tensor(f"{prefix}.head.class_proj.weight", tails, width)
            head = np.concatenate([self.tensor(f"{bands}.0.0.weight"), classes])
            self.also(f"{prefix}.head._float_tensor", [1.0])
        else:
            head = self.tensor(f"{prefix}.head.weight", limits[0] + tails, width)
        self.also(f"{prefix}.version", [1])
        scores = log_softmax(x @ head.T)
        parts = [scores[..., : limits[0]]]
        for tail in range(tails):
            name, band = f"{prefix}.tail.{tail}", f"{bands}.{tail + 1}"
            size = int(width // self.option("adaptive_softmax_factor", 4) ** (tail + 1))
            if self.option("tie_adaptive_proj"):
                self.also(f"{name}.0.weight", f"{band}.1.weight")
                hidden = x @ self.tensor(f"{band}.1.weight")
            else:
                hidden = x @ self.tensor(f"{name}.0.weight", size, width).T
            if tied:
                self.also(f"{name}.2.weight", f"{band}.0.weight")
                table = self.tensor(f"{band}.0.weight")
            else:
                rows = limits[tail + 1] - limits[tail]
                table = self.tensor(f"{name}.2.weight", rows, size)
            prior = scores[..., limits[0] + tail, None]
            parts.append(log_softmax(hidden @ table.T) + prior)
        return np.concatenate(parts, -1)


class Blocks(Reference):
    """lightconv, lightconv_lm, transformer, transformer_lm and ddynamic."""

    def __call__(self, source_ids, target_ids):
        """Logits (B, T, V), or log-probabilities where the softmax is adaptive."""
        memory, mask = None, target_ids != PAD
        if not self.language_model:
            memory = self.encode(source_ids), source_ids != PAD
        return self.output(self.stack(self.embed(target_ids, "decoder"), mask, memory))

    @property
    def convolutional(self):
        return not self.options["arch"].startswith("transformer")

    def encode(self, ids):
        mask, x = ids != PAD, self.embed(ids, "encoder")
        if not self.convolutional:
            x = x * mask[..., None]
        return self.stack(x, mask, side="encoder")

    def stack(self, x, mask, memory=None, side="decoder"):
        self.also(f"{side}.version", [3.0])
        for index in range(self.options[f"{side}_layers"]):
            layer = f"{side}.layers.{index}"
            parts = [(self.mix, layer, index, mask), (self.feed_forward, layer)]
            if memory is not None:
                allowed = memory[1][:, None].repeat(x.shape[1], axis=1)
                cross = self.attend, f"{layer}.encoder_attn", memory[0], allowed
                parts.insert(1, cross)
            norms = self.norms(side, len(parts))
            for (function, *more), name in zip(parts, norms, strict=True):
                name = f"{layer}.{name}"
                first = self.normalize_first(side)
                y = function(self.norm(x, name) if first else x, side, *more)
                x = x + y if first else self.norm(x + y, name)
        final = self.option(f"{side}_normalize_before")
        if side == "decoder":
            unwanted = self.option("no_decoder_final_norm")
            final = final and not unwanted and self.options["arch"] != "lightconv_lm"
        return self.norm(x, f"{side}.layer_norm") if final else x

    def normalize_first(self, side):
        forced = self.options["arch"] == "lightconv_lm"
        return forced or self.option(f"{side}_normalize_before", False)

    def norms(self, side, count):
        # The decoder of LightConv always had names, the Transformer and encoders since.
        if self.layout != "head" and (side == "encoder" or not self.convolutional):
            return [f"layer_norms.{part}" for part in range(count)]
        if self.convolutional and side == "encoder":
            return ["layer_norm1", "layer_norm2"]
        first = "conv_layer_norm" if self.convolutional else "self_attn_layer_norm"
        names = [first, "encoder_attn_layer_norm", "final_layer_norm"]
        return names if count == 3 else names[::2]

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        gain = self.tensor(f"{name}.weight", x.shape[-1], centre=1.0)
        return x * gain + self.tensor(f"{name}.bias", x.shape[-1])

    def linear(self, x, name, size, bias=True):
        x = x @ self.tensor(f"{name}.weight", size, x.shape[-1]).T
        return x + self.tensor(f"{name}.bias", size) if bias else x

    def feed_forward(self, x, side, layer):
        x = self.linear(x, f"{layer}.fc1", self.options[f"{side}_ffn_embed_dim"])
        name = self.option("activation_fn", "relu")
        x = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[name](x)
        return self.linear(x, f"{layer}.fc2", self.options[f"{side}_embed_dim"])

    def embed(self, ids, side):
        width, table = self.options[f"{side}_embed_dim"], f"{side}.embed_tokens.weight"
        inner = self.option("decoder_input_dim", width) if side == "decoder" else width
        if side == "decoder" and self.option("adaptive_input"):
            x = self.adaptive_input(ids, inner, width)
        elif self.option("share_all_embeddings"):
            shared = "decoder.embed_tokens.weight"
            x = self.table(shared, self.rows[side], inner)[ids]
            self.also("encoder.embed_tokens.weight", shared)
        else:
            x = self.table(table, self.rows[side], inner)[ids]
        x = x * np.sqrt(width)
        if x.shape[-1] != width:
            x = self.linear(x, "decoder.project_in_dim", width, bias=False)
        if self.option("no_token_positional_embeddings"):
            return x
        if self.option(f"{side}_learned_pos"):
            return x + self.positions(ids, side, 2)
        self.also(f"{side}.embed_positions._float_tensor", [1.0])
        return x + sinusoids(position_ids(ids), width)

    def adaptive_input(self, ids, inner, width):
        x = np.zeros((*ids.shape, width))
        start = 0
        for band, end in enumerate(self.limits("input")):
            prefix = f"decoder.embed_tokens.embeddings.{band}"
            size = int(inner // self.options["adaptive_input_factor"] ** band)
            table = self.table(f"{prefix}.0.weight", end - start, size)
            inside = (ids >= start) & (ids < end)
            rows = table[ids[inside] - start]
            x[inside] = self.linear(rows, f"{prefix}.1", width, bias=False)
            start = end
        self.also("decoder.embed_tokens._float_tensor", [1.0])
        return x

    def output(self, x):
        width = self.option("decoder_output_dim", x.shape[-1])
        if width != x.shape[-1] and not self.option("tie_adaptive_weights"):
            x = self.linear(x, "decoder.project_out_dim", width, bias=False)
        if self.language_model and self.option("adaptive_softmax_cutoff"):
            return self.adaptive_softmax(x)
        shared, head = "decoder.embed_tokens.weight", self.layout == "head"
        name = "decoder.output_projection.weight" if head else "decoder.embed_out"
        names = ("share_all_embeddings", "share_decoder_input_output_embed")
        if any(map(self.option, names)):
            if head:  # 2019 had no name for it when it was tied
                self.also(name, shared)
            return x @ self.tensor(shared).T
        return x @ self.tensor(name, self.rows["decoder"], width).T

    def mix(self, x, side, layer, index, mask):
        width, causal = x.shape[-1], side == "decoder"
        if not self.convolutional:
            allowed = mask[:, None, :]
            if causal:
                allowed = allowed & np.tri(x.shape[1], dtype=bool)
            allowed = np.broadcast_to(allowed, (len(x), x.shape[1], x.shape[1]))
            return self.attend(x, side, f"{layer}.self_attn", x, allowed)
        heads = self.options[f"{side}_attention_heads"]
        conv_dim = self.option(f"{side}_conv_dim", width)
        values = self.gated(x, layer, ("linear1", "linear_gate"), conv_dim, side)
        if not causal:
            values = values * mask[..., None]
        sizes = self.options[f"{side}_kernel_size_list"]
        taps = sizes[index if len(sizes) > 1 else 0]
        padding = "causal" if causal else "same"
        kind = self.option(f"{side}_conv_type", "dynamic")
        normed = softmax if self.option("weight_softmax", True) else np.array
        if kind == "lightweight":
            kernel = self.tensor(f"{layer}.conv.weight", heads, 1, taps, scale=1.0)
            y = convolve(values, normed(kernel[:, 0]), padding)
        else:
            query, groups = values, 1
            if kind == "ddynamic":
                size = self.options[f"{side}_query_dim"]
                names = ("linear1_query", "linear_query_gate")
                query = self.gated(x, layer, names, size, side)
                groups = self.option(f"{side}_attention_query_heads", 1)
            if self.option("conv_mixed"):
                name = f"{layer}.conv.perm"
                if name not in self.weights:
                    self.also(name, self.rng.permutation(conv_dim))
                values = values[..., self.weights[name]]
            y = []
            for part, of in zip(
                np.split(values, groups, -1), np.split(query, groups, -1), strict=True
            ):
                name, size = f"{layer}.conv.weight_linear", heads * groups * taps
                logits = self.linear(of, name, size, bias=False)
                logits = logits.reshape(*x.shape[:2], heads, groups * taps)
                y.append(convolve(part, normed(logits)[..., :taps], padding))
            y = np.concatenate(y, -1)
            if self.layout == "head":  # made and never used
                unset = np.full((1, 1, conv_dim), np.nan, "float32")
                self.also(f"{layer}.conv.conv_bias", unset)
        return self.linear(y, f"{layer}.linear2", width)

    def gated(self, x, layer, names, size, side):
        # Both sides of dev6 follow the encoder's flags.
        of = "encoder" if self.option(f"{side}_conv_type") == "ddynamic" else side
        name, gate = (f"{layer}.{name}" for name in names)
        if self.option(f"{of}_gau"):
            first = np.tanh(self.linear(x, f"{gate}_tanh", size))
            return first * sigmoid(self.linear(x, f"{gate}_sigmoid", size))
        if self.option(f"{of}_glu", True):
            return glu(self.linear(x, name, 2 * size))
        return self.linear(x, name, size)

    def attend(self, queries, side, prefix, keys, allowed):
        width = queries.shape[-1]
        if self.layout == "2018":
            matrix = self.tensor(f"{prefix}.in_proj_weight", 3 * width, width)
            bias = self.tensor(f"{prefix}.in_proj_bias", 3 * width)
            parts = zip(np.split(matrix, 3), np.split(bias, 3), strict=True)
            q, k, v = (
                x @ matrix.T + bias
                for x, (matrix, bias) in zip((queries, keys, keys), parts, strict=True)
            )
        else:
            q, k, v = (
                self.linear(x, f"{prefix}.{letter}_proj", width)
                for x, letter in zip((queries, keys, keys), "qkv", strict=True)
            )
        heads = self.options[f"{side}_attention_heads"]
        q, k, v = (np.stack(np.split(x, heads, -1)) for x in (q, k, v))
        scores = np.einsum("hbtd,hbsd->hbts", q, k) / np.sqrt(q.shape[-1])
        weights = softmax(np.where(allowed, scores, -1e30))
        attended = np.concatenate(list(np.einsum("hbts,hbsd->hbtd", weights, v)), -1)
        return self.linear(attended, f"{prefix}.out_proj", width)


class Convolutional(Reference):
    """fconv and fconv_lm."""

    def __call__(self, source_ids, target_ids):
        memory = None
        if not self.language_model:
            memory = *self.encode(source_ids), source_ids != PAD
        self.also("decoder.version", [1.0 if self.layout == "tap" else 2.0])
        x = self.stack(self.embed(target_ids, "decoder"), "decoder", memory)
        if self.option("adaptive_softmax_cutoff"):
            return self.adaptive_softmax(x)
        out = self.option("decoder_out_embed_dim", 256)
        out = self.options["decoder_embed_dim"] if self.language_model else out
        x = self.linear(x, "decoder.fc2", out)
        rows, table = self.rows["decoder"], "decoder.embed_tokens.weight"
        if self.option("share_input_output_embed"):
            self.also("decoder.fc3.weight", table)
            return x @ self.tensor(table).T + self.tensor("decoder.fc3.bias", rows)
        return self.linear(x, "decoder.fc3", rows)

    def embed(self, ids, side):
        width = self.options[f"{side}_embed_dim"]
        x = self.table(f"{side}.embed_tokens.weight", self.rows[side], width)[ids]
        return x if self.language_model else x + self.positions(ids, side, 0)

    def encode(self, ids):
        """Keys and values."""
        mask = (ids != PAD)[..., None]
        embedded = self.embed(ids, "encoder")
        x = self.stack(embedded, "encoder", mask=mask)
        keys = self.linear(x, "encoder.fc2", embedded.shape[-1]) * mask
        return keys, (keys + embedded) * np.sqrt(0.5)

    def stack(self, embedded, side, memory=None, mask=1):
        specification = eval(self.options[f"{side}_layers"], {})
        attention = eval(str(self.option("decoder_attention", "True")), {})
        x = self.linear(embedded, f"{side}.fc1", specification[0][0])
        outputs = [x]
        for index, (size, taps, *residual) in enumerate(specification):
            distance = residual[0] if residual else 1
            skip = outputs[-distance] if distance else None
            if skip is not None and skip.shape[-1] != size:
                skip = self.linear(skip, f"{side}.projections.{index}", size)
            x = x * mask
            left = taps - 1 if side == "decoder" else (taps - 1) // 2
            name = f"{side}.convolutions.{index}"
            kernel = self.kernel(name, taps, x.shape[-1], 2 * size)
            x = sum(shifted(x, tap - left) @ kernel[tap] for tap in range(taps))
            x = glu(x + self.tensor(f"{name}.bias", 2 * size))
            here = attention[index] if isinstance(attention, list) else attention
            if memory is not None and here:
                x = self.attend(f"decoder.attention.{index}", x, embedded, *memory)
            if skip is not None:
                x = (x + skip) * np.sqrt(0.5)
            outputs.append(x)
        return x

    def attend(self, prefix, x, embedded, keys, values, mask):
        query = self.linear(x, f"{prefix}.in_projection", embedded.shape[-1])
        query = (query + embedded) * np.sqrt(0.5)
        scores = np.where(mask[:, None], query @ keys.transpose(0, 2, 1), -1e30)
        context = softmax(scores) @ values * np.sqrt(mask.sum(1))[:, None, None]
        out = self.linear(context, f"{prefix}.out_projection", x.shape[-1])
        return (out + x) * np.sqrt(0.5)

    def linear(self, x, name, size):
        kernel = self.kernel(name, size, x.shape[-1])
        return x @ kernel.T + self.tensor(f"{name}.bias", size)

    def kernel(self, name, *shape):
        """g v / |v|; what is normed: all but the axis along which g has entries."""
        if self.layout == "folded":
            return self.tensor(f"{name}.weight", *shape, scale=0.3)
        v = self.tensor(f"{name}.weight_v", *shape, scale=0.5)
        tap = self.layout == "tap" and name.startswith("decoder.")
        kept = 0 if len(shape) == 2 or tap else 2
        gains = [size if axis == kept else 1 for axis, size in enumerate(shape)]
        g = self.tensor(f"{name}.weight_g", *gains, centre=1.0, scale=0.2)
        axes = tuple(axis for axis in range(v.ndim) if axis != kept)
        return g * v / np.sqrt((v**2).sum(axes, keepdims=True))
