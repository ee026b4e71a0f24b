"""Chunks of a request inside of an exported graph."""

import numpy as np
import pytest

from keras_seqconv.export import servable

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


def test_chunks_have_no_more_tokens_than_said():
    """But for a sentence that has more: it is alone."""
    seen = []

    def run(ids):
        seen.append(tuple(ids.shape))
        return (ids[:, 0] * 10,)

    lengths = tf.constant([3, 9, 0, 8, 3, 3])
    ids = tf.repeat(lengths[:, None], 9, axis=1)
    (found,) = servable.in_chunks(lengths, 7, (tf.zeros(6, tf.int32),), run, ids)
    assert seen == [(1, 9), (1, 8), (2, 3), (1, 3)]
    np.testing.assert_array_equal(found, lengths * 10)


def test_compiled_shapes_are_the_next_ones():
    seen = []

    def double(ids):
        seen.append(tuple(ids.shape))
        return (2 * ids,)

    run = servable.compiled(double, 40, 1)
    for shape in ((4, 16), (3, 9), (5, 33)):
        (found,) = run(tf.ones(shape, tf.int32))
        np.testing.assert_array_equal(found[:, : shape[1]], np.full(shape, 2))
    assert seen == [(4, 16), (8, 40)]
