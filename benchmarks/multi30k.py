"""Multi30k: the systems of the papers trained on real text, as multi30k.md has them.

    python benchmarks/multi30k.py train dynamic_conv_a        # hours; resumes
    python benchmarks/multi30k.py score dynamic_conv_a        # reads the test set
    python benchmarks/multi30k.py tokenize                    # the files of protocol C
    python benchmarks/multi30k.py served dynamic_conv_b      # through a SavedModel
    python benchmarks/multi30k.py table

A row is a system and a protocol: A: English to German, the files lc.norm.tok, tokenised
BLEU, 6,000 words, or 10,000 as the published Transformer (a10k); B: the raw text,
sacreBLEU 13a; C: German to English, spaCy's tokens in lower case, greedy, BLEU as
torchtext computes it (needs `pip install spacy`). Training and scores are commands of
`keras-seqconv`, which are printed. Runs lie in runs/multi30k; `score` keeps what the
other actions need (scores, validation curve, translations) in benchmarks/multi30k.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from machine import PROGRAM, lines_of, machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
REPOSITORY = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).with_suffix("")
HYPOTHESES = "test2016.hypotheses"
CORPUS = Path(os.environ.get("KERAS_SEQCONV_DATA", ""), "multi30k")
SPACY = REPOSITORY / "runs/multi30k/spacy"


class Protocol(NamedTuple):
    """Files of a protocol, and how it searches and scores."""

    middle: str  # of file names: test2016.MIDDLE.de
    source: str
    target: str
    training: tuple[str, ...]
    search: dict
    metric: str
    tokenize: str


WORDS_6K = ("--vocabulary-size", "6000")
PROTOCOLS = {
    "a": Protocol("lc.norm.tok.", "en", "de", WORDS_6K, {}, "bleu", "none"),
    "a10k": Protocol(
        "lc.norm.tok.", "en", "de", ("--vocabulary-size", "10000"), {}, "bleu", "none"
    ),
    "b": Protocol("", "en", "de", WORDS_6K, {}, "bleu", "13a"),
    "c": Protocol(
        "spacy.", "de", "en",
        ("--tokenizer", "words", "--joint-vocabulary", "false", *WORDS_6K),
        {"num_beams": 1}, "torchtext_bleu", "none",
    ),
}  # fmt: skip


class Row(NamedTuple):
    """A line of the table."""

    preset: str
    protocol: str
    seed: int = 1


ROWS = {
    f"{system}_{protocol}{'' if seed == 1 else f'_seed{seed}'}": Row(
        f"{system}_multi30k", protocol, seed
    )
    for system, protocol, seed in (
        ("dynamic_conv", "a", 1),
        ("transformer", "a", 1),
        ("light_conv", "a", 1),
        ("query_conv", "a", 1),
        ("conv_s2s", "a", 1),
        ("dynamic_conv", "b", 1),
        ("conv_s2s", "c", 1),
        ("dynamic_conv", "c", 1),
        ("dynamic_conv", "a", 2),
        ("transformer", "a", 2),
        ("dynamic_conv_wide", "a", 1),
        ("dynamic_conv_wide", "a", 2),
        ("dynamic_conv", "a10k", 1),
        ("light_conv", "a10k", 1),
        ("query_conv", "a10k", 1),
        ("transformer", "a10k", 2),
        ("dynamic_conv", "a10k", 2),
    )
}


def text_file(row: Row, split: str, side: str) -> Path:
    protocol = PROTOCOLS[row.protocol]
    language = getattr(protocol, side)
    folder = CORPUS if row.protocol != "c" else SPACY
    if not folder.is_dir():
        sys.exit(
            f"{folder} is missing: KERAS_SEQCONV_DATA names its parent, docs/data.md"
        )
    return folder / f"{split}.{protocol.middle}{language}"


def train(options) -> None:
    """Runs or continues `keras-seqconv train` of a row."""
    row = ROWS[options.row]
    protocol = PROTOCOLS[row.protocol]
    words = [
        PROGRAM, "train",
        "--preset", row.preset,
        "--dataset", os.path.relpath(text_file(row, "train", "source").parent),
        "--workdir", str(options.runs / options.row),
        "--source-language", protocol.source,
        "--target-language", protocol.target,
        "--seed", str(row.seed), "--keep", "100",
        *protocol.training,
    ]  # fmt: skip
    words += options.more
    if protocol.middle:
        words += ["--variant", protocol.middle.rstrip(".")]
    print(shlex.join(words), flush=True)
    sys.exit(subprocess.run(words).returncode)


def score(options) -> None:
    """Scores the finished model on the test set and keeps what other actions need."""
    from keras_seqconv.callbacks.reporting import read_log
    from keras_seqconv.devices import share_cores
    from keras_seqconv.support.files import write_file
    from keras_seqconv.translation.text_model import default_parallel

    share_cores(default_parallel())  # as `keras-seqconv translate` does
    run, kept = options.runs / options.row, KEPT / options.row
    row = ROWS[options.row]
    kept.mkdir(parents=True, exist_ok=True)
    log = read_log(run / "log.jsonl")
    record = {"row": options.row, "machine": machine(), **training_of(run, log)}
    record["validation"] = evaluated(run / "model", row, "valid", None)
    record["test"] = evaluated(run / "model", row, "test2016", kept / HYPOTHESES)
    record["decoding"] = decoding(run / "model", row)
    curve = [json.dumps(one) for one in log if "val_nll" in one]
    write_file(kept / "log.jsonl", ("\n".join(curve) + "\n").encode())
    text = json.dumps(record, indent=1)
    write_file(kept / "result.json", (text + "\n").encode())
    print(text)


def without_folders(notes: dict, run: Path) -> list[str]:
    """The command of a run, without the folders of this machine."""
    names = {
        "--dataset": {os.path.relpath(CORPUS): "$KERAS_SEQCONV_DATA/multi30k"},
        "--workdir": {str(run): f"runs/multi30k/{run.name}"},
    }
    command = ["keras-seqconv", *notes["starts"][-1]["command"][1:]]
    for flag, known in names.items():
        place = command.index(flag) + 1
        command[place] = known.get(command[place], command[place])
    return command


def training_of(run: Path, log: list[dict]) -> dict:
    """Updates, minutes and speed from a run's log; parameters of its model."""
    import numpy as np

    import keras_seqconv as ks

    steps = [record for record in log if "loss" in record]
    model = ks.load(run / "model").model
    speeds = [record["tokens_per_second"] for record in steps]
    return {
        "command": without_folders(json.loads((run / "run.json").read_text()), run),
        "parameters": int(sum(np.prod(one.shape) for one in model.trainable_weights)),
        "updates": steps[-1]["update"],
        "minutes": round(log[-1]["seconds"] / 60, 1),
        "tokens_per_second": {
            "median": round(float(np.median(speeds))),
            "tenth": round(float(np.percentile(speeds, 10))),
            "ninetieth": round(float(np.percentile(speeds, 90))),
        },
    }


def evaluated(model: Path, row: Row, split: str, hypotheses: Path | None) -> dict:
    """What `keras-seqconv evaluate` says of a split; of protocol C torchtext's BLEU."""
    protocol, references = PROTOCOLS[row.protocol], text_file(row, split, "target")
    with tempfile.TemporaryDirectory() as folder:
        output = hypotheses or Path(folder) / HYPOTHESES
        metric = protocol.metric.replace("torchtext", "tokenized")
        words = [
            PROGRAM, "evaluate", str(model),
            "--source", str(text_file(row, split, "source")),
            "--reference", str(references), "--output-hypotheses", str(output),
            "--metrics", f"{metric},perplexity", "--tokenize", protocol.tokenize,
            "--json",
        ]  # fmt: skip
        for name, value in protocol.search.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        print(shlex.join(words), flush=True)
        found = json.loads(subprocess.run(words, check=True, stdout=-1).stdout)
        score = found["scores"][0]
        if protocol.metric == "torchtext_bleu":
            score = torchtext_bleu(output, references)
    return {
        "bleu": score["value"],
        "signature": score["signature"],
        "perplexity": found["perplexity"]["perplexity"],
    }


def torchtext_bleu(hypotheses: Path, references: Path) -> dict:
    """What `torchtext.data.metrics.bleu_score` returns, times 100.

    Tokenized BLEU in which `<unk>` matches `<unk>`; torchtext computes it in float32,
    hence differs by up to 1e-5.
    """
    from sacrebleu import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    texts, others = (lines_of(path) for path in (hypotheses, references))
    value = metric.corpus_score(texts, [others]).score
    return {"value": value, "signature": f"{metric.get_signature()}|unk:matches"}


def decoding(model: Path, row: Row) -> dict:
    """Target tokens a second on test 2016, each end counted, as fairseq counts them.

    The first of four translations traces the search; the other three are the speed.
    """
    import keras_seqconv as ks

    translator = ks.load(model)
    texts = lines_of(text_file(row, "test2016", "source"))
    speeds = []
    for _ in range(4):
        start = time.perf_counter()
        found = translator.translate_n_best(texts, 1, **PROTOCOLS[row.protocol].search)
        seconds = time.perf_counter() - start
        tokens = sum(len(best.tokens) + 1 for (best,) in found)
        speeds.append(round(tokens / seconds))
    first, *others = speeds
    return {
        "first": first,
        "median": sorted(others)[1],
        "least": min(others),
        "most": max(others),
    }


def served(options) -> None:
    """Translates the test set with the row's SavedModel; BLEU beside `translate`'s."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (ops of the graph)

    from keras_seqconv.support.files import write_file

    run, row = options.runs / options.row, ROWS[options.row]
    words = [PROGRAM, "export", str(run / "model")]
    subprocess.run([*words, "--output", str(run / "served")], check=True)
    version = max((run / "served").glob("[0-9]*"), key=lambda path: int(path.name))
    translate = tf.saved_model.load(version).signatures["serving_default"]
    texts = lines_of(text_file(row, "test2016", "source"))
    found = []
    for start in range(0, len(texts), 100):
        part = tf.constant(texts[start : start + 100])
        found += [one.decode() for one in translate(text=part)["translation"].numpy()]
    output = run / "test2016.served"
    write_file(output, ("\n".join(found) + "\n").encode())
    kept = KEPT / options.row / HYPOTHESES
    same = sum(map(str.__eq__, found, lines_of(kept)))
    print(f"{same:,} of {len(texts):,} translations are those of `evaluate`")
    for hypotheses in (output, kept):
        subprocess.run(
            [PROGRAM, "evaluate", "--hypotheses", str(hypotheses),
             "--reference", str(text_file(row, "test2016", "target")),
             "--metrics", "bleu", "--tokenize", PROTOCOLS[row.protocol].tokenize],
            check=True,
        )  # fmt: skip


def tokenize(options) -> None:
    """Writes the files of protocol C: spaCy's tokens, lower-cased, single spaces.

    As the tutorial has it; the rules of spaCy's tokenizers need no trained pipeline.
    """
    import spacy

    from keras_seqconv.support.files import write_file

    for language in ("de", "en"):
        rules = spacy.blank(language).tokenizer
        for split in ("train", "valid", "test2016"):
            lines = lines_of(CORPUS / f"{split}.{language}")
            tokens = [
                " ".join(str(one).lower() for one in rules(line) if str(one).strip())
                for line in lines
            ]
            file = SPACY / f"{split}.spacy.{language}"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, ("\n".join(tokens) + "\n").encode())
            print(f"{file}: {len(tokens):,} lines")


def table(options) -> None:
    """Prints the rows that were scored."""
    print(
        "| system | M parameters | updates | minutes | target tokens/s (10-90 %) | "
        "validation perplexity | validation BLEU | test BLEU | decoding, tokens/s | "
        "seed | precision |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in ROWS:
        file = KEPT / name / "result.json"
        if not file.exists():
            continue
        found = json.loads(file.read_text())
        speed = found["tokens_per_second"]
        print(
            f"| {name} | {found['parameters'] / 1e6:.2f} | {found['updates']:,} | "
            f"{found['minutes']:.0f} | {speed['median']:,} ({speed['tenth']:,}-"
            f"{speed['ninetieth']:,}) | {found['validation']['perplexity']:.2f} | "
            f"{found['validation']['bleu']:.2f} | {found['test']['bleu']:.2f} | "
            f"{found['decoding']['median']:,} ({found['decoding']['least']:,}-"
            f"{found['decoding']['most']:,}) | {ROWS[name].seed} | "
            f"{precision(found['command'])} |"
        )


def precision(command: list[str]) -> str:
    """That of a row, the preset's where the command of its training names none."""
    flag = "--precision"
    return command[command.index(flag) + 1] if flag in command else "float32"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=REPOSITORY / "runs/multi30k", help="work folders"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    for action in (train, score, served, tokenize, table):
        sub = actions.add_parser(action.__name__, help=action.__doc__)
        sub.set_defaults(call=action)
        if action in (train, score, served):
            sub.add_argument("row", choices=ROWS)
        if action is train:
            sub.add_argument("more", nargs="*", help="more flags of train, after --")
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
