"""Exact match, error rates of symbols, confusions: against a loop, and by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_seqconv.evaluation import (
    Confusion,
    ErrorRate,
    confusions,
    error_rate,
    scores,
    usual_metrics,
)

texts = st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(" ".join)
HYPOTHESES = ["HH AH L OW", "K AE T", "", "T  UW"]
REFERENCES = ["HH AH L OW", "K AA T S", "D AO G", "T UW"]
OTHERS = ["HH EH L OW", None, "", "T AH"]


def distance(one, other):
    """Levenshtein's, row by row."""
    row = list(range(len(other) + 1))
    for symbol in one:
        left, row = row, [row[0] + 1]
        for column, theirs in enumerate(other):
            change = left[column] + (symbol != theirs)
            row.append(min(change, left[column + 1] + 1, row[column] + 1))
    return row[-1]


@given(st.lists(st.tuples(texts, texts, texts | st.none()), min_size=1, max_size=4))
def test_the_nearest_reference_counts(rows):
    hypotheses, *references = map(list, zip(*rows, strict=True))
    for unit, symbols in (("words", str.split), ("characters", list)):
        errors = length = 0
        for text, *row in rows:
            row = [symbols(other) for other in row if other is not None]
            nearest = min(
                row, key=lambda other: (distance(symbols(text), other), -len(other))
            )
            errors += distance(symbols(text), nearest)
            length += len(nearest)
        rate = error_rate(hypotheses, references, unit)
        assert (rate.errors, rate.symbols) == (errors, length)
        assert sum(c.count for c in confusions(hypotheses, references, unit)) == errors


def test_totals_of_the_corpus():
    rate = error_rate(HYPOTHESES, [REFERENCES, OTHERS])
    assert rate == ErrorRate(1, 0, 4, 13) and rate.percent == 100 * 5 / 13
    assert scores(HYPOTHESES, REFERENCES, ["exact"])[0].value == 50
    assert scores(["T AH"], [["T UW"], ["T AH"]], ["exact"])[0].value == 100
    found = confusions(HYPOTHESES, REFERENCES)
    assert found[-1] == Confusion("S", "", 1) and Confusion("AA", "AE", 1) in found
    assert confusions(["a x b"], ["a b"]) == [Confusion("", "x", 1)]
    assert error_rate(["a  b"], ["a b"], "characters").errors == 0


def test_scores_and_their_signatures():
    exact, words, characters = scores(
        ["K ae T"], [["K AE D"], ["K AE T"]], ["exact", "wer", "cer"], lowercase=True
    )
    assert (exact.value, words.value, characters.value) == (100, 0, 0)
    assert "nrefs:2|case:lc" in words.signature and "jiwer" in words.signature
    (words,) = scores(["K ae T"], [["K AE D"], [""]], ["wer"])
    assert words.value == pytest.approx(200 / 3)
    assert words.line.startswith("WER|nrefs:1|case:mixed|refs:nearest|jiwer = 66.67: 2")
    with pytest.raises(ValueError, match="as many texts"):
        error_rate(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="`unit` must be one of"):
        confusions(["a"], ["a"], "letters")


def test_metrics_of_short_texts():
    perfect = ["right", "left"]
    assert scores(perfect, perfect, ["bleu"])[0].value == 0
    assert usual_metrics("en", perfect) == ("exact", "wer", "cer")
    assert usual_metrics("en", [*perfect, "one two three four"]) == ("bleu", "chrf")
    assert usual_metrics("ja", perfect) == ("bleu", "chrf")  # words without spaces
    long = ["R EH D IH NG"]
    assert usual_metrics("phones", long) == ("bleu", "chrf")
    assert usual_metrics("phones", long, "exact") == ("exact", "wer", "cer")
    assert usual_metrics("en", long, "rouge") == ("rouge",)
