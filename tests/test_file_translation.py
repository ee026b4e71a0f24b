"""Files of any size: order, formats, resumed runs that end as if nothing had been."""

import functools
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import file_translation
from keras_seqconv.decoding import Ensemble
from keras_seqconv.ensembles import load_ensemble
from keras_seqconv.file_translation import read_lines, translate_file
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from tests.full_disk import full_disk

WORDS = [f"w{number}" for number in range(26)]
TOKENIZER = DictionaryTokenizer(Dictionary((word, 1) for word in WORDS))


@functools.cache
def make_translator(seed=3, **changes):
    model = ks.models.EncoderDecoder(
        30, 30, hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=1,
        num_decoder_layers=1, kernel_sizes=[3], seed=seed, **changes,
    )  # fmt: skip
    for weight in model.trainable_weights:  # clear preferences, so no ties
        weight.assign(2.5 * weight)
    return ks.Translator(model, TOKENIZER, TOKENIZER, {"num_beams": 2, "max_length": 8})


@pytest.fixture(scope="module")
def translator():
    import keras

    keras.utils.set_random_seed(1)
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


class Fails:
    """A translator that breaks off after some calls."""

    def __new__(cls, translator, calls, error=RuntimeError):
        broken = ks.Translator(
            translator.model, TOKENIZER, TOKENIZER, translator.search
        )
        original, left = broken.translate_n_best, [calls]

        def translate_n_best(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                raise error("broken off")
            return original(*arguments, **options)

        broken.translate_n_best = translate_n_best
        return broken


def write(path, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def lines_of(path):
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return content.decode().split("\n")[:-1]


# --- What is written ---


@pytest.mark.parametrize("window", (1, 7, 1000))
@pytest.mark.parametrize("suffix", ("", ".gz"))
def test_order_and_blank_lines(translator, known, tmp_path, window, suffix):
    lines, expected = known
    if window == 1:
        lines, expected = lines[-10:], expected[-10:]
    source = write(tmp_path / f"in.txt{suffix}", lines)
    target = tmp_path / f"out.txt{suffix}"
    report = translate_file(translator, source, target, window=window)
    assert lines_of(target) == expected
    assert (report.lines, report.resumed, report.cut) == (len(lines), 0, 0)
    assert report.tokens >= sum(len(text.split()) for text in expected)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(
        [source.name, target.name]
    )


def test_streams_and_odd_lines(translator):
    content = "\ufeffw1 w2\r\nw3\u2028w4\n\nw5\x0cw6 \r w7".encode()
    output = io.BytesIO()
    report = translate_file(translator, io.BytesIO(content), output)
    expected = translator.translate(["w1 w2", "w3\u2028w4", "", "w5\x0cw6 \r w7"])
    assert output.getvalue().decode() == "".join(f"{text}\n" for text in expected)
    assert report.lines == 4
    output = io.BytesIO()
    assert translate_file(translator, io.BytesIO(), output).lines == 0
    assert output.getvalue() == b""


def test_translations_hold_no_line_breaks(translator):
    class Breaking(DictionaryTokenizer):
        def detokenize(self, ids):
            return [f"a\nb\u2028\tc {len(row)}" for row in ids]

    breaking = ks.Translator(
        translator.model, TOKENIZER, Breaking(TOKENIZER.dictionary), translator.search
    )
    for format, tabs in (("text", 1), ("tsv", 2)):
        output = io.BytesIO()
        translate_file(breaking, io.BytesIO(b"w1\nw2\n"), output, format=format)
        text = output.getvalue().decode()
        assert len(text.splitlines()) == 2
        assert text.count("\t") == 2 * tabs


def test_n_best_with_scores(translator):
    lines, output = ["w1 w2 w3", "", "w4"], io.BytesIO()
    source = "\n".join(lines).encode()
    translate_file(translator, io.BytesIO(source), output, n_best=3, format="tsv",
                   num_beams=4)  # fmt: skip
    rows = [line.split("\t") for line in output.getvalue().decode().splitlines()]
    expected = translator.translate_n_best(lines, 3, 4)
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] + ["3"] * 3
    flat = [best for row in expected for best in row]
    assert [row[2] for row in rows] == [best.text for best in flat]
    assert [float(row[1]) for row in rows] == pytest.approx(
        [best.score for best in flat], abs=1e-4
    )


def test_objects_with_attention(translator):
    lines, output = ["w1 w2 w3", "", "w4"], io.BytesIO()
    translate_file(translator, io.BytesIO("\n".join(lines).encode()), output, n_best=2,
                   format="jsonl", attention=True)  # fmt: skip
    records = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["source"] for record in records] == lines
    assert records[0]["source_tokens"] == ["w1", "w2", "w3", "</s>"]
    best = translator.translate_n_best(lines, 2, return_attention=True)[0][1]
    found = records[0]["translations"][1]
    assert found["text"] == best.text and found["tokens"] == list(best.tokens)
    assert found["score"] == pytest.approx(best.score, abs=1e-4)
    assert np.allclose(found["positional_scores"], best.positional_scores, atol=1e-4)
    assert np.allclose(found["attention"], best.attention, atol=1e-4)
    assert np.shape(found["attention"]) == (len(best.tokens) + 1, 4)
    assert records[1]["translations"][0]["text"] == ""


def test_unknown_tokens(translator):
    lines = ["w1 strange w2", "odd"]
    for dictionary in (None, {"odd": "seltsam", "w1": "W"}):
        output = io.BytesIO()
        options = dict(replace_unknowns=True, alignment_dictionary=dictionary)
        source = io.BytesIO("\n".join(lines).encode())
        translate_file(translator, source, output, **options)
        expected = translator.translate(lines, **options)
        assert output.getvalue().decode().split("\n")[:-1] == expected


def test_long_lines_are_cut_and_counted():
    learned = make_translator(positions="learned", max_length=6)
    text = b"w1\nw1 w2 w3 w4 w5 w6 w7\n" + b"w1 w2 w3 w4 w5 w6\nw2\n"
    report = translate_file(learned, io.BytesIO(text), io.BytesIO())
    assert (report.cut, report.first_cut) == (2, 2)


@pytest.mark.slow
def test_ensembles(translator, tmp_path):
    other = make_translator(seed=4)
    translator.save(tmp_path / "a"), other.save(tmp_path / "b")
    both = load_ensemble([tmp_path / "a", tmp_path / "b"])
    expected = ks.Translator(
        Ensemble([translator.model, other.model]), TOKENIZER, TOKENIZER,
        translator.search,
    ).translate(["w1 w2", "w9"])  # fmt: skip
    output = io.BytesIO()
    translate_file(both, io.BytesIO(b"w1 w2\nw9\n"), output)
    assert output.getvalue().decode().splitlines() == expected
    assert type(load_ensemble([tmp_path / "a"]).model) is type(other.model)
    words = DictionaryTokenizer(Dictionary((f"v{n}", 1) for n in range(26)))
    ks.Translator(other.model, TOKENIZER, words).save(tmp_path / "c")
    with pytest.raises(ValueError, match="same target tokenizer; those of .*a and .*c"):
        load_ensemble([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(ValueError, match="Received: none"):
        load_ensemble([])


# --- Runs that break off ---


@pytest.mark.parametrize("suffix", ("", ".gz"))
def test_resumed_runs_end_with_the_same_file(translator, known, tmp_path, suffix):
    lines, expected = known
    source = write(tmp_path / "in.txt", lines)
    target = tmp_path / f"out.txt{suffix}"
    with pytest.raises(RuntimeError):
        translate_file(Fails(translator, 2), source, target, window=10)
    assert not target.exists()
    part, note = tmp_path / f"{target.name}.part", tmp_path / f"{target.name}.part.json"
    assert json.loads(note.read_text())["lines"] == 20
    # What a killed run wrote behind the last note.
    with open(part, "ab") as stream:
        stream.write(b"half a li")
    with pytest.raises(RuntimeError):
        translate_file(Fails(translator, 1), source, target, window=10, resume=True)
    seen = io.StringIO()
    report = translate_file(
        translator, source, target, window=10, resume=True, progress=seen
    )
    assert (report.lines, report.resumed) == (len(lines), 30)
    assert "resuming after 30 lines" in seen.getvalue()
    assert lines_of(target) == expected
    assert not part.exists() and not note.exists()
    # Nothing is left to go on with: a new run, and the same file.
    assert translate_file(translator, source, target, resume=True).resumed == 0
    assert lines_of(target) == expected


def test_killed_at_the_end_and_at_the_start(translator, known, tmp_path, monkeypatch):
    lines, expected = known
    source, target = write(tmp_path / "in.txt", lines), tmp_path / "out.txt"
    rename = os.replace

    def no_rename(old, new):
        if str(new) == str(target):
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "replace", no_rename)
    with pytest.raises(KeyboardInterrupt):
        translate_file(translator, source, target)
    monkeypatch.undo()
    assert not target.exists()
    report = translate_file(Fails(translator, 0), source, target, resume=True)
    assert report.resumed == len(lines) and lines_of(target) == expected
    # A part without a note holds nothing that counts.
    (tmp_path / "new.part").write_text("rest")
    translate_file(translator, source, tmp_path / "new")
    assert lines_of(tmp_path / "new") == expected
    with pytest.raises(RuntimeError):
        translate_file(Fails(translator, 0), source, tmp_path / "none")
    assert not list(tmp_path.glob("none*"))


def test_an_older_file_stays_until_the_new_one_is_complete(translator, tmp_path):
    source, target = write(tmp_path / "in", ["w1"] * 9), write(tmp_path / "out", ["x"])
    with pytest.raises(RuntimeError):
        translate_file(Fails(translator, 1), source, target, window=4)
    assert lines_of(target) == ["x"]
    with pytest.raises(ValueError, match=r"4 translated lines.*`resume` goes on"):
        translate_file(translator, source, target, window=4)
    translate_file(translator, source, target, window=4, resume=True)
    assert len(lines_of(target)) == 9


def test_a_full_disk_is_named_and_resumed(translator, known, tmp_path):
    lines, expected = known
    source, target = write(tmp_path / "in.txt", lines * 3), tmp_path / "out.txt"
    half = len("".join(f"{text}\n" for text in expected)) * 3 // 2
    with pytest.raises(OSError) as error, full_disk(half):
        translate_file(translator, source, target, window=20)
    assert error.value.filename == f"{target}.part"
    assert translate_file(translator, source, target, window=20, resume=True).resumed
    assert lines_of(target) == expected * 3


@pytest.mark.parametrize("resume", (False, True))
def test_a_second_run_with_the_same_output_ends(translator, known, tmp_path, resume):
    lines, expected = known
    source, target = write(tmp_path / "in.txt", lines), tmp_path / "out.txt"
    ended = []

    class Meanwhile(io.StringIO):
        def write(self, text):
            with pytest.raises(ValueError, match="out.txt.part is being written by"):
                translate_file(translator, source, target, resume=resume)
            ended.append(text)

    clock = iter(range(0, 10_000, 60))
    with pytest.MonkeyPatch.context() as patch:  # a sign of progress in each window
        patch.setattr(file_translation, "monotonic", lambda: next(clock))
        translate_file(translator, source, target, window=20, progress=Meanwhile())
    assert len(ended) > 3
    assert lines_of(target) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


@pytest.mark.parametrize("rest", (None, b""))
def test_a_note_without_a_part_is_no_run(translator, known, tmp_path, rest):
    """As a kill behind the renaming leaves it, and one more before the first window."""
    lines, expected = known
    source, target = write(tmp_path / "in.txt", lines), tmp_path / "out.txt"
    part = tmp_path / "out.txt.part"
    with pytest.raises(RuntimeError):
        translate_file(Fails(translator, 1), source, target, window=10)
    part.unlink() if rest is None else part.write_bytes(rest)
    (tmp_path / ".out.txt.part.json.0123abcd.part").touch()
    translate_file(translator, source, target)
    assert lines_of(target) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_another_input_or_other_settings_are_not_resumed(translator, tmp_path):
    source, target = write(tmp_path / "in", ["w1", "w2", "w3"] * 3), tmp_path / "out"
    with pytest.raises(RuntimeError):
        translate_file(Fails(translator, 1), source, target, window=4)
    options = dict(window=4, resume=True)
    with pytest.raises(ValueError, match=r"differ in: max_length, window\."):
        translate_file(translator, source, target, resume=True, window=5, max_length=7)
    with pytest.raises(ValueError, match=r"differ in: model\."):
        translate_file(make_translator(seed=5), source, target, **options)
    for lines in (["w1", "w2", "w4"] * 3, ["w1"]):
        other = write(tmp_path / "other", lines)
        with pytest.raises(ValueError, match="The first 4 lines of .*other must be"):
            translate_file(translator, other, target, **options)
    # More lines behind those that were read are no other input.
    more = write(tmp_path / "more", ["w1", "w2", "w3"] * 4)
    assert translate_file(translator, more, target, **options).lines == 12
    (tmp_path / "out.part").write_bytes(b"w")
    (tmp_path / "out.part.json").write_text('{"lines": 3}')
    with pytest.raises(ValueError, match="do not fit each other"):
        translate_file(translator, source, target, **options)


KILLED = """
    import sys
    sys.path.insert(0, {root!r})
    from tests.test_file_translation import make_translator, translate_file
    import keras
    keras.utils.set_random_seed(1)
    print("ready", flush=True)
    translate_file(make_translator(), sys.argv[1], sys.argv[2], window=50, resume=True)
"""


@pytest.mark.slow
def test_killed_again_and_again(translator, tmp_path):
    lines = random_lines(3000)
    source, target = write(tmp_path / "in", lines), tmp_path / "out"
    root = str(Path(__file__).parents[1])
    code = textwrap.dedent(KILLED.format(root=root))
    # By lines and not by seconds: machines differ in speed.
    for kill_behind in (1, 700, 1600, None):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(source), str(target)],
            stdout=subprocess.PIPE, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        while kill_behind is not None and process.poll() is None:
            part = tmp_path / "out.part"
            if part.exists() and part.read_bytes().count(b"\n") >= kill_behind:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.001)
        process.wait(timeout=300)
        assert process.returncode == (0 if kill_behind is None else -signal.SIGKILL)
        assert target.exists() == (kill_behind is None)
    assert lines_of(target) == translator.translate(lines)


# --- Memory ---

ECHOES = """
import resource, sys
from keras_seqconv.translator import Translation, Translator
from keras_seqconv_cli import main

def echo(self, texts, *_, **__):
    return [[Translation(text, 0.0, (), ())] for text in texts]

Translator.translate_n_best = echo
for name in ("few", "many"):
    files = ["--input", name, "--output", f"{name}.out"]
    assert main(["translate", "model", *files, "--quiet"]) == 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(translator, tmp_path):
    """60 MB in a process of its own; what is translated is not the point."""
    translator.save(tmp_path / "model")
    for name, count in (("few", 20_000), ("many", 200_000)):
        write(tmp_path / name, (f"{number:>300}" for number in range(count)))
    done = subprocess.run(
        [sys.executable, "-c", ECHOES], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "many.out").read_bytes() == (tmp_path / "many").read_bytes()
    few, many = map(int, done.stdout.split())  # KB
    assert many - few < 20_000


# --- Progress ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(file_translation, "_CHUNK", 8)
    source = write(tmp_path / "in", random_lines(40))
    seen = io.StringIO()
    translate_file(translator, source, tmp_path / "out", progress=seen)
    # Ten seconds have not passed: one line, at the end.
    assert seen.getvalue().count("\n") == 1 and "\r" not in seen.getvalue()
    assert seen.getvalue().startswith("40 lines, ")
    for words in ("sentences/s", "tokens/s", "100 %", "0:00 left"):
        assert words in seen.getvalue()
    seen, clock = io.StringIO(), iter(range(0, 10_000, 6))
    monkeypatch.setattr(file_translation, "monotonic", lambda: next(clock))
    translate_file(translator, source, tmp_path / "out", progress=seen)
    assert [line.split(",")[0] for line in seen.getvalue().splitlines()] == [
        "16 lines", "32 lines", "40 lines",
    ]  # fmt: skip
    assert "0.9 sentences/s" in seen.getvalue() and "0:10 left" in seen.getvalue()
    seen, clock = Terminal(), iter(range(0, 10_000, 6))
    translate_file(translator, source, tmp_path / "out", progress=seen)
    assert seen.getvalue().count("\n") == 1 and seen.getvalue().count("\r") == 6


# --- Refused ---


def test_input_that_is_no_text(translator, tmp_path):
    for content, words in (
        (b"w1\nw2 \xff\n", "line 2 has the byte 0xff at position 4"),
        (b"w1\n" + b"x" * (1 << 24) + b"yz\n", "line 2 has more. Is it a text?"),
    ):
        with pytest.raises(ValueError) as error:
            translate_file(translator, io.BytesIO(content), io.BytesIO())
        assert words in str(error.value)
    output = io.BytesIO()
    source = io.BytesIO(b"w1\nw2 \xff\n")
    translate_file(translator, source, output, on_error="replace")
    expected = translator.translate(["w1", "w2 \ufffd"])
    assert output.getvalue().decode().splitlines() == expected
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"w1\n" * 5000)[:-9])
    with pytest.raises(ValueError, match="cut.gz is damaged or cut off"):
        translate_file(translator, tmp_path / "cut.gz", io.BytesIO())


def test_wrong_files(translator, tmp_path):
    source = write(tmp_path / "in", ["w1"])
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        translate_file(translator, tmp_path / "nowhere", io.BytesIO())
    with pytest.raises(IsADirectoryError):
        translate_file(translator, tmp_path, io.BytesIO())
    with pytest.raises(IsADirectoryError):
        translate_file(translator, source, tmp_path)
    with pytest.raises(FileNotFoundError, match="The folder .* does not exist"):
        translate_file(translator, source, tmp_path / "no" / "out")
    with pytest.raises(ValueError, match="must not be the `input`"):
        translate_file(translator, source, source)
    assert lines_of(source) == ["w1"]
    # A device is written to, not replaced.
    translate_file(translator, source, "/dev/null")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "options, words",
    (
        ({"n_best": 0, "format": "tsv"}, "`n_best` must be a positive integer"),
        ({"n_best": 3, "format": "tsv"}, "n_best=3, num_beams=2"),
        ({"n_best": 2}, '`format` "tsv"'),
        ({"format": "xml"}, "`format` must be one of"),
        ({"attention": True}, '`attention` needs the `format` "jsonl"'),
        ({"window": 0}, "`window` must be a positive integer"),
        ({"on_error": "skip"}, "`on_error` must be one of"),
        ({"resume": True}, "`resume` needs an `output`"),
        ({"num_beams": 0}, "`num_beams`"),
    ),
)
def test_wrong_options(translator, options, words):
    with pytest.raises(ValueError) as error:
        translate_file(translator, io.BytesIO(b"w1\n"), io.BytesIO(), **options)
    assert words in str(error.value)


def test_language_models_do_not_translate():
    model = ks.models.ConvLanguageModel(30, embedding_dim=4, convolutions="[(4, 2)]")
    generator = ks.LanguageGenerator(model, TOKENIZER)
    with pytest.raises(ValueError, match="Received: LanguageGenerator"):
        translate_file(generator, io.BytesIO(), io.BytesIO())
    with pytest.raises(ValueError, match="`input` must be a binary stream"):
        translate_file(make_translator(), io.StringIO(), io.BytesIO())


def test_read_lines(tmp_path):
    path = write(tmp_path / "a.gz", ["ä b", "", "c"])
    assert read_lines(path) == ["ä b", "", "c"]
