"""`examples/prepare_corpora.py`: what it writes, by the digests of the files.

The package before it, `keras_seqconv.preparation`, wrote the same bytes. It was tested
against loops over the steps of fairseq's scripts.
"""

import json
import shutil

import pytest

from keras_seqconv.support.files import digest
from tests.test_examples import load, run_command

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


WRITERS = {"iwslt14": write_iwslt, "wmt14": write_wmt14}
DIGESTS = {
    "iwslt14 de en": """
        train.de 1c08728c train.en 5b267161 valid.de 98519b63 valid.en 6723e8f9
        test.de 0b0d51ae test.en 0b0d51ae tokenizers/source/bpe.codes e407c224
        tokenizers/source/dict.txt c6f49da1 tokenizers/target/dict.txt bde4c1ad""",
    "wmt14 en de": """
        train.de 39fc67a6 train.en 7bdae976 valid.de 88a0916e valid.en 8b1d16d9
        test.de aa514fde test.en 845c65fb tokenizers/source/bpe.codes d53686b2
        tokenizers/source/dict.txt 5bcac858 tokenizers/target/dict.txt 5bcac858""",
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


@pytest.mark.slow
def test_several_processes_give_the_same_bytes(tmp_path):
    write_iwslt(tmp_path)
    expected = prepare("iwslt14 de en", tmp_path) / "preparation.json"
    expected = expected.read_bytes()
    shutil.rmtree(tmp_path / "output")
    arguments = ["iwslt14", "de", "en", tmp_path, "output", "--workers", 2]
    run_command("prepare_corpora", *arguments, folder=tmp_path)
    assert (tmp_path / "output/preparation.json").read_bytes() == expected
