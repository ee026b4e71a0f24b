"""Corpora by name: folders of text files, TensorFlow Datasets, the phrases."""

import collections
import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from keras_seqconv.data import tfds as tfds_texts
from keras_seqconv.data.reading import checked, read_parallel, read_tsv
from keras_seqconv.support.arguments import check_choice, check_positive_integer
from keras_seqconv.support.extras import require

_VALIDATION = ("validation", "valid", "dev", "val")
_TRAINING = re.compile(r"train\d*")
_SPLIT = re.compile(r"(train|validation|valid|dev|val|test)[\w-]*")
_NAME = re.compile(r"([\w-]+)\.(?:(.+)\.)?([\w-]+)")
_ENDINGS = (".gz", ".bz2", ".xz")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the text of a model comes from; made by `open_corpus`.

    Attributes:
        name: as given to `open_corpus`.
        source_language: for example "de"; None for text of a language model.
        target_language: for example "en". For summaries "article" and "highlights"
            take the place of languages.
        splits: names that `blocks` takes. Empty where tfds cannot tell (mocked data).
        counts: split -> counter of rows "kept" and, by reason, left out, in the last
            complete pass over that split: "empty" (either side without text),
            "invalid_utf8", "nul", "unpaired" (lines beyond the end of the shorter file:
            look at these, the files may be shifted), "untranslated" (of tfds).
    """

    name: str
    source_language: str | None
    target_language: str
    splits: tuple[str, ...]
    _read: Callable = dataclasses.field(repr=False)
    _digests: Callable = dataclasses.field(repr=False)
    _aliases: dict[str, str] = dataclasses.field(repr=False)
    counts: dict[str, collections.Counter] = dataclasses.field(default_factory=dict)

    def blocks(self, split: str) -> Iterator[tuple[list[str], ...]]:
        """The rows of a split, some thousands at a time, always in the same order.

        Each call reads the corpus anew, in memory that does not grow with it.

        Args:
            split: one of `splits`; "valid", "dev" and "val" mean "validation". With
                tfds also a part, such as "train[:1%]".

        Returns:
            An iterator of (sources, targets), lists of one length, or of (targets,).

        Raises:
            ValueError: no such split, at once. While reading, with the place: a row
                that cannot be used, unless `on_error` of `open_corpus` is "skip"; a
                broken file; no row at all.
        """
        split = self._known(split)
        return self._blocks(split)

    def _blocks(self, split: str) -> Iterator[tuple[list[str], ...]]:
        counts, empty = collections.Counter(), True
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

    def texts(self, split: str, side: str, most: int | None = None) -> Iterator[str]:
        """The texts of one side of a split, one after the other.

        Args:
            split: as of `blocks`.
            side: "source" or "target"; "target" only for text of a language model.
            most: end after so many.

        Raises:
            ValueError: wrong arguments; while reading, as `blocks`.
        """
        sides = ("target",) if self.source_language is None else ("source", "target")
        check_choice("side", side, sides)
        if most is not None:
            check_positive_integer("most", most)
        columns = (block[sides.index(side)] for block in self.blocks(split))
        return itertools.islice(itertools.chain.from_iterable(columns), most)

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        """What tells whether splits have changed; about a second for each GB of files.

        Returns:
            Name of each file -> SHA-256 of its bytes. With tfds: version and name of
            the split -> its numbers of rows and bytes.
        """
        return self._digests([self._known(split) for split in splits])

    def _known(self, name: str) -> str:
        base = re.split(r"[\[+]", name)[0]
        if base in self._aliases:
            name = self._aliases[base] + name[len(base) :]
            base = self._aliases[base]
        if self.splits and base not in (*self.splits, "all"):
            raise ValueError(
                f"`split` must be one of {', '.join(self.splits)} for {self.name}. "
                f"Received: split={name!r}"
            )
        return name


def open_corpus(
    name: str | os.PathLike,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    data_dir: str | os.PathLike | None = None,
    variant: str | None = None,
    on_error: str = "raise",
    manual_dir: str | os.PathLike | None = None,
) -> Corpus:
    """Opens a corpus by name; TensorFlow Datasets downloads it where it must.

    Text files are UTF-8, plain or compressed with gzip, bzip2 or xz, which is told by
    their first bytes; a line ends with LF or CRLF.

    Args:
        name: one of
            - "phrases": the embedded corpus, 20,000 English and German phrases about
              numbers, dates and times. (A folder of that name: "./phrases".)
            - a folder with `train.de`, `train.en`, `valid.de`, ... Splits are
              `train` (with `train1`, `train2`, ... behind it), `valid`, `validation`,
              `dev` or `val`, `test`, and whatever else is there in both languages;
              a single `test2016` is `test`. Each file may be compressed and end
              in .gz, .bz2 or .xz. With one language only: text for language models.
            - a folder in the layout of tfds' TranslateFolder: `de.train.txt`, ...
            - a folder with `train.tsv`, ..., or one such file: the first column is the
              source, the second the target, others are left out.
            - any other text file: the `train` split of a language model.
            - a folder that holds one prepared data set of tfds (`dataset_info.json`),
              or versions of it, the last of which counts.
            - a name of TensorFlow Datasets, such as "wmt14_translate/de-en" or
              "cnn_dailymail".
        source_language: language, or name of the text, to translate from.
        target_language: to translate into. Defaults: the order in which tfds or the
            variant ("de-en") names the two; given one of two, the other.
        data_dir: where tfds keeps prepared data. Default: tfds' own, which is
            the environment's TFDS_DATA_DIR or ~/tensorflow_datasets.
        variant: for folders, what stands between split and language:
            "lc.norm.tok" for `train.lc.norm.tok.de`. Default: nothing, or the only
            one there is.
        on_error: "raise", or "skip" and count rows that cannot be used. Lines without
            text are rows like others for a language model.
        manual_dir: for tfds, a folder with downloads made by hand.

    Raises:
        ValueError: an unknown name; tells what was tried. A language that is not
            there, or none where nothing says which of two is translated; lists those
            that are.
        FileNotFoundError, ConnectionError: see `keras_seqconv.data.tfds.prepare`.

    Example:

    ```python
    corpus = keras_seqconv.data.open_corpus("phrases", source_language="de")
    for sources, targets in corpus.blocks("validation"):
        print(sources[0], "|", targets[0])
    ```
    """
    name = os.fspath(name)
    languages = source_language, target_language
    check_choice("on_error", on_error, ("raise", "skip"))
    if not name:  # it would be the current folder
        raise ValueError(f"`name` must not be empty. Received: name={name!r}")
    folder = Path(name).expanduser()
    if name == "phrases":
        folder = Path(__file__).parent / "phrases"
        if languages == (None, None):
            languages = "en", "de"
    # Also a folder of versions: the name of tfds itself, where it keeps its data.
    places = ("dataset_info.json", "*/dataset_info.json")
    prepared = sorted(itertools.chain(*map(folder.glob, places)))
    if folder.exists() and not prepared:
        return _open_files(name, folder, *languages, variant, on_error)
    if variant is not None:
        raise ValueError(
            "`variant` must be None unless `name` is a folder of text files. "
            f"Received: name={name!r}, variant={variant!r}"
        )
    if prepared:
        tfds = require("tensorflow_datasets", "tfds")
        builder = tfds.builder_from_directory(prepared[-1].parent)
    else:
        builder = _builder(name, *languages, data_dir)
    return _open_tfds(name, builder, *languages, manual_dir, on_error)


def hold_out(corpus: Corpus, share: float) -> Corpus:
    """The corpus with a share of its training rows as the validation split.

    Of pairs it is every N-th one, N = 1 / share rounded; of the text of a language
    model, whose lines belong together, the end.

    Args:
        corpus: without a validation split.
        share: of the training rows, 0 < share <= 0.5.

    Raises:
        ValueError: there is a validation split.
    """
    if "validation" in corpus.splits:
        raise ValueError(
            f"`validation_share` must not be given for {corpus.name}, which has a "
            f"validation split. Received: {share}"
        )
    every = round(1 / share)

    def read(split, counts):
        if split not in ("train", "validation"):
            yield from corpus._read(split, counts)
            return
        start = None  # of the held-out end
        if corpus.source_language is None:
            number = sum(1 for _ in corpus.texts("train", "target"))
            start = number - max(1, round(number * share))
        first = 0
        for columns in corpus._read("train", counts):
            rows = range(first, first + len(columns[0]))
            first += len(rows)
            held = [
                (row + 1) % every == 0 if start is None else row >= start
                for row in rows
            ]
            wanted = [one == (split == "validation") for one in held]
            columns = [[*itertools.compress(texts, wanted)] for texts in columns]
            if columns[0]:
                yield columns

    return dataclasses.replace(
        corpus,
        splits=("train", "validation", *(s for s in corpus.splits if s != "train")),
        _read=read,
        _digests=lambda splits: corpus._digests({*splits} - {"validation"}),
        _aliases=_aliases(("validation",)),
        counts={},
    )


def _aliases(splits: Sequence[str]) -> dict[str, str]:
    """What people call the validation split -> what it is called here."""
    there = [split for split in _VALIDATION if split in splits]
    name = there[0] if there else "validation"
    return {other: name for other in _VALIDATION if other not in there}


def _direction(
    what: str, names: Sequence[str], default: Sequence[str], source, target
) -> tuple[str, str]:
    """Source and target: both as in `default`, or the other of two names.

    Raises:
        ValueError: not two different ones of `names`.
    """
    pair = default or names
    if source is None and target is None and default:
        source, target = default
    elif len(pair) == 2 and (source or target) in pair:
        other = pair[1 - pair.index(source or target)]
        source, target = source or other, target or other
    if source == target or source not in names or target not in names:
        listed = ", ".join(names)
        if source is target is None and len(names) == 2:
            ways = (
                f"`source_language`={a} `target_language`={b}"
                for a, b in (names, names[::-1])
            )
            listed += f". Nothing says which is translated: give {' or '.join(ways)}"
        raise ValueError(
            "`source_language` and `target_language` must be two languages of "
            f"{what}: {listed}. Received: {source!r} and {target!r}"
        )
    return source, target


# --- TensorFlow Datasets ---


def _builder(name: str, source, target, data_dir):
    tried = ["a folder of that name (missing)", "a path is no name of tfds"]
    kind = ValueError
    if not name.startswith((".", "/", "~")) and not name.endswith("/"):
        data_dir = None if data_dir is None else os.fspath(data_dir)
        try:
            return tfds_texts.builder_of(name, source, target, data_dir)
        except (ValueError, ImportError) as error:
            if str(error).startswith("`"):  # what to choose is said there
                raise
            kind = ImportError if isinstance(error, ImportError) else ValueError
            tried[1:] = ['the embedded corpus "phrases"', str(error)]
    raise kind(
        "`name` must be a folder of text files, a name of TensorFlow Datasets or "
        f'"phrases". Received: name={name!r}. Tried: {"; ".join(tried)}'
    )


def _open_tfds(name, builder, source, target, manual_dir, on_error) -> Corpus:
    names, default = tfds_texts.names_of(builder)
    if len(names) == 1 and source is None:
        target = target or names[0]
    else:
        source, target = _direction(
            builder.info.full_name, names, default, source, target
        )
    tfds_texts.prepare(builder, manual_dir)
    wanted = [one for one in (source, target) if one is not None]

    def read(split, counts):
        rows = tfds_texts.read_split(builder, split, wanted, counts)
        return checked(rows, on_error, False, counts)

    def digests(splits):
        infos = [builder.info.splits[split] for split in splits]
        return {
            f"{builder.info.full_name} {one.name}": f"{one.num_examples} rows, "
            f"{one.num_bytes} bytes"
            for one in infos
        }

    splits = tuple(str(split) for split in builder.info.splits)
    return Corpus(name, source, target, splits, read, digests, _aliases(splits))


# --- Files ---


def _open_files(name, path, source, target, variant, on_error) -> Corpus:
    layout = _layout(path) if path.is_dir() else _single(path, source, target)
    named = [key for key in layout if _SPLIT.fullmatch(key[0])]
    variant = _variant(path, sorted({key[1] for key in named}), variant)
    stems = {stem for stem, other, _ in named if other == variant}
    stems = {stem for stem in stems if _TRAINING.fullmatch(stem)} or stems
    languages = sorted({k[2] for k in named if k[1] == variant and k[0] in stems})
    if languages == ["tsv"]:
        if source is None or target is None or source == target:
            raise ValueError(
                "`source_language` and `target_language` must name the two columns of "
                f"{path}. Received: {source!r}, {target!r}"
            )
    elif len(languages) == 1 and source is None:
        if target not in (None, *languages):
            raise ValueError(
                f"`target_language` must be {languages[0]}, the only language of "
                f"{path}. Received: target_language={target!r}"
            )
        target = languages[0]
    else:
        default = re.split(r"[-_]", variant)  # fairseq's train.de-en.de
        default = default if sorted(default) == languages else ()
        source, target = _direction(str(path), languages, default, source, target)
    columns = [one for one in (source, target) if one is not None]
    if languages == ["tsv"]:
        columns = languages
    splits = _splits(path, layout, variant, columns)

    def read(split, counts):
        if split not in splits:
            raise ValueError(
                f"`split` must be one of {', '.join(splits)}; parts of splits are for "
                f"TensorFlow Datasets. Received: split={split!r}"
            )
        for paths in splits[split]:
            if columns == ["tsv"]:
                rows = read_tsv(*paths)
            else:
                rows = read_parallel(paths, on_error, counts)
            yield from checked(rows, on_error, source is None, counts)

    def digests(chosen):
        digests = {}
        for path in itertools.chain.from_iterable(sum((splits[s] for s in chosen), [])):
            with open(path, "rb") as stream:
                digests[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
        return digests

    # A single test2016 is "test".
    tests = {key[0]: "test" for key in named if key[0].startswith("test")}
    aliases = _aliases(splits) | {k: v for k, v in tests.items() if k not in splits}
    return Corpus(name, source, target, tuple(splits), read, digests, aliases)


def _single(path: Path, source, target) -> dict:
    tsv = ".tsv" in path.suffixes[-2:]
    if source is not None and not tsv:
        raise ValueError(
            "`name` must be a .tsv file of two columns, or a folder with a file "
            f"for each language, to translate from {source}. Received: {path}"
        )
    return {("train", "", "tsv" if tsv else target or "text"): path}


def _layout(folder: Path) -> dict:
    """{(stem, variant, language): path}; the language "tsv" is both of them."""
    layout: dict = {}
    for path in sorted(folder.iterdir()):
        ending = path.suffix if path.suffix in _ENDINGS else ""
        match = _NAME.fullmatch(path.name.removesuffix(ending))
        if not match or not path.is_file():
            continue
        key = match[1], match[2] or "", match[3]
        if key[2] == "txt" and _SPLIT.fullmatch(key[1]):
            key = key[1], "", key[0]  # tfds' layout, de.train.txt
        if key in layout:
            raise ValueError(
                "A text must be there once, plain or compressed. There are both "
                f"{layout[key]} and {path.name}"
            )
        layout[key] = path
    if not any(_SPLIT.fullmatch(stem) for stem, _, _ in layout):
        raise ValueError(
            f"The folder {folder} must hold text files named by split and language, "
            "such as train.de and train.en, or de.train.txt and en.train.txt. It "
            f"holds: {', '.join(sorted(os.listdir(folder))[:8]) or 'nothing'}"
        )
    return layout


def _variant(folder: Path, variants: list[str], variant: str | None) -> str:
    if variant is None and ("" in variants or len(variants) == 1):
        return variants[0]  # "" is the first
    if variant not in variants:
        listed = ", ".join(repr(v) for v in variants if v) or "none"
        raise ValueError(
            f"`variant` must be one that {folder} holds: {listed}. "
            f"Received: variant={variant!r}"
        )
    return variant


def _splits(folder: Path, layout, variant, columns) -> dict[str, list[list[Path]]]:
    """Name of the split -> for each of its parts the files of the columns."""
    splits: dict = {}
    stems = {stem for stem, other, _ in layout if other == variant}
    for stem in sorted(stems, key=lambda stem: (len(stem), stem)):  # train2, train10
        keys = [(stem, variant, column) for column in columns]
        paths = [layout[key] for key in keys if key in layout]
        if len(paths) < len(columns):
            if paths and _SPLIT.fullmatch(stem):
                raise ValueError(
                    f"Every split in {folder} must be there in "
                    f"{' and '.join(columns)}. Without a partner: {paths[0].name}"
                )
            continue
        if _TRAINING.fullmatch(stem):
            splits.setdefault("train", []).append(paths)
            continue
        split = "validation" if stem in _VALIDATION else stem
        if split in splits:
            raise ValueError(
                f"{folder} must hold one validation text. There are "
                f"{splits[split][0][0].name} and {paths[0].name}"
            )
        splits[split] = [paths]
    tests = [split for split in splits if split.startswith("test")]
    if len(tests) == 1:
        splits["test"] = splits.pop(tests[0])
    first = ["train", "validation", "test"]
    names = [name for name in first if name in splits]
    return {name: splits[name] for name in names + sorted({*splits} - {*names})}
