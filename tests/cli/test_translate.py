"""`keras-seqconv translate`: files, formats, one-line errors."""

import argparse
import dataclasses
import io
import os
import shutil
import subprocess
import sys

import pytest

import keras_seqconv as ks
from keras_seqconv.decoding.options import BeamOptions, SampleOptions
from keras_seqconv.devices import available_cores
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from keras_seqconv.translation import load_ensemble
from keras_seqconv_cli import translate
from tests.cli.commands import (
    call,
    loaded_once,  # noqa: F401
    make_language_model,
    make_translator,
    refused,
    write,
)
from tests.processes import COMMAND, ROOT, full_disk, run_python
from tests.small_models import TOKENIZER

LINES = ["w1 w2 w3", "", "w4 w5", "w6"]
pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Model directories and a file to translate."""
    folder = tmp_path_factory.mktemp("translate")
    make_translator().save(folder / "model", onnx=True)
    make_translator(seed=4).save(folder / "other")
    make_language_model().save(folder / "language")
    write(folder / "in.txt", *LINES)
    return folder


@pytest.fixture(scope="module")
def translator(folder, loaded_once):  # noqa: F811
    """The one that the commands load: what it has traced serves both."""
    return ks.load(str(folder / "model"))


def test_every_search_option_has_a_flag_but_what_translate_sets_itself():
    without = {
        field.name
        for options in (BeamOptions, SampleOptions)
        for field in dataclasses.fields(options)
        if not field.metadata["help"]
    }
    assert without == {"num_hypotheses", "num_samples", "return_attention"}
    parser = argparse.ArgumentParser()
    translate.add_arguments(parser)
    words = "m --not-normalized --suppressed-ids 5 6 --num-beams 3 --length-penalty 2"
    options = parser.parse_args(words.split())
    assert translate.search_options(options) == {
        "normalize": False, "suppressed_ids": [5, 6], "num_beams": 3,
        "length_penalty": 2.0,
    }  # fmt: skip


class Binary:
    """A standard stream of bytes."""

    def __init__(self, content=b""):
        self.buffer = io.BytesIO(content)

    def isatty(self):
        return False

    def flush(self):
        pass


@pytest.mark.filterwarnings("default::UserWarning")
def test_streams_and_search_options(folder, translator, tmp_path, capsys, monkeypatch):
    output, texts = Binary(), [*LINES, "w1 odd", "odd"]
    monkeypatch.setattr(sys, "stdin", Binary("\n".join(texts).encode()))
    monkeypatch.setattr(sys, "stdout", output)
    done = call(
        capsys, "translate", folder / "model", "--num-beams", 3, "--length-penalty",
        0.5, "--max-length", 5, "--min-length", 2, "--not-normalized", "--quiet",
        "--no-repeat-ngram-size", 2, "--suppressed-ids", 5, 6, "--unk-penalty", "-9",
        "--tokens-per-batch", 64, "--parallel-batches", 3, "--window", 2,
        "--replace-unknowns", "--alignment-dictionary",
        write(tmp_path / "pairs", "odd seltsam", "w1 W"),
    )  # fmt: skip
    told = "2 of 9 tokens are unknown to the model; texts with unknown tokens: 2"
    assert (done.status, done.errors) == (0, f"warning: {told}; unknown: 'odd'\n")
    expected = translator.translate(
        texts, 3, length_penalty=0.5, max_length=5, min_length=2, normalize=False,
        no_repeat_ngram_size=2, suppressed_ids=(5, 6), unk_penalty=-9.0,
        replace_unknowns=True, alignment_dictionary={"odd": "seltsam", "w1": "W"},
    )  # fmt: skip
    assert output.buffer.getvalue().decode().split("\n")[:-1] == expected
    assert "seltsam" in expected[-1]


def test_a_terminal_is_told_when_lines_can_be_typed(folder, capsys, monkeypatch):
    keyboard, output = Binary(b"w1 w2\n"), Binary()
    monkeypatch.setattr(keyboard, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(sys, "stdout", output)
    done = call(capsys, "translate", folder / "model")
    told = "Loading the model ...\rReady: type a line; Ctrl-D ends.\n"
    assert (done.status, done.errors) == (0, told)
    assert output.buffer.getvalue().count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "flags, parts", [((), min(available_cores(), 8)), (("--window", "1"), 1)]
)
def test_batches_do_not_share_cores(folder, translator, tmp_path, flags, parts):
    """In a new process, as TensorFlow must not run yet."""
    code = """
    import sys, keras_seqconv_cli
    assert keras_seqconv_cli.main() == 0
    import tensorflow as tf
    print(tf.config.threading.get_intra_op_parallelism_threads())
    """
    output = tmp_path / "out.txt"
    files = ["--input", folder / "in.txt", "--output", output, "--runtime", "keras"]
    done = run_python(code, "translate", folder / "model", *files, *flags)
    assert output.read_text().split("\n")[:-1] == translator.translate(LINES)
    expected = 0 if parts == 1 else max(1, available_cores() // parts)  # 0: all
    assert done.stdout == f"{expected}\n"


def test_files_and_formats(folder, translator, tmp_path, capsys):
    output = tmp_path / "out"
    for flags, first in (
        ((), " ".join(translator.translate(LINES[:1]))),
        (("--n-best", 2), "1\t-"),
        (("--scores",), "1\t-"),
        (("--attention",), '{"line": 1, "source": "w1 w2 w3", "source_tokens": ["w1",'),
    ):
        done = call(capsys, "translate", folder / "model", "--input",
                    folder / "in.txt", "--output", output, *flags)  # fmt: skip
        assert done.status == 0 and done.output == ""
        last = done.errors.splitlines()[-1]  # a slow machine prints progress before it
        assert last.startswith("4 lines, ") and "tokens/s" in last
        assert output.read_text().startswith(first)


@pytest.mark.slow
def test_ensembles_and_cut_lines(folder, translator, tmp_path, capsys):
    output, other = tmp_path / "out", make_translator(seed=4)
    options = ["--input", folder / "in.txt", "--output", output, "--quiet"]
    done = call(capsys, "translate", folder / "model", folder / "other", *options)
    both = ks.decoding.Ensemble([translator.model, other.model])
    expected = ks.Translator(both, TOKENIZER, TOKENIZER, translator.search)
    assert done.status == 0, done.errors
    translated = expected.translate(LINES)
    assert output.read_text().split("\n")[:-1] == translated
    for one in (translator, other):
        assert one.translate(LINES) != translated
    twice = [folder / "model", folder / "model", folder / "other"]
    models = load_ensemble(twice).model.models
    assert len(models) == 3
    words = DictionaryTokenizer(Dictionary((f"v{n}", 1) for n in range(26)))
    turned = ks.Translator(other.model, TOKENIZER, TOKENIZER, languages=("xx", "en"))
    turned.save(tmp_path / "turned")
    ks.Translator(other.model, TOKENIZER, words).save(tmp_path / "words")
    for path, message in (
        (tmp_path / "turned", r"same languages.*\('en', 'xx'\).*\('xx', 'en'\)"),
        (tmp_path / "words", "same target tokenizer. Received: .*model .*words "),
        (folder / "language", "same kind.*Translator.*LanguageGenerator"),
    ):
        with pytest.raises(ValueError, match=message):
            load_ensemble([folder / "model", path])
    with pytest.raises(ValueError, match="Received: none"):
        load_ensemble([])
    make_translator(max_length=4).save(tmp_path / "model")
    source = write(tmp_path / "in", "w1", "w1 w2 w3 w4 w5")
    done = call(capsys, "translate", tmp_path / "model", "--input", source,
                *options[2:])  # fmt: skip
    assert done.errors == (
        "warning: 1 lines, the first of them line 2, have more than the 4 tokens that "
        "are read, and were cut\n"
    )


def test_errors_in_one_line(folder, tmp_path, capsys):
    """What the library refuses is told by the names of flags."""
    model, source = folder / "model", folder / "in.txt"
    given = [model, "--input", source]
    (tmp_path / "bad").write_bytes(b"w1\n\xff\n")
    same = f"{source.parent}/./{source.name}"  # however it is spelled
    for arguments, words in (
        ([tmp_path / "none"], "There is no folder"),
        ([model, "--input", tmp_path / "none"], "none: No such file"),
        ([model, "--input", tmp_path / "bad"],
         '0xff at position 1 (--on-error "replace" goes on)'),
        ([*given, "--n-best", 3], "--n-best must be at most --num-b"),
        ([model, "--parallel-batches", 0], "--parallel-batches must be a positive"),
        ([*given, "--resume"], "--resume needs an --output that is"),
        ([*given, "--scores", "--format", "text"], "--scores needs"),
        ([*given, "--output", same], "--output must not be the --input"),
        ([model, "--alignment-dictionary", source], "needs --replace-unknowns"),
        ([folder / "language"], "is a language model, which has no source"),
        ([folder / "language", "--output", tmp_path / "no" / "out"],
         "no does not exist"),
        ([model, "--target-language", "en"], "--target-language must be that of"),
        ([model, "--sample", "--num-beams", 4], "--num-beams is of the beam search: "
         "not with --sample. Received: num_beams=4"),
        ([model, "--top-p", 0.5], "--top-p needs --sample"),
        ([*given, "--sample", "--top-p", 2], "--top-p must be a finite number > 0 and"),
        ([model, "--beams", "3"], "unknown option --beams. Did you mean --num-beams, "),
        (["--lenpen=1"], "unknown option --lenpen. Did you mean --length-penalty? "
         "(`keras-seqconv translate --help` lists"),
        (["--input", source, "--", "--beam"], "There is no folder --beam"),
        ([], "MODEL"),
    ):  # fmt: skip
        assert words in refused(capsys, "translate", *arguments), arguments


def test_draws(folder, translator, tmp_path, capsys):
    source, output = write(tmp_path / "in", *LINES * 5), tmp_path / "out"
    for options in ({"top_k": 9, "top_p": 0.9, "temperature": 2.0, "seed": 5}, {}):
        flags = [f"--{n.replace('_', '-')}={value}" for n, value in options.items()]
        call(capsys, "translate", folder / "model", "--input", source, "--output",
             output, "--sample", *flags)  # fmt: skip
        expected = translator.translate(LINES * 5, sample=True, **options)
        assert output.read_text().split("\n")[:-1] == expected
    assert len(set(expected)) > len(LINES)


@pytest.mark.slow
def test_a_model_is_quantized_before_it_translates(folder, tmp_path, capsys):
    model, output = tmp_path / "model", tmp_path / "out.txt"
    shutil.copytree(folder / "model", model)
    call(capsys, "translate", model, "--quantize", "int8", "--input",
         folder / "in.txt", "--output", output, "--quiet")  # fmt: skip
    used = ks.load(str(model))
    assert used.model.get_config()["changes"]["quantized"]
    assert output.read_text("utf-8").splitlines() == used.translate(LINES)


def test_generate(folder, capsys):
    options = ["generate", folder / "language", "--prompt", "w1 w2", "--seed", 3]
    options += ["--length", 9, "--top-k", 5, "--temperature", "0.8"]
    done = call(capsys, *options)
    assert done.status == 0 and done.output == call(capsys, *options).output
    expected = ks.load(str(folder / "language")).sample(
        "w1 w2", seed=3, top_k=5, temperature=0.8, max_length=9
    )
    assert done.output == f"{expected[0]}\n" and done.output.startswith("w1 w2")
    assert "translates" in refused(capsys, "generate", folder / "model")
    message = refused(capsys, "generate", *options[1:4], "--length", 1)
    assert "Each of --prompt must have at most 1 tokens" in message


def test_runs_that_break_off_go_on(folder, tmp_path, capsys, monkeypatch):
    """On a full disk, too: one line names the file."""
    source, output = write(tmp_path / "in", *LINES * 50), tmp_path / "out"
    options = ["translate", folder / "model", "--input", source, "--output", output,
               "--window", 4, "--quiet"]  # fmt: skip
    assert call(capsys, *options).status == 0
    expected = output.read_bytes()
    output.unlink()
    # At first there is no room for the note beside it.
    for size, file in ((400, "out.part.json"), (len(expected) // 2, "out.part")):
        with full_disk(size):
            error = refused(capsys, *options)
        assert error == f"error: {tmp_path / file}: File too large"
        assert not output.exists()
    assert "--resume goes on with it; remove it" in refused(capsys, *options)

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ks.Translator, "each_n_best", interrupt)
        done = call(capsys, *options, "--resume")
    assert done.status == 130 and "--resume goes on" in done.errors
    done = call(capsys, *options[:-1], "--resume")
    assert done.status == 0 and done.errors.startswith("resuming after ")
    assert output.read_bytes() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    if os.path.exists("/dev/full"):  # on Linux
        error = refused(capsys, *options[:4], "--output", "/dev/full", "--quiet")
        assert error == "error: /dev/full: No space left on device"


@pytest.mark.slow
def test_pipes(folder, translator):
    """In a process of its own: standard streams, and a reader that leaves."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    pipes["cwd"] = ROOT
    command = [sys.executable, "-c", COMMAND, "translate", str(folder / "model")]
    process = subprocess.Popen(command, **pipes)
    output, errors = process.communicate("\n".join(LINES).encode(), timeout=200)
    assert process.returncode == 0, errors
    assert output.decode().split("\n")[:-1] == translator.translate(LINES)
    command += ["--window", "1", "--quiet"]
    process = subprocess.Popen(command, **pipes)
    process.stdout.close()
    process.stdin.write(b"w1 w2\n" * 50)
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=200) == 141
