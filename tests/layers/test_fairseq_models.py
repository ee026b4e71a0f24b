"""fairseq's small models rebuilt from the layers: encoder outputs, logits and steps.

The package's models and converter will do this for any checkpoint; here the layers
alone are shown to be fairseq's, with nothing between them but a table of names.
"""

import json

import numpy as np
import pytest
from keras import ops

from keras_seqconv.layers import (
    DynamicConvModule,
    FeedForward,
    LightConvModule,
    MultiHeadAttention,
    PositionEncoding,
    QueryConvModule,
    Residual,
)
from tests.backends import to_numpy
from tests.cases import few_on_jax

PAD = 1
# The normalizations of an encoder layer, in the three key layouts.
NORMS = {
    "lightconv_glu": ("layer_norm1", "layer_norm2"),
    "dynamicconv_no_glu": ("layer_norm1", "layer_norm2"),
    "dynamicconv_2019": ("layer_norms.0", "layer_norms.1"),
    "ddynamic_2019": ("layer_norms.0", "layer_norms.1"),
    "transformer": ("self_attn_layer_norm", "final_layer_norm"),
}
CONVOLUTION_NORMS = ("conv_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
ATTENTION_NORMS = ("self_attn_layer_norm", *CONVOLUTION_NORMS[1:])


class Rebuilt:
    """Embeddings, encoder and decoder of one golden folder."""

    def __init__(self, folder):
        self.kind = folder.name
        self.weights = dict(np.load(folder / "weights.npz"))
        self.args = json.loads((folder / "args.json").read_text())
        self.position = PositionEncoding()
        self.encoder = [
            self.residuals(f"encoder.layers.{i}", i, "encoder")
            for i in range(self.args["encoder_layers"])
        ]
        self.decoder = [
            self.residuals(f"decoder.layers.{i}", i, "decoder")
            for i in range(self.args["decoder_layers"])
        ]

    def residuals(self, prefix, index, side):
        """[mixer, (attention to the source,) feed-forward] of one layer."""
        norms = NORMS[self.kind]
        layers = [self.mixer(prefix, index, side), self.feed_forward(prefix)]
        if side == "decoder":
            attention = self.kind == "transformer"
            norms = ATTENTION_NORMS if attention else CONVOLUTION_NORMS
            layers.insert(1, self.attention(f"{prefix}.encoder_attn", causal=False))
        return [
            self.residual(layer, f"{prefix}.{norm}")
            for layer, norm in zip(layers, norms, strict=True)
        ]

    def residual(self, layer, norm):
        wrapped = Residual(layer)
        wrapped.build((None, None, 16))
        wrapped.layer_norm.set_weights(self.pair(norm))
        return wrapped

    def pair(self, name):
        """Kernel (or gamma) and bias in Keras' layout."""
        return [self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"]]

    def feed_forward(self, prefix):
        layer = FeedForward(self.args["encoder_ffn_embed_dim"])
        layer.build((None, None, 16))
        layer.intermediate_dense.set_weights(self.pair(f"{prefix}.fc1"))
        layer.output_dense.set_weights(self.pair(f"{prefix}.fc2"))
        return layer

    def attention(self, prefix, causal):
        heads = self.args["encoder_attention_heads"]
        layer = MultiHeadAttention(heads, use_causal_mask=causal)
        layer.build((None, None, 16), *([] if causal else [(None, None, 16)]))
        values = []
        for name in ("q_proj", "k_proj", "v_proj"):
            kernel, bias = self.pair(f"{prefix}.{name}")
            values += [kernel.reshape(16, heads, -1), bias.reshape(heads, -1)]
        kernel, bias = self.pair(f"{prefix}.out_proj")
        layer.set_weights([*values, kernel.reshape(heads, -1, 16), bias])
        return layer

    def mixer(self, prefix, index, side):
        padding = "causal" if side == "decoder" else "same"
        if self.kind == "transformer":
            return self.attention(f"{prefix}.self_attn", causal=side == "decoder")
        arguments = (
            self.args[f"{side}_attention_heads"],
            self.args[f"{side}_kernel_size_list"][index],
            padding,
        )
        if self.kind == "ddynamic_2019":
            query_dim = self.args[f"{side}_query_dim"]
            layer = QueryConvModule(*arguments, query_dim=query_dim, compat=True)
        else:
            light = self.kind == "lightconv_glu"
            module_class = LightConvModule if light else DynamicConvModule
            layer = module_class(*arguments, use_glu=self.args[f"{side}_glu"])
        layer.build((None, None, 16))
        layer.input_projection.set_weights(self.pair(f"{prefix}.linear1"))
        layer.output_projection.set_weights(self.pair(f"{prefix}.linear2"))
        if self.kind == "ddynamic_2019":
            query = self.pair(f"{prefix}.linear1_query")
            layer.query_projection.set_weights(query)
        if self.kind == "lightconv_glu":
            kernel = self.weights[f"{prefix}.conv.weight"][:, 0]
            layer.convolution.kernel.assign(kernel)
        else:
            kernel = self.weights[f"{prefix}.conv.weight_linear.weight"]
            layer.convolution.kernel_generator.kernel.assign(kernel.T)
        return layer

    def embed(self, side, ids):
        table = self.weights[f"{side}.embed_tokens.weight"]
        return ops.convert_to_tensor(table[ids] * np.float32(4))  # sqrt(16)

    def encode(self, ids):
        mask = ids != PAD
        x = self.position(self.embed("encoder", ids), mask=mask)
        for residuals in self.encoder:
            for residual in residuals:
                x = residual(x, mask=mask)
        return x, mask

    def logits(self, x):
        names = ("decoder.output_projection.weight", "decoder.embed_out")
        table = next(
            (self.weights[name] for name in names if name in self.weights),
            self.weights["decoder.embed_tokens.weight"],
        )
        return to_numpy(x) @ table.T

    def decode(self, ids, memory, source_mask):
        x = self.position(self.embed("decoder", ids))
        for mixer, attention, feed_forward in self.decoder:
            x = mixer(x)
            x = attention(x, value=memory, value_mask=source_mask)
            x = feed_forward(x)
        return self.logits(x)

    def decode_in_steps(self, ids, memory, source_mask):
        rows, length = ids.shape
        projected = [layer[1].layer.project_memory(memory) for layer in self.decoder]
        states = [layer[0].get_initial_state(rows, length) for layer in self.decoder]
        position, logits = self.position.get_initial_state(rows, length), []
        for t in range(length):
            x = self.embed("decoder", ids[:, t : t + 1])
            x, position = self.position.step(x, position)
            for i, (mixer, attention, feed_forward) in enumerate(self.decoder):
                x, states[i] = mixer.step(x, states[i])
                x = attention.attend(x, projected[i], memory_mask=source_mask)
                x, _ = feed_forward.step(x, {})
            logits.append(self.logits(x))
        return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("kind", few_on_jax(["ddynamic_2019"], NORMS))
def test_rebuilt_models_equal_fairseq(golden, kind):
    """Tolerances of golden/README.md; the causal decoders never see padding."""
    model = Rebuilt(golden / kind)
    expected = np.load(golden / kind / "expected.npz")
    source, target = expected["source_ids"], expected["prev_target_ids"]
    memory, mask = model.encode(source)
    encoded = to_numpy(memory)
    np.testing.assert_allclose(encoded[mask], expected["encoder_out"][mask], atol=1e-4)
    wanted = expected["logits"]
    limit = 1e-4 * max(1, np.abs(wanted).max() / 5)
    real = target != PAD
    for logits in (
        model.decode(target, memory, mask),
        model.decode_in_steps(target, memory, mask),
    ):
        assert np.abs(logits - wanted)[real].max() <= limit
