"""`keras-seqconv prepare`: the corpora of the papers from the files one downloads."""

import argparse
import os
import sys

from keras_seqconv_cli import Parser, positive_integer

HELP = "prepare a corpus of the papers, or parallel files, for training"
DESCRIPTION = (
    "Prepare a corpus as fairseq's scripts do, from files that were downloaded before: "
    "Moses' tokens, filters, splits, byte pairs, dictionaries. Makes a folder for "
    "`keras-seqconv train --dataset FOLDER --tokenizer FOLDER`, and prints how many "
    "pairs each filter leaves out. An interrupted run goes on when the same command is "
    "given again. Needs the packages of pip install 'keras-seqconv[mt]'."
)
LOADS_KERAS = False
_RECIPES = {
    "iwslt14": (
        "TED talks of IWSLT 2014, German-English and others",
        "the folder that holds de-en.tgz or its files, or the archive",
    ),
    "wmt14": (
        "news of WMT 2014, English with German or French",
        "the folder that holds the archives of statmt.org, or their files",
    ),
    "wmt16": (
        "English-German as tokenized by Google",
        "the folder that holds wmt16_en_de.tar.gz or its files, or the archive",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    recipes = parser.add_subparsers(
        dest="recipe", required=True, metavar="RECIPE", parser_class=Parser
    )
    for name, (text, data) in _RECIPES.items():
        one = recipes.add_parser(name, help=text, description=f"Prepare {text}.")
        one.add_argument("data", metavar="DATA", help=data)
        _add_common(one)
        add = one.add_argument
        source, target = ("de", "en") if name == "iwslt14" else ("en", "de")
        _add_languages(one, source, target)
        add("--list", action="store_true", help="list the files it reads, and end")
        one.set_defaults(positional=("data",))
        if name == "wmt14":
            add(
                "--news-commentary",
                choices=("v9", "v12"),
                help="v12 (default with German) is that of WMT 2017, v9 that of 2014",
            )
            add(
                "--separate-dictionaries",
                dest="joined",
                action="store_false",
                help="a dictionary for each side, for models that share no embeddings",
            )
    text = "any parallel files"
    _add_corpus(recipes.add_parser("corpus", help=text, description=f"Prepare {text}."))


def _add_languages(parser, *defaults: str) -> None:
    for number, side in enumerate(("source", "target")):
        default = defaults[number] if defaults else None
        parser.add_argument(
            f"--{side}-language",
            f"--{side}",
            dest=side,
            required=not defaults,
            default=default,
            metavar="xx",
            help=f"default {default}" if default else "language, two or three letters",
        )


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", metavar="DIR", help="the folder to make")
    add(
        "--tokenized",
        action="store_true",
        help="write tokens, as fairseq has them, instead of plain text",
    )
    add(
        "--workers",
        type=positive_integer,
        default=_processors(),
        metavar="N",
        help="processes for Moses (default: one for each processor)",
    )


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_languages(parser)
    for split, needed in (("train", True), ("valid", False), ("test", False)):
        add(
            f"--{split}",
            nargs=2,
            action="append",
            default=[],
            required=needed,
            metavar=("SOURCE", "TARGET"),
            help="parallel files, plain or compressed; may be given several times",
        )
    for split in ("valid", "test"):
        add(
            f"--{split}-every",
            type=positive_integer,
            metavar="N",
            help=f"take every N-th training line for {split} instead",
        )
    add(
        "--tokenizer",
        default="moses+bpe",
        choices=("none", "moses", "moses+bpe", "sentencepiece"),
        help="default moses+bpe; none leaves it to train",
    )
    add("--normalize", action="store_true", help="normalize punctuation, with Moses")
    add(
        "--remove-nonprinting",
        action="store_true",
        help="make blanks of control characters and the like",
    )
    add(
        "--no-dash-splits",
        dest="aggressive_dash_splits",
        action="store_false",
        help="leave x-y one token (Moses without -a)",
    )
    add("--lowercase", action="store_true", help="lower-case the text")
    add("--ratio", type=float, metavar="R", help="most words for a word of the other")
    add(
        "--least", type=positive_integer, default=1, metavar="N", help="words of a line"
    )
    add("--most", type=positive_integer, metavar="N", help="most words")
    add("--deduplicate", action="store_true", help="leave out doubles of pairs")
    add(
        "--merges",
        type=positive_integer,
        default=10000,
        metavar="N",
        help="byte pairs to learn, on both sides together (default 10000)",
    )
    add(
        "--vocabulary-size",
        type=positive_integer,
        default=10000,
        metavar="N",
        help="of sentencepiece (default 10000)",
    )
    add(
        "--separate-dictionaries",
        dest="joined",
        action="store_false",
        help="a dictionary or sentencepiece model for each side",
    )
    add("--threshold", type=int, default=-1, metavar="N", help="rarer tokens: unknown")
    add("--nwords", type=int, default=-1, metavar="N", help="most dictionary entries")
    add(
        "--on-error",
        default="raise",
        choices=("raise", "skip"),
        help="skip: leave out and count pairs that are not UTF-8 (default raise)",
    )
    _add_common(parser)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(options: argparse.Namespace) -> int:
    from keras_seqconv import preparation

    given = dict(vars(options))
    for name in ("command", "positional"):
        given.pop(name, None)
    name, data = given.pop("recipe"), given.pop("data", ".")
    output, tokenized = given.pop("output"), given.pop("tokenized")
    workers, only_list = given.pop("workers"), given.pop("list", False)
    recipe = getattr(preparation, name)(**given)
    if only_list:
        print("\n".join(preparation.listing(recipe, data)))
        return 0
    if output is None:
        raise ValueError("`output` must be given: the folder to make.")
    try:
        preparation.locate(recipe, data)
    except FileNotFoundError:
        print("\n".join(preparation.listing(recipe, data)), file=sys.stderr)
        raise
    try:
        report = preparation.prepare(
            recipe, data, output, tokenized=tokenized, workers=workers, log=_log
        )
    except (KeyboardInterrupt, SystemExit):
        print(
            "\nThe finished stages are kept; the same command goes on.", file=sys.stderr
        )
        raise
    print(summary(report, output))
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summary(report: dict, output: str) -> str:
    """The counts of a preparation, and what to do next."""
    lines = []
    for part in report["parts"]:
        lines.append(f"{part['part']} ({part['split']})")
        lines += _counts(part)
    for split, counts in report["splits"].items():
        lines.append(f"written to {split}")
        lines += _counts(counts)
    if vocabulary := report["vocabulary"]:
        lines.append("vocabulary")
        lines += _counts(vocabulary)
    tokenizer = f" --tokenizer {output}" if vocabulary else ""
    return "\n".join(
        [
            *lines,
            f"text: {report['text']}; scores of this recipe: "
            f"{report['recipe']['scoring'] or '-'}",
            f"written to {output}",
            "",
            "Next:",
            f"  keras-seqconv train --dataset {output}{tokenizer} --source-language "
            f"{report['recipe']['source']} --preset NAME --workdir RUN",
        ]
    )


def _counts(counts: dict) -> list[str]:
    return [
        f"  {name:<52}{number:>12,}"
        for name, number in counts.items()
        if isinstance(number, int) and not isinstance(number, bool)
    ]
