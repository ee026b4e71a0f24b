"""TensorFlow Datasets: which texts, which direction, and what happens offline."""

import hashlib
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import requests

from keras_seqconv.data.corpora import open_corpus
from keras_seqconv.data.rows import prepare_tfds
from tests.data.test_corpora import rows_of as pairs

tfds = pytest.importorskip("tensorflow_datasets")


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


class SeqconvDownloads(_Texts):
    FEATURES = tfds.features.Translation(["de", "en"])

    def _split_generators(self, dl_manager):
        dl_manager.download(["http://127.0.0.1:9/a", "http://127.0.0.1:9/b"])


class SeqconvByHand(SeqconvDownloads):
    MANUAL_DOWNLOAD_INSTRUCTIONS = "put a.txt there"

    def _split_generators(self, dl_manager):
        self.EXAMPLES = [
            {"de": (dl_manager.manual_dir / "a.txt").read_text(), "en": "x"}
        ]
        return {"train": self._generate_examples(None)}


def test_archive_fetched_by_hand(tmp_path, monkeypatch):
    """The real builder of AESLC finds it in `manual_dir`, without any network."""
    archive = tmp_path / "AESLC-master.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for split in ("train", "dev", "test"):
            name = f"AESLC-master/enron_subject_line/{split}/1.subject"
            file.writestr(name, f"Dear Ann,\nsee {split}.\n\n@subject\nNews\n\n")
    # Its checksum is that of the real archive, which is not here.
    cls = type(tfds.builder("aeslc", data_dir=tmp_path))
    (url,), content = cls.url_infos, archive.read_bytes()
    info = type(cls.url_infos[url])
    known = info(len(content), hashlib.sha256(content).hexdigest(), archive.name)
    monkeypatch.setattr(cls, "url_infos", {url: known})
    corpus = open_corpus("aeslc", data_dir=tmp_path / "tfds", manual_dir=tmp_path)
    names = corpus.source_language, corpus.target_language
    assert names == ("email_body", "subject_line")
    assert pairs(corpus, "test") == [("Dear Ann, see test.", "News")]


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


@pytest.mark.parametrize(
    ("source", "target"), [("en", "de"), ("de", "en"), ("fr", "de")]
)
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
    assert set(corpus.splits) == {"train", "dev"}
    assert pairs(corpus, "validation") == pairs(corpus, "dev")
    assert pairs(corpus, "train[:1%]") == found[:25]
    assert len(pairs(corpus, "dev[:1]+train[:2]")) == 3
    for wrong in ("tset", "train[:x]", "train+nothing", "train[:300%]", "train[:0]"):
        with pytest.raises(ValueError, match="`split` must be"):
            pairs(corpus, wrong)


@pytest.mark.parametrize(
    "pair", [(None, None), ("de", None), ("xx", "en"), ("de", "de")]
)
def test_wrong_direction(opened, pair):
    received = "{!r} and {!r}".format(*pair)
    message = f"`target_language` must be two .*: de, en, fr. Received: {received}"
    with pytest.raises(ValueError, match=message):
        opened(SeqconvPairs, *pair)


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
        ("wmt14_translate", "Configurations of wmt14_translate: cs-en, de-en, fr-en"),
        ("./wmt14_translate", "must be there, as it is a path"),
        ("a/b:c d", "folder .*there is none of that name.* of TensorFlow Datasets"),
        ("mnist", "mnist/.* must have features that are texts. It has: image, label"),
    ],
)
def test_unknown_names(tmp_path, name, message, monkeypatch):
    with pytest.raises(ValueError, match=message) as caught:
        open_corpus(name, data_dir=tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    if not name.startswith("."):
        with pytest.raises(ImportError, match=r"keras-seqconv\[tfds\]"):
            open_corpus(name)


@pytest.mark.parametrize("kind", [SeqconvDownloads, SeqconvByHand])
def test_what_helps_where_nothing_can_be_downloaded(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("NO_PROXY", "*")
    # tfds tries again for three minutes.
    monkeypatch.setattr(requests.packages.urllib3.util.retry, "Retry", lambda **_: 0)
    builder = kind(data_dir=tmp_path)
    by_hand = kind is SeqconvByHand
    with pytest.raises(FileNotFoundError if by_hand else ConnectionError) as caught:
        prepare_tfds(builder)
    text = str(caught.value)
    for part in (
        f"{builder.name}/1.0.0 is not prepared in {tmp_path}, and cannot be: ",
        "put a.txt there" if by_hand else "refused",
        "into a folder and give it as `manual_dir`",
        f"copy the prepared data set from another machine to {builder.data_dir}",
    ):
        assert part in text
    assert text.count("\n") == 0 and not Path(builder.data_dir).exists()
    if by_hand:
        (tmp_path / "hand").mkdir()
        (tmp_path / "hand" / "a.txt").write_text("Hund")
        prepare_tfds(builder, tmp_path / "hand")
        corpus = open_corpus(builder.name, source_language="de", data_dir=tmp_path)
        assert pairs(corpus) == [("Hund", "x")]

    def fails(**options):
        raise OSError("No space left on device")  # stays what it is

    monkeypatch.setattr(builder, "download_and_prepare", fails)
    monkeypatch.setattr(builder, "is_prepared", lambda: False)
    with pytest.raises(OSError, match="^No space left"):
        prepare_tfds(builder)
