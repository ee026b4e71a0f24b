"""Does a change cost time? The working tree against another revision, in one run.

    python benchmarks/revisions.py c0dafe8                # about 10 minutes
    python benchmarks/revisions.py main --only fit beam   # rows that contain a word

A process for each of the two is kept ready, and they take turns call by call, so that a
machine that changes its speed changes both. A cell is the median ratio of neighbouring
calls, working tree over revision, with its quartiles: below 1 is faster.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from machine import machine

ROOT = Path(__file__).parents[1]
WORDS = 10_000
WARM_UP = 15.0  # seconds of a row, in which searches are compiled on the side


def op_calls():
    """Forward and gradients of the ops, as in `ops.py`."""
    import tensorflow as tf

    from keras_seqconv import ops

    batch, length, channels, heads, taps = 16, 128, 512, 8, 31
    rng = np.random.default_rng(0)
    inputs, upstream = (
        tf.constant(rng.normal(size=(batch, length, channels)).astype("float32"))
        for _ in range(2)
    )
    for name, shape in (
        ("light_conv", (heads, taps)),
        ("dynamic_conv", (batch, length, heads, taps)),
    ):
        kernel = tf.constant(rng.normal(size=shape).astype("float32"))
        both = tf.function(
            functools.partial(_gradients, getattr(ops, name)), autograph=False
        )
        call = functools.partial(both, inputs, kernel, upstream)
        call = functools.partial(_repeated, call)
        yield f"20 times {name}, forward and backward", call


def _gradients(function, inputs, kernel, upstream):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch([inputs, kernel])
        outputs = function(inputs, kernel)
    return tape.gradient(outputs, [inputs, kernel], upstream)


def _repeated(call) -> None:
    for _ in range(20):
        call()[0].numpy()


def model_calls():
    """A step of `fit`, and searches, of the presets for Multi30k."""
    import keras_seqconv as ks

    rng = np.random.default_rng(0)
    ids = rng.integers(4, WORDS, (3, 64, 32), dtype="int32")
    ids[:, :, -1] = 2
    inputs = {"source_ids": ids[0], "target_ids": ids[1]}
    sizes = {"source_vocabulary_size": WORDS, "target_vocabulary_size": WORDS}
    for family in ("dynamic_conv", "conv_s2s", "transformer"):
        model = ks.models.from_preset(f"{family}_multi30k", seed=0, **sizes)
        model.compile(ks.optimizers.AdamW(1e-4))  # with the loss of this package
        step = functools.partial(model.train_on_batch, inputs, ids[2])
        yield f"{family}, step of fit", step
        for rows, beams in ((1, 1), (16, 5)):
            search = functools.partial(
                ks.decoding.beam_search,
                model,
                ids[0, :rows],
                num_beams=beams,
                min_length=31,
                max_length=31,
            )
            yield f"{family}, beam search, B {rows}, beams {beams}", search


def work(words: list[str]) -> None:
    """The process of one revision: answers a line of input with seconds of a call."""
    for calls in (op_calls, model_calls):
        for name, call in calls():
            if not any(word in name for word in words):
                continue
            end = time.perf_counter() + WARM_UP
            while time.perf_counter() < end:
                call()
            print(name, flush=True)
            for line in sys.stdin:
                if not line.strip():
                    break
                start = time.perf_counter()
                call()
                print(time.perf_counter() - start, flush=True)
    print(flush=True)


class Process:
    """A revision that answers."""

    def __init__(self, folder: Path, words: list[str]):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", "--only", *words],
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        return self._process.stdout.readline().strip()

    def time(self) -> float:
        self.write("call")
        return float(self.read())

    def wait(self) -> int:
        return self._process.wait()

    def end(self) -> None:
        self._process.kill()

    def write(self, text: str) -> None:
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()


def compare(revision: str, words: list[str], seconds: float) -> None:
    print(f"{machine()}; working tree over {revision}\n")
    print("| | calls | ratio (quartiles) | ms, revision |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE
        )
        if archive.returncode:
            sys.exit(2)  # git has said why
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        old, new = Process(Path(folder), words), Process(ROOT, words)
        while name := old.read():
            new.read()
            found, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end or len(found) < 10:
                # Neither is always the first of a pair.
                turn = (old, new) if len(found) % 2 else (new, old)
                seconds_of = {process: process.time() for process in turn}
                found.append((seconds_of[old], seconds_of[new]))
            ratios = [after / before for before, after in found]
            low, middle, high = np.percentile(ratios, (25, 50, 75))
            before = np.median([pair[0] for pair in found]) * 1e3
            print(
                f"| {name} | {len(found)} | {middle:.3f} ({low:.3f}–{high:.3f}) "
                f"| {before:.1f} |",
                flush=True,
            )
            old.write("")
            new.write("")
        if status := old.wait():
            new.end()
            sys.exit(f"The process of {revision} ended with status {status}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a row")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.only)
    else:
        compare(options.revision, options.only, options.seconds)
