"""ConvS2S, and its decoder as the gated convolutional language model.

Letters: B sentences, S source time, T target time, C channels, E embedding width,
V vocabulary (of the target).
"""

import keras
from keras import ops

from keras_seqconv.layers import ScaledResidual, ScaleGradient
from keras_seqconv.layers.sequences import checked, zero_masked
from keras_seqconv.models import gated_stack
from keras_seqconv.models.configuration import configuration_of
from keras_seqconv.models.gated_stack import (
    WeightNormalizedModel,
    parse_convolutions,
    weight_normed,
)
from keras_seqconv.models.sequence_model import beams_of
from keras_seqconv.models.stacks import (
    SIDES,
    make_adaptive_softmax,
    make_seeds,
    of_layers,
    of_side,
)
from keras_seqconv.support.arguments import check_boolean, check_integer


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvS2S(WeightNormalizedModel):
    """Convolutional sequence to sequence learning, with multi-step attention.

    (Gehring et al. 2017, Convolutional Sequence to Sequence Learning; fairseq `fconv`.)

        logits = model({"source_ids": (B, S), "target_ids": (B, T)})   (B, T, V) float32

    Inputs and padding as in `EncoderDecoder`.

    The gradient that reaches the encoder is divided by twice the number of attention
    layers. All weights but the embeddings are weight-normalized until `fold`.

    Options marked (sides) take one value for both, or {"encoder": ..., "decoder": ...}.

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids, V.
        embedding_dim: width E of the token and position embeddings, and of the outputs
            of the encoder (sides, which must agree).
        convolutions: (channels, kernel_size[, residual]) of each layer as a list, or in
            fairseq's notation: "[(512, 3)] * 9 + [(1024, 3)] * 4" (sides). `residual`
            is the number of layers back to the residual's source: 1, the default, is
            the layer's own input, 0 none.
        output_dim: width of the inputs of the output matrix.
        attention: whether the decoder's layers attend to the source: one bool, or a
            list with one for each layer, at least one of them True.
        share_output_embedding: whether the output matrix is the target embedding; needs
            `output_dim` equal to the decoder's `embedding_dim`.
        dropout: rate on the embeddings, before each convolution and before the output.
        positions: learned position embeddings on both sides; False for none.
        max_length: rows of the position tables (sides).
        folded: whether to make plain weights, as in models that are saved after `fold`.
        special_ids, seed, name, dtype: see `EncoderDecoder`.

    Raises:
        ValueError: an argument breaks these rules.

    Example:

    ```python
    model = keras_seqconv.models.ConvS2S(
        1000, 1000, embedding_dim=32, convolutions="[(32, 3)] * 2", output_dim=32
    )
    inputs = {"source_ids": [[5, 6, 7, 2]], "target_ids": [[2, 8, 9]]}
    inputs = {name: keras.ops.array(ids) for name, ids in inputs.items()}
    logits = model(inputs)  # (1, 3, 1000)
    weights = model.attention_weights(inputs)  # (1, 3, 4)
    ```
    """

    has_source = True

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        embedding_dim=512,
        convolutions="[(512, 3)] * 20",
        output_dim: int = 256,
        attention=True,
        share_output_embedding: bool = False,
        dropout: float = 0.1,
        positions: bool = True,
        max_length=1024,
        folded: bool = False,
        special_ids: dict | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype=None,
    ):
        config = configuration_of(locals())
        for name in ("dropout", "output_dim", "share_output_embedding"):
            checked(name, config[name])
        check_boolean("positions", positions)
        source_width, width = (
            of_side("embedding_dim", embedding_dim, side) for side in SIDES
        )
        if source_width != width:
            raise ValueError(
                "`embedding_dim` must be the same on both sides, attention multiplies "
                f"the two. Received: embedding_dim={embedding_dim}"
            )
        if share_output_embedding and output_dim != width:
            raise ValueError(
                "`output_dim` must be the width of the target embedding with "
                f"share_output_embedding=True. Received: output_dim={output_dim}, "
                f"embedding_dim={embedding_dim}"
            )
        source_layers, target_layers = (
            parse_convolutions(of_side("convolutions", convolutions, side))
            for side in SIDES
        )
        attentions = of_layers("attention", attention, len(target_layers))
        attentions = [check_boolean("attention", attends) for attends in attentions]
        if not any(attentions):
            raise ValueError(
                "`attention` must be True for at least one decoder layer. "
                f"Received: attention={attention!r}"
            )
        dtype = config["dtype"]
        plain = {"folded": folded, "dtype": dtype}
        shared = {"dropout": dropout, "seeds": make_seeds(seed), "dtype": dtype}
        lengths = dict.fromkeys(SIDES)
        if positions:
            for side in SIDES:
                length = of_side("max_length", max_length, side)
                lengths[side] = check_integer("max_length", length, 1)
        self.source_embedder = gated_stack.make_gated_embedder(
            source_vocabulary_size,
            width,
            max_length=lengths["encoder"],
            name="source_embedding",
            **shared,
        )
        self.target_embedder = gated_stack.make_gated_embedder(
            target_vocabulary_size,
            width,
            max_length=lengths["decoder"],
            use_bias=share_output_embedding,
            name="target_embedding",
            **shared,
        )
        self.encoder_input, self.decoder_input = (
            weight_normed(layers[0].channels, dropout, **plain)
            for layers in (source_layers, target_layers)
        )
        shared["folded"] = folded
        self.encoder_blocks = gated_stack.make_gated_blocks(
            source_layers, padding="same", **shared
        )
        self.decoder_blocks = gated_stack.make_gated_blocks(
            target_layers, padding="causal", attention=attentions, **shared
        )
        self.encoder_output = weight_normed(width, **plain)
        self.gradient_scale = ScaleGradient(1 / (2 * sum(attentions)), dtype=dtype)
        self.encoder_sum = ScaledResidual(dtype=dtype)
        self.decoder_output = weight_normed(output_dim, **plain)
        self.output_dropout = keras.layers.Dropout(
            dropout, seed=next(shared["seeds"]), dtype=dtype
        )
        self.output_dense = None
        if not share_output_embedding:
            self.output_dense = weight_normed(target_vocabulary_size, dropout, **plain)
        super().__init__(config)

    def encode(self, source_ids) -> tuple:
        """Encodes ids (B, S) to keys and values (B, S, E) and the mask (B, S)."""
        mask = ops.not_equal(source_ids, self.pad_id)
        embedded = self.source_embedder(source_ids, mask)
        x = gated_stack.run_gated_blocks(
            self.encoder_blocks,
            self.encoder_input(embedded),
            lambda mixer, x: mixer(x, mask=mask),
        )
        keys = self.gradient_scale(self.encoder_output(x))
        return keys, self.encoder_sum(keys, embedded), mask

    def decode(self, target_ids, keys, values, mask):
        """Returns logits (B, T, V) of target ids (B, T) and the results of `encode`."""
        embedded = self.target_embedder(target_ids, pad_id=self.pad_id)
        x = gated_stack.run_gated_blocks(
            self.decoder_blocks,
            self.decoder_input(embedded),
            lambda mixer, x: mixer(x),
            lambda attention, x: attention(x, embedded, keys, values, keys_mask=mask),
        )
        return self._head(x)

    # Of the steps, see `SequenceModel`.

    def _shared(self, source_ids) -> dict:
        keys, values, mask = self.encode(source_ids)
        keys, values = zero_masked(keys, mask), zero_masked(values, mask)
        return {"keys": keys, "values": values, "mask": mask}

    def _advance(self, x, mix, state, look: bool) -> tuple:
        keys, values, mask = (state["shared"][x] for x in ("keys", "values", "mask"))
        embedded, weights = x, []

        def attend(attention, x):
            if look:
                weights.append(attention.attention_weights(x, embedded, keys, mask))
            return attention.attend(x, embedded, keys, values, mask, beams_of(state))

        x, _ = super()._advance(x, mix, state, look, attend)
        return x, sum(weights) / len(self.decoder_blocks) if look else None


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvLanguageModel(WeightNormalizedModel):
    """Gated convolutional language model.

    (Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks; fairseq
    `fconv_lm`.) The decoder of `ConvS2S` without attention and without positions.

        logits = model({"target_ids": (B, T)})    (B, T, V) float32

    With `adaptive_softmax` the model returns features (B, T, channels of the last
    layer), see `LanguageModel`.

    Args:
        vocabulary_size: number of ids V, sorted by frequency for the adaptive softmax.
        embedding_dim: width of the token embeddings, and of the inputs of the output
            matrix.
        convolutions: (channels, kernel_size[, residual]) of each layer, see `ConvS2S`.
        dropout: rate on the embeddings, before each convolution and before the output.
        adaptive_softmax: None, or {"cutoffs": [...], "factor": 4.0, "dropout": 0.0};
            it takes the outputs of the last convolution.
        folded: whether to make plain weights, as in models that are saved after `fold`.
        special_ids, seed, name, dtype: see `EncoderDecoder`.

    Raises:
        ValueError: an argument breaks these rules.

    Example:

    ```python
    model = keras_seqconv.models.ConvLanguageModel(
        1000, embedding_dim=32, convolutions="[(64, 4)] * 3"
    )
    logits = model({"target_ids": keras.ops.array([[2, 5, 6, 7]])})  # (1, 4, 1000)
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_dim: int = 128,
        convolutions="[(1268, 4)] * 13",
        dropout: float = 0.1,
        adaptive_softmax: dict | None = None,
        folded: bool = False,
        special_ids: dict | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype=None,
    ):
        config = configuration_of(locals())
        checked("dropout", dropout)
        seeds, dtype = make_seeds(seed), config["dtype"]
        plain = {"folded": folded, "dtype": dtype}
        shared = {"dropout": dropout, "seeds": seeds, "dtype": dtype}
        self.target_embedder = gated_stack.make_gated_embedder(
            vocabulary_size, embedding_dim, name="target_embedding", **shared
        )
        layers = parse_convolutions(convolutions)
        self.decoder_input = weight_normed(layers[0].channels, dropout, **plain)
        self.decoder_blocks = gated_stack.make_gated_blocks(
            layers, padding="causal", folded=folded, **shared
        )
        self.adaptive_softmax = make_adaptive_softmax(config, seeds)
        if self.has_logits:
            self.decoder_output = weight_normed(embedding_dim, **plain)
            self.output_dropout = keras.layers.Dropout(
                dropout, seed=next(seeds), dtype=dtype
            )
            self.output_dense = weight_normed(vocabulary_size, dropout, **plain)
        super().__init__(config)
