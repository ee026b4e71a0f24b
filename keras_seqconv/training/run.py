"""The folder of a training run: what it was started with, and where its files lie."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import keras

from keras_seqconv import checkpoints
from keras_seqconv.support.files import locked, read_json, remove_parts, write_json
from keras_seqconv.training.recipe import Recipe
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.version import __version__

_FORMAT_VERSION = 1
# That a killed run may have been writing.
_FILES = r"(run\.json|log\.jsonl|scores\.json|test\.hypotheses|curves\.png)"
# May differ between a run and its continuation: they say when it ends and what it
# reports, and change no update.
_MAY_CHANGE = {
    "workdir", "data_dir", "manual_dir", "max_updates", "max_epochs", "early_stopping",
    "stop_learning_rate", "average", "average_kind", "num_beams", "length_penalty",
    "max_translation_length", "keep", "tensorboard", "validation_bleu", "monitor",
    "checkpoint_every", "jit_compile",
}  # fmt: skip


class Run:
    """A folder with fixed names for what a run writes."""

    def __init__(self, folder: str | os.PathLike, options: TrainingOptions):
        self.folder, self.options = Path(folder), options
        self.settings = self.folder / "run.json"
        self.tokenizers = self.folder / "tokenizers"
        self.data = self.folder / "data"
        self.checkpoints = self.folder / "checkpoints"
        self.log = self.folder / "log.jsonl"
        self.model = self.folder / "model"
        self.scores = self.folder / "scores.json"

    @property
    def monitor(self) -> tuple[str, str]:
        """The metric that says which checkpoint is best, and whether "min" or "max"."""
        bleu = self.options.monitor == "bleu"
        return f"val_{self.options.monitor}", "max" if bleu else "min"

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Source and target, as `read_text` found and noted them."""
        return tuple(read_json(self.settings).get("languages", (None, None)))

    @property
    def finished(self) -> bool:
        """Whether a run with these options has come to its end, and has its model."""
        done = read_json(self.settings).get("finished")
        return done == _what_matters(self.options) and self.model.is_dir()


@contextlib.contextmanager
def sole_run(folder: str | os.PathLike) -> Iterator[None]:
    """Makes the folder of a run where it is missing; keeps other trainings out of it.

    Raises:
        ValueError: the folder holds something else, or another process trains in it.
    """
    folder = Path(folder)
    started = (".lock", ".run.json.")  # and killed before there was a run.json
    empty = folder.is_dir() and all(n.startswith(started) for n in os.listdir(folder))
    if folder.exists() and not empty and not (folder / "run.json").exists():
        raise ValueError(
            "`workdir` must be a folder of a run, empty, or not exist. "
            f"Received: {folder}, which holds other files"
        )
    folder.mkdir(parents=True, exist_ok=True)
    taken = f"`workdir` must be one that nobody is training in now. Received: {folder}"
    with locked(folder / ".lock", taken):
        remove_parts(folder, _FILES)
        yield


def open_run(options: TrainingOptions, recipe: Recipe) -> Run:
    """Makes the folder of a run, or goes on in it; inside of `sole_run`.

    Raises:
        ValueError: the folder holds a run with other options.
    """
    run = Run(options.workdir, options)
    before = _read_settings(run.settings) if run.settings.exists() else {}
    if different := _differences(before, options):
        if checkpoints.find(run.checkpoints):
            raise ValueError(
                f"{run.folder} holds a run with other options; give its own, or "
                f"another `workdir`. Different are: {'; '.join(different)}"
            )
        _remove_text(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    write_json(
        run.settings,
        {
            **before,
            "format_version": _FORMAT_VERSION,
            "options": options.model_dump(exclude_unset=True),
            "recipe": recipe.to_json(),
            "starts": [*before.get("starts", ()), _start()],
        },
    )
    return run


def note(run: Run, **entries) -> None:
    """Adds entries to `run.json`, or replaces them."""
    write_json(run.settings, {**read_json(run.settings), **entries})


def note_finished(run: Run) -> None:
    """From now on the run is `finished`."""
    note(run, finished=_what_matters(run.options))


def _what_matters(options: TrainingOptions) -> dict:
    """The options without those that change nothing of what comes out."""
    return options.model_dump(exclude={"workdir", "data_dir", "manual_dir"})


def note_corpus(run: Run, digests: dict[str, str]) -> None:
    """Notes what `Corpus.digests` says at the first start, and compares it later.

    Raises:
        ValueError: the text is not what the checkpoints were trained on.
    """
    before = read_json(run.settings).get("corpus") or digests
    changed = {name for name, _ in before.items() ^ digests.items()}
    if changed and checkpoints.find(run.checkpoints):
        raise ValueError(
            f"`dataset` must hold what it held when the run in {run.folder} began; put "
            "the old text back, or give another `workdir`. Changed, new or missing: "
            + ", ".join(sorted(changed))
        )
    if changed:
        _remove_text(run)
    note(run, corpus=digests)


def _remove_text(run: Run) -> None:
    """What a start that came to nothing has made of other options or another text."""
    shutil.rmtree(run.tokenizers, ignore_errors=True)
    shutil.rmtree(run.data, ignore_errors=True)


def read_run(folder: str | os.PathLike) -> tuple[Run, Recipe]:
    """The run of a folder, and its recipe as it was resolved.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its `run.json` is damaged or of another version.
    """
    settings = _read_settings(Path(folder) / "run.json")
    options = TrainingOptions(**{**settings["options"], "workdir": str(folder)})
    return Run(folder, options), Recipe.from_json(settings["recipe"])


def remove_run(folder: str | os.PathLike) -> None:
    """Deletes the folder of a run, if it is one and nobody trains in it."""
    if (Path(folder) / "run.json").is_file():
        with sole_run(folder):
            shutil.rmtree(folder)


def headline(scores: dict) -> str:
    """The first score of `scores.json`, such as "test BLEU 41.3"; "" without one."""
    if "perplexity" in scores:
        return f"test perplexity {scores['perplexity']:.2f}"
    for name, score in scores.items():
        if isinstance(score, dict):
            return f"test {name} {score['score']:.1f}"
    return ""


def _read_settings(path: Path) -> dict:
    settings = read_json(path)
    if settings.get("format_version") != _FORMAT_VERSION:
        raise ValueError(
            f"{path}: `format_version` must be {_FORMAT_VERSION}. "
            f"Received: {settings.get('format_version')!r}"
        )
    if not all(isinstance(settings.get(key), dict) for key in ("options", "recipe")):
        raise ValueError(f"{path}: `options` and `recipe` must be JSON objects.")
    return settings


def _differences(settings: dict, options: TrainingOptions) -> list[str]:
    """Options that decide what a run does, and were others at its first start."""
    if not settings:
        return []
    before = TrainingOptions(**settings["options"]).model_dump()
    now = options.model_dump()
    return [
        f"{name} was {before[name]!r} and is {now[name]!r}"
        for name in now
        if name not in _MAY_CHANGE and now[name] != before[name]
    ]


def _start() -> dict:
    """Where and with what a run was started; for readers, nothing depends on it."""
    versions = {"keras_seqconv": __version__, "python": platform.python_version()}
    for package in ("keras", "tensorflow", "tensorflow-text", "sentencepiece", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": sys.argv,
        "backend": keras.backend.backend(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }
