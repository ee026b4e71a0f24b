"""`keras-seqconv convert-fairseq`: a model directory of a fairseq checkpoint."""

import argparse
import json
import shlex
from dataclasses import fields
from pathlib import Path

import keras_seqconv as ks
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import add_flags, check_files

HELP = "make a model directory from a checkpoint of fairseq"
DESCRIPTION = (
    "Convert a checkpoint of fairseq to a model directory. No code of the checkpoint "
    "is executed. Needs torch: pip install 'keras-seqconv[convert]'."
)


class _Files(Options):
    source_dictionary: str | None = option(
        None, "dict.LANGUAGE.txt of the source", metavar="FILE"
    )
    target_dictionary: str | None = option(
        None, "dict.LANGUAGE.txt of the target", metavar="FILE"
    )
    dictionary: str | None = option(
        None, "dict.txt of a language model", metavar="FILE"
    )
    bpe_codes: str | None = option(
        None, "byte-pair codes of subword-nmt, for both sides", metavar="FILE"
    )
    source_bpe_codes: str | None = option(None, "codes of the source", metavar="FILE")
    target_bpe_codes: str | None = option(None, "codes of the target", metavar="FILE")


class _Flags(_Files):
    overwrite: bool = option(False, "replace a model directory")
    source_language: str | None = option(
        None, "language of the source, for Moses and folders", metavar="xx"
    )
    target_language: str | None = option(None, "language of the target", metavar="xx")
    moses: bool = option(False, "tokenize with Moses")
    normalize: bool = option(False, "normalize punctuation first")
    aggressive_dash_splits: bool = option(
        True,
        "leave x-y one token (the IWSLT recipe; Moses without -a)",
        flag="--no-dash-splits",
    )
    lowercase: bool = option(False, "lower-case the text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "a file, or a folder with model.pt (or one *.pt), dict.LANGUAGE.txt and "
        "bpecodes (or code, codes, codes.*), as fairseq publishes them"
    )
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help=text)
    add("--output", required=True, metavar="DIR", help="folder to write")
    add_flags(parser, _Flags)


def check(options: argparse.Namespace) -> None:
    check_files(*(getattr(options, field.name) for field in fields(_Files)))
    if not Path(options.checkpoint).is_dir():
        check_files(options.checkpoint)


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.translation.model_directory import (
        check_writable,
        save_with_graphs,
    )

    arguments = dict(vars(options))
    for name in ("command", "output", "overwrite", "bpe_codes"):
        del arguments[name]
    for name in ("source_bpe_codes", "target_bpe_codes"):
        arguments[name] = arguments[name] or options.bpe_codes
    check_writable(options.output, options.overwrite)
    translator = ks.convert.translator_from_fairseq(**arguments)
    written = save_with_graphs(translator, options.output, options.overwrite)
    print(_summary(translator, options.output, written))
    return 0


def _summary(translator, output: str, written: str) -> str:
    """Text about the result, and the commands that follow."""
    from keras_seqconv.models.stacks import MIXERS

    model, call = translator.model, "generate"
    family, mixers = type(model).__name__, json.dumps(model.get_config().get("mixer"))
    if kinds := [kind for kind in sorted(MIXERS) if f'"{kind}"' in mixers]:
        family += f" of {', '.join(kinds)}"
    sizes = f"target {model.target_vocabulary_size:,}"
    if hasattr(translator, "translate"):
        call = "translate"
        sizes = f"source {translator.source_tokenizer.vocabulary_size:,}, {sizes}"
    search = ", ".join(
        f"{name} {value}" for name, value in translator.search.changes().items()
    )
    return "\n".join(
        [
            f"model         {family}",
            f"parameters    {model.count_params():,}",
            f"vocabularies  {sizes}",
            f"search        {search or 'the defaults'}",
            written,
            "",
            "Next:",
            f"  keras-seqconv {call} {shlex.quote(output)}",
        ]
    )
