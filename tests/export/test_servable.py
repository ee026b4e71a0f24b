"""Parts of an exported graph: chunks of a request, limits, tokenizers."""

from types import SimpleNamespace

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.export.servable import Servable, in_chunks
from keras_seqconv.export.signatures import _OfTexts
from tests.small_models import SMALL_LM, decided, make_translator, make_two_sided

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
    (found,) = in_chunks(lengths, 7, (tf.zeros(6, tf.int32),), run, ids)
    assert seen == [(1, 9), (1, 8), (2, 3), (1, 3)]
    np.testing.assert_array_equal(found, lengths * 10)


def test_ids_of_exactly_the_limit_are_whole():
    """The longest target to score with its end, and the longest prompt without one."""
    exported = Servable(make_translator("dictionary", max_length=6), {})
    assert exported.max_target_length == 6
    target, vocabulary = [[7, 9, 4, 5, 8, 2]], exported.model.target_vocabulary_size
    ids, lengths = exported._checked(tf.constant(target), [6], vocabulary, 6, True)
    assert ids.numpy().tolist() == target and lengths.numpy().tolist() == [6]
    learned = {"kind": "learned", "max_length": 6}
    model = ks.models.LanguageModel(30, **SMALL_LM, kernel_sizes=[3], positions=learned)
    exported = Servable(ks.LanguageGenerator(decided(model)), {})
    assert exported.max_source_length == 5
    prompt = [[7, 9, 4, 5, 8]]
    ids, lengths = exported._sources(tf.constant(prompt), tf.constant([5]))
    assert ids.numpy().tolist() == prompt and lengths.numpy().tolist() == [5]


@pytest.mark.parametrize("xla", [False, True])
def test_limits_by_the_source_are_those_of_its_tokens(xla):
    options = {"num_beams": 1, "max_length": 2, "max_length_ratio": 1.0}
    with ks.ops.jit_scope(False):
        exported = Servable(make_translator("dictionary"), options, xla=xla)
        signature = [
            tf.TensorSpec([None, None], "int32"),
            tf.TensorSpec([None], "int32"),
        ]
        search = tf.function(exported.search, signature, autograph=False)
    found = search(tf.constant([[5, 6, 7, 2]]), tf.constant([4]))
    assert found["ids"].shape == (1, 1, 7)


def test_each_side_is_read_and_written_by_its_own_tokenizer():
    reader, writer = make_two_sided().tokenizers.values()
    settings = SimpleNamespace(
        translates=True, max_source_length=9, max_target_length=9
    )

    def search(ids, lengths):
        return {"ids": ids[:, None], "scores": tf.zeros((len(ids), 1))}

    texts = _OfTexts(settings, [reader, writer], search, lambda *inputs: inputs)
    sources, targets = ["w1 w2 w3", "w4"], ["w10", "w2 w1"]
    translation = texts.best(tf.constant(sources))["translation"].numpy().tolist()
    expected = writer.detokenize(reader.tokenize(sources))
    assert [text.decode() for text in translation] == expected != sources
    target_ids, _, source_ids, _ = texts.score_texts(
        tf.constant(targets), tf.constant(sources)
    )
    for ids, tokenizer, read in (
        (target_ids, writer, targets),
        (source_ids, reader, sources),
    ):
        rows = [[*filter(lambda x: x != 1, row)] for row in ids.numpy().tolist()]
        assert rows == tokenizer.tokenize(read)
