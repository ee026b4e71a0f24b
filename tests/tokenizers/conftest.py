"""The real corpus, and processes of their own."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import corpus_folder


@pytest.fixture
def multi30k():
    """Lines of a file of Multi30k by its name; skips where it is missing."""
    folder = corpus_folder("multi30k")
    return lambda name: (folder / name).read_bytes().decode().split("\n")[:-1]


@pytest.fixture
def fresh_process():
    """Runs code with arguments in a fresh process; returns what it prints."""

    def run(code: str, *arguments) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    return run
