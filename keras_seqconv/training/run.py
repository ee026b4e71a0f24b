"""The folder of a training run, and its start on one host or several."""

import contextlib
import dataclasses
import hashlib
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

from keras_seqconv import checkpoints, hosts
from keras_seqconv.data.batches import BatchStream
from keras_seqconv.data.ids import IdStore
from keras_seqconv.presets import PRESETS
from keras_seqconv.recipes import Recipe
from keras_seqconv.support import files, versions
from keras_seqconv.support.files import read_json, write_json
from keras_seqconv.training.text import Text, corpus_of, remove_text, text_of
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translation.model_directory import tokenizer_fingerprint

_FORMAT_VERSION = 1
# Packages that training depends on.
_PACKAGES = "keras", "jax", "tensorflow", "tensorflow-text", "sentencepiece", "numpy"
# Files that a killed run may have been writing.
_FILES = r"(run\.json|log\.jsonl|scores\.json|sample\.txt|test\.hypotheses|curves\.png)"
# Options that may change in a resumed run: no update depends on them. Those of the
# machine may differ between the hosts of a run, too.
_RESULT = {
    "max_updates", "max_epochs", "early_stopping", "stop_learning_rate", "average",
    "average_kind", "num_beams", "length_penalty", "max_translation_length", "monitor",
    "metrics", "num_hosts",
}  # fmt: skip
_PROCESS = {"keep", "tensorboard", "validation_bleu", "jit_compile"}
_MACHINE = {"workdir", "data_dir", "manual_dir", "hosts", "host_index"}


class Run:
    """A folder with fixed names for what a run writes.

    `writes` is False on a host that shares the folder of host 0.
    """

    def __init__(
        self, folder: str | os.PathLike, options: TrainingOptions, writes: bool = True
    ):
        self.folder, self.options, self.writes = Path(folder), options, writes
        self.settings = self.folder / "run.json"
        self.tokenizers = self.folder / "tokenizers"
        self.data = self.folder / "data"
        self.checkpoints = self.folder / "checkpoints"
        self.log = self.folder / "log.jsonl"
        self.model = self.folder / "model"
        self.scores = self.folder / "scores.json"

    @property
    def monitor(self) -> str:
        """The metric that says which checkpoint is best.

        Where texts are right or wrong as a whole, nats rise with the confidence in
        wrong symbols while more of them become right.
        """
        of_symbols = PRESETS[self.options.preset].task.metric == "exact"
        default = "accuracy" if of_symbols else "nll"
        return f"val_{self.options.monitor or default}"

    @property
    def languages(self) -> tuple:
        """Of source and target; None where unknown."""
        return tuple(read_json(self.settings).get("languages", (None, None)))

    @property
    def finished(self) -> bool:
        """Whether a run with these options has come to its end, and has its model."""
        finished = read_json(self.settings).get("finished") or {}
        # Version 0.1.0 notes None, too, and options that there are no more.
        names = vars(self.options).keys() - _PROCESS
        finished = {n: v for n, v in finished.items() if n in names and v is not None}
        return finished == self.what_matters() and self.model.is_dir()

    @property
    def has_trained(self) -> bool:
        """Whether there is a result that options and text must not change."""
        return bool(checkpoints.find(self.checkpoints)) or self.model.is_dir()

    def stream(self, text: Text, store: IdStore, **options) -> BatchStream:
        """Batches of a store of the run's text."""
        return BatchStream(
            store,
            tokens_per_batch=text.recipe.tokens_per_batch,
            max_shapes=self.options.max_shapes,
            **options,
        )

    @property
    def last_start(self) -> dict | None:
        starts = read_json(self.settings)["starts"] if self.settings.exists() else ()
        return starts[-1] if starts else None

    def note(self, **entries) -> None:
        """Adds entries to `run.json`, or replaces them."""
        if self.writes:
            write_json(self.settings, {**read_json(self.settings), **entries})

    def what_matters(self) -> dict:
        """The options that the result depends on."""
        # Also where the option is None.
        values = vars(self.options) | {"monitor": self.monitor.removeprefix("val_")}
        others = _PROCESS | _MACHINE
        return {n: v for n, v in values.items() if v is not None and n not in others}


@contextlib.contextmanager
def sole_run(folder: str | os.PathLike) -> Iterator[None]:
    """Makes the folder of a run if it is missing, and locks it.

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
    with files.locked(folder / ".lock", taken):
        files.remove_parts(folder, _FILES)
        yield


def open_run(options: TrainingOptions, recipe: Recipe) -> Run:
    """Makes or resumes the folder of a run, inside of `sole_run`.

    Raises:
        ValueError: the folder holds a run with other options.
    """
    run = Run(options.workdir, options)
    before, was = {}, options
    if run.settings.exists():
        before, was = _read_settings(run.settings)
    free = _RESULT | _PROCESS | _MACHINE
    if recipe.early_stopping is not None or recipe.schedule.name == "plateau":
        free.remove("monitor")
    changes = {
        name: (value, getattr(options, name))
        for name, value in vars(was).items()
        if name not in free and value != getattr(options, name)
    }
    if run.has_trained:
        # It follows from `max_updates` where it is not given.
        schedule = before.get("recipe", {}).get("schedule", {})
        periods = schedule.get("period"), getattr(recipe.schedule, "period", None)
        if None not in periods:
            changes.pop("period", None)
            if periods[0] != periods[1]:
                changes["period"] = periods
        _refuse(run, changes, was.period is options.period is None)
        _tell_of_recipe(before.get("recipe"), dataclasses.asdict(recipe))
    elif changes:
        remove_text(run)
    _check_end(run, recipe)
    # For readers; nothing depends on it.
    start = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": sys.argv,
        "backend": keras.backend.backend(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(*_PACKAGES),
    }
    settings = {
        "format_version": _FORMAT_VERSION,
        "options": options.changes(),
        "starts": [*before.get("starts", ()), start],
    }
    # `text_of` notes the recipe as the text allows it, of which models are made.
    before.setdefault("recipe", dataclasses.asdict(recipe))
    write_json(run.settings, {**before, **settings})
    return run


def _refuse(run: Run, changes: dict[str, tuple], period_is_derived: bool) -> None:
    """ValueError if an option differs from that of the run's checkpoints."""
    different = [
        f"`{name}` was {'not given' if old is None else old} and is "
        f"{'not given' if new is None else new}"
        for name, (old, new) in changes.items()
    ]
    if "period" in changes and period_is_derived:
        different.append(
            "the `period` of a cosine follows from `max_updates`; to train longer with "
            f"a new one, begin a run with `initialize_from` {run.folder}"
        )
    if different:
        raise ValueError(
            f"{run.folder} holds a run with other options: give them as they were, or "
            f"another `workdir`. Different: {'; '.join(different)}"
        )


def _tell_of_recipe(before: dict | None, after: dict) -> None:
    """Warns where another version of the package has changed the preset's recipe."""

    def values(recipe: dict) -> dict:
        names = ("label_smoothing", "global_clipnorm")
        found = {name: recipe.get(name) for name in names}
        for part in ("optimizer", "schedule"):
            entries = recipe.get(part, {}).items()
            found |= {f"{part} {name}": value for name, value in entries}
        return found

    old, new = values(before or after), values(after)
    changed = [
        f"{name} was {old[name]} and is {value}"
        for name, value in new.items()
        if name in old and old[name] != value
    ]
    if changed:
        warnings.warn(
            "The preset has changed since the run began, which goes on with the new "
            f"values: {'; '.join(changed)}",
            stacklevel=2,
        )


def read_run(folder: str | os.PathLike) -> tuple[Run, Recipe]:
    """The run of a folder, and its recipe as it was resolved.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its `run.json` is damaged or of another version.
    """
    path = Path(folder) / "run.json"
    settings, options = _read_settings(path)
    with files.naming_file(path, "describes no run"):
        recipe = Recipe.from_json(settings["recipe"])
    options = dataclasses.replace(options, workdir=str(folder))
    return Run(folder, options), recipe


def remove_run(folder: str | os.PathLike) -> None:
    """Deletes the folder of a run, if it is one and nobody trains in it."""
    if (Path(folder) / "run.json").is_file():
        with sole_run(folder):
            shutil.rmtree(folder)


def _read_settings(path: Path) -> tuple[dict, TrainingOptions]:
    """The content of `run.json`, and the options that it has."""
    kinds = dict.fromkeys(("corpus", "vocabularies", "finished"), dict)
    kinds |= {"starts": list, "languages": list}
    settings = read_json(path, options=dict, recipe=dict, **kinds)
    files.check_version(settings, path, _FORMAT_VERSION)
    with files.naming_file(path, "describes no run"):
        return settings, TrainingOptions.from_json(settings["options"])


# --- The start, on one host or on several that must train the same ---


def start_run(
    options: TrainingOptions, recipe: Recipe, stack: contextlib.ExitStack, say
) -> tuple[Run, Text | None]:
    """The run and its text, which is None if the run is finished.

    `stack` keeps the lock of the folder. Of several hosts the first one goes first.
    Another host that sees the same folder reads what the first one has written;
    otherwise it makes its own text and receives the newest checkpoint.

    Raises:
        ValueError, OSError: as `sole_run`, `open_run`, `corpus_of`, and where hosts
            are not going to train the same; on all hosts.
    """

    def in_own_folder():
        stack.enter_context(sole_run(options.workdir))
        run = open_run(options, recipe)
        corpus = corpus_of(run)
        return run, None if run.finished else text_of(run, recipe, corpus, say)

    def in_shared_folder(start: dict):
        run = Run(options.workdir, options, writes=False)
        if run.last_start != start:
            return in_own_folder()
        return run, text_of(run, recipe, corpus_of(run), say)

    if hosts.shard()[1] == 1:
        return in_own_folder()
    first = hosts.is_first()
    made = hosts.together(lambda: in_own_folder() if first else None)
    start, finished = hosts.gather(made and (made[0].last_start, made[1] is None))[0]
    if finished:
        return made or (Run(options.workdir, options, writes=False), None)
    run, text = hosts.together(lambda: made if first else in_shared_folder(start))
    hosts.check_same(_what_is_trained(run, text))
    if not any(hosts.gather(run.writes)[1:]):
        return run, text
    newest = hosts.file_of_first(checkpoints.latest(run.checkpoints) if first else None)
    if run.writes and not first:
        files.remove_folder(run.checkpoints)
        run.checkpoints.mkdir()
        if newest is not None:
            files.write_file(run.checkpoints / newest[0], newest[1])
    return run, text


def _check_end(run: Run, recipe: Recipe) -> None:
    """ValueError if a run has gone beyond the end that the options ask for."""
    path, state = next(checkpoints.states(run.checkpoints), (None, None))
    if state is None:
        return
    begun = state.get("epoch", 0) + (not state.get("epoch_end"))
    updates = checkpoints.update_of(path)
    for name, reached in (("max_updates", updates), ("max_epochs", begun)):
        end = getattr(recipe, name)
        if end is not None and end < reached:
            raise ValueError(
                f"`{name}` must be at least {reached}, where the run in {run.folder} "
                f"is; `keras-seqconv average {run.folder} --up-to N` makes a model of "
                f"its earlier checkpoints. Received: {name}={end}"
            )


def _what_is_trained(run: Run, text: Text) -> dict:
    """Values that must be the same on all hosts, by names for a message."""
    stores = {"train": text.train, "validation": text.validation}
    options = vars(run.options).items()
    return {
        **{f"version of {name}": v for name, v in versions(*_PACKAGES).items()},
        **{f"`{name}`": value for name, value in options if name not in _MACHINE},
        **read_json(run.settings)["corpus"],
        "tokenizer": [*map(tokenizer_fingerprint, text.tokenizers)],
        **{f"{name}, ids": ids and _digest_of_ids(ids) for name, ids in stores.items()},
    }


def _digest_of_ids(store: IdStore) -> str:
    """Digest of all lengths and two rows; texts and tokenizers are compared too."""
    digest = hashlib.sha256()
    for key in store.keys:
        for values in (store.lengths[key], store[0][key], store[len(store) - 1][key]):
            digest.update(np.ascontiguousarray(values))
    return digest.hexdigest()[:16]
