"""Scores of texts against references: BLEU, chrF, TER, ROUGE, and BLEU by length.

Scores are in percent, and carry what they are (the signature), as numbers of different
signatures must not be compared. Letters: N sentences.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv.support.arguments import check_choice
from keras_seqconv.support.extras import require
from keras_seqconv.version import __version__

METRICS = (
    "bleu", "chrf", "ter", "tokenized_bleu", "compound_split_bleu", "torchtext_bleu",
    "rouge",
)  # fmt: skip
# n-grams of 1 to 4 tokens, as in Papineni et al. 2002.
ORDER = 4
_UNKNOWN = "<unk>"
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

    Args:
        hypotheses: what a system wrote, one text for each sentence.
        references: what it should have written: as many texts, or a list of such lists
            where there are several references.
        metrics: any of "bleu", "chrf", "ter", "tokenized_bleu", "compound_split_bleu",
            "torchtext_bleu", "rouge" (three scores).
        tokenize: of "bleu" alone, see `bleu`.
        lowercase: lower-case both sides first.

    Raises:
        ValueError: the lists differ in length or are empty; for an unknown metric.
        ImportError: for "bleu", "chrf", "ter" without sacreBLEU (extra `mt`), for
            "rouge" without rouge-score (extra `rouge`).

    Example:

    ```python
    from keras_seqconv.evaluation import scores
    found = scores(["the cat sat"], ["the cat sat down"], ["tokenized_bleu"])
    print(found[0].line)  # BLEU4 = 0.00, 100.0/100.0/100.0/0.0 (BP=0.717, ...
    ```
    """
    functions = {
        "chrf": chrf,
        "ter": ter,
        "tokenized_bleu": tokenized_bleu,
        "compound_split_bleu": compound_split_bleu,
        "torchtext_bleu": torchtext_bleu,
    }
    found = []
    for metric in metrics:
        check_choice("metrics", metric, METRICS)
        if metric == "bleu":
            found.append(bleu(hypotheses, references, tokenize, lowercase))
        elif metric == "rouge":
            found += rouge(hypotheses, references)
        else:
            found.append(functions[metric](hypotheses, references, lowercase=lowercase))
    return found


# --- sacreBLEU: the scores to publish, of text as people read it. ---


def bleu(
    hypotheses: Sequence[str],
    references: References,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """BLEU by sacreBLEU, of text that is not tokenized.

    Args:
        hypotheses, references: see `scores`.
        tokenize: a tokenizer of sacreBLEU: "13a", "intl", "zh", "char", "none", ...
        lowercase: compare in lower case.

    Raises:
        ValueError, ImportError: see `scores`.
    """
    metric = sacrebleu_metric("bleu", tokenize, lowercase)
    return _of_sacrebleu("BLEU", metric, hypotheses, references)


def chrf(
    hypotheses: Sequence[str], references: References, *, lowercase: bool = False
) -> Score:
    """chrF2 (characters, no words) by sacreBLEU; see `bleu`."""
    metric = sacrebleu_metric("chrf", lowercase=lowercase)
    return _of_sacrebleu("chrF2", metric, hypotheses, references)


def ter(
    hypotheses: Sequence[str], references: References, *, lowercase: bool = False
) -> Score:
    """TER, the edits that are needed, by sacreBLEU: less is better; see `bleu`."""
    metric = sacrebleu_metric("ter", lowercase=lowercase)
    return _of_sacrebleu("TER", metric, hypotheses, references)


def sacrebleu_metric(name: str, tokenize: str = "13a", lowercase: bool = False):
    """The object of sacreBLEU that computes "bleu", "chrf" or "ter".

    Raises:
        ValueError: for a tokenizer that sacreBLEU does not have.
        ImportError: sacreBLEU, or what the tokenizer needs, is not installed.
    """
    package = require("sacrebleu", "mt")
    if name == "chrf":
        return package.CHRF(lowercase=lowercase)
    if name == "ter":
        return package.TER(case_sensitive=not lowercase)
    check_choice("tokenize", tokenize, tuple(sorted(package.BLEU.TOKENIZERS)))
    try:
        # `force`: no warning on texts that are tokenized on purpose.
        return package.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"sacreBLEU's tokenizer {tokenize!r} needs a package that is not installed "
            f"({error})"
        ) from error


def _of_sacrebleu(name, metric, hypotheses, references) -> Score:
    hypotheses, references = checked(hypotheses, references)
    result = metric.corpus_score(hypotheses, references)
    signature = str(metric.get_signature())
    line = result.format(width=2, signature=signature)
    return Score(name, float(result.score), signature, line)


# --- BLEU of tokens, our own: for comparison with what papers report. ---


def tokenized_bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    unknown: str | None = _UNKNOWN,
    lowercase: bool = False,
) -> Score:
    """BLEU of the tokens between white space, not smoothed, as fairseq computes it.

    Give it tokenized texts: it depends on how both sides were tokenized, and is not
    comparable with `bleu`. With several references (which fairseq does not have) a
    match is counted up to the most occurrences in any of them, and the length is that
    of the closest, the first of two that are equally close.

    Args:
        hypotheses, references: see `scores`.
        unknown: a token that never matches where a reference has it; None: there is no
            such token (torchtext).
        lowercase: lower-case both sides first.

    Returns:
        A `Score` whose line is fairseq's summary, `BLEU4 = 41.02, 71.0/47.5/34.3/24.5
        (BP=0.999, ratio=0.999, syslen=12091, reflen=12103)`.

    Raises:
        ValueError: see `scores`.
    """
    rows = bleu_statistics(hypotheses, references, unknown=unknown, lowercase=lowercase)
    sums = rows.sum(axis=0)
    value = float(bleu_of(sums))
    correct, totals = sums[:ORDER], sums[ORDER : 2 * ORDER]
    length, closest = map(int, sums[2 * ORDER :])
    precisions = "/".join(
        f"{100 * right / max(1, total):2.1f}"
        for right, total in zip(correct, totals, strict=True)
    )
    ratio = length / closest if closest else 0.0
    line = (
        f"BLEU4 = {value:2.2f}, {precisions} (BP={_brevity(length, closest):.3f}, "
        f"ratio={ratio:.3f}, syslen={length}, reflen={closest})"
    )
    return Score("BLEU4", value, _signature(references, lowercase, unknown), line)


def compound_split_bleu(
    hypotheses: Sequence[str], references: References, *, lowercase: bool = False
) -> Score:
    """`tokenized_bleu` after each X-Y became X ##AT##-##AT## Y, on both sides.

    What papers report for WMT English-German since Vaswani et al. 2017; about 0.7
    above `tokenized_bleu` there, and comparable with nothing else.
    """
    hypotheses, references = checked(hypotheses, references)
    found = tokenized_bleu(
        [split_compounds(text) for text in hypotheses],
        [[split_compounds(text) for text in texts] for texts in references],
        lowercase=lowercase,
    )
    return Score(
        "compound-split BLEU4",
        found.value,
        found.signature.replace("tok:none", "tok:compound-split"),
        f"compound-split {found.line}",
    )


def split_compounds(text: str) -> str:
    """Writes X-Y as X ##AT##-##AT## Y, as `compound_split_bleu.sh` of fairseq does.

    Matches do not overlap: in "a-b-c" the second dash stays, as b was used up.
    """
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def torchtext_bleu(
    hypotheses: Sequence[str], references: References, *, lowercase: bool = False
) -> Score:
    """What `torchtext.data.metrics.bleu_score` returns, times 100.

    The same as `tokenized_bleu` but for `<unk>`: torchtext knows no such token, so one
    in the hypothesis matches one in the reference. (It computes in float32, hence
    differs from this by up to 1e-5.)
    """
    found = tokenized_bleu(hypotheses, references, unknown=None, lowercase=lowercase)
    return found._replace(name="torchtext BLEU", line=f"torchtext {found.line}")


def bleu_statistics(
    hypotheses: Sequence[str],
    references: References,
    *,
    unknown: str | None = _UNKNOWN,
    lowercase: bool = False,
) -> np.ndarray:
    """What the tokenized BLEU of any set of these sentences follows from.

    Args:
        hypotheses, references, unknown, lowercase: see `tokenized_bleu`.

    Returns:
        (N, 10) int64: matches of 1 to 4 tokens, n-grams of 1 to 4 tokens, tokens of
        the hypothesis, tokens of the closest reference. Sum rows for `bleu_of`.
    """
    hypotheses, references = checked(hypotheses, references)

    def tokens(text):
        return (text.lower() if lowercase else text).split()

    rows = np.zeros((len(hypotheses), 2 * ORDER + 2), "int64")
    for row, text, *others in zip(rows, hypotheses, *references, strict=True):
        row[:] = _sentence_statistics(tokens(text), list(map(tokens, others)), unknown)
    return rows


def _sentence_statistics(hypothesis: list, references: list, unknown) -> list[int]:
    allowed = Counter()
    for reference in references:
        # No token of a text equals None.
        allowed |= _ngrams([None if word == unknown else word for word in reference])
    matches = [0] * ORDER
    for ngram, count in (_ngrams(hypothesis) & allowed).items():
        matches[len(ngram) - 1] += count
    length = len(hypothesis)
    totals = [max(0, length - n) for n in range(ORDER)]
    closest = min(map(len, references), key=lambda other: abs(other - length))
    return [*matches, *totals, length, closest]


def _ngrams(tokens: list) -> Counter:
    return Counter(
        tuple(tokens[start : start + n])
        for n in range(1, ORDER + 1)
        for start in range(len(tokens) - n + 1)
    )


def bleu_of(sums, smooth: str = "none") -> np.ndarray:
    """BLEU in percent from sums of statistics.

    Args:
        sums: (..., 10), sums over sentences of the rows of `bleu_statistics`.
        smooth: "none": 0 where no n-gram of some length matches; "exp": the k-th such
            length counts 1 / 2**k matches (sacreBLEU's default, NIST's mteval).

    Returns:
        (...), float64.
    """
    sums = np.asarray(sums, "float64")
    correct, totals = sums[..., :ORDER], sums[..., ORDER : 2 * ORDER]
    if smooth == "exp":
        missed = np.cumsum(correct == 0, axis=-1)
        some = np.any(correct > 0, axis=-1, keepdims=True)
        correct = np.where((correct == 0) & some, 0.5**missed, correct)
    possible = np.all((correct > 0) & (totals > 0), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.mean(np.log(correct / totals), axis=-1)
    value = _brevity(sums[..., -2], sums[..., -1]) * np.exp(np.where(possible, mean, 0))
    return np.where(possible, 100 * value, 0.0)


def _brevity(length, closest):
    """The penalty of texts that are too short, at most 1."""
    length = np.asarray(length, "float64")
    ratio = np.asarray(closest, "float64") / np.maximum(length, 1)
    return np.where(length > 0, np.minimum(1.0, np.exp(1 - ratio)), 0.0)


def _signature(references, lowercase, unknown) -> str:
    single = isinstance(references[0], str)
    return "|".join(
        [
            f"nrefs:{1 if single else len(references)}",
            f"case:{'lc' if lowercase else 'mixed'}",
            "eff:no",
            "tok:none",
            "smooth:none",
            f"unk:{'matches' if unknown is None else 'never'}",
            f"version:keras_seqconv-{__version__}",
        ]
    )


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
        ValueError: see `scores`; for edges that do not increase.
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
    rows = bleu_statistics(hypotheses, references)
    group = np.searchsorted(edges, [len(text.split()) for text in sources])
    lows = [1, *(edge + 1 for edge in edges)]
    names = [f"{low}–{high}" for low, high in zip(lows, edges, strict=False)]
    names.append(f"> {edges[-1]}")
    counts = np.bincount(group, minlength=len(names))
    values = [
        float(bleu_of(rows[group == n].sum(axis=0), "exp")) if counts[n] else np.nan
        for n in range(len(names))
    ]
    return names, np.array(values), counts


# --- ROUGE ---


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
    hypotheses, references = checked(hypotheses, references)
    package = require("rouge_score.rouge_scorer", "rouge")
    longest = "rougeL" if sentence_separator is None else "rougeLsum"
    kinds = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", longest: "ROUGE-L"}
    scorer = package.RougeScorer([*kinds], use_stemmer=use_stemmer)

    def lines(text):
        return (
            text
            if sentence_separator is None
            else text.replace(sentence_separator, "\n")
        )

    totals = dict.fromkeys(kinds, 0.0)
    for text, *others in zip(hypotheses, *references, strict=True):
        found = scorer.score_multi(list(map(lines, others)), lines(text))
        for kind in kinds:
            totals[kind] += found[kind].fmeasure
    signature = "|".join(
        [
            f"nrefs:{len(references)}",
            f"stem:{'yes' if use_stemmer else 'no'}",
            f"L:{'text' if sentence_separator is None else 'summary'}",
            "mean:F1",
            "rouge-score",
        ]
    )
    values = {kind: 100 * total / len(hypotheses) for kind, total in totals.items()}
    return [
        Score(name, values[kind], signature, f"{name}|{signature} = {values[kind]:.2f}")
        for kind, name in kinds.items()
    ]


# --- Arguments ---


def checked(hypotheses, references) -> tuple[list[str], list[list[str]]]:
    """Hypotheses, and a list of texts for each reference.

    Raises:
        ValueError: they differ in length, or are empty.
    """
    hypotheses = list(hypotheses)
    references = list(references)
    if not hypotheses:
        raise ValueError("`hypotheses` must hold a text at least. Received: none")
    if not references:
        raise ValueError("`references` must hold a text at least. Received: none")
    if isinstance(references[0], str):
        references = [references]
    references = [list(texts) for texts in references]
    for texts in references:
        if len(texts) != len(hypotheses):
            raise ValueError(
                "`hypotheses` and `references` must have as many texts. "
                f"Received: {len(hypotheses)} and {len(texts)}"
            )
    return hypotheses, references
