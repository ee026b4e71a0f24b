"""Updates from the sums of token losses: micro-batches, replicas, clipping."""

import contextlib
import functools
import warnings

import keras
from keras import ops

from keras_seqconv.support import tf
from keras_seqconv.support.arguments import check_integer


def _of_inner(name: str) -> property:
    """A setting of the optimizer inside; the base class sets its own before there is
    one."""

    def set_(self, value):
        if hasattr(self, "optimizer"):
            setattr(self.inner_optimizer, name, value)

    return property(lambda self: getattr(self.inner_optimizer, name), set_)


@keras.saving.register_keras_serializable(package="keras_seqconv")
class TokenNormalized(keras.optimizers.Optimizer):
    """Wraps an optimizer so that every target token has the same weight.

        g = sum of the gradients of all token losses / number of target tokens

    over all micro-batches and all replicas of an update, as in fairseq. The optimizer's
    `global_clipnorm` c clips the result: g min(1, c / (norm(g) + 1e-6)). Keras itself
    divides within each micro-batch and replica, so tokens of short batches have larger
    weights; it clips within each replica; and its schedules count micro-batches.

    Micro-batches may have any shapes, also without a token. An update without any
    token changes nothing and is not counted. `iterations` counts updates, and schedules
    are evaluated once for each. The scale of a `keras.optimizers.LossScaleOptimizer`
    changes between updates only; an update with infinite gradients is skipped and
    forgotten with all of its micro-batches.

    `SequenceModel.compile` wraps its optimizer in this one. A custom training loop
    passes the gradients of `scale_loss(sum of token losses)` to `apply_sums`, on JAX to
    `stateless_apply_sums`.

    `MirroredStrategy`: create model and optimizer, and call `compile`, in its scope.
    Gradients are summed over replicas once for each update (one strategy for the
    whole process: TensorFlow mixes up the sums of a second one).
    JAX: `keras.distribution`, see `keras_seqconv.models.SequenceModel`.

    Args:
        optimizer: a Keras optimizer, or its name.
        gradient_accumulation_steps: micro-batches of an update. 1 takes no memory.
        name: name of the optimizer.

    Raises:
        ValueError: in `build`: layers are quantized to float8, or `optimizer` was built
            without some of the variables.

    Attributes: `last_learning_rate`, `last_gradient_norm`: scalar variables of the last
    update, with the norm before clipping (infinite if the update was skipped).
    """

    def __init__(self, optimizer, gradient_accumulation_steps: int = 1, name=None):
        optimizer = keras.optimizers.get(optimizer)
        check_integer("gradient_accumulation_steps", gradient_accumulation_steps, 1)
        super().__init__(learning_rate=0.0, name=name)
        self.optimizer = optimizer
        self.accumulation_steps = gradient_accumulation_steps
        if isinstance(self.inner_optimizer, keras.optimizers.MultiOptimizer):
            raise ValueError(
                "`optimizer` must have one learning rate and one norm to clip: a "
                "MultiOptimizer has those of each optimizer inside. "
                f"Received: optimizer={self.inner_optimizer.name!r}"
            )
        # The first scale of a `LossScaleOptimizer` is meant for means, not for sums.
        self._constant_scale = 1.0 if optimizer is self.inner_optimizer else 2.0**-12
        if steps := self.inner_optimizer.gradient_accumulation_steps:
            raise ValueError(
                "`optimizer` must not accumulate gradients itself, give "
                "`gradient_accumulation_steps` to TokenNormalized or to "
                "`SequenceModel.compile`. Received: an optimizer with "
                f"gradient_accumulation_steps={steps}"
            )

    # What users of Keras read and set between `compile` and `fit`.
    weight_decay, clipnorm, clipvalue, global_clipnorm = map(
        _of_inner, ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")
    )

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    @property
    def inner_optimizer(self):
        """The optimizer itself, also in a `LossScaleOptimizer`; callbacks read it."""
        return getattr(self.optimizer, "inner_optimizer", self.optimizer)

    def build(self, variables):
        if self.inner_optimizer.built:
            indices = self.inner_optimizer._trainable_variables_indices
            if new := [v for v in variables if self._var_key(v) not in indices]:
                raise ValueError(
                    "The optimizer was built for other variables: `compile` again, "
                    "with a new optimizer, to train what was frozen or added since. "
                    f"Received: {len(new)} new variables, such as {new[0].path}"
                )
            # What is frozen by now goes without a gradient.
            variables = self.inner_optimizer._trainable_variables
        if any(getattr(v, "overwrite_with_gradient", False) for v in variables):
            raise ValueError(
                "TokenNormalized makes means of gradients, and so cannot train layers "
                "quantized to float8, whose scales Keras takes from gradients as they "
                "are. Received: a quantized model"
            )
        if self.built:
            return
        if not self.optimizer.built:
            self.optimizer.build(variables)

        def same_everywhere(dtype, name):
            return self.add_variable(
                (), dtype=dtype, aggregation="only_first_replica", name=name
            )

        def sums(shape, name, aggregation="sum"):  # of each replica
            return keras.Variable(
                "zeros",
                shape=shape,
                dtype="float32",
                trainable=False,
                aggregation=aggregation,
                synchronization="on_read",
                name=name,
            )

        for name in ("last_learning_rate", "last_gradient_norm"):
            setattr(self, name, same_everywhere("float32", name))
        if self.accumulation_steps > 1:
            self.micro_batch = same_everywhere("int32", "micro_batch")
            self.accumulators = [
                sums((), "accumulated_tokens", "mean"),  # of all replicas
                *(
                    sums(v.shape, f"{v.path.replace('/', '_')}_accumulator")
                    for v in variables
                ),
            ]
        super().build(variables)

    @property
    def variables(self):
        return super().variables + self.optimizer.variables

    @property
    def iterations(self):
        return self.optimizer.iterations

    @property
    def learning_rate(self):
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def apply(self, grads, trainable_variables=None):
        raise ValueError(
            "TokenNormalized takes sums over tokens, and Keras' own models give means: "
            "compile a model of `keras_seqconv.models` with it, or call `apply_sums` "
            "in a training loop of one's own. Received: means, in `apply`"
        )

    def scale_loss(self, loss):
        """Scales a sum of token losses for `apply_sums`."""
        return self.optimizer.scale_loss(loss * self._constant_scale)

    # --- An update ---

    def apply_sums(self, gradients, tokens, trainable_variables=None) -> None:
        """Adds a micro-batch, and updates the weights after the last of an update.

        Args:
            gradients: of `scale_loss(loss)` by each variable, where `loss` is a sum
                over the tokens of this replica.
            tokens: their number, a scalar.
            trainable_variables: of the gradients, in any order; by default those that
                the optimizer was built for, but for frozen ones.

        Raises:
            ValueError: the numbers of gradients and variables differ, or a variable is
                unknown; or the backend is JAX.
        """
        if keras.backend.backend() == "jax":
            raise ValueError(
                "On JAX `stateless_apply_sums` takes the place of `apply_sums`."
            )
        if not self.built:
            self.build(trainable_variables)
        gradients = self._all_gradients(gradients, trainable_variables)
        replica = tf.distribute.get_replica_context()
        tokens = _over_replicas([ops.cast(tokens, "float32")])
        sums = [*tokens, *(dense(g, "float32") for g in gradients)]

        def across_replicas(strategy, *sums):
            """TensorFlow allows no condition around sums over replicas in a replica."""

            def on_replicas(function):
                strategy.extended.call_for_each_replica(function, args=sums)

            all_tokens = strategy.experimental_local_results(sums[0])[0]
            self._add_micro_batch(on_replicas, all_tokens)

        replica.merge_call(across_replicas, args=tuple(sums))

    def stateless_apply_sums(
        self, optimizer_variables, gradients, tokens, trainable_variables
    ) -> tuple:
        """`apply_sums` for JAX: from values of `self.variables` and of the weights to
        new ones, `(trainable_variables, optimizer_variables)`."""
        trained = [v for v in self._trainable_variables if v.trainable]
        variables = [*trained, *self.variables]
        gradients = self._all_gradients(gradients)
        values = [*trainable_variables, *optimizer_variables]
        pairs = list(zip(variables, values, strict=True))
        tokens = ops.cast(tokens, "float32")

        def on_values(function):
            with keras.StatelessScope(state_mapping=pairs) as scope:
                function(tokens, *gradients)
            return [
                ops.convert_to_tensor(scope.get_current_value(v)) for v in variables
            ]

        with keras.StatelessScope(state_mapping=pairs):
            values = self._add_micro_batch(on_values, tokens)
        count = len(trainable_variables)
        return values[:count], values[count:]

    def _all_gradients(self, gradients, given=None):
        """Gradients of all variables: zeros for frozen ones and for None."""
        variables, gradients = self._trainable_variables, [*gradients]
        given = [v for v in variables if v.trainable] if given is None else [*given]
        if len(gradients) != len(given):
            raise ValueError(
                f"`gradients` must be of {len(given)} variables. "
                f"Received: {len(gradients)} gradients"
            )
        self._check_variables_are_known(given)
        by_variable = dict(zip(map(self._var_key, given), gradients, strict=True))
        gradients = (by_variable.get(self._var_key(v)) for v in variables)
        pairs = zip(gradients, variables, strict=True)
        return [ops.zeros(v.shape) if g is None else g for g, v in pairs]

    def _add_micro_batch(self, call, tokens):
        """Accumulates a micro-batch, or updates the weights with it.

        `call(function)` calls `function(tokens, *gradients)` in each replica, with the
        tokens of all replicas and its own sums of gradients.
        """
        with _without_clipping_and_reduction(self.inner_optimizer) as limit:
            update = functools.partial(call, functools.partial(self._update, limit))
            clear = functools.partial(call, self._clear)
            if self.accumulation_steps == 1:
                return ops.cond(tokens > 0, update, clear)
            total = tokens + ops.convert_to_tensor(self.accumulators[0])
            return ops.cond(
                self.micro_batch >= self.accumulation_steps - 1,
                lambda: ops.cond(total > 0, update, clear),
                functools.partial(call, self._accumulate),
            )

    def _accumulate(self, *sums):
        for total, value in zip(self.accumulators, sums, strict=True):
            self.assign_add(total, value)
        self.assign_add(self.micro_batch, 1)

    def _clear(self, *sums):
        if self.accumulation_steps > 1:
            for variable in (*self.accumulators, self.micro_batch):
                self.assign(variable, ops.zeros(variable.shape, variable.dtype))

    def _update(self, limit, *sums):
        """Sums over all tokens to clipped means, still scaled, and these to weights.

        One factor for division and clipping: one pass. Sets the values for the logs.
        """
        if self.accumulation_steps > 1:
            pairs = zip(sums, self.accumulators, strict=True)
            sums = [value + total for value, total in pairs]
        tokens, *gradients = sums
        gradients = _over_replicas(gradients)
        squares = [_sum_of_squares(gradient) for gradient in gradients]
        scale = self.scale_loss(ops.ones((), "float32"))
        norm = ops.sqrt(ops.sum(ops.stack(squares))) / (tokens * scale)
        factor = 1 / (tokens * self._constant_scale)
        if limit:
            factor *= ops.minimum(1.0, limit / (norm + 1e-6))
        self.last_learning_rate.assign(ops.cast(self.learning_rate, "float32"))
        self.last_gradient_norm.assign(norm)
        self._clear()
        inner, weights = self.optimizer, self._trainable_variables
        pairs = list(zip(gradients, weights, strict=True))
        if keras.backend.backend() == "tensorflow":
            inner.apply_gradients([(g * factor, v) for g, v in pairs if v.trainable])
            return
        # None and any value for what is frozen: Keras leaves it alone, with a warning.
        means = [g * factor if v.trainable else None for g, v in pairs]
        values = [v.value if v.trainable else ops.zeros(v.shape) for v in weights]
        state = [variable.value for variable in inner.variables]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            values = inner.stateless_apply(state, means, values)
        kept = {id(average) for v, average in self._averages() if not v.trainable}
        for old, new in zip((weights, inner.variables), values, strict=True):
            for variable, value in zip(old, new, strict=True):
                if id(variable) not in kept:
                    variable.assign(value)

    def finalize_variable_values(self, var_list):
        """Sets weights to their moving averages (`use_ema`), but for frozen ones.

        Keras takes `var_list` for all variables that the optimizer was built for.
        """
        for variable, average in self._averages():
            if variable.trainable:
                # A copy: JAX donates the buffers of both to the next update.
                variable.assign(ops.copy(average))

    def _averages(self) -> list[tuple]:
        """Weights and their moving averages; none without `use_ema`."""
        inner = self.inner_optimizer
        if not inner.use_ema:
            return []
        averages = inner._model_variables_moving_average
        return [*zip(self._trainable_variables, averages, strict=True)]

    # --- Saving ---

    # Keras saves the inner optimizer separately.
    def save_own_variables(self, store):
        for index, variable in enumerate(super().variables):
            store[str(index)] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store):
        own = super().variables
        if len(store.keys()) != len(own):
            warnings.warn(
                f"The state of the optimizer was not loaded: it has {len(own)} "
                f"variables, and {len(store.keys())} were saved.",
                stacklevel=2,
            )
            return
        for index, variable in enumerate(own):
            variable.assign(store[str(index)])

    def get_config(self) -> dict:
        return {
            "name": self.name,
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "gradient_accumulation_steps": self.accumulation_steps,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        optimizer = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return cls(**{**config, "optimizer": optimizer})


@contextlib.contextmanager
def _without_clipping_and_reduction(optimizer):
    """Keeps an optimizer from clipping and from summing over replicas once more.

    Yields the norm to which it would have clipped. Keras has no option for the latter.
    """
    limit, optimizer.global_clipnorm = optimizer.global_clipnorm, None
    optimizer._all_reduce_sum_gradients = lambda pairs: pairs
    try:
        yield limit
    finally:
        optimizer.global_clipnorm = limit
        del optimizer._all_reduce_sum_gradients


def _over_replicas(values: list) -> list:
    """Sums over the replicas of TensorFlow; on JAX, values are of all devices."""
    if keras.backend.backend() != "tensorflow":
        return values
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return values
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)


def dense(gradient, dtype):
    """A tensor, also of the gradient of an embedding."""
    if keras.backend.backend() == "tensorflow":
        gradient = tf.convert_to_tensor(gradient)
    return ops.cast(gradient, dtype)


def _sum_of_squares(values):
    """Sum of squares, in one pass on TensorFlow."""
    if keras.backend.backend() == "tensorflow":
        return 2 * tf.nn.l2_loss(values)
    return ops.sum(ops.square(values))
