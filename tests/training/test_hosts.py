"""`keras-seqconv train` on several devices and hosts, in processes of this machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from keras_seqconv import checkpoints, hosts
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.training import TrainingOptions, train
from tests.processes import COMMAND, ROOT
from tests.training.runs import flags, weights_in, write_corpus

CHANGES = dict(
    # As many rows for one device as for four.
    tokens_per_batch=256, average=1, dropout=0.0, attention_dropout=0.0,
    # Gradients of nothing but rounding must not count as any others.
    weight_dropout=0.0, learning_rate=1e-2, epsilon=1e-3, jit_compile="auto",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("hosts") / "corpus")


def start(corpus, workdir, there=1, environment=None, /, code="", **changes):
    """A process with so many devices."""
    command = flags(corpus, workdir, **{**CHANGES, **changes})
    environment = environment or {}
    environment |= {
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={there} "
        "--xla_backend_optimization_level=0",
    }
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}\n{COMMAND}", *command], text=True, cwd=ROOT,
        env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def start_hosts(corpus, workdirs, there=1, of_second=(), **changes):
    """A process for each; what is different on the second."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        address = f"localhost:{one.getsockname()[1]}"
    changes = {"hosts": address, "num_hosts": len(workdirs), **changes}
    return [
        start(
            corpus, workdir, there,
            **{**changes, "host_index": index, **(dict(of_second) if index else {})},
        )
        for index, workdir in enumerate(workdirs)
    ]  # fmt: skip


def start_in_slurm(corpus, workdirs, there=1, **changes):
    """As `srun` starts a process on each of the hosts."""
    cluster = {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": str(len(workdirs)), "SLURM_LOCALID": "0",
    }  # fmt: skip
    return [
        start(corpus, workdir, there, {**cluster, "SLURM_PROCID": str(index)},
              hosts="auto", **changes)
        for index, workdir in enumerate(workdirs)
    ]  # fmt: skip


def end(process, status=0):
    """What it printed on stdout and stderr."""
    try:
        out, error = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == status, error[-3000:]
    return out, error


def last_weights(run):
    return weights_in(checkpoints.latest(run / "checkpoints"))


@pytest.mark.slow
def test_devices_and_hosts_come_to_the_same_weights(corpus, tmp_path):
    """Four devices, and two hosts of two, which stop in between and go on."""
    runs = [tmp_path / name for name in ("one", "four", "hosts")]
    for run, devices in zip(runs, (1, 4), strict=False):
        out, _ = end(start(corpus, run, devices, max_updates=12))
        assert "at most 256 target tokens an update" in out
    for start_all, updates in ((start_hosts, 5), (start_in_slurm, 12)):
        for process in start_all(corpus, [runs[2]] * 2, 2, max_updates=updates):
            end(process)
    for run in runs[1:]:
        for first, second in zip(last_weights(runs[0]), last_weights(run), strict=True):
            np.testing.assert_allclose(first, second, atol=1e-5)
        scores = [(one / "test.hypotheses").read_text() for one in (runs[0], run)]
        assert scores[0] == scores[1]
        nll = [read_log(one / "log.jsonl")[-1]["val_nll"] for one in (runs[0], run)]
        assert nll[0] == pytest.approx(nll[1], rel=1e-5)


@pytest.mark.slow
def test_hosts_with_folders_of_their_own_go_on_after_one_was_killed(corpus, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    first, second = start_hosts(
        corpus, folders, updates_per_epoch=2, max_updates=100000
    )
    while not checkpoints.find(folders[0] / "checkpoints"):
        time.sleep(0.1)
        assert first.poll() is None and second.poll() is None
    second.send_signal(signal.SIGKILL)
    began = time.monotonic()
    _, error = end(first, 2)
    assert time.monotonic() - began < 60
    assert "error: Training ends on host 0 of 2, most likely because" in error
    shutil.rmtree(folders[1])  # another machine takes its place
    updates = checkpoints.update_of(checkpoints.latest(folders[0] / "checkpoints"))
    more = {"updates_per_epoch": 2, "max_updates": updates + 3}
    first, second = start_hosts(corpus, folders, **more)
    out, _ = end(first)
    end(second)
    assert f"Going on from {folders[0] / 'checkpoints'}" in out
    assert (folders[0] / "model").is_dir() and not (folders[1] / "model").exists()
    assert not (folders[1] / "log.jsonl").exists()


@pytest.mark.slow
def test_a_signal_to_one_host_ends_all_after_the_same_update(corpus, tmp_path):
    run = tmp_path / "run"
    first, second = start_hosts(
        corpus, [run] * 2, updates_per_epoch=1, max_updates=10**5
    )
    while not checkpoints.find(run / "checkpoints"):
        time.sleep(0.1)
        assert first.poll() is None and second.poll() is None
    second.send_signal(signal.SIGTERM)
    out, _ = end(first, 143)
    end(second, 143)
    assert "Interrupted. The same command goes on from" in out
    assert not list(run.glob("checkpoints/.*"))


def test_a_host_joins_as_itself(tmp_path, monkeypatch):
    """Number and index of the options reach JAX, and come back from it, as such."""
    import jax

    told = {}

    def initialize(coordinator_address, num_processes, process_id, **_):
        told.update(number=num_processes, index=process_id)
        raise ValueError("nobody is there")

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax, "process_count", lambda: told["number"])
    monkeypatch.setattr(jax, "process_index", lambda: told["index"])
    options = TrainingOptions(
        preset="dynamic_conv_phrases", dataset="phrases", workdir=str(tmp_path),
        hosts="a:1", num_hosts=4, host_index=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="nobody is there.*Received: 'a:1'"):
        train(options)
    assert told == {"number": 4, "index": 2}
    assert hosts.shard() == (2, 4) and not hosts.is_first()


@pytest.mark.parametrize("kind", [ValueError, "JaxRuntimeError"])
def test_a_closed_connection_is_told_from_another_error(monkeypatch, kind):
    """JAX raises either class for a host that has gone."""
    from jax import errors

    kind = getattr(errors, kind) if isinstance(kind, str) else kind
    monkeypatch.setattr(hosts, "shard", lambda: (0, 2))
    with pytest.raises(ConnectionError, match="on host 0 of 2"), hosts.awaited():
        raise kind("UNKNOWN: Gloo AllGather failed: closed by peer")
    with pytest.raises(ValueError, match="^`rate` must be positive$"), hosts.awaited():
        raise ValueError("`rate` must be positive")


LONG_TEXT = """
import time
import keras_seqconv.training.run as run
run.text_of = lambda *_: print("reading", flush=True) or time.sleep(1000)
"""


@pytest.mark.slow
def test_a_signal_ends_all_while_text_is_prepared(corpus, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    first, second = start_hosts(corpus, folders, of_second={"code": LONG_TEXT})
    while second.stdout.readline() != "reading\n":
        assert second.poll() is None
    began = time.monotonic()
    second.send_signal(signal.SIGTERM)
    _, error = end(second, 143)
    assert error.endswith("\nInterrupted.\n")
    _, error = end(first, 2)
    assert time.monotonic() - began < 60
    assert "error: Training ends on host 0 of 2, most likely because" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    "different, words",
    [
        ({"learning_rate": 0.5}, "--learning-rate is 0.5 on host 1 and 0.01 on host 0"),
        ({"dataset": "other"}, "host 1: --dataset and vocabularies must hold what"),
    ],
)
def test_a_host_that_is_different_is_named(corpus, tmp_path, different, words):
    if "dataset" in different:
        shutil.copytree(corpus, tmp_path / "other")
        for side in ("en", "de"):
            with open(tmp_path / "other" / f"train.{side}", "a") as file:
                file.write("more\n")
        different = {"dataset": str(tmp_path / "other")}
    both = start_hosts(corpus, [tmp_path / "run"] * 2, of_second=different)
    first, second = (end(process, 2)[1] for process in both)
    assert words in first and words.removeprefix("host 1: ") in second
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("size", [0, 6, 7, 15])
def test_files_are_sent_in_pieces(size, tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(hosts, "_PIECE", 7)
    monkeypatch.setattr(hosts, "_all", lambda data: sent.append(len(data)) or [data])
    (tmp_path / "file").write_bytes(bytes(range(size)))
    assert hosts.file_of_first(tmp_path / "file") == ("file", bytes(range(size)))
    assert sum(sent) == size and max(sent, default=0) <= 7
    assert hosts.file_of_first(None) is None
