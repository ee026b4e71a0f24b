"""`keras-seqconv convert-fairseq`: directories from checkpoints, and clear refusals."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import keras_seqconv as ks
import keras_seqconv_cli as cli
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from tests.convert.random_checkpoints import (
    TARGET_VOCABULARY,
    random_convolutional,
    write_checkpoint,
)

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.tensorflow


MAIN = "import sys; from keras_seqconv_cli import main; sys.exit(main())"


def start(*arguments, code=MAIN):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(code),
            "convert-fairseq",
            *map(str, arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def convert(*arguments):
    return cli.main(["convert-fairseq", *map(str, arguments)])


@pytest.fixture
def archive(golden, tmp_path):
    """A folder as fairseq's archives are, but with arrays for the checkpoint."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for name in ("weights.npz", "args.json"):
        shutil.copy(golden / "dynamicconv_2019" / name, folder)
    for side in "st":
        shutil.copy(golden / "dynamicconv_2019" / f"dict.{side}.txt", folder)
    return folder


@pytest.fixture
def language_model(tmp_path):
    folder = tmp_path / "language"
    folder.mkdir()
    options = dict(arch="fconv_lm", decoder_embed_dim=6, decoder_layers="[(6, 3)]")
    options["decoder_attention"] = "False"
    write_checkpoint(folder, random_convolutional(options), options)
    words = TARGET_VOCABULARY - 4
    Dictionary((f"w{i}", 1) for i in range(words)).write(folder / "dict.txt")
    return folder


# --- What it makes ---


@pytest.mark.slow
def test_checkpoint_file_in_a_process_of_its_own(golden, tmp_path):
    pytest.importorskip("torch", reason="needs the extra convert (torch)")
    folder = golden / "lightconv_glu"
    output = tmp_path / "runs" / "my model"
    process = start(
        folder / "checkpoint.pt", "--source-dictionary", folder / "dict.s.txt",
        "--target-dictionary", folder / "dict.t.txt", "--output", output,
    )  # fmt: skip
    printed, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    for words in (
        "EncoderDecoder of light_conv", "parameters    9,664", "source 37, target 37",
        "num_beams 5, length_penalty 1.0, max_length 200", str(output),
    ):  # fmt: skip
        assert words in printed
    # The last line can be pasted.
    command = printed.splitlines()[-1].strip().replace("python -c", "exec python -c", 1)
    command = command.replace("...", "t5 t6 t7")
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}",
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    expected = ks.load(output).translate(["t5 t6 t7"])
    assert done.stdout.strip().endswith(str(expected))


def test_folder_names_its_files(archive, tmp_path, capsys):
    """Languages from the options of the checkpoint, or else from the command."""
    output = tmp_path / "out"
    assert json.loads((archive / "args.json").read_text())["source_lang"] == "s"
    assert convert(archive, "--output", output) == 0
    assert "source 37, target 41" in capsys.readouterr().out
    translator = ks.load(output)
    assert (translator.source_language, translator.target_language) == ("s", "t")
    by_hand = ks.convert.from_fairseq(archive)
    for mine, theirs in zip(translator.model.weights, by_hand.weights, strict=True):
        assert (mine.numpy() == theirs.numpy()).all()
    assert translator.source_tokenizer.dictionary == Dictionary.read(
        archive / "dict.s.txt"
    )
    assert translator.target_tokenizer.vocabulary_size == 41
    assert translator.source_tokenizer.bpe_codes is None
    # Again over what is there: refused, then asked for.
    assert convert(archive, "--output", output) == 2
    assert "overwrite" in capsys.readouterr().err
    assert convert(archive, "--output", output, "--overwrite") == 0


@pytest.mark.slow
def test_published_checkpoint_is_found_in_its_folder(golden, archive, tmp_path):
    pytest.importorskip("torch", reason="needs the extra convert (torch)")
    for name in ("weights.npz", "args.json"):
        (archive / name).unlink()
    shutil.copy(golden / "dynamicconv_2019" / "checkpoint.pt", archive / "best.pt")
    languages = ("--source-language", "s", "--target-language", "t")
    assert convert(archive, *languages, "--output", tmp_path / "out") == 0
    (archive / "other.pt").write_bytes(b"not this one")
    (archive / "best.pt").rename(archive / "model.pt")
    assert convert(archive, *languages, "--output", tmp_path / "two") == 0
    names = [(tmp_path / name / "model.weights.h5") for name in ("out", "two")]
    assert ks.load(names[0].parent).translate(["t5"], max_length=4) == ks.load(
        names[1].parent
    ).translate(["t5"], max_length=4)


def test_text_front_end(archive, tmp_path, capsys):
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    pytest.importorskip("subword_nmt", reason="needs the extra mt")
    codes = "#version: 0.2\nt 1\nt1 2</w>\n"
    (archive / "bpecodes").write_text(codes)
    for side, language in (("s", "de"), ("t", "en")):
        (archive / f"dict.{side}.txt").rename(archive / f"dict.{language}.txt")
    arguments = (
        archive, "--source-language", "de", "--target-language", "en", "--moses",
        "--normalize", "--no-dash-splits", "--lowercase", "--output", tmp_path / "out",
    )  # fmt: skip
    assert convert(*arguments) == 0
    translator = ks.load(tmp_path / "out")
    expected = DictionaryTokenizer(
        Dictionary.read(archive / "dict.de.txt"), language="de", moses=True,
        normalize=True, aggressive_dash_splits=False, lowercase=True, bpe_codes=codes,
    )  # fmt: skip
    text = "T12 t1-t2, „t12“!"
    assert translator.source_tokenizer.split(text) == expected.split(text)
    assert translator.source_tokenizer.language == "de"
    assert translator.target_tokenizer.language == "en"
    assert translator.target_tokenizer.bpe_codes == codes
    (archive / "mine").write_text("#version: 0.2\nt 2\n")
    (archive / "bad").write_bytes(b"\xff\xfe")
    assert (
        convert(*arguments, "--overwrite", "--target-bpe-codes", archive / "mine") == 0
    )
    translator = ks.load(tmp_path / "out")
    assert translator.target_tokenizer.bpe_codes == "#version: 0.2\nt 2\n"
    assert translator.source_tokenizer.bpe_codes == codes
    capsys.readouterr()
    assert convert(*arguments, "--overwrite", "--bpe-codes", archive / "bad") == 2
    assert "bad must be valid UTF-8" in capsys.readouterr().err


def test_byte_pairs_without_codes(archive, tmp_path, capsys):
    pytest.importorskip("subword_nmt", reason="needs the extra mt")
    dictionary = archive / "dict.t.txt"
    dictionary.write_text(dictionary.read_text().replace("t5 ", "t5@@ ", 1))
    output = tmp_path / "out"
    assert convert(archive, "--output", output) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: ") and "such as 't5@@'" in warning
    assert warning.endswith("Give --bpe-codes")
    codes = "#version: 0.2\nt 1\n"
    for name in ("code", "codes", "codes.32000"):
        (archive / name).write_text(codes)
        assert convert(archive, "--output", output, "--overwrite") == 0
        assert capsys.readouterr().err == ""
        (archive / name).unlink()
    assert ks.load(output).source_tokenizer.bpe_codes == codes
    for name in ("bpecodes", "codes.de"):
        (archive / name).write_text(codes)
    words = "archive holds bpecodes, codes.de. Give --bpe-codes"
    check_refused(capsys, tmp_path / "x", [archive], words)
    arguments = ("--bpe-codes", archive / "codes.de", "--overwrite")
    assert convert(archive, "--output", output, *arguments) == 0


def test_language_model(language_model, archive, tmp_path, capsys):
    assert convert(language_model, "--output", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "ConvLanguageModel" in printed and "generate(" in printed
    generator = ks.load(tmp_path / "out")
    assert isinstance(generator, ks.LanguageGenerator)
    assert generator.generate(["w1"], max_length=4)[0].startswith("w1")
    pair = [
        item for side in ("source", "target")
        for item in (f"--{side}-dictionary", language_model / "dict.txt")
    ]  # fmt: skip
    check_refused(
        capsys, tmp_path / "x",
        [language_model, *pair], "is a language model: --dictionary must be given",
    )  # fmt: skip
    check_refused(
        capsys, tmp_path / "x",
        [archive, "--dictionary", archive / "dict.t.txt"],
        "is a translation model: --source-dictionary and --target-dictionary",
    )  # fmt: skip


# --- What it refuses ---


def check_refused(capsys, output, arguments, words):
    """One line that starts with error, status 2, nothing written."""
    capsys.readouterr()
    try:
        status = convert(*arguments, "--output", output)
    except SystemExit as stopped:  # refused by argparse
        status = stopped.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("error: ") and words in lines[0], lines[0]
    assert not output.exists() and not list(output.parent.glob(".*.part"))


def test_wrong_inputs(archive, golden, tmp_path, capsys):
    output = tmp_path / "x"
    arguments = [archive, "--moses"]
    check_refused(capsys, output, arguments, "--source-language must be two or three")
    options = json.loads((archive / "args.json").read_text())
    del options["source_lang"], options["target_lang"]
    (archive / "args.json").write_text(json.dumps(options))
    dictionaries = (
        "--source-dictionary", archive / "dict.s.txt",
        "--target-dictionary", archive / "dict.t.txt",
    )  # fmt: skip
    swapped = (
        "--source-dictionary", archive / "dict.t.txt",
        "--target-dictionary", archive / "dict.s.txt",
    )  # fmt: skip
    (archive / "empty.txt").touch()
    (archive / "bad.txt").write_text("no-count\n")
    (tmp_path / "none").mkdir()
    for arguments, words in [
        ([archive / "nothing.pt", *dictionaries], "nothing.pt: No such file"),
        ([archive], "must hold dict.<language>.txt of the source"),
        ([archive, "--source-language", "s"], "Give --target-language or"),
        ([archive, "--source-language", "de", "--target-language", "t"],
         "it holds dict.s.txt, dict.t.txt"),
        ([archive, *dictionaries[:2]], "--target-language"),
        ([archive, *dictionaries, "--dictionary", archive / "dict.s.txt"],
         "--dictionary is for language models"),
        ([archive, *swapped], "the source dictionary has 41 symbols, the embedding 37"),
        ([archive, *dictionaries, "--moses"], "--source-language must be two or"),
        ([archive, "--source-dictionary", tmp_path / "y", *dictionaries[2:]],
         "No such file"),
        ([archive, "--source-dictionary", archive, *dictionaries[2:]],
         "Is a directory"),
        ([archive, "--source-dictionary", archive / "bad.txt", *dictionaries[2:]],
         "bad.txt, line 1: must be '<symbol> <count>'"),
        ([archive, "--source-dictionary", archive / "empty.txt", *dictionaries[2:]],
         "the source dictionary has 4 symbols, the embedding 37"),
        ([tmp_path / "none", *dictionaries], "must hold model.pt or one *.pt"),
        ([archive, *dictionaries, "--beam", "3"], "unrecognized arguments: --beam 3"),
        ([], "required: CHECKPOINT"),
    ]:  # fmt: skip
        check_refused(capsys, output, arguments, words)
    (archive / "weights.npz").write_bytes(b"PK broken")
    check_refused(
        capsys, output, [archive, *dictionaries], "weights.npz cannot be read"
    )
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("mine")
    for more in ([], ["--overwrite"]):
        arguments = [archive, *dictionaries, "--output", taken, *more]
        assert convert(*arguments) == 2
        assert "It holds: thesis.tex" in capsys.readouterr().err
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(2, 130), (15, 143)])
def test_interrupted_by_signals(archive, tmp_path, number, status):
    """SIGINT and SIGTERM, while half of the directory is there."""
    code = """
    import sys, time, keras
    write = keras.Model.save_weights
    def save_weights(*arguments, **more):
        write(*arguments, **more)
        print("ready", flush=True)
        time.sleep(300)
    keras.Model.save_weights = save_weights
    from keras_seqconv_cli import main
    sys.exit(main())
    """
    process = start(
        archive, "--source-dictionary", archive / "dict.s.txt",
        "--target-dictionary", archive / "dict.t.txt",
        "--output", tmp_path / "out" / "model", code=code,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    assert list((tmp_path / "out" / ".model.part").iterdir())
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == status
    assert not list((tmp_path / "out").iterdir())
