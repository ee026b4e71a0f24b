"""Small models of every kind for the tests of exports."""

import functools

import keras

import keras_seqconv as ks
import keras_seqconv.export  # noqa: F401 (ks.export)
from keras_seqconv.tokenizers import (
    CharacterTokenizer,
    Dictionary,
    DictionaryTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)

WORDS = [f"w{number}" for number in range(26)]
TEXTS = ["the young garden", "an old house  in the wood", "tea for two, please!"]
SMALL = dict(
    hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=1,
    num_decoder_layers=1, kernel_sizes=[3],
)  # fmt: skip
SEARCH = {"num_beams": 2, "max_length": 6}


@functools.cache
def tokenizer_of(kind="words"):
    train = DictionaryTokenizer.train
    quotes = [*TEXTS, 'it\'s Tom & "Jerry" (x-ray)']
    return {
        "words": lambda: WordTokenizer(WORDS),
        "pieces": lambda: SentencePieceTokenizer.train(TEXTS, 290),
        "characters": lambda: CharacterTokenizer.train(TEXTS),
        "byte pairs": lambda: train(TEXTS, merges=9, moses=False, lowercase=True),
        "moses": lambda: train(quotes, "en", merges=9, normalize=True),
        "dictionary": lambda: DictionaryTokenizer(Dictionary((w, 1) for w in WORDS)),
    }[kind]()


def decided(model):
    """Clear preferences, so that no two hypotheses tie."""
    for weight in model.trainable_weights:
        weight.assign(2.5 * weight)
    return model


@functools.cache
def make_translator(kind="words", **changes):
    keras.utils.set_random_seed(1)
    tokenizer = tokenizer_of(kind)
    size = tokenizer.vocabulary_size
    model = ks.models.EncoderDecoder(size, size, seed=3, **{**SMALL, **changes})
    search = {"num_beams": 2, "max_length": 8, "length_penalty": 0.6}
    return ks.Translator(decided(model), tokenizer, tokenizer, search)


@functools.cache
def make_conv_s2s():
    """With learned positions and weight normalisation."""
    keras.utils.set_random_seed(2)
    tokenizer = tokenizer_of()
    size = tokenizer.vocabulary_size
    model = ks.models.ConvS2S(
        size, size, embedding_dim=8, convolutions="[(8, 3)] * 2", output_dim=8,
        max_length=12, seed=1,
    )  # fmt: skip
    search = {"num_beams": 3, "max_length": 6, "max_length_ratio": 0.5}
    return ks.Translator(decided(model), tokenizer, tokenizer, search)


@functools.cache
def make_ensemble():
    """Of models of different families."""
    tokenizer = tokenizer_of("dictionary")
    models = [make_translator().model, make_conv_s2s().model]
    return ks.Translator(ks.decoding.Ensemble(models), tokenizer, tokenizer, SEARCH)


@functools.cache
def make_language_model():
    keras.utils.set_random_seed(3)
    tokenizer = tokenizer_of()
    model = ks.models.ConvLanguageModel(
        tokenizer.vocabulary_size, embedding_dim=8, convolutions="[(8, 3)] * 2"
    )
    return ks.LanguageGenerator(decided(model), tokenizer, SEARCH)


def make_adaptive_language_model():
    """Of all mixers, with adaptive input and softmax."""
    keras.utils.set_random_seed(4)
    tokenizer = tokenizer_of()
    cutoffs = {"cutoffs": [12], "factor": 2.0}
    model = ks.models.LanguageModel(
        tokenizer.vocabulary_size, hidden_dim=8, intermediate_dim=8, num_heads=2,
        num_layers=4, mixer=["light_conv", "dynamic_conv", "query_conv", "attention"],
        kernel_sizes=[3], adaptive_softmax=cutoffs, adaptive_input=cutoffs,
    )  # fmt: skip
    return ks.LanguageGenerator(decided(model), tokenizer, SEARCH)
