"""What all models of the package have in common: special ids, configuration, scores."""

import json

import keras
from keras import ops


class SequenceModel(keras.Model):
    """A functional model that is described by the arguments of its constructor.

    Sub-classes make their layers and the graph, and then call this constructor. They
    offer, beside the full pass of the graph, `get_initial_state` and `step`, which is
    all that a search (`keras_seqconv.decoding`) needs to know of a model:

        state = {"shared": rows of sentences, never copied for beams,
                 "beams": rows of all beams, those of one sentence adjacent;
                          leaves of rank 0 count something common to all rows}
        logits (rows, V), state = model.step(ids (rows, n), state)

    Attributes: `pad_id`, `start_id`, `end_id`, `unk_id`: ids of the vocabulary with a
    meaning, those of fairseq by default (1, 2, 2, 3; decoding starts from the end
    token). `target_vocabulary_size`. `max_target_length`: most positions a target can
    have, or None.
    """

    def __init__(self, inputs: dict, outputs, config: dict, name=None):
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        # As text: Keras would wrap and track a dictionary.
        self._config = json.dumps(config)
        for key in ("pad_id", "start_id", "end_id", "unk_id"):
            setattr(self, key, config[key])

    def log_prob(self, outputs, ids):
        """Natural log-probabilities of ids, given the outputs of a call.

        Args:
            outputs: logits (B, T, V), as returned by the model.
            ids: integers (B, T).

        Returns:
            Tensor (B, T), float32.
        """
        ids = ops.expand_dims(ops.cast(ids, "int32"), axis=-1)
        chosen = ops.squeeze(ops.take_along_axis(outputs, ids, axis=-1), axis=-1)
        return chosen - ops.logsumexp(outputs, axis=-1)

    def get_config(self) -> dict:
        return {"name": self.name, **json.loads(self._config)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


def constructor_arguments(variables: dict) -> dict:
    """The arguments of a constructor from its `locals()`, as JSON can hold them."""
    hidden = ("self", "name", "__class__")
    config = {key: value for key, value in variables.items() if key not in hidden}
    policy = keras.dtype_policies.get(config["dtype"] or keras.config.dtype_policy())
    # By name, where it has one: a plain configuration can be read and written by hand.
    quantized = isinstance(policy, keras.dtype_policies.QuantizedDTypePolicy)
    config["dtype"] = keras.saving.serialize_keras_object(policy)
    if not quantized and keras.dtype_policies.get(policy.name) == policy:
        config["dtype"] = policy.name
    return config
