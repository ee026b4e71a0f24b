"""The command line: one function call per sub-command."""

import argparse
from collections.abc import Sequence

from keras_seqconv.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Args:
        arguments: words after the program's name, `sys.argv[1:]` when None.
    """
    parser = argparse.ArgumentParser(
        prog="keras-seqconv", description="Convolutional sequence learning for Keras 3."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    quickstart = commands.add_parser(
        "quickstart",
        help="train a small causal model on data it makes, and show what it learned",
    )
    quickstart.add_argument(
        "--epochs", type=_positive, default=30, help="passes over the data (default 30)"
    )
    options = parser.parse_args(arguments)
    try:
        return _quickstart(options)
    except KeyboardInterrupt:
        print("\nInterrupted.")
        return 130


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def _quickstart(options: argparse.Namespace) -> int:
    from keras_seqconv.quickstart import main as quickstart

    quickstart(options.epochs)
    return 0
