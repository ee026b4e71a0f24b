"""Training in which every target token counts the same: the model class, its steps.

Letters: B sentences, T target time, V vocabulary.
"""

import functools
import inspect
import types
from collections.abc import Callable

import keras
from keras import ops

from keras_seqconv.layers.sequences import zero_masked
from keras_seqconv.losses import LabelSmoothedCrossentropy, token_weights
from keras_seqconv.metrics import TokenMetrics
from keras_seqconv.optimizers import TokenNormalized
from keras_seqconv.support import jax, tf
from keras_seqconv.support.arguments import check_ids


def wrapped_optimizer(optimizer, steps: int | None, scale: bool) -> TokenNormalized:
    """`optimizer` as a `TokenNormalized` one.

    `steps`: micro-batches of an update, or None: 1 unless the optimizer says more.
    `scale`: the model needs a `LossScaleOptimizer`.
    """
    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, TokenNormalized):
        if steps not in (None, optimizer.accumulation_steps):
            raise ValueError(
                "`gradient_accumulation_steps` must be left out with an optimizer "
                "TokenNormalized, which has its own. Received: "
                f"gradient_accumulation_steps={steps!r}, and "
                f"{optimizer.accumulation_steps} of the optimizer"
            )
        if not scale or optimizer.optimizer is not optimizer.inner_optimizer:
            return optimizer
        optimizer, steps = optimizer.optimizer, optimizer.accumulation_steps
    if scale and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return TokenNormalized(optimizer, 1 if steps is None else steps)


def checked_loss(loss, model):
    """`loss` as a callable, None for `log_prob`; ValueError where it cannot be."""
    if loss is None:
        plain = LabelSmoothedCrossentropy(0.0, pad_id=model.pad_id)
        return plain if model.has_logits else None
    loss = keras.losses.get(loss)
    check_ids("loss", loss, model)
    if isinstance(loss, LabelSmoothedCrossentropy) and not model.has_logits:
        raise ValueError(
            "`loss` must be None for a model with an adaptive softmax, which returns "
            f"no logits to smooth. Received: loss={loss!r}"
        )
    return loss


def without_class_weight(method: Callable) -> Callable:
    """A method of Keras' model that refuses `class_weight`.

    Keras makes a weight of each row from it, the label being the largest entry of the
    row: labels (B, T) it takes for one-hot.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(*args, **options):
        arguments = signature.bind(*args, **options).arguments
        if arguments.get("class_weight") is not None:
            raise ValueError(
                "`class_weight` is for one label of a row, not for the labels (B, T) "
                "of a sequence: give `sample_weight`, (B,) or (B, T). Received: "
                f"class_weight={arguments['class_weight']!r}"
            )
        return method(*args, **options)

    return checked


# --- TensorFlow: step(model, data) -> logs ---


def _train_on_tensorflow(model, data) -> dict:
    """A micro-batch: gradients into the optimizer, sums into the metrics; the logs."""
    inputs, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        objective, sums, outputs = _token_sums(model, inputs, labels, weight, True)
        objective = model.optimizer.scale_loss(objective)
    variables = model.trainable_variables
    gradients = tape.gradient(objective, variables)
    model.optimizer.apply_sums(gradients, sums[3], variables)
    logs = _logs_on_tensorflow(model, inputs, labels, weight, outputs, sums)
    return {**logs, **_update_logs(model)}


def _test_on_tensorflow(model, data) -> dict:
    inputs, labels, weight = keras.utils.unpack_x_y_sample_weight(data)
    _, sums, outputs = _token_sums(model, inputs, labels, weight, False)
    return _logs_on_tensorflow(model, inputs, labels, weight, outputs, sums)


def _logs_on_tensorflow(model, inputs, labels, weight, outputs, sums):
    metrics = model.training.metrics
    metrics.add(sums)
    logs = model.compute_metrics(inputs, labels, outputs, weight)
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync > 1:
        # Each replica sees its own sums only; Keras takes the mean of their logs.
        totals = tf.convert_to_tensor(metrics.totals.value)
        totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, totals)
        logs |= metrics.results_of(totals)
    return logs


# --- JAX: step(model, state, data) -> logs, state ---


def _train_on_jax(model, state: tuple, data) -> tuple:
    weights, non_trainable, optimizer_values, metric_values = state
    inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    optimizer = model.optimizer

    def objective_of(weights):
        with _scope(
            (model.trainable_variables, weights),
            (model.non_trainable_variables, non_trainable),
            (optimizer.variables, optimizer_values),
            collect_losses=True,
        ) as scope:
            objective, *results = _token_sums(
                model, inputs, labels, sample_weight, True
            )
            objective = optimizer.scale_loss(objective)
        return objective, (*results, _values(scope, model.non_trainable_variables))

    differentiated = jax.value_and_grad(objective_of, has_aux=True)
    (_, (sums, outputs, non_trainable)), gradients = differentiated(weights)
    weights, optimizer_values = optimizer.stateless_apply_sums(
        optimizer_values, gradients, sums[3], weights
    )
    with _scope(
        (model.metrics_variables, metric_values),
        (optimizer.variables, optimizer_values),
    ) as scope:
        model.training.metrics.add(sums)
        logs = model.compute_metrics(inputs, labels, outputs, sample_weight)
        logs = {**logs, **_update_logs(model)}
    metric_values = _values(scope, model.metrics_variables)
    return logs, (weights, non_trainable, optimizer_values, metric_values)


def _test_on_jax(model, state: tuple, data) -> tuple:
    weights, non_trainable, metric_values = state
    inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with _scope(
        (model.trainable_variables, weights),
        (model.non_trainable_variables, non_trainable),
        (model.metrics_variables, metric_values),
        collect_losses=True,
    ) as scope:
        _, sums, outputs = _token_sums(model, inputs, labels, sample_weight, False)
        model.training.metrics.add(sums)
        logs = model.compute_metrics(inputs, labels, outputs, sample_weight)
    non_trainable = _values(scope, model.non_trainable_variables)
    return logs, (weights, non_trainable, _values(scope, model.metrics_variables))


def _scope(*states, **options):
    """Scope in which variables have other values: pairs of (variables, values)."""
    pairs = [pair for state in states for pair in zip(*state, strict=True)]
    return keras.StatelessScope(state_mapping=pairs, **options)


def _values(scope, variables):
    return [ops.convert_to_tensor(scope.get_current_value(v)) for v in variables]


if keras.backend.backend() == "jax":
    train_step, test_step = _train_on_jax, _test_on_jax
else:
    train_step, test_step = _train_on_tensorflow, _test_on_tensorflow


# --- Sums over tokens ---


def _update_logs(model):
    return {
        "learning_rate": ops.convert_to_tensor(model.optimizer.last_learning_rate),
        "gradient_norm": ops.convert_to_tensor(model.optimizer.last_gradient_norm),
    }


def _token_sums(model, inputs, labels, sample_weight, training: bool) -> tuple:
    """Call the model and sum over its target tokens.

    Returns:
        The objective, a scalar to be differentiated: the sum of token losses, with
        what layers have added; sums (4,) of loss, nll, correct and tokens without
        gradient; and the outputs.
    """
    outputs = model(inputs, training=training)
    _check_labels(labels, outputs)
    labels = ops.cast(labels, "int32")
    real = ops.not_equal(labels, model.pad_id)
    weight = token_weights(labels, model.pad_id, sample_weight)
    objective, nll, correct = _weighted(
        model, outputs, labels, real, weight, sample_weight is not None, training
    )
    tokens = ops.sum(weight)
    if model.losses:
        # Keras adds these to a mean over tokens.
        added = sum(ops.cast(loss, "float32") for loss in model.losses)
        objective = objective + tokens * added
    sums = ops.stop_gradient(ops.stack([objective, nll, correct, tokens]))
    return objective, sums, outputs


def _check_labels(labels, outputs):
    """ValueError unless they are (B, T), as far as the shapes are known."""
    shape = None if labels is None else tuple(labels.shape)
    if shape is None or len(shape) != 2 or shape[1] != (outputs.shape[1] or shape[1]):
        raise ValueError(
            "Labels must be integers (B, T): `target_ids` one position later, without "
            "the start and with the end. Received: "
            + ("none" if shape is None else f"labels.shape={shape}")
            + f", outputs.shape={tuple(outputs.shape)}"
        )


def _weighted(model, outputs, labels, real, weight, of_samples, training):
    """Weighted sums of loss, nll and correct; `of_samples`: with a `sample_weight`."""
    loss = model.training.loss
    if isinstance(loss, LabelSmoothedCrossentropy):
        losses = loss.token_losses(labels, outputs)
        return tuple(ops.sum(weight * ops.cast(x, "float32")) for x in losses)
    if loss is None:
        total = _nll(model, outputs, labels, real, weight, training)
        return total, ops.stop_gradient(total), ops.zeros(())
    # A custom loss; nll and accuracy cost another pass over the logits.
    call = loss.call if isinstance(loss, keras.losses.Loss) else loss
    values = ops.cast(call(labels, outputs), "float32")
    if len(values.shape) not in ((2,) if of_samples else (0, 2)):
        raise ValueError(
            "`loss` must return one number for each token, (B, T), or the sum of them, "
            "which takes no `sample_weight`. "
            f"Received: a loss of shape {tuple(values.shape)}"
        )
    if len(values.shape) == 2:
        values = ops.sum(ops.where(real, weight * values, 0.0))
    outputs = ops.stop_gradient(outputs)
    if not model.has_logits:
        nll = _nll(model, outputs, labels, real, weight, False)
        return values, nll, ops.zeros(())
    plain = LabelSmoothedCrossentropy(0.0, pad_id=model.pad_id)
    _, of_tokens, correct = plain.token_losses(labels, outputs)
    correct = ops.sum(weight * ops.cast(correct, "float32"))
    return values, ops.sum(weight * of_tokens), correct


def _nll(model, outputs, labels, real, weight, training):
    """Weighted sum of -log_prob where `real`; NaN elsewhere reaches no gradient."""
    # Padding has a label that costs an adaptive softmax no tail.
    labels = ops.where(real, labels, 0)
    log_prob = model.log_prob(zero_masked(outputs, real), labels, training)
    return -ops.sum(weight * ops.where(real, log_prob, 0.0))


# --- The model ---


class TokenTrainedModel(keras.Model):
    """Model whose loss, gradients and metrics are means over target tokens.

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

    Sub-classes have `pad_id`.
    """

    adaptive_softmax = None  # of language models: the outputs are features for it

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        metrics=None,
        *,
        weighted_metrics=None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: str | bool = "auto",
        gradient_accumulation_steps: int | None = None,
        auto_scale_loss: bool = True,
    ) -> None:
        """Configures `fit` and `evaluate`.

        Args:
            optimizer: Keras optimizer or its name, which is wrapped by
                `keras_seqconv.optimizers.TokenNormalized`.
            loss: `keras_seqconv.losses.LabelSmoothedCrossentropy`; None for the mean
                of -log_prob, which is the choice with an adaptive softmax; another
                Keras loss or function of (labels, outputs) that returns a number for
                each token, (B, T), or their sum, which takes no `sample_weight`.
            metrics: further metrics, as in Keras; they see padding.
            gradient_accumulation_steps: micro-batches of an update. An incomplete
                update continues in the next epoch.
            weighted_metrics, run_eagerly, steps_per_execution, jit_compile,
                auto_scale_loss: as in Keras.

        Raises:
            ValueError: an argument breaks these rules; the loss or a metric has
                another `pad_id` (or, of Keras, `ignore_class`) than the model.
        """
        scale = auto_scale_loss and self.dtype_policy.name == "mixed_float16"
        optimizer = wrapped_optimizer(optimizer, gradient_accumulation_steps, scale)
        options = dict(
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
        )
        for metric in keras.tree.flatten([metrics, weighted_metrics]):
            check_ids("metrics", metric, self)
            if isinstance(metric, TokenMetrics) and not self.has_logits:
                raise ValueError(
                    "`metrics` must not need logits for a model with an adaptive "
                    "softmax; `fit` reports its nll and perplexity. "
                    f"Received: {metric!r}"
                )
        super().compile(optimizer, **options, auto_scale_loss=False)
        options |= {
            "optimizer": optimizer, "loss": loss, "auto_scale_loss": auto_scale_loss,
        }  # fmt: skip
        # A record: Keras would track a metric that became an attribute.
        self.training = types.SimpleNamespace(
            loss=checked_loss(loss, self),
            metrics=TokenMetrics(self.pad_id, has_accuracy=self.has_logits),
            config=options,
        )
        self._trained = None

    def get_compile_config(self) -> dict:
        if not self.compiled:
            return {}
        config = keras.saving.serialize_keras_object(self.training.config)
        # Frozen variables may be among those that the optimizer was built for.
        numbers = {id(variable): n for n, variable in enumerate(self.weights)}
        built_for = getattr(self.optimizer, "_trainable_variables", ())
        config["optimizer_variables"] = [
            numbers[id(variable)] for variable in built_for if id(variable) in numbers
        ]
        return config

    def compile_from_config(self, config) -> None:
        config = keras.saving.deserialize_keras_object(config)
        config.pop("loss_weights", None)  # of 0.1.0, without effect
        numbers = config.pop("optimizer_variables", None)  # which 0.1.0 does not have
        self.compile(**config)
        weights = self.weights
        if numbers is None:
            self.optimizer.build(self.trainable_variables)
        elif numbers:
            self.optimizer.build([weights[number] for number in numbers])

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

    fit = without_class_weight(keras.Model.fit)
    train_on_batch = without_class_weight(keras.Model.train_on_batch)
    # As Keras calls them: with the data, on JAX with the state and the data.
    train_step, test_step = train_step, test_step

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
        return _nll(self, outputs, labels, real, 1.0, training)
