"""`keras-seqconv generate`: texts that a language model writes."""

import argparse

import keras_seqconv as ks
from keras_seqconv_cli import add_flags, given, names_of, positive_integer

HELP = "continue a text with a language model"
DESCRIPTION = (
    "Draw a text that begins with the prompt from a language model. It ends with the "
    "model's end token or after --length tokens."
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
    add_flags(parser, _DRAWS)


def run(options: argparse.Namespace) -> int:
    generator = ks.load(options.model)
    if not hasattr(generator, "tokenizer"):
        raise ValueError(
            f"{options.model} translates: `keras-seqconv translate {options.model}`."
        )
    search = {"max_length": options.length, **given(options, names_of(_DRAWS))}
    print(generator.sample([options.prompt], **search)[0])
    return 0
