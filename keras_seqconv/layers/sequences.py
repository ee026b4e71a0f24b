"""Base classes of the layers, and the contracts of their docstrings.

Letters: B batch, T time, C channels, K taps, n new positions of a step, G beams of a
sentence.

Calls. `layer(inputs, mask=None, training=None)`: `inputs` is a tensor (B, T, C), as
are the outputs unless a docstring says otherwise; `mask` as below; `training` tells
whether to apply dropout and DropConnect.

Masks. A mask is boolean (B, T), or a list of such rows, True for real tokens. Masked
inputs may have any value, also NaN and infinity: every layer sets them to zero first
(`zero_masked`), as if the sequence ended there, so padding on either side changes no
result at a real token and no gradient. Keras passes the masks that it attaches to
tensors (`Embedding(mask_zero=True)`), and outputs carry the mask of `inputs`. Masked
positions of the outputs have no meaning.

NaN and infinity. At an unmasked position they affect only the outputs that depend on
this position, perhaps in all channels. Other sentences are not affected, nor are
earlier positions of a causal layer.

Steps. A causal layer also runs position by position. Any split into chunks gives the
results of the full pass:

    state = layer.get_initial_state(batch_size, max_length=None)
    outputs, state = layer.step(inputs, state)    # (B, n, C) for n >= 1 new positions

`batch_size` is an int or a scalar tensor. `max_length` is the largest number of
positions of all steps, which only some layers need. A state is a dict of tensors in the
compute dtype that keep their shapes: a convolution holds its last K - 1 inputs,
{"inputs": (B, K - 1, C)}, zeros at first. Steps know neither masks nor dropout. Layers
that are not causal or not built, inputs and states of other shapes raise ValueError.

Arguments. Every argument of a constructor is an attribute of the same name; every
layer also takes the arguments of `keras.layers.Layer`: `name`, `dtype`, .... Arguments
that break a rule of their docstring, and shapes that do not fit (the last axis must be
known), raise ValueError.
"""

import contextlib
import contextvars
import inspect
from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

import keras
from keras import ops

from keras_seqconv.ops.compilation import check_export_dtype, leaves_tensorflow
from keras_seqconv.ops.fused import dropout
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_dense,
    check_integer,
    check_kernel_size,
    check_keys,
    check_number,
    check_rate,
    check_sequence,
    check_shape,
    known_width,
    plain,
    refuse_names_of_keras,
)

# What the arguments of constructors may be, as check(name, value).
_RULES = {
    check_boolean: (
        "compat", "final_norm", "folded", "kernel_softmax", "normalize_first",
        "permute_channels", "residual", "share_output_embedding",
        "tie_projections", "use_bias", "use_causal_mask", "use_glu", "use_kernel_bias",
    ),
    lambda name, value: check_integer(name, value, 1): (
        "conv_dim", "dilation_rate", "embedding_dim", "filters", "head_dim",
        "hidden_dim", "intermediate_dim", "max_length", "num_heads", "output_dim",
        "query_dim", "query_groups", "units", "vocabulary_size",
    ),
    lambda name, value: check_integer(name, value): ("seed",),
    check_rate: (
        "activation_dropout", "attention_dropout", "dropout", "input_dropout",
        "weight_dropout",
    ),
    lambda name, value: check_number(name, value, ge=1): ("factor",),
    lambda name, value: check_kernel_size(value): ("kernel_size",),
    lambda name, value: check_choice(name, value, ("same", "causal")): (
        "canon", "padding",
    ),
    lambda name, value: check_choice(name, value, ("shared", "position")): (
        "weight_dropout_mask",
    ),
    lambda name, value: keras.initializers.get(value): (
        "bias_initializer", "embeddings_initializer", "kernel_initializer",
    ),
    lambda name, value: keras.regularizers.get(value): (
        "bias_regularizer", "kernel_regularizer",
    ),
    lambda name, value: keras.constraints.get(value): (
        "bias_constraint", "kernel_constraint",
    ),
}  # fmt: skip
_CHECKS = {name: check for check, names in _RULES.items() for name in names}


def checked(name: str, value):
    """The value of an argument that means the same in every constructor."""
    return _CHECKS[name](name, value) if name in _CHECKS else value


_LOOP_KERNELS = contextvars.ContextVar("loop_kernels", default=None)


@contextlib.contextmanager
def loop_kernels(layers: list, kernels: list) -> Iterator[None]:
    """While active, steps of these layers use these kernels and make none.

    A loop makes the kernels once before it: weight normalization in every step would
    cost more than the products with the few rows of a step.
    """
    token = _LOOP_KERNELS.set(dict(zip(map(id, layers), kernels, strict=True)))
    try:
        yield
    finally:
        _LOOP_KERNELS.reset(token)


def loop_kernel(layer):
    """The kernel of the layer within `loop_kernels`, otherwise None."""
    return (_LOOP_KERNELS.get() or {}).get(id(layer))


class LayerOptions(TypedDict, total=False):
    """Arguments of `keras.layers.Layer`, for type checkers."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any


class PenaltyOptions(LayerOptions, total=False):
    """These, and what applies to the kernel of a base class."""

    kernel_regularizer: Any
    kernel_constraint: Any


class KernelOptions(PenaltyOptions, total=False):
    """These, and arguments of a base class with a kernel."""

    use_bias: bool
    kernel_initializer: Any


def argument_names(layer_class: type) -> list[str]:
    """Arguments of the constructor, also those that its `**kwargs` hand on."""
    names = {}
    for base in layer_class.__mro__:
        if base is keras.layers.Layer:
            break
        parameters = inspect.signature(base.__init__).parameters
        names |= dict.fromkeys(parameters)
        kinds = [parameter.kind for parameter in parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    return [name for name in names if name not in ("self", "kwargs")]


class SequenceLayer(keras.layers.Layer):
    """Base layer that keeps mask and shape; its arguments are its configuration."""

    _partners = {}  # further arguments, and those with the same positions
    _quantized = {}  # what `quantized_layers` gives, to be done after `build`

    def __init__(self, **kwargs: Unpack[LayerOptions]):
        refuse_names_of_keras(kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.further_widths = {}  # of arguments after the first, by name

    def __call__(self, *args, **kwargs):
        check_export_dtype(self.compute_dtype)
        for name, value in kwargs.items():
            if isinstance(value, list) and name.endswith("mask"):
                kwargs[name] = ops.convert_to_tensor(value)  # Keras splits lists
        return super().__call__(*args, **kwargs)

    def _post_build(self):
        super()._post_build()
        quantize_layers(self, self._quantized)
        if not self.trainable:  # as its configuration says; its sub-layers are new
            type(self).trainable.fset(self, False)

    def compute_output_spec(self, *args, **kwargs):
        # A functional model is built of shapes alone: `call` cannot refuse these.
        arguments = inspect.signature(self.call).bind(*args, **kwargs).arguments
        for name, width in self.further_widths.items():
            if arguments.get(name) is not None:
                check_sequence(name, arguments[name].shape, width)
                if (partner := arguments.get(self._partners.get(name))) is not None:
                    check_shape(name, arguments[name], (*partner.shape[:2], None))
        return super().compute_output_spec(*args, **kwargs)

    def _accept(self, shape, ndim: int | None = 3) -> int:
        """The channels of inputs of this shape; calls refuse others from here on.

        Without `ndim` any rank of at least 2 is taken.
        """
        known_width("inputs", shape)
        if ndim == 3:
            check_sequence("inputs", shape)
        self.input_spec = keras.layers.InputSpec(
            ndim=ndim, min_ndim=None if ndim else 2, axes={-1: shape[-1]}
        )
        return shape[-1]

    def _set_arguments(self, arguments: dict) -> None:
        """Makes the arguments of a constructor, its `locals()`, attributes, checked.

        `get_config` returns them. None is allowed where it is the default.
        """
        parameters = inspect.signature(arguments["__class__"].__init__).parameters
        for name, parameter in parameters.items():
            if name in arguments and name not in ("self", "kwargs"):
                value = plain(arguments[name])
                if value is not None or parameter.default is not None:
                    value = checked(name, value)
                setattr(self, name, value)

    def _kernel_options(self, prefix: str = "") -> dict:
        """Arguments of a kernel for `add_weight`, or, with "kernel_", for `Dense`."""
        return {
            f"{prefix}regularizer": self.kernel_regularizer,
            f"{prefix}constraint": self.kernel_constraint,
        }

    def _dense(self, name, inputs_shape, units, kernel_initializer, **options):
        """A `Dense` with the options of this layer."""
        dense = keras.layers.Dense(
            units,
            kernel_initializer=kernel_initializer,
            **{"use_bias": self.use_bias, **options},
            **self._kernel_options("kernel_"),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(inputs_shape)
        return dense

    def _seed_dropout(self, rate, shift: int = 0):
        if rate > 0:
            seed = self.seed
            seed = None if seed is None else (seed + shift) % 2**32  # as JAX has it
            self.seed_generator = keras.random.SeedGenerator(seed)

    def _dropped(self, inputs, rate, training):
        if not training or rate == 0:
            return inputs
        return dropout(inputs, rate, self.seed_generator)

    def _bias_weight(self, shape, initializer="zeros", name="bias", **options):
        """A weight of this shape, or None without `use_bias`."""
        if not self.use_bias:
            return None
        return self.add_weight(shape, initializer, name=name, **options)

    def _add_bias(self, outputs):
        if self.bias is None:
            return outputs
        return outputs + ops.cast(self.bias, self.compute_dtype)

    def _require_built(self):
        if not self.built:
            raise ValueError(
                f"Layer {self.name!r} has no weights yet: call it or its `build` first."
            )

    def _check_step(self, inputs, state=None, shapes=None):
        """ValueError unless a step can take these inputs and, if given, this state.

        `shapes` are those of the state's tensors, with None for B, which comes first,
        and for other sizes that vary. A number for each row, (B,), may be one for all.
        """
        self._require_built()
        check_dense("inputs", inputs)
        check_sequence("inputs", inputs.shape, self.input_spec.axes[-1])
        if shapes is None:
            return
        check_keys("state", state, shapes)
        for name, shape in shapes.items():
            sizes = (inputs.shape[0], *shape[1:]) if shape else ()
            if len(shape) != 1 or getattr(state[name], "shape", None) != ():
                check_shape(f"state[{name!r}]", state[name], sizes)

    @property
    def wide_dtype(self) -> str:
        """The compute dtype, at least float32."""
        return keras.backend.result_type(self.compute_dtype, "float32")

    def compute_output_shape(self, inputs_shape) -> tuple:
        return tuple(inputs_shape)

    def get_config(self) -> dict:
        config = super().get_config()
        for name in argument_names(type(self)):
            if name not in config and hasattr(self, name):
                value = getattr(self, name)
                value = list(value) if isinstance(value, tuple) else value
                config[name] = keras.saving.serialize_keras_object(value)
        quantized = quantized_layers(self) or self._quantized
        return {**config, "quantized": quantized} if quantized else config

    @classmethod
    def from_config(cls, config: dict):
        quantized = config.get("quantized", {})
        config = {k: value for k, value in config.items() if k != "quantized"}
        layer = cls(**keras.saving.deserialize_keras_object(config))
        layer._quantized = quantized
        return layer


class ConvolutionLayer(SequenceLayer):
    """Adds the steps of a convolution, whose state is the last K - 1 inputs.

    Sub-classes set `kernel_size`, `padding` and, in `build`, `channels`.
    """

    dilation_rate = 1

    @property
    def history(self) -> int:
        """(K - 1) D, the number of earlier inputs that an output reaches."""
        return (self.kernel_size - 1) * self.dilation_rate

    def _require_causal(self):
        if self.padding != "causal":
            raise ValueError(
                'Steps need padding="causal": with other padding an output depends on '
                f"inputs that come later. Received: padding={self.padding!r}"
            )
        self._require_built()

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """{"inputs": zeros (B, history, C)}, see `layers.sequences`."""
        self._require_causal()
        shape = (batch_size, *self._state_shapes()["inputs"][1:])
        return {"inputs": ops.zeros(shape, dtype=self.compute_dtype)}

    def _state_shapes(self) -> dict:
        """Shapes of a state's tensors, see `_check_step`."""
        return {"inputs": (None, self.history, self.channels)}

    def _slide(self, inputs, state):
        """The window (B, K - 1 + n, C) that n new outputs reach, and the next state."""
        self._require_causal()
        self._check_step(inputs, state, self._state_shapes())
        inputs = ops.cast(inputs, self.compute_dtype)
        window = ops.concatenate([state["inputs"], inputs], axis=1)
        count = inputs.shape[1]
        if count:
            return window, {"inputs": window[:, count:]}
        # A slice of known size: loops need a state of known shape.
        start = (0, ops.shape(inputs)[1], 0)
        last = ops.slice(window, start, ops.shape(state["inputs"]))
        return window, {"inputs": last}


def quantized_layers(layer) -> dict:
    """Layers inside that Keras quantized: number -> mode, or a serialized config."""
    numbered = enumerate(layer._flatten_layers(include_self=False))
    configs = {
        str(number): getattr(layer, "quantization_config", None)
        for number, layer in numbered
    }
    return {n: _mode_or_config(config) for n, config in configs.items() if config}


def quantize_layers(layer, quantized: dict) -> None:
    """Quantize what `quantized_layers` found, but for layers that were loaded so."""
    layers = layer._flatten_layers(include_self=False)
    for number, config in quantized.items():
        if not getattr(layers[int(number)], "quantization_config", None):
            config = keras.saving.deserialize_keras_object(config)
            layers[int(number)].quantize(config=config)


def _mode_or_config(config):
    """The mode alone, if all else is as Keras has it by default."""
    is_supported = config.mode in ("int8", "int4", "float8")
    if is_supported and _settings(config) == _settings(type(config)()):
        return config.mode
    return keras.saving.serialize_keras_object(config)


def _settings(config):
    quantizers = config.weight_quantizer, config.activation_quantizer
    sizes = getattr(config, "block_size", None)
    return sizes, [quantizer and quantizer.get_config() for quantizer in quantizers]


def copied(initializer):
    """A copy, as one object of Keras gives the same numbers in each call."""
    is_object = isinstance(initializer, keras.initializers.Initializer)
    return initializer.clone() if is_object else initializer


def zero_masked(inputs, mask, name="mask"):
    """inputs (B, T, C) with zeros where mask (B, T), if there is one, is False.

    A selection, not a product, which would leave NaN. Inputs of rank 2 or more than 3
    have a mask of their first axes.
    """
    check_dense("inputs", inputs)
    if mask is None:
        return inputs
    mask = ops.cast(mask, "bool")
    rank = len(inputs.shape)
    sizes = inputs.shape[: min(rank - 1, max(len(mask.shape), 2))]
    mask = checked_mask(name, mask, sizes)
    # Not `mask[..., None]`: LiteRT takes no slice of booleans.
    mask = ops.expand_dims(mask, [*range(len(sizes), rank)])
    return ops.where(mask, inputs, 0.0)


def checked_mask(name, mask, sizes):
    """A mask, also a list, as a boolean tensor of these sizes (or 1); None as it is."""
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    check_shape(name, mask, sizes, (1, None))
    return mask


def by_rows(function, inputs):
    """`function(inputs)` of each position of (B, T, C), as (B, C) if T is known as 1.

    With an unknown B, Keras multiplies tensors of rank 3 by a dozen operations that
    find out shapes, which for the few rows of a step cost more than the product. In
    other runtimes all of them do, so there each T is hidden.
    """
    check_dense("inputs", inputs)
    if len(inputs.shape) != 3 or (inputs.shape[1] != 1 and not leaves_tensorflow()):
        return function(inputs)
    if inputs.shape[1] == 1:
        return ops.expand_dims(function(ops.squeeze(inputs, axis=1)), axis=1)
    outputs = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return split_positions(outputs, inputs, outputs.shape[-1])


def split_positions(flat, inputs, *shape):
    """(B * T, ...) of the positions of inputs (B, T, C) -> (B, T, *shape)."""
    length = inputs.shape[1]
    # -1, so that no operation has to find it out.
    sizes = (-1, length) if length else ops.shape(inputs)[:2]
    return ops.reshape(flat, (*sizes, *shape))


def fold_beams(query, memory, num_beams: int | None = None):
    """(B * G, n, ...) -> (B, G * n, ...): beams become positions of their sentence.

    The G rows of one sentence are adjacent. G is `num_beams`, or follows from the rows
    of `memory` (B, ...), also where shapes are dynamic, and does not matter of an empty
    batch.
    """
    if num_beams and None not in query.shape[1:]:
        _, new, *rest = query.shape
        return ops.reshape(query, (-1, num_beams * new, *rest))
    rows, new, *rest = ops.shape(query)
    sentences = ops.shape(memory)[0]
    if isinstance(rows, int) and rows == sentences:
        return query
    if leaves_tensorflow():  # of a batch that is not empty
        return ops.reshape(query, (sentences, -1, *rest))
    static = isinstance(sentences, int)
    beams = rows // (max(sentences, 1) if static else ops.maximum(sentences, 1))
    return ops.reshape(query, (sentences, beams * new, *rest))


def unfold_beams(outputs, inputs):
    """(B, G * n, ...) -> (B * G, n, ...), the rows and positions of `inputs`."""
    return split_positions(outputs, inputs, *ops.shape(outputs)[2:])
