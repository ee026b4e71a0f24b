"""Corpora by name: folders of text files, TensorFlow Datasets, the phrases.

A row is a sentence in each language, or a line of text. Rows come in blocks of some
thousands, as columns: a list of texts for each language.
"""

import collections
import dataclasses
import itertools
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from keras_seqconv.data.rows import (
    checked_rows,
    prepare_tfds,
    read_parallel,
    read_tfds,
    read_tsv,
    tfds_builder,
    tfds_names,
)
from keras_seqconv.support.arguments import check_choice
from keras_seqconv.support.files import digest

_VALIDATION = ("validation", "valid", "dev", "val")
_TRAINING = re.compile(r"train\d*")
_SPLIT = re.compile(r"(train|validation|valid|dev|val|test)[\w-]*")
_NAME = re.compile(r"([\w-]+)\.(?:(.+)\.)?([\w-]+)")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Text of a model by split and side; made by `open_corpus`.

    Attributes:
        name: `dataset` of `open_corpus`.
        source_language: for example "de"; None for text of a language model.
        target_language: for example "en". For summaries "article" and "highlights"
            take the place of languages.
        splits: names for `blocks`.
        counts: split -> counter of rows "kept" and, by reason, skipped, in the last
            complete pass over this split: "empty" (either side without text),
            "invalid_utf8", "nul", "no_tab" (a cell is missing), "unpaired" (lines
            beyond the end of the shorter file: look at these, the files may be
            shifted), "untranslated" (of tfds).
        digests: function of names of `splits` whose result shows changes of them: the
            SHA-256 of each file, by its name, at a second per GB; with tfds the numbers
            of rows and bytes, by version and split.
    """

    name: str
    source_language: str | None
    target_language: str
    splits: tuple[str, ...]
    _read: Callable = dataclasses.field(repr=False)
    digests: Callable = dataclasses.field(repr=False)
    counts: dict[str, collections.Counter] = dataclasses.field(default_factory=dict)

    def blocks(self, split: str) -> Iterator[tuple[list[str], ...]]:
        """Yields the rows of a split in blocks of some thousands, in a fixed order.

        Each call reads the corpus again, in constant memory.

        Args:
            split: one of `splits`; "valid", "dev" and "val" mean "validation". For
                tfds also a part, such as "train[:1%]".

        Yields:
            (sources, targets), lists of equal length, or (targets,).

        Raises:
            ValueError: unknown split, no row, or, with its position, a broken file or a
                row that cannot be used, unless `on_error` of `open_corpus` is "skip".
        """
        split, counts, empty = self._known(split), collections.Counter(), True
        for columns in self._read(split, counts):
            empty = False
            yield tuple(columns)
        if empty:
            left_out = [f"{n:,} {key}" for key, n in counts.items() if n]
            raise ValueError(
                f"{self.name}, split {split}, must hold at least one row of text. Rows "
                f"left out: {', '.join(left_out) or 'none'}"
            )
        self.counts[split] = +counts

    def texts(self, split: str, side: str, limit: int | None = None) -> Iterator[str]:
        """Yields the texts of one side of a split, at most `limit`.

        `side` is "source" or "target"; "target" for text of a language model.
        """
        sides = ("target",) if self.source_language is None else ("source", "target")
        check_choice("side", side, sides)
        columns = (block[sides.index(side)] for block in self.blocks(split))
        return itertools.islice(itertools.chain.from_iterable(columns), limit)

    def _known(self, split: str) -> str:
        """The name in `splits`, whichever name of validation is given."""
        alias = split in _VALIDATION and split not in self.splits
        return "validation" if alias else split


def open_corpus(
    dataset: str | os.PathLike,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    data_dir: str | os.PathLike | None = None,
    variant: str | None = None,
    on_error: str = "raise",
    manual_dir: str | os.PathLike | None = None,
    tsv_header: bool | None = None,
    default_languages: tuple[str, str] | None = None,
) -> Corpus:
    """Opens a corpus by name; TensorFlow Datasets may download it.

    Text files are UTF-8, plain or compressed with gzip, bzip2 or xz (detected by their
    first bytes). A line ends with LF or CRLF.

    Args:
        dataset: one of these:

            - "phrases": the embedded corpus, 20,000 English and German phrases about
              numbers, dates and times. (A folder of that name: "./phrases".)
            - a folder with `train.de`, `train.en`, `valid.de`, ... Splits are
              `train` (followed by `train1`, `train2`, ...), `validation` (or the first
              of `valid`, `dev`, `val`), `test`, and all other names in both
              languages; a single `test2016` is `test`. Files may be compressed and
              end in .gz, .bz2 or .xz. One language only: text for language
              models.
            - a folder in the layout of tfds' TranslateFolder: `de.train.txt`, ...
            - a folder with `train.tsv`, ..., or one such file: the first column is the
              source, the second the target; with a header that has both languages, the
              columns of these names. A warning names further columns, which are
              ignored, and quotes around cells, which are text.
            - any other text file: the `train` split of a language model.
            - a name of TensorFlow Datasets, such as "wmt14_translate/de-en" or
              "cnn_dailymail", or of a prepared data set in `data_dir`.

        source_language: language, or name of the text, of the source.
        target_language: language or name of the target. Default: the order of the two
            in tfds or in the variant ("de-en"); or the other one of two.
        data_dir: folder of tfds' prepared data. Default: the environment's
            TFDS_DATA_DIR or ~/tensorflow_datasets.
        variant: for folders, the part of names between split and language:
            "lc.norm.tok" for `train.lc.norm.tok.de`. Default: nothing, or the only
            variant.
        on_error: "raise", or "skip" and count rows that cannot be used. For language
            models, lines without text are rows.
        manual_dir: for tfds, a folder of manual downloads.
        tsv_header: whether line 1 of each .tsv file names its columns and is no row.
            None: line 1 is a row, and an error if it looks like names.
        default_languages: source and target where neither is given and the corpus has
            both; and for the other one where it has more than two languages.

    Raises:
        ValueError: unknown name, missing language, or no language if the direction is
            ambiguous.
        FileNotFoundError, ConnectionError: see `keras_seqconv.data.rows.prepare_tfds`.

    Example:

    ```python
    corpus = keras_seqconv.data.open_corpus("phrases", source_language="de")
    for sources, targets in corpus.blocks("validation"):
        print(sources[0], "|", targets[0])
    ```
    """
    name = os.fspath(dataset)
    skip = check_choice("on_error", on_error, ("raise", "skip")) == "skip"
    chosen, default = (source_language, target_language), default_languages or ()
    path, order = Path(os.path.expanduser(name)), ()
    if name == "phrases":
        path, order = Path(__file__).parent / "phrases", ("en", "de")
    if name and path.exists():
        return _open_files(
            name, path, order, chosen, default, variant, skip, tsv_header
        )
    if not name or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise ValueError(
            f"`dataset` must be there, as it is a path. Received: {name!r}"
        )
    if variant is not None:
        raise ValueError(
            "`variant` must be None unless `dataset` is a folder of text files. "
            f"Received: dataset={name!r}, variant={variant!r}"
        )
    return _open_tfds(name, chosen, default, data_dir, manual_dir, skip)


def hold_out(corpus: Corpus, share: float) -> Corpus:
    """Uses a share of a corpus' training rows (at most 0.5) as its validation split.

    Pairs are chosen by a checksum of their source: all pairs of one source are in one
    split, and the number of rows is near to the share. Of the text of a language model,
    whose lines belong together, it takes the end. ValueError if the split exists.
    """
    if "validation" in corpus.splits:
        raise ValueError(
            f"`validation_share` must not be given for {corpus.name}, which has a "
            f"validation split. Received: {share}"
        )

    def read(split, counts):
        if split not in ("train", "validation"):
            yield from corpus._read(split, counts)
            return
        threshold, kept = share * 2**32, sys.maxsize
        if corpus.source_language is None:
            number = sum(1 for _ in corpus.texts("train", "target"))
            threshold, kept = 0, number - max(1, round(number * share))
        rows, empty = itertools.count(), True
        for columns in corpus._read("train", counts):
            wanted = [
                (zlib.crc32(text.encode()) < threshold or row >= kept)
                == (split == "validation")
                for text, row in zip(columns[0], rows, strict=False)
            ]
            counts["kept"] -= wanted.count(False)
            columns = [[*itertools.compress(texts, wanted)] for texts in columns]
            if columns[0]:
                empty = False
                yield columns
        if (number := next(rows)) and empty:
            raise ValueError(
                f"`validation_share` must leave a row for the split {split} of "
                f"{corpus.name}, which has {number:,} in all. Received: {share}"
            )

    return dataclasses.replace(
        corpus,
        splits=("train", "validation", *(s for s in corpus.splits if s != "train")),
        _read=read,
        digests=lambda splits: corpus.digests({*splits} - {"validation"}),
        counts={},
    )


def _direction(
    corpus: str,
    names: Sequence[str],
    order: Sequence[str],
    chosen: tuple[str | None, str | None],
    default: Sequence[str],
) -> tuple[str | None, str]:
    """Source and target of a corpus whose languages are `names`; () fits any two.

    | chosen       | result                                                          |
    |--------------|-----------------------------------------------------------------|
    | both         | both                                                            |
    | one          | the other one of two languages, or that of `default`            |
    | neither      | `default` if the corpus has both, or the corpus' own `order`    |
    | the only one | None and that one: text of a language model; also if not chosen |
    """
    source, target = chosen
    if len(names) == 1 and source is None and target in (None, names[0]):
        return None, names[0]
    if chosen == (None, None):
        fits = default and (not names or {*default} <= {*names})
        source, target = default if fits else order or chosen
    else:
        language, pair = source or target, order or names
        if len(pair) == 2 and language in pair:
            default = [pair[1 - pair.index(language)]] * 2
        default_source, default_target = default or chosen
        source, target = source or default_source, target or default_target
    valid = names or [language for language in (source, target) if language]
    if source != target and source in valid and target in valid:
        return source, target
    received = "Received: {!r} and {!r}".format(*chosen)
    if not names:
        raise ValueError(
            "`source_language` and `target_language` must name the two columns of "
            f"{corpus}. {received}"
        )
    listed = ", ".join(names)
    if chosen == (None, None) and len(names) == 2:
        first, second = names
        listed += (
            ". Nothing says which is translated: give "
            f"`source_language`={first} `target_language`={second} or "
            f"`source_language`={second} `target_language`={first}; of a language "
            "model `target_language` alone"
        )
    raise ValueError(
        "`source_language` and `target_language` must be two languages of "
        f"{corpus}: {listed}. {received}"
    )


# --- TensorFlow Datasets ---


def _open_tfds(name, chosen, default, data_dir, manual_dir, skip) -> Corpus:
    wanted = default if default and chosen == (None, None) else chosen
    builder = tfds_builder(name, *wanted, data_dir)
    full_name = builder.info.full_name
    source, target = _direction(full_name, *tfds_names(builder), chosen, default)
    prepare_tfds(builder, manual_dir)
    columns = [target] if source is None else [source, target]

    names = [*map(str, builder.info.splits)]
    own = {"validation": next((n for n in _VALIDATION if n in names), None)}

    def read(split, counts):
        rows = read_tfds(builder, own.get(split) or split, columns, counts)
        return checked_rows(rows, skip, False, counts)

    def digests(splits):
        infos = (builder.info.splits[own.get(split, split)] for split in splits)
        return {
            f"{full_name} {info.name}": f"{info.num_examples} rows, "
            f"{info.num_bytes} bytes"
            for info in infos
        }

    splits = tuple("validation" if n == own["validation"] else n for n in names)
    return Corpus(name, source, target, splits, read, digests)


# --- Files ---


def _open_files(name, path, order, chosen, default, variant, skip, header) -> Corpus:
    if path.is_dir():
        layout = _layout(path)
    else:
        language = "tsv" if ".tsv" in path.suffixes[-2:] else chosen[1] or "text"
        layout = {("train", "", language): path}
    variant = _variant(path, layout, variant)
    files = {(k[0], k[2]): file for k, file in layout.items() if k[1] == variant}
    names = _columns(files)
    with_columns = names == ["tsv"]
    if len(names) == 1 and not with_columns and (chosen[0] or default):
        csv = ", and no .csv," if "csv" in path.suffix + names[0] else ""
        raise ValueError(
            f"{path} must hold a text of each language, such as train.de and train.en, "
            f"or be or hold .tsv files{csv} of two columns, for a model that "
            f"translates. Received: {_listed(layout)}"
        )
    if sorted(re.split(r"[-_]", variant)) == names:  # fairseq's train.de-en.de
        order = re.split(r"[-_]", variant)
    source, target = _direction(
        str(path), () if with_columns else names, order, chosen, default
    )
    columns = [target] if source is None else [source, target]
    splits = _splits(path, files, names if with_columns else columns)

    def read(split, counts):
        if split not in splits:
            raise ValueError(
                f"`split` must be one of {', '.join(splits)} for {name} (parts of "
                f"splits are for TensorFlow Datasets). Received: split={split!r}"
            )
        for paths in splits[split]:
            if with_columns:
                rows = read_tsv(*paths, (source, target), header)
            else:
                rows = read_parallel(paths, skip, counts)
            yield from checked_rows(rows, skip, source is None, counts)

    def digests(chosen):
        paths = itertools.chain.from_iterable(sum((splits[s] for s in chosen), []))
        return {path.name: digest(path) for path in paths}

    return Corpus(name, source, target, tuple(splits), read, digests)


def _variant(path: Path, layout: dict, variant: str | None) -> str:
    """The part of names between split and language: as chosen, or none, or the only."""
    variants = sorted({other for stem, other, _ in layout if _SPLIT.fullmatch(stem)})
    if len(variants) > 1 and {column for *_, column in layout} == {"txt"}:
        raise ValueError(
            f"Files of {path} must be named by split and language, such as train.de "
            f"or de.train.txt. Received: {_listed(layout)}"
        )
    if variant is None and ("" in variants or len(variants) == 1):
        return variants[0]  # "" is the first
    if variant not in variants:
        raise ValueError(
            f"`variant` must be one that {path} holds: "
            f"{', '.join(map(repr, filter(None, variants))) or 'none'}. "
            f"Received: variant={variant!r}"
        )
    return variant


def _columns(files: dict) -> list[str]:
    """Languages of the training files, or of all splits; "tsv" is a pair of them."""
    stems = {stem for stem, _ in files if _SPLIT.fullmatch(stem)}
    stems = {stem for stem in stems if _TRAINING.fullmatch(stem)} or stems
    return sorted({column for stem, column in files if stem in stems})


def _layout(folder: Path) -> dict:
    """{(stem, variant, language): path}; the language "tsv" is both of them."""
    layout: dict = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(re.sub(r"\.(gz|bz2|xz)$", "", path.name))
        if not match or not path.is_file():
            continue
        key = match[1], match[2] or "", match[3]
        if key[2] == "txt" and _SPLIT.fullmatch(key[1]):
            key = key[1], "", key[0]  # tfds' layout, de.train.txt
        layout.setdefault(key, path)  # a plain text before its archive
    if not any(_SPLIT.fullmatch(stem) for stem, _, _ in layout):
        raise ValueError(
            f"The folder {folder} must hold text files named by split and language, "
            "such as train.de and train.en, or de.train.txt and en.train.txt. It "
            f"holds: {', '.join(sorted(os.listdir(folder))[:8]) or 'nothing'}"
        )
    return layout


def _listed(layout) -> str:
    return ", ".join([path.name for path in layout.values()][:8])


def _splits(folder: Path, layout, columns) -> dict[str, list[list[Path]]]:
    """Name of the split -> for each of its parts the files of the columns."""
    splits: dict = {}
    stems = {stem for stem, _ in layout}
    for stem in sorted(stems, key=lambda stem: (len(stem), stem)):  # train2, train10
        paths = [layout[stem, column] for column in columns if (stem, column) in layout]
        if len(paths) == len(columns):
            split = "train" if _TRAINING.fullmatch(stem) else stem
            splits.setdefault(split, []).append(paths)
        elif paths and _SPLIT.fullmatch(stem):
            raise ValueError(
                f"Every split in {folder} must be there in {' and '.join(columns)}. "
                f"Without a partner: {paths[0].name}"
            )
    validation = [split for split in _VALIDATION if split in splits]
    tests = [split for split in splits if split.startswith("test")]
    if validation:
        splits["validation"] = splits.pop(validation[0])
    if len(tests) == 1:
        splits["test"] = splits.pop(tests[0])
    first = [name for name in ("train", "validation", "test") if name in splits]
    return {name: splits[name] for name in first + sorted({*splits} - {*first})}
