"""Text to ids and back through fairseq's dictionaries, Moses and byte pairs."""

import subprocess
import sys
from collections import Counter

import pytest

from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer, train_tokenizers

CODES = "#version: 0.2\nh o\nho u\ns e</w>\nt h\nth e</w>\n"


def test_ids_of_text(tmp_path):
    tokenizer = DictionaryTokenizer(Dictionary([("a", 3), ("b", 2)]))
    ids = tokenizer.tokenize(["a  b\t\u00a0a \n", "a x b", ""])
    assert ids == [[4, 5, 4, 2], [4, 3, 5, 2], [2]]
    assert tokenizer.vocabulary_size == 6 and tokenizer.in_graph is False
    # What looks like a special symbol is an unknown word.
    assert tokenizer.tokenize(["a <pad> <unk> a"]) == [[4, 3, 3, 4, 2]]
    # A symbol that is a special one by the dictionary's flag is one of its own.
    (tmp_path / "dict.txt").write_text("a 3\n<s> 2 #fairseq:overwrite\n")
    moved = Dictionary.read(tmp_path / "dict.txt")
    assert DictionaryTokenizer(moved).tokenize(["a <s>"]) == [[4, 5, 2]]


def test_bpe_of_hand_made_codes():
    dictionary = Dictionary([("the", 9), ("hou@@", 3), ("se", 2), ("lake", 1)])
    tokenizer = DictionaryTokenizer(dictionary, bpe_codes=CODES)
    assert tokenizer.split("the house") == ["the", "hou@@", "se"]
    assert tokenizer.tokenize(["the house"]) == [[4, 5, 6, 2]]
    assert tokenizer.detokenize([[4, 5, 6, 2], [4, 5, 2]]) == ["the house", "the hou"]
    kept = DictionaryTokenizer(dictionary, bpe_codes=CODES, remove_bpe=False)
    assert kept.detokenize([[4, 5, 6, 2]]) == ["the hou@@ se"]
    assert tokenizer.split("x" * 5000) == tokenizer.split("x" * 1000)


def test_codes_of_fastbpe_are_those_of_version_0_2():
    """With counts and without a header, as fairseq publishes them for WMT'19."""
    pairs = ["h e</w>", "t he</w>", "h o", "ho u", "t h"]
    counted = "".join(f"{pair} {10**9 - n}\n" for n, pair in enumerate(pairs))
    plain = "\n".join(["#version: 0.2", *pairs, ""])
    wanted = ["the", "hou@@", "s@@", "e", "he", "ho@@", "u", "th@@", "h"]
    for codes in (counted, plain):
        tokenizer = DictionaryTokenizer(Dictionary(), bpe_codes=codes)
        assert tokenizer.split("the house he hou thh") == wanted


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ("#version: 0.2\na b\na b c\n", "Line 3"),
        ("a b\n\nc d", "Line 2"),
        ("#version: two\na b", "Line 1"),
        ("", "Line 1"),
        ("#version: 0.2\n", "Line 2"),
        ("#version: 0.3\na b\n", "version 0.1 or 0.2"),
        ("a b 9\na b c\n", "Line 2"),
        (b"a b", "must be the text"),
    ],
)
def test_bad_codes_are_an_error_and_not_the_end_of_the_process(codes, words):
    with pytest.raises(ValueError, match=words):
        DictionaryTokenizer(Dictionary(), bpe_codes=codes)


def test_moses_there_and_back():
    tokenizer = DictionaryTokenizer(
        Dictionary(), language="en", normalize=True, moses=True
    )
    text = "Don't panic: “well-known” things (e.g. R & D) cost 5.50 dollars, Mr. Smith!"
    tokens = tokenizer.split(text)
    assert tokens[:4] == ["Don", "&apos;t", "panic", ":"]
    assert tokens[tokens.index("well") :][:3] == ["well", "@-@", "known"]
    assert "&amp;" in tokens and "Mr." in tokens and tokens[-1] == "!"
    assert tokenizer.join(tokens) == text.replace("“", '"').replace("”", '"')


def test_moses_options_and_the_order_of_steps():
    iwslt = DictionaryTokenizer(
        Dictionary(), language="de", moses=True, aggressive_dash_splits=False,
        escape=False, lowercase=True,
    )  # fmt: skip
    tokens = iwslt.split("Der E-Mail-Dienst heißt „Ärger“, & mehr.")
    assert "e-mail-dienst" in tokens and "&" in tokens and "ärger" in tokens
    assert iwslt.tokenize([""]) == [[2]]
    assert iwslt.detokenize([[2]]) == [""]
    tokenizer = DictionaryTokenizer(
        Dictionary(), language="en", moses=True, lowercase=True, bpe_codes=CODES
    )
    tokens = tokenizer.split("The HOUSE.")
    assert tokens == ["the", "hou@@", "se", "."]
    assert tokenizer.join(tokens) == "the house."


# --- Training ---

GERMAN = ["Der Hund läuft im Park.", "Die Hunde laufen, und der Mann schläft."] * 3
ENGLISH = ["The dog runs in the park.", "The dogs run while the man's asleep."] * 3


def subword_nmt(folder, *arguments, text=None):
    """What its command line writes."""
    if text is not None:
        (folder / "text").write_text("".join(f"{line}\n" for line in text))
    code = "from subword_nmt.subword_nmt import main; main()"
    command = [sys.executable, "-c", code, *arguments, "-i", "text", "-o", "out"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "out").read_text(encoding="utf-8")


def test_codes_and_pieces_are_those_of_the_command_line(tmp_path):
    source, target = train_tokenizers(
        "moses_bpe", GERMAN, ENGLISH, joint=False, merges=30, moses=False,
        lowercase=True,
    )  # fmt: skip
    lines = [line.lower() for line in GERMAN + ENGLISH]
    expected = subword_nmt(tmp_path, "learn-bpe", "-s", "30", text=lines)
    assert source.bpe_codes == target.bpe_codes == expected
    assert len(expected.splitlines()) == 31
    (tmp_path / "codes").write_text(expected)
    applied = subword_nmt(tmp_path, "apply-bpe", "-c", "codes")
    assert [" ".join(source.split(line)) for line in lines] == applied.splitlines()
    for side, texts in ((source, GERMAN), (target, ENGLISH)):
        counts = Counter(symbol for text in texts for symbol in side.split(text))
        assert side.dictionary == Dictionary.from_counts(counts)
        assert side.vocabulary_size % 8 == 0
        lower = [text.lower() for text in texts]
        assert side.detokenize(side.tokenize(texts)) == lower


def test_training_with_moses_and_a_joined_dictionary():
    source, target = train_tokenizers(
        "moses_bpe", GERMAN, ENGLISH, languages=("de", "en"), merges=30
    )
    assert source is not target and source.dictionary == target.dictionary
    assert (source.language, target.language) == ("de", "en")
    assert source.detokenize(source.tokenize(GERMAN)) == GERMAN
    assert target.detokenize(target.tokenize(ENGLISH)) == ENGLISH
    assert "".join(target.split("man's")).replace("@@", "") == "man&apos;s"
    # As for language models: without sources.
    with pytest.raises(ValueError, match="must hold a pair of letters that comes twi"):
        train_tokenizers("moses_bpe", ["ab cd"], ["ef"], merges=5, moses=False)
    same = train_tokenizers("moses_bpe", (), ENGLISH, languages=("en", "en"), merges=30)
    assert same[0] is same[1]
