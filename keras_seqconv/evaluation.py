"""Scores of texts against references: BLEU, chrF, TER, ROUGE, BLEU by length.

Also whether one system is better than another: paired bootstrap resampling. Scores are
in percent, and carry what they are (the signature), as numbers of different signatures
must not be compared. All but ROUGE are computed by sacreBLEU (extra `mt`).

Letters: N sentences, R samples.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_positive_integer,
)
from keras_seqconv.support.extras import require

METRICS = ("bleu", "chrf", "ter", "tokenized_bleu", "compound_split_bleu", "rouge")
COMPARABLE = METRICS[:-1]
_COMPOUND = re.compile(r"(\S)-(\S)")


class Score(NamedTuple):
    """One score of a corpus.

    Attributes:
        name: as it is written: "BLEU", "chrF2", "ROUGE-1".
        value: in percent.
        signature: how it was computed.
        line: all of it in one line.
    """

    name: str
    value: float
    signature: str
    line: str


References = Sequence[str] | Sequence[Sequence[str]]


def scores(
    hypotheses: Sequence[str],
    references: References,
    metrics: Iterable[str] = ("bleu", "chrf"),
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[Score]:
    """Several scores of the same texts.

    | metric                | what it is                                              |
    |-----------------------|---------------------------------------------------------|
    | "bleu"                | BLEU of text that is not tokenized: the one to publish  |
    | "chrf"                | chrF2: characters, no words                             |
    | "ter"                 | the edits that are needed: less is better               |
    | "tokenized_bleu"      | BLEU of the tokens between white space, not smoothed,   |
    |                       | with fairseq's summary as its line; `<unk>` in a        |
    |                       | reference matches nothing; of tokenized texts, and      |
    |                       | comparable between such of one tokenizer only           |
    | "compound_split_bleu" | the same after `split_compounds` on both sides: what    |
    |                       | papers report for WMT English-German since Vaswani et   |
    |                       | al. 2017, about 0.7 above "tokenized_bleu" there        |
    | "rouge"               | three scores, see `rouge`                               |

    Args:
        hypotheses: what a system wrote, one text for each sentence.
        references: what it should have written: as many texts, or a list of such lists
            where there are several references.
        metrics: any of the above.
        tokenize: of "bleu" alone: a tokenizer of sacreBLEU: "13a", "intl", "zh",
            "char", "none", ...
        lowercase: lower-case both sides first.

    Raises:
        ValueError: the lists differ in length or are empty; for an unknown metric or
            tokenizer.
        ImportError: sacreBLEU (extra `mt`), what its tokenizer needs, or for "rouge"
            rouge-score (extra `rouge`) is not installed.

    Example:

    ```python
    from keras_seqconv.evaluation import scores
    score, = scores(["the cat sat"], ["the cat sat down"], ["tokenized_bleu"])
    print(score.line)  # BLEU4 = 0.00, 100.0/100.0/100.0/0.0 (BP=0.717, ...
    ```
    """
    results = []
    for metric in metrics:
        check_choice("metrics", metric, METRICS)
        if metric == "rouge":
            results += rouge(hypotheses, references)
        else:
            results.append(_score(metric, hypotheses, references, tokenize, lowercase))
    return results


def bleu(
    hypotheses: Sequence[str],
    references: References,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """BLEU by sacreBLEU, of text that is not tokenized; see `scores`."""
    return _score("bleu", hypotheses, references, tokenize, lowercase)


def split_compounds(text: str) -> str:
    """Writes X-Y as X ##AT##-##AT## Y, as `compound_split_bleu.sh` of fairseq does.

    Matches do not overlap: in "a-b-c" the second dash stays, as b was used up.
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    edges: Sequence[int] = (10, 20, 30, 40, 50),
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Tokenized BLEU, smoothed, of sentences grouped by the words of their sources.

    Args:
        sources: texts whose words between white space are counted.
        hypotheses, references: see `scores`.
        edges: increasing numbers of words: the groups are 1 to edges[0], edges[0] + 1
            to edges[1] and so on, and what is longer.

    Returns:
        Names of the groups, BLEU of each (NaN where it is empty), sentences in each.

    Raises:
        ValueError, ImportError: see `scores`; for edges that do not increase.
    """
    if len(sources) != len(hypotheses):
        raise ValueError(
            "`sources` and `hypotheses` must have as many texts. "
            f"Received: {len(sources)} and {len(hypotheses)}"
        )
    edges = list(edges)
    if not edges or edges[0] < 1 or sorted(set(edges)) != edges:
        raise ValueError(
            f"`edges` must be increasing positive integers. Received: edges={edges}"
        )
    columns = _columns(hypotheses, references, "tokenized_bleu")
    metric = _metric("tokenized_bleu")
    metric.smooth_method = "exp"  # groups are small
    lows = [1, *(edge + 1 for edge in edges)]
    names = [f"{low}–{high}" for low, high in zip(lows, edges, strict=False)]
    names.append(f"> {edges[-1]}")
    groups = np.searchsorted(edges, [len(text.split()) for text in sources])
    counts = np.bincount(groups, minlength=len(names))
    values = np.full(len(names), np.nan)
    for group in np.flatnonzero(counts):
        places = np.flatnonzero(groups == group)
        texts, *others = ([column[place] for place in places] for column in columns)
        values[group] = metric.corpus_score(texts, others).score
    return names, values, counts


def rouge(
    hypotheses: Sequence[str],
    references: References,
    *,
    use_stemmer: bool = True,
    sentence_separator: str | None = None,
) -> list[Score]:
    """ROUGE-1, ROUGE-2 and ROUGE-L of summaries, the mean F1 of their pairs.

    By the package rouge-score: lower case, English letters and digits only (texts in
    other scripts score 0), Porter's stemmer. Of several references the best counts.

    Args:
        hypotheses, references: see `scores`.
        use_stemmer: count "cats" and "cat" as the same.
        sentence_separator: what stands between the sentences of a summary, such as
            "<q>"; ROUGE-L is then that of summaries (union of the sentences' longest
            common subsequences), which papers on CNN/DailyMail report. None: one
            subsequence of the whole text.

    Raises:
        ValueError, ImportError: see `scores`.
    """
    columns = _columns(hypotheses, references, "rouge")
    package = require("rouge_score.rouge_scorer", "rouge")
    longest = "rougeL" if sentence_separator is None else "rougeLsum"
    kinds = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", longest: "ROUGE-L"}
    scorer = package.RougeScorer([*kinds], use_stemmer=use_stemmer)
    if sentence_separator is not None:
        columns = [
            [text.replace(sentence_separator, "\n") for text in column]
            for column in columns
        ]
    rows = [
        scorer.score_multi(others, text) for text, *others in zip(*columns, strict=True)
    ]
    signature = "|".join(
        [
            f"nrefs:{len(columns) - 1}",
            f"stem:{'yes' if use_stemmer else 'no'}",
            f"L:{'text' if sentence_separator is None else 'summary'}",
            "mean:F1",
            "rouge-score",
        ]
    )
    results = []
    for kind, name in kinds.items():
        value = 100 * sum(row[kind].fmeasure for row in rows) / len(rows)
        line = f"{name}|{signature} = {value:.2f}"
        results.append(Score(name, value, signature, line))
    return results


class Comparison(NamedTuple):
    """Two systems on the same sentences; scores in percent.

    Attributes:
        metric: of `COMPARABLE`.
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
        references: see `scores`.
        metric: "bleu", "chrf", "ter", "tokenized_bleu" or "compound_split_bleu".
        num_samples: R.
        seed: of the samples; the same seed, the same result.
        tokenize: of "bleu", see `scores`.
        lowercase: compare in lower case.

    Raises:
        ValueError: the lists differ in length or are empty; for wrong options.
        ImportError: sacreBLEU is not installed.

    Example:

    ```python
    from keras_seqconv.evaluation import paired_bootstrap
    found = paired_bootstrap(
        ["a b c d e"] * 9, ["a b c d f"] * 9, ["a b c d e"] * 9, "tokenized_bleu"
    )
    assert found.better == 1.0 and found.p_value < 0.01
    ```
    """
    check_choice("metric", metric, COMPARABLE)
    check_positive_integer("num_samples", num_samples)
    check_integer("seed", seed, 0)
    computed = _metric(metric, tokenize, lowercase)
    # sacreBLEU's PairedTest calls the same two methods. It keeps no samples, from which
    # the interval of the difference follows, and has its seed from the environment.
    statistics = []
    for texts in (hypotheses, others):
        texts, *columns = _columns(texts, references, metric)
        statistics.append(computed._extract_corpus_statistics(texts, columns))
    statistics = np.array(statistics, "float64")  # of two systems, N sentences

    def score_of(sums):
        return computed._compute_score_from_stats(sums).score

    count, draw = statistics.shape[1], np.random.default_rng(seed)
    samples = np.empty((num_samples, 2))
    for sample in samples:
        drawn = np.bincount(draw.integers(count, size=count), minlength=count)
        sample[:] = [score_of(sums) for sums in drawn @ statistics]
    score, other = (float(score_of(sums)) for sums in statistics.sum(axis=1))
    differences = samples[:, 0] - samples[:, 1]
    sizes = np.abs(differences)
    more = np.sum(sizes - sizes.mean() > abs(score - other))
    return Comparison(
        metric,
        score,
        other,
        _middle(samples[:, 0]),
        _middle(samples[:, 1]),
        score - other,
        _middle(differences),
        float(np.mean(differences < 0 if metric == "ter" else differences > 0)),
        # One more above and below, so that few samples cannot show a p of 0.
        1.0 if score == other else float((more + 1) / (num_samples + 1)),
    )


def _middle(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 %, ends included."""
    values, outside = np.sort(values), len(values) // 40
    return float(values[outside]), float(values[-1 - outside])


# --- sacreBLEU ---


def _score(name, hypotheses, references, tokenize, lowercase) -> Score:
    texts, *columns = _columns(hypotheses, references, name)
    metric = _metric(name, tokenize, lowercase)
    result = metric.corpus_score(texts, columns)
    value, signature = float(result.score), str(metric.get_signature())
    if name in ("bleu", "chrf", "ter"):
        line = result.format(width=2, signature=signature)
        return Score(result.name, value, signature, line)
    signature += "|unk:never"
    line = (
        f"BLEU4 = {value:.2f}, {result.prec_str} (BP={result.bp:.3f}, "
        f"ratio={result.ratio:.3f}, syslen={result.sys_len}, reflen={result.ref_len})"
    )
    if name == "tokenized_bleu":
        return Score("BLEU4", value, signature, line)
    signature = signature.replace("tok:none", "tok:compound-split")
    return Score("compound-split BLEU4", value, signature, f"compound-split {line}")


def _metric(name: str, tokenize: str = "13a", lowercase: bool = False):
    """The object of sacreBLEU that computes one of `COMPARABLE`."""
    package = require("sacrebleu", "mt")
    if name == "chrf":
        return package.CHRF(lowercase=lowercase)
    if name == "ter":
        return package.TER(case_sensitive=not lowercase)
    smoothing = "exp"
    if name != "bleu":
        tokenize, smoothing = "none", "none"
    check_choice("tokenize", tokenize, tuple(sorted(package.BLEU.TOKENIZERS)))
    try:
        # `force`: no warning on texts that are tokenized on purpose.
        return package.BLEU(lowercase, True, tokenize, smoothing)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"sacreBLEU's tokenizer {tokenize!r} needs a package that is not installed "
            f"({error})"
        ) from error


def _columns(hypotheses, references: References, metric: str) -> list[list[str]]:
    """Hypotheses and each list of references, as the metric compares them.

    Raises:
        ValueError: they are not of one length, or empty.
    """
    hypotheses, references = list(hypotheses), list(references)
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if not texts:
            raise ValueError(f"`{name}` must hold a text at least. Received: none")
    if isinstance(references[0], str):
        references = [references]
    columns = [hypotheses, *map(list, references)]
    for texts in columns:
        if len(texts) != len(hypotheses):
            raise ValueError(
                "`hypotheses` and `references` must have as many texts. "
                f"Received: {len(hypotheses)} and {len(texts)}"
            )
    if metric == "compound_split_bleu":
        columns = [[*map(split_compounds, texts)] for texts in columns]
    if metric in ("tokenized_bleu", "compound_split_bleu"):
        columns[1:] = [[*map(_without_unknowns, texts)] for texts in columns[1:]]
    return columns


def _without_unknowns(reference: str) -> str:
    """As fairseq does it, so that an unknown token in a hypothesis matches nothing."""
    words = ("<<unk>>" if word == "<unk>" else word for word in reference.split())
    return " ".join(words)
