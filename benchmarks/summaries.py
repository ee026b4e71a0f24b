"""Subject lines of e-mails: pairs to train first on, and what cannot be copied.

    python benchmarks/summaries.py sentences AESLC OUTPUT
    python benchmarks/summaries.py words AESLC HYPOTHESES
    python benchmarks/summaries.py long             # 5 minutes

"sentences" makes pairs from the bodies of the training part alone, no other text:
pieces of at most 60 words, and of each the sentence that shares most with the whole
body. A model that has written those knows how to find words in a source and copy them,
and goes on with the subjects (`train --initialize-from`). (Sentences that were taken
out of the source, as in PEGASUS, taught it nothing of the kind: see docs/results.md.)

"words" tells which words of the test subjects stand in the body and which of them the
hypotheses have: how much a model loses that cannot copy what it has seldom seen.

"long" times steps of training (`train_on_batch`, float32, targets of 8 tokens) of the
presets on sources of 400, 1,000 and 3,000 tokens, 12,000 in a batch, each in a process
of its own, whose peak memory is shown: median of 5 and range.
"""

import argparse
import collections
import re
import resource
import time
from pathlib import Path

from machine import in_a_process, lines_of, machine

LONGEST, SHORTEST, LONGEST_PIECE = 24, 3, 60
LENGTHS, TOKENS, TARGET = (400, 1000, 3000), 12_000, 8


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def pieces(body: str):
    """(sentences in a row, the one of them that shares most with the whole body)."""
    rest, piece, found = collections.Counter(words(body)), [], []
    for sentence in [
        *re.split(r"(?<=[.?!])\s+", body),
        " ".join(["end"] * LONGEST_PIECE),
    ]:
        if len(words(" ".join([*piece, sentence]))) > LONGEST_PIECE:
            fitting = [one for one in piece if SHORTEST <= len(words(one)) <= LONGEST]
            if fitting and len(piece) > 1:
                found.append(
                    (" ".join(piece), max(fitting, key=lambda one: shared(one, rest)))
                )
            piece = []
        piece.append(sentence)
    return found


def shared(sentence: str, rest: collections.Counter) -> float:
    """How often its words stand elsewhere in the body."""
    own = collections.Counter(words(sentence))
    return sum(min(rest[word] - n, 3) for word, n in own.items()) / len(own)


def write_sentences(corpus: Path, output: Path) -> None:
    bodies = lines_of(corpus / "train.body")
    output.mkdir(parents=True)
    pairs = [pair for body in bodies for pair in pieces(body)]
    for name, column in zip(("body", "subject"), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in column)
        (output / f"train.{name}").write_text(text)
    print(f"{len(pairs):,} pairs of {len(bodies):,} bodies")


def count_words(corpus: Path, hypotheses: Path) -> None:
    def read(path):
        return [set(words(line)) for line in lines_of(path)]

    training = collections.Counter()
    for name in ("body", "subject"):
        training.update(words((corpus / f"train.{name}").read_text()))
    kinds = collections.defaultdict(collections.Counter)
    columns = [corpus / "test.body", corpus / "test.subject", hypotheses]
    for body, subject, found in zip(*map(read, columns), strict=True):
        for word in subject:
            rare = "at most 20 times" if training[word] <= 20 else "more often"
            where = "in the body" if word in body else "elsewhere"
            kinds[rare, where]["words"] += 1
            kinds[rare, where]["written"] += word in found
    total = sum(kind["words"] for kind in kinds.values())
    print("| in training | stands | share of the words | written |\n|---|---|---|---|")
    for (rare, where), kind in sorted(kinds.items()):
        shares = kind["words"] / total, kind["written"] / kind["words"]
        print(f"| {rare} | {where} | {shares[0]:.1%} | {shares[1]:.1%} |")


def time_step(preset: str, length: int) -> tuple[list[float], int]:
    """Seconds of five steps, and the peak memory in MB."""
    import numpy as np

    import keras_seqconv as ks

    ks.keep_freed_memory()
    sizes = dict.fromkeys(("source_vocabulary_size", "target_vocabulary_size"), 8000)
    model = ks.models.from_preset(preset, **sizes)
    model.compile(ks.optimizers.AdamW(1e-4), ks.losses.LabelSmoothedCrossentropy(0.1))
    rng, rows = np.random.default_rng(1), TOKENS // length
    source, *target = (
        rng.integers(4, 8000, (rows, size), "int32")
        for size in (length, TARGET, TARGET)
    )
    inputs, seconds = {"source_ids": source, "target_ids": target[0]}, []
    for _ in range(7):
        start = time.perf_counter()
        model.train_on_batch(inputs, target[1])
        seconds.append(time.perf_counter() - start)
    return seconds[2:], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def time_steps() -> None:
    print(machine())
    print("\n| | " + " | ".join(f"S {length:,}: ms, MB" for length in LENGTHS) + " |")
    print("|---" * (len(LENGTHS) + 1) + "|")
    for kind in ("dynamic_conv", "light_conv", "transformer"):
        cells = []
        for length in LENGTHS:
            seconds, peak = in_a_process(time_step, f"{kind}_aeslc", length)
            low, _, middle, _, high = (1000 * one for one in sorted(seconds))
            cells.append(f"{middle:,.0f} ({low:,.0f}–{high:,.0f}), {peak:,.0f}")
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("sentences", "words", "long"))
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.what == "long":
        time_steps()
    else:
        do = {"sentences": write_sentences, "words": count_words}[options.what]
        do(*map(Path, options.arguments))


if __name__ == "__main__":
    main()
