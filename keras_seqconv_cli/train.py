"""`keras-seqconv train`: a corpus and a preset in, a trained model directory out."""

import argparse
import contextlib
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import keras_seqconv as ks
from keras_seqconv_cli import add_options, check_models, given, one_line

HELP = "train a model on a corpus, from a preset"
DESCRIPTION = (
    "Train a model. --preset, --dataset and --workdir are required; other options "
    "replace values of the preset. The same command resumes an interrupted run. "
    "--config repeats a run from its folder."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of the options; types and ranges are checked there."""
    from keras_seqconv.training_options import GROUPS, TrainingOptions

    parser.add_argument(
        "--config",
        metavar="RUN",
        help="options of a run (its folder or run.json), or a JSON file of options; "
        "flags replace them",
    )
    aliases = {"source_language": "--source", "target_language": "--target"}
    for name, text in GROUPS.items():
        members = [
            field
            for field in fields(TrainingOptions)
            if field.metadata["group"] == name
        ]
        group = parser.add_argument_group(name, text)
        add_options(group, members, aliases, show_defaults=True)


def check(options: argparse.Namespace) -> None:
    """Leaves the options of training in `options.training`."""
    from keras_seqconv.training_options import TrainingOptions, read_options

    chosen = given(options, [field.name for field in fields(TrainingOptions)])
    before = {} if options.config is None else read_options(options.config)
    options.training = TrainingOptions.from_json({**before, **chosen})
    if options.training.initialize_from is not None:
        check_models(options.training.initialize_from)
    dataset = options.training.dataset
    if dataset.startswith((".", "/", "~")) and not Path(dataset).expanduser().exists():
        raise FileNotFoundError(f"`dataset` must exist. Received: {dataset}")


def run(options: argparse.Namespace) -> int:
    try:
        result = ks.training.train(options.training)
    except BaseException as error:
        if options.training.hosts is not None:
            # A normal end of the process would wait for the other hosts.
            text, status = "Interrupted.", getattr(error, "code", 130)
            if isinstance(error, Exception):
                text, status = f"error: {one_line(error)}", 2
            with contextlib.suppress(OSError):
                sys.stdout.flush()  # which ends without it
            os.write(2, f"\n{text}\n".encode())
            os._exit(status)
        raise
    if result.folder is not None:
        preset = ks.presets.PRESETS[options.training.preset]
        use = "generate" if preset.is_language_model else "translate"
        run = shlex.quote(options.training.workdir)
        print(f"Next:\n  keras-seqconv {use} {run}\n  keras-seqconv export {run}")
    return result.status
