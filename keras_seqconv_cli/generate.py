"""`keras-seqconv generate`: texts that a language model writes."""

import argparse

from keras_seqconv_cli import check_models, positive_integer

HELP = "continue a text with a language model"
DESCRIPTION = (
    "Draw a text that begins with the prompt from a language model. It ends with the "
    "model's end token or after --length tokens."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(positional=("model",))
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model directory or a run")
    add("--prompt", default="", metavar="TEXT", help="how the text begins")
    add(
        "--length", dest="max_length", type=positive_integer, default=200, metavar="N",
        help="most tokens, those of the prompt counted (default 200)",
    )  # fmt: skip
    add(
        "--temperature", type=float, default=1.0, metavar="X",
        help="below 1 likely tokens are preferred more than the model does (default 1)",
    )  # fmt: skip
    add("--top-k", type=positive_integer, metavar="N", help="of the N likeliest tokens")
    add("--top-p", type=float, metavar="X", help="of the likeliest of this probability")
    add("--seed", type=int, metavar="N", help="the same seed draws the same text")


def check(options: argparse.Namespace) -> None:
    check_models(options.model)


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.translation.translator import load

    generator = load(options.model)
    if not hasattr(generator, "tokenizer"):
        raise ValueError(
            f"{options.model} translates: `keras-seqconv translate {options.model}`."
        )
    names = ("seed", "temperature", "top_k", "top_p", "max_length")
    arguments = {name: getattr(options, name) for name in names}
    print(generator.sample([options.prompt], **arguments)[0])
    return 0
