"""The position-wise network and the residual wrapper of one sub-layer.

Letters: B batch, T time, C channels, n new positions of a step.
"""

import inspect
from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    LayerOptions,
    SequenceLayer,
    by_rows,
    copied,
    zero_masked,
)
from keras_seqconv.layers.short_conv import make_canon
from keras_seqconv.ops.fused import add_and_norm, layer_norm
from keras_seqconv.support.arguments import check_keys, check_number


@keras.saving.register_keras_serializable(package="keras_seqconv")
class FeedForward(SequenceLayer):
    """Position-wise network: two linear maps with an activation between them.

        outputs = dropout(activation(x W1 + b1)) W2 + b2

    (Vaswani et al. 2017, Attention Is All You Need, section 3.3, with ReLU; fairseq
    `fc1`, `fc2`.)

    Args:
        intermediate_dim: channels between the two maps.
        activation: name or function, applied elementwise.
        dropout: rate of the dropout after the activation, `activation_dropout` or
            `relu_dropout` of the papers.
        kernel_initializer: for both kernels; biases start at zero.
        seed: seed of the dropout.
        kernel_regularizer, kernel_constraint: for both kernels.
        use_bias: whether both maps have biases.
        canon: padding, "causal" or "same", of a Canon layer between the first map and
            the activation (Canon-D, see `make_canon`); None for none.

    Call arguments:
        inputs: tensor (..., C); the outputs have the same shape.
        mask, training: see `layers.sequences`.
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation="relu",
        dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        kernel_regularizer=None,
        kernel_constraint=None,
        use_bias: bool = True,
        canon: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self.canon_layer = canon and make_canon(canon, self.dtype_policy)
        self.activation = keras.activations.get(activation)
        if self.kernel_initializer is None:
            raise ValueError(
                "`kernel_initializer` must be an initializer. "
                "Received: kernel_initializer=None"
            )
        self._seed_dropout(dropout)

    def build(self, inputs_shape):
        width = self._accept(inputs_shape, ndim=None)
        first, second = (copied(self.kernel_initializer) for _ in range(2))
        self.intermediate_dense = self._dense(
            "intermediate_dense",
            inputs_shape,
            self.intermediate_dim,
            first,
            activation=None if self.canon_layer else self.activation,
        )
        hidden_shape = (*inputs_shape[:-1], self.intermediate_dim)
        if self.canon_layer:
            self.canon_layer.build(hidden_shape)
        self.output_dense = self._dense("output_dense", hidden_shape, width, second)

    def call(self, inputs, mask=None, training=None):
        inputs = zero_masked(inputs, mask)

        def output_map(rows):
            return self.output_dense(self._dropped(rows, self.dropout, training))

        if self.canon_layer is None:
            return by_rows(
                lambda rows: output_map(self.intermediate_dense(rows)), inputs
            )
        hidden = by_rows(self.intermediate_dense, inputs)
        hidden = self.activation(self.canon_layer(hidden, mask=mask))
        return by_rows(output_map, hidden)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """Returns the state of the Canon layer, or an empty one."""
        if self.canon_layer is None:
            return {}
        return self.canon_layer.get_initial_state(batch_size)

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) for new positions (B, n, C), and the next state."""
        if self.canon_layer is None:
            self._check_step(inputs, state, {})
            return self.call(inputs), state
        self._check_step(inputs)
        inputs = ops.cast(inputs, self.compute_dtype)
        hidden = by_rows(self.intermediate_dense, inputs)
        hidden, state = self.canon_layer.step(hidden, state)
        return by_rows(self.output_dense, self.activation(hidden)), state

    def get_config(self) -> dict:
        activation = keras.activations.serialize(self.activation)
        return {**super().get_config(), "activation": activation}


@keras.saving.register_keras_serializable(package="keras_seqconv")
class Residual(SequenceLayer):
    """Wraps a sub-layer with dropout, residual connection and layer normalization.

        normalize_first=False:  outputs = LN(x + dropout(layer(x)))
        normalize_first=True:   outputs = x + dropout(layer(LN(x)))

    (Post-norm of Vaswani et al. 2017, Attention Is All You Need, section 5.4, and
    pre-norm, `normalize_before` of fairseq.)

    Args:
        layer: the sub-layer; its outputs must have the shape of its inputs.
        dropout: rate of the dropout on the outputs of `layer`.
        normalize_first: pre-norm instead of post-norm.
        epsilon: added to the variance in the normalization.
        seed: seed of the dropout.
        canon: padding, "causal" or "same", of a Canon layer in front of `layer`, see
            `make_canon`; None for none.

    Call arguments:
        inputs, mask, training: see `layers.sequences`, also for steps.
        value, key, value_mask, key_mask, attention_mask, inputs_mask: see
            `MultiHeadAttention`.

    Masks and `training` are passed if the `call` of the wrapped layer names them, so
    one loop can call all sub-layers of a block.

    Raises:
        ValueError: `value`, `key` or `attention_mask` is given and `layer` does not
            take it, or, in `build`, `layer` changes the shape.

    Example:

    ```python
    attention = keras_seqconv.layers.MultiHeadAttention(num_heads=8)
    layer = keras_seqconv.layers.Residual(attention, dropout=0.1)
    outputs = layer(keras.ops.ones((2, 7, 512)), value=keras.ops.ones((2, 9, 512)))
    ```
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        dropout: float = 0.0,
        normalize_first: bool = False,
        epsilon: float = 1e-5,
        seed: int | None = None,
        canon: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self.canon_layer = canon and make_canon(canon, self.dtype_policy)
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                f"`layer` must be a Keras layer. Received: layer={layer!r}"
            )
        check_number("epsilon", epsilon, gt=0)
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=epsilon, dtype=self.dtype_policy, name="layer_norm"
        )
        self._seed_dropout(dropout)

    def build(self, inputs_shape, value_shape=None, key_shape=None):
        self._accept(inputs_shape, ndim=None)
        dtype = self.compute_dtype
        shapes = {"value_shape": value_shape, "key_shape": key_shape}
        if not self.layer.built:
            self.layer.build(inputs_shape, **accepted(self.layer.build, shapes))
        specs = {
            name.removesuffix("_shape"): keras.KerasTensor(shape, dtype)
            for name, shape in shapes.items()
            if shape is not None
        }
        outputs = self.layer.compute_output_spec(
            keras.KerasTensor(inputs_shape, dtype), **accepted(self.layer.call, specs)
        )
        if len(outputs.shape) != len(inputs_shape) or any(
            None not in (first, second) and first != second
            for first, second in zip(outputs.shape, inputs_shape, strict=True)
        ):
            raise ValueError(
                "`layer` must keep the shape of its inputs. Received: "
                f"inputs.shape={tuple(inputs_shape)}, outputs of {self.layer.name} "
                f"with shape {tuple(outputs.shape)}"
            )
        self.further_widths = getattr(self.layer, "further_widths", {})
        self.layer_norm.build(inputs_shape)
        if self.canon_layer:
            self.canon_layer.build(inputs_shape)

    def call(
        self,
        inputs,
        value=None,
        key=None,
        mask=None,
        value_mask=None,
        attention_mask=None,
        training=None,
        inputs_mask=None,
        key_mask=None,
    ):
        mask = inputs_mask if mask is None else mask
        inputs = zero_masked(inputs, mask)
        # What a caller chose must be seen; the rest is left out where it is not taken.
        chosen = {"value": value, "key": key, "attention_mask": attention_mask}
        further = {"mask": mask, "value_mask": value_mask, "key_mask": key_mask}
        further["training"] = training
        taken = accepted(self.layer.call, chosen | further)
        for name, argument in chosen.items():
            if argument is not None and name not in taken:
                raise ValueError(
                    f"`{name}` cannot be passed on: {type(self.layer).__name__} does "
                    f"not take it. Received: {name} of shape {tuple(argument.shape)}"
                )

        def sublayer(x):
            if self.canon_layer:
                x = self.canon_layer(x, mask=mask)
            return self.layer(x, **taken)

        return self._surround(inputs, sublayer, training)

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """The state of the wrapped layer; with a Canon layer also its last inputs."""
        if not hasattr(self.layer, "step"):
            raise ValueError(
                "`layer` must have `get_initial_state` and `step`, as layers of this "
                f"package do. Received: {type(self.layer).__name__}"
            )
        state = self.layer.get_initial_state(batch_size, max_length=max_length)
        if self.canon_layer:
            canon = self.canon_layer.get_initial_state(batch_size)
            state = {"canon": canon["inputs"], **state}
        return state

    def step(self, inputs, state: dict) -> tuple:
        """Outputs (B, n, C) of n new positions, and the next state."""
        self._check_step(inputs)

        def step(x):
            nonlocal state
            if self.canon_layer is None:
                outputs, state = self.layer.step(x, state)
                return outputs
            rest = dict(state) if isinstance(state, dict) else {}
            if "canon" not in rest:
                check_keys("state", state, self.get_initial_state(1, max_length=1))
            x, canon = self.canon_layer.step(x, {"inputs": rest.pop("canon")})
            outputs, rest = self.layer.step(x, rest)
            state = {"canon": canon["inputs"], **rest}
            return outputs

        return self._surround(ops.cast(inputs, self.compute_dtype), step), state

    def attend(self, inputs, memory: dict, num_beams=None):
        """Incremental cross-attention around `MultiHeadAttention.attend`."""
        self._forbid_canon()
        return self._surround(
            ops.cast(inputs, self.compute_dtype),
            lambda x: self.layer.attend(x, memory, num_beams),
        )

    def memory_weights(self, inputs, memory: dict):
        """The probabilities that `attend` uses, as the wrapped layer returns them."""
        self._forbid_canon()
        x = ops.cast(inputs, self.compute_dtype)
        x = self._normalized(x) if self.normalize_first else x
        return self.layer.memory_weights(x, memory)

    def _forbid_canon(self):
        if self.canon_layer:
            raise ValueError(
                "`canon` must be None for `attend` and `memory_weights`, which keep no "
                f"earlier inputs. Received: canon={self.canon!r}"
            )

    def _normalized(self, inputs):
        """The call of `layer_norm`, in fewer operations."""
        norm = self.layer_norm
        return layer_norm(inputs, norm.gamma, norm.beta, self.epsilon)

    def _surround(self, inputs, sublayer, training=False):
        """Residual connection, dropout and normalization around `sublayer`."""
        outputs = sublayer(self._normalized(inputs) if self.normalize_first else inputs)
        outputs = ops.cast(outputs, self.compute_dtype)
        if training and not self.normalize_first:
            return add_and_norm(
                inputs,
                outputs,
                self.layer_norm.gamma,
                self.layer_norm.beta,
                rate=self.dropout,
                seed=self.seed_generator.next() if self.dropout > 0 else (0, 0),
                epsilon=self.epsilon,
            )
        outputs = inputs + self._dropped(outputs, self.dropout, training)
        return outputs if self.normalize_first else self._normalized(outputs)


def accepted(function, arguments):
    """Selects the given arguments that a function names."""
    names = inspect.signature(function).parameters
    return {
        name: argument
        for name, argument in arguments.items()
        if argument is not None and name in names
    }
