"""The embedded corpus: splits, unseen numbers, functions both ways, German."""

from collections import Counter
from importlib.metadata import version

import pytest

pytest.importorskip("babel")
pytest.importorskip("num2words")

from keras_seqconv.data.corpora import open_corpus
from tools.phrases import CHECKSUM, SIZES, checksum, generate, phrases

VERSIONS = {"Babel": "2.18.0", "num2words": "0.5.14"}


@pytest.fixture(scope="module")
def corpus():
    return generate.corpus()


def numbers_of(pair):
    """What a pair shows of numbers, written here once more: one key for a value."""
    for name, slot in pair.template.slots.items():
        value = pair.values[name]
        if slot.kind == "number":
            yield name, ("number", abs(value))
        elif slot.kind == "time":
            yield name, ("time", value // 60 % 12, value % 60)
        elif slot.kind == "calendar":
            yield name, ("day", value.month, value.day)
            yield name, ("number", value.year)
        elif slot.kind == "date":
            yield name, ("day", *value)
        elif slot.kind not in ("name", "city", "noun", "weekday", "month"):
            yield name, (slot.kind, value)


@pytest.mark.slow
def test_counts_and_disjoint_splits(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == SIZES
    assert len(generate.templates()) >= 200
    for side in (0, 1):
        texts = [pair[side] for pairs in corpus.values() for pair in pairs]
        assert len(set(texts)) == 20_000  # also: no text is in two splits


@pytest.mark.parametrize("split", SIZES)
def test_the_package_has_what_the_generator_writes(corpus, split):
    shipped = open_corpus("phrases")
    sides = [shipped.texts(split, side) for side in ("source", "target")]
    assert list(zip(*sides, strict=True)) == list(phrases(split))
    assert list(phrases(split)) == [pair[:2] for pair in corpus[split]]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_unseen_numbers_and_combinations(corpus, split):
    seen, seen_here = set(), set()
    for pair in corpus["train"]:
        for name, key in numbers_of(pair):
            seen.add(key)
            seen_here.add((pair.template.english, name, key))
    counts = Counter(pair.pool for pair in corpus[split])
    assert counts == {"number": 500, "combination": 500}
    for pair in corpus[split]:
        found = list(numbers_of(pair))
        if pair.pool == "number":
            assert any(key not in seen for _, key in found), pair.english
        else:
            assert all(key in seen for _, key in found), pair.english
            here = [(pair.template.english, name, key) for name, key in found]
            assert any(place not in seen_here for place in here), pair.english


@pytest.mark.slow
def test_english_and_german_determine_each_other():
    """Not by leaving out what clashes: all draws, not only those of the corpus."""
    german, english = {}, {}
    for template in generate.templates():
        for values in generate._draws(template):
            pair = generate._write(template, values, "")
            assert german.setdefault(pair.english, pair.german) == pair.german
            assert english.setdefault(pair.german, pair.english) == pair.english
    assert len(german) > 60_000


def test_checksum_with_the_pinned_versions():
    """Every sentence is what it was when its German was last checked, by people, and
    its words in validation and test by those of training."""
    found = {name: version(name) for name in VERSIONS}
    if found != VERSIONS:
        pytest.skip(f"the checksum is that of {VERSIONS}, here are {found}")
    assert checksum() == CHECKSUM
