"""`keras-seqconv generate`: texts that a language model writes."""

import argparse
import sys
from dataclasses import fields

import keras_seqconv as ks
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import Runtime, add_flags, add_options, given, load_models

LOADS_KERAS = False
HELP = "continue a text with a language model"
DESCRIPTION = (
    "Draw a text that begins with the prompt from a language model. It ends with the "
    "model's end token or after --length tokens. On a terminal it appears as it comes, "
    "except with --runtime keras."
)
_DRAWS = ("temperature", "top_k", "top_p")


class _Flags(Options):
    prompts: str = option("", "start of the text", flag="--prompt", metavar="TEXT")
    length: int = option(200, "largest number of tokens, prompt included", ge=1)
    seed: int | None = option(None, "seed of the draws")
    stream: bool = option(False, "write the text as it comes, also to a file or pipe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a model directory or a run"
    parser.add_argument("model", metavar="MODEL", help=text)
    add_flags(parser, _Flags)
    draws = [
        field for field in fields(ks.decoding.SampleOptions) if field.name in _DRAWS
    ]
    add_options(parser, draws)
    add_flags(parser, Runtime)


def run(options: argparse.Namespace) -> int:
    generator = load_models(options, options.model)
    if generator.model.has_source:
        raise ValueError(
            f"{options.model} translates: `keras-seqconv translate {options.model}`."
        )
    search = {"max_length": options.length, **given(options, (*_DRAWS, "seed"))}
    pieces = generator.stream(options.prompts, **search)
    if not (options.stream or sys.stdout.isatty()):
        pieces = ["".join(pieces)]
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    return 0
