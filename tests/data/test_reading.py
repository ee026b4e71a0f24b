"""Text files: what is read, what is refused, what is left out and counted."""

import bz2
import gzip
import lzma
import tracemalloc

import pytest

from keras_seqconv.data import open_corpus, reading
from keras_seqconv.support import lines


@pytest.fixture
def pairs(tmp_path):
    """pairs(source, target, ...): [(source, target)] of files of that content."""

    def read(source: bytes, target: bytes, **options):
        (tmp_path / "train.de").write_bytes(source)
        (tmp_path / "train.en").write_bytes(target)
        corpus = open_corpus(tmp_path, source_language="de", **options)
        found = [
            p for block in corpus.blocks("train") for p in zip(*block, strict=True)
        ]
        return (found, corpus.counts["train"]) if options else found

    return read


@pytest.fixture
def texts(tmp_path):
    """texts(content, ...): the lines of one file."""

    def read(content: bytes, **options):
        (tmp_path / "x").write_bytes(content)
        corpus = open_corpus(tmp_path / "x", **options)
        return [*corpus.texts("train", "target")]

    return read


def test_line_ends_marks_and_separators(pairs):
    source = "\ufeffa\r\nb\u2028c  \r\nd\re\x0bf\x85g".encode()
    found = pairs(source, b"1\n 2\n3\n")
    assert found == [("a", "1"), ("b\u2028c  ", " 2"), ("d\re\x0bf\x85g", "3")]


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_compressed_whatever_the_name(pairs, module):
    packed = module.compress("ä\nb\n".encode())
    assert pairs(packed, b"BZhallo\nb\n") == [("ä", "BZhallo"), ("b", "b")]


@pytest.mark.parametrize("cut", [False, True])
def test_broken_archive_is_told_by_file_and_line(texts, cut):
    whole = gzip.compress("".join(f"line {i}\n" for i in range(9999)).encode())
    broken = whole[: len(whole) // 2] if cut else whole[:40] + b"\0" * 40 + whole[80:]
    with pytest.raises(ValueError, match=r"x is damaged or cut off after line \d+ "):
        texts(broken)


def test_several_blocks_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 512)
    expected = []
    for name, number in (("train", 2000), ("train1", 1), ("train2", 1024)):
        rows = [(f"s{name} {i}", f"t{name} {i}" * (1 + i % 3)) for i in range(number)]
        expected += rows
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{row[side]}\n" for row in rows)
            (tmp_path / f"{name}.{language}").write_text(text)
    corpus = open_corpus(tmp_path, source_language="de")
    blocks = list(corpus.blocks("train"))
    assert [p for block in blocks for p in zip(*block, strict=True)] == expected
    assert max(len(sources) for sources, _ in blocks) == 512
    assert corpus.counts == {"train": {"kept": 3025}}


# What is wrong: source, target, the error, key of the counts, sources that stay.
WRONG = {
    "empty source": (b"a\n\nc\n", b"1\n2\n3\n", "de, line 2, has no", "empty", "ac"),
    "empty target": (b"a\nb\nc\n", b"1\n \t\n3", "en, line 2, has no", "empty", "ac"),
    "empty both": (b"\r\nb\n", b"\n2\n", "de, line 1, has no", "empty", "b"),
    "unicode blanks": (
        b"a\nb\n", "1\n\u3000\u00a0\n".encode(), "en, line 2, has no text", "empty", "a"
    ),
    "utf-8": (
        b"a\nb\xff\nc\n", b"1\n2\n3\n", "de, line 2, is not valid UTF-8",
        "invalid_utf8", "ac",
    ),
    "surrogate": (
        b"a\n", b"1\xed\xa0\x80\n", "en, line 1, is not valid", "invalid_utf8", ""
    ),
    "nul": (b"a\nb\n", b"1\n2\x003\n", "en, line 2, holds a NUL", "nul", "a"),
    "shorter target": (
        b"a\nb\nc\n", b"1\n", r"de has 3, \S*en has 1\. Line 2 of \S*de has no partner",
        "unpaired", "a",
    ),
    "shorter source": (
        b"a\nb", b"1\n2\n3\n\n",
        r"de has 2, \S*en has 4\. Line 3 of \S*en has no partner", "unpaired", "ab",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows(pairs, case):
    source, target, message, key, stay = WRONG[case]
    with pytest.raises(ValueError, match=message):
        pairs(source, target)
    if not stay:
        with pytest.raises(ValueError, match=f"at least one row.*1 {key}"):
            pairs(source, target, on_error="skip")
        return
    found, counts = pairs(source, target, on_error="skip")
    assert "".join(source for source, _ in found) == stay
    left_out = {"shorter source": 2, "shorter target": 2}.get(case, 1)
    assert counts == {"kept": len(stay), key: left_out}


def test_line_numbers_beyond_the_first_block(pairs):
    lines = [b"x"] * 20_000
    lines[17_654] = b"\xff"
    with pytest.raises(ValueError, match="de, line 17,655, is not valid UTF-8"):
        pairs(b"\n".join(lines), b"\n".join([b"y"] * 20_000))
    with pytest.raises(ValueError, match="has 9,000, .* has 30,001. Line 9,001 of"):
        pairs(b"a\n" * 9_000, b"b\n" * 30_001)


def test_no_text(pairs, texts):
    for options in ({}, {"on_error": "skip"}):
        with pytest.raises(ValueError, match="must hold at least one row.*: none"):
            pairs(b"", b"", **options)
    with pytest.raises(ValueError, match="x, split train, must hold at least one row"):
        texts(b"")


def test_no_text_at_all(texts, monkeypatch):
    with pytest.raises(ValueError, match="x, line 1, is not valid UTF-8"):
        texts("hallo\n".encode("utf-16"))
    monkeypatch.setattr(lines, "_LONGEST", 1 << 16)
    with pytest.raises(ValueError, match="x must have at most 65,536 bytes; line 2"):
        texts(b"short\n" + b"y" * (1 << 18))


def test_lines_of_a_language_model(texts):
    expected = ["", " = Title = ", "", "Text .", " ", "", "More ."]
    assert texts(b"\n = Title = \n\nText .\n \n\nMore .\n") == expected
    with pytest.raises(ValueError, match="x, line 3, holds a NUL"):
        texts(b"a\n\nb\0\n")


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(number):
        path = tmp_path / str(number)
        with open(path, "w") as stream:
            stream.writelines(f"{'x' * 60} {i}\n" for i in range(number))
        corpus = open_corpus(path)
        tracemalloc.start()
        try:
            for _ in corpus.blocks("train"):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(40_000), peak(100_000)  # 2.7 and 6.9 MB
    assert large < 1.25 * small
