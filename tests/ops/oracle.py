"""The definition of the ops as NumPy loops; nothing is shared with the code."""

import numpy as np


def padding_left(taps: int, padding: str) -> int:
    return taps - 1 if padding == "causal" else (taps - 1) // 2


def terms(inputs: np.ndarray, kernel: np.ndarray, padding: str):
    """For every product of the sums: place of the output, of the tap, of the input."""
    batch, length, channels = inputs.shape
    heads, taps = kernel.shape[-2:]
    left = padding_left(taps, padding)
    for b, t, c, j in np.ndindex(batch, length, channels, taps):
        s, head = t + j - left, c * heads // channels
        if 0 <= s < length:
            tap = (head, j) if kernel.ndim == 2 else (b, t, head, j)
            yield (b, t, c), tap, (b, s, c)


def convolve(inputs: np.ndarray, kernel: np.ndarray, padding: str) -> np.ndarray:
    """The convolution in float64; kernel (H, K) or (B, T, H, K)."""
    outputs = np.zeros(inputs.shape, "float64")
    for output, tap, place in terms(inputs, kernel, padding):
        outputs[output] += float(kernel[tap]) * float(inputs[place])
    return outputs


def gradients(upstream, inputs, kernel, padding) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of sum(upstream * convolve(...)) for inputs and kernel."""
    by_inputs = np.zeros(inputs.shape, "float64")
    by_kernel = np.zeros(kernel.shape, "float64")
    for output, tap, place in terms(inputs, kernel, padding):
        by_inputs[place] += float(upstream[output]) * float(kernel[tap])
        by_kernel[tap] += float(upstream[output]) * float(inputs[place])
    return by_inputs, by_kernel
