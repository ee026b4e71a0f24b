"""`keras_seqconv.preparation`: each step against text and loops written here."""

import gzip
import hashlib
import itertools
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from keras_seqconv import preparation
from keras_seqconv.preparation import corpus, iwslt14, listing, prepare, wmt14, wmt16
from keras_seqconv.preparation.pairs import Place, read_pairs
from keras_seqconv.preparation.recipes import Rule
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer, load_tokenizer
from keras_seqconv.tokenizers.dictionary import learn_codes

sacremoses = pytest.importorskip("sacremoses", reason="needs the extra mt")

NOUNS = [("Haus", "house"), ("Baum", "tree"), ("Hund", "dog"), ("Vogel", "bird"),
         ("Tisch", "table"), ("Garten", "garden"), ("Fluss", "river")]  # fmt: skip


def sentence(number):
    """A pair of texts; no two numbers give the same."""
    (german, english), (german2, english2) = NOUNS[number % 7], NOUNS[number // 7 % 7]
    return (
        f"Das {german}, {number} und der {german2}-Rest.",
        f"It's the {english}, {number} and {english2}-like.",
    )


def lines_of(path):
    return Path(path).read_bytes().decode().split("\n")[:-1]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def rows_of(folder, split, languages=("de", "en")):
    """The rows of a prepared split."""
    columns = [lines_of(folder / f"{split}.{lang}") for lang in languages]
    return [list(row) for row in zip(*columns, strict=True)]


def parallel(folder, pairs, stem="train"):
    """Writes files of both sides; returns their paths."""
    files = tuple(folder / f"{stem}.{lang}" for lang in ("de", "en"))
    for side, path in enumerate(files):
        write(path, [pair[side] for pair in pairs])
    return files


def pack(archive, folder, names):
    with tarfile.open(archive, "w:gz") as stream:
        for name in names:
            stream.add(folder / name, name)


def contents(folder):
    """Everything in a folder but what names the way to it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def words_of(rows, split=str.split):
    return Counter(word for row in rows for text in row for word in split(text))


# --- Rules and steps. ---


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("a b", "a b c", None),  # 1.5 itself is kept
        ("a b c", "a b", None),
        ("a b c d", "a b c d e f", None),
        ("a b c d", "a b", "length ratio above 1.5"),
        ("a", "a b", "length ratio above 1.5"),
        ("", "a", "empty"),
        ("a", " \t", "empty"),
        ("a b c d e f g", "a b c d e f", "more than 6 words"),
        ("x" * 1000, "a", None),
        ("a", "x" * 1001, "word of more than 1000 characters"),
        ("x" * 600 + "|" + "x" * 600, "a", None),
    ],
)
def test_cleaning_is_that_of_moses(source, target, problem):
    rule = Rule(1.5, 1, 6)
    assert rule.problem(source, target) == problem
    assert rule.problems == [
        "empty", "more than 6 words", "fewer than 1 words", "length ratio above 1.5",
        "word of more than 1000 characters",
    ]  # fmt: skip
    assert Rule(least=2).problem("a", "a b") == "fewer than 2 words"
    assert Rule().problems == ["empty", "word of more than 1000 characters"]


# --- IWSLT. ---


@pytest.fixture(scope="module")
def iwslt(tmp_path_factory):
    """Files of the archive, and training pairs as they are without markup."""
    folder = tmp_path_factory.mktemp("iwslt")
    marked, plain = ([], []), []
    for talk in range(4):
        for side, text in enumerate(("Titel der Rede", "Title of the talk")):
            marked[side].extend([
                "<url>http://x</url>", "<keywords>a, b</keywords>",
                "<talkid>7</talkid>", f"<title>{text} {talk}</title>",
                f"<description>{text}: {talk}</description>",
            ])  # fmt: skip
        plain += [
            (f"Titel der Rede {talk}", f"Title of the talk {talk}"),
            (f"Titel der Rede: {talk}", f"Title of the talk: {talk}"),
        ]
        for i in range(talk * 20, talk * 20 + 20):
            pair = sentence(i)
            if i == 5:
                pair = ("Ja", "Yes , of course")  # ratio
            if i == 6:
                pair = ("", "")
            if i == 7:
                pair = ("w " * 176, "w " * 170)
            plain.append(pair)
            for side in (0, 1):
                marked[side].append(f" {pair[side]} ")
    for side, lang in enumerate(("de", "en")):
        write(folder / f"de-en/train.tags.de-en.{lang}", marked[side])
        for number, name in enumerate(
            ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
        ):
            write(
                folder / f"de-en/IWSLT14.{name}.de-en.{lang}.xml",
                ['<doc docid="1">', '<title>no</title>',
                 f'<seg id="1"> {"Es" if side == 0 else "It"}\u2019s {number} &amp; x '
                 "</seg>", "</doc>"],
            )  # fmt: skip
    pack(folder.parent / "de-en.tgz", folder, ["de-en"])
    return folder, plain


def cleaned(rows, most, split=str.split):
    """clean-corpus-n.perl by its rules, of rows (number, (source, target))."""
    kept = []
    for number, pair in rows:
        least, longest = sorted(len(split(text)) for text in pair)
        if least and longest <= most and longest / least <= 1.5:
            kept.append((number, pair))
    return kept


def fairseq_iwslt(plain):
    """What prepare-iwslt14.sh makes of pairs without markup, before byte pairs."""
    tokenize = [sacremoses.MosesTokenizer(lang).tokenize for lang in ("de", "en")]
    rows = [
        [of(text, return_str=True) for of, text in zip(tokenize, pair, strict=True)]
        for pair in plain
    ]
    lines = list(enumerate(cleaned(enumerate(rows), 175), 1))
    return [
        [(number, [text.lower() for text in pair]) for line, (number, pair) in lines
         if (line % 23 == 0) == valid]
        for valid in (False, True)
    ]  # fmt: skip


def test_iwslt_as_fairseq_has_it_and_as_plain_text(iwslt, tmp_path):
    folder, plain = iwslt
    out, raw = tmp_path / "tokens", tmp_path / "plain"
    report = prepare(iwslt14(), folder, out, tokenized=True)
    train, valid = fairseq_iwslt(plain)
    assert rows_of(out, "train") == [row for _, row in train]
    assert rows_of(out, "valid") == [row for _, row in valid]
    # Not unescaped, apostrophes made plain, in the order of the script.
    assert lines_of(out / "test.en") == [
        f"it &apos;s {number} &amp; amp ; x" for number in range(5)
    ]
    counts = {
        "lines": 100, "pairs": 88, "lines with <url>": 4, "lines with <talkid>": 4,
        "length ratio above 1.5": 1, "empty": 1, "more than 175 words": 1,
        "to train": len(train), "to valid": 3,
    }  # fmt: skip
    assert counts.items() <= report["parts"][0].items() and len(valid) == 3
    assert report["splits"]["test"] == {"kept": 5}
    # The merges of the command line, learnt on both sides.
    codes = learn_codes(words_of(row for _, row in train), 10000)
    # As it was, but without markup.
    prepare(iwslt14(), folder.parent / "de-en.tgz", raw)
    assert lines_of(raw / "train.de") == [plain[i][0].strip() for i, _ in train]
    for side, (name, lang) in enumerate((("source", "de"), ("target", "en"))):
        tokenizer = load_tokenizer(out / "tokenizers" / name)
        assert tokenizer.bpe_codes == codes
        # Dictionaries apart, in fairseq's order: by count, then by code points.
        seen = words_of(([row[side]] for _, row in train), tokenizer.split)
        expected = sorted(seen, key=lambda piece: (-seen[piece], piece))
        symbols = tokenizer.dictionary.symbols
        assert list(symbols[4 : 4 + len(expected)]) == expected
        assert len(symbols) % 8 == 0 and len(symbols) - len(expected) - 4 < 8
        # To be put in place of the other when the model is to take plain text.
        files = contents(out / "raw_tokenizers" / name)
        assert files == contents(raw / "tokenizers" / name)
        assert set(files) == {"dict.txt", "bpe.codes", "settings.json"}
        ids = tokenizer.tokenize(lines_of(out / f"train.{lang}"))
        assert not any(3 in row for row in ids)
        tokenizer = load_tokenizer(raw / "tokenizers" / name)
        assert tokenizer.tokenize(lines_of(raw / f"train.{lang}")) == ids
    report = json.loads((raw / "preparation.json").read_bytes())
    for file in report["outputs"]:
        content = (raw / file["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert len(content) == file["bytes"]
    assert report["inputs"][0]["file"] == "de-en.tgz"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "tokens"]
    # The other direction has the same pairs.
    prepare(iwslt14("en", "de"), folder, tmp_path / "other", tokenized=True)
    assert lines_of(tmp_path / "other/train.en") == [row[1] for _, row in train]


# --- WMT. ---


def test_wmt14_from_archives(tmp_path):
    """Of another order: splits, merges, then filters; tests are not normalised."""
    data, tree = tmp_path / "data", tmp_path / "tree"
    data.mkdir()
    long = " ".join(f"w{i}" for i in range(260))
    corpora = {
        "training/europarl-v7.de-en": [sentence(i) for i in range(150)],
        "commoncrawl.de-en": [("kurz", " ".join("länger" * 1 for _ in range(9)))]
        + [sentence(i) for i in range(200, 260)],
        "training/news-commentary-v12.de-en": [
            (long, long), ("", "nothing"), ("„Ja\u00ad“ – so", "“Yes” – so"),
        ],
    }  # fmt: skip
    archives = ("europarl-v7", "commoncrawl", "nc-v12")
    for (stem, pairs), archive in zip(corpora.items(), archives, strict=True):
        parallel(tree, pairs, stem)
        names = [f"{stem}.de", f"{stem}.en"]
        pack(data / f"training-parallel-{archive}.tgz", tree, names)
    for kind, lang, text in (("src", "en", "x–y’s"), ("ref", "de", "x–y")):
        name = f"test-full/newstest2014-deen-{kind}.{lang}.sgm"
        write(tree / name, ["<doc>", f'<seg id="1">{text}</seg>', "</doc>"])
    pack(data / "test-full.tgz", tree, ["test-full"])
    out = tmp_path / "out"
    report = prepare(wmt14(), data, out, tokenized=True)

    def tokens(text, lang):
        text = sacremoses.MosesPunctNormalizer(lang).normalize(text)
        return sacremoses.MosesTokenizer(lang).tokenize(
            text.replace("\u00ad", " "), aggressive_dash_splits=True, return_str=True
        )

    pairs = itertools.chain(*corpora.values())
    rows = [[tokens(pair[1], "en"), tokens(pair[0], "de")] for pair in pairs]
    train = [row for row in enumerate(rows, 1) if row[0] % 100 != 0]
    valid = [row for row in enumerate(rows, 1) if row[0] % 100 == 0]
    codes = learn_codes(words_of(row for _, row in train), 40000)
    assert (out / "tokenizers/source/bpe.codes").read_text() == codes
    split_word = DictionaryTokenizer(Dictionary(), bpe_codes=codes).split
    train, valid = (cleaned(lines, 250, split_word) for lines in (train, valid))
    assert rows_of(out, "train", ("en", "de")) == [row for _, row in train]
    assert rows_of(out, "valid", ("en", "de")) == [row for _, row in valid]
    seen = words_of((row for _, row in train), split_word)
    assert report["splits"]["train"]["more than 250 words, after byte pairs"] == 1
    assert report["splits"]["train"]["empty, after byte pairs"] == 1
    assert [part["to valid"] for part in report["parts"][:2]] == [1, 1]
    # One dictionary; the test is not normalised: the long dash is still there.
    source = load_tokenizer(out / "tokenizers/source").dictionary
    assert source == load_tokenizer(out / "tokenizers/target").dictionary
    assert dict(zip(source.symbols[4:], source.counts[4:], strict=True)) == {
        **seen,
        **{s: 0 for s in source.symbols if s.startswith("madeupword")},
    }
    assert lines_of(out / "test.en") == ["x – y &apos;s"]
    # Plain text: what the tokenizer does not do is done to the text.
    prepare(wmt14(), data, tmp_path / "plain")
    assert lines_of(tmp_path / "plain/train.de")[-1] == "„Ja “ – so"
    tokenizer = load_tokenizer(tmp_path / "plain/tokenizers/target")
    assert tokenizer.normalize and tokenizer.aggressive_dash_splits
    assert " ".join(tokenizer.split("„Ja “ – so")).replace("@@ ", "") == rows[-1][1]


def test_wmt16_takes_splits_and_pieces_as_they_are(tmp_path):
    data = tmp_path / "data"
    codes = "#version: 0.2\nh o\nho u\ns e</w>\n"
    for split, rows in (
        ("train.tok.clean.bpe.32000", [("Hau@@ s", "hou@@ se x@@ y"), ("b", "b")]),
        ("newstest2013.tok.bpe.32000", [("Hau@@ s", "b")]),
        ("newstest2014.tok.bpe.32000", [("neu", "new")]),
    ):
        parallel(data, rows, split)
    (data / "bpe.32000").write_text(codes)
    out = tmp_path / "out"
    report = prepare(wmt16(), data, out)
    assert lines_of(out / "train.en") == ["hou@@ se x@@ y", "b"]
    assert lines_of(out / "test.de") == ["neu"]
    assert report["text"] == "pieces"
    tokenizer = load_tokenizer(out / "tokenizers/source")
    symbols = ("b", "Hau@@", "hou@@", "s", "se", "x@@")
    assert tokenizer.dictionary.symbols[4:10] == symbols
    ids = tokenizer.tokenize(["hou@@ se"])
    assert tokenizer.detokenize(ids) == ["house"]
    raw = load_tokenizer(out / "raw_tokenizers/source")
    assert raw.tokenize(["house"]) == ids and raw.moses


# --- Any corpus. ---


def test_corpus_splits_filters_and_doubles(tmp_path):
    pairs = [(f"a{i} b", f"c{i} d") for i in range(12)]
    pairs[3] = pairs[2]
    pairs[4] = ("a", "b c")
    pairs[5] = ("a b c d", "a b c d")
    recipe = corpus(
        "de", "en", [parallel(tmp_path, pairs)], tokenizer="none", ratio=1.5, most=3,
        deduplicate=True, valid_every=4, test_every=4,
    )  # fmt: skip
    out = tmp_path / "out"
    report = prepare(recipe, ".", out)
    kept = [list(pairs[i]) for i in (0, 1, 2, 6, 7, 8, 9, 10, 11)]
    assert rows_of(out, "valid") == [kept[3], kept[7]]
    assert rows_of(out, "test") == [kept[4], kept[8]]
    assert rows_of(out, "train") == [*kept[:3], *kept[5:7]]
    assert report["parts"][0] == {
        "part": "train.de", "split": "train", "lines": 12, "pairs": 12, "empty": 0,
        "more than 3 words": 1, "fewer than 1 words": 0, "length ratio above 1.5": 1,
        "word of more than 1000 characters": 0, "double of an earlier pair": 1,
        "to train": 5, "to valid": 2, "to test": 2,
    }  # fmt: skip
    assert report["vocabulary"] == {} and not (out / "tokenizers").exists()


def test_corpus_of_several_files_and_its_use(tmp_path):
    """Compressed files, words instead of byte pairs; the pipeline opens the folder."""
    first = parallel(tmp_path, [sentence(i) for i in range(10)], "a")
    second = parallel(tmp_path, [sentence(i) for i in range(10, 20)], "b")
    for path in second:
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    second = [f"{path}.gz" for path in second]
    valid = parallel(tmp_path, [("Neu\u2028es.", "New.")], "c")
    recipe = corpus(
        "de", "en", [first, second], valid=[valid], tokenizer="moses", lowercase=True,
        nwords=20, joined=False,
    )  # fmt: skip
    out = tmp_path / "out"
    prepare(recipe, ".", out)
    assert lines_of(out / "train.de") == [sentence(i)[0] for i in range(20)]
    assert lines_of(out / "valid.de") == ["Neu\u2028es."]
    assert not (out / "test.de").exists()
    tokenizer = load_tokenizer(out / "tokenizers/target")
    assert tokenizer.vocabulary_size == 24 and tokenizer.bpe_codes is None
    assert tokenizer.split("The House.") == ["the", "house", "."]
    from keras_seqconv.data import open_corpus

    opened = open_corpus(str(out), source_language="de", target_language="en")
    assert set(opened.splits) == {"train", "validation"}


# --- Interruptions. ---


def test_goes_on_after_an_interruption(iwslt, tmp_path, monkeypatch):
    folder, _ = iwslt
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepare(iwslt14(), folder, whole)

    def interrupted(*_):
        raise KeyboardInterrupt

    for name in ("learn_codes", "count_pieces"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(preparation, name, interrupted)
            prepare(iwslt14(), folder, out)
        assert not out.exists() and (tmp_path / "out.part").is_dir()
        with pytest.raises(ValueError, match="other inputs, options or packages"):
            prepare(iwslt14(), folder, out, tokenized=True)
    for name in ("read_pairs", "learn_codes"):  # nothing is done again
        monkeypatch.delattr(preparation, name)
    prepare(iwslt14(), folder, out)
    assert contents(out) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_doubles_of_a_part_that_was_finished_before(tmp_path, monkeypatch):
    parts = [
        parallel(tmp_path, [sentence(i) for i in numbers], name)
        for name, numbers in (("a", (0, 1, 2)), ("b", (3, 1, 4)))
    ]
    recipe = corpus("de", "en", parts, tokenizer="none", deduplicate=True)

    def interrupted(places, *rest):
        if places[0].path.name == "b.de":
            raise KeyboardInterrupt
        return read_pairs(places, *rest)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(preparation, "read_pairs", interrupted)
        prepare(recipe, ".", tmp_path / "out")
    prepare(recipe, ".", tmp_path / "out")
    kept = [list(sentence(i)) for i in (0, 1, 2, 3, 4)]
    assert rows_of(tmp_path / "out", "train") == kept


# --- Wrong inputs. ---


def test_missing_files_are_named_with_their_source(iwslt, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        prepare(iwslt14(), tmp_path, tmp_path / "out")
    assert "de-en/train.tags.de-en.de" in str(caught.value)
    assert "iwslt14/de-en.tgz" in str(caught.value)
    with pytest.raises(FileNotFoundError, match="No such file or folder"):
        prepare(iwslt14(), tmp_path / "nowhere", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    shown = listing(wmt14("en", "fr"), tmp_path)
    assert len(shown) == 12 and all(line.startswith("missing") for line in shown)
    assert "training-giga-fren.tar" in shown[8] and "wmt10" in shown[8]
    assert all(line.startswith("found") for line in listing(iwslt14(), iwslt[0]))
    optional = [line.split()[0] for line in listing(iwslt14("es"), tmp_path)]
    assert optional == ["missing"] * 2 + ["optional"] * 10


def test_files_of_different_length_give_both_counts(tmp_path):
    files = parallel(tmp_path, [("a", "b")] * 5000)
    write(files[1], ["b"] * 4001)
    for pair, numbers in (
        (files, r"de has 5,000, .*en has 4,001"),
        (files[::-1], r"en has 4,001, .*de has 5,000"),
    ):
        with pytest.raises(ValueError, match=numbers):
            prepare(corpus("de", "en", [pair]), ".", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.de", "train.en"]


def test_text_that_is_not_utf8(tmp_path):
    files = parallel(tmp_path, [("a b", "c d")] * 3)
    files[1].write_bytes(b"c d\nc \xff d\nc d\n")
    with pytest.raises(ValueError, match=r"train.en, pair 2, is not valid UTF-8"):
        prepare(corpus("de", "en", [files], tokenizer="none"), ".", tmp_path / "out")
    recipe = corpus("de", "en", [files], tokenizer="none", on_error="skip")
    report = prepare(recipe, ".", tmp_path / "out")
    assert report["parts"][0]["not UTF-8"] == 1
    assert lines_of(tmp_path / "out/train.de") == ["a b"] * 2
    # As in the papers' recipes.
    places, counts = [Place(file) for file in files], Counter()
    pairs = list(read_pairs(places, "plain", "replace", counts))
    assert pairs[1] == ["a b", "c \ufffd d"] and counts["not UTF-8, repaired"] == 1


def test_output_and_empty_results(tmp_path):
    files = parallel(tmp_path, [("a b c d", "b")] * 3)
    recipe = corpus("de", "en", [files], tokenizer="none", ratio=2)
    with pytest.raises(ValueError, match="keep at least one pair.*ratio above 2: 3"):
        prepare(recipe, ".", tmp_path / "out")
    with pytest.raises(ValueError, match="must be empty, not exist"):
        prepare(recipe, ".", tmp_path)
    for content in (b"no archive", gzip.compress(b"x" * 9999)[:20]):
        (tmp_path / "de-en.tgz").write_bytes(content)
        with pytest.raises(ValueError, match="complete tar file"):
            prepare(iwslt14(), tmp_path / "de-en.tgz", tmp_path / "out2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"a b\n" * 9999)[:40], "damaged or cut off after line"),
        (gzip.compress("a".encode("utf-16")), "pair 1, is not valid UTF-8"),
        (gzip.compress(b"x" * (17 << 20)), "line 1 has more"),
    ],
    # The header of gzip has the time: processes would call the cases otherwise.
    ids=["cut", "not UTF-8", "long"],
)
def test_broken_files_are_named(tmp_path, content, words):
    files = [tmp_path / "a.de.gz", tmp_path / "a.en.gz"]
    for file in files:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=f"a.de.gz.*{words}"):
        prepare(corpus("de", "en", [files]), ".", tmp_path / "out")
    pack(tmp_path / "a.tgz", tmp_path, ["a.de.gz"])
    members = [Place(tmp_path / "a.tgz", "a.de.gz")] * 2
    with pytest.raises(ValueError, match=f"a.tgz:a.de.gz.*{words}"):
        list(read_pairs(members, "plain", "raise", Counter()))


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({"tokenizer": "spacy"}, "tokenizer"),
        ({"ratio": 0.5}, "ratio"),
        ({"most": 0}, "most"),
        ({"valid_every": 1}, "valid_every"),
        ({"train": []}, "train"),
        ({"target": "de"}, "must differ"),
        ({"source": "../x"}, "source"),
        ({"valid": [("a", "b")], "valid_every": 9}, "not both"),
        ({"train": [("a.sgm", "b")]}, "both text or both segments"),
    ],
)
def test_wrong_arguments(arguments, problem):
    given = {"source": "de", "target": "en", "train": [("a", "b")], **arguments}
    with pytest.raises(ValueError, match=problem):
        corpus(**given)
