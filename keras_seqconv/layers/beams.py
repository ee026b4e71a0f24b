"""Cross-attention of several beams to one copy of their source.

Letters: B sentences, G beams of a sentence, n new positions.
"""

from keras import ops

from keras_seqconv.layers.rows import split_positions


def fold_beams(query, memory):
    """(B * G, n, ...) -> (B, G * n, ...): beams become positions of their sentence.

    The G rows of one sentence are adjacent. G follows from the rows of `memory`
    (B, ...), also where shapes are dynamic, and does not matter of an empty batch.
    """
    rows, new, *rest = ops.shape(query)
    sentences = ops.shape(memory)[0]
    if isinstance(rows, int) and rows == sentences:
        return query
    static = isinstance(sentences, int)
    beams = rows // (max(sentences, 1) if static else ops.maximum(sentences, 1))
    return ops.reshape(query, (sentences, beams * new, *rest))


def unfold_beams(outputs, inputs):
    """(B, G * n, ...) -> (B * G, n, ...), the rows and positions of `inputs`."""
    return split_positions(outputs, inputs, *ops.shape(outputs)[2:])
