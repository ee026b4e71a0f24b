"""`keras-seqconv prepare`: flags, what it prints, how it refuses, its processes."""

import collections
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import keras_seqconv_cli as cli
from keras_seqconv.preparation.pairs import executor_of, with_tokens
from keras_seqconv.tokenizers import load_tokenizer
from tests.test_prepare import contents, iwslt, parallel, sentence  # noqa: F401


def prepare(*arguments):
    return cli.main(["prepare", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    found = []
    for lang, texts in (("de", ["Das Haus.", "Ein Baum!", "x y z"]),
                        ("en", ["The house.", "A tree!", "w"])):  # fmt: skip
        found.append(tmp_path / f"my.{lang}")
        found[-1].write_text("".join(text + "\n" for text in texts * 4))
    return found


def test_prints_counts_and_what_to_do_next(files, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(
        "corpus", "--source", "de", "--target", "en", "--train", *files,
        "--valid-every", 5, "--ratio", 2, "--merges", 20, "--workers", 1,
        "--output", out,
    ) == 0  # fmt: skip
    printed = capsys.readouterr()
    counts = {
        line.rpartition("  ")[0].strip(): line.split()[-1]
        for line in printed.out.splitlines()
        if line.startswith("  ")
    }
    assert counts["pairs"] == "12" and counts["length ratio above 2"] == "4"
    assert counts["to train"] == "7" and counts["to valid"] == "1"
    assert counts["empty"] == "0"  # filters that left nothing out are shown too
    assert f"train --dataset {out} --tokenizer {out}" in printed.out
    assert "my.de: 12 pairs" in printed.err
    assert (out / "train.de").read_text().startswith("Das Haus.\nEin Baum!\n")
    assert load_tokenizer(out / "tokenizers/source").language == "de"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["iwslt14", "."], "--output must be given"),
        (["iwslt14", "nowhere", "--output", "out"], "DATA must exist"),
        (["wmt14", ".", "--target", "cs", "--output", "out"], "--source and --target"),
        (
            ["corpus", "--source", "de", "--target", "en", "--train", "a", "b",
             "--ratio", "0.1", "--output", "out"],
            "--ratio must be at least 1",
        ),
    ],
)  # fmt: skip
def test_refuses_in_one_line(arguments, problem, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert prepare(*arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {problem}")


# --- Processes. ---


def start(*arguments):
    """The program in a session of its own, where importing Keras would fail."""
    program = Path(sys.executable).parent / "keras-seqconv"
    return subprocess.Popen(
        [program, "prepare", *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": "none"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_workers_give_the_same_bytes_and_load_no_keras(iwslt, tmp_path):  # noqa: F811
    data = iwslt[0].parent / "de-en.tgz"
    process = start("iwslt14", data, "--output", tmp_path / "two", "--workers", 2)
    assert prepare("iwslt14", data, "--output", tmp_path / "one", "--workers", 1) == 0
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_ended_process_leaves_its_stages(number, tmp_path):
    """It ends at once, with all of its processes, and the same call goes on."""
    small = parallel(tmp_path, [sentence(i) for i in range(40)], "a")
    large = parallel(tmp_path, [sentence(i) for i in range(120_000)], "b")
    arguments = ["corpus", "--source", "de", "--target", "en", "--train", *small,
                 "--train", *large, "--output", tmp_path / "out"]  # fmt: skip
    process = start(*arguments, "--workers", 2)
    assert "a.de: 40 pairs" in process.stderr.readline()
    time.sleep(0.5)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        os.kill(process.pid, number)
    _, errors = process.communicate(timeout=20)
    stages = {path.name for path in (tmp_path / "out.part").glob("[!.]*")}
    assert stages == {"00-train", "plan.json"} and not (tmp_path / "out").exists()
    if number == signal.SIGINT:
        assert process.returncode == 130
        lines = list(filter(None, errors.split("\n")))
        assert lines[0].startswith("The finished stages are kept")
        assert lines[1:] == ["Interrupted."]
    with pytest.raises(ProcessLookupError):  # no process of it is left
        for _ in range(50):
            time.sleep(0.1)
            os.killpg(process.pid, 0)
    large[0].parent.joinpath("b.de").touch()
    assert prepare(*arguments, "--workers", 2) == 2  # the input is another one


@pytest.mark.slow
def test_worker_that_is_killed_is_an_error():
    with executor_of(2) as executor:
        executor.submit(os._exit, 1)
        with pytest.raises(OSError, match="ended too early"):
            # Endless: what is left is never done by the other one.
            pairs = with_tokens(itertools.repeat(["a", "b"]), [{}, {}], executor)
            collections.deque(pairs, maxlen=0)
