"""Corpora by name: folders in their layouts, the embedded corpus, wrong names."""

import dataclasses
import functools
import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_seqconv.data.rows import plain_errors
from keras_seqconv.data.sources import hold_out, open_corpus
from tests.conftest import SHARED

from_german = functools.partial(open_corpus, source_language="de")


def pairs(dataset):
    with plain_errors():
        return [
            tuple(row[key].decode() for key in ("source", "target") if key in row)
            for row in dataset.as_numpy_iterator()
        ]


@pytest.fixture
def folder(tmp_path):
    """folder("train.de", ...) writes two lines into each of the files."""

    def make(*names):
        for name in names:
            text = f"{name} 1\n{name} 2\n".encode()
            text = gzip.compress(text) if name.endswith(".gz") else text
            (tmp_path / name).write_bytes(text)
        return tmp_path

    return make


def both(*stems):
    return [f"{stem}.{language}" for stem in stems for language in ("de", "en")]


def test_texts_of_one_side(folder):
    corpus = from_german(folder(*both("train", "dev")))
    assert [*corpus.texts("train", "source")] == ["train.de 1", "train.de 2"]
    assert [*corpus.texts("dev", "target", 1)] == ["dev.en 1"]
    for arguments, words in (
        (("train", "de"), "`side` must be one of"),
        (("train", "source", 0), "`most` must be a positive integer"),
        (("test", "source"), "`split` must be one of"),
    ):
        with pytest.raises(ValueError, match=words):
            corpus.texts(*arguments)


def test_texts_of_a_language_model(folder):
    corpus = open_corpus(folder("train.en"))
    assert [*corpus.texts("train", "target")] == ["train.en 1", "train.en 2"]
    with pytest.raises(ValueError, match="`side` must be one of"):
        corpus.texts("train", "source")


def test_folder(folder):
    path = folder(*both("train", "dev", "test"), "README.md", ".hidden.de")
    (path / "more").mkdir()
    corpus = from_german(path)
    assert corpus.splits == ("train", "validation", "test")
    assert (corpus.source_language, corpus.target_language) == ("de", "en")
    expected = [("train.de 1", "train.en 1"), ("train.de 2", "train.en 2")]
    assert pairs(corpus.split("train")) == expected
    assert pairs(corpus.split("train")) == expected
    assert corpus.counts["train"] == {"kept": 2}
    assert corpus.size("train") is None
    validation = [("dev.de 1", "dev.en 1"), ("dev.de 2", "dev.en 2")]
    for name in ("validation", "valid", "dev", "val"):
        assert pairs(corpus.split(name)) == validation
    turned = open_corpus(str(path), source_language="en")
    assert (turned.source_language, turned.target_language) == ("en", "de")
    assert pairs(turned.split("test"))[0] == ("test.en 1", "test.de 1")
    assert open_corpus(path, target_language="de").source_language == "en"


@pytest.mark.parametrize("name", ["valid", "validation", "dev", "val"])
def test_compressed_validation(folder, name):
    corpus = from_german(
        folder("train.de.gz", "train.en", f"{name}.de.gz", f"{name}.en.gz")
    )
    assert corpus.splits == ("train", "validation")
    assert pairs(corpus.split("validation"))[1] == (
        f"{name}.de.gz 2",
        f"{name}.en.gz 2",
    )
    assert pairs(corpus.split(name)) == pairs(corpus.split("validation"))
    assert pairs(corpus.split("train"))[0] == ("train.de.gz 1", "train.en 1")


def test_several_train_files(folder):
    path = folder(*both("train10", "train", "train2", "test", "test1", "newstest2014"))
    corpus = from_german(path, upsample=2)
    assert corpus.splits == ("train", "test", "newstest2014", "test1")
    first = [source.split()[0] for source, _ in pairs(corpus.split("train"))]
    assert first == ["train.de"] * 4 + ["train2.de"] * 2 + ["train10.de"] * 2
    assert len(pairs(corpus.split("test"))) == 2  # only training text is repeated
    corpus = from_german(path, upsample=[1, 0.5, 3])
    assert len(pairs(corpus.split("train"))) == 2 + 1 + 6
    with pytest.raises(ValueError, match="`upsample` must be a number > 0"):
        from_german(path, upsample=[1, 2]).split("train")


def test_digests_are_of_the_bytes_of_the_files(folder):
    folder = folder(*both("train", "valid", "test"))
    corpus = from_german(folder)
    before = corpus.digests(["train", "valid"])
    assert set(before) == {"train.de", "train.en", "valid.de", "valid.en"}
    path = folder / "train.de"
    path.write_bytes(path.read_bytes())
    assert corpus.digests(["train", "validation"]) == before
    path.write_bytes(path.read_bytes()[::-1])
    after = corpus.digests(["train", "valid"])
    assert after.items() ^ before.items() == {
        ("train.de", one["train.de"]) for one in (before, after)
    }


def test_variants(folder):
    path = folder(*both("train", "train.bpe", "train.lc.tok", "test2016.lc.tok"))
    assert from_german(path).splits == ("train",)
    corpus = from_german(path, variant="lc.tok")
    assert corpus.splits == ("train", "test")
    assert pairs(corpus.split("test")) == pairs(corpus.split("test2016"))
    assert pairs(corpus.split("train"))[0] == ("train.lc.tok.de 1", "train.lc.tok.en 1")
    with pytest.raises(ValueError, match="holds: 'bpe', 'lc.tok'. Rec.*variant='x'"):
        from_german(path, variant="x")
    for file in ("train.de", "train.en"):
        (path / file).unlink()
    with pytest.raises(ValueError, match="holds: 'bpe', 'lc.tok'. Rec.*variant=None"):
        from_german(path)


def test_fairseq_names_say_the_direction(folder):
    path = folder(*both("train.en-de", "valid.en-de"))
    corpus = open_corpus(path)
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    assert corpus.splits == ("train", "validation")


def test_more_languages(folder):
    names = [
        f"{split}.{tongue}"
        for split in ("train", "val")
        for tongue in ("cs", "de", "en")
    ]
    path = folder(*names)
    corpus = open_corpus(path, source_language="cs", target_language="de")
    assert pairs(corpus.split("val"))[0] == ("val.cs 1", "val.de 1")
    for options in ({}, {"source_language": "de"}, {"target_language": "fr"}):
        with pytest.raises(ValueError, match="two languages of .*: cs, de, en. R"):
            open_corpus(path, **options)


def test_text_of_a_language_model(folder):
    path = folder("train.en", "valid.en.gz")
    (path / "train.en").write_text("a\n\nb\n")
    corpus = open_corpus(path)
    assert (corpus.source_language, corpus.target_language) == (None, "en")
    assert pairs(corpus.split("train")) == [("a",), ("",), ("b",)]
    assert open_corpus(path, target_language="en").source_language is None
    with pytest.raises(
        ValueError, match="`target_language` must be en, the only language"
    ):
        open_corpus(path, target_language="de")
    with pytest.raises(ValueError, match="two languages of .*: en. Received"):
        open_corpus(path, source_language="de", target_language="en")


def test_layout_of_translate_folder(folder):
    path = folder(
        "de.train.txt", "en.train.txt", "de.test.txt", "en.test.txt.gz", "notes.md"
    )
    (path / "de.train.txt").write_text("a\u2028b\nc\n")  # tfds would see three lines
    corpus = open_corpus(path, source_language="en", target_language="de")
    assert corpus.splits == ("train", "test")
    found = pairs(corpus.split("train"))
    assert found == [("en.train.txt 1", "a\u2028b"), ("en.train.txt 2", "c")]


def test_same_texts_as_translate_folder(folder):
    tfds = pytest.importorskip("tensorflow_datasets")
    path = folder("de.train.txt", "en.train.txt")
    builder = tfds.folder_dataset.TranslateFolder(str(path))
    theirs = [
        (row["de"].decode(), row["en"].decode())
        for row in builder.as_dataset(split="train").as_numpy_iterator()
    ]
    assert pairs(from_german(path).split("train")) == theirs


def test_errors_of_rows_come_with_file_and_line(folder):
    path = folder(*both("train"))
    (path / "train.de").write_bytes(b"a\n\xff\n")
    corpus = from_german(path)
    with pytest.raises(ValueError, match=r"train\.de, line 2, is not valid UTF-8"):
        pairs(corpus.split("train"))
    corpus = from_german(path, on_error="skip")
    assert len(pairs(corpus.split("train"))) == 1
    assert corpus.counts == {"train": {"kept": 1, "invalid_utf8": 1}}


def test_wrong_folders(folder, tmp_path):
    with pytest.raises(ValueError, match="must hold text files.*It holds: nothing"):
        from_german(tmp_path)
    path = folder("notes.txt", "corpus.de")
    with pytest.raises(ValueError, match="train.de and train.en.*corpus.de, notes.txt"):
        from_german(path)
    path = folder(*both("train"), "dev.de")
    with pytest.raises(ValueError, match=r"in de and en. Without a partner: dev\.de"):
        from_german(path)
    path = folder("dev.en", *both("valid"))
    with pytest.raises(ValueError, match="one validation text. There are dev and v"):
        from_german(path)
    path = folder("train.de.gz")
    with pytest.raises(ValueError, match=r"both \S*train\.de and train\.de\.gz"):
        from_german(path)


def test_wrong_splits(folder):
    corpus = from_german(folder(*both("train")))
    for name in ("test", "validation", "trian", ""):
        with pytest.raises(ValueError, match="`split` must be one of train for"):
            corpus.split(name)
    for name in ("train[:1%]", "train+train", "all"):
        with pytest.raises(ValueError, match="`split` must be one of train"):
            corpus.split(name)


def test_wrong_options(folder, tmp_path):
    path = folder(*both("train"))
    with pytest.raises(ValueError, match="`on_error` must be one of"):
        open_corpus(path, on_error="count")
    with pytest.raises(ValueError, match="`name` must not be empty"):
        open_corpus("")
    with pytest.raises(ValueError, match=r"a folder of that name \(missing\)"):
        open_corpus(path / "nothing")
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(ValueError, match="`variant` must be None unless"):
        open_corpus("cnn_dailymail", data_dir=tmp_path, variant="tok")
    with pytest.raises(ValueError, match="`upsample` must be None unless"):
        open_corpus("cnn_dailymail", data_dir=tmp_path, upsample=2)


@pytest.fixture
def multi30k():
    path = SHARED / "data" / "multi30k"
    if not path.is_dir():
        pytest.skip(f"the corpus is missing: {path}")
    return path


def test_multi30k(multi30k):
    sizes = {"train": 29_000, "validation": 1_014, "test": 1_000}
    corpus = from_german(multi30k)
    assert corpus.splits == tuple(sizes)
    for split, size in sizes.items():
        batches = corpus.split(split).batch(10_000).as_numpy_iterator()
        assert sum(len(batch["source"]) for batch in batches) == size
        assert corpus.counts[split] == {"kept": size}
    raw = pairs(corpus.split("test").take(1))
    tokenised = open_corpus(multi30k, variant="lc.norm.tok", source_language="en")
    english, german = pairs(tokenised.split("test2016").take(1))[0]
    assert raw[0][1].lower().split() == english.replace(" .", ".").split()
    assert german == german.lower() and german != english


def test_embedded_corpus(monkeypatch):
    """Without TensorFlow Datasets, which others need."""
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    corpus = open_corpus("phrases")
    assert corpus.splits == ("train", "validation", "test")
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    found = pairs(corpus.split("validation"))
    assert len(found) == 1_000
    turned = open_corpus("phrases", source_language="de")
    assert pairs(turned.split("validation")) == [pair[::-1] for pair in found]


def test_importing_needs_no_optional_package():
    code = (
        "import sys\n"
        "for name in ('tensorflow', 'tensorflow_datasets', 'requests'):\n"
        "    sys.modules.setdefault(name, None)\n"
        "import types\n"
        "package = types.ModuleType('keras_seqconv')\n"
        "package.__path__ = ['keras_seqconv']\n"
        "sys.modules['keras_seqconv'] = package\n"
        "package = types.ModuleType('keras_seqconv.data')\n"
        "package.__path__ = ['keras_seqconv/data']\n"
        "sys.modules['keras_seqconv.data'] = package\n"
        "from keras_seqconv.data import blocks, files, sources, tfds\n"
        "print(next(blocks.blocks([[5, 2]], 4))['labels'].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[5, 2\]\n", done.stdout)


def test_which_of_two_languages_is_translated_is_not_guessed(folder):
    path = folder(*both("train"))
    words = "`source_language`=de `target_language`=en or `source_language`=en"
    with pytest.raises(ValueError, match=words):
        open_corpus(path)
    for options in ({"source_language": "en"}, {"target_language": "de"}):
        assert pairs(open_corpus(path, **options).split("train"))[0] == (
            "train.en 1",
            "train.de 1",
        )


def test_tsv(tmp_path):
    """As people have it: pairs, and columns behind them."""
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tGeh.\tCC-BY 2.0\nHi.\tHallo!\n")
    options = {"source_language": "en", "target_language": "de"}
    expected = [("Go.", "Geh."), ("Hi.", "Hallo!")]
    corpus = open_corpus(path, **options)
    assert corpus.splits == ("train",)
    assert pairs(corpus.split("train")) == expected
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_bytes(path.read_bytes())
    corpus = open_corpus(tmp_path, **options)
    assert pairs(corpus.split("validation")) == expected
    for wrong in ({}, {"source_language": "en"}):
        with pytest.raises(ValueError, match="must name the two columns"):
            open_corpus(path, **wrong)
    path.write_text("Go.\tGeh.\nHi.\n")
    with pytest.raises(ValueError, match=r"pairs\.tsv, line 2, has no text"):
        pairs(open_corpus(path, **options).split("train"))


def test_a_text_file_is_text_of_a_language_model(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("a\n\nb\n")
    corpus = open_corpus(path)
    assert corpus.source_language is None and corpus.splits == ("train",)
    assert pairs(corpus.split("train")) == [("a",), ("",), ("b",)]
    with pytest.raises(ValueError, match=r"must be a \.tsv file of two columns"):
        open_corpus(path, source_language="de")


def test_a_part_is_held_out_for_validation(tmp_path):
    """Pairs from all over the corpus, text from its end; each row in one split."""
    text = tmp_path / "text"
    text.write_text("".join(f"{n}\n" for n in range(10)))
    corpus = hold_out(open_corpus(text), 0.2)
    assert corpus.splits == ("train", "validation")
    assert pairs(corpus.split("train")) == [(str(n),) for n in range(8)]
    assert pairs(corpus.split("valid")) == [("8",), ("9",)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{n}\t-{n}\n" for n in range(10)))
    corpus = open_corpus(
        tmp_path / "pairs.tsv", source_language="a", target_language="b"
    )
    # tfds sorts by name.
    sorted_splits = dataclasses.replace(corpus, splits=("test", "train"))
    assert hold_out(sorted_splits, 0.2).splits == ("train", "validation", "test")
    corpus = hold_out(corpus, 0.2)
    assert pairs(corpus.split("validation")) == [("4", "-4"), ("9", "-9")]
    assert len(pairs(corpus.split("train"))) == 8
    with pytest.raises(ValueError, match="`validation_share` must not be given"):
        hold_out(corpus, 0.2)
