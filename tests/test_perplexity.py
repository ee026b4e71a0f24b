"""Perplexity: against log-softmax written here, with and without context."""

import math

import numpy as np
import pytest
from keras import ops

import keras_seqconv as ks
from keras_seqconv.decoding import Ensemble
from keras_seqconv.perplexity import (
    Perplexity,
    rows_perplexity,
    text_perplexity,
    translation_perplexity,
)
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer

TOKENIZER = DictionaryTokenizer(Dictionary((f"w{n}", 1) for n in range(12)))
LINES = ["w1 w2 w3", "w4", "", "w5 w6 w7 w8 w9", "w1 unknown w2"]


def language_model(**changes):
    model = ks.models.LanguageModel(
        16, hidden_dim=8, intermediate_dim=8, num_heads=2, num_layers=2,
        kernel_sizes=[3, 3], seed=1, **changes,
    )  # fmt: skip
    for weight in model.trainable_weights:
        weight.assign(2 * weight)
    return model


@pytest.fixture(scope="module")
def generator():
    return ks.LanguageGenerator(language_model(), TOKENIZER)


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def stream(lines):
    return [i for ids in TOKENIZER.tokenize(lines) for i in ids]


def token_log_probs(model, ids, seen):
    """Of each token of a stream, from at most so many before it, one by one."""
    found = []
    for place, token in enumerate(ids):
        first = max(0, place - seen(place))
        inputs = [2, *ids][first : place + 1]
        logits = ops.convert_to_numpy(model({"target_ids": np.array([inputs])}))
        found.append(log_softmax(logits[0, -1])[token])
    return np.array(found)


@pytest.mark.parametrize("length, context", ((4, 0), (5, 3), (100, 0)))
def test_running_text(generator, length, context):
    ids = stream(LINES)
    fresh = length - context
    # The position in its block, and as much context as there is.
    known = token_log_probs(
        generator.model, ids, lambda place: place % fresh + min(context, place)
    )
    found = text_perplexity(
        generator, iter(LINES), context_window=context, tokens_per_sample=length
    )
    assert found.tokens == len(ids) == 17
    assert found.words == len(" ".join(LINES).split()) + 5 == 17
    assert found.total == pytest.approx(-known.sum(), rel=1e-5)
    assert found.nll == found.total / 17
    assert found.perplexity == pytest.approx(2**found.bits)


def test_lines_alone(generator):
    found = text_perplexity(generator, LINES, break_mode="eos")
    known = generator.score(LINES, normalize=False)
    assert found.total == pytest.approx(-sum(known), rel=1e-5)
    assert (found.tokens, found.words) == (17, 17)
    # The empty line divides documents, and is not scored.
    found = text_perplexity(generator, LINES, break_mode="complete_doc")
    assert (found.tokens, found.words) == (16, 16)


def test_ensemble_and_adaptive_softmax():
    models = [language_model(), language_model(adaptive_softmax={"cutoffs": [8]})]
    ids = stream(LINES)
    known = [token_log_probs(models[0], ids, lambda place: place)]
    inputs = np.array([[2, *ids[:-1]]])
    features = models[1]({"target_ids": inputs})
    scores = models[1].log_prob(features, np.array([ids]))
    known.append(ops.convert_to_numpy(scores)[0].astype("float64"))
    rows = [([2, *ids[:-1]], ids)]
    for model, expected in (
        (models[1], known[1]),
        (Ensemble(models), np.log((np.exp(known[0]) + np.exp(known[1])) / 2)),
    ):
        found = rows_perplexity(model, rows)
        assert found.total == pytest.approx(-expected.sum(), rel=1e-5)


def test_translations():
    tokenizer = DictionaryTokenizer(
        Dictionary((word, 1) for word in ("a@@", "b", "c", "d")), remove_bpe=True
    )
    model = ks.models.EncoderDecoder(
        8, 8, hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=1,
        num_decoder_layers=1, seed=2,
    )  # fmt: skip
    translator = ks.Translator(model, tokenizer, tokenizer)
    sources, targets = ["b c", "d"], ["a@@ b", "c d b"]
    found = translation_perplexity(translator, sources, targets)
    expected = 0.0
    for source, target in zip(
        tokenizer.tokenize(sources), tokenizer.tokenize(targets), strict=True
    ):
        inputs = {
            "source_ids": np.array([source]),
            "target_ids": np.array([[2, *target[:-1]]]),
        }
        known = log_softmax(ops.convert_to_numpy(model(inputs))[0])
        expected -= known[range(len(target)), target].sum()
    assert found.total == pytest.approx(expected, rel=1e-5)
    assert (found.tokens, found.words) == (7, 7)


def test_printed():
    found = Perplexity(8 * math.log(2), 4, 2)
    assert found.lines() == [
        "token     nll 1.3863, loss (base 2) 2.0000, perplexity 4.00 (4 tokens)",
        "word      nll 2.7726, loss (base 2) 4.0000, perplexity 16.00 (2 words)",
    ]


def test_impossible_tokens_are_left_out(generator):
    class Never:
        pad_id, target_vocabulary_size, max_target_length = 1, 16, None

        def __call__(self, inputs):
            return inputs["target_ids"]

        def log_prob(self, outputs, ids):
            return ops.where(ids == 5, -float("inf"), -ops.ones(ops.shape(ids)))

    found = rows_perplexity(Never(), [([2, 4, 5], [4, 5, 2])])
    assert found == Perplexity(2.0, 2, 2, 1)


def test_refused(generator):
    model = language_model(positions={"kind": "learned", "max_length": 4})
    short = ks.LanguageGenerator(model, TOKENIZER)
    for used, lines, options, words in (
        (generator, [], {}, "holds none"),
        (generator, LINES, {"context_window": 512}, "=512, tokens_per_sample=512"),
        (generator, LINES, {"break_mode": "doc"}, "`break_mode`"),
        (short, ["w1", "w1 w2 w3 w4"], {"break_mode": "eos"}, "at most 4 .*row 2 with"),
    ):
        with pytest.raises(ValueError, match=words):
            text_perplexity(used, lines, **options)
    assert text_perplexity(short, ["w1 w2 w3 w4 w5"]).tokens == 6
    with pytest.raises(ValueError, match="Received: 1 and 0"):
        translation_perplexity(generator, ["a"], [])
