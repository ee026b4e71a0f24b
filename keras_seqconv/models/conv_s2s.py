"""ConvS2S: gated convolutions on both sides and attention in the decoder's layers.

Letters: B sentences, S source time, T target time, C channels, E embedding width,
V target vocabulary, G beams of a sentence, n new positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.layers import ScaledResidual, ScaleGradient
from keras_seqconv.layers.sequences import zero_masked
from keras_seqconv.models.gated_stack import (
    ConvolutionStack,
    WeightNormalizedModel,
    make_embedder,
    parse_convolutions,
    weight_normed,
)
from keras_seqconv.models.sequence_model import constructor_arguments
from keras_seqconv.models.stacks import (
    SIDES,
    Steps,
    float32,
    initial_beams,
    make_seeds,
    of_side,
)
from keras_seqconv.support.arguments import (
    check_boolean,
    check_positive_integer,
    check_rate,
)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvS2S(WeightNormalizedModel):
    """Convolutional sequence to sequence learning, with multi-step attention.

    (Gehring et al. 2017, Convolutional Sequence to Sequence Learning; fairseq `fconv`.)

        logits = model({"source_ids": (B, S), "target_ids": (B, T)})   (B, T, V) float32

    `target_ids` are what the decoder sees: the start token and the target without its
    end. Padding follows from the ids and changes no result, on either side
    of a source and to the right of a target.

    The gradient that reaches the encoder is divided by twice the number of attention
    layers. Everything but the embeddings is weight-normalised; `fold` ends that.

    Options marked (sides) take one value for both, or {"encoder": ..., "decoder": ...}.

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids, V.
        embedding_dim: width E of the token and position embeddings, and of the outputs
            of the encoder (sides, which must agree).
        convolutions: (channels, kernel_size[, residual]) of each layer as a list, or in
            fairseq's notation: "[(512, 3)] * 9 + [(1024, 3)] * 4" (sides). `residual`
            is how many layers back the residual comes from: 1, the default, is the
            layer's own input, 0 none.
        output_dim: width of what the output matrix multiplies.
        attention: whether the decoder's layers look at the source: one bool, or a list
            with one for each layer; at least one of them True.
        share_output_embedding: the output matrix is the target embedding; needs
            `output_dim` equal to the decoder's `embedding_dim`.
        dropout: rate on the embeddings, in front of each convolution and of the output.
        positions: learned position embeddings on both sides; False for none.
        max_length: rows of the position tables (sides).
        folded: make plain weights, as a model saved after `fold` comes back.
        special_ids, seed, **kwargs: see `EncoderDecoder`.

    Raises:
        ValueError: for arguments outside these rules.

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
        **kwargs,
    ):
        config = constructor_arguments(locals())
        check_rate("dropout", dropout)
        check_positive_integer("output_dim", output_dim)
        check_boolean("share_output_embedding", share_output_embedding)
        check_boolean("positions", positions)
        check_boolean("folded", folded)
        _check_widths(embedding_dim)
        self.pad_id = config["special_ids"]["pad"]
        self.target_vocabulary_size = target_vocabulary_size
        seeds = make_seeds(seed)
        source_layers, target_layers = (
            parse_convolutions(of_side("convolutions", convolutions, side))
            for side in SIDES
        )
        attentions = _attentions(attention, len(target_layers))
        plain = {"folded": folded, "dtype": config["dtype"]}
        self.source_embedder, self.target_embedder = (
            self._embedder(config, side, seeds) for side in SIDES
        )
        self.encoder_input, self.decoder_input = (
            weight_normed(layers[0].channels, dropout, **plain)
            for layers in (source_layers, target_layers)
        )
        shared = {"dropout": dropout, "seeds": seeds, **plain}
        self.encoder_stack = ConvolutionStack(source_layers, padding="same", **shared)
        self.decoder_stack = ConvolutionStack(
            target_layers, padding="causal", attention=attentions, **shared
        )
        width = self.source_embedder.tokens.embedding_dim
        self.encoder_output = weight_normed(width, **plain)
        self.gradient_scale = ScaleGradient(
            1 / (2 * sum(attentions)), dtype=config["dtype"]
        )
        self.encoder_sum = ScaledResidual(dtype=config["dtype"])
        self.decoder_output = weight_normed(output_dim, **plain)
        self.output_dropout = keras.layers.Dropout(
            dropout, seed=next(seeds), dtype=config["dtype"]
        )
        self.output_dense = None
        if not share_output_embedding:
            self.output_dense = weight_normed(target_vocabulary_size, dropout, **plain)
        elif output_dim != self.target_embedder.tokens.embedding_dim:
            raise ValueError(
                "`output_dim` must be the width of the target embedding with "
                f"share_output_embedding=True. Received: output_dim={output_dim}, "
                f"embedding_dim={embedding_dim}"
            )
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        logits = self.decode(target_ids, *self.encode(source_ids))
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        super().__init__(inputs, logits, config)

    def _embedder(self, config, side, seeds):
        source = side == "encoder"
        max_length = None
        if config["positions"]:
            max_length = of_side("max_length", config["max_length"], side)
            check_positive_integer("max_length", max_length)
        return make_embedder(
            config["source_vocabulary_size" if source else "target_vocabulary_size"],
            of_side("embedding_dim", config["embedding_dim"], side),
            max_length=max_length,
            use_bias=config["share_output_embedding"] and not source,
            dropout=config["dropout"],
            seeds=seeds,
            dtype=config["dtype"],
            name="source_embedding" if source else "target_embedding",
        )

    @property
    def max_target_length(self) -> int | None:
        """Most target positions, the start included; None without a limit."""
        return self.target_embedder.max_length

    def encode(self, source_ids) -> tuple:
        """Source ids (B, S) -> keys (B, S, E), values (B, S, E) and the mask (B, S)."""
        mask = ops.not_equal(source_ids, self.pad_id)
        embedded = self.source_embedder(source_ids, mask)
        x = self.encoder_stack.run(
            self.encoder_input(embedded), lambda block, x, _: block(x, mask=mask)
        )
        keys = self.gradient_scale(self.encoder_output(x))
        return keys, self.encoder_sum(keys, embedded), mask

    def decode(self, target_ids, keys, values, mask):
        """Logits (B, T, V) for target ids (B, T), given what `encode` returned."""
        embedded = self.target_embedder(target_ids)
        x = self.decoder_stack.run(
            self.decoder_input(embedded),
            lambda block, x, _: block(x),
            lambda attention, x, _: attention(
                x, embedded, keys, values, keys_mask=mask
            ),
        )
        return self._logits(x)

    def _logits(self, x, kernels=None):
        kernels = kernels or {}
        x = self.decoder_output(x, kernel=kernels.get("output"))
        x, kernel = self.output_dropout(x), kernels.get("logits")
        if self.output_dense is not None:
            return float32(self.output_dense(x, kernel=kernel))
        tokens = self.target_embedder.tokens
        if kernel is not None:
            return tokens.to_logits(ops.matmul(x, kernel))
        return tokens(x, reverse=True)

    def attention_weights(self, inputs: dict):
        """Where the decoder looks in the source: sum over layers / number of layers.

        Layers without attention count among the number, as in fairseq.

        Args:
            inputs: as of the model.

        Returns:
            Tensor (B, T, S), float32.
        """
        keys, values, mask = self.encode(inputs["source_ids"])
        embedded = self.target_embedder(inputs["target_ids"])
        weights = []

        def attend(attention, x, _):
            weights.append(attention.attention_weights(x, embedded, keys, mask))
            return attention(x, embedded, keys, values, keys_mask=mask)

        x = self.decoder_input(embedded)
        self.decoder_stack.run(x, lambda block, x, _: block(x), attend)
        return sum(weights) / len(self.decoder_stack.blocks)

    def get_initial_state(
        self,
        source_ids,
        num_beams: int = 1,
        max_length: int | None = None,
        return_attention: bool = False,
    ) -> dict:
        """Encode a source and prepare the steps, see `SequenceModel`."""
        keys, values, mask = self.encode(source_ids)
        rows = ops.shape(source_ids)[0] * num_beams
        keys, values = zero_masked(keys, mask), zero_masked(values, mask)
        shared = {"keys": keys, "values": values, "mask": mask}
        kernels = {
            "input": self.decoder_input.step_kernel(),
            "output": self.decoder_output.step_kernel(),
            "stack": self.decoder_stack.step_kernels(),
        }
        if self.output_dense is None:
            kernels["logits"] = self.target_embedder.tokens.output_kernel()
        else:
            kernels["logits"] = self.output_dense.step_kernel()
        beams = initial_beams(
            self.target_embedder,
            self.decoder_stack.blocks,
            rows,
            max_length,
            source_ids if return_attention else None,
        )
        return {"common": kernels, "shared": shared, "beams": beams}

    def step(self, ids, state: dict) -> tuple:
        """Logits (rows, V) and the state, see `SequenceModel`: the loop of `decode`."""
        kernels, beams = state["common"], dict(state["beams"])
        keys, values, mask = (state["shared"][x] for x in ("keys", "values", "mask"))
        embedded, beams["position"] = self.target_embedder.step(ids, beams["position"])
        mix, weights = Steps(beams["mixers"]), []

        def attend(attention, x, kernels):
            if "attention" in beams:
                weights.append(
                    attention.attention_weights(x, embedded, keys, mask, kernels)
                )
            return attention.attend(x, embedded, keys, values, mask, kernels)

        x = self.decoder_input(embedded, kernel=kernels["input"])
        x = self.decoder_stack.run(x, mix, attend, kernels["stack"])
        logits = self._logits(x[:, -1], kernels)
        beams["mixers"] = mix.new_states
        if weights:
            beams["attention"] = sum(weights)[:, -1] / len(mix.new_states)
        return logits, {**state, "beams": beams}


def _check_widths(embedding_dim):
    """Attention multiplies target embeddings with outputs of the encoder."""
    widths = {of_side("embedding_dim", embedding_dim, side) for side in SIDES}
    for width in widths:
        check_positive_integer("embedding_dim", width)
    if len(widths) > 1:
        raise ValueError(
            "`embedding_dim` must be the same on both sides, attention multiplies the "
            f"two. Received: embedding_dim={embedding_dim}"
        )


def _attentions(attention, num_layers):
    """One bool for each decoder layer."""
    wanted = attention
    if isinstance(attention, bool):
        wanted = [attention] * num_layers
    right = isinstance(wanted, (list, tuple)) and len(wanted) == num_layers
    if not right or not all(isinstance(x, bool) for x in wanted) or not any(wanted):
        raise ValueError(
            "`attention` must be True or a list of one bool for each of the "
            f"{num_layers} decoder layers, at least one of them True. "
            f"Received: attention={attention!r}"
        )
    return list(wanted)
