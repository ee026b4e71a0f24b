"""A language model: a stack of causal blocks.

Letters: B sentences, T time, C channels, V vocabulary.
"""

import keras

from keras_seqconv.layers import AdaptiveInput
from keras_seqconv.models import stacks
from keras_seqconv.models.sequence_model import SequenceModel, constructor_arguments
from keras_seqconv.support.arguments import check_boolean, check_integer


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
        hidden_dim, intermediate_dim, num_heads, mixer, kernel_sizes: see
            `EncoderDecoder`; so are the dropouts, `normalize_first`, `final_norm`,
            `positions`, `embedding_dim`, `activation`, `special_ids` and `seed`.
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
        **kwargs,
    ):
        config = constructor_arguments(locals())
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
                pad_id=self.pad_id,
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
        return stacks.run(self.decoder_blocks, x, mix), None


def _check_sharing(config):
    """Refuse ways of sharing matrices that exclude each other."""
    names = "share_embeddings", "tie_adaptive_weights", "tie_adaptive_projections"
    share, weights, projections = (check_boolean(x, config[x]) for x in names)
    adaptive = config["adaptive_softmax"], config["adaptive_input"]
    for is_wrong, rule in (
        (
            share and any(adaptive),
            "`share_embeddings` is for plain embeddings; adaptive ones share by "
            "`tie_adaptive_weights`",
        ),
        (
            weights and not all(adaptive),
            "`tie_adaptive_weights` needs `adaptive_softmax` and `adaptive_input`",
        ),
        (
            projections and not weights,
            "`tie_adaptive_projections` needs `tie_adaptive_weights`",
        ),
    ):
        if is_wrong:
            raise ValueError(
                f"{rule}. Received: {names[0]}={share}, {names[1]}={weights}, "
                f"{names[2]}={projections}, adaptive_softmax={adaptive[0]}, "
                f"adaptive_input={adaptive[1]}"
            )
