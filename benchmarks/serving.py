"""How fast is an export? Against the plain graph, and with 64 clients on a server.

    python benchmarks/serving.py graph                      # a preset's size, 2 minutes
    python benchmarks/serving.py load MODEL_DIRECTORY       # latency and throughput

"graph": one process, in turns: the search as a part of a user's graph, as
benchmarks/decoding.py has it, and `translate_ids` of the loaded export; the median of
the ratios. "load": 64 clients, half by REST and half by gRPC, requests of 1 to 4 texts
of mixed lengths, against `tensorflow_model_server` or the stand-in of the tests (which
is Python: its own share counts), each setting of threads in a process of its own.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from machine import in_a_process

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "examples")]


def graph(options) -> None:
    """Ratio of times, export to plain graph, for several batches and beams."""
    import tensorflow as tf

    import keras_seqconv as ks
    from benchmarks.decoding import TARGET, make_model, make_sources
    from benchmarks.decoding import search as search_of
    from keras_seqconv.export import saved_model

    model = make_model(options.family)
    print("| (B, beams) | plain graph, ms | export, ms | ratio |\n|---|---|---|---|")
    for beams in (1, 5):
        plain = tf.function(lambda ids, beams=beams: search_of(model, ids, beams))
        search = {
            "num_beams": beams, "min_length": TARGET - 1, "max_length": TARGET - 1,
        }  # fmt: skip
        translator = ks.Translator(model, search=search)
        with tempfile.TemporaryDirectory() as folder:
            path = saved_model(translator, f"{folder}/model", tokens_per_batch=10240)
            loaded = tf.saved_model.load(str(path)).signatures["translate_ids"]
        for batch in (1, 16, 64):
            sources = tf.constant(make_sources(batch))
            lengths = tf.fill([batch], tf.shape(sources)[1])
            calls = [
                lambda plain=plain, sources=sources: plain(sources)[0].numpy(),
                lambda loaded=loaded, sources=sources, lengths=lengths: loaded(
                    source_ids=sources, lengths=lengths
                )["ids"].numpy(),
            ]
            np.testing.assert_array_equal(*(call() for call in calls))
            times = np.array(
                [[seconds(call) for call in calls] for _ in range(options.repetitions)]
            )
            ratio = np.median(times[:, 1] / times[:, 0])
            one, other = np.median(times, axis=0) * 1000
            print(f"| ({batch}, {beams}) | {one:.0f} | {other:.0f} | {ratio:.2f} |")


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def load(options) -> None:
    """A table of thread settings, each measured by a process of its own."""
    import keras_seqconv as ks
    from keras_seqconv.export import saved_model

    print("| intra, inter | requests/s | texts/s | p50 ms | p90 ms | p99 ms | server |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        saved_model(ks.load(options.model), f"{folder}/model")
        for threads in ("0,0", "1,1", "1,2", "2,1", "2,2"):
            in_a_process(client_load, f"{folder}/model", threads, options)


def client_load(model: str, threads: str, options) -> None:
    """Prints a row: requests of clients to a server with these threads."""
    import tensorflow as tf
    from serve_client import GrpcClient, RestClient

    from tests.export.server import serving

    intra, inter = map(int, threads.split(","))
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    texts = [
        "three guests",
        "Anna called three guests at half past three.",
        "The bus to the old town comes at seven fifteen, not at half past eight. " * 2,
    ]
    times, texts_done = [], []
    folder = Path(model)
    with serving(folder) as address:
        ends = time.monotonic() + options.seconds

        def work(number):
            draw = np.random.default_rng(number)
            rest = number % 2
            client = (
                RestClient(folder.name, address.rest)
                if rest
                else GrpcClient(folder.name, address.grpc)
            )
            while time.monotonic() < ends:
                asked = [str(t) for t in draw.choice(texts, draw.integers(1, 5))]
                times.append(seconds(lambda asked=asked: client.translate(asked)))
                texts_done.append(len(asked))

        clients = [
            threading.Thread(target=work, args=(one,)) for one in range(options.clients)
        ]
        start = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        took = time.monotonic() - start
    p50, p90, p99 = np.percentile(times, [50, 90, 99]) * 1000
    print(
        f"| {threads} | {len(times) / took:.1f} | {sum(texts_done) / took:.1f} "
        f"| {p50:.0f} | {p90:.0f} | {p99:.0f} | {address.kind} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("graph", "load"))
    parser.add_argument("model", nargs="?", help="a model directory")
    parser.add_argument("--family", default="dynamic_conv", help="of `graph`")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    {"graph": graph, "load": load}[options.what](options)


if __name__ == "__main__":
    main()
