"""`keras-seqconv average`: a model directory of the mean of checkpoints."""

import argparse
from dataclasses import fields
from pathlib import Path

import keras_seqconv as ks
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import add_flags, check_files, given

HELP = "make a model directory of the mean of a run's checkpoints"
DESCRIPTION = (
    "Average checkpoints of a run of `keras-seqconv train` to a model directory. "
    "Without options, the recipe of the run chooses the checkpoints."
)


class _Kinds(Options):
    last_epochs: int | None = option(None, "checkpoints of the last N epochs", ge=1)
    best: int | None = option(None, "best N checkpoints", ge=1)


class _Flags(Options):
    up_to: int | None = option(None, "no checkpoint after update N", ge=1)
    output: str | None = option(
        None,
        "model directory to write (default RUN/model, which is replaced)",
        metavar="DIR",
    )
    overwrite: bool = option(False, "replace the model directory of --output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    which = parser.add_mutually_exclusive_group()
    add_flags(which, _Kinds)
    files = {"nargs": "+", "metavar": "FILE", "help": "checkpoints, update-*.npz"}
    which.add_argument("--checkpoints", **files)
    add_flags(parser, _Flags)


def check(options: argparse.Namespace) -> None:
    if options.up_to is not None and options.checkpoints:
        raise ValueError(
            f"`up_to` must not be given with `checkpoints`. Received: {options.up_to}"
        )
    check_files(str(Path(options.run) / "run.json"), *options.checkpoints or ())


def run(options: argparse.Namespace) -> int:
    chosen = given(options, [field.name for field in fields(_Kinds)])
    kind = next(iter(chosen), None)
    output = Path(options.output or Path(options.run) / "model")
    ks.training.average_run(
        options.run,
        output,
        kind,
        chosen.get(kind),
        files=options.checkpoints,
        up_to=options.up_to,
        overwrite=options.overwrite or options.output is None,
    )
    return 0
