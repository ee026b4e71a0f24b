"""What all models of the package have in common: special ids, configuration, scores."""

import json

import keras
from keras import ops

from keras_seqconv.layers.arguments import check_positive_integer


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
        # A functional model has the global policy, whatever its layers have; `compile`
        # reads it to scale losses under mixed_float16. The layers cast for themselves.
        self.dtype_policy = config["dtype"]
        self.autocast = False
        # Weights in the order of the graph, which is also that of a clone by Keras:
        # layers that became attributes before it would come first.
        order = {id(layer): index for index, layer in enumerate(self.operations)}
        self._layers.sort(key=lambda layer: order[id(layer)])
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

    @property
    def loss(self):
        """The sum of -log_prob over labels that are no padding, as a function.

        `model.loss(outputs, labels)`: outputs of a call and integers (B, T) -> scalar
        in nats. Divide by the number of such labels for the mean.
        """
        return self._sum_of_losses

    @loss.setter
    def loss(self, value):
        # `compile(loss=...)` notes its argument under this name and never reads it.
        del value

    def _sum_of_losses(self, outputs, labels):
        real = ops.not_equal(labels, self.pad_id)
        return -ops.sum(ops.where(real, self.log_prob(outputs, labels), 0.0))

    def _update_config(self, **arguments) -> None:
        """Note arguments that would make the model as it is now."""
        self._config = json.dumps({**json.loads(self._config), **arguments})

    def get_config(self) -> dict:
        return {"name": self.name, **json.loads(self._config)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


def float32(logits):
    """Logits in at least float32."""
    return ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))


def constructor_arguments(variables: dict) -> dict:
    """The arguments of a constructor from its `locals()`, as JSON can hold them.

    Raises:
        ValueError: for wrong vocabulary sizes, special ids or seed, which all models
            have.
    """
    hidden = ("self", "name", "__class__")
    config = {key: value for key, value in variables.items() if key not in hidden}
    _check_ids(config)
    seed = config["seed"]
    if seed is not None and type(seed) is not int:
        raise ValueError(f"`seed` must be an integer or None. Received: seed={seed!r}")
    policy = keras.dtype_policies.get(config["dtype"] or keras.config.dtype_policy())
    # By name, where it has one: a plain configuration can be read and written by hand.
    quantized = isinstance(policy, keras.dtype_policies.QuantizedDTypePolicy)
    config["dtype"] = keras.saving.serialize_keras_object(policy)
    if not quantized and keras.dtype_policies.get(policy.name) == policy:
        config["dtype"] = policy.name
    return config


def _check_ids(config):
    """Special ids lie in the vocabularies in which they have a meaning."""
    sizes = {
        name: check_positive_integer(name, value)
        for name, value in config.items()
        if name.endswith("vocabulary_size")
    }
    target = {name: sizes[name] for name in sizes if not name.startswith("source")}
    for key in ("pad_id", "start_id", "end_id", "unk_id"):
        for name, size in (sizes if key == "pad_id" else target).items():
            if type(config[key]) is not int or not 0 <= config[key] < size:
                raise ValueError(
                    f"`{key}` must be an integer from 0 to `{name}` - 1. "
                    f"Received: {key}={config[key]!r}, {name}={size}"
                )
