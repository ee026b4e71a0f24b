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
    "--temperature X": "below 1 likely tokens are preferred more than the model does "
    "(default 1)",
    "--top-k N": "of the N likeliest tokens",
    "--top-p X": "of the likeliest of this probability",
    "--seed I": "the same seed draws the same text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model directory or a run")
    add("--prompt", default="", metavar="TEXT", help="how the text begins")
    text = "most tokens, those of the prompt counted (default 200)"
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
