"""Does training ever wait for its data?

    python benchmarks/data.py            # 2 minutes, 600 MB in a temporary folder
    python benchmarks/data.py --quick    # a twentieth of the large corpus, one round

Multi30k (the lower-cased, tokenised files; word ids, once looked up by a Python
tokenizer and once within the graph) and a synthetic corpus of 4.5 million pairs, whose
lengths are like WMT's: log-normal, mean 28. Each corpus runs in a process of its own.

"write": texts to a store, that is reading, length filter, tokenising, writing; for the
synthetic corpus ids to a store. "stream": one epoch of `BatchStream.dataset()`,
iterated without training; the median of the rounds, with the least and the most.
Tokens a second are real target tokens, without padding. "padding": cells of an epoch
without a token, rows of padding included. "first": from opening the store to the first
batch, shapes chosen; "resume": the same to a batch in the middle of epoch 7, with the
table of shapes of the first run. "MB": most memory that the process ever had, and the
part of it that is not pages of files.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from machine import machine

MULTI30K = Path(__file__).parents[2] / "shared" / "data" / "multi30k"
LANGUAGES = ("de", "en")
PAIRS = 4_500_000
# What the small presets train at on the machine of benchmarks/README.md.
TRAINING = 12_000
COLUMNS = (
    "corpus", "tokens_per_batch", "pairs", "write pairs/s", "stream pairs/s",
    "stream target tokens/s", "times training", "padding", "shapes", "batches",
    "first s", "resume s", "MB", "MB not files",
)  # fmt: skip


class GraphWords:
    """Words to ids by hashing, in a graph."""

    in_graph = True

    def tokenize_tensor(self, texts):
        import tensorflow as tf

        ids = tf.strings.to_hash_bucket_fast(tf.strings.split(texts), 10_000) + 4
        ends = tf.fill([tf.shape(texts)[0], 1], 2)
        return tf.concat([tf.cast(ids, tf.int32), ends], axis=1)


def write_multi30k(folder, in_graph: bool):
    """(store, seconds)."""
    import tensorflow as tf

    from keras_seqconv.data import steps
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer

    files = [str(MULTI30K / f"train.lc.norm.tok.{language}") for language in LANGUAGES]
    tokenizers = [GraphWords()] * 2
    if not in_graph:
        texts = [Path(file).read_text("utf-8").splitlines() for file in files]
        counts = [words_of(lines) for lines in texts]
        tokenizers = [
            DictionaryTokenizer(Dictionary.from_counts(words)) for words in counts
        ]
    start = time.perf_counter()
    lines = tf.data.Dataset.zip(*(tf.data.TextLineDataset(file) for file in files))
    dataset = lines.map(lambda source, target: {"source": source, "target": target})
    dataset = (
        dataset.batch(1024)
        .apply(steps.filter_by_length(max_length=175))
        .apply(steps.tokenize(*tokenizers))
    )
    store = steps.write_store(dataset, folder, {"in_graph": in_graph})
    return store, time.perf_counter() - start


def words_of(lines) -> dict:
    counts: dict = {}
    for line in lines:
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
    return counts


def write_synthetic(folder, pairs: int):
    """(store, seconds)."""
    from keras_seqconv.data.store import IdStore

    rng = np.random.default_rng(1)
    start = time.perf_counter()
    with IdStore.writer(folder, {"pairs": pairs}) as writer:
        for first in range(0, pairs, 50_000):
            rows = min(50_000, pairs - first)
            mean = rng.lognormal(3.1, 0.65, rows)
            chunk = {}
            for key in ("source_ids", "target_ids"):
                lengths = np.clip(mean * rng.lognormal(0, 0.15, rows), 1, 250)
                lengths = lengths.astype("int64") + 1
                ids = rng.integers(4, 32_000, lengths.sum(), "int32")
                ids[np.cumsum(lengths) - 1] = 2
                chunk[key] = ids, lengths
            writer.add(chunk)
    return IdStore.open(folder), time.perf_counter() - start


def row(corpus: str, tokens: int, pairs: int, rounds: int, folder: str) -> dict:
    """What is measured, of one corpus in one process."""
    import tensorflow  # noqa: F401  its import is not part of any time

    from keras_seqconv.data.store import IdStore
    from keras_seqconv.data.stream import BatchStream

    if corpus == "synthetic":
        store, seconds = write_synthetic(folder, pairs)
    else:
        store, seconds = write_multi30k(folder, "graph" in corpus)
    written = len(store) / seconds
    del store

    start = time.perf_counter()
    stream = BatchStream(IdStore.open(folder), tokens)
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
    again = BatchStream(IdStore.open(folder), tokens, shapes=stream.shapes)
    next(iter(again.dataset(7 * batches + batches // 2)))
    resume = time.perf_counter() - start

    speed = statistics.median(speeds)
    share = len(stream.store) / number
    spread = f"{min(speeds) / 1e6:.2f} to {max(speeds) / 1e6:.2f}"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "corpus": corpus,
        "tokens_per_batch": tokens,
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
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(row(**json.loads(options.row))))
        return
    print(machine() + "\n")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    pairs = PAIRS // 20 if options.quick else PAIRS
    rows = [("synthetic", 4096)]
    if MULTI30K.is_dir():
        rows = [
            ("Multi30k", 4096),
            ("Multi30k", 8192),
            ("Multi30k, graph", 4096),
            *rows,
        ]
    for corpus, tokens in rows:
        with tempfile.TemporaryDirectory() as folder:
            arguments = {
                "corpus": corpus,
                "tokens": tokens,
                "pairs": pairs,
                "rounds": 1 if options.quick else options.rounds,
                "folder": f"{folder}/ids",
            }
            command = [sys.executable, __file__, "--row", json.dumps(arguments)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            "| " + " | ".join(str(found[name]) for name in COLUMNS) + " |", flush=True
        )


if __name__ == "__main__":
    main()
