"""Language models: a stack of causal blocks, or of gated convolutions.

Letters: B sentences, T time, C channels, V vocabulary, G beams of a sentence, n new
positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.layers import (
    AdaptiveInput,
    AdaptiveSoftmax,
)
from keras_seqconv.models import blocks
from keras_seqconv.models.convolutions import (
    ConvolutionStack,
    make_embedder,
    parse_convolutions,
    weight_normed,
)
from keras_seqconv.models.model import SequenceModel, constructor_arguments, float32
from keras_seqconv.models.parts import Mixing, Seeds, initial_beams
from keras_seqconv.support.arguments import (
    check_boolean,
    check_positive_integer,
    check_rate,
)


class _DecoderOnly(SequenceModel):
    """What both families share: features to logits or to an adaptive softmax.

    Sub-classes make `embedder`, `output_dense` or `adaptive_softmax`, `_features` and
    `_mixers`, the layers with a state.
    """

    def _call_on_ids(self, config, name):
        """Make the graph, the last thing that a constructor does."""
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        x = self._features(self.embedder(target_ids), lambda mixer, x, *_: mixer(x))
        if self.adaptive_softmax is not None:
            outputs = self.adaptive_softmax(x)
        else:
            outputs = self._logits(x)
        SequenceModel.__init__(self, {"target_ids": target_ids}, outputs, config, name)

    def _make_adaptive_softmax(self, config, seeds, **tied):
        """The layer, or None, from the option `adaptive_softmax`."""
        options = config["adaptive_softmax"]
        if options is None:
            return None
        return AdaptiveSoftmax(
            config["vocabulary_size"],
            seed=seeds.next(),
            dtype=config["dtype"],
            **_checked("adaptive_softmax", options, ("factor", "dropout")),
            **tied,
        )

    @property
    def max_target_length(self) -> int | None:
        """Most positions, the start included; None without a limit."""
        return self.embedder.max_length

    def log_prob(self, outputs, ids, training: bool | None = None):
        """Natural log-probabilities of ids, given the outputs of a call.

        Args:
            outputs: what the model returned: logits (B, T, V), or with an adaptive
                softmax features (B, T, C).
            ids: integers (B, T).
            training: whether to apply the dropout inside of an adaptive softmax.

        Returns:
            Tensor (B, T), float32. With an adaptive softmax no tensor (B, T, V) is
            made on the way.
        """
        if self.adaptive_softmax is None:
            return super().log_prob(outputs, ids)
        return self.adaptive_softmax.log_prob(outputs, ids, training)

    def _sum_of_losses(self, outputs, labels, training: bool | None = None):
        real = ops.not_equal(labels, self.pad_id)
        if self.adaptive_softmax is not None:
            return self.adaptive_softmax.loss(outputs, labels, real, training)
        return super()._sum_of_losses(outputs, labels)

    def get_initial_state(
        self,
        batch_size,
        num_beams: int = 1,
        max_length: int | None = None,
        return_attention: bool = False,
    ) -> dict:
        """Prepare the steps.

        Args:
            batch_size: number of sentences, int or scalar tensor.
            num_beams: rows G of each sentence in the steps.
            max_length: most positions that the steps will add up to, for mixers that
                keep the past (attention), whose states grow without it, and to check
                learned positions.
            return_attention: not available without a source.

        Returns:
            `{"common": ..., "shared": ..., "beams": ...}`, see `SequenceModel`.

        Raises:
            ValueError: with `return_attention`.
        """
        if return_attention:
            raise ValueError(
                "A language model has no attention to a source. "
                "Received: return_attention=True"
            )
        rows = batch_size * num_beams
        beams = initial_beams(self.embedder, self._mixers(), rows, max_length)
        return {"common": self._common_state(), "shared": {}, "beams": beams}

    def step(self, ids, state: dict) -> tuple:
        """Logits (rows, V) after the last of n >= 1 new ids (rows, n), and the state.

        With an adaptive softmax the logits are the log-probabilities.
        """
        common, beams = state["common"], state["beams"]
        x, position = self.embedder.step(ids, beams["position"])
        mix = Mixing(beams["mixers"])
        x = self._step_features(x, mix, common)
        beams = {**beams, "position": position, "mixers": mix.new_states}
        if self.adaptive_softmax is not None:
            logits = self.adaptive_softmax.full_log_prob(x)
        else:
            logits = self._step_logits(x, common)
        return logits, {**state, "beams": beams}


def _checked(name, options, further):
    """The options of an adaptive layer, given as a dictionary."""
    if not isinstance(options, dict) or not {"cutoffs"} <= set(options) <= {
        "cutoffs",
        *further,
    }:
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
    `log_prob(features, ids)` and `loss(features, labels)` take them: a tensor
    (B, T, V) is never made in training.

    Args:
        vocabulary_size: number of ids V, sorted by frequency for the adaptive layers.
        hidden_dim, intermediate_dim, num_heads, num_layers, mixer, kernel_sizes,
        num_conv_heads, conv_dim, query_dim, gate, query_groups, permute_channels,
        compat, kernel_softmax, weight_dropout_mask, dropout, attention_dropout,
        activation_dropout, input_dropout, weight_dropout, normalize_first, final_norm,
        positions, max_length, embedding_dim, activation, pad_id, start_id, end_id,
        unk_id, seed, dtype, name: see `EncoderDecoder`.
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
        num_conv_heads: int | None = None,
        conv_dim: int | None = None,
        query_dim: int | None = None,
        gate: str = "glu",
        query_groups: int = 1,
        permute_channels: bool = False,
        compat: bool = False,
        kernel_softmax: bool = True,
        weight_dropout_mask: str | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        input_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        normalize_first: bool = False,
        final_norm: bool = True,
        positions: str | None = "sinusoidal",
        max_length: int = 1024,
        embedding_dim: int | None = None,
        output_dim: int | None = None,
        share_embeddings: bool = False,
        adaptive_softmax: dict | None = None,
        adaptive_input: dict | None = None,
        tie_adaptive_weights: bool = False,
        tie_adaptive_projections: bool = False,
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
        self.pad_id = pad_id
        self.target_vocabulary_size = vocabulary_size
        check_positive_integer("num_layers", num_layers)
        blocks.check_options(config)
        _check_sharing(config)
        seeds = Seeds(seed)
        self.embedder = blocks.make_embedder(self._tokens(config), config, seeds)
        self.blocks = blocks.make_blocks(
            config, num_layers, name="block", causal=True, source=False, seeds=seeds
        )
        self.final_norm = blocks.make_final_norm(config)
        self._make_output(config, seeds)
        self._call_on_ids(config, name)

    def _tokens(self, config):
        options = config["adaptive_input"]
        if options is None:
            return blocks.make_tokens(
                config["vocabulary_size"], config, "target_embedding"
            )
        return AdaptiveInput(
            config["vocabulary_size"],
            config["hidden_dim"],
            embedding_dim=config["embedding_dim"],
            pad_id=config["pad_id"],
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
        self.vocabulary_map = blocks.make_vocabulary_map(
            self.embedder.tokens,
            config,
            tied=config["share_embeddings"],
            features_only=self.adaptive_softmax is not None,
        )

    def _features(self, x, mix):
        x = blocks.run(self.blocks, x, mix)
        x = x if self.final_norm is None else self.final_norm(x)
        return self.vocabulary_map.features(x)

    def _logits(self, x):
        return self.vocabulary_map.logits(x)

    def _mixers(self):
        return [block.mixer for block in self.blocks]

    def _common_state(self):
        """The output matrix (width, V) in the layout that small products want."""
        if self.adaptive_softmax is not None:
            return {}
        return {"output_kernel": self.vocabulary_map.kernel()}

    def _step_features(self, x, mix, common):
        return self._features(x, mix)[:, -1]

    def _step_logits(self, x, common):
        return float32(ops.matmul(x, common["output_kernel"]))


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
class ConvLanguageModel(_DecoderOnly):
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
        pad_id, start_id, end_id, unk_id, folded, seed, dtype, name: see `ConvS2S`.

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
        pad_id: int = 1,
        start_id: int = 2,
        end_id: int = 2,
        unk_id: int = 3,
        folded: bool = False,
        seed: int | None = None,
        dtype=None,
        name: str | None = None,
    ):
        config = constructor_arguments(locals())
        check_rate("dropout", dropout)
        check_boolean("folded", folded)
        self.pad_id = pad_id
        self.target_vocabulary_size = vocabulary_size
        seeds, dtype = Seeds(seed), config["dtype"]
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
            attention=[False] * len(layers),
            dropout=dropout,
            seeds=seeds,
            **plain,
        )
        self.adaptive_softmax = self._make_adaptive_softmax(config, seeds)
        self.feature_dense = self.output_dropout = self.output_dense = None
        if self.adaptive_softmax is None:
            self.feature_dense = weight_normed(embedding_dim, **plain)
            self.output_dropout = keras.layers.Dropout(
                dropout, seed=seeds.next(), dtype=dtype
            )
            self.output_dense = weight_normed(vocabulary_size, dropout, **plain)
        self._call_on_ids(config, name)

    def _features(self, x, mix):
        return self.stack.run(self.input_dense(x), mix)

    def _logits(self, x):
        x = self.output_dropout(self.feature_dense(x))
        return float32(self.output_dense(x))

    def _mixers(self):
        return self.stack.blocks

    def _common_state(self):
        kernels = {
            "input": self.input_dense.step_kernel(),
            "stack": self.stack.step_kernels(),
        }
        if self.adaptive_softmax is None:
            kernels["features"] = self.feature_dense.step_kernel()
            kernels["logits"] = self.output_dense.step_kernel()
        return {"kernels": kernels}

    def _step_features(self, x, mix, common):
        kernels = common["kernels"]
        x = self.input_dense(x, kernel=kernels["input"])
        return self.stack.run(x, mix, kernels=kernels["stack"])[:, -1]

    def _step_logits(self, x, common):
        kernels = common["kernels"]
        x = self.feature_dense(x, kernel=kernels["features"])
        return float32(self.output_dense(x, kernel=kernels["logits"]))

    def fold(self) -> None:
        """Replace all weight-normalised weights by plain kernels, see `ConvS2S`."""
        self.stack.fold()
        for dense in (self.input_dense, self.feature_dense, self.output_dense):
            if dense is not None:
                dense.fold()
        self._update_config(folded=True)
