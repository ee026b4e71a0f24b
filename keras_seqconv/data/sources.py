"""Corpora by name: folders of text files, TensorFlow Datasets, the phrases."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_seqconv.data import tfds as tfds_texts
from keras_seqconv.data.background import untuned
from keras_seqconv.data.files import from_files, from_lines, from_tsv
from keras_seqconv.data.rows import plain_errors
from keras_seqconv.support.arguments import check_choice, check_positive_integer
from keras_seqconv.support.extras import require

_VALIDATION = ("validation", "valid", "dev", "val")
_SPLIT = re.compile(r"(train|validation|valid|dev|val|test)[\w-]*")
_ENDINGS = (".gz", ".bz2", ".xz")
# Texts handed over by tf.data at once.
_READ = 1024


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the text of a model comes from; made by `open_corpus`.

    Attributes:
        name: as given to `open_corpus`.
        source_language: for example "de"; None for text of a language model.
        target_language: for example "en". For summaries "article" and "highlights"
            take the place of languages.
        splits: names that `split` takes. Empty where tfds cannot tell (mocked data).
        counts: split -> counter of rows "kept" and, by reason, left out, in the last
            complete pass over that split.
    """

    name: str
    source_language: str | None
    target_language: str
    splits: tuple[str, ...]
    _open: Callable = dataclasses.field(repr=False)
    _size: Callable = dataclasses.field(repr=False)
    _aliases: dict[str, str] = dataclasses.field(repr=False)
    _digests: Callable = dataclasses.field(repr=False)
    counts: dict[str, collections.Counter] = dataclasses.field(default_factory=dict)

    def split(self, name: str):
        """A dataset of {"source": (), "target": ()} strings, or {"target": ()}.

        Its order is always the same; each iteration reads the corpus anew, in memory
        that does not grow with it.

        Args:
            name: one of `splits`; "valid", "dev" and "val" mean "validation". With
                tfds also a part, such as "train[:1%]".

        Raises:
            ValueError: no such split. While reading: see
                `keras_seqconv.data.files.from_files`.
        """
        name = self._known(name)
        counts = self.counts.setdefault(name, collections.Counter())
        return self._open(name, counts)

    def texts(self, split: str, side: str, most: int | None = None) -> Iterator[str]:
        """The texts of one side of a split, one after the other.

        Args:
            split: as in `split`.
            side: "source" or "target"; "target" only for text of a language model.
            most: end after so many.

        Raises:
            ValueError: wrong arguments; while reading, as `split`.
        """
        sides = ("target",) if self.source_language is None else ("source", "target")
        check_choice("side", side, sides)
        if most is not None:
            check_positive_integer("most", most)
        dataset = self.split(split)
        return _decoded(dataset if most is None else dataset.take(most), side)

    def size(self, split: str) -> int | None:
        """Number of rows, where that is known without reading them."""
        return self._size(self._known(split))

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


def _decoded(dataset, side: str) -> Iterator[str]:
    with plain_errors():
        for batch in untuned(dataset.batch(_READ)).as_numpy_iterator():
            for text in batch[side]:
                yield text.decode("utf-8", errors="replace")


def open_corpus(
    name: str | os.PathLike,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    data_dir: str | os.PathLike | None = None,
    variant: str | None = None,
    upsample: float | Sequence[float] | None = None,
    on_error: str = "raise",
    manual_dir: str | os.PathLike | None = None,
    probe_timeout: float | None = 5.0,
) -> Corpus:
    """Opens a corpus by name; TensorFlow Datasets downloads it where it must.

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
        upsample: for folders, how often `train` is read compared with `train1`, ...;
            or a number for each of them (see `keras_seqconv.data.files.from_files`).
        on_error: "raise", or "skip" and count rows that cannot be used.
        manual_dir: for tfds, a folder with downloads made by hand.
        probe_timeout: for tfds, seconds that an address may take to answer before
            this gives up; None: do not ask.

    Raises:
        ValueError: an unknown name; tells what was tried. A language that is not
            there, or none where nothing says which of two is translated; lists those
            that are.
        FileNotFoundError, ConnectionError: see `keras_seqconv.data.tfds.prepare`.

    Example:

    ```python
    corpus = keras_seqconv.data.open_corpus("phrases", source_language="de")
    for pair in corpus.split("train").take(2):
        print(pair["source"].numpy().decode(), "|", pair["target"].numpy().decode())
    ```
    """
    name, source, target = os.fspath(name), source_language, target_language
    check_choice("on_error", on_error, ("raise", "skip"))
    if not name:  # it would be the current folder
        raise ValueError(f"`name` must not be empty. Received: name={name!r}")
    folder = Path(name).expanduser()
    if name == "phrases":
        folder = Path(__file__).parent / "phrases"
        if source is target is None:
            source, target = "en", "de"
    if folder.is_file():
        tsv = ".tsv" in folder.suffixes[-2:]
        if source is not None and not tsv:
            raise ValueError(
                "`name` must be a .tsv file of two columns, or a folder with a file "
                f"for each language, to translate from {source}. Received: {name}"
            )
        files = {("train", "", "tsv" if tsv else target or "text"): folder}
        return _of_files(
            name, folder, files, source, target, variant, upsample, on_error
        )
    if folder.is_dir():
        # Also a folder of versions: the name of tfds itself, where it keeps its data.
        places = ("dataset_info.json", "*/dataset_info.json")
        prepared = sorted(itertools.chain(*map(folder.glob, places)))
        if not prepared:
            files = _translate_folder(folder) or _text_folder(folder)
            return _of_files(
                name, folder, files, source, target, variant, upsample, on_error
            )
        tfds = require("tensorflow_datasets", "tfds")
        builder = tfds.builder_from_directory(prepared[-1].parent)
    else:
        builder = _tfds_builder(name, folder, source, target, data_dir)
    for argument, value in (("variant", variant), ("upsample", upsample)):
        if value is not None:
            raise ValueError(
                f"`{argument}` must be None unless `name` is a folder of text files. "
                f"Received: name={name!r}, {argument}={value!r}"
            )
    return _open_tfds(
        name, builder, source, target, on_error, manual_dir, probe_timeout
    )


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

    def open_split(name, counts):
        if name not in ("train", "validation"):
            return corpus._open(name, counts)
        rows, held = corpus._open("train", counts), name == "validation"
        if corpus.source_language is None:
            with plain_errors():
                number = int(rows.reduce(np.int64(0), lambda n, _: n + 1))
            kept = number - max(1, round(number * share))
            return rows.skip(kept) if held else rows.take(kept)
        rows = rows.enumerate()
        rows = rows.filter(lambda number, _: ((number + 1) % every == 0) == held)
        return rows.map(lambda _, row: row)

    return dataclasses.replace(
        corpus,
        splits=("train", "validation", *(s for s in corpus.splits if s != "train")),
        _open=open_split,
        _size=lambda split: None,
        _aliases=_aliases(("validation",)),
        _digests=lambda splits: corpus._digests({*splits} - {"validation"}),
    )


# TensorFlow Datasets


def _tfds_builder(name, folder, source, target, data_dir):
    tried = [f"a folder of that name ({'a file' if folder.exists() else 'missing'})"]
    if name.startswith((".", "/", "~")) or name.endswith("/") or folder.exists():
        reason = "a path is no name of TensorFlow Datasets"
    else:
        try:
            return tfds_texts.builder_of(
                name, source=source, target=target, data_dir=data_dir
            )
        except (ValueError, ImportError) as error:
            reason, cause = str(error), error
            if reason.startswith("`"):  # what to choose is said there
                raise
            tried += ['the embedded corpus "phrases"', reason]
            kind = ImportError if isinstance(error, ImportError) else ValueError
            raise kind(_unknown(name, tried)) from cause
    raise ValueError(_unknown(name, [*tried, reason]))


def _unknown(name: str, tried: list[str]) -> str:
    return (
        "`name` must be a folder of text files, a name of TensorFlow Datasets or "
        f'"phrases". Received: name={name!r}. Tried: {"; ".join(tried)}'
    )


def _open_tfds(name, builder, source, target, on_error, manual_dir, probe_timeout):
    source, target = tfds_texts.direction(builder, source, target)
    tfds_texts.prepare(builder, manual_dir=manual_dir, probe_timeout=probe_timeout)

    def open_split(split, counts):
        return tfds_texts.from_tfds(
            builder,
            split,
            source=source,
            target=target,
            on_error=on_error,
            counts=counts,
        )

    splits = tuple(str(split) for split in builder.info.splits)

    def digests(splits):
        infos = [builder.info.splits[split] for split in splits]
        return {
            f"{builder.info.full_name} {one.name}": f"{one.num_examples} rows, "
            f"{one.num_bytes} bytes"
            for one in infos
        }

    size = functools.partial(tfds_texts.size, builder)
    return Corpus(
        name, source, target, splits, open_split, size, _aliases(splits), digests
    )


def _aliases(splits: tuple[str, ...]) -> dict[str, str]:
    """What people call the validation split -> what it is called here."""
    there = [split for split in _VALIDATION if split in splits]
    name = there[0] if there else "validation"
    return {other: name for other in _VALIDATION if other not in there}


# Folders


def _of_files(name, folder, files, source, target, variant, upsample, on_error):
    """A corpus of (split, variant, language) -> path; "tsv" is both languages."""
    variants = sorted({key[1] for key in files})
    chosen = _variant(folder, variants, variant)
    table = {
        (stem, tongue): path for (stem, v, tongue), path in files.items() if v == chosen
    }
    languages = _languages(folder, table)
    wanted = [source, target]
    if languages == ("tsv",):
        if None in wanted or source == target:
            raise ValueError(
                "`source_language` and `target_language` must name the two columns of "
                f"{folder}. Received: {source!r}, {target!r}"
            )
        wanted = ["tsv"]
    elif len(languages) == 1 and source is None:
        source, target = None, target or languages[0]
        if target not in languages:
            raise ValueError(
                f"`target_language` must be {languages[0]}, the only language of "
                f"{folder}. Received: target_language={target!r}"
            )
    else:
        default = tuple(re.split(r"[-_]", chosen))
        if set(default) != set(languages):
            default = ()
        source, target = tfds_texts.complete_direction(
            str(folder), languages, default, source, target
        )
    if wanted != ["tsv"]:
        wanted = [tongue for tongue in (source, target) if tongue is not None]
    parts = _splits(folder, table, wanted)
    aliases = _aliases(tuple(parts))
    aliases.update((stems[0], split) for split, stems in parts.items())
    return Corpus(
        name,
        source,
        target,
        tuple(parts),
        functools.partial(_open_files, parts, table, wanted, upsample, on_error),
        lambda split: None,
        aliases,
        functools.partial(_digests, parts, table, wanted),
    )


def _open_files(parts, table, wanted, upsample, on_error, split, counts):
    if split not in parts:
        raise ValueError(
            f"`split` must be one of {', '.join(parts)}; parts of splits are for "
            f"TensorFlow Datasets. Received: split={split!r}"
        )
    columns = [[table[stem, tongue] for stem in parts[split]] for tongue in wanted]
    if wanted == ["tsv"]:
        return from_tsv(*columns, on_error=on_error, counts=counts)
    factors = upsample if split == "train" else None
    read = from_files if len(wanted) == 2 else from_lines
    return read(*columns, upsample=factors, on_error=on_error, counts=counts)


def _digests(parts, table, wanted, splits) -> dict[str, str]:
    stems = [stem for split in splits for stem in parts[split]]
    digests = {}
    for path in (table[stem, tongue] for stem in stems for tongue in wanted):
        with open(path, "rb") as stream:
            digests[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def _file_names(folder: Path):
    """(name without a compression's ending, path) of the files, sorted."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            ending = path.suffix if path.suffix in _ENDINGS else ""
            yield path.name.removesuffix(ending), path


def _translate_folder(folder: Path) -> Mapping[tuple[str, str, str], Path]:
    """Files of tfds' layout, language.split.txt."""
    files = {}
    for file, path in _file_names(folder):
        match = re.fullmatch(r"([\w-]+)\.([\w-]+)\.txt", file)
        if match and _SPLIT.fullmatch(match[2]) and not _SPLIT.fullmatch(match[1]):
            _add(files, (match[2], "", match[1]), path)
    return files


def _text_folder(folder: Path) -> Mapping[tuple[str, str, str], Path]:
    """(stem, variant, language) -> path, of all files that look like that."""
    files = {}
    for file, path in _file_names(folder):
        match = re.fullmatch(r"([\w-]+)\.(?:(.+)\.)?([\w-]+)", file)
        if match:
            _add(files, (match[1], match[2] or "", match[3]), path)
    if not any(_SPLIT.fullmatch(stem) for stem, _, _ in files):
        raise ValueError(
            f"The folder {folder} must hold text files named by split and language, "
            "such as train.de and train.en, or de.train.txt and en.train.txt. It "
            f"holds: {', '.join(sorted(os.listdir(folder))[:8]) or 'nothing'}"
        )
    return {
        key: path
        for key, path in files.items()
        if _SPLIT.fullmatch(key[0]) or _partner(files, key)
    }


def _partner(files, key) -> bool:
    """Whether the file is there in the languages that the train split is in."""
    tongues = {k[2] for k in files if k[1] == key[1] and _SPLIT.fullmatch(k[0])}
    return len(tongues) > 1 and all((key[0], key[1], t) in files for t in tongues)


def _add(files, key, path):
    if key in files:
        raise ValueError(
            f"A text must be there once, plain or compressed. There are both "
            f"{files[key]} and {path.name}"
        )
    files[key] = path


def _variant(folder: Path, variants: list[str], variant: str | None) -> str:
    if variant is None and "" in variants:
        return ""
    if variant is None and len(variants) == 1:
        return variants[0]
    if variant not in variants:
        listed = ", ".join(repr(v) for v in variants if v) or "none"
        raise ValueError(
            f"`variant` must be one that {folder} holds: {listed}. "
            f"Received: variant={variant!r}"
        )
    return variant


def _languages(folder: Path, table) -> tuple[str, ...]:
    """The languages of the training text, or of all text where there is none."""
    stems = {stem for stem, _ in table}
    training = {stem for stem in stems if re.fullmatch(r"train\d*", stem)}
    return tuple(sorted({t for stem, t in table if stem in (training or stems)}))


def _splits(folder: Path, table, wanted) -> dict[str, list[str]]:
    """Name of the split -> stems of its files."""
    complete, broken = [], []
    for stem in sorted({stem for stem, _ in table}):
        there = [tongue for tongue in wanted if (stem, tongue) in table]
        if len(there) == len(wanted):
            complete.append(stem)
        elif there:
            broken.append(f"{table[stem, there[0]].name}")
    if broken:
        raise ValueError(
            f"Every split in {folder} must be there in {' and '.join(wanted)}. Without "
            f"a partner: {', '.join(broken)}"
        )
    parts = collections.defaultdict(list)
    numbered = [stem for stem in complete if re.fullmatch(r"train\d*", stem)]
    for stem in sorted(numbered, key=lambda stem: int(stem[5:] or 0)):
        parts["train"].append(stem)
    for stem in complete:
        if stem in numbered:
            continue
        split = "validation" if stem in _VALIDATION else stem
        if split in parts:
            raise ValueError(
                f"{folder} must hold one validation text. There are "
                f"{parts[split][0]} and {stem}"
            )
        parts[split].append(stem)
    tests = [split for split in parts if split.startswith("test")]
    if len(tests) == 1:
        parts["test"] = parts.pop(tests[0])
    order = {"train": 0, "validation": 1, "test": 2}
    return dict(sorted(parts.items(), key=lambda item: (order.get(item[0], 3), item)))
