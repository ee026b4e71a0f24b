"""Does training ever wait for its data?

    python benchmarks/data.py            # 2 minutes, 600 MB in a temporary folder
    python benchmarks/data.py --pairs 500000,5000000,40000000   # 6 GB

Synthetic corpora, whose lengths are like WMT's: log-normal, mean 28. Each runs in a
process of its own.

"write": ids to a store. "stream": one epoch of `BatchStream.dataset()`,
iterated without training; the median of the rounds, with the least and the most.
Tokens a second are real target tokens, without padding. "padding": cells of an epoch
without a token, rows of padding included. "first": from opening the store to the first
batch, shapes chosen; "resume": the same to a batch in the middle of epoch 7. "MB": most
memory that the process ever had, and the part of it that is not pages of files.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from machine import in_a_process, machine

TOKENS = 4096  # of a batch
# What the small presets train at on the machine of benchmarks/README.md.
TRAINING = 12_000
COLUMNS = (
    "pairs", "write pairs/s", "stream pairs/s", "stream target tokens/s",
    "times training", "padding", "shapes", "batches",
    "first s", "resume s", "MB on disk", "MB", "MB not files",
)  # fmt: skip


def write_synthetic(folder, pairs: int):
    """(store, seconds)."""
    from keras_seqconv.data import IdStore

    rng = np.random.default_rng(1)

    def rows():
        for first in range(0, pairs, 50_000):
            number = min(50_000, pairs - first)
            mean = rng.lognormal(3.1, 0.65, number)
            sides = []
            for _ in range(2):
                lengths = np.clip(mean * rng.lognormal(0, 0.15, number), 1, 250)
                ends = np.cumsum(lengths.astype("int64") + 1)
                ids = rng.integers(4, 32_000, ends[-1], "int32")
                ids[ends - 1] = 2
                sides.append(np.split(ids, ends[:-1]))
            for source, target in zip(*sides, strict=True):
                yield {"source_ids": source, "target_ids": target}

    start = time.perf_counter()
    return IdStore.write(folder, rows()), time.perf_counter() - start


def row(pairs: int, rounds: int, folder: str) -> dict:
    """What is measured, of one corpus in one process."""
    import tensorflow  # noqa: F401  its import is not part of any time

    from keras_seqconv.data.batches import BatchStream
    from keras_seqconv.data.ids import IdStore

    store, seconds = write_synthetic(folder, pairs)
    written = len(store) / seconds
    del store

    start = time.perf_counter()
    stream = BatchStream(IdStore.open(folder), TOKENS)
    next(iter(stream.dataset()))
    first = time.perf_counter() - start

    batches = stream.batches_per_epoch()
    number = int(stream.store.lengths["target_ids"].sum(dtype="int64"))
    speeds = []
    for number_of_round in range(rounds):
        start = time.perf_counter()
        for _ in stream.dataset(number_of_round * batches).take(batches):
            pass
        speeds.append(number / (time.perf_counter() - start))

    start = time.perf_counter()
    again = BatchStream(IdStore.open(folder), TOKENS)
    next(iter(again.dataset(7 * batches + batches // 2)))
    resume = time.perf_counter() - start

    speed = statistics.median(speeds)
    share = len(stream.store) / number
    spread = f"{min(speeds) / 1e6:.2f} to {max(speeds) / 1e6:.2f}"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "pairs": f"{len(stream.store):,}",
        "write pairs/s": f"{written:,.0f}",
        "stream pairs/s": f"{speed * share:,.0f}",
        "stream target tokens/s": f"{speed / 1e6:.2f} M ({spread})",
        "times training": f"{speed / TRAINING:,.0f}",
        "padding": f"{stream.padding_share:.1%}",
        "shapes": len(stream.shapes),
        "batches": batches,
        "first s": f"{first:.2f}",
        "resume s": f"{resume:.2f}",
        "MB on disk": f"{sum(map(os.path.getsize, Path(folder).iterdir())) >> 20:,}",
        "MB": f"{most:,.0f}",
        "MB not files": f"{not_files():,.0f}",
    }


def not_files() -> float:
    """Memory of this process that is no file's page, in MB; now, not at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", default="4500000", help="of corpora, with commas")
    options = parser.parse_args()
    print(machine() + "\n")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for pairs in map(int, options.pairs.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            found = in_a_process(row, pairs, options.rounds, f"{folder}/ids")
        print(
            "| " + " | ".join(str(found[name]) for name in COLUMNS) + " |", flush=True
        )


if __name__ == "__main__":
    main()
