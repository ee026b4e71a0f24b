"""`keras-seqconv average`: a model directory of the mean of checkpoints."""

import argparse
from pathlib import Path

from keras_seqconv_cli import check_files, positive_integer

HELP = "make a model directory of the mean of a run's checkpoints"
DESCRIPTION = (
    "Average checkpoints of a run of `keras-seqconv train`, as many and those that its "
    "recipe says or the options choose, and write a model directory."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the work folder of the run")
    which = parser.add_mutually_exclusive_group()
    add = which.add_argument
    add("--last-epochs", type=positive_integer, metavar="N", help="the last N epochs")
    add("--last-updates", type=positive_integer, metavar="N", help="the newest N")
    add("--best", type=positive_integer, metavar="N", help="the best N")
    which.add_argument(
        "--checkpoints", nargs="+", metavar="FILE", help="these files, update-*.npz"
    )
    parser.add_argument(
        "--up-to", type=positive_integer, metavar="N", help="none after update N"
    )
    parser.add_argument(
        "--output", metavar="DIR", help="the model directory (default RUN/model)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a model directory"
    )
    parser.set_defaults(positional=("run",), flags={"`overwrite`=True": "--overwrite"})


def check(options: argparse.Namespace) -> None:
    if options.up_to is not None and (options.best or options.checkpoints):
        raise ValueError(
            "`up_to` goes with `last_epochs` or `last_updates`. "
            f"Received: {options.up_to}"
        )
    check_files(str(Path(options.run) / "run.json"), *options.checkpoints or ())


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.training import average_run

    kinds = {
        "last_epochs": options.last_epochs,
        "last_updates": options.last_updates,
        "best": options.best,
    }
    chosen = [(kind, count) for kind, count in kinds.items() if count]
    output = Path(options.output or Path(options.run) / "model")
    done = average_run(
        options.run,
        output,
        *(chosen[0] if chosen else (None, None)),
        files=options.checkpoints,
        up_to=options.up_to,
        overwrite=options.overwrite or options.output is None,
    )
    print(f"{done}\nWritten to {output}")
    return 0
