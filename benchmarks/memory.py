"""What does `keep_freed_memory` do for training on a CPU?

    python benchmarks/memory.py            # about 4 minutes a turn on a slow machine

`keras-seqconv train` with the embedded corpus and its preset, in processes of their
own, by turns with and without it (GLIBC_TUNABLES set to what it is anyway turns it
off). Tokens a second are target tokens between updates 100 and 200, when every shape
has been met; page faults and processor time are of the whole process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

UPDATES, FIRST = 200, 100
OFF = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}
RUN = "import sys; from keras_seqconv_cli import main; sys.exit(main())"


def run(folder: Path, environment: dict) -> tuple[float, object]:
    """Target tokens a second, and the use of resources."""
    command = [
        sys.executable, "-c", RUN, "train", "--preset", "dynamic_conv_phrases",
        "--dataset", "phrases", "--tokens-per-batch", "4096",
        "--max-updates", str(UPDATES), "--updates-per-epoch", "50",
        "--workdir", str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    with open(folder.with_suffix(".log"), "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed, see {folder.with_suffix('.log')}")
    from keras_seqconv.callbacks.reporting import read_log

    rates = [
        record["tokens_per_second"]
        for record in read_log(folder / "log.jsonl")
        if record["update"] > FIRST and "tokens_per_second" in record
    ]
    return statistics.median(rates), usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    turns = options.turns
    found = {"kept": [], "as glibc has it": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for name, environment in zip(found, ({}, OFF), strict=True):
                place = Path(folder) / f"{name.split()[0]}-{turn}"
                found[name].append(run(place, environment))
    print(machine() + "\n")
    print(
        "| freed memory | tokens/s, each run | page faults | system time | user time |"
    )
    print("|---|---:|---:|---:|---:|")
    for name, runs in found.items():
        rates = ", ".join(f"{rate:,.0f}" for rate, _ in runs)
        faults, system, user = (
            statistics.median(getattr(usage, key) for _, usage in runs)
            for key in ("ru_minflt", "ru_stime", "ru_utime")
        )
        print(f"| {name} | {rates} | {faults:,.0f} | {system:.0f} s | {user:.0f} s |")


if __name__ == "__main__":
    main()
