"""Python in a process of its own, and a disk that is full as far as one file goes."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = "import sys, keras_seqconv_cli; sys.exit(keras_seqconv_cli.main())"


def run_python(code, *arguments, folder=ROOT, **environment):
    """What a program prints, as `subprocess` has it; fails where the program does."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=folder, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@contextlib.contextmanager
def full_disk(size: int = 3000):
    """Files cannot grow beyond so many bytes: writing fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
