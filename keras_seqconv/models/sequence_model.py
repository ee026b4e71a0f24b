"""Base of all models: special ids, configuration, steps, training."""

import json
import random
import types
import warnings
from typing import Any, TypedDict

import keras
from keras import ops

from keras_seqconv.metrics import TokenMetrics
from keras_seqconv.models import token_training
from keras_seqconv.models.changes import changes_of, repeat
from keras_seqconv.models.stacks import SPECIAL_IDS
from keras_seqconv.support import require_tensorflow
from keras_seqconv.support.arguments import (
    check_ids,
    check_integer,
    check_keys,
    check_positive_integer,
    check_shape,
)


class ModelOptions(TypedDict, total=False):
    """Arguments of `keras.Model` that models take, for type checkers."""

    name: str | None
    dtype: Any


class SequenceModel(keras.Model):
    """Functional model that is defined by the arguments of its constructor.

    In addition to the full pass of the graph it has `get_initial_state` and `step`, the
    only methods that a search (`keras_seqconv.decoding`) needs:

        state = {"common": tensors for all sentences, never changed: kernels, and an
                           empty tensor (G, 0) whose shape gives G,
                 "shared": rows of sentences, never copied for beams,
                 "beams": rows of all beams, adjacent for one sentence;
                          leaves of rank 0 are counters for all rows}
        logits (rows, V), state = model.step(ids (rows, n), state)

    Attributes: `pad_id`, `start_id`, `end_id`, `unk_id`: special ids, by default those
    of fairseq (1, 2, 2, 3; decoding starts from the end token).
    `target_vocabulary_size`. `max_target_length`: largest number of target positions,
    the start included, or None. `has_source`: whether there are `source_ids`.
    `source_vocabulary_size`, `max_source_length`: of these, or None. `has_one_table`:
    whether both sides share their embeddings.

    Copies: `type(model).from_config(model.get_config())` and `set_weights`.
    `keras.models.clone_model` copies the graph alone, into a model without `step` and
    search. Later changes by Keras are part of the configuration: `quantize`,
    `enable_lora` of layers, `trainable`.

    Training: `compile` and Keras' `fit` and `evaluate`, on the inputs of the model and
    labels (B, T), the target ids shifted by one position. Loss, gradients and
    metrics are sums over target tokens divided by their number, over all micro-batches
    and replicas of an update, whatever the batches' shapes. Logs: `loss` (nats per
    token), `nll` and `perplexity` without label smoothing, `accuracy` (not with an
    adaptive softmax), `tokens` (since the start of the epoch), and when training
    `learning_rate` and `gradient_norm` (before clipping) of the last update.

    Several GPUs: on TensorFlow create and compile the model in the scope of a
    `tf.distribute.MirroredStrategy`; `fit` splits each batch by rows. Several hosts: on
    JAX, with `keras.distribution.DataParallel`, see docs/devices.md.

    Sub-classes make their layers, `target_embedder` and `decoder_blocks` among them,
    and then call this constructor, which makes the graph. They have

        encode(source_ids), _shared(source_ids) -> "shared"; not in language models
        decode(target_ids, *results of encode) -> outputs; not in language models
        _kernels() -> "common" of the state
        _advance(x, mix, state, look) -> embedded ids (rows, n, C) through the layers of
            the decoder, `mix(mixer, x)` for each mixer; and where they looked,
            (rows, n, S), or None
        _head(x, kernels=None) -> from there to logits, or to what an adaptive softmax
            takes; this and `_kernels` by `vocabulary_map`, if there is one
    """

    adaptive_softmax = None  # of language models: the outputs are features for it

    def __init__(self, config: dict):
        names = ["source_ids"] * self.has_source + ["target_ids"]
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name) for name in names
        }
        source = self.encode(inputs["source_ids"]) if self.has_source else ()
        outputs = self.decode(inputs["target_ids"], *source)
        super().__init__(inputs=inputs, outputs=outputs, name=config.pop("name"))
        # A functional model has the global policy, whatever its layers have; `compile`
        # reads it to scale losses under mixed_float16. The layers cast for themselves.
        self.dtype_policy = config["dtype"]
        self.autocast = False
        # Weights in the order of the graph, which is also that of a clone by Keras:
        # layers that became attributes before it would come first.
        order = {id(layer): index for index, layer in enumerate(self.operations)}
        self._layers.sort(key=lambda layer: order[id(layer)])
        # As text: Keras would wrap and track a dictionary.
        self._config = json.dumps(config, default=keras.saving.get_registered_name)

    def decode(self, target_ids):
        """Returns the outputs of the model for target ids (B, T)."""
        x, _ = self._advance(
            self.target_embedder(target_ids),
            lambda mixer, x, *_: mixer(x),
            {"common": {}},
            look=False,
        )
        outputs = self._head(x)
        return outputs if self.has_logits else self.adaptive_softmax(outputs)

    # --- Steps ---

    @property
    def has_source(self) -> bool:
        """Whether the model has a source input."""
        return hasattr(self, "encode")

    @property
    def max_target_length(self) -> int | None:
        return self.target_embedder.max_length

    @property
    def source_vocabulary_size(self) -> int | None:
        return self.source_embedder.tokens.vocabulary_size if self.has_source else None

    @property
    def max_source_length(self) -> int | None:
        return self.source_embedder.max_length if self.has_source else None

    @property
    def has_one_table(self) -> bool:
        tokens = self.target_embedder.tokens
        return self.has_source and self.source_embedder.tokens is tokens

    def get_initial_state(
        self,
        source,
        num_beams: int = 1,
        max_length: int | None = None,
        return_attention: bool = False,
    ) -> dict:
        """Returns the state before the first step.

        Args:
            source: integers (B, S); for a language model the number B of sentences, an
                int or scalar tensor.
            num_beams: rows G of each sentence in the steps.
            max_length: largest number of positions of all steps, for mixers that
                keep the past (attention), whose states grow without it, and to check
                learned positions.
            return_attention: keep `state["beams"]["attention"]`, (B * G, S) float32,
                where the last position of the last step looked.

        Returns:
            `{"common": ..., "shared": ..., "beams": ...}`, see the class.

        Raises:
            ValueError: `return_attention` of a model without a source; `max_length`
                beyond the learned positions.
        """
        shared, sentences, beams = {}, source, {}
        if self.has_source:
            shared, (sentences, width) = self._shared(source), ops.shape(source)
            if return_attention:
                shape = (sentences * num_beams, width)
                beams["attention"] = ops.zeros(shape, "float32")
        elif return_attention:
            raise ValueError(
                "A language model has no attention to a source. "
                "Received: return_attention=True"
            )
        rows, position = sentences * num_beams, self.target_embedder.position
        beams["position"] = {}
        if position is not None:
            beams["position"] = position.get_initial_state(rows, max_length)
        beams["mixers"] = [
            mixer.get_initial_state(rows, max_length)
            for block in self.decoder_blocks
            for mixer in block.mixers
        ]
        common = {**self._kernels(), "beams": ops.zeros((num_beams, 0))}
        return {"common": common, "shared": shared, "beams": beams}

    def step(self, ids, state: dict) -> tuple:
        """Returns logits (rows, V) after n >= 1 new ids (rows, n), and the next state.

        The outputs of the graph after all ids so far (with an adaptive softmax
        log-probabilities). The cost does not depend on the position, but for
        attention as a mixer, which reads `max_length` or all earlier positions.
        """
        check_shape("ids", ids, (None, None))
        check_keys("state", state, ("common", "shared", "beams"))
        x, beams, weights = self._step(ids, state)
        if weights is not None:
            beams["attention"] = _last_position(weights)
        logits = self._head(_last_position(x), state["common"])
        if self.adaptive_softmax is not None:
            logits = self.adaptive_softmax.full_log_prob(logits)
        return logits, {**state, "beams": beams}

    def attention_weights(self, inputs: dict):
        """Returns the attention of each target position to the source.

        For an `EncoderDecoder` the mean over heads in the last block. For a `ConvS2S`
        the sum over layers / number of layers, including layers without attention,
        as in fairseq.

        Args:
            inputs: as in the model.

        Returns:
            Tensor (B, T, S), float32.
        """
        ids = inputs["target_ids"]
        state = self.get_initial_state(
            inputs["source_ids"], 1, ops.shape(ids)[1], return_attention=True
        )
        return self._step(ids, state)[2]

    def _step(self, ids, state) -> tuple:
        beams = dict(state["beams"])
        x, beams["position"] = self.target_embedder.step(ids, beams["position"])
        states, beams["mixers"] = iter(beams["mixers"]), []

        def mix(mixer, x, *kernels):
            x, state = mixer.step(x, next(states), *kernels)
            beams["mixers"].append(state)
            return x

        x, weights = self._advance(x, mix, state, "attention" in beams)
        return x, beams, weights

    def _kernels(self) -> dict:
        kernel = self.vocabulary_map.kernel()
        return {} if kernel is None else {"output": kernel}

    def _head(self, x, kernels=None):
        return self.vocabulary_map(x, (kernels or {}).get("output"))

    # --- Training ---

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        metrics=None,
        *,
        gradient_accumulation_steps: int | None = None,
        auto_scale_loss: bool = True,
        **options,
    ) -> None:
        """Configures `fit` and `evaluate`.

        Args:
            optimizer: Keras optimizer or its name, which is wrapped by
                `keras_seqconv.optimizers.TokenNormalized`.
            loss: `keras_seqconv.losses.LabelSmoothedCrossentropy`; None for the mean
                of -log_prob, which is the choice with an adaptive softmax; another
                Keras loss or function of (labels, outputs) that returns a number for
                each token, (B, T), or their sum.
            metrics: further metrics, as in Keras; they see padding.
            gradient_accumulation_steps: micro-batches of an update. An incomplete
                update continues in the next epoch.
            auto_scale_loss, **options: `weighted_metrics`, `run_eagerly`,
                `steps_per_execution`, `jit_compile`: as in Keras.

        Raises:
            ValueError: an argument breaks these rules; the loss or a metric has
                another `pad_id` (or, of Keras, `ignore_class`) than the model.
        """
        scale = auto_scale_loss and self.dtype_policy.name == "mixed_float16"
        optimizer = token_training.wrapped_optimizer(
            optimizer, gradient_accumulation_steps, scale
        )
        options["metrics"] = metrics
        for metric in keras.tree.flatten([metrics, options.get("weighted_metrics")]):
            check_ids("metrics", metric, self)
        super().compile(optimizer, **options, auto_scale_loss=False)
        options |= {
            "optimizer": optimizer, "loss": loss, "auto_scale_loss": auto_scale_loss,
        }  # fmt: skip
        # A record: Keras would track a metric that became an attribute.
        self.training = types.SimpleNamespace(
            loss=token_training.checked_loss(loss, self),
            metrics=TokenMetrics(self.pad_id, has_accuracy=self.has_logits),
            config=options,
        )
        self._trained = None

    def get_compile_config(self) -> dict:
        if not self.compiled:
            return {}
        return keras.saving.serialize_keras_object(self.training.config)

    def compile_from_config(self, config) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force: bool = False):
        """As in Keras, and again after a change of the trainable variables.

        The optimizer is built here, not in `compile`: layers may be frozen or given
        LoRA in between.

        Raises:
            ValueError: no variable is trainable, or the optimizer was built without
                some of the variables.
        """
        variables = self.trainable_variables
        if not variables:
            raise ValueError("The model has no trainable variables: all are frozen.")
        self.optimizer.build(variables)
        trained = tuple(map(id, variables))
        force = force or trained != self._trained
        self._trained = trained
        return super().make_train_function(force)

    fit = token_training.without_class_weight(keras.Model.fit)
    train_on_batch = token_training.without_class_weight(keras.Model.train_on_batch)
    # As Keras calls them: with the data, on JAX with the state and the data.
    train_step = token_training.train_step
    test_step = token_training.test_step

    @property
    def metrics(self) -> list:
        metrics = super().metrics
        return [*metrics, self.training.metrics] if self.compiled else metrics

    @property
    def has_logits(self) -> bool:
        """Whether the outputs are logits, not features for an adaptive softmax."""
        return self.adaptive_softmax is None

    def log_prob(self, outputs, ids, training: bool | None = None):
        """Returns natural log-probabilities of ids, given the outputs of a call.

        Args:
            outputs: outputs of the model: logits (B, T, V), or with an adaptive
                softmax features (B, T, C).
            ids: integers (B, T).
            training: whether to apply the dropout of an adaptive softmax.

        Returns:
            Tensor (B, T), float32. An adaptive softmax makes no tensor (B, T, V).
        """
        if self.adaptive_softmax is not None:
            return self.adaptive_softmax.log_prob(outputs, ids, training)
        ids = ops.cast(ids, "int32")[..., None]
        chosen = ops.take_along_axis(outputs, ids, axis=-1)[..., 0]
        return chosen - ops.logsumexp(outputs, axis=-1)

    def negative_log_likelihood(self, outputs, labels, training: bool | None = None):
        """Returns the sum of -log_prob over labels without padding.

        Args:
            outputs, training: as in `log_prob`.
            labels: integers (B, T).

        Returns:
            Scalar in nats. Divide by the number of such labels for the mean.
        """
        real = ops.not_equal(labels, self.pad_id)
        if self.adaptive_softmax is not None:
            return self.adaptive_softmax.loss(outputs, labels, real, training)
        return -ops.sum(ops.where(real, self.log_prob(outputs, labels), 0.0))

    def quantize(self, *args, **kwargs) -> None:
        """As in Keras, without warnings about layers that keep their precision."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* does not have a `quantize` method")
            super().quantize(*args, **kwargs)

    def _update_config(self, **arguments) -> None:
        """Note arguments that would make the model as it is now."""
        self._config = json.dumps({**json.loads(self._config), **arguments})

    def export(self, filepath, format: str = "tf_saved_model", **kwargs) -> None:
        """Write the model as Keras does; for other runtimes always in float32.

        Args:
            filepath, format, **kwargs: as of `keras.Model.export`.

        Raises:
            ValueError: a format other than "tf_saved_model" on the JAX backend.
        """
        model = self
        if format != "tf_saved_model":
            require_tensorflow()
            model = self.in_float32()
            model(model.input)  # Keras exports what has been called
        keras.Model.export(model, filepath, format, **kwargs)

    def in_float32(self):
        """The model, or a copy of one that computes in another dtype."""
        if self.compute_dtype == "float32":
            return self
        return self.copy_with(dtype="float32")

    def copy_with(self, **arguments):
        """The model made again with some arguments changed, and its weights."""
        state = random.getstate()  # changes with each initial weight
        copy = type(self).from_config({**self.get_config(), **arguments})
        random.setstate(state)
        copy.set_weights(self.get_weights())
        return copy

    def get_config(self) -> dict:
        config = {"name": self.name, **json.loads(self._config)}
        changes = changes_of(self)
        return {**config, "changes": changes} if changes else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        changes = config.pop("changes", {})
        model = cls(**config)
        repeat(changes, model)
        return model


def _last_position(x):
    """(rows, n, C) -> (rows, C)."""
    return ops.squeeze(x, axis=1) if x.shape[1] == 1 else x[:, -1]


def beams_of(state: dict) -> int | None:
    """The rows G of a sentence by the shape of a tensor; None in a state without it."""
    beams = state["common"].get("beams")
    return None if beams is None else beams.shape[0]


def constructor_arguments(variables: dict) -> dict:
    """The arguments of a constructor from its `locals()`, as JSON can hold them.

    The model gets the attributes that all models have.

    Raises:
        TypeError: for unknown ones among its `**kwargs`, `name` and `dtype`.
        ValueError: for wrong vocabulary sizes, special ids, seed or dtype, which all
            models have.
    """
    model, hidden = variables["self"], ("self", "kwargs", "__class__")
    config = {key: value for key, value in variables.items() if key not in hidden}
    config |= {"name": None, "dtype": None, **variables["kwargs"]}
    for key in set(variables["kwargs"]) - {"name", "dtype"}:
        raise TypeError(
            f"{type(model).__name__}() got an unexpected keyword "
            f"argument '{key}'. Received: {key}={config[key]!r}"
        )
    ids = config["special_ids"] or {}
    if not isinstance(ids, dict) or not set(ids) <= set(SPECIAL_IDS):
        raise ValueError(
            f"`special_ids` must be a dictionary with some of the keys "
            f"{tuple(SPECIAL_IDS)}. Received: special_ids={ids!r}"
        )
    config["special_ids"] = ids = SPECIAL_IDS | ids
    for name in [name for name in config if name.endswith("vocabulary_size")]:
        size = check_positive_integer(name, config[name])
        for key in ("pad",) if name.startswith("source") else ids:
            if type(ids[key]) is not int or not 0 <= ids[key] < size:
                raise ValueError(
                    f"`special_ids` must be integers from 0 to `{name}` - 1. "
                    f"Received: special_ids={ids}, {name}={size}"
                )
        model.target_vocabulary_size = size  # the last of them
    for key, number in ids.items():
        setattr(model, f"{key}_id", number)
    if ids["pad"] == ids["end"]:
        raise ValueError(
            "`special_ids` must be different for pad and end: no padding is learned. "
            f"Received: special_ids={ids}"
        )
    if config["seed"] is not None:
        check_integer("seed", config["seed"], 0)
    policy = keras.dtype_policies.get(config["dtype"] or keras.config.dtype_policy())
    if isinstance(policy, keras.dtype_policies.QuantizedDTypePolicy):
        raise ValueError(
            "`dtype` must be no quantized policy: call `quantize` of the model. "
            f"Received: dtype={policy.name!r}"
        )
    # By name, where it has one: a plain configuration can be read and written by hand.
    config["dtype"] = keras.saving.serialize_keras_object(policy)
    if keras.dtype_policies.get(policy.name) == policy:
        config["dtype"] = policy.name
    return config
