"""A small model whose two tokenizers disagree about every word.

What mixes up source and target shows there: ids of one are no words of the other, and
one reads words, the other characters.
"""

import functools

import keras

import keras_seqconv as ks
from keras_seqconv.tokenizers import CharacterTokenizer, WordTokenizer
from tests.small_models import SEARCH, SMALL, WORDS, decided


@functools.cache
def make_two_sided():
    """From words, the last first, to characters."""
    keras.utils.set_random_seed(1)
    source, target = WordTokenizer(WORDS[::-1]), CharacterTokenizer.train(WORDS)
    sizes = source.vocabulary_size, target.vocabulary_size
    model = decided(ks.models.EncoderDecoder(*sizes, **{**SMALL, "seed": 3}))
    return ks.Translator(model, source, target, SEARCH, languages=("en", "xx"))
