"""What all models of the package have in common: special ids, configuration, scores."""

import json

import keras
from keras import ops

from keras_seqconv.metrics import TokenMetrics
from keras_seqconv.models import training_step
from keras_seqconv.support.arguments import check_positive_integer


class SequenceModel(keras.Model):
    """A functional model that is described by the arguments of its constructor.

    Sub-classes make their layers and the graph, and then call this constructor. They
    offer, beside the full pass of the graph, `get_initial_state` and `step`, which is
    all that a search (`keras_seqconv.decoding`) needs to know of a model:

        state = {"common": what is the same for all sentences, never changed,
                 "shared": rows of sentences, never copied for beams,
                 "beams": rows of all beams, those of one sentence adjacent;
                          leaves of rank 0 count something common to all rows}
        logits (rows, V), state = model.step(ids (rows, n), state)

    Attributes: `pad_id`, `start_id`, `end_id`, `unk_id`: ids of the vocabulary with a
    meaning, those of fairseq by default (1, 2, 2, 3; decoding starts from the end
    token). `target_vocabulary_size`. `max_target_length`: most positions a target can
    have, or None.

    Training: `compile` and Keras' `fit` and `evaluate`, on data of inputs as of the
    model and labels (B, T), the target ids one position later. Loss, gradients and
    metrics are sums over target tokens divided by their number, over all micro-batches
    and replicas of an update, whatever the batches' shapes. Logs: `loss` (nats per
    token), `nll` and `perplexity` without label smoothing, `accuracy` (not with an
    adaptive softmax), `tokens` (since the start of the epoch), and when training
    `learning_rate` and `gradient_norm` (before clipping) of the last update.

    Several GPUs: on TensorFlow create and compile the model in the scope of a
    `tf.distribute.MirroredStrategy`; `fit` splits each batch by rows. Several
    processes or hosts: on JAX, before anything else,

        keras.distribution.initialize(addresses, num_processes, process_id)
        devices = keras.distribution.list_devices()
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
        )

    and give `fit` in each process its share of the rows of every batch. (CPUs also need
    `jax.config.update("jax_cpu_collectives_implementation", "gloo")`.)
    `tf.distribute.MultiWorkerMirroredStrategy` does not work with `fit` of Keras 3: use
    JAX as above.
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
        self._config = json.dumps(config, default=keras.saving.get_registered_name)
        for key in ("pad_id", "start_id", "end_id", "unk_id"):
            setattr(self, key, config[key])

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        metrics=None,
        *,
        gradient_accumulation_steps: int | None = None,
        weighted_metrics=None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Prepare `fit` and `evaluate`.

        Args:
            optimizer: Keras optimizer or its name; it is wrapped by
                `keras_seqconv.optimizers.TokenNormalized` unless it is one.
            loss: `keras_seqconv.losses.LabelSmoothedCrossentropy`; None for the mean
                of -log_prob, which is the choice with an adaptive softmax; another
                Keras loss or function of (labels, outputs) that returns a number for
                each token, (B, T), or the sum of them.
            metrics, weighted_metrics: further metrics, as of Keras; they see padding.
            gradient_accumulation_steps: micro-batches of an update. Those of an
                unfinished update wait for the next epoch.
            run_eagerly, steps_per_execution, jit_compile, auto_scale_loss: as of Keras.

        Raises:
            ValueError: for arguments outside these rules.
        """
        scale = auto_scale_loss and self.dtype_policy.name == "mixed_float16"
        config = {
            "optimizer": training_step.wrapped_optimizer(
                optimizer, gradient_accumulation_steps, scale
            ),
            "loss": loss,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
            "auto_scale_loss": auto_scale_loss,
        }
        super().compile(
            config["optimizer"],
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=False,
        )
        self.training = training_step.Training(
            loss=training_step.checked_loss(loss, self.has_logits, self.pad_id),
            metrics=TokenMetrics(self.pad_id, has_accuracy=self.has_logits),
            config=config,
        )
        self.optimizer.build(self.trainable_variables)

    def get_compile_config(self) -> dict:
        if not self.compiled:
            return {}
        return keras.saving.serialize_keras_object(self.training.config)

    def compile_from_config(self, config) -> None:
        config = keras.saving.deserialize_keras_object(config)
        config.pop("r_drop", None)  # of earlier versions
        self.compile(**config)

    @property
    def has_logits(self) -> bool:
        """Whether the outputs are logits, not features for an adaptive softmax."""
        return getattr(self, "adaptive_softmax", None) is None

    def train_step(self, *arguments):
        """`train_step(data)`, on JAX `train_step(state, data)`, as Keras calls it."""
        if keras.backend.backend() == "jax":
            return training_step.train_on_jax(self, *arguments)
        return training_step.train_on_tensorflow(self, *arguments)

    def test_step(self, *arguments):
        """`test_step(data)`, on JAX `test_step(state, data)`, as Keras calls it."""
        if keras.backend.backend() == "jax":
            return training_step.test_on_jax(self, *arguments)
        return training_step.test_on_tensorflow(self, *arguments)

    @property
    def metrics(self) -> list:
        found = super().metrics
        return [*found, self.training.metrics] if self.compiled else found

    def log_prob(self, outputs, ids, training: bool | None = None):
        """Natural log-probabilities of ids, given the outputs of a call.

        Args:
            outputs: logits (B, T, V), as returned by the model.
            ids: integers (B, T).
            training: has a meaning for models with an adaptive softmax only.

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
