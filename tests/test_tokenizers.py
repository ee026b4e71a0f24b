"""fairseq's dictionaries, and text to ids and back through them."""

import json
import re
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv import tokenizers
from keras_seqconv.tokenizers import (
    Dictionary,
    DictionaryTokenizer,
    load_tokenizer,
    read_alignment_dictionary,
    replace_unknowns,
)

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# Whatever UTF-8 can hold but line breaks: blanks, other white space, controls.
SYMBOLS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1
).filter(lambda symbol: symbol not in SPECIAL)
WORDS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1)
COUNTS = st.integers(-(10**9), 10**12)
CODES = "#version: 0.2\nh o\nho u\ns e</w>\nt h\nth e</w>\n"


def write_lines(path, text):
    path.write_bytes(text.encode())
    return path


# --- Dictionary ---


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
        ("a 3\n 2\n", 2, "not empty: ''"),
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
    with pytest.raises(ValueError, match="is not a file"):
        Dictionary.read(tmp_path)


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

    monkeypatch.setattr(tokenizers.os, "replace", fail)
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


# --- Tokenizer ---


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=20, unique=True), st.data())
def test_known_words_come_back(words, data):
    tokenizer = DictionaryTokenizer(Dictionary.from_counts(Counter(words)))
    known = [word for word in words if word not in SPECIAL]
    sentences = data.draw(st.lists(st.lists(st.sampled_from(known or [""]))))
    texts = [" ".join(filter(None, sentence)) for sentence in sentences]
    ids = tokenizer.tokenize(texts)
    for text, row in zip(texts, ids, strict=True):
        assert row[-1] == 2 and len(row) == len(text.split()) + 1
        assert all(4 <= i < tokenizer.vocabulary_size for i in row[:-1])
    assert tokenizer.detokenize(ids) == texts
    padded = [np.array([0, *row, 1, 1], "int32") for row in ids]
    assert tokenizer.detokenize(padded) == texts


def test_ids_of_text():
    tokenizer = DictionaryTokenizer(Dictionary([("a", 3), ("b", 2)]))
    assert tokenizer.tokenize(["a  b\t\u00a0a \n", "a x b", ""]) == [
        [4, 5, 4, 2],
        [4, 3, 5, 2],
        [2],
    ]
    assert tokenizer.detokenize([[4, 2, 5], [1, 5, 3, 99, 1], []]) == [
        "a",
        "b <unk> <unk>",
        "",
    ]
    assert tokenizer.vocabulary_size == 6
    assert (tokenizer.pad_id, tokenizer.start_id) == (1, 2)
    assert (tokenizer.end_id, tokenizer.unk_id) == (2, 3)
    assert tokenizer.in_graph is False


def test_special_symbols_typed_by_a_user_are_unknown():
    tokenizer = DictionaryTokenizer(Dictionary([("a", 3)]))
    assert tokenizer.tokenize(["a <pad> </s> <s> <unk> a"]) == [[4, 3, 3, 3, 3, 4, 2]]


def test_one_text_instead_of_a_list_is_refused():
    with pytest.raises(ValueError, match="must be a list of texts"):
        DictionaryTokenizer(Dictionary()).tokenize("a")


def test_bpe_of_hand_made_codes():
    pytest.importorskip("subword_nmt", reason="needs the extra mt")
    dictionary = Dictionary([("the", 9), ("hou@@", 3), ("se", 2), ("lake", 1)])
    tokenizer = DictionaryTokenizer(dictionary, bpe_codes=CODES)
    assert tokenizer.split("the house") == ["the", "hou@@", "se"]
    assert tokenizer.tokenize(["the house"]) == [[4, 5, 6, 2]]
    assert tokenizer.detokenize([[4, 5, 6, 2], [4, 5, 2]]) == ["the house", "the hou"]
    kept = DictionaryTokenizer(dictionary, bpe_codes=CODES, remove_bpe=False)
    assert kept.detokenize([[4, 5, 6, 2]]) == ["the hou@@ se"]


def test_removal_of_byte_pairs_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "subword_nmt", None)
    tokenizer = DictionaryTokenizer(Dictionary(), remove_bpe=True)
    joined = tokenizer.join(["ein", "Ha@@", "us", "a@@b", "x@@"])
    assert joined == "ein Haus a@@b x"


@settings(deadline=None)
@given(st.lists(st.text("houste", min_size=1), max_size=6))
def test_byte_pairs_are_joined_again(words):
    pytest.importorskip("subword_nmt", reason="needs the extra mt")
    tokenizer = DictionaryTokenizer(Dictionary(), bpe_codes=CODES)
    assert tokenizer.join(tokenizer.split(" ".join(words))) == " ".join(words)


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ("#version: 0.2\na b\na b c\n", "Line 3"),
        ("a b\n\nc d", "Line 2"),
        ("#version: two\na b", "Line 1"),
        ("", "Line 1"),
        (b"a b", "must be the text"),
    ],
)
def test_bad_codes_are_an_error_and_not_the_end_of_the_process(codes, words):
    with pytest.raises(ValueError, match=words):
        DictionaryTokenizer(Dictionary(), bpe_codes=codes)


def test_moses_there_and_back():
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    tokenizer = DictionaryTokenizer(
        Dictionary(), language="en", normalize=True, moses=True
    )
    text = "Don't panic: “well-known” things (e.g. R & D) cost 5.50 dollars, Mr. Smith!"
    tokens = tokenizer.split(text)
    assert tokens[:4] == ["Don", "&apos;t", "panic", ":"]
    assert tokens[tokens.index("well") :][:3] == ["well", "@-@", "known"]
    assert "&amp;" in tokens and "Mr." in tokens and tokens[-1] == "!"
    assert tokenizer.join(tokens) == text.replace("“", '"').replace("”", '"')


def test_moses_options():
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    iwslt = DictionaryTokenizer(
        Dictionary(), language="de", moses=True, aggressive_dash_splits=False,
        escape=False, lowercase=True,
    )  # fmt: skip
    tokens = iwslt.split("Der E-Mail-Dienst heißt „Ärger“, & mehr.")
    assert "e-mail-dienst" in tokens and "&" in tokens and "ärger" in tokens
    assert iwslt.tokenize([""]) == [[2]]
    assert iwslt.detokenize([[2]]) == [""]


def test_all_steps_run_in_their_order():
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    tokenizer = DictionaryTokenizer(
        Dictionary(), language="en", moses=True, lowercase=True, bpe_codes=CODES
    )
    tokens = tokenizer.split("The HOUSE.")
    assert tokens == ["the", "hou@@", "se", "."]
    assert tokenizer.join(tokens) == "the house."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"moses": True}, "language=None"),
        ({"normalize": True, "language": "../de"}, "language='../de'"),
        ({"language": 3}, "language=3"),
        ({"lowercase": 1}, "lowercase=1"),
        ({"moses": "yes", "language": "de"}, "moses='yes'"),
        ({"remove_bpe": "@@ "}, "remove_bpe='@@ '"),
        ({"dictionary": "dict.txt"}, "dictionary='dict.txt'"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        DictionaryTokenizer(**{"dictionary": Dictionary()} | arguments)


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("sacremoses", {"moses": True, "language": "de"}),
        ("sacremoses", {"normalize": True, "language": "de"}),
        ("subword_nmt", {"bpe_codes": CODES}),
    ],
)
def test_missing_package_names_the_extra(monkeypatch, package, arguments):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "subword_nmt.apply_bpe", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'keras-seqconv\[mt\]'"):
        DictionaryTokenizer(Dictionary(), **arguments)


# --- Folders ---


def full_tokenizer():
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    return DictionaryTokenizer(
        Dictionary([("the", 9), ("hou@@", 3), ("se", 2), ("é", 1)]),
        language="en", normalize=True, moses=True, aggressive_dash_splits=False,
        escape=False, lowercase=True, bpe_codes=CODES, remove_bpe=True,
    )  # fmt: skip


def test_folder_round_trip(tmp_path):
    tokenizer = full_tokenizer()
    tokenizer.save(tmp_path / "deep" / "source")
    names = sorted(path.name for path in (tmp_path / "deep" / "source").iterdir())
    assert names == ["bpe.codes", "dict.txt", "settings.json"]
    again = load_tokenizer(tmp_path / "deep" / "source")
    assert type(again) is DictionaryTokenizer
    assert again.dictionary == tokenizer.dictionary
    assert again.bpe_codes == CODES
    for name in (
        "language", "normalize", "moses", "aggressive_dash_splits", "escape",
        "lowercase", "remove_bpe",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(tokenizer, name), name
    text = "The house-é & more"
    assert again.tokenize([text]) == tokenizer.tokenize([text])


def test_folder_of_plain_words_has_no_codes(tmp_path):
    DictionaryTokenizer(Dictionary([("a", 1)]), remove_bpe=True).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dict.txt",
        "settings.json",
    ]
    again = load_tokenizer(tmp_path)
    assert again.remove_bpe and again.bpe_codes is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dictionary": "../../etc/passwd"}, "unknown settings ['dictionary']"),
        ({"bpe_codes": "/etc/passwd"}, "unknown settings ['bpe_codes']"),
        ({"bpe": "../secret"}, "bpe='../secret'"),
        ({"kind": "os.system"}, "kind='os.system'"),
        ({"kind": ["dictionary"]}, "kind=['dictionary']"),
        ({"format_version": 2}, "format_version=2"),
        ({"format_version": None}, "format_version=None"),
        ({"language": "../../x"}, "language='../../x'"),
        ({"moses": 1, "language": "de"}, "moses=1"),
    ],
)
def test_settings_of_strangers(tmp_path, change, words):
    DictionaryTokenizer(Dictionary([("a", 1)])).save(tmp_path)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=re.escape(words)):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '"dictionary"', "\xff"])
def test_damaged_settings(tmp_path, text):
    DictionaryTokenizer(Dictionary([("a", 1)])).save(tmp_path)
    (tmp_path / "settings.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"settings\.json"):
        load_tokenizer(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"settings\.json"):
        load_tokenizer(tmp_path)
    DictionaryTokenizer(Dictionary([("a", 1)])).save(tmp_path)
    (tmp_path / "dict.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"dict\.txt"):
        load_tokenizer(tmp_path)


# --- Unknown words ---


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
    assert replace_unknowns(hypothesis, source, attention) == [
        "Bob", "runs", "ist", "<eos>",
    ]  # fmt: skip
    assert hypothesis[0] == "<unk>"
    replaced = replace_unknowns(hypothesis, source, attention, {"runs": "läuft"})
    assert replaced == ["Bob", "läuft", "ist", "<eos>"]
    with pytest.raises(ValueError, match=r"shape \(2, 4\), 4 tokens"):
        replace_unknowns(hypothesis, source, attention[:2])


def test_alignment_dictionary(tmp_path):
    path = write_lines(
        tmp_path / "align", "runs läuft 0.9\n\nBob  Robert\nruns rennt\n"
    )
    assert read_alignment_dictionary(path) == {"runs": "rennt", "Bob": "Robert"}
    write_lines(path, "runs läuft\nBob\n")
    with pytest.raises(ValueError, match="line 2"):
        read_alignment_dictionary(path)
