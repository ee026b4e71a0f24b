"""`keras-seqconv quickstart`: the main job from end to end in a few minutes."""

import argparse

HELP = "train, score and use a small model, from end to end in a few minutes"
DESCRIPTION = (
    "Train a small DynamicConv on an embedded corpus of English and German phrases, "
    "average its checkpoints, score it, and show translations."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workdir",
        default="runs/quickstart",
        metavar="DIR",
        help="the folder of the run (default runs/quickstart)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="start from the beginning, also if there is a run",
    )


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.quickstart import main
    from keras_seqconv.training.run import remove_run

    if options.overwrite:
        remove_run(options.workdir)
    return main(options.workdir)
