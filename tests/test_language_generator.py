"""Texts scored and continued by language models."""

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from tests.cases import quick_and_slow
from tests.models.families import ADAPTIVE, language_model
from tests.small_models import TOKENIZER, decided

DRAWN = {"seed": 1, "temperature": 4.0}
SMALL = dict(hidden_dim=16, num_layers=1, dropout=0.0, kernel_sizes=3)
LEARNED = dict(mixer="attention", positions={"kind": "learned", "max_length": 10})
MODELS = {
    "adaptive": lambda: language_model(30, **SMALL, adaptive_softmax=ADAPTIVE),
    "learned": lambda: language_model(30, **SMALL, **LEARNED),
}


@pytest.fixture(scope="module", params=quick_and_slow(["adaptive"], ["learned"]))
def generator(request):
    keras.utils.set_random_seed(1)
    model = decided(MODELS[request.param]())
    return ks.LanguageGenerator(model, TOKENIZER, {"num_beams": 2, "max_length": 8})


def test_scores_are_means_of_log_probabilities(generator):
    texts = ["w1 w2 w3", "", "w9", "w4 w4 unheard w5 w6 w7"]
    found = generator.score(texts)
    for text, score in zip(texts, found, strict=True):
        ids = TOKENIZER.tokenize([text])[0]
        more = [1] * (8 - len(ids))
        inputs, ids_ = np.array([[2, *ids[:-1], *more]]), np.array([[*ids, *more]])
        model = generator.model
        log_probs = model.log_prob(model({"target_ids": inputs}), ids_)
        mean = np.mean(keras.ops.convert_to_numpy(log_probs)[0, : len(ids)])
        assert score == pytest.approx(float(mean), abs=1e-4)
    assert generator.score(["w1 w2"], length_penalty=0.0)[0] == pytest.approx(
        3 * generator.score(["w1 w2"])[0]
    )
    assert generator.score([]) == []


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_line_break_that_is_a_token_is_the_end(tmp_path):
    """As in training: such a model never sees the end token."""
    import tensorflow as tf

    tokenizer = ks.tokenizers.CharacterTokenizer(["a", "b", "\n"])
    model = decided(language_model(tokenizer.vocabulary_size, **SMALL))
    generator = ks.LanguageGenerator(model, tokenizer)
    texts = ["ab", "", "bbaab"]
    found = generator.score(texts)
    for text, score in zip(texts, found, strict=True):
        perplexity = ks.evaluation.text_perplexity(generator, text).perplexity
        assert np.exp(-score) == pytest.approx(perplexity, rel=1e-4)
    generator.save(tmp_path / "model", onnx=True)
    of_onnx = ks.load(tmp_path / "model", runtime="onnx").score(texts)
    np.testing.assert_allclose(of_onnx, found, atol=1e-4)
    path = ks.export.saved_model(generator, tmp_path / "served")
    served = tf.saved_model.load(str(path)).signatures["score"](text=tf.constant(texts))
    np.testing.assert_allclose(served["score"], found, atol=1e-4)


def test_generated_texts_begin_with_their_prompts(generator):
    prompts = ["w1 w2", "", "w3", "w4 w5 w6 w7 w8 w9"]
    for found in (generator.generate(prompts), generator.sample(prompts, **DRAWN)):
        for prompt, text in zip(prompts, found, strict=True):
            assert text.split()[: len(prompt.split())] == prompt.split()
            assert len(text.split()) <= 8
    found = generator.generate(prompts, num_beams=3, max_length=7)
    for prompt, text in zip(prompts, found, strict=True):
        prefix = TOKENIZER.tokenize([prompt])[0][:-1] or [generator.model.pad_id]
        ids, _ = ks.decoding.beam_search(
            generator.model, prefix_ids=[prefix], num_beams=3, max_length=7,
            num_hypotheses=1,
        )  # fmt: skip
        assert text == TOKENIZER.detokenize(keras.ops.convert_to_numpy(ids)[0])[0]
    alone = [generator.generate([prompt])[0] for prompt in prompts]
    small = ks.LanguageGenerator(
        generator.model, TOKENIZER, generator.search,
        tokens_per_batch=32, parallel_batches=3,
    )  # fmt: skip
    assert small.generate(prompts) == generator.generate(prompts)
    scores = generator.score(alone), generator.score(generator.generate(prompts))
    np.testing.assert_allclose(*scores, atol=1e-4)
    assert generator.generate([]) == []


def test_samples_follow_their_seed(generator):
    prompts = ["w1"] * 40
    found = generator.sample(prompts, **DRAWN)
    assert found == generator.sample(prompts, **DRAWN)
    assert found != generator.sample(prompts, **{**DRAWN, "seed": 2})
    assert len(set(found)) > 5
    small = ks.LanguageGenerator(
        generator.model, TOKENIZER, generator.search, tokens_per_batch=32
    )
    assert small.sample(prompts, **DRAWN) == found  # other batches


def test_a_stream_has_one_prompt(generator):
    with pytest.raises(ValueError, match=r"`prompt` must be a str.*prompt=\['w1'"):
        generator.stream(["w1", "w2"])


def test_unknown_tokens_of_prompts_are_told(generator):
    for call, options in ((generator.generate, {}), (generator.sample, DRAWN)):
        with pytest.warns(UserWarning, match="^1 of 3 .* tokens: 1; unknown: 'odd'$"):
            call(["w1 odd", "", "w2"], **options)
