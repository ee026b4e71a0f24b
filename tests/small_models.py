"""Small models of every kind, with tokenizers, decided: no two hypotheses tie."""

import functools

import keras
import numpy as np

import keras_seqconv as ks
from keras_seqconv.tokenizers import (
    CharacterTokenizer,
    Dictionary,
    DictionaryTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
    train_tokenizers,
)

WORDS = [f"w{number}" for number in range(26)]
TOKENIZER = DictionaryTokenizer(Dictionary((word, 1) for word in WORDS))
TEXTS = ["the young garden", "an old house  in the wood", "tea for two, please!"]
SMALL = dict(
    hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=1,
    num_decoder_layers=1, kernel_sizes=[3],
)  # fmt: skip
SMALL_LM = dict(hidden_dim=8, intermediate_dim=8, num_heads=2, num_layers=1, seed=1)
SEARCH = {"num_beams": 2, "max_length": 6}


@functools.cache
def tokenizer_of(kind="words"):
    train = functools.partial(train_tokenizers, "moses_bpe", ())
    quotes = [*TEXTS, 'it\'s Tom & "Jerry" (x-ray)']
    return {
        "words": lambda: WordTokenizer(WORDS),
        "pieces": lambda: SentencePieceTokenizer.train(TEXTS, 290),
        "characters": lambda: CharacterTokenizer.train(TEXTS),
        "byte pairs": lambda: train(TEXTS, merges=9, moses=False, lowercase=True)[1],
        "moses": lambda: train(
            quotes, languages=("en", "en"), merges=9, normalize=True
        )[1],
        "dictionary": lambda: TOKENIZER,
    }[kind]()


def decided(model):
    """Clear preferences, so that no two hypotheses tie."""
    for weight in model.trainable_weights:
        weight.assign(2.5 * weight)
    return model


def encoder_decoder(size=30, **changes):
    keras.utils.set_random_seed(changes.get("seed", 1))  # of the weights
    return decided(
        ks.models.EncoderDecoder(size, size, **{**SMALL, "seed": 3, **changes})
    )


@functools.cache
def make_translator(kind="words", max_length=None, **changes):
    """With `max_length`, of learned positions."""
    if max_length is not None:
        changes["positions"] = {"kind": "learned", "max_length": max_length}
    tokenizer = tokenizer_of(kind)
    model = encoder_decoder(tokenizer.vocabulary_size, **changes)
    search = {"num_beams": 2, "max_length": 8, "length_penalty": 0.6}
    languages = ("en", "xx")
    return ks.Translator(model, tokenizer, tokenizer, search, languages=languages)


@functools.cache
def make_two_sided():
    """From words, the last first, to characters: no id of one side is one of the other.

    What mixes up source and target shows there.
    """
    keras.utils.set_random_seed(1)
    source, target = WordTokenizer(WORDS[::-1]), CharacterTokenizer.train(WORDS)
    sizes = source.vocabulary_size, target.vocabulary_size
    model = decided(ks.models.EncoderDecoder(*sizes, **{**SMALL, "seed": 3}))
    return ks.Translator(model, source, target, SEARCH, languages=("en", "xx"))


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
    models = [make_translator().model, make_conv_s2s().model]
    return ks.Translator(ks.decoding.Ensemble(models), TOKENIZER, TOKENIZER, SEARCH)


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
    mixers = ["light_conv", "dynamic_conv", "query_conv", "attention"]
    options = {**SMALL_LM, "num_layers": 4, "kernel_sizes": [3], "mixer": mixers}
    model = ks.models.LanguageModel(
        tokenizer.vocabulary_size, **options, adaptive_softmax=cutoffs,
        adaptive_input=cutoffs,
    )  # fmt: skip
    return ks.LanguageGenerator(decided(model), tokenizer, SEARCH)


def _translation_model(**options):
    return ks.models.EncoderDecoder(
        14, 14, **{**SMALL, "intermediate_dim": 12}, **options
    )


# Seeds of weights that `answering` has been seen to need.
ANSWERING = {
    "light_conv": (3, lambda: _translation_model(mixer="light_conv")),
    "dynamic_conv": (4, lambda: _translation_model(mixer="dynamic_conv")),
    "query_conv": (4, lambda: _translation_model(mixer="query_conv")),
    "attention": (2, lambda: _translation_model(mixer="attention")),
    "conv_s2s": (7, lambda: ks.models.ConvS2S(
        14, 14, embedding_dim=8, convolutions="[(6, 3)] * 2", output_dim=5)),
    "conv_lm": (3, lambda: ks.models.ConvLanguageModel(
        14, embedding_dim=8, convolutions="[(6, 3)] + [(6, 2, 2)]")),
    "attention_lm": (8, lambda: ks.models.LanguageModel(
        14, **{**SMALL_LM, "intermediate_dim": 12}, mixer="attention")),
}  # fmt: skip


@functools.cache
def answering(family):
    """A model whose answers differ with the source, in words and in length.

    Weights as in an untrained model write one word to every source. Here the
    preferences are clear, and the end token has the widest range.
    """
    if family == "ensemble":
        return ks.decoding.Ensemble([answering("dynamic_conv"), answering("conv_s2s")])
    seed, make = ANSWERING[family]
    model, random = make(), np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:
            values = random.normal(size=weight.shape)
            if weight.shape[0] != model.target_vocabulary_size:  # no embeddings
                values *= 2.0 / np.sqrt(np.prod(weight.shape[:-1]))
            if weight.shape[-1] == model.target_vocabulary_size:
                values[:, model.end_id] *= 3.0
            weight.assign(values)
        elif weight.path.endswith("/g"):
            weight.assign(np.ones(weight.shape))
    return model
