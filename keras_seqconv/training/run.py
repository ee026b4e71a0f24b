"""The folder of a training run: its options, tokenizers and stores of ids."""

import collections
import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras

from keras_seqconv import checkpoints
from keras_seqconv.data.corpora import Corpus, WrongLanguages, hold_out, open_corpus
from keras_seqconv.data.ids import IdStore, blocks, encode
from keras_seqconv.presets import PRESETS, Recipe
from keras_seqconv.support.files import (
    locked,
    read_json,
    remove_parts,
    write_json,
)
from keras_seqconv.training.recipe import recipe_from_json
from keras_seqconv.training.run_tokenizers import tokenizers_of
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.version import __version__

_FORMAT_VERSION = 1
# That a killed run may have been writing.
_FILES = r"(run\.json|log\.jsonl|scores\.json|sample\.txt|test\.hypotheses|curves\.png)"
# May differ between a run and its continuation: they say when it ends and what it
# reports, and change no update.
_MAY_CHANGE = {
    "workdir", "data_dir", "manual_dir", "max_updates", "max_epochs", "early_stopping",
    "stop_learning_rate", "average", "average_kind", "num_beams", "length_penalty",
    "max_translation_length", "keep", "tensorboard", "validation_bleu", "monitor",
    "checkpoint_every", "jit_compile", "hosts", "host_index", "num_hosts",
}  # fmt: skip
# May differ between the hosts of a run, too, and change nothing of what comes out.
OF_A_MACHINE = {"workdir", "data_dir", "manual_dir", "hosts", "host_index"}
# Change nothing of a finished run.
_ON_THE_WAY = {
    "keep", "tensorboard", "validation_bleu", "checkpoint_every", "jit_compile",
}  # fmt: skip


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
    def monitor(self) -> tuple[str, str]:
        """The metric that says which checkpoint is best, and whether "min" or "max"."""
        bleu = self.options.monitor == "bleu"
        return f"val_{self.options.monitor}", "max" if bleu else "min"

    @property
    def finished(self) -> bool:
        """Whether a run with these options has come to its end, and has its model."""
        done = read_json(self.settings).get("finished") or {}
        done = {name: done[name] for name in done.keys() - _ON_THE_WAY}
        return done == self._what_matters() and self.model.is_dir()

    @property
    def last_start(self) -> dict | None:
        starts = read_json(self.settings)["starts"] if self.settings.exists() else ()
        return starts[-1] if starts else None

    def note(self, **entries) -> None:
        """Adds entries to `run.json`, or replaces them."""
        if self.writes:
            write_json(self.settings, {**read_json(self.settings), **entries})

    def note_finished(self) -> None:
        self.note(finished=self._what_matters())

    def _what_matters(self) -> dict:
        """The options without those that change nothing of what comes out."""
        return self.options.model_dump(exclude=OF_A_MACHINE | _ON_THE_WAY)


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
    was = TrainingOptions(**before["options"]) if before else options
    different = [
        f"{name} was {value!r} and is {getattr(options, name)!r}"
        for name, value in was
        if name not in _MAY_CHANGE and value != getattr(options, name)
    ]
    if different:
        if checkpoints.find(run.checkpoints):
            raise ValueError(
                f"{run.folder} holds a run with other options; give its own, or "
                f"another `workdir`. Different are: {'; '.join(different)}"
            )
        _remove_text(run)
    write_json(
        run.settings,
        {
            **before,
            "format_version": _FORMAT_VERSION,
            "options": options.model_dump(exclude_unset=True),
            "recipe": dataclasses.asdict(recipe),
            "starts": [*before.get("starts", ()), _start()],
        },
    )
    return run


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
    return Run(folder, options), recipe_from_json(settings["recipe"])


def remove_run(folder: str | os.PathLike) -> None:
    """Deletes the folder of a run, if it is one and nobody trains in it."""
    if (Path(folder) / "run.json").is_file():
        with sole_run(folder):
            shutil.rmtree(folder)


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


def _start() -> dict:
    """Where and with what a run was started; for readers, nothing depends on it."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": sys.argv,
        "backend": keras.backend.backend(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions_here(),
    }


def versions_here() -> dict[str, str]:
    """Versions of Python and of the packages that training depends on."""
    versions = {"keras_seqconv": __version__, "python": platform.python_version()}
    packages = "keras", "jax", "tensorflow", "tensorflow-text", "sentencepiece", "numpy"
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


# --- Text ---


class Text(NamedTuple):
    """Text of a corpus for training.

    Attributes:
        recipe: as this corpus allows it.
        corpus: where the text comes from.
        tokenizers: of source (None for language models) and target, the same object
            twice where the vocabulary is joint.
        train: store of ids.
        validation: the same, or None where the corpus has no such split.
    """

    recipe: Recipe
    corpus: Corpus
    tokenizers: tuple
    train: IdStore
    validation: IdStore | None


def corpus_of(run: Run) -> Corpus:
    """The corpus of a run, noted at its first start and compared later.

    Raises:
        ValueError: the text is not what the checkpoints were trained on.
    """
    corpus = open_corpus_of(run.options)
    splits = [s for s in ("train", "validation", "test") if s in corpus.splits]
    digests = corpus.digests(splits)
    before = read_json(run.settings).get("corpus") or digests
    changed = {name for name, _ in before.items() ^ digests.items()}
    if changed and (checkpoints.find(run.checkpoints) or not run.writes):
        raise ValueError(
            f"`dataset` must hold what it held when the run in {run.folder} began; put "
            "the old text back, or give another `workdir`. Changed, new or missing: "
            + ", ".join(sorted(changed))
        )
    if changed:
        _remove_text(run)
    run.note(corpus=digests)
    return corpus


def sentences_of(
    corpus: Corpus, split: str, most: int | None = None
) -> tuple[list[str], list[str]]:
    """Sources and references of a split, at most so many."""
    return tuple([*corpus.texts(split, side, most)] for side in ("source", "target"))


def read_text(run: Run, recipe: Recipe, corpus: Corpus, say) -> Text:
    """Trains or reads the tokenizers, and writes the stores.

    What an earlier start of the run has finished is read, not made again.

    Args:
        run: whose folder keeps tokenizers and stores.
        recipe: resolved. Without a validation split, its `average_kind` changes.
        corpus: of the run, see `corpus_of`.
        say: prints a line of progress.
    """
    options = run.options
    languages = [corpus.source_language, corpus.target_language]
    if PRESETS[options.preset].is_language_model:
        languages[0] = None
    direction = " → ".join(filter(None, languages))
    if languages[0] is not None:  # with a pair to see that it is so
        pair = [next(corpus.texts("train", side, 1)) for side in ("source", "target")]
        example = " → ".join(repr(textwrap.shorten(text, 60)) for text in pair)
        say(f"{direction}, for example {example}")
    others = [s for s in corpus.splits if s not in ("train", "validation", "test")]
    if others:
        say(
            f"Training reads the splits train, validation and test of {corpus.name}, "
            f"and not {', '.join(others)}."
        )
    if "validation" not in corpus.splits and recipe.average_kind == "best":
        recipe = dataclasses.replace(recipe, average_kind="last_epochs")
        say(
            "There is no validation split, so the last checkpoints are averaged and not"
            " the best; --validation-share 0.01 would hold out a part for it."
        )
    run.note(languages=languages, recipe=dataclasses.asdict(recipe))
    pair = tokenizers_of(run, corpus, say)
    stores = {
        split: _store(run, recipe, corpus, pair, split, say)
        for split in ("train", "validation")
        if split in corpus.splits
    }
    return Text(recipe, corpus, pair, stores["train"], stores.get("validation"))


def open_corpus_of(options: TrainingOptions) -> Corpus:
    """The corpus that the options name; the preset says what they leave open.

    Raises:
        ValueError, OSError: as `open_corpus`; there is no training text, or not what
            the preset needs; options for a validation split, and there is none.
    """
    preset = PRESETS[options.preset]
    given = (options.source_language, options.target_language)
    settings = {
        "data_dir": options.data_dir,
        "manual_dir": options.manual_dir,
        "variant": options.variant,
        "tsv_header": options.tsv_header,
        "on_error": "skip" if options.skip_bad_lines else "raise",
    }

    def opened(source: str | None, target: str | None) -> Corpus:
        languages = {"source_language": source, "target_language": target}
        return open_corpus(options.dataset, **languages, **settings)

    completed = [
        one or (default if default not in given else None)
        for one, default in zip(given, preset.task.languages or given, strict=True)
    ]
    try:
        # Of two languages one says the other; the preset says what is left open.
        corpus = opened(*given if any(given) else completed)
    except WrongLanguages as error:
        if preset.is_language_model and not any(given) and error.languages:
            raise ValueError(
                f"`target_language` must name the text that {options.preset}, a "
                f"language model, learns of {options.dataset}: one of "
                f"{', '.join(error.languages)}. Received: None"
            ) from None
        try:
            corpus = opened(*completed if any(given) else given)
        except WrongLanguages as other:
            raise (error if any(given) else other) from None
        if not any(given):
            raise ValueError(
                "`source_language` and `target_language` must be given: "
                f"{options.preset} translates {' to '.join(preset.task.languages)}, "
                f"and {options.dataset} has {corpus.source_language} and "
                f"{corpus.target_language}. Received: None and None"
            ) from None
    if "train" not in corpus.splits:
        raise ValueError(
            f"`dataset` must have a split 'train'. Received: {options.dataset} with "
            f"{', '.join(corpus.splits) or 'no split'}"
        )
    if corpus.source_language is None and not preset.is_language_model:
        raise ValueError(
            f"`dataset` must have two languages for the translation model "
            f"{options.preset}. Received: {options.dataset} with "
            f"{corpus.target_language!r} only"
        )
    if options.validation_share is not None:
        return hold_out(corpus, options.validation_share)
    if "validation" in corpus.splits:
        return corpus
    for name in ("early_stopping", "validate_every", "validation_bleu", "average_kind"):
        value = getattr(options, name)
        if value not in (None, False, "last_epochs"):
            raise ValueError(
                f"`{name}` needs a validation split, which {options.dataset} does not "
                "have; `validation_share` holds out a part of the training data. "
                f"Received: {name}={value!r}"
            )
    return corpus


def _store(run: Run, recipe: Recipe, corpus, pair: tuple, split: str, say) -> IdStore:
    folder, options = run.data / split, run.options
    with contextlib.suppress(FileNotFoundError):
        return IdStore.open(folder)
    say(f"Reading the {split} split ...")
    counts: collections.Counter = collections.Counter()
    training = split == "train"
    texts = corpus.blocks(split)
    if PRESETS[options.preset].is_language_model:
        tokenizer = pair[1]
        settings = dataclasses.asdict(recipe.blocks)
        if training:
            settings["context_window"] = 0
        lines = (ids for *_, part in texts for ids in tokenizer.tokenize_lines(part))
        rows = blocks(lines, **settings)
    else:
        most = max(options.max_length, (options.truncate_source or 1) - 1)
        # Scores of a validation set are of all of it, as far as a batch can hold it.
        rows = encode(
            texts,
            *pair,
            min_length=options.min_length if training else 1,
            max_length=min(most, recipe.tokens_per_batch - 1),
            max_ratio=options.max_ratio if training else None,
            truncate_source=options.truncate_source,
            counts=counts,
        )
    store = IdStore.write(folder, rows)
    cut = counts.pop("truncated", 0)
    left_out = [
        f"{name} {number:,}"
        for name, number in {**corpus.counts[split], **counts}.items()
        if name != "kept"
    ]
    more = f"; {cut:,} sources cut" if cut else ""
    more += f"; left out: {', '.join(left_out)}" if left_out else ""
    say(f"{split}: {len(store):,} rows{more}")
    return store
