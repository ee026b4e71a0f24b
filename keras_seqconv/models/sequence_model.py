"""Base of all models: graph, configuration, steps."""

import json
import random
import warnings

import keras
from keras import ops

from keras_seqconv.layers.sequences import loop_kernels
from keras_seqconv.models.configuration import changes_of, repeat
from keras_seqconv.models.token_training import TokenTrainedModel
from keras_seqconv.support import require_tensorflow
from keras_seqconv.support.arguments import check_keys, check_shape


class SequenceModel(TokenTrainedModel):
    """Functional model that is defined by the arguments of its constructor.

    In addition to the full pass of the graph it has `get_initial_state` and `step`, the
    only methods that a search (`keras_seqconv.decoding`) needs:

        state = {"common": tensors for all sentences, never changed: the kernels of
                           `_step_layers`, and an empty tensor (G, 0) whose shape
                           gives G,
                 "shared": rows of sentences, never copied for beams,
                 "beams": rows of all beams, adjacent for one sentence;
                          leaves of rank 0 are counters for all rows}
        logits (rows, V), state = model.step(ids (rows, n), state)

    Attributes: `pad_id`, `start_id`, `end_id`, `unk_id`: special ids, by default those
    of fairseq (1, 2, 2, 3; decoding starts from the end token).
    `target_vocabulary_size`. `max_target_length`: largest number of target positions,
    the start included, or None. `has_source`: whether there are `source_ids`, False of
    language models. `source_vocabulary_size`, `max_source_length`: of these, or None.
    `has_one_table`: whether both sides share their embeddings.

    Copies: `type(model).from_config(model.get_config())` and `set_weights`.
    `keras.models.clone_model` copies the graph alone, into a model without `step` and
    search. Later changes by Keras are part of the configuration: `quantize`,
    `enable_lora` of layers, `trainable`.

    Training: see `models.token_training.TokenTrainedModel`.

    Sub-classes make their layers, `target_embedder` and `decoder_blocks` among them,
    and then call this constructor, which makes the graph. They have

        encode(source_ids), _shared(source_ids) -> "shared"; not in language models
        decode(target_ids, *results of encode) -> outputs; not in language models
        _step_layers() -> layers of the decoder whose `step_kernel()` is made once
            before a loop of steps
        _advance(x, mix, state, look) -> embedded ids (rows, n, C) through the layers of
            the decoder, `mix(mixer, x)` for each mixer; and with `look` the attention
            to the source, (rows, n, S), or None
        _head(x) -> from there to logits, or to the inputs of an adaptive softmax; this
            and `_step_layers` by `vocabulary_map`, if there is one
    """

    has_source = False

    def __init__(self, config: dict):
        """Makes the graph. config: `configuration_of` the constructor's arguments."""
        for name, number in config["special_ids"].items():
            setattr(self, f"{name}_id", number)
        target = self.target_embedder
        source = self.source_embedder if self.has_source else None
        self.target_vocabulary_size = target.tokens.vocabulary_size
        self.max_target_length = target.max_length
        self.source_vocabulary_size = source.tokens.vocabulary_size if source else None
        self.max_source_length = source.max_length if source else None
        self.has_one_table = source is not None and source.tokens is target.tokens
        inputs, encoded = {}, ()
        if self.has_source:
            ids = keras.Input((None,), dtype="int32", name="source_ids")
            inputs["source_ids"], encoded = ids, self.encode(ids)
        inputs["target_ids"] = keras.Input((None,), dtype="int32", name="target_ids")
        outputs = self.decode(inputs["target_ids"], *encoded)
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
            self.target_embedder(target_ids, pad_id=self.pad_id),
            lambda mixer, x: mixer(x),
            {},
            look=False,
        )
        outputs = self._head(x)
        return outputs if self.has_logits else self.adaptive_softmax(outputs)

    # --- Steps ---

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
        with self._kernels_of(state):
            x, beams, weights = self._step(ids, state)
            logits = self._head(_last_position(x))
        if weights is not None:
            beams["attention"] = _last_position(weights)
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
            inputs.get("source_ids"), 1, ops.shape(ids)[1], return_attention=True
        )
        with self._kernels_of(state):
            return self._step(ids, state)[2]

    def _step(self, ids, state) -> tuple:
        beams = dict(state["beams"])
        x, beams["position"] = self.target_embedder.step(ids, beams["position"])
        states, beams["mixers"] = iter(beams["mixers"]), []

        def mix(mixer, x):
            x, state = mixer.step(x, next(states))
            beams["mixers"].append(state)
            return x

        x, weights = self._advance(x, mix, state, "attention" in beams)
        return x, beams, weights

    def _step_layers(self) -> list:
        table = self.vocabulary_map.table
        return [] if table is None else [table]

    def _kernels(self) -> dict:
        return {"kernels": [layer.step_kernel() for layer in self._step_layers()]}

    def _kernels_of(self, state):
        """Scope in which the layers use the kernels that the state has."""
        return loop_kernels(self._step_layers(), state["common"]["kernels"])

    def _head(self, x):
        return self.vocabulary_map(x)

    def quantize(self, *args, **kwargs) -> None:
        """As in Keras, without warnings about layers that keep their precision."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* does not have a `quantize` method")
            super().quantize(*args, **kwargs)

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
