"""From texts to rows of ids, and these on disk: written once, memory-mapped.

A *row* is a dict of int32 vectors, such as {"source_ids", "target_ids"} of a sentence
pair, end ids included, or {"target_ids", "labels"} of a block of a language model. All
rows of a store have the same keys. A folder holds, for each key, `<key>.ids` (all
vectors one after the other, uint16 where every id allows it, otherwise int32, little
endian) and `<key>.offsets` (int64: where each begins, and the end of the last), and
`settings.json`, which is written last.
"""

import collections
import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from keras_seqconv.support.arguments import check_integer, is_number
from keras_seqconv.support.files import atomic_directory, read_json, write_json

_FORMAT = {"format": "keras_seqconv id store", "format_version": 1}
_NARROW, _WIDE, _OFFSET = np.dtype("<u2"), np.dtype("<i4"), np.dtype("<i8")
# Rows that are written, and ids that are widened, at once.
_ROWS, _COPIED = 4096, 1 << 20


def encode(
    blocks: Iterable[tuple[list[str], ...]],
    source_tokenizer,
    target_tokenizer,
    *,
    min_length: int = 1,
    max_length: int | None = None,
    max_ratio: float | None = None,
    truncate_source: int | None = None,
    counts: collections.Counter | None = None,
) -> Iterator[dict[str, list[int]]]:
    """Rows of pairs of texts whose lengths are right, one after the other.

    Lengths are tokens without the end id.

    Args:
        blocks: (sources, targets), as of `Corpus.blocks`.
        source_tokenizer, target_tokenizer: their `tokenize` takes a list of texts and
            gives a list of ids, the end id included, for each.
        min_length, max_length: of each side.
        max_ratio: of the longer side to the shorter one, at least 1.
        truncate_source: cuts sources to so many ids, the end id included, which stays;
            before lengths are looked at. At least 2.
        counts: goes up under "too_short", "too_long" or "ratio", the first that
            applies, for each row left out, and "truncated" for each source cut.

    Yields:
        {"source_ids", "target_ids"}.

    Raises:
        ValueError: an argument, at once.

    Example:

    ```py
    corpus = open_corpus("phrases")
    rows = encode(corpus.blocks("train"), tokenizer, tokenizer, max_length=175)
    store = IdStore.write("ids", rows)
    ```
    """
    check_integer("min_length", min_length, 0)
    if max_length is not None:
        check_integer("max_length", max_length, max(1, min_length))
    if max_ratio is not None and not (is_number(max_ratio) and max_ratio >= 1):
        raise ValueError(
            f"`max_ratio` must be at least 1. Received: max_ratio={max_ratio!r}"
        )
    if truncate_source is not None:
        check_integer("truncate_source", truncate_source, 2)
    counts = collections.Counter() if counts is None else counts

    def problem(short: int, long: int) -> str | None:
        if short < min_length:
            return "too_short"
        if max_length is not None and long > max_length:
            return "too_long"
        return "ratio" if max_ratio is not None and long > short * max_ratio else None

    def rows():
        for sources, targets in blocks:
            ids = source_tokenizer.tokenize(sources), target_tokenizer.tokenize(targets)
            for source, target in zip(*ids, strict=True):
                if truncate_source is not None and len(source) > truncate_source:
                    source = [*source[: truncate_source - 1], source[-1]]
                    counts["truncated"] += 1
                if why := problem(*sorted((len(source) - 1, len(target) - 1))):
                    counts[why] += 1
                else:
                    yield {"source_ids": source, "target_ids": target}

    return rows()


class IdStore:
    """Rows of ids, found by their numbers.

    `IdStore.write` makes a folder, `IdStore.open` reads one without loading it;
    `IdStore.from_rows` keeps rows in memory.

    Attributes:
        keys: names of the vectors of a row.
        lengths: {key: (N,) int32}, ids of each row, each at least 1.
        counts: the dict that the writer was given, for example {"too_long": 3}.

    Example:

    ```python
    import tempfile
    from keras_seqconv.data import IdStore
    rows = [{"target_ids": [5, 6, 2]}, {"target_ids": [7, 2]}]
    with tempfile.TemporaryDirectory() as parent:
        store = IdStore.write(parent + "/ids", rows, fingerprint={"corpus": "tiny"})
        padded = store.gather([1, 0, -1], {"target_ids": 3}, pad_id=1)
    assert padded["target_ids"].tolist() == [[7, 2, 1], [5, 6, 2], [1, 1, 1]]
    ```
    """

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        offsets: Mapping[str, np.ndarray],
        counts: Mapping | None = None,
    ):
        self._values, self._offsets = dict(values), dict(offsets)
        self.keys = tuple(self._values)
        self.counts = dict(counts or {})
        self.lengths = {
            key: np.diff(offsets).astype("int32") for key, offsets in offsets.items()
        }

    def __len__(self) -> int:
        return len(self.lengths[self.keys[0]])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One row, int32."""
        index = range(len(self))[index]  # IndexError
        return {
            key: np.asarray(self._values[key][slice(*ends[index : index + 2])], "int32")
            for key, ends in self._offsets.items()
        }

    def gather(
        self, indices, widths: Mapping[str, int], pad_id: int = 1
    ) -> dict[str, np.ndarray]:
        """Rows padded on the right, {key: (B, width) int32}.

        Args:
            indices: (B,) row numbers; -1 gives a row of padding.
            widths: of some keys or all.

        Raises:
            ValueError: a row is longer than its width. Nothing is cut.
            IndexError: there is no such row.
        """
        indices = np.asarray(indices, "int64")
        if len(indices) and not -1 <= indices.min() <= indices.max() < len(self):
            raise IndexError(
                f"row numbers must be from -1 to {len(self) - 1}. "
                f"Received: {indices.min()} to {indices.max()}"
            )
        found = {}
        for key, width in widths.items():
            lengths = np.where(indices < 0, 0, self.lengths[key][indices])
            if lengths.max(initial=0) > width:
                raise ValueError(
                    "`widths` must be at least the longest row. Received: width "
                    f"{width} for {key}, and a row of {lengths.max()} ids"
                )
            places = np.arange(width)
            real = places < lengths[:, None]
            found[key] = np.full((len(indices), width), pad_id, "int32")
            starts = self._offsets[key][indices]
            found[key][real] = self._values[key][(starts[:, None] + places)[real]]
        return found

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping]) -> "IdStore":
        """A store in memory.

        Raises:
            ValueError: no row; others keys than in the first one; an empty vector; no
                integers, or negative ones.
        """
        parts = list(_parts(rows))
        joined = {
            key: [
                np.concatenate(arrays)
                for arrays in zip(*(p[key] for p in parts), strict=True)
            ]
            for key in parts[0]
        }
        return cls(
            {key: values for key, (values, _) in joined.items()},
            {
                key: np.append(0, lengths.cumsum())
                for key, (_, lengths) in joined.items()
            },
        )

    @classmethod
    def write(
        cls,
        directory: str | os.PathLike,
        rows: Iterable[Mapping],
        fingerprint: Mapping | None = None,
        counts: Mapping | None = None,
    ) -> "IdStore":
        """Writes rows to a folder, in memory that does not grow, and opens it.

        Until all are written, and when something raises, the folder is as it was.
        Another store there is replaced, and nothing else is.

        Args:
            directory: the folder.
            rows: of one or more keys.
            fingerprint: what the rows depend on: file sizes, tokenizer, filters...
                as JSON has it. `open` compares it.
            counts: of what filters removed; looked at after the last row.

        Raises:
            ValueError: the folder holds something else; as `from_rows`.
        """
        columns: dict[str, _Column] = {}
        with atomic_directory(directory, _is_store) as folder:
            with contextlib.ExitStack() as stack:
                for part in _parts(rows, counts):
                    for key, (values, lengths) in part.items():
                        if key not in columns:
                            columns[key] = _Column(folder, key, stack)
                        columns[key].add(values, lengths)
            settings = {
                **_FORMAT,
                "rows": next(iter(columns.values())).rows,
                "keys": {
                    key: {"dtype": column.dtype.name, "ids": column.end}
                    for key, column in columns.items()
                },
                "counts": dict(counts or {}),
                "fingerprint": _as_json(fingerprint or {}),
            }
            write_json(folder / "settings.json", settings)
        return cls.open(directory, fingerprint)

    @classmethod
    def open(
        cls, directory: str | os.PathLike, fingerprint: Mapping | None = None
    ) -> "IdStore":
        """The store of a folder, memory-mapped.

        Args:
            directory: of `write`.
            fingerprint: if given, what the store must have been written with.

        Raises:
            FileNotFoundError: there is no store.
            ValueError: it is damaged, of a newer format, or of another fingerprint.
        """
        directory = Path(directory)
        settings = read_json(directory / "settings.json")
        if {name: settings.get(name) for name in _FORMAT} != _FORMAT:
            raise ValueError(f"{directory}/settings.json must have {_FORMAT}.")
        values, offsets = {}, {}
        try:
            written, counts = dict(settings["fingerprint"]), dict(settings["counts"])
            for key, about in settings["keys"].items():
                path, dtype = directory / f"{key}.ids", np.dtype(about["dtype"])
                values[key] = _map(path, dtype.newbyteorder("<"), about["ids"])
                path = path.with_suffix(".offsets")
                offsets[key] = ends = _map(path, _OFFSET, settings["rows"] + 1)
                if ends[0] or ends[-1] != about["ids"] or (ends[1:] <= ends[:-1]).any():
                    raise ValueError(f"{path} must start at 0 and grow: it is damaged.")
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{directory}/settings.json is damaged.") from None
        wanted = written if fingerprint is None else _as_json(fingerprint)
        if written != wanted:
            raise ValueError(
                f"{directory} must have been written with the fingerprint that is "
                "wanted. Different: "
                + ", ".join(
                    f"{name} ({written.get(name)!r}, wanted {wanted.get(name)!r})"
                    for name in sorted(written.keys() | wanted.keys())
                    if written.get(name) != wanted.get(name)
                )
            )
        return cls(values, offsets, counts)


class _Column:
    """The two files of a key while they are written."""

    def __init__(self, folder: Path, key: str, stack: contextlib.ExitStack):
        if not key.isidentifier():
            raise ValueError(f"A key must be an identifier. Received: {key!r}")
        self._path, self._stack = folder / f"{key}.ids", stack
        self.dtype, self.end, self.rows = _NARROW, 0, 0
        self._ids = self._opened(self._path)
        self._offsets = self._opened(folder / f"{key}.offsets")
        self._offsets.write(np.zeros(1, _OFFSET).tobytes())

    def _opened(self, path: Path):
        return self._stack.enter_context(open(path, "wb"))

    def add(self, values: np.ndarray, lengths: np.ndarray) -> None:
        if self.dtype is _NARROW and values.max() > np.iinfo(_NARROW).max:
            self._widen()
        self._ids.write(values.astype(self.dtype).tobytes())
        ends = self.end + np.cumsum(lengths, dtype=_OFFSET)
        self._offsets.write(ends.tobytes())
        self.end, self.rows = int(ends[-1]), self.rows + len(lengths)

    def _widen(self) -> None:
        """What is written as uint16, once more as int32."""
        self._ids.close()
        narrow = self._path.rename(self._path.with_suffix(".narrow"))
        self._ids, self.dtype = self._opened(self._path), _WIDE
        with open(narrow, "rb") as stream:
            while part := stream.read(_COPIED * _NARROW.itemsize):
                self._ids.write(np.frombuffer(part, _NARROW).astype(_WIDE).tobytes())
        narrow.unlink()


def _parts(rows: Iterable[Mapping], counts: Mapping | None = None) -> Iterator[dict]:
    """{key: (values, lengths)} of some thousands of rows at once, checked."""
    rows, keys = iter(rows), None
    while part := list(itertools.islice(rows, _ROWS)):
        keys = keys or part[0].keys()
        for row in part:
            if row.keys() != keys:
                raise ValueError(
                    f"All rows must have the same keys, {sorted(keys)}. "
                    f"Received: {sorted(row)}"
                )
        yield {key: _joined(key, [row[key] for row in part]) for key in keys}
    if keys is None:
        raise ValueError(
            "A store must hold at least one row. Received: none"
            + (f"; left out: {dict(counts)}" if counts else "")
        )


def _joined(key: str, vectors: list) -> tuple[np.ndarray, np.ndarray]:
    try:
        lengths = np.array([len(vector) for vector in vectors])
    except TypeError:
        raise ValueError(f"Each row must have a vector of ids as {key!r}.") from None
    if isinstance(vectors[0], np.ndarray):
        values = np.concatenate(vectors)
    else:
        values = np.array(list(itertools.chain.from_iterable(vectors)))
    if not lengths.min():
        raise ValueError(f"Rows must have at least one id as {key!r}. Received: none")
    if not np.issubdtype(values.dtype, np.integer) or not (
        0 <= values.min() <= values.max() <= np.iinfo(_WIDE).max
    ):
        raise ValueError(
            f"Ids must be integers from 0 to {np.iinfo(_WIDE).max}. Received as "
            f"{key!r}: {values.dtype} from {values.min()} to {values.max()}"
        )
    return values.astype("int32", copy=False), lengths


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    size = path.stat().st_size if path.is_file() else "no file"
    if size != count * dtype.itemsize:
        raise ValueError(
            f"{path} must have {count * dtype.itemsize} bytes, as settings.json says: "
            f"the store is damaged. Received: {size}"
        )
    return np.memmap(path, dtype, "r")


def _as_json(value: Mapping) -> dict:
    return json.loads(json.dumps(dict(value)))


def _is_store(path: Path) -> bool:
    """Also a damaged one, which may be written anew; a folder of something else not."""
    settings = path / "settings.json"
    return settings.is_file() and _FORMAT["format"] in settings.read_text("utf-8")
