"""`keras-seqconv train`: a corpus and a preset in, a trained model directory out."""

import argparse
import json
import typing

HELP = "train a model on a corpus, from a preset"
DESCRIPTION = (
    "Train a model. --preset, --dataset and --workdir are enough; all else comes from "
    "the preset's recipe and can be given instead. A run that was interrupted goes on "
    "when the same command is given again. --config repeats a run from its folder."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of the options; types and ranges are checked there."""
    from keras_seqconv_cli import load_quietly

    load_quietly()
    from keras_seqconv.training.options import GROUPS, TrainingOptions

    parser.add_argument(
        "--config",
        metavar="RUN",
        help="take the options of a run's folder, its run.json, or a JSON file; flags "
        "that are given as well replace them",
    )
    groups = {
        name: parser.add_argument_group(name, text) for name, text in GROUPS.items()
    }
    for name, field in TrainingOptions.model_fields.items():
        group = groups[field.json_schema_extra["group"]]
        settings = {"metavar": "X"}
        choices = _choices(field.annotation)
        if field.annotation is bool:
            settings = {"action": "store_const", "const": True}
        elif choices:
            settings = {"metavar": "{" + ",".join(choices) + "}"}
        elif bool in typing.get_args(field.annotation):
            settings = {"metavar": "{true,false}"}
        text = field.description.replace("%", "%%")
        if not field.is_required() and field.default not in (None, False, {}):
            text += f" (default {field.default})"
        group.add_argument(
            f"--{name.replace('_', '-')}",
            help=text,
            default=argparse.SUPPRESS,
            **settings,
        )


def _choices(annotation) -> tuple[str, ...]:
    """Of a Literal, also in a union with None."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    for part in typing.get_args(annotation):
        if found := _choices(part):
            return found
    return ()


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.training import train
    from keras_seqconv.training.options import check_options
    from keras_seqconv.training.run import read_options

    given = dict(vars(options))
    config = given.pop("config")
    given.pop("command")
    if "architecture" in given:
        given["architecture"] = _object(given["architecture"])
    before = {} if config is None else read_options(config)
    # So that the errors of the options name flags.
    for name in ("preset", "dataset", "workdir"):
        setattr(options, name, given.get(name))
    return train(check_options({**before, **given})).status


def _object(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"`architecture` must be a JSON object ({error}). Received: {text}"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"`architecture` must be a JSON object. Received: {text}")
    return value
