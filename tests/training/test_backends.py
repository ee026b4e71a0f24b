"""From a corpus to translations by the command line, on the backend in use; its model
on the other one."""

import json

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv_cli import main
from tests.processes import run_python
from tests.training.runs import flags, weights_in, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.jax]

BACKEND = keras.backend.backend()
OTHER = {"jax": "tensorflow", "tensorflow": "jax"}[BACKEND]
UPDATES = 30


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("backends") / "corpus")


def command(*arguments):
    assert main([str(argument) for argument in arguments]) == 0


def train(corpus, run, updates):
    command(*flags(
        corpus, run, tokens_per_batch=256, learning_rate=1e-2, deterministic=True,
        average=1, updates_per_epoch=5, validation_bleu=True, tensorboard=True,
        max_updates=updates, jit_compile="auto",
    ))  # fmt: skip


@pytest.fixture(scope="module")
def run(corpus):
    """The folder of a run that was interrupted once, inside of an epoch."""
    folder = corpus.parent / "run"
    for updates in (UPDATES // 2 - 1, UPDATES):
        train(corpus, folder, updates)
    return folder


def lines_of(path):
    return path.read_text().splitlines()


def test_a_run_learns_and_is_scored(corpus, run, tmp_path, capsys):
    records = read_log(run / "log.jsonl")
    losses = [one["loss"] for one in records if "loss" in one]
    assert losses[-1] < 0.8 * losses[0]
    assert (run / "curves.png").stat().st_size > 1000
    for events in (run / "tensorboard/validation").iterdir():  # of both parts
        assert b"epoch_bleu" in events.read_bytes()
    options = ["--dataset", corpus, "--quiet", "--json"]
    # The model of the run is that of its last update, which was validated.
    for split, expected in (
        ("test", json.loads((run / "scores.json").read_text())["BLEU"]["score"]),
        ("valid", records[-1]["val_bleu"]),
    ):
        capsys.readouterr()
        command("evaluate", run, "--split", split, *options)
        bleu, _ = json.loads(capsys.readouterr().out)["scores"]
        assert bleu["value"] == pytest.approx(expected, abs=1e-3), split
    averaged, output = tmp_path / "averaged", tmp_path / "output"
    command("average", run, "--last-epochs", 2, "--output", averaged)
    command("translate", averaged, "--input", corpus / "test.en", "--output", output)
    assert len(lines_of(output)) == 8 and any(lines_of(output))


def test_continued_equals_uninterrupted(corpus, run, tmp_path):
    """To the bit, dropout on."""
    train(corpus, tmp_path, UPDATES)
    name = f"checkpoints/update-{UPDATES:08}.npz"
    np.testing.assert_equal(weights_in(run / name), weights_in(tmp_path / name))


def translations(folder, lines) -> list:
    """What a model makes of these lines, and how it scores them as translations."""
    translator = ks.load(folder)
    found = [best[0] for best in translator.translate_n_best(lines, 1)]
    scores = [*(one.score for one in found), *translator.score(lines, lines)]
    return [[one.text for one in found], [float(score) for score in scores]]


def test_the_other_backend_reads_the_model(corpus, run):
    program = (
        "import json, sys; from tests.training.test_backends import *; "
        "print(BACKEND, json.dumps(translations(sys.argv[1], sys.argv[2:])))"
    )
    lines = lines_of(corpus / "test.en")
    done = run_python(program, run, *lines, KERAS_BACKEND=OTHER)
    backend, found = done.stdout.splitlines()[-1].split(" ", 1)
    texts, scores = translations(run, lines)
    assert backend == OTHER and json.loads(found)[0] == texts and any(texts)
    np.testing.assert_allclose(json.loads(found)[1], scores, atol=1e-4)
