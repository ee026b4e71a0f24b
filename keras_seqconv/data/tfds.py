"""Texts of TensorFlow Datasets."""

import collections
import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from keras_seqconv.data.reading import Rows
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import locked

_ROWS_AT_ONCE = 1024
_LINE_BREAKS = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")


def builder_of(name: str, source: str | None, target: str | None, data_dir: str | None):
    """The tfds builder of a name such as "wmt14_translate/de-en"; downloads nothing.

    A data set with several configurations needs one in its name, unless `source` and
    `target` fit exactly one of them.

    Raises:
        ImportError: without tensorflow_datasets.
        ValueError: no such data set or configuration; lists the close ones.
    """
    tfds = require("tensorflow_datasets", "tfds")
    base, _, asked = re.sub(":.*", "", name).partition("/")
    configs = []
    with contextlib.suppress(ValueError, tfds.core.DatasetNotFoundError):
        configs = list(tfds.builder_cls(base).builder_configs)
    if len(configs) > 1 and "/" not in name and ":" not in name:
        fitting = [c for c in configs if {*re.split("-|_to_", c)} == {source, target}]
        if len(fitting) != 1:
            raise ValueError(
                f"`name` must say which configuration of {name}, such as "
                f"{name}/{configs[0]}: {', '.join(configs[:40])}"
                + (", ..." if len(configs) > 40 else "")
            )
        name = f"{name}/{fitting[0]}"
    try:
        return tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        close = configs
        if not 0 < len(configs) <= 20:
            known = configs or tfds.list_builders(with_community_datasets=False)
            close = difflib.get_close_matches(asked if configs else base, known, 9)
        raise ValueError(
            f"TensorFlow Datasets cannot open {name!r} ({str(error).splitlines()[0]}); "
            f"close: {', '.join(close) or 'nothing'}"
        ) from error


def prepare(builder, manual_dir: str | os.PathLike | None = None) -> None:
    """Downloads and generates the data of a builder, unless that was done before.

    Processes that prepare the same data wait for each other. tfds tries for some
    minutes to reach a host that does not answer.

    Args:
        builder: of tfds.
        manual_dir: a folder with downloads that were fetched by hand.

    Raises:
        FileNotFoundError: files are missing that only people can download.
        ConnectionError: tfds cannot download. Both name the builder, tfds' reason and
            how to supply the data by hand.
    """
    tfds = require("tensorflow_datasets", "tfds")
    config = tfds.download.DownloadConfig(
        manual_dir=None if manual_dir is None else os.fspath(manual_dir)
    )
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
            builder.download_and_prepare(download_config=config)
        except Exception as error:
            # tfds asserts that there are files which must be put there by hand. Its
            # other errors, and those of what it downloads with, have no common class.
            by_hand = isinstance(error, AssertionError)
            package = type(error).__module__.partition(".")[0]
            if by_hand or package in ("tensorflow_datasets", "requests", "urllib"):
                kind = FileNotFoundError if by_hand else ConnectionError
                raise kind(_unavailable(builder, error)) from error
            raise


def _unavailable(builder, error: Exception) -> str:
    files = [f"train.{name}" for name in _names(builder)[:2]]
    return (
        f"{builder.info.full_name} is not prepared in {builder.data_dir_root}, and "
        f"cannot be: {' '.join(str(error).split())} What helps: put what it is made "
        "from, fetched elsewhere, into a folder and give it as `manual_dir`; or copy "
        f"the prepared data set from another machine to {builder.data_dir}; or give "
        "the `data_dir` that holds it; or give the text as files instead, a folder "
        f"with {', '.join(files)}"
    )


def names_of(builder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the texts of an example, and two of them in tfds' own order, or ().

    Raises:
        ValueError: the data set has no texts; lists its features.
    """
    names = _names(builder)
    if not names:
        raise ValueError(
            f"{builder.info.full_name} must have features that are texts. "
            f"It has: {', '.join(builder.info.features)}"
        )
    supervised = builder.info.supervised_keys or ()
    named = len(supervised) == 2 and all(isinstance(key, str) for key in supervised)
    return names, tuple(supervised) if named else ()


def _names(builder) -> tuple[str, ...]:
    """Languages, or "article", ..."""
    feature, kind = _feature(builder)
    if kind is None:
        text = require("tensorflow_datasets", "tfds").features.Text
        return tuple(key for key in feature if isinstance(feature[key], text))
    return tuple(feature.languages or ())


def _feature(builder):
    """The feature that holds the texts, and its kind; None: the whole example."""
    features = require("tensorflow_datasets", "tfds").features
    whole = builder.info.features
    for kind in (features.Translation, features.TranslationVariableLanguages):
        for feature in (whole, *whole.values()):
            if isinstance(feature, kind):
                return feature, kind
    return whole, None


def read_split(
    builder, split: str, names: list[str], counts: collections.Counter
) -> Iterator[Rows]:
    """The texts of some names of a prepared data set, always in the same order.

    A line break inside a text, with the blanks around it, becomes one blank: what
    comes after (files, word counts, tokenizers) takes a text to be one line.

    Args:
        builder: of tfds.
        split: such as "train" or "train[:1%]".
        names: of the columns.
        counts: "untranslated" goes up for each example without one of the languages
            in data sets whose languages vary; such are left out.

    Raises:
        ValueError: an unknown split.
    """
    tfds = require("tensorflow_datasets", "tfds")
    tf = require("tensorflow", "mt")
    # The thread that tunes a dataset makes the end of an iterator wait for a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    # Autocaching would hold all in memory.
    read = tfds.ReadConfig(options=options, try_autocache=False)
    what = f"{builder.info.full_name}, split {split}"
    try:
        examples = builder.as_dataset(
            split=split, shuffle_files=False, read_config=read
        )
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"`split` must be a split of {builder.info.full_name}, or part of one such "
            f'as "train[:1%]": {", ".join(builder.info.splits)}. '
            f"Received: split={split!r} ({str(error).splitlines()[-1]})"
        ) from error
    feature, kind = _feature(builder)
    nested = [key for key, f in builder.info.features.items() if f is feature]
    vary = kind is tfds.features.TranslationVariableLanguages
    first = 0

    def choose(example):
        for key in nested:
            example = example[key]
        if not vary:
            return tuple(example[name] for name in names)
        known = [example["translation"][example["language"] == name] for name in names]
        return tuple(tf.strings.reduce_join(texts[:1]) for texts in known)

    for batch in tfds.as_numpy(examples.map(choose).batch(_ROWS_AT_ONCE)):
        columns = [
            [
                _LINE_BREAKS.sub(" ", text.decode(errors="surrogateescape")).strip()
                for text in texts.tolist()
            ]
            for texts in batch
        ]
        numbers = range(first, first + len(columns[0]))
        first += len(numbers)
        if vary:
            kept = [
                i for i, texts in enumerate(zip(*columns, strict=True)) if all(texts)
            ]
            counts["untranslated"] += len(numbers) - len(kept)
            columns = [[texts[i] for i in kept] for texts in columns]
            numbers = [numbers[i] for i in kept]
        if numbers:
            yield Rows(
                columns,
                lambda column, row, numbers=numbers: (
                    f"{what}, {names[column]} of example {numbers[row]:,},"
                ),
            )
