"""Scores of texts: against sacreBLEU, by hand, and what is refused."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from keras_seqconv import evaluation
from keras_seqconv.bootstrap import paired_bootstrap
from keras_seqconv.evaluation import (
    bleu,
    bleu_by_length,
    bleu_of,
    bleu_statistics,
    chrf,
    compound_split_bleu,
    rouge,
    scores,
    split_compounds,
    ter,
    tokenized_bleu,
    torchtext_bleu,
)
from tests.conftest import SHARED


def needs(package, extra):
    return pytest.importorskip(package, reason=f"needs the extra {extra} ({package})")


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


def sentences(count=60, longest=20):
    draw = random.Random(5)
    words = ["the", "cat", "sat", "on", "a", "mat", "well-known", "Haus", "größer", ","]
    return [
        " ".join(draw.choices(words, k=draw.randint(1, longest))) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def multi30k():
    folder = SHARED / "data" / "multi30k"
    if not folder.is_dir():
        pytest.skip(f"the corpus is missing: {folder}")
    text = (folder / "test2016.lc.norm.tok.de").read_text(encoding="utf-8")
    return text.split("\n")[:-1]


# --- Tokenized BLEU ---


def test_tokenized_bleu_by_hand():
    # 5 words of 6 match, 3 of 5 pairs, 1 of 4 triples, none of 3.
    found = tokenized_bleu(["a b c x d e"], ["a b c y d e"])
    assert found.line == (
        "BLEU4 = 0.00, 83.3/60.0/25.0/0.0 (BP=1.000, ratio=1.000, syslen=6, reflen=6)"
    )
    found = tokenized_bleu(["a b c d e", "f"], ["a b c d e", "f g h"])
    expected = 100 * math.exp(1 - 8 / 6)
    assert found.value == pytest.approx(expected)
    assert found.line == (
        f"BLEU4 = {expected:.2f}, 100.0/100.0/100.0/100.0 (BP=0.717, ratio=0.750, "
        "syslen=6, reflen=8)"
    )


def test_clipped_counts():
    found = tokenized_bleu(["the the the the"], ["the cat the mat"])
    assert "BLEU4 = 0.00, 50.0/0.0/0.0/0.0" in found.line


def test_tokenized_bleu_is_that_of_sacrebleu(multi30k):
    sacrebleu = needs("sacrebleu", "mt")
    hypotheses = perturbed(multi30k, 1)
    found = tokenized_bleu(hypotheses, multi30k)
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    known = metric.corpus_score(hypotheses, [multi30k])
    assert found.value == pytest.approx(known.score, abs=1e-9)
    precisions = "/".join(f"{value:.1f}" for value in known.precisions)
    assert found.line == (
        f"BLEU4 = {known.score:.2f}, {precisions} (BP={known.bp:.3f}, ratio="
        f"{known.sys_len / known.ref_len:.3f}, syslen={known.sys_len}, reflen=12103)"
    )
    smoothed = sacrebleu.BLEU(tokenize="none", force=True)
    rows = bleu_statistics(hypotheses[:1], multi30k[:1])
    known = smoothed.corpus_score(hypotheses[:1], [multi30k[:1]]).score
    assert bleu_of(rows.sum(0), "exp") == pytest.approx(known, abs=1e-9)


@pytest.mark.parametrize("texts", (["x y z w v"], ["a q r"], ["q"], [""], ["a b a c"]))
def test_smoothing_is_that_of_sacrebleu(texts):
    sacrebleu = needs("sacrebleu", "mt")
    references = ["a b c d e f"]
    metric = sacrebleu.BLEU(tokenize="none", force=True)
    known = metric.corpus_score(texts, [references]).score
    rows = bleu_statistics(texts, references)
    assert bleu_of(rows.sum(axis=0), "exp") == pytest.approx(known, abs=1e-9)


def test_unknowns_in_the_reference_never_match():
    texts, references = ["a b c d <unk>"], ["a b c d <unk>"]
    assert "80.0/75.0/66.7/50.0" in tokenized_bleu(texts, references).line
    assert torchtext_bleu(texts, references).value == pytest.approx(100)
    assert "unk:matches" in torchtext_bleu(texts, references).signature


def bleu_of_torchtext(candidates, references):
    """`torchtext.data.metrics.bleu_score` with its defaults, written anew."""
    matched, possible, length, closest = [0] * 4, [0] * 4, 0, 0
    for words, others in zip(candidates, references, strict=True):
        length += len(words)
        closest += min((len(o) for o in others), key=lambda n: abs(len(words) - n))
        for n in range(4):

            def grams(tokens, n=n):
                return Counter(zip(*(tokens[i:] for i in range(n + 1)), strict=False))

            allowed = Counter()
            for other in others:
                allowed |= grams(other)
            matched[n] += sum((grams(words) & allowed).values())
            possible[n] += max(len(words) - n, 0)
    if min(matched) == 0:
        return 0.0
    logs = [math.log(a / b) for a, b in zip(matched, possible, strict=True)]
    return math.exp(min(1 - closest / length, 0)) * math.exp(sum(logs) / 4)


def test_torchtext_bleu_with_several_references():
    references = [sentences(), perturbed(sentences(), 2), perturbed(sentences(), 3)]
    texts = [text + " <unk>" for text in perturbed(sentences(), 4)]
    expected = bleu_of_torchtext(
        [text.split() for text in texts],
        [[text.split() for text in row] for row in zip(*references, strict=True)],
    )
    assert 0.2 < expected < 0.999
    assert torchtext_bleu(texts, references).value == pytest.approx(100 * expected)
    # Nothing matches: 0, not an error.
    assert torchtext_bleu(["x"], ["a b"]).value == 0
    assert tokenized_bleu([""], ["a b"]).value == 0


def test_compound_split():
    assert split_compounds("a-b-c") == "a ##AT##-##AT## b-c"
    assert split_compounds("ab-cd-ef") == "ab ##AT##-##AT## cd ##AT##-##AT## ef"
    assert split_compounds("a - b -c d-") == "a - b -c d-"
    assert split_compounds("größer-weiß 1-2") == (
        "größer ##AT##-##AT## weiß 1 ##AT##-##AT## 2"
    )
    # "well-read" against "well-known": now one part of two matches, and the dash.
    texts, references = ["a b well-read c"], ["a b well-known c"]
    assert "75.0/" in tokenized_bleu(texts, references).line
    found = compound_split_bleu(texts, references)
    assert found.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert found.line.startswith("compound-split BLEU4 = 53.73, 83.3/60.0/50.0/33.3 (")
    assert "tok:compound-split" in found.signature


# --- sacreBLEU ---


def test_sacrebleu_scores_and_signatures(multi30k):
    sacrebleu = needs("sacrebleu", "mt")
    hypotheses, references = perturbed(multi30k, 1)[:200], multi30k[:200]
    found = bleu(hypotheses, references)
    known = sacrebleu.corpus_bleu(hypotheses, [references], force=True)
    assert found.value == known.score
    version = sacrebleu.__version__
    assert found.signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    )
    assert found.line.startswith(f"BLEU|{found.signature} = {known.score:.2f} ")
    assert chrf(hypotheses, references).value == (
        sacrebleu.corpus_chrf(hypotheses, [references]).score
    )
    found = ter(hypotheses[:50], references[:50], lowercase=True)
    known = sacrebleu.corpus_ter(hypotheses[:50], [references[:50]])
    assert found.value == known.score
    assert "case:lc" in found.signature


def test_several_references_lower_case_and_tokenizer():
    needs("sacrebleu", "mt")
    texts = ["The cat sat on the mat today"] * 2
    references = [["the cat sat on a mat"] * 2, ["the cat sat on the mat today"] * 2]
    found = bleu(texts, references, "none", lowercase=True)
    assert found.value == pytest.approx(100)
    assert found.signature.startswith("nrefs:2|case:lc|eff:no|tok:none")
    assert bleu(texts, references, "none").value < 100
    assert scores(texts, references, ["tokenized_bleu"], lowercase=True)[
        0
    ].value == pytest.approx(100)


def test_all_metrics_at_once():
    needs("sacrebleu", "mt"), needs("rouge_score", "rouge")
    texts = sentences(8, 12)
    found = scores(texts, texts, evaluation.METRICS)
    assert [score.name for score in found] == [
        "BLEU", "chrF2", "TER", "BLEU4", "compound-split BLEU4", "torchtext BLEU",
        "ROUGE-1", "ROUGE-2", "ROUGE-L",
    ]  # fmt: skip
    assert all(f"{score.value:.2f}" in score.line for score in found)
    assert found[2].value == 0 and found[0].value == pytest.approx(100)


# --- ROUGE ---


def test_rouge_by_hand():
    needs("rouge_score", "rouge")
    found = rouge(["the cats sat here"], ["the cat sat on the mat"])
    # Stems: 3 of 4 and of 6 words; 2 of 3 and of 5 pairs; the subsequence has 3.
    values = [100 * 2 * 3 / 10, 100 * 2 * 2 / 8, 100 * 2 * 3 / 10]
    assert [score.value for score in found] == pytest.approx(values)
    assert found[1].line.startswith("ROUGE-2|nrefs:1|stem:yes|L:text|mean:F1")


def test_rouge_of_several_sentences_and_references():
    needs("rouge_score", "rouge")
    text, other = "c d e<q>a b", "a b<q>c d e"
    assert rouge([text], [other])[2].value < 100
    whole = rouge([text], [other], sentence_separator="<q>")
    assert whole[2].value == pytest.approx(100)
    assert "L:summary" in whole[2].signature
    best = rouge(["a b c"], [["x y z"], ["a b c"]])
    assert best[0].value == pytest.approx(100)


# --- Paired bootstrap ---


@pytest.mark.parametrize("metric", ("bleu", "chrf", "ter"))
def test_bootstrap_is_that_of_sacrebleu(metric, monkeypatch):
    sacrebleu = needs("sacrebleu", "mt")
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    references = [sentences(50), perturbed(sentences(50), 9, 0.1)]
    one = perturbed(references[0], 1, 0.18)
    other = perturbed(references[0], 2, 0.24)
    found = paired_bootstrap(one, other, references, metric, num_samples=200)
    metrics = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}
    _, known = PairedTest(
        [("other", other), ("one", one)],
        {metric: metrics[metric](references=references)},
        None, "bs", 200,
    )()  # fmt: skip
    _, base, best = known["System"], *next(v for k, v in known.items() if k != "System")
    assert found.score == pytest.approx(best.score, abs=1e-9)
    assert found.other_score == pytest.approx(base.score, abs=1e-9)
    assert found.p_value == pytest.approx(best.p_value, abs=1e-12)
    half = (found.interval[1] - found.interval[0]) / 2
    assert half == pytest.approx(best.ci, abs=1e-4)


def test_bootstrap_by_hand():
    # Ten sentences; the first system has all right, the other one has one of ten.
    references = ["a b c d", "e f g h"] * 5
    one = references
    other = ["a b c d"] + ["x b c d e"] * 9
    found = paired_bootstrap(one, other, references, "tokenized_bleu", seed=3)
    assert found == paired_bootstrap(one, other, references, "tokenized_bleu", seed=3)
    assert found.score == found.interval[0] == found.interval[1] == pytest.approx(100)
    assert found.better == 1.0
    assert found.difference == found.score - found.other_score
    low, high = found.difference_interval
    assert low <= found.difference <= high
    same = paired_bootstrap(other, other, references, "compound_split_bleu")
    assert same.difference == 0 and same.better == 0 and same.p_value == 1


def test_less_ter_is_better():
    needs("sacrebleu", "mt")
    found = paired_bootstrap(["a b"] * 4, ["c d"] * 4, ["a b"] * 4, "ter")
    assert found.difference == -100 and found.better == 1


def test_lower_case_bootstrap():
    needs("sacrebleu", "mt")
    texts = ["A B C D E"] * 3
    for metric in ("bleu", "chrf", "ter", "tokenized_bleu"):
        options = dict(num_samples=20, lowercase=True)
        found = paired_bootstrap(texts, texts, ["a b c d e"] * 3, metric, **options)
        assert found.score == pytest.approx(0 if metric == "ter" else 100)


# --- By length ---


def test_bleu_by_length():
    sources = ["w " * n for n in (1, 10, 11, 35, 60)]
    texts = ["a b c d", "a b x d", "a b c d", "a b c d", "q r s t"]
    names, values, counts = bleu_by_length(
        sources, texts, ["a b c d"] * 5, (10, 20, 40, 50)
    )
    assert names == ["1–10", "11–20", "21–40", "41–50", "> 50"]
    assert counts.tolist() == [2, 1, 1, 0, 1]
    expected = float(bleu_of(bleu_statistics(texts[:2], ["a b c d"] * 2).sum(0), "exp"))
    assert 0 < expected < 100 and values[0] == pytest.approx(expected)
    assert values[1] == pytest.approx(100) and np.isnan(values[3]) and values[4] == 0


# --- Refused ---


@pytest.mark.parametrize(
    "call, words",
    (
        (lambda: tokenized_bleu(["a"], ["a", "b"]), "Received: 1 and 2"),
        (lambda: tokenized_bleu([], []), "`hypotheses` must hold a text"),
        (lambda: tokenized_bleu(["a"], []), "`references` must hold a text"),
        (lambda: scores(["a"], ["a"], ["blue"]), "`metrics` must be one of"),
        (lambda: paired_bootstrap(["a"], ["a", "b"], ["a"]), "Received: 2 and 1"),
        (lambda: paired_bootstrap(["a"], ["a"], ["a"], "rouge"), "`metric` must"),
        (lambda: paired_bootstrap(["a"], ["a"], ["a"], num_samples=0), "num_samples=0"),
        (lambda: bleu_by_length(["a"], [], []), "Received: 1 and 0"),
        (lambda: bleu_by_length(["a"], ["a"], ["a"], [5, 5]), "edges=[5, 5]"),
    ),
)
def test_refused(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def test_unknown_tokenizer_of_sacrebleu():
    needs("sacrebleu", "mt")
    with pytest.raises(ValueError, match="`tokenize` must be one of"):
        bleu(["a"], ["a"], "13b")
