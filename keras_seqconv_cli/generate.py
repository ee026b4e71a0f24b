"""`keras-seqconv generate`: texts that a language model writes."""

import argparse
import sys

from keras_seqconv_cli import (
    add_flags,
    add_runtime,
    given,
    load_models,
    names_of,
    positive_integer,
)

LOADS_KERAS = False
HELP = "continue a text with a language model"
DESCRIPTION = (
    "Draw a text that begins with the prompt from a language model. It ends with the "
    "model's end token or after --length tokens. On a terminal it appears as it comes, "
    "except with --runtime keras."
)
_DRAWS = {
    "--temperature X": "divisor of the logits (default 1)",
    "--top-k N": "draw from the N most probable tokens",
    "--top-p X": "draw from the most probable tokens with this total probability",
    "--seed I": "seed of the draws",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model directory or a run")
    add("--prompt", default="", metavar="TEXT", help="start of the text")
    text = "largest number of tokens, prompt included (default 200)"
    add("--length", type=positive_integer, default=200, metavar="N", help=text)
    stream = {"--stream": "write the text as it comes, also to a file or pipe"}
    add_flags(parser, _DRAWS | stream)
    add_runtime(parser)


def run(options: argparse.Namespace) -> int:
    generator = load_models(options, options.model)
    if generator.translates:
        raise ValueError(
            f"{options.model} translates: `keras-seqconv translate {options.model}`."
        )
    search = {"max_length": options.length, **given(options, names_of(_DRAWS))}
    pieces = generator.stream(options.prompt, **search)
    if not (options.stream or sys.stdout.isatty()):
        pieces = ["".join(pieces)]
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    return 0
