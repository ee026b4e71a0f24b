"""One holder at a time, and none that outlives its process."""

import subprocess
import sys

import pytest

from keras_seqconv import locks
from keras_seqconv.locks import open_alone

HOLDER = """
import runpy, sys
held = runpy.run_path(sys.argv[1])["open_alone"](sys.argv[2], "taken")
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_kept_out_until_it_is_killed(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, locks.__file__, path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match="^taken$"):
            open_alone(path, "taken")
        process.kill()
    for _ in range(2):
        with open_alone(path, "taken"), pytest.raises(ValueError, match="^taken$"):
            open_alone(path, "taken")


def test_the_file_that_is_locked_has_the_name(tmp_path, monkeypatch):
    """Also when its holder renames it between the opening and the locking."""
    path, lock = tmp_path / "part", locks.lock

    def rename_first(file, wait):
        monkeypatch.setattr(locks, "lock", lock)
        path.rename(tmp_path / "finished")
        lock(file, wait)

    monkeypatch.setattr(locks, "lock", rename_first)
    with open_alone(path, "taken") as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert (tmp_path / "finished").read_bytes() == b""


def test_file_systems_without_locks_keep_nobody_out(tmp_path, monkeypatch):
    def no_locks(file, wait):
        raise OSError("not supported")

    monkeypatch.setattr(locks, "lock", no_locks)
    open_alone(tmp_path / "lock", "taken").close()
