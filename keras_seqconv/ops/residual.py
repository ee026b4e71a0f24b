"""The end of a sub-layer in training: dropout, residual connection, normalization.

Letters: C channels, N rows, all positions of a batch.

One by one these are many passes over memory, forward and backward. Here each direction
is one compiled function that keeps nothing: the gradient computes sum, mask and
statistics once more.
"""

from keras import ops

from keras_seqconv.ops.compilation import in_xla_context, padded_rows, run
from keras_seqconv.ops.gradients import with_gradient
from keras_seqconv.ops.rows import row_sums, wide


def add_and_norm(inputs, branch, gamma, beta, *, rate: float, seed, epsilon: float):
    """LN(inputs + dropout(branch)) gamma + beta, with a hand-written gradient.

    (Vaswani et al. 2017, Attention Is All You Need, section 5.4; Ba et al. 2016, Layer
    Normalization.) Computed in at least float32.

    Args:
        inputs, branch: (..., C), of one floating-point dtype.
        gamma, beta: (C,), at least float32.
        rate: share of `branch` that becomes 0, 0 <= rate < 1; the rest is scaled by
            1 / (1 - rate).
        seed: two integers as of `keras.random.SeedGenerator.next`; the same ones drop
            the same.
        epsilon: added to the variance.

    Returns:
        Tensor (..., C) of the dtype of `inputs`.
    """
    affine = ops.concatenate([ops.reshape(one, (1, -1)) for one in (gamma, beta)])
    seed = ops.reshape(ops.cast(seed, "uint32"), (1, 2))
    inside_xla = in_xla_context()
    static = (float(rate), float(epsilon))

    def gradient(upstream, inputs, branch, affine, seed):
        tensors = (upstream, inputs, branch, affine, seed)
        return *_run(_gradient, tensors, 3, static, inside_xla), None

    flat = [ops.reshape(one, (-1, one.shape[-1])) for one in (inputs, branch)]
    rows = with_gradient(
        lambda *tensors: _run(_add_and_norm, tensors, 2, static, inside_xla), gradient
    )(*[padded_rows(one) for one in flat], wide(affine), seed)
    # A slice, whose gradient pads: that of rows[:N] is a copy.
    rows = ops.slice(rows, (0, 0), ops.shape(flat[0]))
    return ops.reshape(rows, ops.shape(inputs))


def _run(formula, tensors, rows, static, inside_xla):
    return run(
        formula, formula, *tensors, static=static, inside_xla=inside_xla, rows=rows
    )


def _add_and_norm(inputs, branch, affine, seed, rate, epsilon):
    factor = _keep_factor(seed, branch, rate)
    normal, _ = _normalized(wide(inputs) + wide(branch) * factor, epsilon)
    return ops.cast(normal * affine[0] + affine[1], inputs.dtype)


def _gradient(upstream, inputs, branch, affine, seed, rate, epsilon):
    """With n = (z - mean) / s, s the deviation, h = upstream gamma, means over C:

    dz = (h - mean(h) - n mean(h n)) / s
    """
    factor = _keep_factor(seed, branch, rate)
    normal, inverse = _normalized(wide(inputs) + wide(branch) * factor, epsilon)
    upstream = wide(upstream)
    by_normal = upstream * affine[0]
    by_sum = by_normal - _mean(by_normal) - normal * _mean(by_normal * normal)
    by_sum = by_sum * inverse
    by_affine = [ops.sum(upstream * normal, axis=0), ops.sum(upstream, axis=0)]
    return (
        ops.cast(by_sum, inputs.dtype),
        ops.cast(by_sum * factor, branch.dtype),
        ops.stack(by_affine),
    )


def _normalized(rows, epsilon):
    """Rows with mean 0 and variance 1, and 1 / deviation (N, 1)."""
    centred = rows - _mean(rows)
    inverse = ops.rsqrt(_mean(centred * centred) + epsilon)
    return centred * inverse, inverse


def _mean(rows):
    return row_sums(rows) / rows.shape[-1]


def _keep_factor(seed, rows, rate):
    """0 or 1 / (1 - rate) for each number of rows (N, C)."""
    if rate == 0:
        return 1.0
    number, channels = ops.shape(rows)
    places = ops.cast(ops.arange(number * channels, dtype="int32"), "uint32")
    words = _mixed(_mixed(ops.bitwise_xor(places, _mixed(seed[0, 0]))) + seed[0, 1])
    kept = ops.reshape(words, (-1, channels)) >= _word(round(rate * 2**32))
    return ops.where(kept, 1 / (1 - rate), 0.0)


def _mixed(words):
    """A permutation of the 32-bit words in which each bit depends on all others.

    (Wellons 2018, Prospecting for Hash Functions, `lowbias32`.) Multiplications and
    shifts that XLA makes part of the loop around them; Philox stays one of its own.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = ops.bitwise_xor(words, ops.right_shift(words, _word(shift)))
        words = words * _word(factor)
    return ops.bitwise_xor(words, ops.right_shift(words, _word(16)))


def _word(value):
    return ops.convert_to_tensor(value, dtype="uint32")
