"""Where a training runs: on one device, on several GPUs, or on the cores of a CPU."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import keras

from keras_seqconv.cpu import available_cores


class Devices(NamedTuple):
    """What a training runs on.

    Attributes:
        scope: makes a context for making and training the model.
        number: devices with a batch each.
        cores: replicas that share the batch of one device.
    """

    scope: Callable
    number: int = 1
    cores: int = 1

    @property
    def replicas(self) -> int:
        return self.number * self.cores


def find_devices(number: int | None) -> Devices:
    """What `TrainingOptions.devices` asks for.

    GPUs take a batch each. Without a GPU each core of the CPU takes its part of a batch
    and works alone on it: two cores that share every product of a small model spend a
    third of their time on handing each other work.

    Args:
        number: None for all GPUs, or the CPU as one device.

    Raises:
        ValueError: there are not so many; for cores also if TensorFlow is already
            running in this process, because that settles how it uses them.
    """
    if keras.backend.backend() != "tensorflow":
        if number not in (None, 1):
            raise ValueError(
                "`devices` must be 1 except on TensorFlow; see "
                f"keras.distribution for JAX. Received: devices={number}"
            )
        return Devices(contextlib.nullcontext)
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    most = gpus or available_cores()
    if number is None:
        number = max(1, gpus)
    if number > most:
        raise ValueError(
            f"`devices` must be at most {most}, as many {'GPUs' if gpus else 'cores'} "
            f"as there are. Received: devices={number}"
        )
    if number == 1:
        return Devices(contextlib.nullcontext)
    if not gpus:
        _split_cpu(number)
    kind = "GPU" if gpus else "CPU"
    names = [one.name for one in tf.config.list_logical_devices(kind)[:number]]
    scope = tf.distribute.MirroredStrategy(names).scope
    return Devices(scope, number) if gpus else Devices(scope, cores=number)


def _split_cpu(number: int) -> None:
    """Makes TensorFlow see `number` CPUs, each with one thread for an operation."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or ()) >= number:
        return
    parts = [tf.config.LogicalDeviceConfiguration()] * number
    try:
        tf.config.set_logical_device_configuration(cpu, parts)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(number)
    except RuntimeError as error:
        raise ValueError(
            "`devices` must be 1 on a CPU when TensorFlow is already running in this "
            "process; start a new one, or set its logical CPUs first. "
            f"Received: devices={number}"
        ) from error
