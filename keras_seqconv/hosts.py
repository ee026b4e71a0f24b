"""Processes on several hosts that train one model together, on JAX.

All hosts run the same program on their own part of each batch. Only the first one
writes. Everything else is the same on all hosts, so that collective operations meet.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_seqconv.support import jax

# Seconds without a heartbeat after which a host counts as dead.
_TIMEOUT = 30
# Bytes of a file that are sent at a time: each device holds those of all hosts.
_PIECE = 1 << 26


def join(address: str | None, number: int | None, index: int | None) -> None:
    """Connects to the other hosts, before anything is computed.

    Args:
        address: "host:port" of host 0, or "auto": address, number and index come from
            Slurm, Open MPI, Kubernetes (JobSet) or a TPU pod, as JAX finds them.
        number: of hosts.
        index: of this one, from 0.

    Raises:
        ValueError: not on JAX, or JAX finds no cluster.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "`hosts` needs the JAX backend (KERAS_BACKEND=jax). Received: "
            f"hosts={address!r} on {keras.backend.backend()}"
        )
    # Its handler of SIGTERM would replace ours.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            None if address == "auto" else address,
            number,
            index,
            heartbeat_timeout_seconds=_TIMEOUT,
        )
    except ValueError as error:
        raise ValueError(
            "`hosts` must be ADDRESS:PORT of host 0, with `num_hosts` and `host_index`,"
            f" where JAX finds no cluster by itself ({error}). Received: {address!r}"
        ) from error
    gather(None)  # connected while all are here: JAX waits for half a minute only


def leave() -> None:
    """Disconnects once all hosts call it; local devices go on working."""
    if shard()[1] > 1:
        jax.distributed.shutdown()


def shard() -> tuple[int, int]:
    """(index of this host, number of hosts)."""
    if keras.backend.backend() != "jax":
        return 0, 1
    return jax.process_index(), jax.process_count()


def is_first() -> bool:
    """Whether this is the host that writes."""
    return shard()[0] == 0


def gather(value: Any) -> list:
    """Gathers a JSON value of each host, in the order of the hosts."""
    if shard()[1] == 1:
        return [value]
    rows = _all(np.frombuffer(json.dumps(value).encode(), np.uint8))
    return [json.loads(row.tobytes()) for row in rows]


def _all(data: np.ndarray) -> list[np.ndarray]:
    """A vector of bytes of each host, of any lengths."""
    from jax.experimental.multihost_utils import process_allgather

    with awaited():
        sizes = process_allgather(np.array([len(data)]))[:, 0]
        padded = np.zeros(max(sizes), np.uint8)
        padded[: len(data)] = data
        rows = process_allgather(padded)
    return [row[:n] for row, n in zip(rows, sizes, strict=True)]


def file_of_first(path: Path | None) -> tuple[str, bytes] | None:
    """Name and bytes of a file of host 0, on each host; None where that gives None."""
    found = gather(path and [path.name, path.stat().st_size])[0]
    if found is None:
        return None
    name, size = found
    with open(path or os.devnull, "rb") as stream:
        pieces = [
            _all(np.frombuffer(stream.read(_PIECE), np.uint8))[0].tobytes()
            for _ in range(0, size, _PIECE)
        ]
    return name, b"".join(pieces)


def together(function: Callable[[], Any]) -> Any:
    """Calls a function on each host; if any host raises, all raise.

    Raises:
        ValueError: "host 2: ..." for the error of another host.
    """
    result = error = None
    try:
        result = function()
    except Exception as caught:
        error = caught
    errors = gather(error and (str(error) or repr(error)))
    if any(errors):
        leave()
        if error is not None:
            raise error
        raise ValueError("; ".join(f"host {i}: {e}" for i, e in enumerate(errors) if e))
    return result


def check_same(values: Mapping[str, Any]) -> None:
    """ValueError, on all hosts, if one has another value than host 0."""
    first, *rest = gather(values)
    different = [
        f"{name} is {other.get(name)!r} on host {host} and {value!r} on host 0"
        for host, other in enumerate(rest, 1)
        for name, value in first.items()
        if other.get(name) != value
    ]
    if different:
        leave()
        raise ValueError(f"All hosts must train the same. {'; '.join(different)}")


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """ConnectionError for XLA's error when another host is gone."""
    index, number = shard()
    if number == 1:
        yield
        return
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # JAX passes on some errors of XLA as ValueError; a status stands in front.
        if isinstance(error, ValueError) and not re.match("[A-Z_]+: ", str(error)):
            raise
        raise ConnectionError(
            f"Training ends on host {index} of {number}, most likely because another "
            "one has ended; the same command on all hosts goes on from the newest "
            f"checkpoint. ({str(error).splitlines()[0]})"
        ) from error
