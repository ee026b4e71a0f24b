"""Whether one system is better than another: paired bootstrap resampling.

Letters: N sentences, R samples, k statistics of a sentence.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv.evaluation import (
    ORDER,
    References,
    bleu_of,
    bleu_statistics,
    checked,
    sacrebleu_metric,
    split_compounds,
)
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_positive_integer,
)

METRICS = ("bleu", "chrf", "ter", "tokenized_bleu", "compound_split_bleu")
# Popović 2015: n-grams of 1 to 6 characters, recall counts twice.
_CHARACTERS, _BETA = 6, 2.0


class Comparison(NamedTuple):
    """Two systems on the same sentences; scores in percent.

    Attributes:
        metric: of `METRICS`.
        score, other_score: on all sentences.
        interval, other_interval: the middle 95 % of the samples' scores.
        difference: score - other_score.
        difference_interval: the middle 95 % of the samples' differences.
        better: share of the samples in which the first system is better (Koehn 2004):
            its score above the other one, below it for TER.
        p_value: how likely so large a difference is by chance, as `sacrebleu
            --paired-bs` and Moses have it: the share of the samples whose difference
            is above the mean of the samples by more than the difference of all, signs
            aside; 1 for systems of the same score.
    """

    metric: str
    score: float
    other_score: float
    interval: tuple[float, float]
    other_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    better: float
    p_value: float


def paired_bootstrap(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: References,
    metric: str = "bleu",
    *,
    num_samples: int = 1000,
    seed: int = 12345,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Comparison:
    """Compares two systems on samples of the sentences, drawn with replacement.

    (Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation.)
    With the default seed these are the samples of `sacrebleu --paired-bs`.

    Args:
        hypotheses, others: texts of the two systems.
        references: see `keras_seqconv.evaluation.scores`.
        metric: "bleu", "chrf", "ter", "tokenized_bleu" or "compound_split_bleu".
        num_samples: R.
        seed: of the samples; the same seed, the same result.
        tokenize: of "bleu", see `keras_seqconv.evaluation.bleu`.
        lowercase: compare in lower case.

    Raises:
        ValueError: the lists differ in length or are empty; for wrong options.
        ImportError: sacreBLEU is needed and not installed.

    Example:

    ```python
    from keras_seqconv.bootstrap import paired_bootstrap
    found = paired_bootstrap(
        ["a b c d e"] * 9, ["a b c d f"] * 9, ["a b c d e"] * 9, "tokenized_bleu"
    )
    assert found.better == 1.0 and found.p_value < 0.01
    ```
    """
    check_choice("metric", metric, METRICS)
    check_positive_integer("num_samples", num_samples)
    check_integer("seed", seed, 0)
    hypotheses, references = checked(hypotheses, references)
    others, _ = checked(others, references)
    options = {"tokenize": tokenize, "lowercase": lowercase}
    of, rows = _statistics(metric, hypotheses, references, **options)
    _, other_rows = _statistics(metric, others, references, **options)
    both = np.concatenate([rows, other_rows], axis=1).astype("float64")
    sums = _resampled(both, num_samples, seed)
    width = rows.shape[1]
    samples, other_samples = of(sums[:, :width]), of(sums[:, width:])
    total = both.sum(axis=0)
    score, other = float(of(total[:width])), float(of(total[width:]))
    differences = samples - other_samples
    return Comparison(
        metric,
        score,
        other,
        _middle(samples),
        _middle(other_samples),
        score - other,
        _middle(differences),
        float(np.mean(differences < 0 if metric == "ter" else differences > 0)),
        _p_value(differences, score - other),
    )


def _resampled(rows: np.ndarray, num_samples: int, seed: int) -> np.ndarray:
    """Sums (R, k) of rows (N, k), each over N rows drawn with replacement."""
    draw, count = np.random.default_rng(seed), len(rows)
    sums = np.empty((num_samples, rows.shape[1]))
    for sample in sums:
        drawn = np.bincount(draw.integers(count, size=count), minlength=count)
        sample[:] = drawn @ rows
    return sums


def _middle(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 %, ends included."""
    values, outside = np.sort(values), len(values) // 40
    return float(values[outside]), float(values[-1 - outside])


def _p_value(differences: np.ndarray, difference: float) -> float:
    if difference == 0:
        return 1.0
    sizes = np.abs(differences)
    more = np.sum(sizes - sizes.mean() > abs(difference))
    # One more above and below, so that few samples cannot show a p of 0.
    return float((more + 1) / (len(sizes) + 1))


# --- Statistics of sentences, whose sums a score follows from. ---


def _statistics(
    metric, hypotheses, references, *, tokenize, lowercase
) -> tuple[Callable, np.ndarray]:
    """A function of sums (..., k), and rows (N, k)."""
    if metric == "bleu":
        rows = _sacrebleu_rows(hypotheses, references, tokenize, lowercase)
        return lambda sums: bleu_of(sums, "exp"), rows
    if metric == "ter":
        return _ter_of, _ter_rows(hypotheses, references, lowercase)
    if metric == "chrf":
        if lowercase:
            hypotheses = [text.lower() for text in hypotheses]
            references = [[text.lower() for text in texts] for texts in references]
        return _chrf_of, _chrf_rows(hypotheses, references)
    if metric == "compound_split_bleu":
        hypotheses = [split_compounds(text) for text in hypotheses]
        references = [[split_compounds(text) for text in one] for one in references]
    return bleu_of, bleu_statistics(hypotheses, references, lowercase=lowercase)


def _sacrebleu_rows(hypotheses, references, tokenize, lowercase) -> np.ndarray:
    """As of `bleu_statistics`, of the tokens of sacreBLEU."""
    metric = sacrebleu_metric("bleu", tokenize, lowercase)
    metric.effective_order = True  # or it warns of every sentence
    rows = np.zeros((len(hypotheses), 2 * ORDER + 2), "int64")
    for row, text, *others in zip(rows, hypotheses, *references, strict=True):
        found = metric.sentence_score(text, others)
        row[:] = [*found.counts, *found.totals, found.sys_len, found.ref_len]
    return rows


def _ter_rows(hypotheses, references, lowercase) -> np.ndarray:
    """(N, 2): edits, words of the reference."""
    metric = sacrebleu_metric("ter", lowercase=lowercase)
    found = [
        metric.sentence_score(text, others)
        for text, *others in zip(hypotheses, *references, strict=True)
    ]
    return np.array([(one.num_edits, one.ref_length) for one in found], "float64")


def _ter_of(sums):
    return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1e-9)


def _chrf_rows(hypotheses, references) -> np.ndarray:
    """(N, 18): n-grams of hypothesis and reference and matches, for n = 1 to 6.

    Of several references the one with the best score of the sentence.
    """
    rows = np.zeros((len(hypotheses), 3 * _CHARACTERS), "float64")
    for row, text, *others in zip(rows, hypotheses, *references, strict=True):
        grams = _character_ngrams(text)
        found = [_matches(grams, _character_ngrams(other)) for other in others]
        row[:] = max(found, key=_chrf_of)
    return rows


def _character_ngrams(text: str) -> list[Counter]:
    text = "".join(text.split())
    return [
        Counter(text[start : start + n] for start in range(len(text) - n + 1))
        for n in range(1, _CHARACTERS + 1)
    ]


def _matches(hypothesis: list[Counter], reference: list[Counter]) -> np.ndarray:
    return np.array(
        [
            # N-grams that no reference is long enough for are not counted.
            (one.total() if other else 0, other.total(), (one & other).total())
            for one, other in zip(hypothesis, reference, strict=True)
        ],
        "float64",
    ).reshape(-1)


def _chrf_of(sums):
    sums = np.asarray(sums).reshape(*np.shape(sums)[:-1], _CHARACTERS, 3)
    guessed, wanted, matched = (sums[..., n] for n in range(3))
    counts = (guessed > 0) & (wanted > 0)
    orders = np.maximum(counts.sum(axis=-1), 1)
    precision = np.where(counts, matched / np.maximum(guessed, 1), 0).sum(-1) / orders
    recall = np.where(counts, matched / np.maximum(wanted, 1), 0).sum(-1) / orders
    both = _BETA**2 * precision + recall
    f_score = (1 + _BETA**2) * precision * recall / np.where(both > 0, both, 1)
    return 100 * f_score
