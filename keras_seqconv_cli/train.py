"""`keras-seqconv train`: a corpus and a preset in, a trained model directory out."""

import argparse
import json
import os
import shlex
import typing
from pathlib import Path

from keras_seqconv_cli import check_models, one_line

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
    add_group, flags = parser.add_argument_group, {}
    groups = {name: add_group(name, text) for name, text in GROUPS.items()}
    for name, field in TrainingOptions.model_fields.items():
        group = groups[field.json_schema_extra["group"]]
        settings = {"metavar": _metavar(field.annotation)}
        if field.annotation is bool:
            settings = {"action": "store_const", "const": True}
        if bare := field.json_schema_extra["bare"]:
            settings |= {"nargs": "?", "const": bare}
        text = field.description.replace("%", "%%")
        if not field.is_required() and field.default not in (None, False, {}):
            text += f" (default {field.default})"
        flag = flags[f"`{name}`"] = f"--{name.replace('_', '-')}"
        names = {flag, flag.removesuffix("-language")}  # --source de
        settings |= {"help": text, "default": argparse.SUPPRESS, "dest": name}
        group.add_argument(*sorted(names, reverse=True), **settings)
    # Of functions that know nothing of this command.
    flags |= {"`on_error`='skip'": "--skip-bad-lines", "`name`": "--dataset"}
    parser.set_defaults(flags=flags)


def _metavar(annotation) -> str:
    """The value of a flag in help texts, also of a type in a union with None."""
    parts, origin = typing.get_args(annotation), typing.get_origin(annotation)
    if origin is typing.Literal:
        return "{" + ",".join(parts) + "}"
    known = {bool: "{true,false}", int: "N", float: "X", str: "NAME", dict: "JSON"}
    return known.get(origin or annotation) or _metavar(parts[0])


def check(options: argparse.Namespace) -> None:
    """Leaves the options of training in `options.training`."""
    from keras_seqconv.training_options import TrainingOptions, read_options

    given = dict(vars(options))
    for name in ("command", "flags", "config"):
        del given[name]
    if "architecture" in given:
        text = given["architecture"]
        try:
            given["architecture"] = json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"`architecture` must be a JSON object ({error}). Received: {text}"
            ) from None
    before = {} if options.config is None else read_options(options.config)
    options.training = TrainingOptions(**{**before, **given})
    if options.training.initialize_from is not None:
        check_models(options.training.initialize_from)
    dataset = options.training.dataset
    if dataset.startswith((".", "/", "~")) and not Path(dataset).expanduser().exists():
        raise FileNotFoundError(f"`dataset` must exist. Received: {dataset}")


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.presets import PRESETS
    from keras_seqconv.training import train

    try:
        result = train(options.training)
    except BaseException as error:
        if options.training.hosts is not None:
            # A normal end of the process would wait for the other hosts.
            text, status = "Interrupted.", getattr(error, "code", 130)
            if isinstance(error, Exception):
                text, status = f"error: {one_line(error, options)}", 2
            os.write(2, f"\n{text}\n".encode())
            os._exit(status)
        raise
    if result.folder is not None:
        preset = PRESETS[options.training.preset]
        use = "generate" if preset.is_language_model else "translate"
        run = shlex.quote(options.training.workdir)
        print(f"Next:\n  keras-seqconv {use} {run}\n  keras-seqconv export {run}")
    return result.status
