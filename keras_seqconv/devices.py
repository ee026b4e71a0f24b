"""Devices of this process: GPUs, CPU cores, and memory."""

import contextlib
import ctypes
import glob
import os
from collections.abc import Callable
from typing import NamedTuple

from keras_seqconv.support import jax, tf
from keras_seqconv.support.arguments import check_integer

# From malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_VARIABLES = (
    "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_ARENA_MAX",
)  # fmt: skip


def available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def accelerator() -> str | None:
    """ "GPU" or "TPU" if the machine has one, by its files, without TensorFlow or JAX.

    A GPU is an NVIDIA or AMD device that CUDA_VISIBLE_DEVICES does not hide.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not hidden and (glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/kfd")):
        return "GPU"
    return "TPU" if glob.glob("/dev/accel[0-9]*") or "TPU_NAME" in os.environ else None


def _on_tensorflow() -> bool:
    import keras  # not before memory is set up, see `keep_freed_memory`

    return keras.backend.backend() == "tensorflow"


def share_cores(workers: int) -> None:
    """Gives each operation of TensorFlow the part of the cores that one worker has.

    By default every operation of every thread may use all cores, and parallel threads
    then spend their time on waking each other. Nothing is set for one worker, on other
    backends, where the environment sets TF_NUM_INTRAOP_THREADS, and where TensorFlow
    already runs.

    Args:
        workers: threads that run TensorFlow in parallel.
    """
    is_set = "TF_NUM_INTRAOP_THREADS" in os.environ
    if workers == 1 or is_set or not _on_tensorflow():
        return
    threads = max(1, available_cores() // workers)
    with contextlib.suppress(RuntimeError):  # TensorFlow runs
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def keep_freed_memory(arenas: int = 1) -> bool:
    """Tells glibc to keep freed memory in the process, for work on a CPU.

    TensorFlow allocates each tensor with malloc. glibc returns large tensors to the
    system at once, and the system clears every page again at its next use. Kept memory
    makes training with batches of changing shapes up to 1.9 times as fast; on other
    machines it changes nothing (benchmarks/README.md, "Memory"). The process then keeps
    its largest size.

    The commands of keras-seqconv that load Keras call this. Call it before a training
    or long translation of your own; it applies to the whole process. Threads keep their
    arenas, and if pandas is installed, the import of Keras starts some threads: then
    MALLOC_ARENA_MAX=1 in the environment does the same.

    Args:
        arenas: number of heaps for all threads, at least 1. A thread with its own heap
            reuses memory in its core's cache: parallel searches are 5 to 15 % faster.
            Only the first heap keeps tensors of more than 64 MB, so training, with its
            logits, is best with one.

    Returns:
        Whether it was set: False without glibc (macOS, Windows, Alpine), and if the
        environment has settings of malloc (such as MALLOC_TRIM_THRESHOLD_ or
        GLIBC_TUNABLES), which stay unchanged.

    Raises:
        ValueError: `arenas` is no positive integer.

    Example:

    ```python
    keras_seqconv.keep_freed_memory()  # then model.fit(...)
    ```
    """
    arenas = check_integer("arenas", arenas, 1)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc." in tunables or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    # Never map a large tensor separately (freeing it would return the memory), and
    # never return the end of the heap.
    parameters = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _ARENA_MAX: arenas}
    return all(mallopt(name, value) == 1 for name, value in parameters.items())


class Devices(NamedTuple):
    """Devices of a training.

    Attributes:
        scope: makes a context for making and training the model.
        number: number of devices of all hosts, each with a batch.
    """

    scope: Callable = contextlib.nullcontext
    number: int = 1


def find_devices(number: int | None) -> Devices:
    """Finds the devices of `TrainingOptions.devices`.

    Without a GPU each core of the CPU computes a part of the batch: two cores that
    share every product of a small model spend a third of their time on communication.

    Args:
        number: devices of this host; None for all GPUs (on JAX, all devices), or the
            CPU as one device.

    Raises:
        ValueError: there are fewer devices, or, for cores, TensorFlow already runs in
            this process, which fixes their use.
    """
    if not _on_tensorflow():
        return _jax_devices(number)
    gpus = len(tf.config.list_physical_devices("GPU"))
    kind, available = ("GPU", gpus) if gpus else ("CPU", available_cores())
    number = number or max(1, gpus)
    _check_number(number, available, "GPUs" if gpus else "cores")
    if number == 1:
        return Devices()
    (cpu,) = tf.config.list_physical_devices("CPU")
    if not gpus and len(tf.config.get_logical_device_configuration(cpu) or ()) < number:
        try:  # so many CPUs, each with one thread for an operation
            parts = [tf.config.LogicalDeviceConfiguration()] * number
            tf.config.set_logical_device_configuration(cpu, parts)
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(number)
        except RuntimeError as error:
            raise ValueError(
                "`devices` must be 1 on a CPU when TensorFlow is already running in "
                "this process; start a new one, or set its logical CPUs first. "
                f"Received: devices={number}"
            ) from error
    names = [device.name for device in tf.config.list_logical_devices(kind)[:number]]
    return Devices(tf.distribute.MirroredStrategy(names).scope, number)


def _jax_devices(number: int | None) -> Devices:
    import keras

    available = jax.local_device_count()
    number = number or available
    _check_number(number, available, "devices of JAX")
    devices = [
        f"{device.platform}:{device.id}"
        for host in range(jax.process_count())
        for device in jax.local_devices(host)[:number]
    ]
    if len(devices) == 1:
        return Devices()
    # Each host reads its own rows of a batch.
    parallel = keras.distribution.DataParallel(
        devices=devices, auto_shard_dataset=False
    )
    return Devices(parallel.scope, len(devices))


def _check_number(number: int, available: int, kind: str) -> None:
    if number > available:
        raise ValueError(
            f"`devices` must be at most {available}, as many {kind} as there are. "
            f"Received: devices={number}"
        )
