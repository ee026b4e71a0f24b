"""fairseq's dictionaries."""

import os
import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import Dictionary

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# Whatever UTF-8 can hold but line breaks: blanks, other white space, controls.
SYMBOLS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1
).filter(lambda symbol: symbol not in SPECIAL)
WORDS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1)
COUNTS = st.integers(-(10**9), 10**12)


def write_lines(path, text):
    path.write_bytes(text.encode())
    return path


def test_golden_dictionaries_are_read_and_written_to_the_byte(golden, tmp_path):
    files = sorted(golden.glob("*/dict.*.txt"))
    assert len(files) == 12
    for file in files:
        dictionary = Dictionary.read(file)
        lines = file.read_text().splitlines()
        assert len(dictionary) == len(lines) + 4
        for i, line in enumerate(lines):
            symbol, count = line.split(" ")
            assert dictionary.id_of(symbol) == i + 4
            assert dictionary.symbol_of(i + 4) == symbol
            assert dictionary.counts[i + 4] == int(count)
        dictionary.write(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == file.read_bytes()


@settings(deadline=None)
@given(st.dictionaries(SYMBOLS, COUNTS, max_size=12), st.data())
@example(
    {"two words": 5, " ": 1, "a\u2028b\x85": 2, "\ufeff": 0, "5": 5, "é ": 3}, None
)
def test_file_round_trip(tmp_path_factory, entries, data):
    entries = list(entries.items())
    flagged = set()
    if data is not None and entries:  # repeat some, with the flag
        for _ in range(data.draw(st.integers(0, 3))):
            flagged.add(4 + len(entries))
            entries.append((data.draw(st.sampled_from(entries))[0], 7))
    path = tmp_path_factory.mktemp("dictionary") / "dict.txt"
    dictionary = Dictionary(entries, flagged)
    dictionary.write(path)
    content = "".join(
        f"{symbol} {count}" + " #fairseq:overwrite" * (i in flagged) + "\n"
        for i, (symbol, count) in enumerate(entries, 4)
    ).encode()
    assert path.read_bytes() == content
    again = Dictionary.read(path)
    assert again == dictionary
    assert again.symbols == (*SPECIAL, *(symbol for symbol, _ in entries))
    last = {symbol: i for i, (symbol, _) in enumerate(entries, 4)}
    assert all(again.id_of(symbol) == i for symbol, i in last.items())
    again.write(path)
    assert path.read_bytes() == content


def test_special_symbols_and_unknown_ones():
    dictionary = Dictionary([("a", 3)])
    assert [dictionary.id_of(symbol) for symbol in SPECIAL] == [0, 1, 2, 3]
    assert dictionary.id_of("b") == 3
    assert "a" in dictionary and "b" not in dictionary
    assert [dictionary.symbol_of(i) for i in (4, 5, 99, -1)] == ["a"] + ["<unk>"] * 3


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a 3\nb 2\na 1\n", 3, "must appear once (it has id 4 already)"),
        ("a 3\n<pad> 2\n", 2, "must appear once (it has id 1 already)"),
        ("a 3\nb\n", 2, "must be '<symbol> <count>': 'b'"),
        ("a 3\n\nb 1\n", 2, "must be '<symbol> <count>': ''"),
        ("a 3\nb #fairseq:overwrite\n", 2, "must be '<symbol> <count>'"),
        ("a 3\nb two\n", 2, "count must be an integer: 'two'"),
        ("a 3\nb 1.0\n", 2, "count must be an integer: '1.0'"),
        ("a 3\nb 1_0\n", 2, "count must be an integer: '1_0'"),
        ("a 3\nb ٣\n", 2, "count must be an integer"),
        ("a 3\n 2\n", 2, "not empty, without a line break: ''"),
        ("a 3\nb\rc 2\n", 2, "line break"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, line, words):
    path = write_lines(tmp_path / "dict.txt", text)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        Dictionary.read(path)
    assert f"{path}, line {line}: " in str(error.value)


def test_bytes_that_are_no_utf8_are_named(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 3\nb 2\n\xff\xfe 1\n")
    with pytest.raises(ValueError, match=r"line 3: must be valid UTF-8: b'\\xff"):
        Dictionary.read(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        Dictionary.read(tmp_path / "none")


def test_windows_line_ends_and_missing_last_one(tmp_path):
    path = write_lines(tmp_path / "dict.txt", "a 3\r\nb 2")
    assert Dictionary.read(path) == Dictionary([("a", 3), ("b", 2)])


def test_overwriting_a_special_symbol(tmp_path):
    """As camembert's dictionary does: the symbol moves, its old id stays taken."""
    text = "a 3\n<s> 999 #fairseq:overwrite\na 1 #fairseq:overwrite\n"
    dictionary = Dictionary.read(write_lines(tmp_path / "dict.txt", text))
    assert dictionary.symbols == (*SPECIAL, "a", "<s>", "a")
    assert (dictionary.id_of("<s>"), dictionary.id_of("a")) == (5, 6)
    assert dictionary.to_text() == text


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "dict.txt"
    Dictionary([("a", 3)]).write(path)

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        Dictionary([("b", 3)]).write(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["dict.txt"]
    assert path.read_text() == "a 3\n"


def finalized(counts, threshold, nwords, padding_factor):
    """Dictionary.finalize of fairseq, written anew from its rules."""
    rest = {symbol: n for symbol, n in counts.items() if symbol not in SPECIAL}
    alphabetical = Counter(dict(sorted(rest.items())))
    limit = None if nwords <= 0 else max(0, nwords - 4)
    kept = [item for item in alphabetical.most_common(limit) if item[1] >= threshold]
    number = 0
    while padding_factor > 1 and (len(kept) + 4) % padding_factor:
        filler = f"madeupword{number:04d}"
        if filler not in dict(kept):
            kept.append((filler, 0))
        number += 1
    return kept


@settings(deadline=None)
@given(
    st.dictionaries(
        st.one_of(WORDS, st.sampled_from([*SPECIAL, "madeupword0001"])),
        st.integers(1, 6),
        max_size=25,
    ),
    st.integers(-1, 4),
    st.integers(-1, 20),
    st.sampled_from([0, 1, 8]),
)
def test_dictionary_of_counts(counts, threshold, nwords, padding_factor):
    dictionary = Dictionary.from_counts(counts, threshold, nwords, padding_factor)
    expected = finalized(counts, threshold, nwords, padding_factor)
    assert list(zip(dictionary.symbols, dictionary.counts, strict=True))[4:] == expected


def test_equal_counts_are_alphabetical_and_the_size_is_padded():
    dictionary = Dictionary.from_counts({"b": 2, "a": 2, "c": 9, "Z": 2, "rare": 1}, 2)
    assert dictionary.to_text() == "c 9\nZ 2\na 2\nb 2\n"
    assert Dictionary.from_counts({"a": 2}).to_text() == (
        "a 2\nmadeupword0000 0\nmadeupword0001 0\nmadeupword0002 0\n"
    )
