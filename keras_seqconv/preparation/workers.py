"""Steps on many lines, in several processes, in the order of the lines.

Not `multiprocessing`: a spawned process would load Keras before its first line, and a
forked one would share the threads of TensorFlow or JAX. See `text.py`.
"""

import collections
import contextlib
import json
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keras_seqconv.preparation import text

# Texts of each side.
Columns = list[list[str]]
_PROGRAM = Path(text.__file__)


@contextlib.contextmanager
def applied(
    sides: list[dict], workers: int
) -> Iterator[Callable[[Iterable[Columns]], Iterator[tuple[Columns, Columns]]]]:
    """Yields a function: chunks of columns -> (chunk, the same after the steps).

    Chunks are read a little ahead and come back in their order. The processes have
    ended when the block has.

    Args:
        sides: arguments of `text.Steps` for each column.
        workers: number of processes; with 1 the work is done in this one.

    Raises:
        OSError: when a chunk is asked for: a process ended too early.
    """
    if workers == 1 or not any(map(text.does_something, sides)):
        steps = [text.Steps(**side) for side in sides]
        yield lambda chunks: ((chunk, _here(steps, chunk)) for chunk in chunks)
        return
    processes = []
    with ThreadPoolExecutor(workers) as threads:
        try:
            idle = queue.SimpleQueue()
            for _ in range(workers):
                processes.append(_start(sides))
                idle.put(processes[-1])
            yield lambda chunks: _in_order(chunks, threads, idle, 2 * workers)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
                process.communicate()


def _here(steps: list[text.Steps], chunk: Columns) -> Columns:
    return [
        [one(line) for line in lines] for one, lines in zip(steps, chunk, strict=True)
    ]


def _start(sides: list[dict]) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(json.dumps(sides).encode() + b"\n")
    return process


def _in_order(chunks, threads, idle, ahead: int):
    """Each thread hands a chunk to an idle process and waits for its answer."""

    def work(chunk):
        process = idle.get()
        try:
            process.stdin.write(json.dumps(chunk).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            idle.put(process)  # also a dead one: nobody may wait for it without end
        if not answer:
            raise OSError(
                "A process that prepares text ended too early (killed, or out of "
                "memory?). The same command goes on from the last finished stage; "
                "fewer `workers` need less memory."
            )
        return json.loads(answer)

    waiting = collections.deque()
    for chunk in chunks:
        waiting.append((chunk, threads.submit(work, chunk)))
        if len(waiting) > ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    for first, future in waiting:
        yield first, future.result()
