"""The formulas of the depthwise convolutions and of their gradients.

Letters: B batch, T time, C channels, H heads, R = C / H channels of a head, K taps,
P zeros to the left ("left"), L block length, N number of blocks, W = L + K - 1.

Everything follows from two products that are linear in both arguments:

    convolve:         y[t, c]    = sum_j kernel[t, h(c), j] * x[t + j - P, c]
    kernel_gradient:  dk[t, h, j] = sum_r g[t, h, r] * x[t + j - P, h, r]

The gradient of `convolve` for its input is `convolve` again, with a mirrored kernel,
and the gradients of all of them are these products once more (see convolution.py), so
there is nothing here to differentiate automatically. A kernel is (H, K), shared by all
positions (LightConv), or (B, T, H, K), one per position (DynamicConv). Of each product
there are several formulas, because no single one is fast everywhere (times in
benchmarks/README.md).
"""

import keras
from keras import ops

from keras_seqconv.ops.compilation import leaves_tensorflow, on_cpu
from keras_seqconv.ops.fused import split_not_finite, take
from keras_seqconv.support import tf

# Products of at least this many rows keep the matrix units busy; blocks much longer
# than K only add zeros to the band.
SHORTEST_BLOCK = 32

# From here on the band matrices win under XLA, and far beyond (K 255) its loop over
# shifted inputs is no longer vectorised and takes ten times as long.
MOST_SHIFTS = 64

# Up to here taps one by one cost less than the products of blocks: under XLA (on GPUs
# also forward), and on GPUs by TensorFlow's own depthwise gradient, which on CPUs costs
# less for every K.
FEW_TAPS = 8
FEW_NATIVE_TAPS = 4

# Up to this K * R a loop over sentences has the fastest gradient for a shared kernel
# under XLA on a CPU: products of blocks have an inner axis of R, and a sum over lanes
# needs a multiple of 8.
MOST_LOOPED = 64


def by_matrix_units(taps):
    """Whether XLA leaves both products to a GPU's matrix units.

    Matrix units accumulate half precision in float32. Float32 has the precision that
    JAX or TensorFlow is set to (TF32 by default), as in other layers.
    """
    return taps > FEW_TAPS and not on_cpu()


def convolve_under_xla(inputs, kernel, left):
    """`convolve` by the formula that XLA makes faster for this K."""
    taps = kernel.shape[-1]
    if taps <= MOST_SHIFTS and not by_matrix_units(taps):
        return convolve_by_shifts(inputs, kernel, left)
    return convolve_by_bands(inputs, kernel, left)


def convolve_by_shifts(inputs, kernel, left):
    """`convolve` as K multiply-adds of shifted inputs.

    Under XLA they are one loop that reads each input from cache; memory O(BTC).
    Uncompiled, each tap is a pass over memory.

    Returns (B, T, H, R): a compiled function that ends here has a loop over the
    channels of one head inside, faster than one over all C channels.
    """
    heads, taps = kernel.shape[-2:]
    rows = _split_heads(inputs, heads)
    # Rows of 2 KB or 4 KB share few sets of the first cache, which then cannot hold the
    # K rows that are read together: one head more in the padded copy takes half of the
    # time at C 1024, a tenth at C 512.
    more_heads = 1 if inputs.shape[-1] % 512 == 0 and heads >= 4 else 0
    padded = ops.pad(rows, [(0, 0), (left, taps - 1 - left), (0, more_heads), (0, 0)])
    total = None
    for tap in range(taps):
        shifted = padded[:, tap : _stop(tap, taps), :heads]
        term = kernel[..., tap, None] * shifted
        total = term if total is None else total + term
    return total


def convolve_by_bands(inputs, kernel, left):
    """`convolve` as products of band matrices, one for all blocks or one for each.

    The taps of L neighbouring positions form an L x W band matrix, multiplied with the
    W inputs that they reach. Small matrix products are fast in uncompiled graphs, and
    for long kernels under XLA. L grows with K and not with T, so that memory is
    O(BTC + BTHK).
    """
    heads, taps = kernel.shape[-2:]
    batch, length, channels = ops.shape(inputs)
    if isinstance(length, int) and length == 0:  # `take` finds no rows of no positions
        return inputs
    if by_matrix_units(taps):  # the host of a GPU would have to wait for a choice
        outputs = _multiply_finite(*_bands_and_windows(inputs, kernel, left))
    else:
        outputs = ops.matmul(*_bands_and_windows(inputs, kernel, left))
        if not leaves_tensorflow():  # other runtimes are spared the choice
            # Each row of a block multiplies all of its window, if only by zeros.
            # (Wide, as a sum of many float16 would overflow.)
            first_rows = ops.cast(outputs[:, :, :, 0], "float32")
            outputs = ops.cond(
                ops.isfinite(ops.sum(first_rows)),
                lambda: outputs,
                # Made again: what the choice holds on to costs time.
                lambda: _multiply_finite(*_bands_and_windows(inputs, kernel, left)),
            )
    padded = ops.shape(outputs)[2] * _block_length(taps)
    outputs = ops.reshape(outputs, (batch, heads, padded, channels // heads))
    whole = (batch, heads, length, channels // heads)
    outputs = ops.transpose(ops.slice(outputs, (0, 0, 0, 0), whole), (0, 2, 1, 3))
    return ops.reshape(outputs, (batch, length, channels))


def _bands_and_windows(inputs, kernel, left):
    """(B, H, N, L, W) and (B, H, N, W, R), whose product has all outputs."""
    heads, taps = kernel.shape[-2:]
    block = _block_length(taps)
    if len(kernel.shape) == 2:
        blocks = kernel[None, :, None, None]
        blocks = ops.broadcast_to(blocks, (1, heads, 1, block, taps))
    else:
        blocks = _blocks(ops.transpose(kernel, (0, 2, 1, 3)), block)
    return _bands(blocks), take(*_windows(inputs, heads, left, taps, block), axis=2)


def _multiply_finite(bands, windows):
    """bands @ windows, NaN where a tap reaches what is not finite, and only there.

    Zeros beside a band times NaN or infinity would be NaN in all rows of the block. The
    outputs are NaN in all channels of the head.
    """
    windows, spoiled = split_not_finite(windows)
    outputs = ops.matmul(bands, windows)
    block, width = bands.shape[3:]
    ones = ops.ones((1, 1, 1, block, width - block + 1), windows.dtype)
    reached = ops.matmul(_bands(ones), ops.cast(spoiled, windows.dtype)) > 0
    return ops.where(reached, ops.full_like(outputs, float("nan")), outputs)


def convolve_natively(inputs, kernel, left):
    """`convolve` for a shared kernel (H, K) by the backend's depthwise convolution.

    Fast where the backend calls a library (uncompiled TensorFlow), slow under XLA.
    """
    heads, taps = kernel.shape
    if inputs.shape[1] == 0:  # shape inference rejects windows longer than the input
        return inputs
    ratio = inputs.shape[-1] // heads
    # As `repeat`, which costs more than a short convolution does.
    per_channel = ops.expand_dims(ops.transpose(kernel), -1)
    per_channel = ops.broadcast_to(per_channel, (taps, heads, ratio))
    if keras.backend.backend() == "jax":
        padded = _pad_time(inputs, left, taps - 1 - left)
        per_channel = ops.reshape(per_channel, (taps, heads * ratio, 1))
        return ops.depthwise_conv(padded, per_channel, padding="valid")
    # Explicit padding spares a padded copy, which costs a fifth of the convolution.
    # OpenVINO has it in grouped convolutions alone, and TensorFlow no such on CPUs.
    grouped = leaves_tensorflow()
    convolve = tf.nn.conv2d if grouped else tf.nn.depthwise_conv2d
    last_axes = (1, heads * ratio) if grouped else (heads * ratio, 1)
    outputs = convolve(
        tf.expand_dims(inputs, 1),
        tf.reshape(per_channel, (1, taps, *last_axes)),
        strides=[1, 1, 1, 1],
        padding=[[0, 0], [0, 0], [left, taps - 1 - left], [0, 0]],
    )
    return tf.squeeze(outputs, 1)


def mirrored(kernel, left):
    """The kernel with which `convolve` (P = K - 1 - left) gives the input gradient.

    x[s] reaches y[s - j + P] through tap j, so tap K - 1 - j of the mirrored kernel at
    s is tap j of the kernel at s - j + P, and zero where that is outside.
    """
    if len(kernel.shape) == 2:
        return ops.flip(kernel, axis=-1)
    taps, length = kernel.shape[-1], ops.shape(kernel)[1]
    if taps <= FEW_TAPS:
        padded = _pad_time(kernel, taps - 1 - left, left)
        columns = [
            padded[:, tap : _stop(tap, taps), :, taps - 1 - tap] for tap in range(taps)
        ]
        return ops.stack(columns, axis=-1)
    rows = ops.flip(ops.transpose(kernel, (0, 2, 3, 1)), axis=2)  # (B, H, K, T)
    rows = ops.pad(rows, [(0, 0), (0, 0), (0, 0), (taps - 1 - left, left)])
    return ops.transpose(_unbanded(rows, length), (0, 3, 1, 2))


def kernel_gradient_under_xla(upstream, inputs, heads, taps, left):
    """`kernel_gradient` (B, T, H, K) by the formula that XLA makes faster."""
    few = taps <= FEW_TAPS
    by = kernel_gradient_by_taps if few else kernel_gradient_by_blocks
    return by(upstream, inputs, heads, taps, left)


def shared_kernel_gradient_under_xla(upstream, inputs, heads, taps, left):
    """`kernel_gradient` (H, K), summed over B and T, likewise."""
    arguments = (upstream, inputs, heads, taps, left)
    if on_cpu() and taps * inputs.shape[-1] // heads <= MOST_LOOPED:
        return shared_kernel_gradient_in_a_loop(*arguments)
    if taps <= FEW_TAPS:
        return ops.sum(kernel_gradient_by_taps(*arguments), axis=(0, 1))
    return shared_kernel_gradient_by_blocks(*arguments)


def shared_kernel_gradient_without_xla(upstream, inputs, heads, taps, left):
    """`kernel_gradient` (H, K) by the faster formula of an uncompiled graph."""
    native = keras.backend.backend() == "tensorflow"
    native = native and (on_cpu() or taps <= FEW_NATIVE_TAPS)
    by = shared_kernel_gradient_natively if native else shared_kernel_gradient_by_blocks
    return by(upstream, inputs, heads, taps, left)


def kernel_gradient_by_taps(upstream, inputs, heads, taps, left):
    """`kernel_gradient` (B, T, H, K), tap by tap: for XLA and few taps."""
    batch, length, channels = ops.shape(inputs)
    ratio = channels // heads
    # Summed in two stages: XLA vectorises the first, over an axis that is not the
    # last, and leaves little to the second, which it does not.
    lanes = 8 if ratio % 8 == 0 else ratio
    lanes_of = (batch, length, heads, ratio // lanes, lanes)
    padded = _pad_time(inputs, left, taps - 1 - left)
    columns = []
    for tap in range(taps):
        products = upstream * padded[:, tap : _stop(tap, taps)]
        lane_sums = ops.sum(ops.reshape(products, lanes_of), axis=3)
        columns.append(ops.sum(lane_sums, axis=-1))
    return ops.stack(columns, axis=-1)


def kernel_gradient_by_blocks(upstream, inputs, heads, taps, left):
    """`kernel_gradient` (B, T, H, K): block products, then the band of each."""
    batch, length, _ = ops.shape(inputs)
    if isinstance(length, int) and length == 0:
        return ops.zeros((batch, 0, heads, taps), inputs.dtype)
    block = _block_length(taps)
    rows = _blocks(_heads_first(upstream, heads), block)  # (B, H, N, L, R)
    reached = ops.take(*_windows(inputs, heads, left, taps, block), axis=2)
    products = ops.einsum("bhnlr,bhnwr->bhnlw", rows, reached)
    band = _unbanded(products, taps)  # (B, H, N, L, K)
    padded = ops.shape(band)[2] * block
    band = ops.reshape(band, (batch, heads, padded, taps))[:, :, :length]
    return ops.transpose(band, (0, 2, 1, 3))


def shared_kernel_gradient_by_blocks(upstream, inputs, heads, taps, left):
    """`kernel_gradient` summed over B and T (H, K).

    All blocks of a sentence meet in one product whose inner axis is (N, R); summing
    block products afterwards would write and read B * T * H * W numbers more.
    """
    block = _block_length(taps)
    width = block + taps - 1
    rows = _blocks(_heads_first(upstream, heads), block)
    batch, _, count, _, ratio = ops.shape(rows)
    rows = ops.transpose(rows, (0, 1, 3, 2, 4))  # (B, H, L, N, R)
    rows = ops.reshape(rows, (batch, heads, block, count * ratio))
    padded, places = _windows(inputs, heads, left, taps, block)
    reached = ops.take(padded, ops.transpose(places), axis=2)  # (B, H, W, N, R)
    reached = ops.reshape(reached, (batch, heads, width, count * ratio))
    products = ops.einsum("bhlr,bhwr->bhlw", rows, reached)
    # A product with ones: XLA on the CPU sums over leading axes one number at a time.
    flat = ops.reshape(products, (batch, heads * block * width))
    summed = ops.matmul(ops.ones((1, batch), flat.dtype), flat)
    summed = ops.reshape(summed, (heads, block, width))
    return ops.sum(_unbanded(summed, taps), axis=1)


def shared_kernel_gradient_in_a_loop(upstream, inputs, heads, taps, left):
    """`kernel_gradient` summed over B and T (H, K), for XLA.

    A sentence of all channels stays in cache while the taps are summed one by one.
    """
    batch, length, channels = ops.shape(inputs)
    padded = _pad_time(inputs, left, taps - 1 - left)
    num_rows = ops.shape(inputs[:1])[0]  # or none, of an empty batch

    def add(row, total):
        reached = ops.slice(
            padded, (row, 0, 0), (num_rows, length + taps - 1, channels)
        )
        rows = ops.slice(upstream, (row, 0, 0), (num_rows, length, channels))
        columns = [
            ops.sum(rows * reached[:, tap : _stop(tap, taps)], axis=(0, 1))
            for tap in range(taps)
        ]
        return total + ops.stack(columns)

    # The sum of no rows, which varies over the devices of `jax.shard_map` as they do.
    none = ops.sum(upstream[:0] * inputs[:0], axis=(0, 1))
    start = ops.zeros((taps, channels), inputs.dtype) + none
    total = ops.fori_loop(0, batch, add, start)
    total = ops.reshape(total, (taps, heads, channels // heads))
    return ops.transpose(ops.sum(total, axis=-1))


def shared_kernel_gradient_natively(upstream, inputs, heads, taps, left):
    """`kernel_gradient` summed over B and T (H, K), by TensorFlow."""
    channels = inputs.shape[-1]
    if inputs.shape[1] == 0:  # shape inference rejects windows longer than the input
        return tf.zeros((heads, taps), inputs.dtype)
    # Two more of TensorFlow's loops are faster: that of "SAME" with 3 taps, and that
    # of a padded column with many (a seventh of the time at C 1024, K 31).
    axis, window = 1, (1, taps)
    padding = [[0, 0], [0, 0], [left, taps - 1 - left], [0, 0]]
    if taps <= 3 and left == (taps - 1) // 2:
        padding = "SAME"
    if taps > FEW_TAPS:
        inputs = _pad_time(inputs, left, taps - 1 - left)
        axis, window, padding = 2, (taps, 1), "VALID"
    per_channel = tf.nn.depthwise_conv2d_backprop_filter(
        tf.expand_dims(inputs, axis),
        (*window, channels, 1),
        tf.expand_dims(upstream, axis),
        strides=[1, 1, 1, 1],
        padding=padding,
    )
    per_channel = ops.reshape(per_channel, (taps, heads, channels // heads))
    kernel_gradient = ops.transpose(ops.sum(per_channel, axis=-1))
    # Of an empty batch TensorFlow returns memory that it has not written.
    empty = tf.equal(tf.size(upstream), 0)
    return tf.where(empty, tf.zeros_like(kernel_gradient), kernel_gradient)


def _stop(tap, taps):
    """End of the slice that starts at `tap` and leaves the padded length - K + 1."""
    return tap - (taps - 1) or None


def _block_length(taps):
    return max(SHORTEST_BLOCK, -(-(taps - 1) // 16) * 16)


def _split_heads(inputs, heads):
    """(B, T, C) -> (B, T, H, R)."""
    batch, length, channels = ops.shape(inputs)
    return ops.reshape(inputs, (batch, length, heads, channels // heads))


def _pad_time(tensor, before, after):
    """Zeros around axis 1."""
    others = [(0, 0)] * (len(tensor.shape) - 2)
    return ops.pad(tensor, [(0, 0), (before, after), *others])


def _heads_first(inputs, heads):
    """(B, T, C) -> (B, H, T, R)."""
    return ops.transpose(_split_heads(inputs, heads), (0, 2, 1, 3))


def _blocks_in(length, block):
    """N. (In ONNX files negative numbers have another remainder.)"""
    return (length + block - 1) // block


def _blocks(tensor, block):
    """(B, H, T, ...) -> (B, H, N, L, ...), zeros after T."""
    extra = _blocks_in(ops.shape(tensor)[2], block) * block - ops.shape(tensor)[2]
    tensor = ops.pad(tensor, [(0, 0), (0, 0), (0, extra), (0, 0)])
    batch, heads, padded, last = ops.shape(tensor)
    return ops.reshape(tensor, (batch, heads, padded // block, block, last))


def _windows(inputs, heads, left, taps, block):
    """Inputs of each block: a tensor (B, H, time, R) and positions (N, W) in it.

    Position w of window n is position n * L + w - P of the inputs.
    """
    length = ops.shape(inputs)[1]
    count = _blocks_in(length, block)
    after = count * block - length + taps - 1 - left
    heads_first = _heads_first(inputs, heads)
    padded = ops.pad(heads_first, [(0, 0), (0, 0), (left, after), (0, 0)])
    starts = ops.arange(count) * block
    return padded, starts[:, None] + ops.arange(block + taps - 1)[None]


def _bands(kernel):
    """(B, H, N, L, K) -> band matrices (B, H, N, L, W): row l holds its taps from l on.

    Rows of W + 1 numbers read as rows of W move one place to the right each.
    """
    block, taps = kernel.shape[3:]
    width = block + taps - 1
    rows = ops.pad(kernel, [(0, 0)] * 4 + [(0, block)])
    batch, heads, count = ops.shape(rows)[:3]
    flat = ops.reshape(rows, (batch, heads, count, block * (width + 1)))
    return ops.reshape(flat[..., : block * width], (batch, heads, count, block, width))


def _unbanded(products, taps):
    """(..., L, W) -> (..., L, K): the reverse of `_bands`."""
    *outer, block, width = ops.shape(products)
    flat = ops.reshape(products, (*outer, block * width))
    flat = ops.pad(flat, [(0, 0)] * len(outer) + [(0, block)])
    return ops.reshape(flat, (*outer, block, width + 1))[..., :taps]
