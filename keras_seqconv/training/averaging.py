"""A model directory of the mean of some checkpoints of a run."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import keras

from keras_seqconv import checkpoints
from keras_seqconv.model_directory import check_writable
from keras_seqconv.training.models import make_model, translator_of
from keras_seqconv.training.run import Run, headline, read_run
from keras_seqconv.training.text import is_language_model, read_tokenizers
from keras_seqconv.training_options import read_json


def average_run(
    folder: str | os.PathLike,
    output: str | os.PathLike,
    kind: str | None = None,
    count: int | None = None,
    *,
    files: Sequence[str | os.PathLike] | None = None,
    up_to: int | None = None,
    overwrite: bool = False,
) -> str:
    """Averages checkpoints of a run and writes a model directory.

    Args:
        folder: the work folder of `train`.
        output: the model directory, which `keras_seqconv.load` reads.
        kind: "last_epochs", "last_updates" or "best"; None: as the run's recipe says.
            Of a run without a whole epoch, its newest checkpoint.
        count: how many; None: as the run's recipe says.
        files: these checkpoints instead.
        up_to: none of a later update; not with "best".
        overwrite: replace a model directory.

    Returns:
        What was averaged, in words.

    Raises:
        FileNotFoundError: there is no run, or no such checkpoint.
        ValueError: there are no such checkpoints; one is damaged or of another model;
            the output is something else.
    """
    run, recipe = read_run(folder)
    check_writable(output, overwrite)
    if files is None and not checkpoints.find(run.checkpoints):
        raise ValueError(f"{run.folder} has no checkpoints yet: train first.")
    pair = read_tokenizers(run.tokenizers)
    if is_language_model(run.options.preset):
        pair = None, pair[1]
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(recipe["precision"])
    try:
        model = make_model(run.options, *pair)
    finally:
        keras.config.set_dtype_policy(policy)
    averaging = recipe["averaging"]
    if files is not None:
        done = _average(model, [Path(file) for file in files], "given")
    else:
        done = average(
            run, model, kind or averaging["kind"], count or averaging["count"], up_to
        )
    owner = translator_of(run, recipe, model, *pair)
    owner.save(output, overwrite)
    if Path(output).resolve() == run.model.resolve() and run.scores.exists():
        old = headline(read_json(run.scores))
        run.scores.unlink()
        done += f"\nscores.json was of the model before ({old}) and is removed"
    return done


def average(run: Run, model, kind: str, count: int, up_to: int | None = None) -> str:
    """Gives a model the mean of checkpoints of its run; says in words which."""
    what = kind.replace("_", " ")
    with warnings.catch_warnings():
        # That there are fewer is said below; that one is damaged is not.
        warnings.filterwarnings("ignore", r".* has \d+ checkpoints")
        try:
            if kind == "best":
                paths = checkpoints.best(run.checkpoints, count, *run.monitor)
            elif kind == "last_epochs":
                paths = checkpoints.last_epochs(run.checkpoints, count, up_to)
            else:
                paths = checkpoints.last_updates(run.checkpoints, count, up_to)
        except ValueError:
            if kind == "last_updates":
                raise
            for path in checkpoints.find(run.checkpoints):
                checkpoints.check(path)  # a damaged one may be what was asked for
            paths = checkpoints.last_updates(run.checkpoints, 1, up_to)
            why = "none is validated" if kind == "best" else "no epoch is complete"
            what = f"newest, as {why}"
    done = _average(model, paths, what)
    return done + (f"; there are no {count}" if len(paths) < count else "")


def _average(model, paths: Sequence[Path], what: str) -> str:
    checkpoints.average(paths, model)
    updates = ", ".join(str(number) for number in sorted(map(_update, paths)))
    one = "checkpoint" if len(paths) == 1 else "checkpoints"
    return f"Averaged {len(paths)} {one} ({what}: updates {updates})"


def _update(path: Path) -> int:
    return checkpoints.read_state(path)["update"]
