"""Operations in one pass over memory where a composition of others takes many.

Dropout from half as many random bits; the end of a sub-layer in training (dropout,
residual connection, normalization), of which each direction is one compiled function
that keeps nothing; log-probabilities of given words, without all logits at once; and
reads at indices, writes at positions.

Letters: C channels, N rows, all positions of a batch, L words.
"""

import keras
from keras import ops

from keras_seqconv.ops.compilation import (
    compiled_by_xla,
    leaves_tensorflow,
    on_cpu,
    padded_rows,
    run_formula,
    with_gradient,
)
from keras_seqconv.support import tf

# Logits of one block, rows * L, as far as the limits on its rows allow. Smaller blocks
# pass more often over the gradient of the table, larger ones waste more of the last
# block of a tail.
BLOCK_SIZE = 2**23
FEWEST_ROWS, MOST_ROWS = 64, 1024


def wide(values):
    """At least float32."""
    return ops.cast(values, keras.backend.result_type(values.dtype, "float32"))


def softmax(logits):
    if logits.shape[-1] == 1:  # Keras warns about this one: it is meant here
        return ops.ones_like(logits)
    return ops.softmax(logits, axis=-1)


def gated(inputs, gate: str):
    """The values of a projection: as they are ("none"), "glu" or "gau"."""
    if gate == "none":
        return inputs
    # Processors compute the functions of bfloat16 one number at a time.
    values, gates = ops.split(wide(inputs), 2, axis=-1)
    if gate == "gau":
        values = ops.tanh(values)
    return ops.cast(values * ops.sigmoid(gates), inputs.dtype)


# Reads at indices that are inside of an axis. `keras.ops.take` and `take_along_axis`
# also take negative indices, for which TensorFlow runs 4 and 20 operations more: in a
# step of a search they cost as much as its products.


def take(x, indices, axis: int = 0):
    """`keras.ops.take`."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, indices, axis=axis)
    return tf.gather(x, indices, axis=axis)


def take_each(x, indices):
    """`take_along_axis` with axis 1: x (B, N), indices (B, n) -> (B, n)."""
    if keras.backend.backend() != "tensorflow":
        return ops.take_along_axis(x, indices, axis=1)
    return tf.gather(x, indices, axis=1, batch_dims=1)


def take_in_rows(x, indices):
    """x (R, N, C), indices (R, n) -> (R, n, C)."""
    count, size = x.shape[1:]
    rows = ops.arange(ops.shape(x)[0], dtype="int32")
    return take(ops.reshape(x, (-1, size)), indices + rows[:, None] * count)


def float32_logits(logits):
    """Logits that TensorFlow does not cast again for each use.

    Its optimizer moves a cast from bfloat16 behind every reshaping of the result, and
    the passes over the logits would read a copy each, (R, V) float32. It does not look
    past `ensure_shape`, which moves no data.
    """
    logits = ops.cast(logits, "float32")
    if keras.backend.backend() != "tensorflow":
        return logits
    return tf.ensure_shape(logits, logits.shape)


def split_not_finite(values):
    """values (..., C) with zeros for NaN and infinity, and (..., 1): where any were.

    A factor of 0 hides a number from a sum unless that is not finite: the sum is NaN.
    Sums with such factors take the first result and mark theirs by the second.
    """
    finite = ops.isfinite(values)
    zeroed = ops.where(finite, values, ops.zeros_like(values))
    return zeroed, ops.logical_not(ops.all(finite, axis=-1, keepdims=True))


def nan_in_keys(keys, values):
    """A memory (B, H, S, D) with finite values: where they were not, keys are NaN.

    Masks select logits, and so hide NaN of keys. They do not hide NaN of values, which
    a weight of 0 multiplies. A single position is hidden from no query that sees any.
    """

    def marked():
        zeroed, spoiled = split_not_finite(values)
        return ops.where(spoiled, float("nan"), keys), zeroed

    if keys.shape[2] == 1:
        return {"keys": keys, "values": values}
    # A sum that overflows costs time and changes nothing.
    finite = ops.isfinite(ops.sum(values))
    keys, values = ops.cond(finite, lambda: (keys, values), marked)
    return {"keys": keys, "values": values}


def write_positions(cache, rows, start):
    """Put rows (B, H, n, D) into cache (B, H, max_length, D) from position start.

    A scatter, not `ops.slice_update`: on TensorFlow the latter is an XLA op, which is
    compiled on its own in every graph and refused by a stock TensorFlow Serving.
    """
    batch, heads, new, head_dim = ops.shape(rows)
    time = ops.arange(new, dtype="int32") + start
    row = ops.arange(batch * heads, dtype="int32")
    indices = ops.stack(ops.meshgrid(row, time, indexing="ij"), axis=-1)
    written = ops.scatter_update(
        ops.reshape(cache, (-1, ops.shape(cache)[2], head_dim)),
        # Flat: Keras takes a list of indices to the same meaning on every backend.
        ops.reshape(indices, (-1, 2)),
        ops.reshape(rows, (-1, head_dim)),
    )
    return ops.reshape(written, ops.shape(cache))


def row_sums(rows):
    """(N, C) -> (N, 1).

    On a CPU XLA adds the numbers of a row one after the other, which costs more than
    all else in a normalization; the product with ones is the same sum, vectorised. (On
    GPUs products may round to fewer bits.)
    """
    if not on_cpu():
        return ops.sum(rows, axis=-1, keepdims=True)
    return ops.matmul(rows, ops.ones((rows.shape[-1], 1), dtype=rows.dtype))


def dropout(inputs, rate: float, seed_generator: keras.random.SeedGenerator):
    """Zero elements at random and scale the others by 1 / (1 - rate).

    On TensorFlow the decision takes 16 random bits instead of 32, and the mask is kept
    as the factor that the gradient multiplies with: 1.3 ms instead of 3.1 for a million
    numbers on two cores, and 1.8 instead of 3.2 with the gradient. The rate is rounded
    to a multiple of 2^-16, and the scale is that of the rounded rate, so that the
    expected value is exact. On other backends this is `keras.random.dropout`.

    Args:
        inputs: floating-point tensor of any shape.
        rate: share of zeros, 0 < rate < 1.
        seed_generator: drawn from once.

    Returns:
        Tensor of the shape and dtype of `inputs`.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.random.dropout(inputs, rate, seed=seed_generator)
    inputs = tf.convert_to_tensor(inputs)
    threshold = min(round(rate * 2**16), 2**16 - 1)
    shape = tf.shape(inputs)
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(  # each of two decisions
        [(size + 1) // 2],
        tf.cast(seed_generator.next(), tf.int32),
        minval=None,
        maxval=None,
        dtype=tf.uint32,
    )
    halves = tf.reshape(tf.bitcast(words, tf.uint16), [-1])
    width = inputs.shape[-1] if inputs.shape.rank else None
    if width is None or width % 2:  # else there is none too many
        halves = halves[:size]
    keep = tf.reshape(halves, shape) >= tf.constant(threshold, tf.uint16)
    scale = 2**16 / (2**16 - threshold)
    return inputs * (tf.cast(keep, inputs.dtype) * tf.cast(scale, inputs.dtype))


def layer_norm(inputs, gamma, beta, epsilon: float):
    """LN(inputs) gamma + beta for inputs (..., C), in at least float32.

    (Ba et al. 2016, Layer Normalization.) Nine operations of TensorFlow, of which the
    layer of Keras runs fourteen: steps of a search consist of little else.
    """
    x = wide(inputs)
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    if leaves_tensorflow():  # as ONNX Runtime knows it, and makes it one operation
        variance = ops.mean(ops.power(centred, 2.0), axis=-1, keepdims=True)
        normal = centred / ops.sqrt(variance + epsilon)
    else:
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        normal = centred * ops.rsqrt(variance + epsilon)
    return ops.cast(normal * wide(gamma) + wide(beta), inputs.dtype)


def add_and_norm(inputs, branch, gamma, beta, *, rate: float, seed, epsilon: float):
    """LN(inputs + dropout(branch)) gamma + beta, with a hand-written gradient.

    (Vaswani et al. 2017, Attention Is All You Need, section 5.4; Ba et al. 2016, Layer
    Normalization.) Computed in at least float32.

    Args:
        inputs, branch: (..., C), of one floating-point dtype.
        gamma, beta: (C,), at least float32.
        rate: share of `branch` that becomes 0, 0 <= rate < 1; the rest is scaled by
            1 / (1 - rate).
        seed: two integers as in `keras.random.SeedGenerator.next`; the same ones drop
            the same.
        epsilon: added to the variance.

    Returns:
        Tensor (..., C) of the dtype of `inputs`.
    """
    affine = ops.concatenate([ops.reshape(w, (1, -1)) for w in (gamma, beta)])
    seed = ops.reshape(ops.cast(seed, "uint32"), (1, 2))
    inside_xla = compiled_by_xla()
    static = (float(rate), float(epsilon))

    def gradient(upstream, inputs, branch, affine, seed):
        tensors = (upstream, inputs, branch, affine, seed)
        return *_run(_norm_gradient, tensors, 3, static, inside_xla), None

    flat = [ops.reshape(tensor, (-1, tensor.shape[-1])) for tensor in (inputs, branch)]
    rows = with_gradient(
        lambda *tensors: _run(_add_and_norm, tensors, 2, static, inside_xla), gradient
    )(*map(padded_rows, flat), wide(affine), seed)
    # A slice, whose gradient pads: that of rows[:N] is a copy.
    rows = ops.slice(rows, (0, 0), ops.shape(flat[0]))
    return ops.reshape(rows, ops.shape(inputs))


def _run(formula, tensors, rows, static, inside_xla):
    return run_formula(
        formula, formula, *tensors, static=static, inside_xla=inside_xla, rows=rows
    )


def _add_and_norm(inputs, branch, affine, seed, rate, epsilon):
    factor = _keep_factor(seed, branch, rate)
    normal, _ = _normalized(wide(inputs) + wide(branch) * factor, epsilon)
    return ops.cast(normal * affine[0] + affine[1], inputs.dtype)


def _norm_gradient(upstream, inputs, branch, affine, seed, rate, epsilon):
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
    dtype = keras.backend.result_type(rows.dtype, "float32")
    return ops.cast(ops.where(kept, 1 / (1 - rate), 0.0), dtype)


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


def log_prob_of_rows(hidden, table, labels, order, first, count):
    """log softmax(hidden table^T)[labels] for some rows, 0 for the others, (N,).

    The logits exist for one block of rows at a time. Under autodiff the loop would keep
    those of every block, and JAX could not differentiate it: its length depends on
    `count`.

    Args:
        hidden: (N, D).
        table: (L, D).
        labels: (N,) int32, indices of rows of `table`.
        order: (N,) int32; the rows are order[first : first + count].
        first, count: int32 scalars.
    """
    tensors = (hidden, table, labels, order, first, count)
    size = min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_SIZE // table.shape[0]))
    number = ops.shape(order)[0]
    if isinstance(number, int):  # else all that could be are allowed for
        size = max(1, min(size, number))
    if keras.backend.backend() == "jax":
        # Called eagerly, JAX compiles a loop anew unless it stands in a function.
        return run_formula(_differentiable, _differentiable, *tensors, static=(size,))
    return _differentiable(*tensors, size)


def _differentiable(*tensors_and_size):
    *tensors, size = tensors_and_size
    return with_gradient(
        lambda *tensors: _blockwise_log_prob(*tensors, size),
        lambda upstream, *tensors: _blockwise_gradient(upstream, *tensors, size),
    )(*tensors)


def _blockwise_log_prob(hidden, table, labels, order, first, count, size):
    def body(source, real, put, log_probs):
        logits = ops.einsum("nd,ld->nl", ops.take(hidden, source, 0), table)
        logits = wide(logits)
        wanted = ops.take(labels, source, 0)[:, None]
        chosen = ops.take_along_axis(logits, wanted, axis=-1)[:, 0]
        return (put(log_probs, chosen - ops.logsumexp(logits, axis=-1)),)

    log_probs = _zeros_and_spare(wide(hidden[:, 0]))
    (log_probs,) = _over_blocks(body, (log_probs,), order, first, count, size)
    return log_probs[:-1]


def _blockwise_gradient(upstream, hidden, table, labels, order, first, count, size):
    """With p = softmax(logits): d logits = upstream (one_hot(labels) - p).

    The part of the one-hot vectors needs no logits and is added after the loop.
    """
    dtype = hidden.dtype

    def body(source, real, put, by_hidden, by_table):
        inputs = ops.take(hidden, source, 0)
        logits = wide(ops.einsum("nd,ld->nl", inputs, table))
        scale = ops.where(real, ops.take(upstream, source, 0), 0.0)
        logits = ops.cast(softmax(logits) * -scale[:, None], dtype)
        by_table += ops.cast(ops.einsum("nl,nd->ld", logits, inputs), by_table.dtype)
        return put(by_hidden, ops.matmul(logits, table)), by_table

    by_hidden, by_table = _over_blocks(
        body,
        (_zeros_and_spare(hidden), ops.zeros_like(wide(table))),
        order,
        first,
        count,
        size,
    )
    number = ops.shape(order)[0]
    place = ops.arange(number, dtype="int32")
    place = ops.logical_and(place >= first, place < first + count)
    member = ops.scatter_update(
        ops.zeros_like(order), order[:, None], ops.cast(place, "int32")
    )
    scale = ops.where(member > 0, upstream, 0.0)[:, None]
    by_hidden = by_hidden[:-1]
    by_hidden += ops.cast(scale * wide(ops.take(table, labels, 0)), dtype)
    by_table += ops.segment_sum(scale * wide(hidden), labels, table.shape[0])
    return by_hidden, ops.cast(by_table, table.dtype), None, None, None, None


def _zeros_and_spare(tensor):
    """Zeros of the shape of `tensor` with one more row, which takes what is surplus."""
    return ops.concatenate([ops.zeros_like(tensor), ops.zeros_like(tensor[:1])], axis=0)


def _over_blocks(body, carried, order, first, count, size):
    """carried = body(source, real, put, *carried) for blocks of order[first:][:count].

    `source` are the rows to read, any row where `real` is False: in the last block some
    are surplus. `put(buffer, values)` writes them, the surplus to the spare row.
    """
    number = ops.shape(order)[0]
    padded = ops.concatenate([order, ops.zeros((size,), dtype="int32")])

    def step(start, *carried):
        source = ops.slice(padded, (first + start,), (size,))
        real = start + ops.arange(size, dtype="int32") < count
        target = ops.where(real, source, number)[:, None]

        def put(buffer, values):
            return ops.scatter_update(buffer, target, values)

        return (start + size, *body(source, real, put, *carried))

    results = ops.while_loop(
        lambda start, *_: start < count, step, (ops.zeros_like(count), *carried)
    )
    return results[1:]
