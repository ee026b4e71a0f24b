"""The two ops: their arguments, gradients and symbolic versions.

Letters: B batch, T time, C channels, H heads, K taps, P zeros to the left.
"""

import functools

import keras
import numpy as np
from keras import ops

from keras_seqconv.ops import formulas
from keras_seqconv.ops.compilation import (
    compiled_by_xla,
    in_export,
    run_formula,
    with_gradient,
)
from keras_seqconv.ops.fused import take, wide
from keras_seqconv.support.arguments import check_choice, check_integer


def light_conv(inputs, kernel, padding: str = "same", dilation: int = 1):
    """Lightweight convolution: a kernel of K taps for all channels of a head.

    `outputs[b, t, c] = sum_j kernel[c * H // C, j] * inputs[b, t + j - P, c]`, zeros
    outside; P = K - 1 for "causal" and (K - 1) // 2 for "same" (Wu et al. 2019, Pay
    Less Attention with Lightweight and Dynamic Convolutions, section 3; the softmax of
    the kernel belongs to the layer). With H = C this is a depthwise convolution.

    Args:
        inputs: tensor (B, T, C), floating point. B and T may be zero or unknown.
        kernel: tensor (H, K) of the same dtype, C a multiple of H, K >= 1; K may be
            even and longer than T.
        padding: "same" or "causal".
        dilation: D >= 1, distance of neighbouring taps: tap j reads position
            t + (j - P) D.

    Returns:
        Tensor (B, T, C) of the dtype of `inputs`. float16 and bfloat16 accumulate in
        float32. Both arguments have derivatives of any order, on JAX in forward mode
        too. A `KerasTensor` argument gives a `KerasTensor`.

    Raises:
        ValueError: rank, shape, dtype, padding or dilation breaks these rules, also
            symbolically.

    Example:

    ```python
    averaged = keras_seqconv.ops.light_conv(inputs, keras.ops.full((8, 3), 1 / 3))
    ```
    """
    return applied(_LightConvOperation(padding, dilation), inputs, kernel)


def dynamic_conv(inputs, kernel, padding: str = "same", dilation: int = 1):
    """Dynamic convolution: a kernel of K taps for each position and head.

    `outputs[b, t, c] = sum_j kernel[b, t, c * H // C, j] * inputs[b, t + j - P, c]`
    (Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions,
    section 4; the kernel comes from a layer), else as `light_conv`. Memory is
    O(BTC + BTHK), forward and backward.

    Args:
        inputs: tensor (B, T, C).
        kernel: tensor (B, T, H, K).
        padding, dilation: as in `light_conv`.
    """
    return applied(_DynamicConvOperation(padding, dilation), inputs, kernel)


# Up to here H times the work in one matrix product costs less, for a step of one
# position, than the passes over memory of a weighted sum that XLA does not fuse: half
# of the time at H 4, the same at H 8 (80 rows, C 512, K 31).
_FEW_HEADS = 8


def last_outputs(window, kernel, dilation: int = 1):
    """The causal outputs (B, n, C) at the end of a window (B, (K - 1) D + n, C).

    `kernel` is (H, K), or that of the outputs, (B, n, H, K).
    """
    (heads, taps), by_position = kernel.shape[-2:], len(kernel.shape) == 4
    history, channels = (taps - 1) * dilation, window.shape[-1]
    if window.shape[1] != history + 1:
        if by_position:
            kernel = ops.pad(kernel, [(0, 0), (history, 0), (0, 0), (0, 0)])
        convolve = dynamic_conv if by_position else light_conv
        return convolve(window, kernel, "causal", dilation)[:, history:]
    window = window[:, ::dilation]  # the K inputs of the position
    kernel = ops.squeeze(kernel, axis=1) if by_position else kernel  # ([B,] H, K)
    if heads > _FEW_HEADS or compiled_by_xla():
        rows = ops.reshape(window, (-1, taps, heads, channels // heads))
        weights = ops.expand_dims(ops.swapaxes(kernel, -1, -2), -1)
        outputs = ops.sum(wide(rows) * wide(weights), axis=1)
        return ops.cast(ops.reshape(outputs, (-1, 1, channels)), rows.dtype)
    # Each row's window (K, C) times its kernels (H, K). Of the products (H, C) a
    # channel needs that of its head; the rest is discarded.
    products = ops.matmul(kernel, window)  # (B, H, C)
    blocks = ops.reshape(products, (-1, heads * heads, channels // heads))
    outputs = take(blocks, np.arange(heads) * (heads + 1), axis=1)
    return ops.reshape(outputs, (-1, 1, channels))


def applied(operation: keras.Operation, *tensors):
    """A node of a functional model for symbolic tensors, otherwise the results.

    `Operation.__call__` would put words of its own around errors.
    """
    symbolic = any(isinstance(tensor, keras.KerasTensor) for tensor in tensors)
    return operation(*tensors) if symbolic else operation.call(*tensors)


class _DepthwiseOperation(keras.Operation):
    """The op as a node of functional models, saved with its options."""

    def __init__(self, padding="same", dilation=1, name=None):
        super().__init__(name=name)
        self.padding = check_choice("padding", padding, ("same", "causal"))
        self.dilation = check_integer("dilation", dilation, 1)

    def call(self, inputs, kernel):
        inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel)
        _check(self.kind, inputs, kernel)
        taps = kernel.shape[-1]
        left = taps - 1 if self.padding == "causal" else (taps - 1) // 2
        if self.dilation == 1:
            return _convolve(self.kind, inputs, kernel, left)
        return self._convolve_dilated(inputs, kernel, left)

    def _convolve_dilated(self, inputs, kernel, left):
        """Positions t, t + D, t + 2 D, ... become a row of their own."""
        batch, length = ops.shape(inputs)[:2]
        rows = _phases(inputs, self.dilation)
        if self.kind is _DYNAMIC:
            kernel = _phases(kernel, self.dilation)
        outputs = _convolve(self.kind, rows, kernel, left)
        _, count, channels = ops.shape(rows)
        outputs = ops.reshape(outputs, (batch, self.dilation, count, channels))
        outputs = ops.swapaxes(outputs, 1, 2)
        outputs = ops.reshape(outputs, (batch, self.dilation * count, channels))
        return outputs[:, :length]

    def compute_output_spec(self, inputs, kernel):
        _check(self.kind, inputs, kernel)
        shape = list(inputs.shape)
        if self.kind is _DYNAMIC:  # what one argument leaves open the other tells
            shape[:2] = [
                size if size is not None else other
                for size, other in zip(shape[:2], kernel.shape[:2], strict=True)
            ]
        return keras.KerasTensor(shape, dtype=_dtype(inputs))


def _phases(tensor, dilation):
    """(B, T, ...) -> (B D, T / D, ...), with zeros after T up to a multiple of D."""
    batch, length, *rest = ops.shape(tensor)
    rows = (length + dilation - 1) // dilation
    others = [(0, 0)] * len(rest)
    tensor = ops.pad(tensor, [(0, 0), (0, rows * dilation - length), *others])
    tensor = ops.swapaxes(ops.reshape(tensor, (batch, rows, dilation, *rest)), 1, 2)
    return ops.reshape(tensor, (batch * dilation, rows, *rest))


def _dtype(tensor) -> str:
    return keras.backend.standardize_dtype(tensor.dtype)


def check_light(inputs, kernel) -> None:
    """ValueError for arguments that `light_conv` does not take."""
    _check(_LIGHT, inputs, kernel)


def _check(kind, inputs, kernel):
    kernel_letters = "(H, K)" if kind is _LIGHT else "(B, T, H, K)"
    for name, tensor, letters in (
        ("inputs", inputs, "(B, T, C)"),
        ("kernel", kernel, kernel_letters),
    ):
        if tensor.shape is None or len(tensor.shape) != len(letters.split(",")):
            raise ValueError(
                f"`{name}` must have shape {letters}. "
                f"Received: {name}.shape={tensor.shape}"
            )
    shapes = (
        f"Received: inputs.shape={tuple(inputs.shape)}, "
        f"kernel.shape={tuple(kernel.shape)}"
    )
    channels, (heads, taps) = inputs.shape[-1], kernel.shape[-2:]
    if channels is None or heads is None or taps is None:
        raise ValueError(f"C of `inputs`, H and K of `kernel` must be known. {shapes}")
    if heads < 1 or taps < 1:
        raise ValueError(f"H and K of `kernel` must be at least 1. {shapes}")
    if channels % heads:
        raise ValueError(f"C of `inputs` must be a multiple of H of `kernel`. {shapes}")
    if kind is _DYNAMIC:
        pairs = zip(inputs.shape[:2], kernel.shape[:2], strict=True)
        if any(a is not None and b is not None and a != b for a, b in pairs):
            raise ValueError(f"B and T of `inputs` and `kernel` must agree. {shapes}")
    dtypes = _dtype(inputs), _dtype(kernel)
    if dtypes[0] not in ("float64", "float32", "float16", "bfloat16"):
        raise ValueError(
            "`inputs` must be float64, float32, float16 or bfloat16. "
            f"Received: inputs.dtype={dtypes[0]}"
        )
    if dtypes[0] != dtypes[1]:
        raise ValueError(
            "`kernel` must have the dtype of `inputs`. "
            f"Received: inputs.dtype={dtypes[0]}, kernel.dtype={dtypes[1]}"
        )


def _convolve(kind, inputs, kernel, left, inside_xla=False):
    """The convolution with its gradient."""
    inside_xla = inside_xla or compiled_by_xla()

    def convolve(inputs, kernel):
        outputs = run_formula(
            kind.fused,
            kind.plain,
            inputs,
            kernel,
            static=(left,),
            prefer_plain=kind.prefer_plain,
            inside_xla=inside_xla,
        )
        return _heads_joined(outputs, inputs)

    def gradient(upstream, inputs, kernel):
        return _gradients(kind, upstream, inputs, kernel, left, inside_xla)

    return with_gradient(convolve, gradient)(inputs, kernel)


def _heads_joined(outputs, inputs):
    """(B, T, H, R) or (B, T, C) -> (B, T, C)."""
    if len(outputs.shape) == 3:
        return outputs
    return ops.reshape(outputs, ops.shape(inputs))


def _gradients(kind, upstream, inputs, kernel, left, inside_xla):
    """Both gradients of the convolution, with their own gradients.

    dx = convolve(g, mirrored(kernel)) and dk = kernel_gradient(g, x) are linear in g.
    For gradients u of dx and v of dk the gradient for g is
    convolve(u, kernel) + convolve(x, v), and those for x and kernel are again the pair
    of this function, with u in place of x and v in place of the kernel. So derivatives
    of every order are made of the same products.
    """

    def gradients(upstream, inputs, kernel):
        by_inputs, by_kernel = run_formula(
            kind.fused_gradients,
            kind.plain_gradients,
            upstream,
            inputs,
            kernel,
            static=(left,),
            prefer_plain=not kind.gradients_prefer_xla(kernel.shape[-1]),
            inside_xla=inside_xla,
        )
        return _heads_joined(by_inputs, inputs), by_kernel

    def gradient(second, upstream, inputs, kernel):
        u, v = second
        by_upstream = _convolve(kind, u, kernel, left, inside_xla)
        by_upstream = by_upstream + _convolve(kind, inputs, v, left, inside_xla)
        return (by_upstream, *_gradients(kind, upstream, u, v, left, inside_xla))

    if in_export():  # a SavedModel stores first gradients only: autodiff
        return gradients(upstream, inputs, kernel)
    return with_gradient(gradients, gradient)(upstream, inputs, kernel)


def _accumulate_in_float32(formula, under_xla):
    """The formula with half precision widened inside, results narrowed again.

    What XLA leaves to matrix units, these add up in float32 themselves.
    """

    def widened(*arguments):
        *tensors, left = arguments
        dtype, taps = _dtype(tensors[0]), tensors[-1].shape[-1]
        narrow = under_xla and formulas.by_matrix_units(taps)
        if narrow or dtype not in ("float16", "bfloat16"):
            return formula(*arguments)
        results = formula(*[ops.cast(tensor, "float32") for tensor in tensors], left)
        if isinstance(results, tuple):
            return tuple(ops.cast(result, dtype) for result in results)
        return ops.cast(results, dtype)

    return widened


def _both_gradients(convolve, kernel_gradient, upstream, inputs, kernel, left):
    """Gradients of the convolution, (dx, dk)."""
    heads, taps = kernel.shape[-2:]
    return (
        convolve(upstream, formulas.mirrored(kernel, left), taps - 1 - left),
        kernel_gradient(upstream, inputs, heads, taps, left),
    )


class _Formulas:
    """The formulas of one op, for XLA (`fused`) and for uncompiled graphs (`plain`).

    Each is a pair: the convolution, and the gradient for the kernel. `prefer_plain` and
    `gradients_prefer_xla`, asked with K, tell which is faster where XLA is not around.
    """

    def __init__(
        self, fused, plain, prefer_plain=False, gradients_prefer_xla=lambda taps: True
    ):
        self.fused = _accumulate_in_float32(fused[0], True)
        self.plain = _accumulate_in_float32(plain[0], False)
        self.fused_gradients, self.plain_gradients = (
            _accumulate_in_float32(functools.partial(_both_gradients, *pair), under_xla)
            for pair, under_xla in ((fused, True), (plain, False))
        )
        self.prefer_plain = prefer_plain
        self.gradients_prefer_xla = gradients_prefer_xla


_LIGHT = _Formulas(
    fused=(formulas.convolve_under_xla, formulas.shared_kernel_gradient_under_xla),
    plain=(formulas.convolve_natively, formulas.shared_kernel_gradient_without_xla),
    prefer_plain=True,
    gradients_prefer_xla=lambda taps: (
        formulas.FEW_NATIVE_TAPS < taps <= formulas.FEW_TAPS and not formulas.on_cpu()
    ),
)
_DYNAMIC = _Formulas(
    fused=(formulas.convolve_under_xla, formulas.kernel_gradient_under_xla),
    plain=(formulas.convolve_by_bands, formulas.kernel_gradient_by_blocks),
)


@keras.saving.register_keras_serializable("keras_seqconv", "LightConvOperation")
class _LightConvOperation(_DepthwiseOperation):
    kind = _LIGHT


@keras.saving.register_keras_serializable("keras_seqconv", "DynamicConvOperation")
class _DynamicConvOperation(_DepthwiseOperation):
    kind = _DYNAMIC
