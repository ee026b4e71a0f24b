"""Memory that stays in the process."""

import platform

import pytest

from tests.processes import run_python

CODE = """
import ctypes, resource, sys, threading
import keras_seqconv_cli  # as a command does: before Keras, which may start threads
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: faults of 4 KB anywhere
from keras_seqconv.devices import keep_freed_memory
arenas, of_thread = int(sys.argv[1]), int(sys.argv[2]) << 20
print(keep_freed_memory(arenas))
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        b"x" * (64 << 20)
    thread = threading.Thread(target=lambda: [len(b"x" * of_thread) for _ in "12345"])
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def run(arenas, of_thread, **environment) -> list[str]:
    """What was returned, and page faults; MB of a block that a thread takes."""
    return run_python(CODE, arenas, of_thread, **environment).stdout.split()


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is for glibc")
def test_large_blocks_are_used_again_unless_the_user_has_settings():
    # A thread's block is larger than what an arena of its own could hold, or fits.
    for arenas, of_thread in ((1, 80), (2, 40)):
        kept, faults = run(arenas, of_thread)
        assert kept == "True" and int(faults) < 2000
    kept, faults = run(1, 80, GLIBC_TUNABLES="glibc.malloc.tcache_count=7")
    assert kept == "False" and int(faults) > 100_000
