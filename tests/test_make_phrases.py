"""The embedded corpus: splits, unseen numbers, functions both ways, German."""

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


@pytest.mark.parametrize("split", SIZES)
def test_the_package_has_what_the_generator_writes(corpus, split):
    shipped = open_corpus("phrases")
    sides = [shipped.texts(split, side) for side in ("source", "target")]
    assert list(zip(*sides, strict=True)) == list(phrases(split))
    assert list(phrases(split)) == [pair[:2] for pair in corpus[split]]


def test_checksum_with_the_pinned_versions():
    """Every sentence is what it was when its German was last checked, by people, and
    its words in validation and test by those of training."""
    found = {name: version(name) for name in VERSIONS}
    if found != VERSIONS:
        pytest.skip(f"the checksum is that of {VERSIONS}, here are {found}")
    assert checksum() == CHECKSUM
