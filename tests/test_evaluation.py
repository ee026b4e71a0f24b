"""Scores and perplexity: by hand, against sacreBLEU's own, and what is refused."""

import math
import random

import numpy as np
import pytest
from keras import ops

import keras_seqconv as ks
from keras_seqconv.decoding import Ensemble
from keras_seqconv.evaluation import (
    COMPARABLE,
    METRICS,
    TextPerplexity,
    bleu_by_length,
    corpus_scores,
    paired_bootstrap,
    scores,
    text_perplexity,
    translation_perplexity,
)
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from tests.backends import to_numpy
from tests.convert.reference import log_softmax
from tests.small_models import SMALL_LM, decided, encoder_decoder

sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra mt (sacrebleu)")


def score(metric, texts, references, **options):
    return scores(texts, references, [metric], **options)[0]


def perturbed(texts, seed, rate=0.2):
    """A system's output: words lost, doubled, exchanged."""
    draw, result = random.Random(seed), []
    for text in texts:
        words = []
        for word in text.split():
            chance = draw.random()
            words += [] if chance < rate / 3 else [word]
            words += [word] if chance > 1 - rate / 3 else []
            if chance < rate and len(words) > 1:
                words[-2:] = words[-1], words[-2]
        result.append(" ".join(words))
    return result


def sentences(count=50, longest=20):
    draw = random.Random(5)
    words = ["the", "cat", "sat", "on", "a", "mat", "well-known", "Haus", "größer", ","]
    return [
        " ".join(draw.choices(words, k=draw.randint(1, longest))) for _ in range(count)
    ]


def test_tokenized_bleu_by_hand():
    # 5 words of 6 match, 3 of 5 pairs, 1 of 4 triples, none of 3.
    found = score("tokenized_bleu", ["a b c x d e"], ["a b c y d e"])
    assert found.line == (
        "BLEU4 = 0.00, 83.3/60.0/25.0/0.0 (BP=1.000, ratio=1.000, syslen=6, reflen=6)"
    )
    found = score("tokenized_bleu", ["a b c d e", "f"], ["a b c d e", "f g h"])
    expected = 100 * math.exp(1 - 8 / 6)
    assert found.value == pytest.approx(expected)
    assert found.line == (
        f"BLEU4 = {expected:.2f}, 100.0/100.0/100.0/100.0 (BP=0.717, ratio=0.750, "
        "syslen=6, reflen=8)"
    )
    # A word counts as often as the reference has it; nothing at all is no error.
    found = score("tokenized_bleu", ["the the the the"], ["the cat the mat"])
    assert "BLEU4 = 0.00, 50.0/0.0/0.0/0.0" in found.line
    assert score("tokenized_bleu", [""], ["a b"]).value == 0
    # Unknowns in the reference never match.
    texts = ["a b c d <unk>"]
    found = score("tokenized_bleu", texts, texts)
    assert "80.0/75.0/66.7/50.0" in found.line and "|unk:never" in found.signature
    names, values, _ = bleu_by_length(texts, texts, texts)
    assert values[0] == pytest.approx(found.value)


def test_compound_split():
    for text, split in (
        ("a-b-c", "a # b-c"), ("ab-cd-ef", "ab # cd # ef"), ("a - b -c d-", None),
        ("größer-weiß 1-2", "größer # weiß 1 # 2"),
    ):  # fmt: skip
        split = (split or text).replace("#", "##AT##-##AT##")
        columns = corpus_scores._columns([text], [text], "compound_split_bleu")
        assert columns == [[split], [split]]
    # "well-read" against "well-known": now one part of two matches, and the dash.
    texts, references = ["a b well-read c"], ["a b well-known c"]
    assert "75.0/" in score("tokenized_bleu", texts, references).line
    found = score("compound_split_bleu", texts, references)
    assert found.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert found.line.startswith("compound-split BLEU4 = 53.73, 83.3/60.0/50.0/33.3 (")
    assert "tok:compound-split" in found.signature


def test_sacrebleu_scores_and_signatures():
    references = sentences()
    hypotheses = perturbed(references, 1)
    found = score("bleu", hypotheses, references)
    known = sacrebleu.corpus_bleu(hypotheses, [references], force=True)
    assert found.value == known.score
    assert found.signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert found.line.startswith(f"BLEU|{found.signature} = {known.score:.2f} ")
    known = sacrebleu.corpus_chrf(hypotheses, [references])
    assert score("chrf", hypotheses, references).value == known.score
    found = score("ter", hypotheses, references, lowercase=True)
    lowered = [[text.lower() for text in texts] for texts in (hypotheses, references)]
    assert found.value == sacrebleu.corpus_ter(lowered[0], [lowered[1]]).score
    assert "case:lc" in found.signature
    # Several references, a tokenizer.
    texts = ["The cat sat on the mat today"] * 2
    references = [["the cat sat on a mat"] * 2, ["the cat sat on the mat today"] * 2]
    found = score("bleu", texts, references, tokenize="none", lowercase=True)
    assert found.value == pytest.approx(100)
    assert found.signature.startswith("nrefs:2|case:lc|eff:no|tok:none")
    assert score("bleu", texts, references, tokenize="none").value < 100
    found = score("tokenized_bleu", texts, references, lowercase=True)
    assert found.value == pytest.approx(100)


def test_rouge_and_all_metrics_at_once():
    texts = sentences(8, 12)
    found = scores(texts, texts, METRICS)
    assert [one.name for one in found] == [
        "BLEU", "chrF2", "TER", "BLEU4", "compound-split BLEU4", "ROUGE-1", "ROUGE-2",
        "ROUGE-L", "exact match", "WER", "CER",
    ]  # fmt: skip
    assert all(f"{one.value:.2f}" in one.line for one in found)
    assert [one.value for one in found[:5]] == pytest.approx([100, 100, 0, 100, 100])
    found = scores(["the cats sat here"], ["the cat sat on the mat"], ["rouge"])
    # Stems: 3 of 4 and of 6 words; 2 of 3 and of 5 pairs; the subsequence has 3.
    values = [100 * 2 * 3 / 10, 100 * 2 * 2 / 8, 100 * 2 * 3 / 10]
    assert [one.value for one in found] == pytest.approx(values)
    assert found[1].line.startswith("ROUGE-2|nrefs:1|stem:yes|L:text|mean:F1")
    pair = ["c d e<q>a b"], ["a b<q>c d e"]
    assert scores(*pair, ["rouge"])[2].value < 100
    whole = scores(*pair, ["rouge"], sentence_separator="<q>")
    assert whole[2].value == pytest.approx(100)
    assert "L:summary" in whole[2].signature
    assert score("rouge", ["a b c"], [["x y z"], ["a b c"]]).value == pytest.approx(100)


def test_an_empty_further_reference_is_none():
    """As None is for sacreBLEU; an empty text would be one of the length 0."""
    texts = ["the cat sat on", "a mat of two here"]
    first, second = ["the cat sat on a mat", "two mats"], "a mat of three here"
    several = [first, ["", second]]
    # A reference that occurs twice counts once.
    expected = {
        one.name: one.value
        for one in scores(texts, [first, [first[0], second]], METRICS)
    }
    found = scores(texts, several, METRICS)
    assert {one.name: one.value for one in found} == pytest.approx(expected)
    assert all("nrefs:var" in one.signature for one in found)
    metrics = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}
    for one, metric in zip(found, metrics.values(), strict=False):
        known = metric().corpus_score(texts, [first, [None, second]])
        assert one.value == known.score
    found = [one for one in found if not one.name.startswith("ROUGE")]
    for metric, one in zip(COMPARABLE, found, strict=True):
        compared = paired_bootstrap(texts, texts, several, metric, num_samples=1)
        assert compared.score == pytest.approx(one.value)


def test_bleu_by_length():
    sources = ["w " * n for n in (1, 10, 11, 35, 60)]
    texts = ["a b c d", "a b x d", "a b c d", "a b c d", "q r s t"]
    names, values, counts = bleu_by_length(
        sources, texts, ["a b c d"] * 5, (10, 20, 40, 50)
    )
    assert names == ["1–10", "11–20", "21–40", "41–50", "> 50"]
    assert counts.tolist() == [2, 1, 1, 0, 1]
    # 7 words of 8, 4 pairs of 6, 2 triples of 4, 1 of 2.
    expected = 100 * (7 / 8 * 4 / 6 * 2 / 4 * 1 / 2) ** 0.25
    assert values[0] == pytest.approx(expected)
    assert values[1] == pytest.approx(100) and np.isnan(values[3]) and values[4] == 0
    # Smoothed: no triple of 2 counts as half a one, no four of 1 as a quarter.
    value = bleu_by_length(["w"], ["a b x d"], ["a b c d"])[1][0]
    assert value == pytest.approx(100 * (3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25)


# --- Paired bootstrap ---


def test_bootstrap_finds_the_difference():
    references = sentences()
    one = perturbed(references, 1, 0.18)
    other = perturbed(references, 2, 0.24)
    for metric in COMPARABLE:
        found = paired_bootstrap(one, other, references, metric, num_samples=100)
        (expected,) = scores(one, references, [metric])
        assert found.score == pytest.approx(expected.value)
        (expected,) = scores(other, references, [metric])
        assert found.other_score == pytest.approx(expected.value)
        less_is_better = metric in ("ter", "wer", "cer")
        assert (found.score < found.other_score) == less_is_better
        # Few of the sentences are right as a whole.
        most, p_value = (12, 0.2) if metric == "exact" else (9, 0.1)
        assert abs(found.mean - found.score) < found.half_width < most
        assert found.p_value < p_value
        swapped = paired_bootstrap(other, one, references, metric, num_samples=100)
        assert (swapped.mean, swapped.other_half_width) == pytest.approx(
            (found.other_mean, found.half_width)
        )


def test_bootstrap_in_lower_case():
    for metric, right in (("exact", 100), ("wer", 0), ("cer", 0)):
        texts = ["A b"], ["a B"], ["a b"]
        found = paired_bootstrap(*texts, metric, num_samples=1, lowercase=True)
        assert found.score == found.other_score == right
        found = paired_bootstrap(*texts, metric, num_samples=1)
        assert right not in (found.score, found.other_score)


# --- Perplexity ---

TOKENIZER = DictionaryTokenizer(Dictionary((f"w{n}", 1) for n in range(12)))
LINES = ["w1 w2 w3", "w4", "", "w5 w6 w7 w8 w9", "w1 unknown w2"]
IDS = [token for ids in TOKENIZER.tokenize(LINES) for token in ids]


def language_model(**changes):
    return decided(ks.models.LanguageModel(16, **SMALL_LM, kernel_sizes=3, **changes))


@pytest.fixture(scope="module")
def generator():
    return ks.LanguageGenerator(language_model(), TOKENIZER)


def token_log_probs(model, seen):
    """Of each token of the stream, from at most so many before it, one by one."""
    found = []
    for place, token in enumerate(IDS):
        first = max(0, place - seen(place))
        inputs = [2, *IDS][first : place + 1]
        logits = to_numpy(model({"target_ids": np.array([inputs])}))
        found.append(log_softmax(logits[0, -1].astype("float64"))[token])
    return np.array(found)


@pytest.mark.parametrize("length, context", ((4, 0), (5, 3), (100, 0)))
def test_running_text(generator, length, context):
    fresh = length - context
    # The position in its block, and as much context as there is.
    known = token_log_probs(
        generator.model, lambda place: place % fresh + min(context, place)
    )
    found = text_perplexity(
        generator, iter(LINES), context_window=context, tokens_per_sample=length
    )
    assert found.tokens == len(IDS) == 17
    assert found.words == len(" ".join(LINES).split()) + 5 == 17
    assert found.nll == pytest.approx(-known.mean(), rel=1e-5)
    assert found.perplexity == pytest.approx(2**found.bits)


def test_lines_alone(generator):
    single = [text_perplexity(generator, text) for text in (LINES[0], LINES[:1])]
    assert single[0] == single[1]
    with pytest.raises(ValueError, match="`tokens_per_sample` must be"):
        text_perplexity(generator, LINES, tokens_per_sample=0)
    short = language_model(positions={"kind": "learned", "max_length": 8})
    short = ks.LanguageGenerator(short, TOKENIZER)
    with pytest.raises(ValueError, match="`tokens_per_sample` .* the 8 positions.*20"):
        text_perplexity(short, LINES, tokens_per_sample=20)
    sentences = {"break_mode": "sentence", "context_window": 7}
    with pytest.raises(ValueError, match="`tokens_per_sample` .* the 8 positions.*9"):
        text_perplexity(short, ["w1"] * 12, tokens_per_sample=9, **sentences)
    text_perplexity(short, LINES, tokens_per_sample=8)
    text_perplexity(short, ["w1"] * 12, tokens_per_sample=8, **sentences)
    with pytest.raises(ValueError, match=r"at most 8 tokens.*lines\[4999\] with 10"):
        text_perplexity(short, ["w1"] * 4999 + ["w1 " * 9], break_mode="sentence")
    found = text_perplexity(generator, LINES, break_mode="sentence")
    known = generator.score(LINES, normalize=False)
    assert found.nll == pytest.approx(-sum(known) / 17, rel=1e-5)
    assert (found.tokens, found.words) == (17, 17)


def test_ensemble_and_adaptive_softmax():
    models = [language_model(), language_model(adaptive_softmax={"cutoffs": [8]})]
    known = [token_log_probs(models[0], lambda place: place)]
    features = models[1]({"target_ids": np.array([[2, *IDS[:-1]]])})
    log_probs = models[1].log_prob(features, np.array([IDS]))
    known.append(to_numpy(log_probs)[0].astype("float64"))
    for model, expected in (
        (models[1], known[1]),
        (Ensemble(models), np.log((np.exp(known[0]) + np.exp(known[1])) / 2)),
    ):
        found = text_perplexity(ks.LanguageGenerator(model, TOKENIZER), LINES)
        assert found.nll == pytest.approx(-expected.mean(), rel=1e-5)


def test_translations():
    tokenizer = DictionaryTokenizer(
        Dictionary((word, 1) for word in ("a@@", "b", "c", "d")), remove_bpe=True
    )
    model = encoder_decoder(8)
    translator = ks.Translator(model, tokenizer, tokenizer)
    sources, targets = ["b c", "d"], ["a@@ b", "c d b"]
    found = translation_perplexity(translator, sources, targets)
    expected = 0.0
    for source, target in zip(
        tokenizer.tokenize(sources), tokenizer.tokenize(targets), strict=True
    ):
        ids = {"source_ids": [source], "target_ids": [[2, *target[:-1]]]}
        inputs = {name: np.array(rows) for name, rows in ids.items()}
        known = log_softmax(to_numpy(model(inputs)).astype("float64")[0])
        expected -= known[range(len(target)), target].sum()
    assert found.nll == pytest.approx(expected / 7, rel=1e-5)
    assert (found.tokens, found.words) == (7, 7)


@pytest.mark.parametrize(
    "call, words",
    (
        (lambda: scores(["a"], ["a", "b"]), "Received: 1 and 2"),
        (lambda: scores([], []), "at least one. Received: 0"),
        (lambda: scores(["a"], []), "Received: 1"),
        (lambda: scores(["a", ""], ["a", " "]), "line 2 is empty"),
        (lambda: scores(["a"], [[None], ["a"]], ["rouge"]), "line 1 is empty"),
        (
            lambda: scores(["a"], [["a"]], ["rouge"], sentence_separator=""),
            "`sentence_separator` must not be empty",
        ),
        (lambda: paired_bootstrap(["a"], ["a"], [None]), "line 1 is empty"),
        (lambda: bleu_by_length(["a"], ["b"], [""]), "line 1 is empty"),
        (lambda: scores(["a"], ["a"], tokenize="13b"), "`tokenize` must be one of"),
        (lambda: scores(["a"], ["a"], ["blue"]), "`metrics` must be one of"),
        (lambda: scores(["a"], ["a"], "blue"), "metrics='blue'"),
        (lambda: paired_bootstrap(["a"], ["a", "b"], ["a"]), "Received: 2 and 1"),
        (lambda: paired_bootstrap(["a"], ["a"], ["a"], "rouge"), "`metric` must"),
        (lambda: paired_bootstrap(["a"], ["a"], ["a"], num_samples=0), "num_samples=0"),
        (lambda: bleu_by_length(["a"], ["b", "c"], ["a"]), "Received: 1 and 2"),
        (lambda: bleu_by_length(["a"], ["a"], ["a"], [5, 5]), "edges=[5, 5]"),
        (lambda: bleu_by_length(["a"], ["a"], ["a"], [2.5]), "`edges` must be a pos"),
        (lambda: scores("read", "real", ["exact"]), "must be lists of texts. Received"),
        (lambda: scores(["a"], "a"), "must be lists of texts. Received"),
        (lambda: translation_perplexity(None, ["a"], []), "Received: 1 and 0"),
        (lambda: translation_perplexity(None, "a", "b"), "must be lists of texts"),
    ),
)
def test_refused(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def test_impossible_tokens_and_what_is_printed():
    class Never:
        pad_id, end_id, target_vocabulary_size, max_target_length = 1, 2, 16, None

        def __call__(self, inputs):
            return inputs["target_ids"]

        def log_prob(self, outputs, ids):
            return ops.where(ids == 5, -float("inf"), -ops.ones(ops.shape(ids)))

    class Generator:
        model, tokenizer, tokens_per_batch = Never(), TOKENIZER, 100
        is_of_keras = True

    found = text_perplexity(Generator, ["w0 w1"])  # ids 4, 5, 2
    of_words = dict.fromkeys(("word_nll", "word_bits", "word_perplexity"), math.inf)
    assert found == TextPerplexity.of(2.0, 2, 3, 1)._replace(**of_words)
    Never.log_prob = lambda self, outputs, ids: -float("inf") * ops.ones(ops.shape(ids))
    Generator.model = Never()
    with pytest.raises(ValueError, match="All 3 tokens have a probability of 0"):
        text_perplexity(Generator, ["w0 w1"])
    Never.log_prob = lambda self, outputs, ids: float("nan") * ops.ones(ops.shape(ids))
    Generator.model = Never()
    with pytest.raises(ValueError, match="must give finite logits; it gives NaN"):
        text_perplexity(Generator, ["w0 w1"])
    Generator.is_of_keras = False
    with pytest.raises(ValueError, match="load it with the `runtime` keras"):
        text_perplexity(Generator, ["w0 w1"])
    assert TextPerplexity.of(8 * math.log(2), 4, 2, 0).lines() == [
        "token     nll 1.3863, loss (base 2) 2.0000, perplexity 4.00 (4 tokens)",
        "word      nll 2.7726, loss (base 2) 4.0000, perplexity 16.00 (2 words)",
    ]
