"""`keras-seqconv generate`: texts that a language model writes."""

import argparse
import sys
from dataclasses import fields

from keras_seqconv_cli import (
    add_flags,
    add_options,
    add_runtime,
    given,
    load_models,
    positive_integer,
)

LOADS_KERAS = False
HELP = "continue a text with a language model"
DESCRIPTION = (
    "Draw a text that begins with the prompt from a language model. It ends with the "
    "model's end token or after --length tokens. On a terminal it appears as it comes, "
    "except with --runtime keras."
)
_DRAWS = ("temperature", "top_k", "top_p")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from keras_seqconv.decoding.options import SampleOptions

    add = parser.add_argument
    add("model", metavar="MODEL", help="a model directory or a run")
    add("--prompt", default="", metavar="TEXT", help="start of the text")
    text = "largest number of tokens, prompt included (default 200)"
    add("--length", type=positive_integer, default=200, metavar="N", help=text)
    draws = [field for field in fields(SampleOptions) if field.name in _DRAWS]
    add_options(parser, draws)
    flags = {
        "--seed I": "seed of the draws",
        "--stream": "write the text as it comes, also to a file or pipe",
    }
    add_flags(parser, flags)
    add_runtime(parser)


def run(options: argparse.Namespace) -> int:
    generator = load_models(options, options.model)
    if generator.translates:
        raise ValueError(
            f"{options.model} translates: `keras-seqconv translate {options.model}`."
        )
    search = {"max_length": options.length, **given(options, (*_DRAWS, "seed"))}
    pieces = generator.stream(options.prompt, **search)
    if not (options.stream or sys.stdout.isatty()):
        pieces = ["".join(pieces)]
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    return 0
