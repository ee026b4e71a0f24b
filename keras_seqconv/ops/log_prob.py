"""Log-probabilities of given words, without all logits at once.

Letters: N positions, L words, D channels.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_seqconv.ops.compilation import run
from keras_seqconv.ops.gradients import with_gradient
from keras_seqconv.ops.rows import wide

# Logits of one block, rows * L, as far as the limits on its rows allow. Smaller blocks
# pass more often over the gradient of the table, larger ones waste more of the last
# block of a tail.
BLOCK_SIZE = 2**23
FEWEST_ROWS, MOST_ROWS = 64, 1024


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
    size = _rows_of_a_block(ops.shape(order)[0], table.shape[0])
    if keras.backend.backend() == "jax":
        # Called eagerly, JAX compiles a loop anew unless it stands in a function.
        return run(_differentiable, _differentiable, *tensors, static=(size,))
    return _differentiable(*tensors, size)


def _differentiable(*tensors_and_size):
    *tensors, size = tensors_and_size
    return with_gradient(
        lambda *tensors: _blockwise_log_prob(*tensors, size),
        lambda upstream, *tensors: _blockwise_gradient(upstream, *tensors, size),
    )(*tensors)


def _blockwise_log_prob(hidden, table, labels, order, first, count, size):
    def body(rows, found):
        logits = ops.einsum("nd,ld->nl", ops.take(hidden, rows.source, 0), table)
        logits = wide(logits)
        wanted = ops.take(labels, rows.source, 0)[:, None]
        chosen = ops.take_along_axis(logits, wanted, axis=-1)[:, 0]
        return (rows.put(found, chosen - ops.logsumexp(logits, axis=-1)),)

    found = _zeros_and_spare(wide(hidden[:, 0]))
    (found,) = _over_blocks(body, (found,), order, first, count, size)
    return found[:-1]


def _blockwise_gradient(upstream, hidden, table, labels, order, first, count, size):
    """With p = softmax(logits): d logits = upstream (one_hot(labels) - p).

    The part of the one-hot vectors needs no logits and is added after the loop.
    """
    dtype = hidden.dtype

    def body(rows, by_hidden, by_table):
        inputs = ops.take(hidden, rows.source, 0)
        logits = wide(ops.einsum("nd,ld->nl", inputs, table))
        scale = ops.where(rows.real, ops.take(upstream, rows.source, 0), 0.0)
        logits = ops.cast(ops.softmax(logits, axis=-1) * -scale[:, None], dtype)
        by_table += ops.cast(ops.einsum("nl,nd->ld", logits, inputs), by_table.dtype)
        return rows.put(by_hidden, ops.matmul(logits, table)), by_table

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


class _Rows(NamedTuple):
    """One block of rows; the last block may be part real, part surplus."""

    source: Any  # (rows,) int32: where to read; any row for the surplus
    target: Any  # (rows,) int32: where to write; the spare row for the surplus
    real: Any  # (rows,) bool

    def put(self, buffer, values):
        return ops.scatter_update(buffer, self.target[:, None], values)


def _zeros_and_spare(like):
    """Zeros of the shape of `like` with one more row, which takes what is surplus."""
    return ops.concatenate([ops.zeros_like(like), ops.zeros_like(like[:1])], axis=0)


def _rows_of_a_block(number, num_words):
    """An int, whether the number of all rows is known or not."""
    size = min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_SIZE // num_words))
    return max(1, min(size, number)) if isinstance(number, int) else size


def _over_blocks(body, carried, order, first, count, size):
    """carried = body(rows, *carried) for the blocks of order[first : first + count]."""
    number = ops.shape(order)[0]
    padded = ops.concatenate([order, ops.zeros((size,), dtype="int32")])

    def step(start, *carried):
        source = ops.slice(padded, (first + start,), (size,))
        real = start + ops.arange(size, dtype="int32") < count
        rows = _Rows(source, ops.where(real, source, number), real)
        return (start + size, *body(rows, *carried))

    results = ops.while_loop(
        lambda start, *_: start < count, step, (ops.zeros_like(count), *carried)
    )
    return results[1:]
