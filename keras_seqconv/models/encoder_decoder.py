"""Encoder-decoder models with convolutions or attention: source and target to logits.

Letters: B sentences, S source time, T target time, C channels, V target vocabulary,
G beams of a sentence, n new positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.models import blocks
from keras_seqconv.models.blocks import of_side
from keras_seqconv.models.model import SequenceModel, constructor_arguments, float32
from keras_seqconv.models.parts import Mixing, Seeds, initial_beams
from keras_seqconv.support.arguments import check_choice, check_positive_integer

# Options that may differ between encoder and decoder.
SIDED = (
    "hidden_dim",
    "embedding_dim",
    "intermediate_dim",
    "num_heads",
    "mixer",
    "kernel_sizes",
    "num_conv_heads",
    "conv_dim",
    "query_dim",
    "gate",
    "query_groups",
    "permute_channels",
    "normalize_first",
    "final_norm",
    "positions",
    "max_length",
)


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
    end. Padding (`pad_id`) follows from the ids and changes no result, on either side
    of a source and to the right of a target.

    Options marked (sides) take one value for both, or {"encoder": ..., "decoder": ...}.

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids, V.
        hidden_dim: width C of the model (sides).
        intermediate_dim: width inside of the position-wise networks (sides).
        num_heads: heads of attention (sides).
        num_encoder_layers, num_decoder_layers: number of blocks.
        mixer: "light_conv", "dynamic_conv", "query_conv" or "attention", or a class or
            function that makes a layer, or a list of them with one entry per block
            (sides). It is called with what it names of the arguments here, of one side
            and not None, and of `kernel_size`, `padding` ("causal" in the decoder) and
            `seed`. The layer keeps the shape (B, T, C); its `call` takes `inputs` and
            maybe `mask` and `training`. To decode, it has `get_initial_state` and
            `step`, see `LightConv`. Registered as serializable, it can be saved.
        kernel_sizes: taps of the convolutions, or a list with one entry per block
            (sides); 3, 7, 15 and then 31 by default.
        num_conv_heads: heads of the convolutions (sides); `num_heads` by default.
        conv_dim: channels of the convolutions (sides); C by default.
        query_dim: width of the queries of "query_conv" (sides); C by default.
        gate: of the convolutions' input projection: "none", "glu", or, for
            "query_conv", "gau" (sides).
        query_groups, permute_channels: of "query_conv" (sides), see `QueryConvModule`.
        compat: of "query_conv", see `QueryConvModule`.
        kernel_softmax: normalise the taps of "light_conv" and "dynamic_conv".
        weight_dropout_mask: "shared", "position" or None, see `LightConvModule`.
        dropout: rate after the embedding and after each sub-layer.
        attention_dropout: rate on attention probabilities.
        activation_dropout: rate inside of the position-wise networks.
        input_dropout: rate in front of the convolutions' input projection.
        weight_dropout: rate of DropConnect on the taps.
        normalize_first: pre-norm instead of post-norm (sides).
        final_norm: normalise what a pre-norm stack returns (sides).
        positions: "sinusoidal", "learned" or None (sides).
        max_length: positions in the tables of learned positions (sides).
        embedding_dim: width of the token embeddings; C by default (sides).
        output_dim: width of what the output matrix multiplies; C by default, and
            `embedding_dim` when the output shares its matrix.
        share_embeddings: "none": three matrices; "decoder": input and output of the
            decoder share one; "all": the encoder as well (one joint vocabulary).
        activation: of the position-wise networks.
        pad_id, start_id, end_id, unk_id: special ids, fairseq's by default.
        seed: of all dropouts, an integer or None.
        dtype: dtype or policy of all layers. Logits are float32 under mixed policies.
        name: of the model.

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
        num_conv_heads=None,
        conv_dim=None,
        query_dim=None,
        gate="glu",
        query_groups=1,
        permute_channels=False,
        compat: bool = False,
        kernel_softmax: bool = True,
        weight_dropout_mask: str | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        input_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        normalize_first=False,
        final_norm=True,
        positions="sinusoidal",
        max_length=1024,
        embedding_dim: int | None = None,
        output_dim: int | None = None,
        share_embeddings: str = "none",
        activation: str = "relu",
        pad_id: int = 1,
        start_id: int = 2,
        end_id: int = 2,
        unk_id: int = 3,
        seed: int | None = None,
        dtype=None,
        name: str | None = None,
    ):
        config = constructor_arguments(locals())
        check_choice("share_embeddings", share_embeddings, ("none", "decoder", "all"))
        self.target_vocabulary_size = target_vocabulary_size
        self.pad_id = pad_id
        check_positive_integer("num_encoder_layers", num_encoder_layers)
        check_positive_integer("num_decoder_layers", num_decoder_layers)
        encoder, decoder = (self._side(config, side) for side in blocks.SIDES)
        seeds = Seeds(seed)
        self._make_embeddings(config, encoder, decoder, seeds)
        self.encoder_blocks = blocks.make_blocks(
            encoder,
            num_encoder_layers,
            name="encoder",
            causal=False,
            source=False,
            seeds=seeds,
        )
        self.decoder_blocks = blocks.make_blocks(
            decoder,
            num_decoder_layers,
            name="decoder",
            causal=True,
            source=True,
            seeds=seeds,
        )
        self.encoder_norm = blocks.make_final_norm(encoder)
        self.decoder_norm = blocks.make_final_norm(decoder)
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        memory, mask = self.encode(source_ids)
        logits = self.decode(target_ids, memory, mask)
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        super().__init__(inputs, logits, config, name)

    def _side(self, config, side):
        """The options of one side."""
        options = {name: of_side(name, config[name], side) for name in SIDED}
        blocks.check_options(config | options)
        return config | options

    def _make_embeddings(self, config, encoder, decoder, seeds):
        sizes = (config["source_vocabulary_size"], config["target_vocabulary_size"])
        source = blocks.make_tokens(sizes[0], encoder, "source_embedding")
        target = blocks.make_tokens(sizes[1], decoder, "target_embedding")
        if config["share_embeddings"] == "all":
            widths = (source.embedding_dim, target.embedding_dim)
            if sizes[0] != sizes[1] or widths[0] != widths[1]:
                raise ValueError(
                    '`share_embeddings="all"` needs one vocabulary and one width for '
                    "both sides. Received: source_vocabulary_size="
                    f"{sizes[0]}, target_vocabulary_size={sizes[1]}, widths {widths}"
                )
            source = target
        self.source_embedder = blocks.make_embedder(source, encoder, seeds)
        self.target_embedder = blocks.make_embedder(target, decoder, seeds)
        self.vocabulary_map = blocks.make_vocabulary_map(
            target, decoder, tied=config["share_embeddings"] != "none"
        )

    @property
    def max_target_length(self) -> int | None:
        """Most target positions, the start included; None without a limit."""
        return self.target_embedder.max_length

    def encode(self, source_ids) -> tuple:
        """Source ids (B, S) -> outputs (B, S, C) and the mask (B, S) of real tokens."""
        mask = ops.not_equal(source_ids, self.pad_id)
        x = self.source_embedder(source_ids, mask)
        x = blocks.run(self.encoder_blocks, x, lambda mixer, x: mixer(x, mask=mask))
        return _normalized(x, self.encoder_norm), mask

    def decode(self, target_ids, memory, memory_mask):
        """Logits (B, T, V) for target ids (B, T), given what `encode` returned."""
        # Padding stands to the right, where no causal mixer looks: no mask is needed.
        x = blocks.run(
            self.decoder_blocks,
            self.target_embedder(target_ids),
            lambda mixer, x: mixer(x),
            lambda attention, x: attention(x, value=memory, value_mask=memory_mask),
        )
        x = self.vocabulary_map.features(_normalized(x, self.decoder_norm))
        return self.vocabulary_map.logits(x)

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
        blocks.run(self.decoder_blocks, x, lambda mixer, x: mixer(x), attend)
        return ops.mean(weights[0], axis=1)

    def get_initial_state(
        self,
        source_ids,
        num_beams: int = 1,
        max_length: int | None = None,
        return_attention: bool = False,
    ) -> dict:
        """Encode a source and prepare the steps of the decoder.

        Args:
            source_ids: integers (B, S).
            num_beams: rows G of each sentence in the steps.
            max_length: most target positions that the steps will add up to, for mixers
                that keep the past (attention), whose states grow without it, and to
                check learned positions.
            return_attention: keep `state["beams"]["attention"]`, (B * G, S) float32,
                where the last position of the last step looked.

        Returns:
            `{"common": ..., "shared": ..., "beams": ...}`, see `SequenceModel`.
        """
        memory, mask = self.encode(source_ids)
        rows = ops.shape(source_ids)[0] * num_beams
        shared = {
            "mask": mask,
            "memory": [
                block.attention.layer.project_memory(memory)
                for block in self.decoder_blocks
            ],
        }
        common = {"output_kernel": self.vocabulary_map.kernel()}
        beams = initial_beams(
            self.target_embedder,
            [block.mixer for block in self.decoder_blocks],
            rows,
            max_length,
            source_ids if return_attention else None,
        )
        return {"common": common, "shared": shared, "beams": beams}

    def step(self, ids, state: dict) -> tuple:
        """Logits (rows, V) after the last of n >= 1 new ids (rows, n), and the state.

        The same blocks as `decode`, at a cost that does not depend on the position
        (attention as a mixer of positions apart, which looks at all of `max_length`, or
        at all there are).
        """
        shared, beams = state["shared"], state["beams"]
        x, position = self.target_embedder.step(ids, beams["position"])
        mix = Mixing(beams["mixers"])
        memories = iter(shared["memory"])
        beams = {**beams, "position": position, "mixers": mix.new_states}

        def attend(attention, x):
            memory = next(memories)
            if "attention" in beams and attention is self.decoder_blocks[-1].attention:
                weights = attention.memory_weights(x[:, -1:], memory, shared["mask"])
                beams["attention"] = ops.mean(weights[:, :, 0], axis=1)
            return attention.attend(x, memory, memory_mask=shared["mask"])

        x = blocks.run(self.decoder_blocks, x, mix, attend)[:, -1]
        x = self.vocabulary_map.features(_normalized(x, self.decoder_norm))
        logits = float32(ops.matmul(x, state["common"]["output_kernel"]))
        return logits, {**state, "beams": beams}


def _normalized(x, norm):
    return x if norm is None else norm(x)
