"""TensorFlow Datasets: which texts, which direction, and what happens offline."""

import collections
import hashlib
import http.server
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from keras_seqconv.data.rows import plain_errors
from keras_seqconv.data.sources import open_corpus
from keras_seqconv.data.tfds import (
    builder_of,
    failing_urls,
    from_tfds,
    missing_urls,
    prepare,
)

tfds = pytest.importorskip("tensorflow_datasets")

BASE = {"url": "http://localhost:1/nothing"}  # where DownloadedTexts downloads from


class _Texts(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Generates EXAMPLES; a download manager is not asked."""

    VERSION = tfds.core.Version("1.0.0")
    SUPERVISED = None

    def _info(self):
        return self.dataset_info_from_configs(
            features=self.FEATURES, supervised_keys=self.SUPERVISED
        )

    def _split_generators(self, dl_manager):
        return {
            split: self._generate_examples(number)
            for split, number in (("train", None), ("dev", 2))
        }

    def _generate_examples(self, number):
        yield from enumerate(self.EXAMPLES[:number])


class SeqconvPairs(_Texts):
    FEATURES = tfds.features.Translation(["en", "de", "fr"])
    EXAMPLES = [{"en": f"e{i}", "de": f"ä{i}", "fr": f"f{i}"} for i in range(2500)]


class SeqconvSummaries(_Texts):
    FEATURES = tfds.features.FeaturesDict(
        {
            "id": tfds.features.Text(),
            "article": tfds.features.Text(),
            "highlights": tfds.features.Text(),
            "stars": tfds.features.Scalar(np.int32),
        }
    )
    SUPERVISED = ("article", "highlights")
    EXAMPLES = [
        {"id": "0", "article": " A .\r\n\n B\n", "highlights": "a \n b", "stars": 1},
        {"id": "1", "article": "C  c", "highlights": "", "stars": 1},
        {"id": "2", "article": "D\u2028d", "highlights": "d\n", "stars": 2},
    ]


class SeqconvTalks(_Texts):
    FEATURES = tfds.features.FeaturesDict(
        {
            "talk": tfds.features.Text(),
            "translations": tfds.features.TranslationVariableLanguages(
                ["de", "en", "fr"]
            ),
        }
    )
    EXAMPLES = [
        {"talk": "x", "translations": {"de": "Hund", "en": ["dog", "hound"]}},
        {"talk": "y", "translations": {"de": "Katze", "fr": "chat"}},
        {"talk": "z", "translations": {"en": "bird", "de": "Vogel", "fr": "oiseau"}},
    ]


class SeqconvLines(_Texts):
    FEATURES = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    SUPERVISED = ("text", "text")
    EXAMPLES = [{"text": f"line {i}"} for i in range(3)]


class SeqconvNumbers(_Texts):
    FEATURES = tfds.features.FeaturesDict({"x": tfds.features.Scalar(np.int32)})
    EXAMPLES = [{"x": 1}]


class SeqconvDownloads(_Texts):
    FEATURES = tfds.features.Translation(["de", "en"])
    SUPERVISED = ("de", "en")

    def _split_generators(self, dl_manager):
        files = dl_manager.download({"a": BASE["url"] + "/a", "b": BASE["url"] + "/b"})
        lines = [Path(files[key]).read_text().split("\n") for key in "ab"]
        pairs = zip(*lines, strict=True)
        self.EXAMPLES = [{"de": de, "en": en} for de, en in pairs]
        return {"train": self._generate_examples(None)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepares one of the classes above, once, without any network."""
    folder = tmp_path_factory.mktemp("prepared")

    def make(builder_class):
        builder = builder_class(data_dir=folder)
        prepare(builder)
        return builder

    return make


def pairs(dataset):
    with plain_errors():
        return [
            tuple(row[key].decode() for key in ("source", "target") if key in row)
            for row in dataset.as_numpy_iterator()
        ]


def open_builder(builder, **options):
    """`open_corpus` on the folder of a prepared data set."""
    return open_corpus(builder.data_dir, **options)


# The real WMT builder


def test_wmt_builder_with_mocked_data(tmp_path):
    """Its real class is imported, which fails without importlib_resources."""
    options = dict(data_dir=tmp_path, probe_timeout=None)
    name = "wmt14_translate/de-en"
    with tfds.testing.mock_data(num_examples=3):
        builder = builder_of(name, data_dir=tmp_path)
        assert type(builder).__module__ == "tensorflow_datasets.translate.wmt14"
        assert builder.info.supervised_keys == ("de", "en")
        corpus = open_corpus(name, **options)
        assert (corpus.source_language, corpus.target_language) == ("de", "en")
        assert corpus.size("train") is None  # mocked data have no splits
        found = pairs(corpus.split("train"))
        assert pairs(corpus.split("valid")) == found  # mocked splits are alike
        turned = open_corpus(name, source_language="en", **options)
        assert pairs(turned.split("train")) == [pair[::-1] for pair in found]
        by_language = open_corpus(
            "wmt14_translate", source_language="fr", target_language="en", **options
        )
        assert by_language.source_language == "fr"
    assert len(found) == 3 and all(de and en and de != en for de, en in found)


def test_wmt_builder_generates_from_files(tmp_path, monkeypatch):
    """Its real generator too, on small files where the downloads would be."""
    from tensorflow_datasets.translate import wmt

    builder = builder_of("wmt14_translate/de-en", data_dir=tmp_path / "data")
    for name in {name for names in builder.subsets.values() for name in names}:
        for path in wmt.DATASET_MAP[name].get_path("de"):
            file = tmp_path / "files" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            sentence = f"{name} {file.name}"
            if path.endswith("sgm"):
                sentence = f'<seg id="1">{sentence}</seg>'
            file.write_text(f"{sentence}\n")
    monkeypatch.setattr(
        tfds.download.DownloadManager,
        "download_and_extract",
        lambda self, urls: (
            {key: [tmp_path / "files"] for key in urls}
            if isinstance(urls, dict)
            else [tmp_path / "files"] * len(urls)
            if isinstance(urls, list)
            else tmp_path / "files"
        ),
    )
    corpus = open_corpus(
        "wmt14_translate/de-en", data_dir=tmp_path / "data", probe_timeout=None
    )
    assert corpus.splits == ("train", "validation", "test")
    assert {type(split) for split in corpus.splits} == {str}
    assert corpus.size("train") == 3
    train = pairs(corpus.split("train"))
    assert len(train) == 3 and all(de.endswith(".de") for de, _ in train)
    assert "newstest2014" in pairs(corpus.split("test"))[0][0]


def test_wmt_needs_these_addresses(tmp_path):
    builder = builder_of("wmt14_translate/de-en", data_dir=tmp_path)
    names = [url.rpartition("/")[2] for url in missing_urls(builder)]
    assert sorted(names) == [
        "dev.tgz",
        "training-parallel-commoncrawl.tgz",
        "training-parallel-europarl-v7.tgz",
        "training-parallel-nc-v9.tgz",
    ]
    (tmp_path / "hand").mkdir()
    (tmp_path / "hand" / "dev.tgz").touch()
    names = [url.rpartition("/")[2] for url in missing_urls(builder, tmp_path / "hand")]
    assert len(names) == 3 and "dev.tgz" not in names
    cached = tmp_path / "downloads" / "wmt14_translate"
    cached.mkdir(parents=True)
    url = "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz"
    (cached / "nc9.tgz").touch()
    (cached / "nc9.tgz.INFO").write_text(json.dumps({"urls": [url]}))
    assert url not in missing_urls(builder)


def test_summaries_need_these_addresses(tmp_path):
    # This builder opens what it has downloaded at once.
    urls = missing_urls(builder_of("cnn_dailymail", data_dir=tmp_path))
    assert len(urls) == 5 and all(url.startswith("https://") for url in urls)


def test_files_that_only_people_can_download(tmp_path):
    builder = builder_of("wmt14_translate/cs-en", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="by hand.*manual_dir"):
        missing_urls(builder)
    (tmp_path / "hand").mkdir()
    with pytest.raises(FileNotFoundError, match=r"manually.*data-plaintext-format.0"):
        missing_urls(builder, tmp_path / "hand")


# Directions and texts


@pytest.mark.parametrize(
    ("source", "target"), [("en", "de"), ("de", "en"), ("fr", "de")]
)
def test_direction(prepared, source, target):
    corpus = open_builder(
        prepared(SeqconvPairs), source_language=source, target_language=target
    )
    initial = {"en": "e", "de": "ä", "fr": "f"}
    found = pairs(corpus.split("train"))
    assert len(found) == 2500 == corpus.size("train")
    for one, other in found:
        assert one == initial[source] + one[1:] and other == initial[target] + one[1:]
    assert pairs(corpus.split("train")) == found
    assert corpus.counts["train"] == {"kept": 2500}


def test_splits_and_parts(prepared):
    corpus = open_builder(
        prepared(SeqconvPairs), source_language="de", target_language="en"
    )
    assert set(corpus.splits) == {"train", "dev"}
    train = pairs(corpus.split("train"))
    assert pairs(corpus.split("train[:1%]")) == train[:25]
    assert pairs(corpus.split("train[10:12]")) == train[10:12]
    assert corpus.size("train[:1%]") == 25
    assert pairs(corpus.split("validation")) == pairs(corpus.split("dev"))
    assert len(pairs(corpus.split("dev[:1]+train[:2]"))) == 3
    with pytest.raises(ValueError, match="`split` must be one of train, dev"):
        corpus.split("tset")
    for wrong in ("train[:x]", "train+nothing", "train[", "train[:300%]"):
        with pytest.raises(ValueError, match="`split` must be"):
            corpus.split(wrong)
        with pytest.raises(ValueError, match="`split` must be"):
            corpus.size(wrong)


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({}, "None and None"),
        ({"source_language": "de"}, "'de' and None"),
        ({"source_language": "xx", "target_language": "en"}, "'xx' and 'en'"),
        ({"source_language": "de", "target_language": "de"}, "'de' and 'de'"),
    ],
)
def test_wrong_direction(prepared, options, received):
    builder = prepared(SeqconvPairs)
    message = f"`target_language` must be two .*: de, en, fr. Received: {received}"
    with pytest.raises(ValueError, match=message):
        open_builder(builder, **options)


def test_summaries(prepared):
    builder = prepared(SeqconvSummaries)
    corpus = open_builder(builder, on_error="skip")
    assert (corpus.source_language, corpus.target_language) == ("article", "highlights")
    assert sorted(pairs(corpus.split("train"))) == [("A . B", "a b"), ("D\u2028d", "d")]
    assert corpus.counts["train"] == {"kept": 2, "empty": 1}
    message = r"train, highlights of example \d, has no text"
    with pytest.raises(ValueError, match=message):
        pairs(open_builder(builder).split("train"))
    corpus = open_builder(
        builder, source_language="highlights", target_language="id", on_error="skip"
    )
    assert set(pairs(corpus.split("train"))) == {("a b", "0"), ("d", "2")}


def test_languages_that_vary(prepared):
    builder = prepared(SeqconvTalks)
    corpus = open_builder(builder, source_language="de", target_language="en")
    assert set(pairs(corpus.split("train"))) == {("Hund", "dog"), ("Vogel", "bird")}
    assert corpus.counts["train"] == {"kept": 2, "untranslated": 1}
    with pytest.raises(ValueError, match="must be two languages.*: de, en, fr"):
        open_builder(builder)


def test_text_of_a_language_model(prepared):
    corpus = open_builder(prepared(SeqconvLines))
    assert (corpus.source_language, corpus.target_language) == (None, "text")
    assert set(pairs(corpus.split("train"))) == {(f"line {i}",) for i in range(3)}


def test_no_text(prepared):
    with pytest.raises(ValueError, match="must have features that are texts.*has: x"):
        open_builder(prepared(SeqconvNumbers))


def test_split_without_rows(prepared):
    builder = prepared(SeqconvPairs)
    with pytest.raises(ValueError, match="`split` must be.*corresponds to no data"):
        from_tfds(builder, "train[:0]", source="de", target="en")


def test_folder_of_versions(prepared, monkeypatch):
    builder = prepared(SeqconvLines)
    monkeypatch.chdir(builder.data_dir_root)
    corpus = open_corpus("seqconv_lines")
    assert corpus.size("train") == 3 == len(pairs(corpus.split("train")))


# Names


def test_unknown_names(tmp_path):
    options = dict(data_dir=tmp_path)
    with pytest.raises(ValueError) as caught:
        open_corpus("wmt14_transalte/de-en", **options)
    text = str(caught.value)
    assert "Received: name='wmt14_transalte/de-en'" in text
    assert "a folder of that name (missing)" in text and "wmt14_translate" in text
    assert text.count("\n") == 0 and len(text) < 500
    with pytest.raises(ValueError, match=r"cs-en.*de-en"):
        open_corpus("wmt14_translate/de-fr", **options)
    with pytest.raises(ValueError, match="which configuration.*cs-en, de-en, fr-en"):
        open_corpus("wmt14_translate", **options)
    with pytest.raises(ValueError, match="folder of that name .missing.; a path is no"):
        open_corpus("./wmt14_translate", **options)
    with pytest.raises(ValueError, match="Tried: .*cannot open 'a/b:c d'"):
        open_corpus("a/b:c d", **options)


def test_without_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"keras-seqconv\[tfds\]"):
        open_corpus("wmt14_translate/de-en")


# Downloads


class Server(http.server.BaseHTTPRequestHandler):
    """Answers by the path: /a and /b are texts, /503 and /slow what they say."""

    asked = collections.Counter()

    def do_HEAD(self):
        Server.asked[self.command + self.path] += 1
        if self.path == "/slow":
            time.sleep(1.5)
        status = {"/503": 503, "/404": 404, "/nohead": 405}.get(self.path, 200)
        if self.path == "/nohead" and self.command == "GET":
            status = 200
        body = {"/a": b"Hund\nKatze", "/b": b"dog\ncat"}.get(self.path, b"")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    """Address of a server on this machine."""
    monkeypatch.setenv("NO_PROXY", "*")
    Server.asked.clear()
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()


def test_addresses_are_asked_without_a_download(server):
    urls = [server + path for path in ("/a", "/503", "/404", "/nohead")]
    failing = failing_urls([*urls, "/a/local/path", "file:///x"], timeout=5)
    assert failing == {
        urls[1]: "HTTP 503 Service Unavailable",
        urls[2]: "HTTP 404 Not Found",
    }
    assert Server.asked["GET/a"] == 0 and Server.asked["GET/nohead"] == 1


def test_addresses_that_do_not_answer(server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    urls = [
        "http://127.0.0.1:9/refused",
        "ftp://127.0.0.1:9/refused",
        "http://no-such-host.invalid/x",
        "http://192.0.2.1/unroutable",
        server + "/slow",
        server + "/a",
    ]
    start = time.monotonic()
    failing = failing_urls(urls, timeout=0.5)
    assert time.monotonic() - start < 4  # all hosts at the same time
    # A host that once gives no answer is not asked again.
    assert set(failing) == set(urls) and all(failing.values())
    assert "refused" in failing[urls[0]] and "refused" in failing[urls[1]]


def test_downloads(server, tmp_path, monkeypatch):
    monkeypatch.setitem(BASE, "url", server)
    builder = SeqconvDownloads(data_dir=tmp_path)
    prepare(builder)
    assert Server.asked["HEAD/a"] == Server.asked["HEAD/b"] == 1
    expected = {("Hund", "dog"), ("Katze", "cat")}
    assert set(pairs(open_builder(builder).split("train"))) == expected
    # Prepared: nobody is asked.
    monkeypatch.setitem(BASE, "url", "http://127.0.0.1:9")
    prepare(SeqconvDownloads(data_dir=tmp_path))
    # Downloaded but not prepared: neither.
    monkeypatch.setitem(BASE, "url", server)
    for file in Path(builder.data_dir).iterdir():
        file.unlink()
    Path(builder.data_dir).rmdir()
    Server.asked.clear()
    prepare(SeqconvDownloads(data_dir=tmp_path))
    assert not Server.asked


def test_unreachable_downloads_say_what_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setitem(BASE, "url", "http://127.0.0.1:9")
    start = time.monotonic()
    builder = SeqconvDownloads(data_dir=tmp_path)
    with pytest.raises(ConnectionError) as caught:
        prepare(builder, probe_timeout=1.0)
    assert time.monotonic() - start < 3
    text = str(caught.value)
    for part in (
        "seqconv_downloads/1.0.0 is not prepared",
        "http://127.0.0.1:9/a, http://127.0.0.1:9/b: ",
        "refused",
        f"copy the prepared data set from another machine to {builder.data_dir}",
        "data_dir",
        "a folder with train.de, train.en",
    ):
        assert part in text
    assert not Path(builder.data_dir).exists()


def test_files_fetched_by_hand(tmp_path, monkeypatch):
    monkeypatch.setitem(BASE, "url", "http://127.0.0.1:9")
    infos = {}
    for name, text in (("a", b"Hund"), ("b", b"dog")):
        infos[f"http://127.0.0.1:9/{name}"] = tfds.core.download.checksums.UrlInfo(
            size=len(text),
            checksum=hashlib.sha256(text).hexdigest(),
            filename=f"{name}.txt",
        )
        (tmp_path / f"{name}.txt").write_bytes(text)
    monkeypatch.setattr(SeqconvDownloads, "url_infos", infos)
    builder = SeqconvDownloads(data_dir=tmp_path / "data")
    with pytest.raises(ConnectionError, match="put the files a.txt, b.txt, fetched"):
        prepare(builder, probe_timeout=1.0)
    prepare(builder, manual_dir=tmp_path)
    assert pairs(open_builder(builder).split("train")) == [("Hund", "dog")]


def test_errors_of_tfds_say_what_helps(server, tmp_path, monkeypatch):
    monkeypatch.setitem(BASE, "url", server)
    builder = SeqconvDownloads(data_dir=tmp_path)
    broken = tfds.core.download.download_manager.NonMatchingChecksumError("wrong sum")

    def fails(**options):
        raise broken

    monkeypatch.setattr(builder, "download_and_prepare", fails)
    with pytest.raises(
        ConnectionError, match="downloaded: wrong sum. What helps: copy"
    ):
        prepare(builder)


def test_wmt_error_names_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "keras_seqconv.data.tfds.failing_urls",
        lambda urls, timeout: {urls[0]: "HTTP 503 Service Unavailable"},
    )
    with pytest.raises(ConnectionError) as caught:
        open_corpus("wmt14_translate/de-en", data_dir=tmp_path, manual_dir="/hand")
    text = str(caught.value)
    assert "training-parallel-europarl-v7.tgz: HTTP 503" in text
    assert "dev.tgz, fetched elsewhere, into /hand and give it as manual_dir" in text


PREPARE = """
import sys, time
from tests.data.test_tfds import SeqconvPairs, prepare
original = SeqconvPairs._generate_examples
def slow(self, number):
    print("generates", flush=True)
    time.sleep(1)
    yield from original(self, number)
SeqconvPairs._generate_examples = slow
builder = SeqconvPairs(data_dir=sys.argv[1])
prepare(builder)
print("rows", builder.info.splits["train"].num_examples)
"""


@pytest.mark.slow
def test_two_processes_prepare_once(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(tmp_path)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all("rows 2500" in output for output in outputs)
    assert sum(output.count("generates") for output in outputs) == 2  # train and dev
