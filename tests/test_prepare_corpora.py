"""`examples/prepare_corpora.py`: what it writes, by the digests of the files.

The package before it, `keras_seqconv.preparation`, wrote the same bytes. It was tested
against loops over the steps of fairseq's scripts.
"""

import gzip
import json
import shutil

import pytest

from keras_seqconv.support.files import digest
from keras_seqconv.tokenizers import load_tokenizer
from tests.test_examples import load, run_command

pytest.importorskip("sacremoses", reason="needs the extra mt")

NOUNS = [("Haus", "house"), ("Baum", "tree"), ("Hund", "dog"), ("Vogel", "bird"),
         ("Tisch", "table"), ("Garten", "garden"), ("Fluss", "river")]  # fmt: skip


def sentence(number):
    """A pair of texts; no two numbers give the same."""
    (german, english), (german2, english2) = NOUNS[number % 7], NOUNS[number // 7 % 7]
    return (
        f"Das {german}, {number} und der {german2}-Rest.",
        f"It's the {english}, {number} and {english2}-like.",
    )


def write(stem, pairs, sides=("de", "en"), end=""):
    """Writes the files of both languages."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for side, lines in zip(sides, zip(*pairs, strict=True), strict=True):
        content = "".join(f"{line}\n" for line in lines)
        stem.with_name(f"{stem.name}.{side}{end}").write_bytes(content.encode())


def write_iwslt(folder):
    """Training text with markup and pairs for each filter, test sets."""
    pairs = []
    for talk in range(4):
        pairs += [
            ("<url>http://x</url>",) * 2,
            ("<keywords>a, b</keywords>",) * 2,
            ("<talkid>7</talkid>",) * 2,
            (f"<title>Titel {talk}</title>", f"<title>Title {talk}</title>"),
            (f"<description>Rede {talk}</description>", f"Talk <description>{talk}"),
            *(sentence(i) for i in range(talk * 20, talk * 20 + 20)),
        ]
    pairs[10] = ("Ja", "Yes , of course")
    pairs[11] = ("", "")
    pairs[12] = ("w " * 176, "w " * 170)
    pairs[13] = ("x" * 1001, "y")
    # At the limits, and kept.
    pairs[14:17] = [("Ja ja .", "Yes ."), ("w " * 175, "w " * 170), ("x" * 1000, "y")]
    write(folder / "de-en/train.tags.de-en", pairs)
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011",
                 "TED.tst2012"):  # fmt: skip
        text = f'<seg id="1"> It\u2019s {name} &amp; x </seg>'
        pairs = [('<doc docid="1">',) * 2, ("<title>no</title>",) * 2, (text, text)]
        write(folder / f"de-en/IWSLT14.{name}.de-en", pairs, end=".xml")


def write_wmt14(folder):
    """Two validation lines, pairs for each filter, signs that are normalized."""
    long = " ".join(f"w{i}" for i in range(260))
    write(folder / "training/europarl-v7.de-en", [sentence(i) for i in range(150)])
    pairs = [("kurz", "länger " * 9), *(sentence(i) for i in range(200, 260))]
    write(folder / "commoncrawl.de-en", pairs)
    write(folder / "training/news-commentary-v12.de-en", [
        (long, long), ("", "nothing"), ("„Ja\u00ad“ – so", "“Yes” – so"),
    ])  # fmt: skip
    test = [('<seg id="1">x–y</seg>', '<seg id="1">x–y’s</seg>')]
    sides = "deen-ref.de", "deen-src.en"
    for side, text in zip(sides, test[0], strict=True):
        path = folder / f"test-full/newstest2014-{side}.sgm"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<doc>\n{text}\n</doc>\n", encoding="utf-8")


def write_wmt16(folder):
    rows = [("Hau@@ s", "hou@@ se x@@ y"), ("b", "b")]
    write(folder / "train.tok.clean.bpe.32000", rows)
    write(folder / "newstest2013.tok.bpe.32000", [("Hau@@ s", "b")])
    write(folder / "newstest2014.tok.bpe.32000", [("neu", "new")])
    (folder / "bpe.32000").write_text("#version: 0.2\nh o\nho u\ns e</w>\n")


WRITERS = {"iwslt14": write_iwslt, "wmt14": write_wmt14, "wmt16": write_wmt16}
DIGESTS = {
    "iwslt14 de en": """
        train.de 1c08728c train.en 5b267161 valid.de 98519b63 valid.en 6723e8f9
        test.de 0b0d51ae test.en 0b0d51ae tokenizers/source/bpe.codes e407c224
        tokenizers/source/dict.txt c6f49da1 tokenizers/target/dict.txt bde4c1ad""",
    "wmt14 en de": """
        train.de 39fc67a6 train.en 7bdae976 valid.de 88a0916e valid.en 8b1d16d9
        test.de aa514fde test.en 845c65fb tokenizers/source/bpe.codes d53686b2
        tokenizers/source/dict.txt 5bcac858 tokenizers/target/dict.txt 5bcac858""",
    "wmt14 en de --separate-dictionaries": """
        train.de 39fc67a6 tokenizers/target/bpe.codes d53686b2
        tokenizers/source/dict.txt 526ac133 tokenizers/target/dict.txt c344784c""",
    "wmt16 en de": """
        train.de 20cfa761 train.en 25f2f87c valid.de 1b38502e valid.en 02638299
        test.de 7148855a test.en 7aa7a535 tokenizers/source/dict.txt ea5a35e1
        raw_tokenizers/source/bpe.codes 75412d83
        raw_tokenizers/target/dict.txt ea5a35e1""",
}


def prepare(line, data):
    """Runs the program with one process; returns the folder that it wrote."""
    recipe, source, target, *flags = line.split()
    output = data / "output"
    arguments = [recipe, source, target, str(data), str(output), *flags]
    load("prepare_corpora").main([*arguments, "--workers", "1"])
    return output


@pytest.mark.parametrize("line", DIGESTS)
def test_files_are_those_of_the_package_before(line, tmp_path):
    WRITERS[line.split()[0]](tmp_path)
    output = prepare(line, tmp_path)
    words = DIGESTS[line].split()
    expected = dict(zip(words[::2], words[1::2], strict=True))
    assert {name: digest(output / name)[:8] for name in expected} == expected
    report = json.loads((output / "preparation.json").read_bytes())
    files = {p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file()}
    assert files == {*report["outputs"], "preparation.json"}
    assert all(digest(output / name) == sha for name, sha in report["outputs"].items())
    if line.startswith("iwslt14"):
        counts = report["counts"]["de-en/train.tags.de-en.{}"]
        assert {name for name, count in counts.items() if count == 1} == {
            "empty", "length ratio above 1.5", "more than 175 words or pieces",
            "word of more than 1000 characters",
        }  # fmt: skip
        assert counts["lines with <url>"] == 4 and counts["pairs"] == 88
        assert report["counts"]["written"] == {"train": 81, "valid": 3, "test": 5}


def test_tokenizers_take_plain_text(tmp_path):
    for recipe in ("iwslt14 de en", "wmt14 en de", "wmt16 en de"):
        name = recipe.split()[0]
        WRITERS[name](tmp_path / name)
        prepare(recipe, tmp_path / name)
    tokenizer = load_tokenizer(tmp_path / "iwslt14/output/tokenizers/target")
    assert tokenizer.split("It's The House-like.")[-2:] == ["house-like", "."]
    tokenizer = load_tokenizer(tmp_path / "wmt14/output/tokenizers/target")
    assert tokenizer.normalize and tokenizer.aggressive_dash_splits
    tokenizer = load_tokenizer(tmp_path / "wmt16/output/tokenizers/source")
    ids = tokenizer.tokenize(["hou@@ se"])
    assert tokenizer.detokenize(ids) == ["house"]
    raw = load_tokenizer(tmp_path / "wmt16/output/raw_tokenizers/source")
    assert raw.tokenize(["house"]) == ids


def test_compressed_files_and_bytes_that_are_not_utf8(tmp_path):
    write_wmt16(tmp_path)
    path = tmp_path / "train.tok.clean.bpe.32000.de"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(b"a \xff\r\n\n"))
    path.unlink()
    output = prepare("wmt16 en de", tmp_path)
    assert (output / "train.de").read_text() == "a \ufffd\n\n"
    report = json.loads((output / "preparation.json").read_bytes())
    counts = report["counts"]["train.tok.clean.bpe.32000.{}"]
    assert counts == {"pairs": 2, "pairs with U+FFFD": 1}


def test_inputs_that_are_missing_or_do_not_fit(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        prepare("wmt14 en fr", tmp_path)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == 12 and "wmt10/training-giga-fren.tar" in lines[8]
    with pytest.raises(ValueError, match="Languages must be of"):
        prepare("wmt16 en fr", tmp_path)
    write_iwslt(tmp_path)
    path = tmp_path / "de-en/train.tags.de-en.en"
    path.write_text(path.read_text() + "one more\n")
    with pytest.raises(ValueError, match="same number of lines.* after 88"):
        prepare("iwslt14 de en", tmp_path)
    assert not (tmp_path / "output").exists()


@pytest.mark.slow
def test_several_processes_give_the_same_bytes(tmp_path):
    write_iwslt(tmp_path)
    expected = prepare("iwslt14 de en", tmp_path) / "preparation.json"
    expected = expected.read_bytes()
    shutil.rmtree(tmp_path / "output")
    arguments = ["iwslt14", "de", "en", tmp_path, "output", "--workers", 2]
    run_command("prepare_corpora", *arguments, folder=tmp_path)
    assert (tmp_path / "output/preparation.json").read_bytes() == expected
