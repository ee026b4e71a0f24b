"""`keras-seqconv prepare`: the corpora of the papers from the files one downloads."""

import argparse
import sys

from keras_seqconv_cli import Parser, add_flags, given, positive_integer

HELP = "prepare a corpus of the papers, or parallel files, for training"
DESCRIPTION = (
    "Prepare a corpus from downloaded files as fairseq's scripts do: Moses tokens, "
    "filters, splits, byte pairs, dictionaries. Writes a folder for `keras-seqconv "
    "train --dataset FOLDER --tokenizer FOLDER`, and prints the number of pairs that "
    "each filter leaves out. The same command resumes an interrupted run. Needs "
    "pip install 'keras-seqconv[mt]'."
)
LOADS_KERAS = False
_RECIPES = {
    "iwslt14": (
        "TED talks of IWSLT 2014, German-English and others",
        "the folder that holds de-en.tgz or its files, or the archive",
        ("de", "en"),
    ),
    "wmt14": (
        "news of WMT 2014, English with German or French",
        "the folder that holds the archives of statmt.org, or their files",
        ("en", "de"),
    ),
    "wmt16": (
        "English-German as tokenized by Google",
        "the folder that holds wmt16_en_de.tar.gz or its files, or the archive",
        ("en", "de"),
    ),
    "corpus": ("any parallel files", None, (None, None)),
}

_CORPUS = {
    "--tokenizer none|moses|moses+bpe|sentencepiece": "tokenizer of the text (default "
    "moses+bpe); with none, `train` makes it",
    "--valid-every N": "every N-th training line becomes the validation split",
    "--test-every N": "every N-th training line becomes the test split",
    "--least N": "fewest words of a line",
    "--most N": "most words of a line",
    "--ratio X": "largest ratio of the numbers of words of a pair",
    "--merges N": "byte pairs, learned on both sides together (default 10000)",
    "--vocabulary-size N": "entries of SentencePiece (default 10000)",
    "--threshold I": "count below which a token is unknown",
    "--nwords I": "largest size of a dictionary",
    "--normalize": "normalize punctuation, with Moses",
    "--remove-nonprinting": "replace control and format characters by blanks",
    "--lowercase": "lower-case the text",
    "--deduplicate": "leave out repeated pairs",
    "--on-error raise|skip": "skip: leave out and count pairs that are not UTF-8 "
    "(default raise)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from keras_seqconv.devices import available_cores

    recipes = parser.add_subparsers(
        dest="recipe", required=True, metavar="RECIPE", parser_class=Parser
    )
    for recipe, (text, data, languages) in _RECIPES.items():
        command = recipes.add_parser(recipe, help=text, description=f"Prepare {text}.")
        add = command.add_argument
        if data is not None:
            add("data", metavar="DATA", help=data)
            add(
                "--list",
                action="store_true",
                help="list the input files, and end",
            )
        for side, default in zip(("source", "target"), languages, strict=True):
            known = f"default {default}" if default else "two or three letters"
            add(
                f"--{side}-language", f"--{side}", dest=side, metavar="xx", help=known,
                required=default is None, default=default,
            )  # fmt: skip
        if recipe == "wmt14":
            add(
                "--news-commentary", choices=("v9", "v12"),
                help="v12 (default with German) is that of WMT 2017, v9 that of 2014",
            )  # fmt: skip
        if recipe == "corpus":
            for split in ("train", "valid", "test"):
                add(
                    f"--{split}", nargs=2, action="append", default=[],
                    required=split == "train", metavar=("SOURCE", "TARGET"),
                    help="parallel files, plain or compressed; may be given several "
                    "times",
                )  # fmt: skip
            add_flags(command, _CORPUS)
            add(
                "--no-dash-splits", dest="aggressive_dash_splits", action="store_false",
                help="leave x-y one token (Moses without -a)",
            )  # fmt: skip
        if recipe in ("corpus", "wmt14"):
            add(
                "--separate-dictionaries", dest="joined", action="store_false",
                help="a dictionary (or sentencepiece model) for each side, for models "
                "that share no embeddings",
            )  # fmt: skip
        add("--output", metavar="DIR", help="folder to write")
        add(
            "--tokenized", action="store_true",
            help="write tokens, as fairseq does, in place of plain text",
        )  # fmt: skip
        add(
            "--workers", type=positive_integer, default=available_cores(), metavar="N",
            help="processes for Moses (default: one for each processor)",
        )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from keras_seqconv import preparation

    chosen = given(options, vars(options))
    del chosen["command"]
    name, data = chosen.pop("recipe"), chosen.pop("data", ".")
    output, only_list = chosen.pop("output", None), chosen.pop("list", False)
    how = {name: chosen.pop(name) for name in ("tokenized", "workers")}
    recipe = getattr(preparation, name)(**chosen)
    if only_list:
        print("\n".join(preparation.listing(recipe, data)))
        return 0
    if output is None:
        raise ValueError("`output` must be given: the folder to make.")
    try:
        report = preparation.prepare(recipe, data, output, **how, log=_log)
    except FileNotFoundError:
        print("\n".join(preparation.listing(recipe, data)), file=sys.stderr)
        raise
    except (KeyboardInterrupt, SystemExit):
        _log("\nThe finished stages are kept; the same command goes on.")
        raise
    print(summary(report, output))
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summary(report: dict, output: str) -> str:
    """The counts of a preparation, and what to do next."""
    counted = {f"{part['part']} ({part['split']})": part for part in report["parts"]}
    counted |= {f"written to {name}": one for name, one in report["splits"].items()}
    counted |= {"vocabulary": report["vocabulary"]} if report["vocabulary"] else {}
    lines = []
    for title, counts in counted.items():
        lines.append(title)
        lines += [
            f"  {name:<52}{number:>12,}"
            for name, number in counts.items()
            if isinstance(number, int) and not isinstance(number, bool)
        ]
    recipe = report["recipe"]
    tokenizer = f" --tokenizer {output}" if report["vocabulary"] else ""
    lines += [
        f"text: {report['text']}; scores of this recipe: {recipe['scoring'] or '-'}",
        f"written to {output}",
        "",
        "Next:",
        f"  keras-seqconv train --dataset {output}{tokenizer} --source-language "
        f"{recipe['source']} --preset NAME --workdir RUN",
    ]
    return "\n".join(lines)
