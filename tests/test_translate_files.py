"""Files of any size: order, formats, resumed runs that end as if nothing had been."""

import gzip
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.support.files import read_lines
from keras_seqconv.tokenizers import DictionaryTokenizer
from keras_seqconv.translation.translate_files import translate_file
from tests.cli.commands import make_translator
from tests.small_models import TOKENIZER, WORDS

DRAWN = {"sample": True, "temperature": 2.0, "top_k": 9, "seed": 3}


@pytest.fixture(scope="module")
def translator():
    return make_translator()


def random_lines(count, longest=12):
    draw = np.random.default_rng(count)
    return [
        " ".join(draw.choice(WORDS, draw.integers(0, longest))) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def known(translator):
    """Lines and their translations, by the translator itself."""
    lines = [*random_lines(40), "", "  ", *random_lines(5)]
    return lines, translator.translate(lines)


def calling(translator, before):
    """A translator that calls `before` with the number of each window, from 1."""
    other = ks.Translator(translator.model, TOKENIZER, TOKENIZER, translator.search)
    original, calls = other.each_n_best, []

    def each_n_best(*arguments, **options):
        calls.append(True)
        before(len(calls))
        return original(*arguments, **options)

    other.each_n_best = each_n_best
    return other


def break_off(translator, windows, *arguments, **options):
    """A run that breaks off after some windows."""

    def before(call):
        if call > windows:
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        translate_file(calling(translator, before), *arguments, **options)


def write(path, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def translated(translator, content, **options):
    """The output as text, and the report."""
    output = io.BytesIO()
    report = translate_file(translator, io.BytesIO(content), output, **options)
    return output.getvalue().decode(), report


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- What is written ---


@pytest.mark.parametrize("window, suffix", ((1, ""), (7, ".gz"), (1000, "")))
def test_order_and_blank_lines(translator, known, tmp_path, window, suffix):
    lines, expected = (part[-10:] if window == 1 else part for part in known)
    source = write(tmp_path / f"in.txt{suffix}", lines)
    target = tmp_path / f"out.txt{suffix}"
    report = translate_file(translator, source, target, window=window)
    assert read_lines(target) == expected
    assert (report.lines, report.resumed, report.cut) == (len(lines), 0, 0)
    assert report.tokens >= sum(len(text.split()) for text in expected)
    assert names(tmp_path) == [source.name, target.name]


def test_draws_depend_on_the_seed_and_the_line(translator, known):
    lines = [*known[0], *["w1 w2"] * 9]
    expected = translator.translate(lines, **DRAWN)
    assert len(set(expected[-9:])) > 3
    assert expected != translator.translate(lines, **{**DRAWN, "seed": 4})
    small = {"tokens_per_batch": 32, "parallel_batches": 3}
    small = ks.Translator(
        translator.model, TOKENIZER, TOKENIZER, translator.search, **small
    )
    content = "\n".join(lines).encode()
    text, _ = translated(small, content, window=7, **DRAWN)
    assert text.splitlines() == expected
    with pytest.raises(ValueError, match="`seed` must be an integer >= 0"):
        translated(translator, content, sample=True, seed=-1)


def test_streams_and_odd_lines(translator):
    content = "\ufeffw1 w2\r\nw3\u2028w4\n\nw5\x0cw6 \r w7".encode()
    output, report = translated(translator, content)
    expected = translator.translate(["w1 w2", "w3\u2028w4", "", "w5\x0cw6 \r w7"])
    assert output == "".join(f"{text}\n" for text in expected) and report.lines == 4
    assert translated(translator, b"")[0] == ""


def test_translations_hold_no_line_breaks_and_no_nul(translator):
    class Breaking(DictionaryTokenizer):
        def detokenize(self, ids):
            return [f"a\nb\u2028\tc\0 {len(row)}" for row in ids]

    breaking = ks.Translator(
        translator.model, TOKENIZER, Breaking(TOKENIZER.dictionary), translator.search
    )
    for format, tabs in (("text", 1), ("tsv", 2)):
        text, _ = translated(breaking, b"w1\nw2\n", format=format)
        assert len(text.splitlines()) == 2 and text.count("\t") == 2 * tabs
        assert "\0" not in text


def test_records_are_lines_to_every_reader(translator, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("w1\u2028w2\nw3\x85w4\n", encoding="utf-8")
    translate_file(translator, source, target, format="jsonl")
    lines = target.read_text(encoding="utf-8").splitlines()
    sources = [json.loads(line)["source"] for line in lines]
    assert sources == ["w1\u2028w2", "w3\x85w4"]


def test_pipes_without_a_name_are_written_to(translator, known, tmp_path):
    source, (read, written) = write(tmp_path / "in", ["w1", "w2"]), os.pipe()
    translate_file(translator, source, f"/dev/fd/{written}")
    os.close(written)
    with open(read, encoding="utf-8") as stream:
        assert stream.read().splitlines() == translator.translate(["w1", "w2"])


def test_formats(translator):
    lines = ["w1 w2 w3", "", "w4"]
    content = "\n".join(lines).encode()
    text, _ = translated(translator, content, n_best=3, format="tsv", num_beams=4)
    rows = [line.split("\t") for line in text.splitlines()]
    best = translator.translate_n_best(lines, 3, 4)
    flat = [(str(n), one) for n, row in enumerate(best, 1) for one in row]
    assert [(row[0], row[2]) for row in rows] == [(n, one.text) for n, one in flat]
    scores = [float(row[1]) for row in rows]
    assert scores == pytest.approx([one.score for _, one in flat], abs=1e-4)
    options = {"n_best": 2, "format": "jsonl", "attention": True}
    text, _ = translated(translator, content, **options)
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["source"] for record in records] == lines
    assert records[0]["source_tokens"] == ["w1", "w2", "w3", "</s>"]
    best = translator.translate_n_best(lines, 2, return_attention=True)[0][1]
    found = records[0]["translations"][1]
    assert found["text"] == best.text and found["tokens"] == list(best.tokens)
    for name in ("score", "positional_scores", "attention"):
        assert np.allclose(found[name], getattr(best, name), atol=1e-4)
    assert np.shape(found["attention"]) == (len(best.tokens) + 1, 4)
    assert records[1]["source_tokens"] == ["</s>"]
    (empty,) = records[1]["translations"]
    assert (empty["text"], empty["tokens"], empty["attention"]) == ("", [], [])


def test_a_window_is_read_at_a_time(translator):
    """However long the input is."""
    source, written = io.BytesIO(b"w1\n" * 40), []

    class Output(io.BytesIO):
        def write(self, content):
            written.append(source.tell() // 3)
            return super().write(content)

    translate_file(translator, source, Output(), window=10)
    assert written == [10, 20, 30, 40]


# --- Runs that break off ---


@pytest.mark.parametrize(
    "suffix, options",
    (
        ("", {}),
        (".gz", {"format": "tsv", "n_best": 2, **DRAWN}),
        ("", {"format": "jsonl"}),
    ),
)
def test_resumed_runs_end_with_the_same_file(
    translator, known, tmp_path, suffix, options
):
    source, target = write(tmp_path / "in", known[0]), tmp_path / f"out{suffix}"
    options = {**options, "window": 10}
    translate_file(translator, source, tmp_path / "whole", **options)
    rows = read_lines(tmp_path / "whole")
    part = tmp_path / f"{target.name}.part"
    options["resume"] = True
    break_off(translator, 2, source, target, **options)
    assert read_lines(part) == rows[: len(read_lines(part))] and not target.exists()
    # A killed run wrote of the next window but noted nothing.
    part.write_bytes(part.read_bytes() + b"half of a wind\n21")
    break_off(translator, 0, source, target, **options)
    seen = io.StringIO()
    report = translate_file(translator, source, target, progress=seen, **options)
    assert (report.lines, report.resumed) == (len(known[0]), 20)
    assert "resuming after 20 lines" in seen.getvalue()
    assert read_lines(target) == rows
    assert names(tmp_path) == sorted(["in", "whole", target.name])
    # Nothing is left to go on with: a new run, and the same file.
    assert translate_file(translator, source, target, **options).resumed == 0


def test_killed_at_the_end_and_at_the_start(translator, known, tmp_path, monkeypatch):
    lines, expected = known
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    rename = os.replace

    def no_rename(old, new):
        if str(new) == str(target):
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", no_rename)
        translate_file(translator, source, target, window=len(lines))
    assert not target.exists()
    options = {"window": len(lines), "resume": True}
    report = translate_file(translator, source, target, **options)
    assert report.resumed == len(lines) and read_lines(target) == expected
    # A part without a note holds nothing that counts.
    target.rename(tmp_path / "out.part")
    break_off(translator, 0, source, target)
    # Nor does a note without its part, as a kill behind the renaming leaves it, or a
    # system that lost what it wrote.
    for rest in (None, b"", b"w"):
        break_off(translator, 1, source, target, window=4)
        part = tmp_path / "out.part"
        part.unlink() if rest is None else part.write_bytes(rest)
        break_off(translator, 0, source, target)
        assert names(tmp_path) == ["in"]


def test_an_older_file_stays_and_only_one_run_writes(translator, tmp_path):
    source, target = write(tmp_path / "in", ["w1"] * 9), write(tmp_path / "out", ["x"])
    break_off(translator, 1, source, target, window=4)
    assert read_lines(target) == ["x"]
    with pytest.raises(ValueError, match="broke off: `resume` goes on with it"):
        translate_file(translator, source, target, window=4)
    calls = []

    def before(call):
        calls.append(call)
        with pytest.raises(ValueError, match="out.part is being written by"):
            translate_file(translator, source, target, resume=True)

    once = calling(translator, before)
    report = translate_file(once, source, target, window=4, resume=True)
    assert report.resumed == 4 and calls == [1, 2] and len(read_lines(target)) == 9
    assert names(tmp_path) == ["in", "out"]


def test_another_input_or_other_settings_are_not_resumed(translator, tmp_path):
    source, target = write(tmp_path / "in", ["w1", "w2", "w3"] * 3), tmp_path / "out"
    break_off(translator, 1, source, target, window=4)
    options = {"window": 4, "resume": True}
    with pytest.raises(ValueError, match=r"differ in: max_length, window\."):
        translate_file(translator, source, target, resume=True, window=5, max_length=7)
    with pytest.raises(ValueError, match=r"differ in: model\."):
        other = make_translator.func.__wrapped__(*make_translator.args)
        other.model.trainable_weights[0].assign(1 + other.model.trainable_weights[0])
        translate_file(other, source, target, **options)
    parts = translator.model, TOKENIZER, TOKENIZER, translator.search
    cut = ks.Translator(*parts, max_source_length=3)
    with pytest.raises(ValueError, match=r"differ in: max_source_length\."):
        translate_file(cut, source, target, **options)
    content, times = source.read_bytes(), os.stat(source)
    for changed, modified in ((content + b"w4\n", 0), (content, 1)):
        source.write_bytes(changed)
        os.utime(source, ns=(0, times.st_mtime_ns + modified))
        with pytest.raises(ValueError, match=r"differ in: input\."):
            translate_file(translator, source, target, **options)
    os.utime(source, ns=(0, times.st_mtime_ns))
    # The same file as a stream is known again.
    with open(source, "rb") as stream:
        assert translate_file(translator, stream, target, **options).resumed == 4


# --- Refused ---


def test_wrong_files(translator, tmp_path):
    for content, words in (
        (b"w1\nw2 \xff\n", "line 2 has the byte 0xff at position 4"),
        (b"w1\n" + b"x" * (1 << 24) + b"yz\n", "line 2 has more. Is it a text?"),
    ):
        with pytest.raises(ValueError, match=words):
            translated(translator, content)
    text, _ = translated(translator, b"w1\nw2 \xff\n", on_error="replace")
    assert text.splitlines() == translator.translate(["w1", "w2 \ufffd"])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"w1\n" * 5000)[:-9])
    with pytest.raises(ValueError, match="cut.gz is damaged or cut off"):
        translate_file(translator, tmp_path / "cut.gz", io.BytesIO())
    source = write(tmp_path / "in", ["w1"])
    # A device is written to, not replaced.
    translate_file(translator, source, "/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(ValueError, match="`resume` needs an `output`"):
        translate_file(translator, source, "/dev/null", resume=True)


def test_a_damaged_note_and_an_output_that_takes_nothing(translator, tmp_path):
    source, target = write(tmp_path / "in", ["w1", "w2", "w3"] * 3), tmp_path / "out"
    break_off(translator, 1, source, target, window=4)
    (tmp_path / "out.part.json").write_text("{}")
    with pytest.raises(ValueError, match="out.part.json is damaged: remove it"):
        translate_file(translator, source, target, window=4, resume=True)

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, content):
            return None

    with pytest.raises(BlockingIOError):
        translate_file(translator, source, Full())


def test_long_lines_are_cut_and_counted():
    learned = make_translator(max_length=6)
    text = b"w1\nw1 w2 w3 w4 w5 w6 w7\n" + b"w1 w2 w3 w4 w5 w6\nw2\n"
    _, report = translated(learned, text)
    assert (report.cut, report.first_cut) == (2, 2)
    parts = learned.model, TOKENIZER, TOKENIZER, learned.search
    chosen = ks.Translator(*parts, max_source_length=3)
    assert translated(chosen, text)[1].cut == 0  # as in `Translator.translate`
    ids = ks.Translator(learned.model)
    for call in (lambda: translated(ids, text), lambda: ids.translate(["w1"])):
        with pytest.raises(ValueError, match="This model has no tokenizers"):
            call()
    with pytest.raises(ValueError, match="`seed` must be at most"):
        learned.translate(["w1"], sample=True, seed=2**63)
    assert len(learned.translate(["w1"], sample=True, seed=2**63 - 1)) == 1
