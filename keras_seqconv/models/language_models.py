"""Language models: a stack of causal blocks, or of gated convolutions.

Letters: B sentences, T time, C channels, V vocabulary, G beams of a sentence, n new
positions of a step.
"""

import keras

from keras_seqconv.layers import AdaptiveInput, AdaptiveSoftmax
from keras_seqconv.models import stacks
from keras_seqconv.models.gated_stack import (
    ConvolutionStack,
    WeightNormalizedModel,
    make_embedder,
    parse_convolutions,
    weight_normed,
)
from keras_seqconv.models.sequence_model import SequenceModel, constructor_arguments
from keras_seqconv.support.arguments import (
    check_boolean,
    check_positive_integer,
    check_rate,
)


class _DecoderOnly(SequenceModel):
    """What both families share: the graph, and the steps.

    Sub-classes make `embedder`, `adaptive_softmax` (or None) and:

        _features(x, mix, common)  embedded ids -> what logits are made of
        _logits(features, common)  common: of a state, None in the full pass
        _mixers()                  the layers with a state
        _common_state()            what steps need of weights, the same for all rows
    """

    def _make_graph(self, config):
        """The last thing that a constructor does."""
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        x = self._features(self.embedder(target_ids), lambda mixer, x, *_: mixer(x))
        if self.adaptive_softmax is not None:
            outputs = self.adaptive_softmax(x)
        else:
            outputs = self._logits(x)
        SequenceModel.__init__(self, {"target_ids": target_ids}, outputs, config)

    def _make_adaptive_softmax(self, config, seeds, **tied):
        """The layer, or None, from the option `adaptive_softmax`."""
        options = config["adaptive_softmax"]
        if options is None:
            return None
        return AdaptiveSoftmax(
            config["vocabulary_size"],
            seed=next(seeds),
            dtype=config["dtype"],
            **_checked("adaptive_softmax", options, ("factor", "dropout")),
            **tied,
        )

    @property
    def max_target_length(self) -> int | None:
        """Most positions, the start included; None without a limit."""
        return self.embedder.max_length

    def get_initial_state(
        self,
        batch_size,
        num_beams: int = 1,
        max_length: int | None = None,
        return_attention: bool = False,
    ) -> dict:
        """Prepare the steps, see `SequenceModel`."""
        if return_attention:
            raise ValueError(
                "A language model has no attention to a source. "
                "Received: return_attention=True"
            )
        beams = stacks.initial_beams(
            self.embedder, self._mixers(), batch_size * num_beams, max_length
        )
        return {"common": self._common_state(), "shared": {}, "beams": beams}

    def step(self, ids, state: dict) -> tuple:
        """Logits (rows, V) and the state, see `SequenceModel`.

        With an adaptive softmax the logits are the log-probabilities.
        """
        beams = dict(state["beams"])
        x, beams["position"] = self.embedder.step(ids, beams["position"])
        mix = stacks.Steps(beams["mixers"])
        x = self._features(x, mix, state["common"])[:, -1]
        beams["mixers"] = mix.new_states
        if self.adaptive_softmax is not None:
            logits = self.adaptive_softmax.full_log_prob(x)
        else:
            logits = self._logits(x, state["common"])
        return logits, {**state, "beams": beams}


def _checked(name, options, further):
    """The options of an adaptive layer, given as a dictionary."""
    keys = set(options) if isinstance(options, dict) else set()
    if "cutoffs" not in keys or not keys <= {"cutoffs", *further}:
        raise ValueError(
            f"`{name}` must be None or a dictionary with the key 'cutoffs' and, if "
            f"wanted, {further}. Received: {name}={options!r}"
        )
    return options


@keras.saving.register_keras_serializable(package="keras_seqconv")
class LanguageModel(_DecoderOnly):
    """Causal LightConv, DynamicConv or Transformer language model.

    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 5.2; fairseq `lightconv_lm`, `transformer_lm`.) The decoder of
    `EncoderDecoder` without attention to a source.

        logits = model({"target_ids": (B, T)})    (B, T, V) float32

    Logits at position t are those of the token after `target_ids[:, : t + 1]`. With
    `adaptive_softmax` the model returns features (B, T, C) instead, and
    `log_prob(features, ids)` and `negative_log_likelihood(features, labels)` take
    them: a tensor (B, T, V) is never made in training.

    Args:
        vocabulary_size: number of ids V, sorted by frequency for the adaptive layers.
        num_layers: number of blocks.
        hidden_dim, intermediate_dim, num_heads, mixer, kernel_sizes, dropout,
        attention_dropout, activation_dropout, weight_dropout, normalize_first,
        final_norm, positions, embedding_dim, activation, special_ids, seed, **kwargs:
            see `EncoderDecoder`.
        output_dim: width of what the output matrix multiplies; C by default.
        share_embeddings: input and output share one matrix.
        adaptive_softmax: None, or {"cutoffs": [...], "factor": 4.0, "dropout": 0.0},
            see `keras_seqconv.layers.AdaptiveSoftmax`.
        adaptive_input: None, or {"cutoffs": [...], "factor": 4.0}, see
            `keras_seqconv.layers.AdaptiveInput`.
        tie_adaptive_weights, tie_adaptive_projections: the adaptive softmax uses the
            tables, or the projections too, of the adaptive input.

    Raises:
        ValueError: for arguments outside these rules.

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
        self.pad_id = config["special_ids"]["pad"]
        self.target_vocabulary_size = vocabulary_size
        check_positive_integer("num_layers", num_layers)
        stacks.check_options(config)
        _check_sharing(config)
        seeds = stacks.make_seeds(seed)
        self.embedder = stacks.make_embedder(self._tokens(config), config, seeds)
        self.blocks = stacks.make_blocks("block", num_layers, config, seeds)
        self.final_norm = stacks.make_final_norm(config)
        self._make_output(config, seeds)
        self._make_graph(config)

    def _tokens(self, config):
        options = config["adaptive_input"]
        if options is None:
            return stacks.make_tokens(
                config["vocabulary_size"], config, "target_embedding"
            )
        return AdaptiveInput(
            config["vocabulary_size"],
            config["hidden_dim"],
            embedding_dim=config["embedding_dim"],
            pad_id=self.pad_id,
            dtype=config["dtype"],
            name="target_embedding",
            **_checked("adaptive_input", options, ("factor",)),
        )

    def _make_output(self, config, seeds):
        tied = {}
        if config["tie_adaptive_weights"]:
            tied["adaptive_input"] = self.embedder.tokens
            tied["tie_projections"] = config["tie_adaptive_projections"]
        self.adaptive_softmax = self._make_adaptive_softmax(config, seeds, **tied)
        self.vocabulary_map = stacks.make_vocabulary_map(
            self.embedder.tokens,
            config,
            tied=config["share_embeddings"],
            features_only=self.adaptive_softmax is not None,
        )

    def _features(self, x, mix, common=None):
        x = stacks.run(self.blocks, x, mix, final_norm=self.final_norm)
        return self.vocabulary_map.features(x)

    def _logits(self, features, common=None):
        kernel = (common or {}).get("output_kernel")
        return self.vocabulary_map.logits(features, kernel)

    def _mixers(self):
        return [block.mixer for block in self.blocks]

    def _common_state(self):
        if self.adaptive_softmax is not None:
            return {}
        return {"output_kernel": self.vocabulary_map.kernel()}


def _check_sharing(config):
    """Refuse ways of sharing matrices that exclude each other."""
    for name in (
        "share_embeddings",
        "tie_adaptive_weights",
        "tie_adaptive_projections",
    ):
        check_boolean(name, config[name])
    adaptive = [config["adaptive_softmax"], config["adaptive_input"]]
    if config["share_embeddings"] and any(adaptive):
        raise ValueError(
            "`share_embeddings` is for plain embeddings; adaptive ones share by "
            "`tie_adaptive_weights`. Received: share_embeddings=True with "
            f"adaptive_softmax={adaptive[0]}, adaptive_input={adaptive[1]}"
        )
    if config["tie_adaptive_weights"] and not all(adaptive):
        raise ValueError(
            "`tie_adaptive_weights` needs `adaptive_softmax` and `adaptive_input`. "
            f"Received: adaptive_softmax={adaptive[0]}, adaptive_input={adaptive[1]}"
        )
    if config["tie_adaptive_projections"] and not config["tie_adaptive_weights"]:
        raise ValueError(
            "`tie_adaptive_projections` needs `tie_adaptive_weights`. "
            "Received: tie_adaptive_projections=True, tie_adaptive_weights=False"
        )


@keras.saving.register_keras_serializable(package="keras_seqconv")
class ConvLanguageModel(_DecoderOnly, WeightNormalizedModel):
    """Gated convolutional language model.

    (Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks; fairseq
    `fconv_lm`.) The decoder of `ConvS2S` without attention and without positions.

        logits = model({"target_ids": (B, T)})    (B, T, V) float32

    With `adaptive_softmax` the model returns features (B, T, channels of the last
    layer), see `LanguageModel`.

    Args:
        vocabulary_size: number of ids V, sorted by frequency for the adaptive softmax.
        embedding_dim: width of the token embeddings, and of what the output matrix
            multiplies.
        convolutions: (channels, kernel_size[, residual]) of each layer, see `ConvS2S`.
        dropout: rate on the embeddings, in front of each convolution and of the output.
        adaptive_softmax: None, or {"cutoffs": [...], "factor": 4.0, "dropout": 0.0};
            it takes the outputs of the last convolution.
        folded: make plain weights, as a model saved after `fold` comes back.
        special_ids, seed, **kwargs: see `EncoderDecoder`.

    Raises:
        ValueError: for arguments outside these rules.

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
        **kwargs,
    ):
        config = constructor_arguments(locals())
        check_rate("dropout", dropout)
        check_boolean("folded", folded)
        self.pad_id = config["special_ids"]["pad"]
        self.target_vocabulary_size = vocabulary_size
        seeds, dtype = stacks.make_seeds(seed), config["dtype"]
        plain = {"folded": folded, "dtype": dtype}
        self.embedder = make_embedder(
            vocabulary_size,
            embedding_dim,
            dropout=dropout,
            seeds=seeds,
            dtype=dtype,
            name="target_embedding",
        )
        layers = parse_convolutions(convolutions)
        self.input_dense = weight_normed(layers[0].channels, dropout, **plain)
        self.stack = ConvolutionStack(
            layers,
            padding="causal",
            dropout=dropout,
            seeds=seeds,
            **plain,
        )
        self.adaptive_softmax = self._make_adaptive_softmax(config, seeds)
        self.feature_dense = self.output_dropout = self.output_dense = None
        if self.adaptive_softmax is None:
            self.feature_dense = weight_normed(embedding_dim, **plain)
            self.output_dropout = keras.layers.Dropout(
                dropout, seed=next(seeds), dtype=dtype
            )
            self.output_dense = weight_normed(vocabulary_size, dropout, **plain)
        self._make_graph(config)

    def _features(self, x, mix, common=None):
        kernels = common or {}
        x = self.input_dense(x, kernel=kernels.get("input"))
        return self.stack.run(x, mix, kernels=kernels.get("stack"))

    def _logits(self, features, common=None):
        kernels = common or {}
        x = self.feature_dense(features, kernel=kernels.get("features"))
        x = self.output_dense(self.output_dropout(x), kernel=kernels.get("logits"))
        return stacks.float32(x)

    def _mixers(self):
        return self.stack.blocks

    def _common_state(self):
        dense = {"input": self.input_dense}
        if self.adaptive_softmax is None:
            dense |= {"features": self.feature_dense, "logits": self.output_dense}
        kernels = {name: layer.step_kernel() for name, layer in dense.items()}
        return {**kernels, "stack": self.stack.step_kernels()}
