"""Encoder-decoder models with convolutions or attention: source and target to logits.

Letters: B sentences, S source time, T target time, C channels, V target vocabulary,
G beams of a sentence, n new positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.models import stacks
from keras_seqconv.models.sequence_model import SequenceModel, constructor_arguments
from keras_seqconv.support.arguments import check_choice, check_positive_integer

# Options that may differ between encoder and decoder.
_SIDED = (
    "hidden_dim", "intermediate_dim", "num_heads", "mixer", "kernel_sizes",
    "normalize_first", "final_norm", "positions", "embedding_dim",
)  # fmt: skip


@keras.saving.register_keras_serializable(package="keras_seqconv")
class EncoderDecoder(SequenceModel):
    """LightConv, DynamicConv, query-projected DynamicConv or Transformer, or a mixture.

    An encoder block is a mixer of positions and a position-wise network, a decoder
    block has attention to the source between them; each with dropout, residual and
    layer normalization around it (Wu et al. 2019, Pay Less Attention with Lightweight
    and Dynamic Convolutions, section 5.1; Vaswani et al. 2017, Attention Is All You
    Need, section 3; fairseq `lightconv`, `transformer` and choyi0521's `ddynamic`).

        logits = model({"source_ids": (B, S), "target_ids": (B, T)})   (B, T, V) float32

    `target_ids` are what the decoder sees: the start token and the target without its
    end. Padding follows from the ids and changes no result, on either side of a source
    and to the right of a target.

    Options marked (sides) take one value for both, or {"encoder": ..., "decoder": ...}.

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids, V.
        hidden_dim: width C of the model (sides).
        intermediate_dim: width inside of the position-wise networks (sides).
        num_heads: heads of attention, and of convolutions where their mixer says
            nothing else (sides).
        num_encoder_layers, num_decoder_layers: number of blocks.
        mixer: what mixes positions: a kind of `keras_seqconv.models.MIXERS`, that is
            "light_conv", "dynamic_conv", "query_conv" or "attention", or a dictionary
            of it and options of its layer, or a list of these with one entry per block
            (sides): {"kind": "light_conv", "use_glu": False, "num_heads": 16}. The
            options are arguments of `LightConvModule`, `DynamicConvModule` and
            `QueryConvModule`, and go before what the model says. Mixers of your own are
            rows that you add to `MIXERS`, or classes that you register with Keras.
        kernel_sizes: taps of the convolutions, or a list with one entry per block
            (sides); 3, 7, 15 and then 31 by default.
        dropout: rate after the embedding and after each sub-layer.
        attention_dropout: rate on attention probabilities.
        activation_dropout: rate inside of the position-wise networks.
        weight_dropout: rate of DropConnect on the taps of the convolutions.
        normalize_first: pre-norm instead of post-norm (sides).
        final_norm: normalise what a pre-norm stack returns (sides).
        positions: "sinusoidal", "learned" (up to 1024 positions), None, or a dictionary
            of arguments of `PositionEncoding`: {"kind": "learned", "max_length": 256}
            (sides).
        embedding_dim: width of the token embeddings; C by default (sides).
        output_dim: width of what the output matrix multiplies; C by default, and
            `embedding_dim` when the output shares its matrix.
        share_embeddings: "none": three matrices; "decoder": input and output of the
            decoder share one; "all": the encoder as well (one joint vocabulary).
        activation: of the position-wise networks.
        special_ids: those of "pad", "start", "end" and "unk" that are not fairseq's.
        seed: of all dropouts, an integer or None.
        **kwargs: `name`, and `dtype`, the dtype or policy of all layers. Logits are
            float32 under mixed policies.

    Raises:
        ValueError: for arguments outside these rules.

    Example:

    ```python
    model = keras_seqconv.models.EncoderDecoder(
        1000, 1000, hidden_dim=64, intermediate_dim=128, num_heads=4,
        num_encoder_layers=2, num_decoder_layers=2, share_embeddings="all",
    )
    source_ids = keras.ops.array([[5, 6, 7, 2]])
    target_ids = keras.ops.array([[2, 8, 9]])
    logits = model({"source_ids": source_ids, "target_ids": target_ids})  # (1, 3, V)
    ids, scores = keras_seqconv.decoding.beam_search(model, source_ids, max_length=20)
    ```
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        hidden_dim=512,
        intermediate_dim=2048,
        num_heads=8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        mixer="dynamic_conv",
        kernel_sizes=None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        normalize_first=False,
        final_norm=True,
        positions="sinusoidal",
        embedding_dim=None,
        output_dim: int | None = None,
        share_embeddings: str = "none",
        activation: str = "relu",
        special_ids: dict | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        config = constructor_arguments(locals())
        check_choice("share_embeddings", share_embeddings, ("none", "decoder", "all"))
        self.target_vocabulary_size = target_vocabulary_size
        self.pad_id = config["special_ids"]["pad"]
        check_positive_integer("num_encoder_layers", num_encoder_layers)
        check_positive_integer("num_decoder_layers", num_decoder_layers)
        encoder, decoder = (self._options(config, side) for side in stacks.SIDES)
        seeds = stacks.make_seeds(seed)
        self._make_embeddings(config, encoder, decoder, seeds)
        self.encoder_blocks = stacks.make_blocks(
            "encoder", num_encoder_layers, encoder, seeds
        )
        self.decoder_blocks = stacks.make_blocks(
            "decoder", num_decoder_layers, decoder, seeds
        )
        self.encoder_norm = stacks.make_final_norm(encoder)
        self.decoder_norm = stacks.make_final_norm(decoder)
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        logits = self.decode(target_ids, *self.encode(source_ids))
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        super().__init__(inputs, logits, config)

    def _options(self, config, side):
        """The options of one side."""
        sided = {name: stacks.of_side(name, config[name], side) for name in _SIDED}
        stacks.check_options(config | sided)
        return config | sided

    def _make_embeddings(self, config, encoder, decoder, seeds):
        sizes = (config["source_vocabulary_size"], config["target_vocabulary_size"])
        source = stacks.make_tokens(sizes[0], encoder, "source_embedding")
        target = stacks.make_tokens(sizes[1], decoder, "target_embedding")
        if config["share_embeddings"] == "all":
            widths = (source.embedding_dim, target.embedding_dim)
            if sizes[0] != sizes[1] or widths[0] != widths[1]:
                raise ValueError(
                    '`share_embeddings="all"` needs one vocabulary and one width for '
                    "both sides. Received: source_vocabulary_size="
                    f"{sizes[0]}, target_vocabulary_size={sizes[1]}, widths {widths}"
                )
            source = target
        self.source_embedder = stacks.make_embedder(source, encoder, seeds)
        self.target_embedder = stacks.make_embedder(target, decoder, seeds)
        self.vocabulary_map = stacks.make_vocabulary_map(
            target, decoder, tied=config["share_embeddings"] != "none"
        )

    @property
    def max_target_length(self) -> int | None:
        """Most target positions, the start included; None without a limit."""
        return self.target_embedder.max_length

    def encode(self, source_ids) -> tuple:
        """Source ids (B, S) -> outputs (B, S, C) and the mask (B, S) of real tokens."""
        mask = ops.not_equal(source_ids, self.pad_id)
        memory = stacks.run(
            self.encoder_blocks,
            self.source_embedder(source_ids, mask),
            lambda mixer, x: mixer(x, mask=mask),
            final_norm=self.encoder_norm,
        )
        return memory, mask

    def decode(self, target_ids, memory, memory_mask):
        """Logits (B, T, V) for target ids (B, T), given what `encode` returned."""
        # Padding stands to the right, where no causal mixer looks: no mask is needed.
        x = self._decoder(
            self.target_embedder(target_ids),
            lambda mixer, x: mixer(x),
            lambda attention, x: attention(x, value=memory, value_mask=memory_mask),
        )
        return self.vocabulary_map.logits(self.vocabulary_map.features(x))

    def _decoder(self, x, mix, attend):
        return stacks.run(self.decoder_blocks, x, mix, attend, self.decoder_norm)

    def attention_weights(self, inputs: dict):
        """Where the last decoder block looks in the source, the mean of its heads.

        Args:
            inputs: as of the model.

        Returns:
            Tensor (B, T, S), float32.
        """
        memory, mask = self.encode(inputs["source_ids"])
        weights = []

        def attend(attention, x):
            if attention is self.decoder_blocks[-1].attention:
                projected = attention.layer.project_memory(memory)
                weights.append(attention.memory_weights(x, projected, mask))
            return attention(x, value=memory, value_mask=mask)

        x = self.target_embedder(inputs["target_ids"])
        self._decoder(x, lambda mixer, x: mixer(x), attend)
        return ops.mean(weights[0], axis=1)

    def get_initial_state(
        self,
        source_ids,
        num_beams: int = 1,
        max_length: int | None = None,
        return_attention: bool = False,
    ) -> dict:
        """Encode a source and prepare the steps, see `SequenceModel`."""
        memory, mask = self.encode(source_ids)
        attentions = [block.attention.layer for block in self.decoder_blocks]
        memories = [attention.project_memory(memory) for attention in attentions]
        beams = stacks.initial_beams(
            self.target_embedder,
            [block.mixer for block in self.decoder_blocks],
            ops.shape(source_ids)[0] * num_beams,
            max_length,
            source_ids if return_attention else None,
        )
        return {
            "common": {"output_kernel": self.vocabulary_map.kernel()},
            "shared": {"mask": mask, "memory": memories},
            "beams": beams,
        }

    def step(self, ids, state: dict) -> tuple:
        """Logits (rows, V) after the last of n >= 1 new ids (rows, n), and the state.

        The same blocks as `decode`, at a cost that does not depend on the position
        (attention as a mixer of positions apart, which looks at all of `max_length`, or
        at all there are).
        """
        shared, beams = state["shared"], dict(state["beams"])
        x, beams["position"] = self.target_embedder.step(ids, beams["position"])
        mix, memories = stacks.Steps(beams["mixers"]), iter(shared["memory"])

        def attend(attention, x):
            memory = next(memories)
            if "attention" in beams and attention is self.decoder_blocks[-1].attention:
                weights = attention.memory_weights(x[:, -1:], memory, shared["mask"])
                beams["attention"] = ops.mean(weights[:, :, 0], axis=1)
            return attention.attend(x, memory, memory_mask=shared["mask"])

        x = stacks.run(self.decoder_blocks, x, mix, attend)[:, -1]
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        beams["mixers"] = mix.new_states
        features = self.vocabulary_map.features(x)
        kernel = state["common"]["output_kernel"]
        return self.vocabulary_map.logits(features, kernel), {**state, "beams": beams}
