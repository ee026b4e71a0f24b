"""Memory that a step frees stays in the process for the next step."""

import ctypes
import os

# From malloc.h of glibc: parameter -> value. No block of its own from the system for a
# large tensor (which is given back when it is freed), never give back the end, and one
# arena for all threads: those of further arenas hold 64 MB at most, so that the logits
# would come from the system after all.
_PARAMETERS = {-4: 0, -1: -1, -8: 1}  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX
_VARIABLES = (
    "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_ARENA_MAX",
)  # fmt: skip


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed memory in the process, for work on a CPU.

    TensorFlow asks malloc for each tensor. Large ones glibc takes from the system and
    gives back at once, and the system clears every page again when it is next touched.
    With batches of changing shapes this made training on two virtual cores 1.9 times as
    fast (benchmarks/README.md, "Memory"). The process then never shrinks: it keeps as
    much as it has needed at most.

    `keras_seqconv.training.train` calls this, and so do `keras-seqconv train`,
    `translate` and `evaluate`. Call it before a training or long translation of your
    own; it holds for the whole process. Threads share one arena from then on, but for
    those that have one already.

    Returns:
        Whether it was set: False without glibc (macOS, Windows, Alpine), and where the
        environment has settings of malloc (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES and
        the like), which are left as they are.

    Example:

    ```python
    keras_seqconv.keep_freed_memory()  # then model.fit(...)
    ```
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc." in tunables or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    done = [mallopt(name, value) == 1 for name, value in _PARAMETERS.items()]
    return all(done)
