"""Scores of a corpus: BLEU, chrF, TER, ROUGE, error rates, paired bootstrap.

Scores are in percent and have a signature: scores with different signatures must not be
compared. sacreBLEU (extra `mt`) computes all but ROUGE and the error rates.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from keras_seqconv.evaluation.error_rates import (
    References,
    columns_of,
    error_rate,
    errors_by_text,
    matches,
)
from keras_seqconv.support import require
from keras_seqconv.support.arguments import check_choice, check_integer

# sacreBLEU's class, and its options.
_TOKENIZED = ("BLEU", {"force": True, "tokenize": "none", "smooth_method": "none"})
_SACREBLEU = {
    "bleu": ("BLEU", {"force": True}),  # no warning on texts tokenized on purpose
    "chrf": ("CHRF", {}),
    "ter": ("TER", {}),
    "tokenized_bleu": _TOKENIZED,
    "compound_split_bleu": _TOKENIZED,
}
_ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
_UNITS = {"wer": "words", "cer": "characters"}
# Of texts that are symbols, such as pronunciations.
OF_SYMBOLS = ("exact", *_UNITS)
COMPARABLE = (*_SACREBLEU, *OF_SYMBOLS)
METRICS = (*_SACREBLEU, "rouge", *OF_SYMBOLS)
# Languages without spaces between words, and those that sacreBLEU has no tokenizer for.
_WITHOUT_TOKENIZER = {"bo", "dz", "km", "lo", "my", "th"}
_WITHOUT_SPACES = {*_WITHOUT_TOKENIZER, "ja", "zh"}


class Score(NamedTuple):
    """One score of a corpus: its name ("BLEU", "chrF2", "WER"), value in percent,
    signature (how it was computed), and all of it in one line.
    """

    name: str
    value: float
    signature: str
    line: str


def usual_metrics(
    target_language: str | None = None,
    references: Iterable[str] = (),
    published: str | None = None,
) -> tuple[str, ...]:
    """BLEU and chrF, the headline first: chrF for languages without spaces.

    ROUGE for summaries. Exact match and error rates for symbols, and where no reference
    has the four words that a BLEU above 0 needs.

    Args:
        target_language: code of the language of the references.
        references: of all texts.
        published: metric of the task that the model was trained for
            (`keras_seqconv.presets.Task`), or None.
    """
    if published == "rouge":
        return ("rouge",)
    if published == "exact":
        return OF_SYMBOLS
    lengths = [len(text.split()) for text in references]
    if lengths and has_spaces(target_language) and max(lengths) < 4:
        return OF_SYMBOLS
    unknown = _code(target_language) in _WITHOUT_TOKENIZER
    return ("chrf", "bleu") if unknown else ("bleu", "chrf")


def has_spaces(language: str | None) -> bool:
    """Whether a language separates words by spaces, as tokenized BLEU needs."""
    return _code(language) not in _WITHOUT_SPACES


def _code(language: str | None) -> str:
    """ "zh" of "zh-CN"."""
    return re.split("[-_]", language or "")[0].lower()


def scores(
    hypotheses: Sequence[str],
    references: References,
    metrics: str | Iterable[str] = ("bleu", "chrf"),
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
    sentence_separator: str | None = None,
    target_language: str | None = None,
) -> list[Score]:
    """Computes several scores of the same texts.

    | metric                | definition                                              |
    |-----------------------|---------------------------------------------------------|
    | "bleu"                | BLEU of untokenized text, for publications              |
    | "chrf"                | chrF2: characters, no words                             |
    | "ter"                 | edits to reach the reference: less is better            |
    | "tokenized_bleu"      | BLEU of the tokens between white space, not smoothed,   |
    |                       | with fairseq's summary as its line; `<unk>` in a        |
    |                       | reference matches nothing; of tokenized texts, and      |
    |                       | comparable between such of one tokenizer only           |
    | "compound_split_bleu" | the same with X-Y written as X ##AT##-##AT## Y on both  |
    |                       | sides, as in fairseq's script; papers on WMT English-   |
    |                       | German report it since Vaswani et al. 2017, about 0.7   |
    |                       | above "tokenized_bleu"                                  |
    | "rouge"               | ROUGE-1, ROUGE-2, ROUGE-L of summaries: mean F1 of      |
    |                       | their pairs by the package rouge-score: lower case,     |
    |                       | English letters and digits only (texts in other scripts |
    |                       | score 0), Porter's stemmer, the best of the references  |
    | "exact"               | texts that equal one of their references but for white  |
    |                       | space; 100 minus it is the word error rate of papers on |
    |                       | pronunciation                                           |
    | "wer"                 | substitutions, insertions and deletions of words        |
    |                       | between white space, by the words of the nearest        |
    |                       | references (`error_rates`): less is better. Of phonemes |
    |                       | with blanks between them it is the phoneme error rate   |
    | "cer"                 | the same of characters; white space is one blank        |

    Args:
        hypotheses: outputs of a system, one text for each sentence.
        references: reference for each sentence, or a list of such lists for several
            references. In all lists but the first, None, "" or white space is no
            reference.
        metrics: names from the table, or one of them.
        tokenize: for "bleu" only: a tokenizer of sacreBLEU: "13a", "intl", "zh",
            "char", "none", ... None: its choice for the target language: "zh",
            "ja-mecab" (pip install 'sacrebleu[ja]'), "ko-mecab" ('sacrebleu[ko]'), and
            "13a" of all others.
        lowercase: whether to lower-case both sides first; not for "rouge".
        sentence_separator: for "rouge" only: separator of a summary's sentences, such
            as "<q>"; ROUGE-L is then that of summaries (union of the
            sentences' longest common subsequences), which papers on CNN/DailyMail
            report. None: one subsequence of the whole text.
        target_language: code of the language of the texts, such as "de" or "zh-CN".

    Raises:
        ValueError: the lists differ in length or are empty, a first reference is
            empty, or a metric or tokenizer is unknown.
        ImportError: sacreBLEU or jiwer (extra `mt`), a package of its tokenizer, or for
            "rouge" rouge-score (extra `rouge`) is not installed.

    Example:

    ```python
    from keras_seqconv.evaluation import scores
    score, = scores(["the cat sat"], ["the cat sat down"], ["tokenized_bleu"])
    print(score.line)  # BLEU4 = 0.00, 100.0/100.0/100.0/0.0 (BP=0.717, ...
    ```
    """
    results = []
    for name in [metrics] if isinstance(metrics, str) else metrics:
        check_choice("metrics", name, METRICS)
        texts, *columns = _columns(hypotheses, references, name)
        if name == "rouge":
            results += _rouge(texts, columns, sentence_separator)
            continue
        if name in OF_SYMBOLS:
            results.append(_error_score(name, texts, columns, lowercase))
            continue
        metric = metric_of(name, tokenize, lowercase, target_language)
        result = metric.corpus_score(texts, columns)
        value, signature = float(result.score), str(metric.get_signature())
        if name in ("bleu", "chrf", "ter"):
            line = result.format(width=2, signature=signature)
            results.append(Score(result.name, value, signature, line))
            continue
        kind, signature = "BLEU4", f"{signature}|unk:never"
        if name == "compound_split_bleu":
            kind = "compound-split BLEU4"
            signature = signature.replace("tok:none", "tok:compound-split")
        line = (
            f"{kind} = {value:.2f}, {result.prec_str} (BP={result.bp:.3f}, ratio="
            f"{result.ratio:.3f}, syslen={result.sys_len}, reflen={result.ref_len})"
        )
        results.append(Score(kind, value, signature, line))
    return results


def _rouge(texts, references, separator: str | None) -> list[Score]:
    kinds = dict(_ROUGE)
    if separator == "":
        raise ValueError("`sentence_separator` must not be empty. Received: ''")
    if separator is not None:
        kinds["rougeLsum"] = kinds.pop("rougeL")
        columns = [texts, *references]
        columns = [
            [text and text.replace(separator, "\n") for text in c] for c in columns
        ]
        texts, *references = columns
    unit = "text" if separator is None else "summary"
    signature = f"{_number_of(references)}|stem:yes|L:{unit}|mean:F1|rouge-score"
    package = require("rouge_score.rouge_scorer", "rouge")
    scorer = package.RougeScorer([*kinds], use_stemmer=True)
    rows = [  # of each text, by the best of its references
        scorer.score_multi([text for text in row if text is not None], hypothesis)
        for hypothesis, row in zip(texts, zip(*references, strict=True), strict=True)
    ]
    results = []
    for kind, name in kinds.items():
        value = float(100 * np.mean([row[kind].fmeasure for row in rows]))
        results.append(
            Score(name, value, signature, f"{name}|{signature} = {value:.2f}")
        )
    return results


def _number_of(references) -> str:
    """Number of references of each text, as in sacreBLEU's signatures."""
    counts = {len(row) - row.count(None) for row in zip(*references, strict=True)}
    return f"nrefs:{counts.pop() if len(counts) == 1 else 'var'}"


def _error_score(name: str, texts, references, lowercase: bool) -> Score:
    signature = f"{_number_of(references)}|case:{'lc' if lowercase else 'mixed'}"
    texts, *references = _cased([texts, *references], lowercase)
    if name == "exact":
        right = matches(texts, references)
        value = 100 * sum(right) / len(right)
        line = f"exact match|{signature} = {value:.2f} of {len(texts):,} texts"
        return Score("exact match", value, signature, line)
    rate = error_rate(texts, references, _UNITS[name])
    signature += "|refs:nearest|jiwer"
    # A word may be a phoneme.
    unit = "words between blanks" if name == "wer" else "characters"
    line = (
        f"{name.upper()}|{signature} = {rate.percent:.2f}: {rate.errors:,} errors in "
        f"{rate.symbols:,} {unit} ({rate.substitutions:,} substitutions, "
        f"{rate.insertions:,} insertions, {rate.deletions:,} deletions)"
    )
    return Score(name.upper(), rate.percent, signature, line)


def _cased(columns, lowercase: bool) -> list:
    if not lowercase:
        return columns
    return [[text and text.lower() for text in column] for column in columns]


class _OfSymbols:
    """Exact match or an error rate for sacreBLEU's significance tests.

    It has the methods of `sacrebleu.metrics.base.Metric` that these call. The
    statistics of a text are the numerator and the denominator of its score.
    """

    def __init__(self, name: str, lowercase: bool):
        self.name, self.lowercase = name, lowercase
        self.base = require("sacrebleu.metrics.base", "mt")

    def _extract_corpus_statistics(self, hypotheses, references):
        texts, *columns = _cased([hypotheses, *references], self.lowercase)
        if self.name == "exact":
            return [(right, 1) for right in matches(texts, columns)]
        return errors_by_text(texts, columns, _UNITS[self.name])

    def _aggregate_and_compute(self, statistics):
        return self._compute_score_from_stats(np.sum(statistics, axis=0))

    def _compute_score_from_stats(self, sums):
        return self.base.Score(self.name, 100 * sums[0] / max(1, sums[1]))

    def get_signature(self):
        return self.base.Signature({"num_refs": -1})  # any


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
            to edges[1], ..., and longer sources.

    Returns:
        Names of the groups, BLEU of each (NaN if it is empty), sentences in each.
    """
    edges = [check_integer("edges", edge, 1) for edge in edges]
    if len(sources) != len(hypotheses):
        raise ValueError(
            "`sources` and `hypotheses` must have as many texts. "
            f"Received: {len(sources)} and {len(hypotheses)}"
        )
    if not edges or sorted(set(edges)) != edges:
        raise ValueError(
            f"`edges` must be increasing positive integers. Received: edges={edges}"
        )
    columns = _columns(hypotheses, references, "tokenized_bleu")
    metric = metric_of("tokenized_bleu")
    metric.smooth_method = "exp"  # groups are small
    lows = [1, *(edge + 1 for edge in edges)]
    names = [f"{low}–{high}" for low, high in zip(lows, edges, strict=False)]
    names.append(f"> {edges[-1]}")
    groups = np.searchsorted(edges, [len(text.split()) for text in sources])
    counts = np.bincount(groups, minlength=len(names))
    values = np.full(len(names), np.nan)
    for group in np.flatnonzero(counts):
        rows = np.flatnonzero(groups == group)
        texts, *rest = ([column[row] for row in rows] for column in columns)
        values[group] = metric.corpus_score(texts, rest).score
    return names, values, counts


class Comparison(NamedTuple):
    """Comparison of two systems on the same sentences; scores in percent.

    Attributes:
        metric: one of `COMPARABLE`.
        score, other_score: scores of all sentences.
        mean, other_mean: means of the samples.
        half_width, other_half_width: half of the width of the middle 95 % of the
            samples; `mean` plus and minus it is the confidence interval.
        p_value: probability of a difference as large by chance, as in Moses: the share
            of samples whose difference deviates from the samples' mean by more than the
            absolute difference of all sentences; 1 for systems of equal scores.
    """

    metric: str
    score: float
    other_score: float
    mean: float
    other_mean: float
    half_width: float
    other_half_width: float
    p_value: float


def paired_bootstrap(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: References,
    metric: str = "bleu",
    *,
    num_samples: int = 1000,
    tokenize: str | None = None,
    lowercase: bool = False,
    target_language: str | None = None,
) -> Comparison:
    """Compares two systems on samples of the sentences, drawn with replacement.

    (Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation.)
    This is the test of `sacrebleu --paired-bs`, also of exact match and error rates.
    The environment variable `SACREBLEU_SEED` changes its samples.

    Args:
        hypotheses, others: texts of the two systems.
        references: see `scores`.
        metric: one of `COMPARABLE`, all but "rouge".
        num_samples: number of samples.
        tokenize, lowercase, target_language: see `scores`, also for errors.

    Raises:
        ImportError: sacreBLEU (extra `mt`), or jiwer for error rates, is not installed.
    """
    check_choice("metric", metric, COMPARABLE)
    check_integer("num_samples", num_samples, 1)
    texts, *columns = _columns(hypotheses, references, metric)
    baseline, *_ = _columns(others, references, metric)
    if metric in OF_SYMBOLS:
        computed = _OfSymbols(metric, lowercase)
    else:
        computed = metric_of(metric, tokenize, lowercase, target_language)
    test = require("sacrebleu.significance", "mt").PairedTest(
        [("baseline", baseline), ("system", texts)],
        {metric: computed},
        columns,
        "bs",
        num_samples,
    )
    _, results = test()
    other, system = next(pair for name, pair in results.items() if name != "System")
    return Comparison(
        metric,
        score=float(system.score),
        other_score=float(other.score),
        mean=float(system.mean),
        other_mean=float(other.mean),
        half_width=float(system.ci),
        other_half_width=float(other.ci),
        p_value=1.0 if system.score == other.score else system.p_value,
    )


def metric_of(
    name: str,
    tokenize: str | None = None,
    lowercase: bool = False,
    target_language: str | None = None,
):
    """The object of sacreBLEU that computes one of its metrics.

    ImportError if sacreBLEU, or a package of its tokenizer, is not installed.
    """
    package = require("sacrebleu", "mt")
    kind, options = _SACREBLEU[name]
    lowers = {"case_sensitive": not lowercase} if kind == "TER" else {}
    options = {**options, **(lowers or {"lowercase": lowercase})}
    if name == "bleu" and tokenize is None:
        options["trg_lang"] = _code(target_language)
    elif name == "bleu":
        tokenizers = tuple(sorted(package.BLEU.TOKENIZERS))
        options["tokenize"] = check_choice("tokenize", tokenize, tokenizers)
    try:
        return getattr(package, kind)(**options)
    except RuntimeError as error:
        raise ImportError(
            "sacreBLEU's tokenizer of BLEU "
            f"({f'of {target_language!r}' if tokenize is None else repr(tokenize)}) "
            f"needs a package that is not installed ({' '.join(str(error).split())})"
        ) from error


def check_metrics(metrics: Iterable[str], **choices) -> None:
    """Raises as `scores` does for its metrics and their packages, without texts.

    Args:
        metrics: see `scores`.
        **choices: `tokenize`, `lowercase` and `target_language` of `scores`.
    """
    scores(["a"], ["a"], metrics, **choices)


def _columns(hypotheses, references: References, metric: str) -> list[list[str]]:
    """Hypotheses and each list of references, as the metric compares them."""
    columns = columns_of(hypotheses, references)
    if metric == "compound_split_bleu":
        # Matches do not overlap: in "a-b-c" the second dash stays, as b was used up.
        split = partial(re.sub, r"(\S)-(\S)", r"\1 ##AT##-##AT## \2")
        columns = [[text and split(text) for text in texts] for texts in columns]
    if metric in ("tokenized_bleu", "compound_split_bleu"):
        # As fairseq does it, so that an unknown token in a hypothesis matches nothing.
        unknown = partial(re.sub, r"(?<!\S)<unk>(?!\S)", "<<unk>>")
        columns[1:] = [[text and unknown(text) for text in c] for c in columns[1:]]
    return columns
