"""The definition of the ops as NumPy loops; nothing is shared with the code."""

import numpy as np


def padding_left(taps: int, padding: str) -> int:
    return taps - 1 if padding == "causal" else (taps - 1) // 2


def convolve(inputs: np.ndarray, kernel: np.ndarray, padding: str) -> np.ndarray:
    """The convolution in float64; kernel (H, K) or (B, T, H, K)."""
    batch, length, channels = inputs.shape
    heads, taps = kernel.shape[-2:]
    left = padding_left(taps, padding)
    outputs = np.zeros(inputs.shape, "float64")
    for b in range(batch):
        for t in range(length):
            for c in range(channels):
                row = kernel if kernel.ndim == 2 else kernel[b, t]
                for j in range(taps):
                    s = t + j - left
                    if 0 <= s < length:
                        tap = float(row[c * heads // channels, j])
                        outputs[b, t, c] += tap * float(inputs[b, s, c])
    return outputs


def gradients(upstream, inputs, kernel, padding) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of sum(upstream * convolve(...)) for inputs and kernel."""
    batch, length, channels = inputs.shape
    heads, taps = kernel.shape[-2:]
    left = padding_left(taps, padding)
    by_inputs = np.zeros(inputs.shape, "float64")
    by_kernel = np.zeros(kernel.shape, "float64")
    for b in range(batch):
        for t in range(length):
            for c in range(channels):
                head = c * heads // channels
                place = (head,) if kernel.ndim == 2 else (b, t, head)
                for j in range(taps):
                    s = t + j - left
                    if 0 <= s < length:
                        g = float(upstream[b, t, c])
                        by_inputs[b, s, c] += g * float(kernel[place][j])
                        by_kernel[(*place, j)] += g * float(inputs[b, s, c])
    return by_inputs, by_kernel
