"""Every layer as NumPy has it, in float64, from the weights of the layer.

Each formula takes the layer and the arguments of a call. Nothing is shared with the
code; numbers of equations are in the docstrings of the layers.
"""

import inspect
import math

import numpy as np

from keras_seqconv import layers
from tests.backends import to_numpy
from tests.layers.values import sigmoid, softmax
from tests.ops import oracle


def array(weight):
    return to_numpy(weight).astype("float64")


def zeroed(values, mask):
    return values if mask is None else np.where(mask[..., None], values, 0)


def kernel_of(layer):
    """That of a `Dense`, or g v / ||v|| of a weight-normalised layer."""
    if getattr(layer, "g", None) is None:
        return array(layer.kernel)
    v = array(layer.v)
    return array(layer.g) * v / np.sqrt(np.sum(v**2, axis=tuple(range(v.ndim - 1))))


def bias_of(layer):
    return 0 if layer.bias is None else array(layer.bias)


def dense(layer, inputs):
    return inputs @ kernel_of(layer) + bias_of(layer)


def gated(values, gate="glu"):
    if gate == "none":
        return values
    first, second = np.split(values, 2, axis=-1)
    return (np.tanh(first) if gate == "gau" else first) * sigmoid(second)


# --- Convolutions ---


def dilated(kernel, rate):
    """The kernel with zeros between its taps."""
    spread = np.zeros((*kernel.shape[:-1], (kernel.shape[-1] - 1) * rate + 1))
    spread[..., ::rate] = kernel
    return spread


def light_conv(layer, inputs, mask=None):
    kernel = array(layer.kernel)
    kernel = softmax(kernel) if layer.kernel_softmax else kernel
    kernel = dilated(kernel, layer.dilation_rate)
    return oracle.convolve(zeroed(inputs, mask), kernel, layer.padding) + bias_of(layer)


def short_conv(layer, inputs, mask=None):
    inputs = zeroed(inputs, mask)
    kernel = dilated(array(layer.kernel), layer.dilation_rate)
    outputs = oracle.convolve(inputs, kernel, layer.padding) + bias_of(layer)
    if layer.activation == "silu":
        outputs = outputs * sigmoid(outputs)
    return outputs + inputs if layer.residual else outputs


def gated_short_conv(layer, inputs, mask=None):
    before, after, values = np.split(dense(layer.input_projection, inputs), 3, axis=-1)
    outputs = after * short_conv(layer, before * values, mask)
    return dense(layer.output_projection, outputs)


def dynamic_kernel(layer, inputs, query=None, mask=None):
    """(B, T, H, K). Group p of the query makes heads p * H / P and following."""
    query = zeroed(inputs if query is None else query, mask)
    parts = np.split(query, layer.query_groups, axis=-1)
    heads = layer.num_heads // layer.query_groups
    made = [dense(layer.kernel_generator, part) for part in parts]
    made = [values.reshape(*query.shape[:2], heads, -1) for values in made]
    kernel = np.concatenate(made, axis=2)
    kernel = softmax(kernel) if layer.kernel_softmax else kernel
    return kernel[..., : layer.kernel_size]  # all, but with `compat`


def dynamic_conv(layer, inputs, query=None, mask=None):
    kernel = dynamic_kernel(layer, inputs, query, mask)
    kernel = dilated(kernel, layer.dilation_rate)
    return oracle.convolve(zeroed(inputs, mask), kernel, layer.padding) + bias_of(layer)


def conv_module(layer, inputs, mask=None):
    gate = getattr(layer, "gate", "glu" if getattr(layer, "use_glu", 0) else "none")
    values = gated(dense(layer.input_projection, inputs), gate)
    if isinstance(layer, layers.QueryConvModule):
        if layer.permute_channels:
            order = to_numpy(layer.permutation).astype(int)
            assert sorted(order) == list(range(len(order)))
            values = values[..., order]
        query = gated(dense(layer.query_projection, inputs), gate)
        hidden = dynamic_conv(layer.convolution, values, query, mask)
    else:
        hidden = of(layer.convolution, inputs=values, mask=mask)
    return dense(layer.output_projection, hidden)


def dense_conv(layer, inputs, mask=None):
    inputs = zeroed(inputs, mask)
    kernel, time = kernel_of(layer), inputs.shape[1]
    left = oracle.padding_left(len(kernel), layer.padding)
    outputs = np.zeros((*inputs.shape[:2], kernel.shape[-1])) + bias_of(layer)
    for t, j in np.ndindex(time, len(kernel)):
        if 0 <= t + j - left < time:
            outputs[:, t] += inputs[:, t + j - left] @ kernel[j]
    return outputs


# --- ConvS2S ---


def scaled_residual(layer, inputs, skip):
    skip = skip if layer.projection is None else dense(layer.projection, skip)
    return (inputs + skip) * np.sqrt(0.5)


def block(layer, inputs, mask=None):
    outputs = gated(dense_conv(layer.convolution, inputs, mask))
    if not layer.residual:
        return outputs
    return scaled_residual(layer.scaled_residual, outputs, inputs)


def conv_s2s_weights(layer, inputs, target_embeddings, keys, keys_mask=None):
    """(B * G, T, S), zero for sentences without any key."""
    beams = len(inputs) // len(keys)
    real = np.ones(keys.shape[:2]) if keys_mask is None else keys_mask
    keys, real = np.repeat(keys, beams, axis=0), np.repeat(real, beams, axis=0)
    query = (dense(layer.in_projection, inputs) + target_embeddings) * np.sqrt(0.5)
    return shares(query @ keys.swapaxes(1, 2), real[:, None])


def conv_s2s_attention(layer, inputs, target_embeddings, keys, values, keys_mask=None):
    weights = conv_s2s_weights(layer, inputs, target_embeddings, keys, keys_mask)
    real = np.ones(keys.shape[:2]) if keys_mask is None else keys_mask
    values = values * np.sqrt(real.sum(axis=1))[:, None, None]
    context = weights @ np.repeat(values, len(inputs) // len(keys), axis=0)
    return (dense(layer.out_projection, context) + inputs) * np.sqrt(0.5)


# --- Attention and what stands around it ---


def shares(scores, allowed):
    """Softmax over those that are allowed; zeros where none is."""
    odds = np.exp(scores - scores.max(-1, keepdims=True)) * allowed
    return odds / np.maximum(odds.sum(-1, keepdims=True), 1e-300)


def attention(layer, inputs, value=None, key=None, **masks):
    return _attention(layer, inputs, value, key, **masks)[0]


def attention_weights(layer, inputs, value=None, key=None, **masks):
    return _attention(layer, inputs, value, key, **masks)[1]


def _attention(
    layer, inputs, value, key, mask=None, value_mask=None, attention_mask=True
):
    inputs = zeroed(inputs, mask)
    value_mask = mask if value is None else value_mask
    value = zeroed(inputs if value is None else value, value_mask)
    key = value if key is None else zeroed(key, value_mask)
    allowed = np.ones((len(inputs), inputs.shape[1], value.shape[1])) * attention_mask
    if value_mask is not None:
        allowed = allowed * value_mask[:, None]
    if layer.use_causal_mask:
        allowed = allowed * np.tri(*allowed.shape[1:])

    def heads(name, inputs):
        values = np.einsum(
            "btc,chd->bhtd", inputs, array(getattr(layer, f"{name}_kernel"))
        )
        bias = getattr(layer, f"{name}_bias")
        return values if bias is None else values + array(bias)[:, None]

    query, key, value = heads("query", inputs), heads("key", key), heads("value", value)
    if layer.canon_layer is not None:  # a kernel of each head's channels
        hidden = (mask, value_mask, value_mask)
        kernels = np.split(array(layer.canon_layer.kernel), 3)
        query, key, value = (
            canon(layer.canon_layer, *one)
            for one in zip((query, key, value), kernels, hidden, strict=True)
        )
    scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])
    weights = shares(scores, allowed[:, None])
    outputs = np.einsum("bhtd,hdc->btc", weights @ value, array(layer.output_kernel))
    bias = layer.output_bias
    return (outputs if bias is None else outputs + array(bias)), weights


def canon(layer, heads, kernel, mask):
    """x + conv(x) of each head, (B, H, T, D), with a kernel (H D, K)."""
    kernel = kernel.reshape(heads.shape[1], heads.shape[3], -1)
    rows = [zeroed(heads[:, h], mask) for h in range(len(kernel))]
    rows = [
        x + oracle.convolve(x, taps, layer.padding)
        for x, taps in zip(rows, kernel, strict=True)
    ]
    return np.stack(rows, axis=1)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
}


def feed_forward(layer, inputs, mask=None):
    activation = ACTIVATIONS[layer.activation.__name__]
    hidden = dense(layer.intermediate_dense, inputs)
    if layer.canon_layer is not None:
        hidden = short_conv(layer.canon_layer, hidden, mask)
    return dense(layer.output_dense, activation(hidden))


def normalized(x, norm):
    """Layer normalization over the channels."""
    x = np.asarray(x, float)
    gamma, beta = to_numpy(norm.gamma), to_numpy(norm.beta)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


def residual(layer, inputs, **further):
    if layer.normalize_first:
        x = normalized(inputs, layer.layer_norm)
        if layer.canon_layer is not None:
            x = short_conv(layer.canon_layer, x, further.get("mask"))
        return inputs + of(layer.layer, inputs=x, **further)
    return normalized(
        inputs + of(layer.layer, inputs=inputs, **further), layer.layer_norm
    )


# --- Tables ---


def encodings(layer, count, channels):
    """(count, C) of positions 0, 1, ..."""
    positions, c = np.arange(count)[:, None], np.arange(channels)
    if layer.kind == "learned":
        return array(layer.embeddings)[:count]
    if layer.layout == "paper":
        angles = positions / 10000 ** ((c - c % 2) / channels)
        return np.where(c % 2, np.cos(angles), np.sin(angles))
    half = channels // 2  # fairseq
    angles = (positions + 2) * 10000 ** (-np.arange(half) / max(half - 1, 1))
    odd = np.zeros((count, channels % 2))
    return np.concatenate([np.sin(angles), np.cos(angles), odd], axis=1)


def positions(layer, inputs, mask=None):
    mask = np.ones(inputs.shape[:2], bool) if mask is None else mask
    rows = encodings(layer, *inputs.shape[1:])[np.cumsum(mask, axis=1) - mask]
    return np.where(mask[..., None], inputs + rows, 0)


def adaptive_input(layer, inputs):
    """Every band times its matrix; the row of padding is zero."""
    weights = zip(layer.embeddings, layer.projections, strict=True)
    rows = np.concatenate([array(e) @ array(p) for e, p in weights])
    if layer.pad_id is not None:
        rows[layer.pad_id] = 0
    return rows[inputs]


FORMULAS = {
    "GLU": lambda layer, inputs: gated(inputs),
    "LightConv": light_conv,
    "DynamicConv": dynamic_conv,
    "ShortConv": short_conv,
    "GatedShortConv": gated_short_conv,
    "LightConvModule": conv_module,
    "DynamicConvModule": conv_module,
    "QueryConvModule": conv_module,
    "WeightNormDense": dense,
    "WeightNormConv1D": dense_conv,
    "ConvS2SBlock": block,
    "ConvS2SAttention": conv_s2s_attention,
    "ScaledResidual": scaled_residual,
    "ScaleGradient": lambda layer, inputs: inputs,
    "MultiHeadAttention": attention,
    "FeedForward": feed_forward,
    "Residual": residual,
    "PositionEncoding": positions,
    "TokenEmbedding": lambda layer, inputs: array(layer.embeddings)[inputs],
    "AdaptiveInput": adaptive_input,
    "AdaptiveSoftmax": lambda layer, inputs: inputs,  # `log_prob`: test_adaptive.py
}


def of(layer, **arguments):
    """What the layer gives for the arguments of a call."""
    formula = FORMULAS[type(layer).__name__]
    for name in {"inputs", "query", "skip", "target_embeddings"} & set(arguments):
        arguments[name] = zeroed(arguments[name], arguments.get("mask"))
    if not {"mask", "masks", "further"} & set(inspect.signature(formula).parameters):
        arguments.pop("mask", None)
    return formula(layer, **arguments)
