"""`keras-seqconv presets`: the named architectures."""

import argparse
import difflib

HELP = "list the named architectures, or show the recipe of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset to show")


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.presets import PRESETS
    from keras_seqconv.presets_text import describe, table

    if options.name is None:
        print(table())
        return 0
    if options.name not in PRESETS:
        near = difflib.get_close_matches(options.name, PRESETS)
        hint = f": did you mean {', '.join(near)}?" if near else "."
        raise ValueError(
            f"{options.name!r} is no preset{hint} `keras-seqconv presets` lists them"
        )
    print(describe(options.name))
    return 0
