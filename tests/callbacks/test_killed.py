"""Processes that are killed while they train, and started again."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from keras_seqconv.callbacks.reporting import read_log

ROOT = Path(__file__).parents[2]
UPDATES = 40


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.callbacks.training_script", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "random"},
        stderr=subprocess.PIPE,
        text=True,
    )


def update_of(folder) -> int:
    """The last update in the log."""
    path = folder / "log.jsonl"
    if not path.exists():
        return 0
    return max((record["update"] for record in read_log(path)), default=0)


def kill_at(folder, update, number) -> int:
    """Starts, sends a signal at an update, returns the exit status."""
    process = start(folder)
    deadline = time.monotonic() + 300
    while update_of(folder) < update and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors, errors
    return process.returncode


@pytest.mark.slow
def test_killed_training_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    process = start(whole)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    chosen = sorted(random.Random(time.time_ns()).sample(range(1, UPDATES - 4), 2))
    kill, interrupt = chosen
    assert kill_at(broken, kill, signal.SIGKILL) == -signal.SIGKILL
    assert kill_at(broken, interrupt, signal.SIGINT) == 128 + signal.SIGINT
    process = start(broken)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    with np.load(whole / "final.npz") as wanted, np.load(broken / "final.npz") as got:
        assert len(wanted.files) == len(got.files) > 100
        for name in wanted.files:
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=str(chosen))
    curves = [
        [
            {key: record[key] for key in record if "second" not in key}
            for record in read_log(folder / "log.jsonl")
        ]
        for folder in (whole, broken)
    ]
    assert [record["update"] for record in curves[1] if "loss" in record] == [
        *range(1, UPDATES + 1)
    ]
    # The learning curves are the same, too, but for the rounding of differences.
    for one, other in zip(*curves, strict=True):
        assert one == pytest.approx(other, rel=1e-3), chosen
