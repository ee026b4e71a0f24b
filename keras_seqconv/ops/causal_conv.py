"""Short causal convolutions: bias, activation, residual, state and packed sequences.

The convolution itself is `light_conv`. Letters: B batch, T time, C channels, H heads,
K taps, D dilation, n new positions of a step.
"""

import keras
from keras import ops

from keras_seqconv.ops.compilation import compiled_by_xla, run_formula, with_gradient
from keras_seqconv.ops.convolution import applied, check_light, last_outputs, light_conv
from keras_seqconv.ops.fused import wide
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_integer,
    check_shape,
)


def causal_conv1d(
    inputs,
    kernel,
    bias=None,
    *,
    activation: str | None = None,
    residual=None,
    initial_state=None,
    return_final_state: bool = False,
    segment_ids=None,
    mask=None,
    dilation: int = 1,
):
    """Depthwise causal convolution with a kernel of K taps for each channel or head.

        outputs[b, t, c] = residual[b, t, c] + activation(
            bias[c] + sum_j kernel[c * H // C, j] * x[b, t - (K - 1 - j) * D, c]
        )

    x is `inputs` with `initial_state` in front of it. It is the short convolution of
    Mamba (Gu and Dao 2023, section 3.4) and the `causal_conv1d_fn` of its reference
    implementation, with time before channels.

    Args:
        inputs: tensor (B, T, C), floating point.
        kernel: tensor (C, K), or (H, K) with C a multiple of H; K >= 1. The last tap
            belongs to the present position.
        bias: tensor (C,).
        activation: None or "silu".
        residual: tensor (B, T, C), added to the result.
        initial_state: tensor (B, (K - 1) * D, C), the inputs in front of the first
            one; zeros by default.
        return_final_state: whether to return the state after the last position, too.
        segment_ids: integer tensor (B, T). No output depends on inputs of another
            segment, so that several sequences are packed into a row. The initial
            state belongs to the segment of the first position, the final one to that
            of the last, with zeros in place of inputs of others.
        mask: boolean tensor (B, T), False for padding. Masked inputs count as zeros,
            whatever their value is, and the final state ends at the last position that
            is not masked.
        dilation: D >= 1, distance of neighbouring taps.

    Returns:
        Tensor (B, T, C) of the dtype of `inputs`, or a pair of it and the final state
        (B, (K - 1) * D, C). float16 and bfloat16 accumulate in float32. All
        floating-point arguments have gradients. `KerasTensor` arguments give
        `KerasTensor` results.

    Raises:
        ValueError: a shape, dtype or option breaks these rules, also symbolically.

    Example:

    ```python
    kernel = keras.random.normal((512, 4))
    first, state = keras_seqconv.ops.causal_conv1d(
        inputs[:, :6], kernel, activation="silu", return_final_state=True
    )
    rest = keras_seqconv.ops.causal_conv1d(
        inputs[:, 6:], kernel, activation="silu", initial_state=state
    )
    ```
    """
    operation = _CausalConv1D(activation, return_final_state, dilation)
    further = bias, residual, initial_state, segment_ids, mask, None
    return applied(operation, inputs, kernel, *map(as_tensor, further))


def causal_conv1d_update(
    inputs,
    state,
    kernel,
    bias=None,
    *,
    activation: str | None = None,
    dilation: int = 1,
    lengths=None,
):
    """`causal_conv1d` of n new positions, for generation.

    Args:
        inputs: tensor (B, n, C).
        state: tensor (B, (K - 1) * D, C), the inputs before these; zeros at first.
        kernel, bias, activation, dilation: as in `causal_conv1d`.
        lengths: integer tensor (B,), the number of new positions of each row, from 0
            to n; n by default. Outputs after them have no meaning.

    Returns:
        Outputs (B, n, C) and the next state.
    """
    operation = _CausalConv1D(activation, True, dilation)
    further = bias, None, state, None, None, lengths
    return applied(operation, inputs, kernel, *map(as_tensor, further))


def as_tensor(value):
    """A list as a tensor; None and tensors, also symbolic ones, as they are."""
    has_shape = value is None or hasattr(value, "shape")
    return value if has_shape else ops.convert_to_tensor(value)


@keras.saving.register_keras_serializable("keras_seqconv", "CausalConv1D")
class _CausalConv1D(keras.Operation):
    """The op as a node of functional models, saved with its options."""

    def __init__(
        self, activation=None, return_final_state=False, dilation=1, name=None
    ):
        super().__init__(name=name)
        self.activation = check_choice("activation", activation, (None, "silu"))
        self.return_final_state = check_boolean(
            "return_final_state", return_final_state
        )
        self.dilation = check_integer("dilation", dilation, 1)

    def _history(self, inputs, kernel, *further) -> int:
        """(K - 1) D, if the shapes of all tensors agree."""
        check_light(inputs, kernel)
        batch, length, channels = inputs.shape
        history = (kernel.shape[-1] - 1) * self.dilation
        shapes = {
            "bias": (channels,),
            "residual": (batch, length, channels),
            "initial_state": (batch, history, channels),
            "segment_ids": (batch, length),
            "mask": (batch, length),
            "lengths": (batch,),
        }
        for tensor, (name, sizes) in zip(further, shapes.items(), strict=True):
            if tensor is not None:
                check_shape(name, tensor, sizes)
        return history

    def compute_output_spec(self, inputs, kernel, *further):
        history = self._history(inputs, kernel, *further)
        batch, length, channels = inputs.shape
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        outputs = keras.KerasTensor((batch, length, channels), dtype)
        state = keras.KerasTensor((batch, history, channels), dtype)
        return (outputs, state) if self.return_final_state else outputs

    def call(self, inputs, kernel, *further):
        inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel)
        history = self._history(inputs, kernel, *further)
        bias, residual, initial_state, segment_ids, mask, lengths = further
        if segment_ids is not None and segment_ids.shape[1] == 0:
            segment_ids = None  # no position, no segment
        if lengths is not None:
            lengths = ops.cast(lengths, "int32")
            mask = ops.arange(ops.shape(inputs)[1])[None] < lengths[:, None]
        if mask is not None:
            mask = ops.cast(mask, "bool")
            inputs = ops.where(ops.expand_dims(mask, -1), inputs, 0.0)
        window = inputs  # if need be, behind the initial state
        if initial_state is not None:
            initial_state = ops.cast(initial_state, inputs.dtype)
            window = ops.concatenate([initial_state, inputs], axis=1)
        elif segment_ids is not None or (
            self.return_final_state
            and (mask is not None or (inputs.shape[1] or 0) < history)
        ):
            window = ops.pad(inputs, [(0, 0), (history, 0), (0, 0)])
        if segment_ids is not None:
            segment_ids = ops.cast(segment_ids, "int32")
            outputs = _within_segments(window, kernel, segment_ids, self.dilation)
        elif initial_state is not None:
            outputs = last_outputs(window, kernel, self.dilation)
        else:
            outputs = light_conv(inputs, kernel, "causal", self.dilation)
        outputs = finished(outputs, bias, residual, self.activation)
        if not self.return_final_state:
            return outputs
        if segment_ids is not None and history:
            window = _within_last_segment(window, segment_ids, mask, history)
        return outputs, _last(window, history, mask)


def _segments_of(segment_ids, history):
    """(B, (K - 1) D + T): the initial state belongs to the segment of position 0."""
    first = ops.repeat(segment_ids[:, :1], history, axis=1)
    return ops.concatenate([first, segment_ids], axis=1)


def _within_last_segment(window, segment_ids, mask, history):
    """The window with zeros outside of the segment of the last position of each row."""
    segments = _segments_of(segment_ids, history)
    last = segment_ids[:, -1:]
    if mask is not None:
        last = (history - 1 + _lengths(mask))[:, None]
        last = ops.take_along_axis(segments, last, axis=1)
    return ops.where(ops.expand_dims(segments == last, -1), window, 0.0)


def _within_segments(window, kernel, segment_ids, dilation):
    """A sum of K shifted copies of the inputs, each without other segments."""
    taps, channels = kernel.shape[-1], window.shape[-1]
    kernel = wide(ops.repeat(kernel, channels // kernel.shape[0], axis=0))
    segments = _segments_of(segment_ids, (taps - 1) * dilation)
    sizes, total = ops.shape(segment_ids), 0.0
    for tap in range(taps):
        start = (0, tap * dilation)
        same = ops.slice(segments, start, sizes) == segment_ids
        # Not window[:, start:], whose gradient costs several times as much.
        shifted = ops.slice(window, (*start, 0), (*sizes, channels))
        shifted = ops.where(ops.expand_dims(same, -1), shifted, 0.0)
        total += wide(shifted) * kernel[:, tap]
    return ops.cast(total, window.dtype)


def _last(window, history, mask):
    """The last (B, (K - 1) D, C) inputs, those before the padding that ends a row."""
    batch, length, channels = ops.shape(window)
    if mask is None:  # of known size, as loops need it
        start = (0, length - history, 0)
        return ops.slice(window, start, (batch, history, channels))
    rows = _lengths(mask)[:, None] + ops.arange(history)[None]
    return ops.take_along_axis(window, rows[..., None], axis=1)


def _lengths(mask):
    """Positions (B,) of each row up to its last one."""
    positions = ops.arange(1, ops.shape(mask)[1] + 1)
    return ops.max(ops.where(mask, positions, 0), axis=1, initial=0)


def finished(outputs, bias, residual, activation):
    """residual + activation(outputs + bias), in one pass over memory."""
    if bias is None and residual is None and activation is None:
        return outputs
    channels = outputs.shape[-1]
    dtype = keras.backend.result_type(outputs.dtype, "float32")
    bias = ops.zeros((channels,), dtype) if bias is None else ops.cast(bias, dtype)
    tensors = [outputs, ops.reshape(bias, (1, channels))]
    if residual is not None:
        tensors.append(ops.cast(residual, outputs.dtype))
    if keras.backend.backend() == "jax":  # which compiles all of it with its gradient
        return _finish(*tensors, activation)
    inside_xla = compiled_by_xla()

    def run(formula, *tensors, **static):
        return run_formula(formula, formula, *tensors, inside_xla=inside_xla, **static)

    def finish(*tensors):
        return run(_finish, *tensors, static=(activation,))

    def gradient(upstream, outputs, bias, *residual):
        by_outputs = upstream
        if activation is not None:
            by_outputs = run(_silu_gradient, upstream, outputs, bias)
        rows = ops.reshape(wide(by_outputs), (-1, channels))
        # A product with ones: XLA on a CPU adds over leading axes one by one.
        by_bias = ops.matmul(ops.ones((1, ops.shape(rows)[0]), rows.dtype), rows)
        return by_outputs, by_bias, *[upstream for _ in residual]

    return with_gradient(finish, gradient)(*tensors)


def _finish(outputs, bias, *residual_and_activation):
    *residual, activation = residual_and_activation
    total = wide(outputs) + bias
    if activation == "silu":
        total = total * ops.sigmoid(total)
    for tensor in residual:
        total = total + wide(tensor)
    return ops.cast(total, outputs.dtype)


def _silu_gradient(upstream, outputs, bias):
    """With s = sigmoid(x): d (x s) / dx = s (1 + x (1 - s))."""
    total = wide(outputs) + bias
    gate = ops.sigmoid(total)
    slope = gate * (1 + total * (1 - gate))
    return ops.cast(wide(upstream) * slope, outputs.dtype)
