"""The processor's cores that this process may use."""

import os

import keras


def available_cores() -> int:
    mine = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(mine(0)) if mine else os.cpu_count() or 1


def share_cores(workers: int) -> bool:
    """Gives each operation of TensorFlow the part of the cores that one worker has.

    By default every operation of every thread may use all cores, and threads that work
    side by side then spend their time on waking each other.

    Args:
        workers: threads that run TensorFlow at the same time.

    Returns:
        Whether it was set: False for one worker, on other backends, where the
        environment sets TF_NUM_INTRAOP_THREADS, and where TensorFlow already runs.
    """
    if workers == 1 or keras.backend.backend() != "tensorflow":
        return False
    if "TF_NUM_INTRAOP_THREADS" in os.environ:
        return False
    import tensorflow as tf

    threads = max(1, available_cores() // workers)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        return False
    return True
