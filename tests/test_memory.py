"""Memory that stays in the process."""

import os
import platform
import subprocess
import sys

import pytest

CODE = """
import ctypes, resource, sys, threading
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: faults of 4 KB anywhere
from keras_seqconv.memory import keep_freed_memory
print(keep_freed_memory())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        b"x" * (64 << 20)
    # Of another thread, and larger than what its own arena could hold.
    thread = threading.Thread(target=lambda: [len(b"x" * (80 << 20)) for _ in "12345"])
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def run(**environment) -> list[str]:
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is for glibc")
def test_large_blocks_are_used_again_unless_the_user_has_settings():
    kept, faults = run()
    assert kept == "True" and int(faults) < 2000
    kept, faults = run(GLIBC_TUNABLES="glibc.malloc.tcache_count=7")
    assert kept == "False" and int(faults) > 100_000
