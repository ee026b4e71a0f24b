"""The encoder-decoder with convolutions or attention, and its language model.

Letters: B sentences, S source time, T target time, C channels, V target vocabulary,
G beams of a sentence, n new positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.layers import AdaptiveInput
from keras_seqconv.models import stacks
from keras_seqconv.models.configuration import configuration_of
from keras_seqconv.models.sequence_model import SequenceModel, beams_of
from keras_seqconv.support.arguments import check_boolean, check_choice, check_integer

# Options that may differ between encoder and decoder.
_SIDED = (
    "hidden_dim", "intermediate_dim", "num_heads", "mixer", "kernel_sizes",
    "normalize_first", "final_norm", "positions", "embedding_dim", "canon",
)  # fmt: skip


@keras.saving.register_keras_serializable(package="keras_seqconv")
class EncoderDecoder(SequenceModel):
    """Encoder-decoder model with LightConv, DynamicConv, attention, or a mixture.

    An encoder block is a mixer and a position-wise network. A decoder block has
    attention to the source between them. Each part has dropout, residual connection and
    layer normalization (Wu et al. 2019, Pay Less Attention with Lightweight
    and Dynamic Convolutions, section 5.1; Vaswani et al. 2017, Attention Is All You
    Need, section 3; fairseq `lightconv`, `transformer` and choyi0521's `ddynamic`).

        logits = model({"source_ids": (B, S), "target_ids": (B, T)})   (B, T, V) float32

    `target_ids` are the decoder's inputs: the start token and the target without its
    end. Padding follows from the ids and changes no result, on either side of a source
    and to the right of a target.

    Options marked (sides) take one value for both, or {"encoder": ..., "decoder": ...}.

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids, V.
        hidden_dim: width C of the model (sides).
        intermediate_dim: width inside the position-wise networks (sides).
        num_heads: heads of attention, and of convolutions unless their mixer gives
            another number (sides).
        num_encoder_layers, num_decoder_layers: number of blocks.
        mixer: a kind of `keras_seqconv.models.MIXERS`, that is "light_conv",
            "dynamic_conv", "query_conv", "short_conv" or "attention", or a dictionary
            of it and options of its layer, {"kind": "light_conv", "use_glu": False,
            "num_heads": 16}, or a list of these with one entry per block (sides).
            Options are arguments of `LightConvModule`, `DynamicConvModule` and
            `QueryConvModule`, or `use_bias` and `dilation_rate` of `GatedShortConv`,
            and override those of the model. Your own mixers are
            rows that you add to `MIXERS`, or classes registered with Keras.
        kernel_sizes: taps of the convolutions, or a list with one entry per block
            (sides); 3, 7, 15 and then 31 by default.
        canon: places of Canon layers in each block, some letters of "abcd": a before
            the mixer, b on the queries, keys and values of attention (one block at
            least must have it), c before the position-wise network, d inside of it
            before the activation (Allen-Zhu 2025, Physics of Language Models: Part 4.1)
            (sides).
        dropout: rate after the embedding and after each sub-layer.
        attention_dropout: rate on attention probabilities.
        activation_dropout: rate inside the position-wise networks.
        weight_dropout: rate of DropConnect on the taps of the convolutions.
        normalize_first: whether to use pre-norm instead of post-norm (sides).
        final_norm: whether to normalize the outputs of a pre-norm stack (sides).
        positions: "sinusoidal", "learned" (up to 1024 positions), None, or a dictionary
            of arguments of `PositionEncoding`: {"kind": "learned", "max_length": 256}
            (sides).
        embedding_dim: width of the token embeddings; C by default (sides).
        output_dim: width of the inputs of the output matrix; by default C, or
            `embedding_dim` if the output shares its matrix.
        share_embeddings: "none": three matrices; "decoder": input and output of the
            decoder share one; "all": the encoder as well (one joint vocabulary).
        activation: activation of the position-wise networks.
        special_ids: ids of "pad", "start", "end" and "unk" other than fairseq's.
        seed: seed of all dropouts, an integer or None.
        name: name of the model.
        dtype: dtype or policy of all layers. Logits are float32 under mixed policies.

    Raises:
        ValueError: an argument breaks these rules.

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

    has_source = True

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
        canon: str | None = None,
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
        name: str | None = None,
        dtype=None,
    ):
        config = configuration_of(locals())
        check_choice("share_embeddings", share_embeddings, ("none", "decoder", "all"))
        check_integer("num_encoder_layers", num_encoder_layers, 1, stacks.MOST_LAYERS)
        check_integer("num_decoder_layers", num_decoder_layers, 1, stacks.MOST_LAYERS)
        encoder, decoder = (
            config | {name: stacks.of_side(name, config[name], side) for name in _SIDED}
            for side in stacks.SIDES
        )
        stacks.check_options(encoder)
        stacks.check_options(decoder)
        seeds = stacks.make_seeds(seed)
        sizes = (source_vocabulary_size, target_vocabulary_size)
        source = stacks.make_tokens(sizes[0], encoder, "source_embedding")
        target = stacks.make_tokens(sizes[1], decoder, "target_embedding")
        if share_embeddings == "all":
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
            target, decoder, tied=share_embeddings != "none"
        )
        self.encoder_blocks = stacks.make_blocks(
            "encoder", num_encoder_layers, encoder, seeds
        )
        self.decoder_blocks = stacks.make_blocks(
            "decoder", num_decoder_layers, decoder, seeds
        )
        self.encoder_norm = stacks.make_final_norm(encoder)
        super().__init__(config)

    def encode(self, source_ids) -> tuple:
        """Encodes source ids (B, S) to outputs (B, S, C) and the mask (B, S)."""
        mask = ops.not_equal(source_ids, self.pad_id)
        x = stacks.run_blocks(
            self.encoder_blocks,
            self.source_embedder(source_ids, mask),
            lambda mixer, x: mixer(x, mask=mask),
        )
        return x if self.encoder_norm is None else self.encoder_norm(x), mask

    def decode(self, target_ids, memory, memory_mask):
        """Returns logits (B, T, V) of target ids (B, T) and the results of `encode`."""
        # Padding stands to the right, where no causal mixer looks: no mask is needed.
        x = stacks.run_blocks(
            self.decoder_blocks,
            self.target_embedder(target_ids, pad_id=self.pad_id),
            lambda mixer, x: mixer(x),
            lambda attention, x: attention(x, value=memory, value_mask=memory_mask),
        )
        return self._head(x)

    # Of the steps, see `SequenceModel`.

    def _shared(self, source_ids) -> dict:
        memory, mask = self.encode(source_ids)
        attentions = [block.attention.layer for block in self.decoder_blocks]
        memories = [layer.project_memory(memory, mask=mask) for layer in attentions]
        # One mask for all; the values that it pads a narrower source with are masked.
        memories = [{n: x[n] for n in ("keys", "values")} for x in memories]
        return {"mask": mask, "memory": memories}

    def _advance(self, x, mix, state, look: bool) -> tuple:
        mask, memories = state["shared"]["mask"], iter(state["shared"]["memory"])
        bias = self.decoder_blocks[0].attention.layer.memory_bias(mask)
        weights = None

        def attend(attention, x):
            nonlocal weights
            memory = {**next(memories), "bias": bias}
            if look and attention is self.decoder_blocks[-1].attention:
                weights = ops.mean(attention.memory_weights(x, memory), axis=1)
            return attention.attend(x, memory, beams_of(state))

        return stacks.run_blocks(self.decoder_blocks, x, mix, attend), weights


@keras.saving.register_keras_serializable(package="keras_seqconv")
class LanguageModel(SequenceModel):
    """Causal LightConv, DynamicConv or Transformer language model.

    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 5.2; fairseq `lightconv_lm`, `transformer_lm`.) The decoder of
    `EncoderDecoder` without attention to a source.

        logits = model({"target_ids": (B, T)})    (B, T, V) float32

    Logits at position t predict the token after `target_ids[:, : t + 1]`. With
    `adaptive_softmax` the model returns features (B, T, C) for
    `log_prob(features, ids)` and `negative_log_likelihood(features, labels)`, so
    training never makes a tensor (B, T, V).

    Args:
        vocabulary_size: number of ids V, sorted by frequency for the adaptive layers.
        num_layers: number of blocks.
        hidden_dim, intermediate_dim, num_heads, mixer, kernel_sizes, canon: see
            `EncoderDecoder`; so are the dropouts, `normalize_first`, `final_norm`,
            `positions`, `embedding_dim`, `activation`, `special_ids`, `seed`, `name`
            and `dtype`.
        output_dim: width of the inputs of the output matrix; C by default.
        share_embeddings: whether input and output share one matrix.
        adaptive_softmax: None, or {"cutoffs": [...], "factor": 4.0, "dropout": 0.0},
            see `keras_seqconv.layers.AdaptiveSoftmax`.
        adaptive_input: None, or {"cutoffs": [...], "factor": 4.0}, see
            `keras_seqconv.layers.AdaptiveInput`.
        tie_adaptive_weights, tie_adaptive_projections: whether the adaptive softmax has
            the tables, or also the projections, of the adaptive input.

    Raises:
        ValueError: an argument breaks these rules.

    Example:

    ```python
    model = keras_seqconv.models.LanguageModel(
        1000, hidden_dim=64, intermediate_dim=128, num_heads=4, num_layers=2
    )
    logits = model({"target_ids": keras.ops.array([[2, 5, 6, 7]])})  # (1, 4, 1000)
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        hidden_dim: int = 512,
        intermediate_dim: int = 2048,
        num_heads: int = 8,
        num_layers: int = 6,
        mixer="dynamic_conv",
        kernel_sizes=None,
        canon: str | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        normalize_first: bool = False,
        final_norm: bool = True,
        positions="sinusoidal",
        embedding_dim: int | None = None,
        output_dim: int | None = None,
        share_embeddings: bool = False,
        adaptive_softmax: dict | None = None,
        adaptive_input: dict | None = None,
        tie_adaptive_weights: bool = False,
        tie_adaptive_projections: bool = False,
        activation: str = "relu",
        special_ids: dict | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype=None,
    ):
        config = configuration_of(locals())
        check_integer("num_layers", num_layers, 1, stacks.MOST_LAYERS)
        stacks.check_options(config)
        _check_sharing(config)
        seeds = stacks.make_seeds(seed)
        if adaptive_input is None:
            tokens = stacks.make_tokens(vocabulary_size, config, "target_embedding")
        else:
            tokens = AdaptiveInput(
                vocabulary_size,
                hidden_dim,
                embedding_dim=embedding_dim,
                pad_id=config["special_ids"]["pad"],
                dtype=config["dtype"],
                name="target_embedding",
                **stacks.checked_adaptive(
                    "adaptive_input", adaptive_input, ("factor",)
                ),
            )
        self.target_embedder = stacks.make_embedder(tokens, config, seeds)
        self.decoder_blocks = stacks.make_blocks("block", num_layers, config, seeds)
        tied = {}
        if tie_adaptive_weights:
            tied = {
                "adaptive_input": tokens,
                "tie_projections": tie_adaptive_projections,
            }
        self.adaptive_softmax = stacks.make_adaptive_softmax(config, seeds, **tied)
        self.vocabulary_map = stacks.make_vocabulary_map(
            tokens,
            config,
            tied=share_embeddings,
            features_only=self.adaptive_softmax is not None,
        )
        super().__init__(config)

    # Of the steps, see `SequenceModel`.

    def _advance(self, x, mix, state, look: bool) -> tuple:
        return stacks.run_blocks(self.decoder_blocks, x, mix), None


def _check_sharing(config):
    """ValueError for options of sharing that exclude each other."""
    names = "share_embeddings", "tie_adaptive_weights", "tie_adaptive_projections"
    share, weights, projections = (check_boolean(x, config[x]) for x in names)
    names = (*names, "adaptive_softmax", "adaptive_input")
    adaptive = [config[name] for name in names[3:]]
    if share and any(adaptive):
        rule = "`share_embeddings` excludes adaptive layers; set `tie_adaptive_weights`"
    elif weights and not all(adaptive):
        rule = "`tie_adaptive_weights` needs `adaptive_softmax` and `adaptive_input`"
    elif projections and not weights:
        rule = "`tie_adaptive_projections` needs `tie_adaptive_weights`"
    else:
        return
    received = ", ".join(f"{name}={config[name]}" for name in names)
    raise ValueError(f"{rule}. Received: {received}")
