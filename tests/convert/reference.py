"""fairseq's forward passes in NumPy (float64), from tensors by fairseq's names.

Written after the descriptions of the models, with the structure taken from the options
and never from shapes, so that it shares nothing with the converter. Options are Python
values by fairseq's names; a missing one has fairseq's default.

Letters: B sentences, T time, S source time, C channels, H heads, K taps, V vocabulary.
"""

import json

import numpy as np

PAD = 1


def load_golden(folder):
    """The checkpoint of a golden folder as a reference, and what it must give."""
    weights = dict(np.load(folder / "weights.npz"))
    options = json.loads((folder / "args.json").read_text())
    options.setdefault("arch", "fconv" if folder.name == "fconv" else "lightconv")
    if options["arch"].startswith("fconv"):
        return ConvolutionalReference(weights, options)
    return BlocksReference(weights, options)


class Tensors:
    """Tensors by name in float64."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, *names):
        for name in names:
            if name in self.weights:
                return np.asarray(self.weights[name], "float64")
        raise KeyError(names)

    def has(self, name):
        return name in self.weights

    def linear(self, x, name):
        x = x @ self(f"{name}.weight").T
        return x + self(f"{name}.bias") if self.has(f"{name}.bias") else x

    def norm(self, x, *names):
        name = next(name for name in names if self.has(f"{name}.weight"))
        centred = x - x.mean(-1, keepdims=True)
        x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return x * self(f"{name}.weight") + self(f"{name}.bias")


def softmax(x, axis=-1):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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
    result = np.zeros_like(x)
    for t in range(x.shape[1]):
        if 0 <= t + offset < x.shape[1]:
            result[:, t] = x[:, t + offset]
    return result


def convolve(x, kernels, left):
    """y[b, t, c] = sum_j kernels[b, t, h(c), j] x[b, t + j - left, c]."""
    heads = kernels.shape[2]
    head_of = np.arange(x.shape[2]) * heads // x.shape[2]
    return sum(
        kernels[:, :, head_of, tap] * shifted(x, tap - left)
        for tap in range(kernels.shape[3])
    )


class BlocksReference:
    """lightconv, lightconv_lm, transformer, transformer_lm and ddynamic."""

    def __init__(self, weights, options):
        self.tensors, self.options = Tensors(weights), options
        self.language_model = options["arch"].endswith("_lm")
        self.convolutional = options["arch"].startswith(("lightconv", "ddynamic"))

    def option(self, name, default=None):
        value = self.options.get(name)
        return default if value is None else value

    def __call__(self, source_ids, target_ids):
        """Logits (B, T, V), or log-probabilities where the softmax is adaptive."""
        memory = None if self.language_model else self.encode(source_ids)
        mask = None if self.language_model else source_ids != PAD
        x = self.embed(target_ids, "decoder")
        for index in range(self.options["decoder_layers"]):
            x = self.decoder_layer(x, index, target_ids, memory, mask)
        x = self.final_norm(x, "decoder")
        return self.output(x)

    def encode(self, ids):
        mask = ids != PAD
        x = self.embed(ids, "encoder")
        if not self.convolutional:
            x = x * mask[..., None]
        for index in range(self.options["encoder_layers"]):
            layer = f"encoder.layers.{index}"
            mixed = ("layer_norms.0", "layer_norm1", "self_attn_layer_norm")
            x = self.residual(
                x, layer, mixed, "encoder", lambda x, i=index: self.mix(x, i, mask)
            )
            x = self.feed_forward(x, layer, ("layer_norms.1", "layer_norm2"), "encoder")
        return self.final_norm(x, "encoder")

    def decoder_layer(self, x, index, ids, memory, mask):
        layer = f"decoder.layers.{index}"
        x = self.residual(
            x,
            layer,
            ("layer_norms.0", "conv_layer_norm", "self_attn_layer_norm"),
            "decoder",
            lambda x: self.mix(x, index, ids != PAD, causal=True),
        )
        if memory is not None:
            allowed = np.broadcast_to(mask[:, None], (*x.shape[:2], mask.shape[1]))
            x = self.residual(
                x,
                layer,
                ("layer_norms.1", "encoder_attn_layer_norm"),
                "decoder",
                lambda x: self.attend(
                    f"{layer}.encoder_attn", x, memory, allowed, "decoder"
                ),
            )
        last = "layer_norms.1" if memory is None else "layer_norms.2"
        return self.feed_forward(x, layer, (last,), "decoder")

    def normalize_first(self, side):
        forced = self.options["arch"].startswith("lightconv_lm")
        return forced or self.option(f"{side}_normalize_before", False)

    def residual(self, x, layer, norms, side, function):
        names = [f"{layer}.{name}" for name in norms]
        if self.normalize_first(side):
            return x + function(self.tensors.norm(x, *names))
        return self.tensors.norm(x + function(x), *names)

    def feed_forward(self, x, layer, norms, side):
        def function(x):
            x = self.tensors.linear(x, f"{layer}.fc1")
            name = self.option("activation_fn", "relu")
            x = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[name](x)
            return self.tensors.linear(x, f"{layer}.fc2")

        return self.residual(x, layer, (*norms, "final_layer_norm"), side, function)

    def final_norm(self, x, side):
        wanted = self.option(f"{side}_normalize_before", False)
        if side == "decoder":
            unwanted = self.option("no_decoder_final_norm", False)
            lightconv_lm = self.options["arch"].startswith("lightconv_lm")
            wanted = wanted and not unwanted and not lightconv_lm
        return self.tensors.norm(x, f"{side}.layer_norm") if wanted else x

    def embed(self, ids, side):
        width = self.options[f"{side}_embed_dim"]
        if side == "decoder" and self.option("adaptive_input", False):
            x = self.adaptive_input(ids, width)
        else:
            x = self.tensors(f"{side}.embed_tokens.weight")[ids]
        x = x * np.sqrt(width)
        if side == "decoder" and self.tensors.has("decoder.project_in_dim.weight"):
            x = self.tensors.linear(x, "decoder.project_in_dim")
        if self.option("no_token_positional_embeddings", False):
            return x
        if self.option(f"{side}_learned_pos", False):
            return x + self.tensors(f"{side}.embed_positions.weight")[position_ids(ids)]
        return x + sinusoids(position_ids(ids), width)

    def cutoffs(self, kind, vocabulary_size):
        cutoffs = [int(n) for n in self.options[f"adaptive_{kind}_cutoff"].split(",")]
        return cutoffs + [vocabulary_size] * (cutoffs[-1] < vocabulary_size)

    def adaptive_input(self, ids, width):
        x = np.zeros((*ids.shape, width))
        start = band = 0
        while self.tensors.has(f"decoder.embed_tokens.embeddings.{band}.0.weight"):
            prefix = f"decoder.embed_tokens.embeddings.{band}"
            table = self.tensors(f"{prefix}.0.weight")
            inside = (ids >= start) & (ids < start + len(table))
            x[inside] = self.tensors.linear(table[ids[inside] - start], f"{prefix}.1")
            start, band = start + len(table), band + 1
        return x

    def output(self, x):
        if self.option("adaptive_softmax_cutoff") is not None and self.language_model:
            return self.adaptive_softmax(x)
        if self.tensors.has("decoder.project_out_dim.weight"):
            x = self.tensors.linear(x, "decoder.project_out_dim")
        shared = self.option("share_all_embeddings", False)
        if shared or self.option("share_decoder_input_output_embed", False):
            return x @ self.tensors("decoder.embed_tokens.weight").T
        names = ("decoder.output_projection.weight", "decoder.embed_out")
        return x @ self.tensors(*names).T

    def adaptive_softmax(self, x):
        prefix = "decoder.adaptive_softmax"
        tie_weights = self.option("tie_adaptive_weights", False)
        tie_projections = self.option("tie_adaptive_proj", False)
        if self.tensors.has("decoder.project_out_dim.weight"):
            x = self.tensors.linear(x, "decoder.project_out_dim")
        if tie_weights:
            first = self.tensors("decoder.embed_tokens.embeddings.0.0.weight")
            head = np.concatenate(
                [first, self.tensors(f"{prefix}.head.class_proj.weight")]
            )
        else:
            head = self.tensors(f"{prefix}.head.weight")
        number = len(self.options["adaptive_softmax_cutoff"].split(","))
        number -= not self.tensors.has(f"{prefix}.tail.{number - 1}.0.weight")
        scores = log_softmax(x @ head.T)
        parts = [scores[..., : head.shape[0] - number]]
        for tail in range(number):
            band = f"decoder.embed_tokens.embeddings.{tail + 1}"
            if tie_projections:
                hidden = x @ self.tensors(f"{band}.1.weight")
            else:
                hidden = self.tensors.linear(x, f"{prefix}.tail.{tail}.0")
            table = (
                self.tensors(f"{band}.0.weight")
                if tie_weights
                else self.tensors(f"{prefix}.tail.{tail}.2.weight")
            )
            prior = scores[..., parts[0].shape[-1] + tail, None]
            parts.append(log_softmax(hidden @ table.T) + prior)
        return np.concatenate(parts, -1)

    def mix(self, x, index, mask, causal=False):
        side = "decoder" if causal else "encoder"
        layer = f"{side}.layers.{index}"
        if not self.convolutional:
            allowed = mask[:, None, :]
            if causal:
                allowed = allowed & np.tri(x.shape[1], dtype=bool)
            allowed = np.broadcast_to(allowed, (len(x), x.shape[1], x.shape[1]))
            return self.attend(f"{layer}.self_attn", x, x, allowed, side)
        query = x
        values = self.gated(x, layer, "linear1", "linear_gate", side)
        if not causal:
            values = values * mask[..., None]
        kernel_sizes = self.options[f"{side}_kernel_size_list"]
        taps = kernel_sizes[index if len(kernel_sizes) > 1 else 0]
        left = taps - 1 if causal else (taps - 1) // 2
        kind = self.option(f"{side}_conv_type", "dynamic")
        if kind == "ddynamic":
            query = self.gated(x, layer, "linear1_query", "linear_query_gate", side)
            y = self.query_convolution(values, query, layer, taps, left, side)
        elif kind == "dynamic":
            y = self.dynamic_convolution(values, layer, taps, left, side)
        else:
            y = self.light_convolution(values, layer, taps, left, side)
        return self.tensors.linear(y, f"{layer}.linear2")

    def gated(self, x, layer, name, gate, side):
        # Both sides of dev6 follow the encoder's flags.
        of = "encoder" if self.option(f"{side}_conv_type") == "ddynamic" else side
        if self.option(f"{of}_gau", False):
            first = np.tanh(self.tensors.linear(x, f"{layer}.{gate}_tanh"))
            return first * sigmoid(self.tensors.linear(x, f"{layer}.{gate}_sigmoid"))
        x = self.tensors.linear(x, f"{layer}.{name}")
        return glu(x) if self.option(f"{of}_glu", True) else x

    def kernels(self, logits):
        return softmax(logits) if self.option("weight_softmax", True) else logits

    def light_convolution(self, x, layer, taps, left, side):
        heads = self.options[f"{side}_attention_heads"]
        kernel = self.tensors(f"{layer}.conv.weight").reshape(heads, taps)
        kernels = np.broadcast_to(self.kernels(kernel), (*x.shape[:2], *kernel.shape))
        return convolve(x, kernels, left)

    def dynamic_convolution(self, x, layer, taps, left, side):
        heads = self.options[f"{side}_attention_heads"]
        logits = self.tensors.linear(x, f"{layer}.conv.weight_linear")
        kernels = self.kernels(logits.reshape(*x.shape[:2], heads, taps))
        return convolve(x, kernels, left)

    def query_convolution(self, x, query, layer, taps, left, side):
        if self.option("conv_mixed", False):
            x = x[..., self.tensors.weights[f"{layer}.conv.perm"]]
        heads = self.options[f"{side}_attention_heads"]
        groups = self.option(f"{side}_attention_query_heads", 1)
        outputs = []
        for values, part in zip(
            np.split(x, groups, -1), np.split(query, groups, -1), strict=True
        ):
            logits = self.tensors.linear(part, f"{layer}.conv.weight_linear")
            logits = logits.reshape(*x.shape[:2], heads, groups * taps)
            outputs.append(convolve(values, self.kernels(logits)[..., :taps], left))
        return np.concatenate(outputs, -1)

    def attend(self, prefix, queries, keys, allowed, side):
        if self.tensors.has(f"{prefix}.in_proj_weight"):
            matrices = np.split(self.tensors(f"{prefix}.in_proj_weight"), 3)
            biases = np.split(self.tensors(f"{prefix}.in_proj_bias"), 3)
        else:
            names = [f"{prefix}.{letter}_proj" for letter in "qkv"]
            matrices = [self.tensors(f"{name}.weight") for name in names]
            biases = [self.tensors(f"{name}.bias") for name in names]
        heads = self.options[f"{side}_attention_heads"]
        q, k, v = (
            np.stack(np.split(x @ matrix.T + bias, heads, -1))
            for x, matrix, bias in zip(
                (queries, keys, keys), matrices, biases, strict=True
            )
        )
        scores = np.einsum("hbtd,hbsd->hbts", q, k) / np.sqrt(q.shape[-1])
        weights = softmax(np.where(allowed, scores, -1e30))
        attended = np.concatenate(list(np.einsum("hbts,hbsd->hbtd", weights, v)), -1)
        return self.tensors.linear(attended, f"{prefix}.out_proj")


class ConvolutionalReference:
    """fconv and fconv_lm."""

    def __init__(self, weights, options):
        self.tensors, self.options = Tensors(weights), options
        self.language_model = options["arch"].endswith("_lm")

    def __call__(self, source_ids, target_ids):
        memory = None if self.language_model else self.encode(source_ids)
        mask = None if self.language_model else source_ids != PAD
        embedded = self.embed(target_ids, "decoder")
        x = self.stack(embedded, "decoder", memory, mask)
        if self.options.get("adaptive_softmax_cutoff") is not None:
            return BlocksReference.adaptive_softmax(self, x)
        x = self.linear(x, "decoder.fc2")
        if self.options.get("share_input_output_embed"):
            table = self.tensors("decoder.embed_tokens.weight")
            return x @ table.T + self.tensors("decoder.fc3.bias")
        return self.linear(x, "decoder.fc3")

    def option(self, name, default=None):
        return self.options.get(name, default)

    def embed(self, ids, side):
        x = self.tensors(f"{side}.embed_tokens.weight")[ids]
        if self.tensors.has(f"{side}.embed_positions.weight"):
            x = x + self.tensors(f"{side}.embed_positions.weight")[position_ids(ids)]
        return x

    def encode(self, ids):
        """Keys and values."""
        mask = (ids != PAD)[..., None]
        embedded = self.embed(ids, "encoder")
        x = self.stack(embedded, "encoder", None, mask[..., 0])
        keys = self.linear(x, "encoder.fc2") * mask
        return keys, (keys + embedded) * np.sqrt(0.5)

    def stack(self, embedded, side, memory, mask):
        x = self.linear(embedded, f"{side}.fc1")
        outputs = [x]
        specification = eval(self.options[f"{side}_layers"], {})
        attention = eval(str(self.options.get("decoder_attention", "True")), {})
        for index, (_, taps, *residual) in enumerate(specification):
            distance = residual[0] if residual else 1
            skip = outputs[-distance] if distance else None
            if skip is not None and self.has(f"{side}.projections.{index}"):
                skip = self.linear(skip, f"{side}.projections.{index}")
            causal = side == "decoder"
            x = x if causal else x * mask[..., None]
            left = taps - 1 if causal else (taps - 1) // 2
            kernel = self.kernel(f"{side}.convolutions.{index}")
            x = sum(shifted(x, tap - left) @ kernel[tap] for tap in range(taps))
            x = glu(x + self.tensors(f"{side}.convolutions.{index}.bias"))
            here = attention[index] if isinstance(attention, list) else attention
            if memory is not None and here:
                x = self.attend(f"decoder.attention.{index}", x, embedded, memory, mask)
            if skip is not None:
                x = (x + skip) * np.sqrt(0.5)
            outputs.append(x)
        return x

    def attend(self, prefix, x, embedded, memory, mask):
        keys, values = memory
        query = self.linear(x, f"{prefix}.in_projection")
        query = (query + embedded) * np.sqrt(0.5)
        scores = np.where(mask[:, None], query @ keys.transpose(0, 2, 1), -1e30)
        context = softmax(scores) @ values * np.sqrt(mask.sum(1))[:, None, None]
        return (self.linear(context, f"{prefix}.out_projection") + x) * np.sqrt(0.5)

    def has(self, name):
        return any(f"{name}.{part}" in self.tensors.weights for part in W_NAMES)

    def kernel(self, name):
        """g v / |v|; what is normed: all but the axis along which g has entries."""
        if self.tensors.has(f"{name}.weight"):
            return self.tensors(f"{name}.weight")
        v, g = self.tensors(f"{name}.weight_v"), self.tensors(f"{name}.weight_g")
        axes = tuple(axis for axis in range(v.ndim) if g.shape[axis] == 1)
        return g * v / np.sqrt((v**2).sum(axes, keepdims=True))

    def linear(self, x, name):
        return x @ self.kernel(name).T + self.tensors(f"{name}.bias")


W_NAMES = ("weight", "weight_v")
