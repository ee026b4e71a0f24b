"""Trainings that die anywhere and are started again end as if nothing had been."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.callbacks.reporting import read_log
from tests.processes import ROOT
from tests.training.runs import options_for, write_corpus

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
ENDS = {INT: 130, TERM: 143, KILL: -9}


def run(folder, starts, **changes):
    """What these starts in `folder` print; those without a death come to their end."""
    corpus = write_corpus(folder / "corpus")
    for path in corpus.glob("test.*"):  # nothing is translated at the end
        path.unlink()
    options = options_for(
        corpus, "", average=2, updates_per_epoch=2, deterministic=True, **changes
    )
    config = folder / "options.json"
    config.write_text(json.dumps(options.changes()))
    places = json.dumps([(str(folder / name), *death) for name, *death in starts])
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.starts", config, places],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=600,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("ended ")]
    expected = [0 if len(one) == 1 else ENDS[one[-1]] for one in starts]
    assert found == [f"ended {end}" for end in expected], (starts, done.stdout)
    return done.stdout


def left_by(run):
    """All that a run leaves but notes and times."""
    paths = sorted(path.relative_to(run) for path in run.rglob("*"))
    kept = [path for path in paths if path.parts[0] in ("data", "tokenizers", "model")]
    files = {path: (run / path).read_bytes() for path in kept if (run / path).is_file()}
    with np.load(checkpoints.find(run / "checkpoints")[-1]) as file:
        arrays = {name: file[name] for name in file.files if name != "header.json"}
    curves = [
        {key: value for key, value in record.items() if "second" not in key}
        for record in read_log(run / "log.jsonl")
    ]
    return files, arrays, curves, paths


def assert_same(others, whole, starts):
    for one, other in zip(whole, others, strict=True):
        assert len(one) > 3
        np.testing.assert_equal(other, one, err_msg=str(starts))


def test_killed_anywhere_and_started_again(tmp_path):
    """Weights, optimizer, model directory and curves to the bit."""
    random = np.random.default_rng(time.time_ns())

    def up_to(most):
        return int(random.integers(1, most, endpoint=True))

    deaths = [
        ("ids", 1, KILL), ("update", up_to(9), KILL),
        ("array of a checkpoint", up_to(200), KILL), ("end of an epoch", 1, KILL),
        ("checkpoint of an epoch", 1, KILL),
        # The last update is made.
        ("mean of an array", up_to(20), TERM),
        ("weights of the model", 1, KILL), ("tokenizer of the model", 1, INT),
        ("rename of the model", 1, KILL), ("rename of the model", 1, KILL), (),
    ]  # fmt: skip
    stops = [("update", up_to(9), INT), ("array of a checkpoint", up_to(100), TERM), ()]
    starts = [("whole",), *(("killed", *one) for one in deaths)]
    starts += [("stopped", *one) for one in stops]
    run(tmp_path, starts, max_updates=15, gradient_accumulation_steps=2)
    whole = left_by(tmp_path / "whole")
    assert_same(left_by(tmp_path / "killed"), whole, starts)
    assert_same(left_by(tmp_path / "stopped"), whole, starts)
