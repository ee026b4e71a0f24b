"""Texts of TensorFlow Datasets."""

import collections
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from keras_seqconv.data.batches import untuned
from keras_seqconv.support import require
from keras_seqconv.support.arguments import near
from keras_seqconv.support.files import locked

_ROWS_AT_ONCE = 1024
_LINE_BREAKS = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")


def builder_of(name: str, source: str | None, target: str | None, data_dir):
    """The tfds builder of a name such as "wmt14_translate/de-en"; downloads nothing.

    A data set with several configurations needs one in its name, unless `source` and
    `target` fit exactly one of them.
    """
    tfds = require("tensorflow_datasets", "tfds")
    base, configs = re.split("[/:]", name)[0], []
    with contextlib.suppress(ValueError, tfds.core.DatasetNotFoundError):
        configs = list(tfds.builder_cls(base).builder_configs)
    chosen = name
    if len(configs) > 1 and base == name:
        fitting = [c for c in configs if {*re.split("-|_to_", c)} == {source, target}]
        chosen = f"{name}/{''.join(fitting)}"
    try:
        return tfds.builder(chosen, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        known = tfds.list_builders(with_community_datasets=False)
        hint = near(base, known) or '"phrases" is the embedded corpus. '
        if configs:
            hint = f"Configurations of {base}: {', '.join(configs[:40])}. "
        raise ValueError(
            "`name` must be a folder of text files (there is none of that name) or of "
            f"TensorFlow Datasets. {hint}Received: name={name!r} "
            f"({str(error).splitlines()[0]})"
        ) from error


def prepare(builder, manual_dir: str | os.PathLike | None = None) -> None:
    """Downloads and generates the data of a builder, unless that was done before.

    Processes that prepare the same data wait for each other. tfds tries for some
    minutes to reach a host that does not answer.

    Raises:
        FileNotFoundError: files are missing that only people can download.
        ConnectionError: tfds cannot download. Both say how to supply the data by hand.
    """
    tfds = require("tensorflow_datasets", "tfds")
    if os.path.isdir(builder.data_dir) and builder.is_prepared():
        return
    root = Path(builder.data_dir_root)
    root.mkdir(parents=True, exist_ok=True)
    # Two processes would generate twice, and one fail at the end.
    with locked(root / f".{builder.name}.lock"):
        if os.path.isdir(builder.data_dir) and builder.is_prepared():
            builder.info.read_from_directory(builder.data_dir)
            return
        if not sys.stderr.isatty():
            tfds.disable_progress_bar()  # whose lines are kilobytes in a file
        try:
            config = tfds.download.DownloadConfig(manual_dir=manual_dir)
            builder.download_and_prepare(download_config=config)
        except Exception as error:
            # tfds asserts that there are files which must be put there by hand. Its
            # other errors, and those of what it downloads with, have no common class.
            by_hand = isinstance(error, AssertionError)
            package = type(error).__module__.partition(".")[0]
            if not by_hand and package not in (
                "tensorflow_datasets", "requests", "urllib",
            ):  # fmt: skip
                raise
            raise (FileNotFoundError if by_hand else ConnectionError)(
                f"{builder.info.full_name} is not prepared in {root}, and cannot be: "
                f"{' '.join(str(error).split())} What helps: put what it is made from, "
                "fetched elsewhere, into a folder and give it as `manual_dir`; or copy "
                f"the prepared data set from another machine to {builder.data_dir}; or "
                "give the `data_dir` that holds it, or the text as files."
            ) from error


def _texts_of(builder) -> tuple[str | None, object, tuple[str, ...]]:
    """What holds the texts of an example: its key (None: all of it), kind and names."""
    features = require("tensorflow_datasets", "tfds").features
    whole = builder.info.features
    for kind in (features.Translation, features.TranslationVariableLanguages):
        for key, feature in [(None, whole), *whole.items()]:
            if isinstance(feature, kind):
                return key, kind, tuple(feature.languages or ())
    names = tuple(key for key in whole if isinstance(whole[key], features.Text))
    return None, features.Text, names


def names_of(builder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Languages, or "article", ..., and two of them in tfds' own order, or ()."""
    *_, names = _texts_of(builder)
    if not names:
        raise ValueError(
            f"{builder.info.full_name} must have features that are texts. "
            f"It has: {', '.join(builder.info.features)}"
        )
    supervised = builder.info.supervised_keys or ()
    named = len(supervised) == 2 and all(isinstance(key, str) for key in supervised)
    return names, tuple(supervised) if named else ()


def read_split(
    builder, split: str, names: list[str], counts: collections.Counter
) -> Iterator[tuple]:
    """The texts of a prepared data set: columns, what each is, number of each row.

    A line break inside a text, with the blanks around it, becomes one blank: what
    comes after (files, word counts, tokenizers) takes a text to be one line.

    An example without one of the languages, in data sets whose languages vary, is left
    out and counted as "untranslated".
    """
    tfds = require("tensorflow_datasets", "tfds")
    tf = require("tensorflow", "mt")
    # Autocaching would hold all in memory.
    config = tfds.ReadConfig(try_autocache=False)
    try:
        examples = builder.as_dataset(
            split=split, shuffle_files=False, read_config=config
        )
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"`split` must be a split of {builder.info.full_name}, or part of one such "
            f'as "train[:1%]": {", ".join(builder.info.splits)}. '
            f"Received: split={split!r} ({str(error).splitlines()[-1]})"
        ) from error
    key, kind, _ = _texts_of(builder)
    vary = kind is tfds.features.TranslationVariableLanguages

    def choose(example):
        example = example if key is None else example[key]
        if not vary:
            return tuple(example[name] for name in names)
        known = [example["translation"][example["language"] == name] for name in names]
        return tuple(tf.strings.reduce_join(texts[:1]) for texts in known)

    places = [
        f"{builder.info.full_name}, split {split}, {name} of example" for name in names
    ]
    first = 0
    batches = untuned(examples.map(choose).batch(_ROWS_AT_ONCE))
    for batch in tfds.as_numpy(batches):
        columns = [
            [
                _LINE_BREAKS.sub(" ", text.decode(errors="surrogateescape")).strip()
                for text in texts.tolist()
            ]
            for texts in batch
        ]
        kept = range(len(columns[0]))
        if vary:
            whole = [all(texts) for texts in zip(*columns, strict=True)]
            kept = [row for row in kept if whole[row]]
            counts["untranslated"] += len(whole) - len(kept)
            columns = [[texts[row] for row in kept] for texts in columns]
        if kept:
            yield columns, places, [first + row for row in kept]
        first += len(batch[0])
