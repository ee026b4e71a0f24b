"""Corpora by name: folders in their layouts, the embedded corpus, wrong names."""

import dataclasses
import functools
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from keras_seqconv.data.corpora import hold_out, open_corpus
from tests.conftest import SHARED

from_german = functools.partial(open_corpus, source_language="de")


def pairs(corpus, split):
    return [row for block in corpus.blocks(split) for row in zip(*block, strict=True)]


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


def test_folder(folder):
    path = folder(*both("train", "dev", "test"), "README.md", ".hidden.de")
    (path / "more").mkdir()
    corpus = from_german(path)
    assert corpus.splits == ("train", "validation", "test")
    assert (corpus.source_language, corpus.target_language) == ("de", "en")
    expected = [("train.de 1", "train.en 1"), ("train.de 2", "train.en 2")]
    assert pairs(corpus, "train") == expected == pairs(corpus, "train")
    assert corpus.counts["train"] == {"kept": 2}
    validation = [("dev.de 1", "dev.en 1"), ("dev.de 2", "dev.en 2")]
    for name in ("validation", "valid", "dev", "val"):
        assert pairs(corpus, name) == validation
    turned = open_corpus(str(path), source_language="en")
    assert (turned.source_language, turned.target_language) == ("en", "de")
    assert pairs(turned, "test")[0] == ("test.en 1", "test.de 1")
    assert open_corpus(path, target_language="de").source_language == "en"


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


@pytest.mark.parametrize("name", ["valid", "validation", "dev", "val"])
def test_compressed_validation(folder, name):
    files = folder("train.de.gz", "train.en", f"{name}.de.gz", f"{name}.en.gz")
    corpus = from_german(files)
    assert corpus.splits == ("train", "validation")
    expected = (f"{name}.de.gz 2", f"{name}.en.gz 2")
    assert pairs(corpus, "validation")[1] == pairs(corpus, name)[1] == expected
    assert pairs(corpus, "train")[0] == ("train.de.gz 1", "train.en 1")


def test_several_train_and_test_files(folder):
    path = folder(*both("train10", "train", "train2", "test", "test1", "newstest2014"))
    corpus = from_german(path)
    assert corpus.splits == ("train", "test", "newstest2014", "test1")
    first = [source.split()[0] for source, _ in pairs(corpus, "train")]
    assert first == ["train.de"] * 2 + ["train2.de"] * 2 + ["train10.de"] * 2
    assert len(pairs(corpus, "newstest2014")) == 2


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
    assert {name for name, _ in after.items() ^ before.items()} == {"train.de"}


def test_variants(folder):
    path = folder(*both("train", "train.bpe", "train.lc.tok", "test2016.lc.tok"))
    assert from_german(path).splits == ("train",)
    corpus = from_german(path, variant="lc.tok")
    assert corpus.splits == ("train", "test")
    assert pairs(corpus, "test") == pairs(corpus, "test2016")
    assert pairs(corpus, "train")[0] == ("train.lc.tok.de 1", "train.lc.tok.en 1")
    with pytest.raises(ValueError, match="holds: 'bpe', 'lc.tok'. Rec.*variant='x'"):
        from_german(path, variant="x")
    for file in ("train.de", "train.en"):
        (path / file).unlink()
    with pytest.raises(ValueError, match="holds: 'bpe', 'lc.tok'. Rec.*variant=None"):
        from_german(path)


def test_fairseq_names_say_the_direction(folder):
    corpus = open_corpus(folder(*both("train.en-de", "valid.en-de")))
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    assert corpus.splits == ("train", "validation")


def test_more_languages(folder):
    names = [
        f"{split}.{one}" for split in ("train", "val") for one in ["cs", "de", "en"]
    ]
    path = folder(*names)
    corpus = open_corpus(path, source_language="cs", target_language="de")
    assert pairs(corpus, "val")[0] == ("val.cs 1", "val.de 1")
    for options in ({}, {"source_language": "de"}, {"target_language": "fr"}):
        with pytest.raises(ValueError, match="two languages of .*: cs, de, en. R"):
            open_corpus(path, **options)


def test_which_of_two_languages_is_translated_is_not_guessed(folder):
    words = "`source_language`=de `target_language`=en or `source_language`=en"
    with pytest.raises(ValueError, match=words):
        open_corpus(folder(*both("train")))


def test_text_of_a_language_model(folder):
    path = folder("train.en", "valid.en.gz")
    (path / "train.en").write_text("a\n\nb\n")
    for corpus in (open_corpus(path), open_corpus(path / "train.en")):
        assert corpus.source_language is None
        assert pairs(corpus, "train") == [("a",), ("",), ("b",)]
    assert open_corpus(path, target_language="en").splits == ("train", "validation")
    for target, words in (
        ({"target_language": "de"}, "`target_language` must be en, the only language"),
        ({"source_language": "de", "target_language": "en"}, "of .*: en. Received"),
    ):
        with pytest.raises(ValueError, match=words):
            open_corpus(path, **target)
    with pytest.raises(ValueError, match=r"must be a \.tsv file of two columns"):
        open_corpus(path / "train.en", source_language="de")
    with pytest.raises(ValueError, match="`side` must be one of"):
        open_corpus(path).texts("train", "source")


def test_layout_of_translate_folder(folder):
    tfds = pytest.importorskip("tensorflow_datasets")
    names = ["de.train.txt", "en.train.txt", "de.test.txt", "en.test.txt"]
    path = folder(*names)
    corpus = from_german(path)
    assert corpus.splits == ("train", "test")
    builder = tfds.folder_dataset.TranslateFolder(str(path))
    theirs = tfds.as_numpy(builder.as_dataset(split="train"))
    rows = [(row["de"].decode(), row["en"].decode()) for row in theirs]
    assert pairs(corpus, "train") == rows


def test_tsv(tmp_path):
    """As people have it: pairs, and columns behind them."""
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tGeh.\tCC-BY 2.0\nHi.\tHallo!\n")
    options = {"source_language": "en", "target_language": "de"}
    expected = [("Go.", "Geh."), ("Hi.", "Hallo!")]
    corpus = open_corpus(path, **options)
    assert corpus.splits == ("train",)
    assert pairs(corpus, "train") == expected
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_bytes(path.read_bytes())
    assert pairs(open_corpus(tmp_path, **options), "validation") == expected
    for wrong in ({}, {"source_language": "en"}):
        with pytest.raises(ValueError, match="must name the two columns"):
            open_corpus(path, **wrong)
    path.write_text("Go.\tGeh.\nHi.\n")
    with pytest.raises(ValueError, match=r"pairs\.tsv, line 2, has no text"):
        pairs(open_corpus(path, **options), "train")


def test_a_part_is_held_out_for_validation(tmp_path):
    """Pairs from all over the corpus, text from its end; each row in one split."""
    text = tmp_path / "text"
    text.write_text("".join(f"{n}\n" for n in range(10)))
    corpus = hold_out(open_corpus(text), 0.2)
    assert corpus.splits == ("train", "validation")
    assert pairs(corpus, "train") == [(str(n),) for n in range(8)]
    assert pairs(corpus, "valid") == [("8",), ("9",)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{n}\t-{n}\n" for n in range(10)))
    corpus = open_corpus(
        tmp_path / "pairs.tsv", source_language="a", target_language="b"
    )
    # tfds sorts by name.
    sorted_splits = dataclasses.replace(corpus, splits=("test", "train"))
    assert hold_out(sorted_splits, 0.2).splits == ("train", "validation", "test")
    held = hold_out(corpus, 0.2)
    assert held.digests(["train", "validation"]) == corpus.digests(["train"])
    assert pairs(held, "validation") == [("4", "-4"), ("9", "-9")]
    assert len(pairs(held, "train")) == 8
    with pytest.raises(ValueError, match="`validation_share` must not be given"):
        hold_out(held, 0.2)


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
    with pytest.raises(ValueError, match="one validation text. There are dev.*valid"):
        from_german(path)
    path = folder("train.de.gz")
    with pytest.raises(ValueError, match=r"both \S*train\.de and train\.de\.gz"):
        from_german(path)


def test_wrong_arguments(folder):
    path = folder(*both("train"))
    corpus = from_german(path)
    for name in ("test", "validation", "trian", ""):
        with pytest.raises(ValueError, match="`split` must be one of train for"):
            corpus.blocks(name)
    for name in ("train[:1%]", "train+train", "all"):
        with pytest.raises(ValueError, match="parts of splits are for TensorFlow"):
            pairs(corpus, name)
    with pytest.raises(ValueError, match="`on_error` must be one of"):
        open_corpus(path, on_error="count")
    with pytest.raises(ValueError, match="`name` must not be empty"):
        open_corpus("")
    with pytest.raises(ValueError, match=r"a folder of that name \(missing\)"):
        open_corpus(path / "nothing")
    (path / "train.de").unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.de"):
        pairs(corpus, "train")


def test_multi30k():
    path = SHARED / "data" / "multi30k"
    if not path.is_dir():
        pytest.skip(f"the corpus is missing: {path}")
    sizes = {"train": 29_000, "validation": 1_014, "test": 1_000}
    corpus = from_german(path)
    assert corpus.splits == tuple(sizes)
    for split, size in sizes.items():
        assert len(pairs(corpus, split)) == size
    tokenised = open_corpus(path, variant="lc.norm.tok", source_language="en")
    english, german = pairs(tokenised, "test2016")[0]
    raw = next(corpus.texts("test", "target"))
    assert raw.lower().split() == english.replace(" .", ".").split()
    assert german == german.lower() and german != english


def test_embedded_corpus(monkeypatch):
    """Without TensorFlow Datasets, which others need."""
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    corpus = open_corpus("phrases")
    assert corpus.splits == ("train", "validation", "test")
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    found = pairs(corpus, "validation")
    assert len(found) == 1_000
    turned = open_corpus("phrases", source_language="de")
    assert pairs(turned, "validation") == [pair[::-1] for pair in found]


def test_text_is_read_without_optional_packages():
    code = """
        import sys, types
        for name in ("tensorflow", "tensorflow_datasets", "keras"):
            sys.modules[name] = None
        for name in ("keras_seqconv", "keras_seqconv/data"):  # without their imports
            package = types.ModuleType(name.replace("/", "."))
            package.__path__ = [name]
            sys.modules[package.__name__] = package
        from keras_seqconv.data import blocks, corpora
        print(next(corpora.open_corpus("phrases").texts("test", "source")))
        print(next(blocks.blocks([[5, 2]], 4))["labels"].tolist())
    """
    lines = [line[8:] for line in code.splitlines()]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[5, 2]\n")
