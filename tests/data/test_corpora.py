"""Corpora by name: folders in their layouts, what is refused, left out, counted."""

import bz2
import functools
import gzip
import hashlib
import lzma

import pytest

from keras_seqconv.data import rows as data_rows
from keras_seqconv.data.corpora import hold_out, open_corpus
from keras_seqconv.support import files

from_german = functools.partial(open_corpus, source_language="de")


def rows_of(corpus, split="train"):
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


@pytest.fixture
def read(tmp_path):
    """read(source, target, ...): rows and counts of files of that content."""

    def read(source: bytes, target: bytes, **options):
        (tmp_path / "train.de").write_bytes(source)
        (tmp_path / "train.en").write_bytes(target)
        corpus = from_german(tmp_path, **options)
        return rows_of(corpus), corpus.counts["train"]

    return read


def both(*stems):
    return [f"{stem}.{language}" for stem in stems for language in ("de", "en")]


# --- Layouts ---


def test_layout_of_tfds(folder):
    files = [f"{language}.{split}.txt" for split in ("train", "val") for language in (
        "de", "en")]  # fmt: skip
    corpus = from_german(folder(*files))
    assert corpus.splits == ("train", "validation")
    assert rows_of(corpus)[0] == ("de.train.txt 1", "en.train.txt 1")


@pytest.mark.parametrize("name", ["valid", "dev"])
def test_folder(folder, name):
    files = ["train.de.gz", "train.en", f"{name}.de", f"{name}.en.gz"]
    path = folder(*files, *both("test"), "README.md", ".hidden.de")
    (path / "more").mkdir()
    corpus = from_german(path)
    assert corpus.splits == ("train", "validation", "test")
    assert (corpus.source_language, corpus.target_language) == ("de", "en")
    expected = [("train.de.gz 1", "train.en 1"), ("train.de.gz 2", "train.en 2")]
    assert rows_of(corpus) == expected == rows_of(corpus)
    assert corpus.counts["train"] == {"kept": 2}
    for other in ("validation", "valid", "dev", "val"):
        assert rows_of(corpus, other)[1] == (f"{name}.de 2", f"{name}.en.gz 2")
    assert [*corpus.texts("train", "source")] == ["train.de.gz 1", "train.de.gz 2"]
    assert [*corpus.texts("dev", "target", 1)] == [f"{name}.en.gz 1"]
    turned = open_corpus(str(path), source_language="en")
    assert (turned.source_language, turned.target_language) == ("en", "de")
    assert rows_of(turned, "test")[0] == ("test.en 1", "test.de 1")
    assert open_corpus(path, target_language="de").source_language == "en"
    # What tells whether the texts have changed.
    before = corpus.digests(["train", "validation"])
    assert set(before) == {*files}
    text = path / "train.en"
    text.write_bytes(text.read_bytes())
    assert corpus.digests(["train", "validation"]) == before
    text.write_bytes(text.read_bytes()[::-1])
    after = corpus.digests(["train", "validation"])
    assert {name for name, _ in after.items() ^ before.items()} == {"train.en"}


def test_several_files_of_a_kind(folder):
    path = folder(*both("train10", "train", "train2", "test", "test1", "newstest2014"))
    folder("train.de.gz", *both("dev", "valid"))  # beside the plain text, the first
    corpus = from_german(path)
    others = ("dev", "newstest2014", "test1")
    assert corpus.splits == ("train", "validation", "test", *others)
    first = [source.split()[0] for source, _ in rows_of(corpus)]
    assert first == ["train.de"] * 2 + ["train2.de"] * 2 + ["train10.de"] * 2
    assert rows_of(corpus, "validation")[0][0] == "valid.de 1"
    assert len(rows_of(corpus, "newstest2014")) == 2


def test_variants_and_directions(folder):
    path = folder(*both("train", "train.bpe", "train.lc.tok", "test2016.lc.tok"))
    assert from_german(path).splits == ("train",)
    corpus = from_german(path, variant="lc.tok")
    assert corpus.splits == ("train", "test")
    assert rows_of(corpus, "test")[0][0] == "test2016.lc.tok.de 1"
    assert rows_of(corpus)[0] == ("train.lc.tok.de 1", "train.lc.tok.en 1")
    with pytest.raises(ValueError, match="holds: 'bpe', 'lc.tok'. Rec.*variant='x'"):
        from_german(path, variant="x")
    for file in ("train.de", "train.en"):
        (path / file).unlink()
    with pytest.raises(ValueError, match="holds: 'bpe', 'lc.tok'. Rec.*variant=None"):
        from_german(path)
    for file in path.iterdir():
        file.unlink()
    corpus = open_corpus(folder(*both("train.en-de", "valid.en-de")))  # fairseq's
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    assert corpus.splits == ("train", "validation")
    # More languages than two.
    path = folder(*both("train", "val"), "train.cs", "val.cs")
    corpus = open_corpus(path, source_language="cs", target_language="de")
    assert rows_of(corpus, "val")[0] == ("val.cs 1", "val.de 1")
    for options in ({}, {"source_language": "de"}, {"target_language": "fr"}):
        with pytest.raises(ValueError, match="two languages of .*: cs, de, en. R"):
            open_corpus(path, **options)


def test_text_of_a_language_model(folder):
    path = folder("train.en", "valid.en.gz")
    text = "\n = Title = \n\nText .\n \n\nMore .\n"
    (path / "train.en").write_text(text)
    for corpus in (open_corpus(path), open_corpus(path / "train.en")):
        assert corpus.source_language is None
        assert rows_of(corpus) == [(line,) for line in text.split("\n")[:-1]]
    assert open_corpus(path, target_language="en").splits == ("train", "validation")
    for source, target, words in (
        (None, "de", "two languages of .*: en. Received"),
        ("de", "en", r"a text of each language.*: train\.en, valid\.en\.gz"),
    ):
        with pytest.raises(ValueError, match=words):
            open_corpus(path, source_language=source, target_language=target)
    with pytest.raises(ValueError, match="`side` must be one of"):
        open_corpus(path).texts("train", "source")
    (path / "train.en").write_bytes(b"a\n\nb\0\n")
    with pytest.raises(ValueError, match="en, line 3, holds a NUL"):
        rows_of(open_corpus(path))


def test_tsv(tmp_path):
    """As people have it: pairs, and columns behind them."""
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tGeh.\tCC-BY 2.0\nHi.\tHallo!\n")
    options = {"source_language": "en", "target_language": "de"}
    expected = [("Go.", "Geh."), ("Hi.", "Hallo!")]
    corpus = open_corpus(path, **options)
    assert corpus.splits == ("train",)
    with pytest.warns(UserWarning, match="third on are left out, such as 'CC-BY 2.0'"):
        assert rows_of(corpus) == expected
    path.write_text('Go.\t"Geh."\n"Hi."\t"Hallo!"\nA "b"\t"\n')
    with pytest.warns(UserWarning, match=r"pairs\.tsv: 3 cells stand in quotes"):
        assert rows_of(open_corpus(path, **options))[1] == ('"Hi."', '"Hallo!"')
    for line in (
        "en\tde", '"Source"\t"target_text"\tid', "Grapheme\tIPA transcription",
        "written\tspoken", "x1\tde",
    ):  # fmt: skip
        path.write_text(f"{line}\nGo.\tGeh.\nHi.\tHallo!\n")
        with pytest.raises(ValueError, match="`tsv_header` must say whether line 1"):
            rows_of(open_corpus(path, **options))
        assert rows_of(open_corpus(path, **options, tsv_header=True)) == expected
    path.write_text("en\tde\nGo.\tGeh.\n")
    rows = rows_of(open_corpus(path, **options, tsv_header=False))
    assert rows == [("en", "de"), ("Go.", "Geh.")]
    path.write_text("en\tde\n\tGeh.\n")
    with pytest.raises(ValueError, match="column 1, line 2, has no text"):
        rows_of(open_corpus(path, **options, tsv_header=True))
    rows = "Geh.\t1\tGo.\nHallo!\t2\tHi.\n"
    for line in ("de\tid\ten", '"DE"\tid\t"EN" '):
        path.write_text(f"{line}\n{rows}")
        assert rows_of(open_corpus(path, **options, tsv_header=True)) == expected
    for line in ("de\tid\tx1", "x1\ten\tid", "x1\tid\tde"):
        path.write_text(f"{line}\n{rows}")
        with pytest.raises(ValueError, match="must both name columns of"):
            rows_of(open_corpus(path, **options, tsv_header=True))
    path.write_text(f"nr\tid2\tde\ten\n{rows}")
    with pytest.raises(ValueError, match="`tsv_header` must say whether line 1"):
        rows_of(open_corpus(path, **options))
    path.write_text("de\tid\ten\nGeh.\t1\n")
    with pytest.raises(ValueError, match=r"column 3, line 2, is missing \(no tab"):
        rows_of(open_corpus(path, **options, tsv_header=True))
    path.write_text("text\nGo.\tGeh.\n")  # no header, which has two cells
    with pytest.raises(ValueError, match=r"column 2, line 1, is missing \(no tab"):
        rows_of(open_corpus(path, **options))
    path.write_text("Go.\tGeh.\nHi.\t\n\tHallo!\n")  # the first one is told
    with pytest.raises(ValueError, match="column 2, line 2, has no text"):
        rows_of(open_corpus(path, **options))
    path.write_text("Go.\tGeh.\nHi.\tHallo!\n")
    for name in ("train.tsv", "valid.tsv"):
        (tmp_path / name).write_bytes(path.read_bytes())
    assert rows_of(open_corpus(tmp_path, **options), "validation") == expected
    with pytest.raises(ValueError, match="must name the two columns"):
        open_corpus(path, source_language="en")
    path.write_text("Go.\tGeh.\nHi.\n")
    words = r"pairs\.tsv, column 2, line 2, is missing \(no tab"
    with pytest.raises(ValueError, match=words):
        rows_of(open_corpus(path, **options))
    corpus = open_corpus(path, **options, on_error="skip")
    assert rows_of(corpus) == expected[:1]
    assert corpus.counts["train"] == {"kept": 1, "no_tab": 1}


def test_a_part_is_held_out_for_validation(tmp_path):
    """Pairs from all over the corpus, those of one source together, text from its end;
    each row in one split, also where a source is in several blocks.
    """
    text = tmp_path / "text"
    text.write_text("".join(f"{n}\n" for n in range(10)))
    corpus = hold_out(open_corpus(text), 0.2)
    assert corpus.splits == ("train", "validation")
    assert rows_of(corpus) == [(str(n),) for n in range(8)]
    assert rows_of(corpus, "valid") == [("8",), ("9",)]
    half = hold_out(open_corpus(text), 0.5)
    assert len(rows_of(half)) == len(rows_of(half, "validation")) == 5
    for name in ("test.tsv", "train.tsv"):
        lines = "".join(f"{n % 2500}\t-{n}\n" for n in range(5000))
        (tmp_path / name).write_text(lines)
    corpus = open_corpus(tmp_path, source_language="a", target_language="b")
    held = hold_out(corpus, 0.2)
    assert held.splits == ("train", "validation", "test")
    assert held.digests(["train", "validation"]) == corpus.digests(["train"])
    parts = rows_of(held), rows_of(held, "validation")
    assert sorted(sum(parts, [])) == sorted(rows_of(corpus))
    assert [held.counts[s]["kept"] for s in held.splits[:2]] == [*map(len, parts)]
    train, validation = ({source for source, _ in part} for part in parts)
    assert not train & validation
    assert len(validation) == pytest.approx(500, rel=0.2)
    for begin in range(0, 2500, 500):
        assert validation & {str(n) for n in range(begin, begin + 500)}
    assert rows_of(held, "validation") == parts[1]
    assert len(rows_of(held, "test")) == 5000
    few = hold_out(corpus, 1e-9)
    assert len(rows_of(few)) == 5000
    with pytest.raises(ValueError, match="`validation_share` must leave a row for"):
        rows_of(few, "validation")
    with pytest.raises(ValueError, match="`validation_share` must not be given"):
        hold_out(held, 0.2)


def test_wrong_folders_and_arguments(folder, tmp_path):
    with pytest.raises(ValueError, match="must hold text files.*It holds: nothing"):
        from_german(tmp_path)
    path = folder("notes.txt", "corpus.de")
    with pytest.raises(ValueError, match="train.de and train.en.*corpus.de, notes.txt"):
        from_german(path)
    corpus = from_german(folder(*both("train")))
    with pytest.raises(ValueError, match="`split` must be one of train for"):
        rows_of(corpus, "test")
    with pytest.raises(ValueError, match="`source_language`=de `target_language`=en"):
        open_corpus(path)
    with pytest.raises(ValueError, match="must be there, as it is a path"):
        open_corpus(tmp_path / "nothing")
    folder("dev.de")
    with pytest.raises(ValueError, match=r"in de and en. Without a partner: dev\.de"):
        from_german(path)
    (path / "train.de").unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.de"):
        rows_of(corpus)


# --- Lines ---


def test_line_ends_marks_and_separators_compressed_whatever_the_name(read):
    source = "\ufeffa\r\nb\u2028c  \r\nd\re\x0bf\x85g".encode()
    expected = [("a", "BZh"), ("b\u2028c  ", " 2"), ("d\re\x0bf\x85g", "3")]
    for packed in (source, *(one.compress(source) for one in (gzip, bz2, lzma))):
        assert read(packed, b"BZh\n 2\n3\n")[0] == expected


def test_several_blocks_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr(data_rows, "_ROWS_AT_ONCE", 512)
    expected = []
    for name, number in (("train", 2000), ("train1", 1), ("train2", 1024)):
        rows = [(f"s{name} {i}", f"t{name} {i}" * (1 + i % 3)) for i in range(number)]
        expected += rows
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{row[side]}\n" for row in rows)
            (tmp_path / f"{name}.{language}").write_text(text)
    corpus = from_german(tmp_path)
    assert rows_of(corpus) == expected
    assert max(len(sources) for sources, _ in corpus.blocks("train")) == 512
    assert corpus.counts == {"train": {"kept": 3025}}


@pytest.mark.parametrize(
    ("source", "target", "message", "key", "stay"),
    [
        (b"a\n\nc\n", b"1\n2\n3\n", "de, line 2, has no text", "empty", "ac"),
        (b"a\nb\nc\n", b"1\n \t\n3", "en, line 2, has no text", "empty", "ac"),
        (b"\r\nb\n", b"\n2\n", "de, line 1, has no text", "empty", "b"),
        (b"a\nb\n", "1\n\u3000\n".encode(), "en, line 2, has no text", "empty", "a"),
        (b"a\nb\xff\nc", b"1\n2\n3", "2, is not valid UTF-8", "invalid_utf8", "ac"),
        (b"a\nb", b"1\n2\xed\xa0\x80", "2, is not valid", "invalid_utf8", "a"),
        (b"a\nb\n", b"1\n2\x003\n", "en, line 2, holds a NUL", "nul", "a"),
        (b"a\nb\n", b"1\n", r"de has 2, \S*en has 1\. Line 2 of \S*de has no partner",
         "unpaired", "a"),
        (b"a\nb", b"1\n2\n3\n", r"en has 3\. Line 3 of \S*en has no partner",
         "unpaired", "ab"),
    ],
)  # fmt: skip
def test_wrong_rows(read, source, target, message, key, stay):
    with pytest.raises(ValueError, match=message):
        read(source, target)
    found, counts = read(source, target, on_error="skip")
    assert "".join(source for source, _ in found) == stay
    assert counts == {"kept": len(stay), key: 1}


def test_wrong_texts(read, monkeypatch):
    text = "".join(f"line {i}\n" for i in range(9999)).encode()
    archive, other = gzip.compress(text), bz2.compress(text)
    monkeypatch.setattr(files, "_LONGEST", 1 << 16)
    wrong = [b"x"] * 20_000
    wrong[17_654] = b"\xff"
    for contents, message in (
        ((b"\n".join(wrong), b"y\n" * 20_000), "de, line 17,655, is not valid UTF-8"),
        ((b"a\n" * 9_000, b"b\n" * 30_001), "has 9,000, .* has 30,001. Line 9,001 of"),
        ((b"a\rb\rc", b"1\n"), "de must end with LF or CRLF. It .* 2 times CR alone"),
        ((b"", b""), "split train, must hold at least one row.*: none"),
        ((archive[:999], b"1\n"), r"de is damaged or cut off after line \d+ "),
        ((archive[:40] + b"\0" * 40 + archive[80:], b"1\n"), "de is damaged or cut"),
        ((other[:99] + b"\0" * 99 + other[198:], b"1\n"), "de is damaged or cut off"),
        (("hallo\n".encode("utf-16"), b"1\n"), "de, line 1, is not valid UTF-8"),
        ((b"short\n" + b"y" * (1 << 18), b"1\n"), "at most 65,536 bytes; line 2"),
    ):
        with pytest.raises(ValueError, match=message):
            read(*contents)
    with pytest.raises(ValueError, match="at least one row.*1 nul"):
        read(b"\0", b"1", on_error="skip")


PHRASES = "0ed1a7c3d32a3675e7bf9715c90af792a1cb5915b135cf6020b4dc5330925125"


def test_embedded_phrases_are_those_that_were_checked():
    corpus = open_corpus("phrases", source_language="en", target_language="de")
    digest, seen = hashlib.sha256(), set()
    for split, size in (("train", 18_000), ("validation", 1_000), ("test", 1_000)):
        pairs = zip(
            *(corpus.texts(split, s) for s in ("source", "target")), strict=True
        )
        pairs = [f"{source}\t{target}\n" for source, target in pairs]
        assert len({*pairs}) == size and not seen & {*pairs}
        seen |= {*pairs}
        digest.update("".join(pairs).encode())
    assert digest.hexdigest() == PHRASES
