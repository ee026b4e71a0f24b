"""What a character costs that a language model writes, and what it takes in memory.

python benchmarks/language_models.py MODEL [--lengths 100,1000,10000,100000]
    [--window 256] [--recompute 200]

One text from the prompt "ROMEO:", drawn at temperature 0.8 from the 40 likeliest, each
length in a process of its own, whose peak memory is shown; the first call of a length,
which traces its graph, is not timed. `--recompute` characters are also written the
other way: the model is called on the last `--window` characters for each of them.
"""

import argparse
import resource
import time

import numpy as np
from machine import in_a_process, machine

import keras_seqconv as ks

OPTIONS = {"temperature": 0.8, "top_k": 40}


def written(model: str, length: int, rounds: int) -> tuple[list[float], int]:
    """Seconds of each round, and the peak memory in MB."""
    generator = ks.load(model)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        (text,) = generator.sample(["ROMEO:"], seed=1, max_length=length, **OPTIONS)
        seconds.append(time.perf_counter() - start)
        if len(text) != length:
            raise ValueError(f"{len(text)} characters instead of {length}")
    return seconds[1:], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def recomputed(model: str, length: int, window: int) -> float:
    """Characters a second when the past is computed anew for each of them."""
    import tensorflow as tf

    loaded = ks.load(model)
    rng = np.random.default_rng(1)
    function = tf.function(lambda ids: loaded.model({"target_ids": ids})[:, -1])
    ids = list(loaded.tokenizer.tokenize(["ROMEO:"])[0][:-1])
    ids = [loaded.model.start_id] * (window - len(ids)) + ids
    for step in range(length + 10):
        if step == 10:  # warm
            start = time.perf_counter()
        logits = function(tf.constant([ids[-window:]])).numpy()[0] / 0.8
        best = np.argsort(logits)[-40:]
        powers = np.exp(logits[best] - logits[best].max())
        ids.append(int(rng.choice(best, p=powers / powers.sum())))
    return length / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--lengths", default="100,1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--recompute", type=int, default=200)
    options = parser.parse_args()
    print(machine())
    print(
        "\n| characters | characters a second | ms each | peak MB |\n|---|---|---|---|"
    )
    for length in map(int, options.lengths.split(",")):
        rounds = options.rounds if length < 50_000 else 1
        seconds, peak = in_a_process(written, options.model, length, rounds)
        rates = sorted(length / one for one in seconds)
        spread = f"{rates[0]:,.0f}–{rates[-1]:,.0f}"
        middle = rates[len(rates) // 2]
        print(
            f"| {length:,} | {middle:,.0f} ({spread}) | {1000 / middle:.2f} "
            f"| {peak:,.0f} |"
        )
    rate = recomputed(options.model, options.recompute, options.window)
    print(
        f"| window of {options.window} each time | {rate:,.0f} | {1000 / rate:.2f} | |"
    )


if __name__ == "__main__":
    main()
