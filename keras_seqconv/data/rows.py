"""Rows of text files and of TensorFlow Datasets, and what is wrong with them.

Rows are handled some thousands at a time, as columns: lists of texts.
"""

import collections
import contextlib
import itertools
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_seqconv.data.batches import untuned
from keras_seqconv.support import require, tf
from keras_seqconv.support.arguments import near
from keras_seqconv.support.files import iterate_lines, locked

_ROWS_AT_ONCE = 2048
# What is wrong with a text, as a key of the counts -> in words.
_PROBLEMS = {
    "empty": "has no text",
    "invalid_utf8": "is not valid UTF-8",
    "nul": "holds a NUL character",
    "no_tab": "is missing (no tab before it)",
}
_MISSING = "\ud800"  # a cell beyond the tabs of its line: no file holds it
# Words of a cell that names a column, beside the two languages.
_COLUMNS = {
    "source", "target", "src", "tgt", "trg", "text", "translation", "sentence", "input",
    "output", "id", "word", "words", "spelling", "grapheme", "graphemes", "letters",
    "pronunciation", "transcription", "phoneme", "phonemes", "phones", "ipa", "lemma",
    "form", "question", "answer", "article", "document", "summary", "body", "subject",
    "title", "label", "raw", "normalized", "written", "spoken", "before", "after",
    "misspelled", "correct", "correction", "arpabet", "native", "romanized", "latin",
    "cyrillic", "inflected", "features", "tags", "english", "german", "french",
    "spanish", "italian", "dutch", "portuguese", "russian", "chinese", "japanese",
    "czech", "polish", "en", "de", "fr", "es", "it", "nl", "pt", "ru", "zh", "ja", "cs",
    "pl",
}  # fmt: skip
_LINE_BREAKS = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")


def checked_rows(
    rows: Iterable[tuple], skip: bool, keep_empty: bool, counts: collections.Counter
) -> Iterator[list[list[str]]]:
    """The columns of the rows that can be used; counts them, and those left out.

    `rows` are parts of (columns, what each column is, number of each row); what is not
    UTF-8 stands as lone surrogates in the texts.
    """
    for columns, names, numbers in rows:
        bad = {}
        for name, texts in zip(names, columns, strict=True):
            # All at once, which is much faster than text by text.
            filled = keep_empty or all(map(str.strip, texts))
            if filled and _problem("".join(texts)) is None:
                continue
            for row, text in enumerate(texts):
                empty = not keep_empty and not text.strip()
                problem = _problem(text) or ("empty" if empty else None)
                if problem is not None:
                    bad.setdefault(row, (problem, name))
        if bad and not skip:
            problem, name = bad[min(bad)]
            raise ValueError(
                f"{name} {numbers[min(bad)]:,}, {_PROBLEMS[problem]}. Correct it, "
                "or leave out such rows (`on_error`='skip', --skip-bad-lines)."
            )
        if bad:
            counts.update(problem for problem, _ in bad.values())
            columns = [
                [text for row, text in enumerate(texts) if row not in bad]
                for texts in columns
            ]
        counts["kept"] += len(columns[0])
        if columns[0]:
            yield columns


def _problem(text: str) -> str | None:
    if text == _MISSING:
        return "no_tab"
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return "invalid_utf8"
    return "nul" if "\0" in text else None


# --- Text files ---


def read_tsv(
    path: Path, languages: tuple[str, str], header: bool | None
) -> Iterator[tuple]:
    """The rows of source and target in a file, for `checked_rows`.

    They are the first two columns, or those that the header names by their languages.
    """
    quoted, third, sides = 0, "", (0, 1)
    for (lines,), _, numbers in read_parallel([path], False, collections.Counter()):
        rows = [line.split("\t") for line in lines]
        if numbers[0] == 1:
            if header is None and _names_columns(rows[0], languages):
                raise ValueError(
                    f"`tsv_header` must say whether line 1 of {path} names the columns "
                    f"(true) or is text (false). Received: {' | '.join(rows[0])}"
                )
            if header:
                sides = _columns_of(rows[0], languages, path)
            rows, numbers = rows[bool(header) :], numbers[bool(header) :]
        texts = [
            [row[side] if side < len(row) else _MISSING for row in rows]
            for side in sides
        ]
        quoted += sum(
            len(text) > 1 and text[0] == '"' == text[-1]
            for text in itertools.chain(*texts)
        )
        if sides == (0, 1):
            third = third or next((row[2] for row in rows if len(row) > 2), "")
        names = [f"{path}, column {side + 1}, line" for side in sides]
        yield texts, names, numbers
    for occurs, problem in (
        (quoted, f"{quoted:,} cells stand in quotes, which are read as text."),
        (
            third,
            f"columns from the third on are left out, such as {third[:60]!r}; further "
            "references are files of `evaluate --reference`.",
        ),
    ):
        if occurs:
            warnings.warn(f"{path}: {problem}", stacklevel=2)


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in cells]


def _columns_of(cells: list[str], languages: tuple[str, str], path: Path) -> tuple:
    """Columns of source and target: those that a header names, or the first two."""
    names, (source, target) = _names(cells), _names(languages)
    if source in names and target in names:
        return names.index(source), names.index(target)
    if target in names[:1] or source in names[1:] or target in names[2:]:
        raise ValueError(
            "`source_language` and `target_language` must both name columns of "
            f"{path}, or its first two. Received: {' and '.join(languages)}, and "
            f"columns {', '.join(cells)}"
        )
    return 0, 1


def _names_columns(cells: list[str], languages: tuple[str, str]) -> bool:
    """Whether a line is a header: both languages, one of them in the first two cells,
    or a word for a column in each of these.
    """
    known, names = {*_names(languages)}, _names(cells)
    words = [set(re.split(r"[\W_]+", name)) for name in names[:2]]
    return (
        known <= {*names}
        or not known.isdisjoint(names[:2])
        or len(words) == 2
        and all(cell & (_COLUMNS | known) and len(cell) <= 3 for cell in words)
    )


def read_parallel(
    paths: Sequence[Path], skip: bool, counts: collections.Counter
) -> Iterator[tuple]:
    """The rows of parallel files, for `checked_rows`.

    Lines beyond the end of the shortest file are an error, or counted as "unpaired".
    """
    readers = [iterate_lines(path, "keep") for path in paths]
    names = [f"{path}, line" for path in paths]
    done = 0  # rows
    while True:
        columns = [[*itertools.islice(reader, _ROWS_AT_ONCE)] for reader in readers]
        for path, lines in zip(paths, columns, strict=True):
            if not done and len(lines) == 1 and "\r" in lines[0]:
                raise ValueError(
                    f"Lines of {path} must end with LF or CRLF. It has one line, with "
                    f"{lines[0].count(chr(13)):,} times CR alone."
                )
        common = min(map(len, columns))
        texts = [lines[:common] for lines in columns]
        if common:
            yield texts, names, range(done + 1, done + common + 1)
        done += common
        if common < _ROWS_AT_ONCE:
            break
    more = [
        len(lines) - common + sum(1 for _ in reader)
        for lines, reader in zip(columns, readers, strict=True)
    ]
    if any(more) and not skip:
        sizes = zip(paths, more, strict=True)
        raise ValueError(
            "Parallel files must have the same number of lines: "
            + ", ".join(f"{path} has {done + number:,}" for path, number in sizes)
            + f". Line {done + 1:,} of {paths[more.index(max(more))]} has no partner."
        )
    counts["unpaired"] += max(more)


# --- TensorFlow Datasets ---


def tfds_builder(name: str, source: str | None, target: str | None, data_dir):
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
        names = tfds.list_builders(with_community_datasets=False)
        hint = near(base, names) or '"phrases" is the embedded corpus. '
        if configs:
            hint = f"Configurations of {base}: {', '.join(configs[:40])}. "
        raise ValueError(
            "`dataset` must be a folder of text files (there is no such folder) or of "
            f"TensorFlow Datasets. {hint}Received: dataset={name!r} "
            f"({str(error).splitlines()[0]})"
        ) from error


def prepare_tfds(builder, manual_dir: str | os.PathLike | None = None) -> None:
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
            downloads = ("tensorflow_datasets", "requests", "urllib")
            if not by_hand and package not in downloads:
                raise
            raise (FileNotFoundError if by_hand else ConnectionError)(
                f"{builder.info.full_name} is not prepared in {root}, and cannot be: "
                f"{' '.join(str(error).split())} What helps: put what it is made from, "
                "fetched elsewhere, into a folder and give it as `manual_dir`; or copy "
                f"the prepared data set from another machine to {builder.data_dir}; or "
                "give the `data_dir` that holds it, or the text as files."
            ) from error


def _texts_of(builder) -> tuple[str | None, object, tuple[str, ...]]:
    """The feature with the texts of an example: key (None: all of it), kind, names."""
    features = require("tensorflow_datasets", "tfds").features
    whole = builder.info.features
    for kind in (features.Translation, features.TranslationVariableLanguages):
        for key, feature in [(None, whole), *whole.items()]:
            if isinstance(feature, kind):
                return key, kind, tuple(feature.languages or ())
    names = tuple(key for key in whole if isinstance(whole[key], features.Text))
    return None, features.Text, names


def tfds_names(builder) -> tuple[tuple[str, ...], tuple[str, ...]]:
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


def read_tfds(
    builder, split: str, names: list[str], counts: collections.Counter
) -> Iterator[tuple]:
    """The texts of a prepared data set: columns, what each is, number of each row.

    A line break inside a text, with the blanks around it, becomes one blank: what
    comes after (files, word counts, tokenizers) takes a text to be one line.

    An example without one of the languages, in data sets whose languages vary, is left
    out and counted as "untranslated".
    """
    tfds = require("tensorflow_datasets", "tfds")
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
        texts_of_names = [
            example["translation"][example["language"] == name] for name in names
        ]
        return tuple(tf.strings.reduce_join(texts[:1]) for texts in texts_of_names)

    descriptions = [
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
            yield columns, descriptions, [first + row for row in kept]
        first += len(batch[0])
