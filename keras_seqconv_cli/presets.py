"""`keras-seqconv presets`: the named architectures."""

import argparse

HELP = "list the named architectures, or show the recipe of one"
LOADS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset to show")
    parser.set_defaults(positional=("name",))


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.presets_text import describe, table

    print(table() if options.name is None else describe(options.name))
    return 0
