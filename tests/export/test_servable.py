"""Chunks of a request inside of an exported graph."""

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.export import servable
from tests.small_models import SMALL_LM, decided, make_translator

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


def test_a_target_of_exactly_the_limit_is_scored_whole():
    translator = make_translator("dictionary", max_length=6)
    served = servable.Servable(translator, {})
    assert served.max_target_length == 6
    source, target = [[5, 6, 2]], [[7, 9, 4, 5, 8, 2]]
    found = tf.function(served.score)(
        tf.constant(target), tf.constant([6]), tf.constant(source), tf.constant([3])
    )
    penalty = {"length_penalty": 0.6}
    expected = ks.decoding.score(translator.model, source, target, **penalty)
    np.testing.assert_allclose(found["score"], expected.scores, rtol=1e-5)


def test_a_prompt_of_exactly_the_limit_is_read_whole():
    learned = {"kind": "learned", "max_length": 6}
    model = ks.models.LanguageModel(30, **SMALL_LM, kernel_sizes=[3], positions=learned)
    served = servable.Servable(ks.LanguageGenerator(decided(model)), {"num_beams": 2})
    assert served.max_source_length == 5
    prompt = [[7, 9, 4, 5, 8]]
    found = tf.function(served.search)(tf.constant(prompt), tf.constant([5]))
    options = {"num_beams": 2, "max_length": 200}
    expected = ks.decoding.beam_search(model, prefix_ids=prompt, **options)[0]
    assert found["ids"][0, 0, :5].numpy().tolist() == prompt[0]
    np.testing.assert_array_equal(found["ids"][0, 0], expected[0, 0])
