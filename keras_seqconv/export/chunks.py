"""Any number of sentences in bounded memory: a loop over chunks, inside of the graph.

Letters: N sentences of a request, B of a chunk, W width of a chunk.
"""

from collections.abc import Callable


def in_chunks(lengths, tokens: int, initial: tuple, run: Callable) -> tuple:
    """Results of all sentences, computed for some at a time, the longest first.

    A sentence never waits in a chunk for one that is much longer, and no chunk has more
    than `tokens` tokens, padding included, unless one sentence has.

    Args:
        lengths: (N,) int32; sentences of length 0 keep their initial results.
        tokens: most tokens of a chunk.
        initial: tensors (N, ...) to begin with.
        run: function of indices (B,) of sentences and their width W, () int32 ->
            tensors (B, ...), one for each of `initial`.

    Returns:
        Tensors like `initial`, in the order of `lengths`.
    """
    import tensorflow as tf

    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    count = tf.math.count_nonzero(lengths, dtype=tf.int32)

    def body(start, results):
        width = lengths[order[start]]
        rows = tf.maximum(tokens // width, 1)
        chosen = order[start : tf.minimum(start + rows, count)]
        found = run(chosen, width)
        results = tuple(
            tf.tensor_scatter_nd_update(result, chosen[:, None], one)
            for result, one in zip(results, found, strict=True)
        )
        return start + tf.size(chosen), results

    _, results = tf.while_loop(
        lambda start, _: start < count,
        body,
        (tf.constant(0), initial),
        parallel_iterations=1,
    )
    return results


def compiled(function: Callable, most: int) -> Callable:
    """`function(ids (B, W), ...) -> tensors (B, ...)`, compiled by XLA.

    Each shape is a compilation: so B and W are rounded up, B to a power of two with
    copies of the first row, W to one of 16, 24, 32, 48, 64 and so on, at most `most`.
    """
    import tensorflow as tf

    jitted = tf.function(function, jit_compile=True, autograph=False)
    widths = tf.constant(_widths(most))

    def run(ids, pad_id):
        rows, width = tf.unstack(tf.shape(ids))
        wide = tf.reduce_min(tf.where(widths >= width, widths, widths[-1]))
        high = tf.reduce_min(tf.where(rows <= _POWERS, _POWERS, _POWERS[-1]))
        ids = tf.pad(ids, [[0, 0], [0, wide - width]], constant_values=pad_id)
        ids = tf.concat([ids, tf.repeat(ids[:1], high - rows, axis=0)], axis=0)
        return tuple(result[:rows] for result in jitted(ids))

    return run


_POWERS = [1 << power for power in range(31)]


def _widths(most: int) -> list[int]:
    """All widths up to the first that is at least `most`, which takes its place."""
    widths, width = [], 16
    while width < most:
        widths.append(width)
        width = width * 3 // 2 if width & (width - 1) == 0 else width // 3 * 4
    return [*widths, most]
