"""fairseq's dictionaries, and source words in the place of unknown ones."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import (
    SPECIAL_SYMBOLS,
    Dictionary,
    read_alignment_dictionary,
    replace_unknowns,
)

# Whatever UTF-8 can hold but line breaks: blanks, other white space, controls.
SYMBOLS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1
).filter(lambda symbol: symbol not in SPECIAL_SYMBOLS)
WORDS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1)
COUNTS = st.integers(-(10**9), 10**12)


def test_golden_dictionaries_are_read_and_written_to_the_byte(golden):
    files = sorted(golden.glob("*/dict.*.txt"))
    assert len(files) == 12
    for file in files:
        dictionary = Dictionary.read(file)
        lines = file.read_text().splitlines()
        assert len(dictionary) == len(lines) + 4
        for i, line in enumerate(lines, 4):
            symbol, count = line.split(" ")
            assert dictionary.id_of(symbol) == i and dictionary.symbols[i] == symbol
            assert dictionary.counts[i] == int(count)
        assert dictionary.to_text().encode() == file.read_bytes()


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
    content = "".join(
        f"{symbol} {count}" + " #fairseq:overwrite" * (i in flagged) + "\n"
        for i, (symbol, count) in enumerate(entries, 4)
    )
    path.write_bytes(content.encode())
    dictionary = Dictionary.read(path)
    assert dictionary.to_text() == content
    assert flagged or dictionary == Dictionary(entries)
    assert dictionary.symbols == (*SPECIAL_SYMBOLS, *(symbol for symbol, _ in entries))
    last = {symbol: i for i, (symbol, _) in enumerate(entries, 4)}
    assert all(dictionary.id_of(symbol) == i for symbol, i in last.items())


def test_special_symbols_and_unknown_ones(tmp_path):
    dictionary = Dictionary([("a", 3)])
    assert [dictionary.id_of(symbol) for symbol in SPECIAL_SYMBOLS] == [0, 1, 2, 3]
    assert dictionary.id_of("b") == 3
    # As camembert's does: the symbol moves, its old id stays taken.
    path = tmp_path / "dict.txt"
    path.write_text("a 3\n<s> 999 #fairseq:overwrite\na 1 #fairseq:overwrite\n")
    dictionary = Dictionary.read(path)
    assert dictionary.symbols == (*SPECIAL_SYMBOLS, "a", "<s>", "a")
    assert (dictionary.id_of("<s>"), dictionary.id_of("a")) == (5, 6)
    assert dictionary.to_text() == path.read_text()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (b"a 3\nb 2\na 1\n", 3, "must appear once (it has id 4 already)"),
        (b"a 3\n<pad> 2\n", 2, "must appear once (it has id 1 already)"),
        (b"a 3\nb\n", 2, "must be '<symbol> <count>': 'b'"),
        (b"a 3\n\nb 1\n", 2, "must be '<symbol> <count>': ''"),
        (b"a 3\nb #fairseq:overwrite\n", 2, "must be '<symbol> <count>'"),
        (b"a 3\nb 1.0\n", 2, "count must be an integer: '1.0'"),
        (b"a 3\nb 1_0\n", 2, "count must be an integer: '1_0'"),
        ("a 3\nb ٣\n".encode(), 2, "count must be an integer"),
        (b"a 3\n 2\n", 2, "not empty, without a line break: ''"),
        (b"a 3\nb\rc 2\n", 2, "line break"),
        (b"a 3\nb 2\n\xff\xfe 1\n", 3, r"must be valid UTF-8: b'\xff"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, line, words):
    path = tmp_path / "dict.txt"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        Dictionary.read(path)
    assert f"{path}, line {line}: " in str(error.value)


def finalized(counts, nwords):
    """Dictionary.finalize of fairseq, written anew from its rules."""
    rest = {symbol: n for symbol, n in counts.items() if symbol not in SPECIAL_SYMBOLS}
    alphabetical = Counter(dict(sorted(rest.items())))
    kept = alphabetical.most_common(nwords and max(0, nwords - 4))
    number = 0
    while (len(kept) + 4) % 8:
        filler = f"madeupword{number:04d}"
        if filler not in dict(kept):
            kept.append((filler, 0))
        number += 1
    return kept


@settings(deadline=None)
@given(
    st.dictionaries(
        st.one_of(WORDS, st.sampled_from([*SPECIAL_SYMBOLS, "madeupword0001"])),
        st.integers(1, 6),
        max_size=25,
    ),
    st.none() | st.integers(4, 20),
)
def test_dictionary_of_counts(counts, nwords):
    counts = {symbol: np.int64(count) for symbol, count in counts.items()}
    dictionary = Dictionary.from_counts(counts, nwords)
    expected = finalized(counts, nwords)
    assert list(zip(dictionary.symbols, dictionary.counts, strict=True))[4:] == expected


# --- Source words in the place of unknown ones. ---


def test_unknowns_take_the_source_word_with_most_attention():
    attention = np.array(
        [
            [0.9, 0.1, 0.0, 0.0],
            [0.1, 0.6, 0.3, 0.0],
            [0.2, 0.2, 0.5, 0.1],
            [0.0, 0.1, 0.2, 0.7],  # padding does not count: the end has most
            [1.0, 0.0, 0.0, 0.0],  # the row of the end of the hypothesis
        ]
    )
    hypothesis = ["<unk>", "<unk>", "ist", "<unk>"]
    source = ["Bob", "runs"]
    expected = ["Bob", "runs", "ist", "<eos>"]
    assert replace_unknowns(hypothesis, source, attention) == expected
    assert hypothesis[0] == "<unk>"
    replaced = replace_unknowns(hypothesis, source, attention, {"runs": "läuft"})
    assert replaced == ["Bob", "läuft", "ist", "<eos>"]
    with pytest.raises(ValueError, match=r"shape \(2, 4\), 4 tokens"):
        replace_unknowns(hypothesis, source, attention[:2])


def test_alignment_dictionary(tmp_path):
    path = tmp_path / "align"
    path.write_bytes("runs läuft 0.9\n\nBob  Robert\nruns rennt\n".encode())
    assert read_alignment_dictionary(path) == {"runs": "rennt", "Bob": "Robert"}
    for content in ("runs läuft\nBob\n".encode(), b"a b\nc \xff\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="line 2"):
            read_alignment_dictionary(path)
