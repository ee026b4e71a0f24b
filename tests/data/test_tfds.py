"""TensorFlow Datasets: which texts, which direction, and what happens offline."""

import sys
from unittest import mock

import numpy as np
import pytest

from keras_seqconv.data.corpora import hold_out, open_corpus
from keras_seqconv.data.rows import prepare_tfds
from tests.data.test_corpora import rows_of as pairs

tfds = pytest.importorskip("tensorflow_datasets")
requests = pytest.importorskip("requests")


class _Texts(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Generates EXAMPLES; a download manager is not asked."""

    VERSION = tfds.core.Version("1.0.0")
    SUPERVISED = None

    def _info(self):
        features = self.FEATURES
        if isinstance(features, dict):
            features = tfds.features.FeaturesDict(features)
        return self.dataset_info_from_configs(
            features=features, supervised_keys=self.SUPERVISED
        )

    def _split_generators(self, dl_manager):
        train = self._generate_examples(None)
        return {"train": train, "dev": self._generate_examples(2)}

    def _generate_examples(self, number):
        yield from enumerate(self.EXAMPLES[:number])


TEXT = tfds.features.Text()
STARS = tfds.features.Scalar(np.int32)


class SeqconvPairs(_Texts):
    FEATURES = tfds.features.Translation(["en", "de", "fr"])
    EXAMPLES = [{"en": f"e{i}", "de": f"ä{i}", "fr": f"f{i}"} for i in range(2500)]


class SeqconvSummaries(_Texts):
    FEATURES = {"id": TEXT, "article": TEXT, "highlights": TEXT, "stars": STARS}
    SUPERVISED = ("article", "highlights")
    EXAMPLES = [
        {"id": "0", "article": " A .\r\n\n B\n", "highlights": "a \n b", "stars": 1},
        {"id": "1", "article": "C  c", "highlights": "", "stars": 1},
        {"id": "2", "article": "D\u2028d", "highlights": "d\n", "stars": 2},
    ]


class SeqconvTalks(_Texts):
    BOTH = tfds.features.TranslationVariableLanguages(["de", "en"])
    FEATURES = {"talk": TEXT, "translations": BOTH}
    EXAMPLES = [
        {"talk": "x", "translations": {"de": "Hund", "en": ["dog", "hound"]}},
        {"talk": "y", "translations": {"de": "Katze"}},
        {"talk": "z", "translations": {"en": "bird", "de": "Vogel"}},
    ]


class SeqconvLines(_Texts):
    FEATURES = {"text": TEXT}
    SUPERVISED = ("text", "text")
    EXAMPLES = [{"text": f"line {i}"} for i in range(3)]


class SeqconvManual(SeqconvLines):
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Fetch it."

    def _split_generators(self, dl_manager):
        assert [*dl_manager.manual_dir.iterdir()]
        return super()._split_generators(dl_manager)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """`open_corpus` on one of the classes above, prepared once, without any network."""
    folder = tmp_path_factory.mktemp("prepared")

    def open_prepared(kind, source=None, target=None, **options):
        builder = kind(data_dir=folder)
        prepare_tfds(builder)
        languages = {"source_language": source, "target_language": target}
        return open_corpus(builder.name, data_dir=folder, **languages, **options)

    return open_prepared


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("fr", "de")])
def test_pairs(opened, source, target):
    corpus = opened(SeqconvPairs, source, target)
    initial = {"en": "e", "de": "ä", "fr": "f"}
    found = pairs(corpus)
    assert len(found) == 2500
    for one, other in found:
        assert one == initial[source] + one[1:] and other == initial[target] + one[1:]
    assert pairs(corpus) == found
    assert corpus.counts["train"] == {"kept": 2500}
    ((name, digest),) = corpus.digests(["train"]).items()
    assert name.endswith("/1.0.0 train") and digest.startswith("2500 rows, ")
    assert set(corpus.splits) == {"train", "validation"}
    with pytest.raises(ValueError, match="which has a validation split"):
        hold_out(corpus, 0.1)
    assert pairs(corpus, "validation") == pairs(corpus, "dev")
    assert pairs(corpus, "train[:1%]") == found[:25]
    assert len(pairs(corpus, "dev[:1]+train[:2]")) == 3
    for wrong in ("tset", "train[:x]", "train+nothing", "train[:300%]", "train[:0]"):
        with pytest.raises(ValueError, match="`split` must be"):
            pairs(corpus, wrong)


def test_other_kinds_of_texts(opened):
    corpus = opened(SeqconvSummaries, on_error="skip")
    assert (corpus.source_language, corpus.target_language) == ("article", "highlights")
    assert sorted(pairs(corpus)) == [("A . B", "a b"), ("D\u2028d", "d")]
    assert corpus.counts["train"] == {"kept": 2, "empty": 1}
    message = r"train, highlights of example \d, has no text"
    with pytest.raises(ValueError, match=message):
        pairs(opened(SeqconvSummaries))
    corpus = opened(SeqconvSummaries, "highlights", "id", on_error="skip")
    assert set(pairs(corpus)) == {("a b", "0"), ("d", "2")}
    with pytest.raises(ValueError, match="highlights.* Received: 'stars' and"):
        opened(SeqconvSummaries, "stars", "id")  # a number
    corpus = opened(SeqconvTalks, "de", "en")
    assert set(pairs(corpus)) == {("Hund", "dog"), ("Vogel", "bird")}
    assert corpus.counts["train"] == {"kept": 2, "untranslated": 1}
    corpus = opened(SeqconvTalks, "en", "de")  # not in the order of the alphabet
    assert set(pairs(corpus)) == {("dog", "Hund"), ("bird", "Vogel")}
    corpus = opened(SeqconvLines)
    assert (corpus.source_language, corpus.target_language) == (None, "text")
    assert set(pairs(corpus)) == {(f"line {i}",) for i in range(3)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wmt14_transalte/de-en", "Did you mean .*wmt14_translate.*14_transalte/de-en"),
        ("wmt14_translate/de-fr", "Configurations .*: cs-en, de-en, .*translate/de-fr"),
        ("mnist", "mnist/.* must have features that are texts. It has: image, label"),
    ],
)
def test_unknown_names(tmp_path, name, message, monkeypatch):
    with pytest.raises(ValueError, match=message) as caught:
        open_corpus(name, data_dir=tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"keras-seqconv\[tfds\]"):
        open_corpus(name)


def test_offline_and_by_hand(tmp_path, monkeypatch):
    builder, fetched = SeqconvManual(data_dir=tmp_path / "data"), tmp_path / "fetched"
    with pytest.raises(FileNotFoundError, match="give it as `manual_dir`"):
        prepare_tfds(builder)
    fetched.mkdir()
    (fetched / "file").touch()
    prepare_tfds(builder, fetched)
    assert builder.is_prepared()
    away = mock.Mock(side_effect=requests.ConnectionError("no\nroute"))
    monkeypatch.setattr(SeqconvManual, "_split_generators", away)
    with pytest.raises(ConnectionError, match="cannot be: no route What helps"):
        prepare_tfds(SeqconvManual(data_dir=tmp_path / "away"))
