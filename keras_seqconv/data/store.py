"""Rows of ids on disk: written once, in order; read by row number, memory-mapped.

A *row* is a dict of int32 vectors, such as {"source_ids", "target_ids"} of a sentence
pair, end ids included, or {"target_ids", "labels"} of a block of a language model. All
rows of a store have the same keys. A folder holds, for each key, `<key>.ids` (all
vectors one after the other, uint16 where every id allows it, otherwise int32, little
endian) and `<key>.offsets` (int64: where each begins, and the end of the last), and
`settings.json`, which is written last.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from keras_seqconv.support.files import atomic_directory

_FORMAT = "keras_seqconv id store"
_FORMAT_VERSION = 1
_NARROW, _WIDE, _OFFSET = np.dtype("<u2"), np.dtype("<i4"), np.dtype("<i8")
# Rows that `write` hands over at once, and ids that are widened at once.
_CHUNK, _COPIED = 4096, 1 << 20


class IdStore:
    """Rows of ids, found by their numbers.

    `IdStore.open` reads a folder without loading it; `IdStore.write` and
    `IdStore.writer` make one; `IdStore.from_rows` keeps rows in memory.

    Attributes:
        keys: names of the vectors of a row.
        lengths: {key: (N,) int32}, ids of each row, each at least 1.
        fingerprint: the dict that the writer was given.
        counts: the dict that the writer was given, for example {"too_long": 3}.

    Example:

    ```python
    import tempfile
    from keras_seqconv.data.store import IdStore
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
        *,
        fingerprint: Mapping | None = None,
        counts: Mapping | None = None,
        name: str = "the store",
    ):
        self._values, self._offsets = dict(values), dict(offsets)
        self.keys = tuple(self._values)
        self.fingerprint = dict(fingerprint or {})
        self.counts = dict(counts or {})
        self.lengths = {
            key: _lengths(self._values[key], self._offsets[key], f"{key} of {name}")
            for key in self.keys
        }
        sizes = {key: len(lengths) for key, lengths in self.lengths.items()}
        if not sizes or len(set(sizes.values())) != 1:
            raise ValueError(
                f"{name} must have as many vectors of each key. Received: {sizes}"
            )

    def __len__(self) -> int:
        return len(self.lengths[self.keys[0]])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One row, int32."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        row = {}
        for key, offsets in self._offsets.items():
            found = self._values[key][offsets[index] : offsets[index + 1]]
            row[key] = np.asarray(found, "int32")
        return row

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
        # An empty list would be one of floats.
        indices = np.asarray(indices, None if len(indices) else "int32")
        if len(indices) and not -1 <= indices.min() <= indices.max() < len(self):
            raise IndexError(
                f"row numbers must be from -1 to {len(self) - 1}. "
                f"Received: {indices.min()} to {indices.max()}"
            )
        return {
            key: self._padded(key, indices, width, pad_id)
            for key, width in widths.items()
        }

    def _padded(self, key: str, indices, width: int, pad_id: int):
        lengths = np.where(indices < 0, 0, self.lengths[key][indices])
        if lengths.max(initial=0) > width:
            raise ValueError(
                f"`widths` must be at least the longest row. Received: width {width} "
                f"for {key}, and a row of {lengths.max()} ids"
            )
        places = np.arange(width)
        real = places < lengths[:, None]
        padded = np.full((len(indices), width), pad_id, "int32")
        starts = self._offsets[key][indices]
        padded[real] = self._values[key][(starts[:, None] + places)[real]]
        return padded

    def chunks(self, rows: int = _CHUNK) -> Iterator[dict[str, tuple]]:
        """All rows in order, as {key: (values int32, lengths)} of up to `rows` rows."""
        for start in range(0, len(self), rows):
            chunk = {}
            for key, offsets in self._offsets.items():
                stop = min(start + rows, len(self))
                values = self._values[key][offsets[start] : offsets[stop]]
                lengths = self.lengths[key][start:stop]
                chunk[key] = np.asarray(values, "int32"), lengths
            yield chunk

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping], **options) -> "IdStore":
        """A store in memory; `options` as of the class."""
        return cls.from_chunks(_chunks_of(rows), **options)

    @classmethod
    def from_chunks(cls, chunks: Iterable[Mapping], **options) -> "IdStore":
        """A store in memory, of {key: (values, lengths)} with rows one after another.

        Raises:
            ValueError: no chunk; other keys than in the first one; an empty vector; no
                integers, or negative ones.
        """
        values: dict[str, list] = {}
        lengths: dict[str, list] = {}
        for chunk in map(_checked, chunks):
            if values and set(values) != set(chunk):
                raise _other_keys(values, chunk)
            for key, (ids, sizes) in chunk.items():
                values.setdefault(key, []).append(ids)
                lengths.setdefault(key, []).append(sizes)
        if not values:
            raise ValueError("A store must hold at least one row.")
        offsets = {
            key: np.concatenate([[0], np.cumsum(np.concatenate(parts))])
            for key, parts in lengths.items()
        }
        return cls(
            {key: np.concatenate(parts) for key, parts in values.items()},
            offsets,
            **options,
        )

    @classmethod
    def write(
        cls,
        directory: str | os.PathLike,
        rows: Iterable[Mapping],
        fingerprint: Mapping | None = None,
        counts: Mapping | None = None,
    ) -> "IdStore":
        """Writes rows to a folder and opens it; see `writer`."""
        with cls.writer(directory, fingerprint, counts) as writer:
            for chunk in _chunks_of(rows):
                writer.add(chunk)
        return cls.open(directory, fingerprint)

    @classmethod
    @contextlib.contextmanager
    def writer(
        cls,
        directory: str | os.PathLike,
        fingerprint: Mapping | None = None,
        counts: Mapping | None = None,
    ) -> Iterator["Writer"]:
        """A `Writer`, whose rows are in the folder when the block has ended.

        Until then, and when the block raises, the folder is as it was. Another store
        there is replaced, and nothing else is; readers of it keep what they have.

        Args:
            directory: the folder.
            fingerprint: what the rows depend on: file sizes, tokenizer, filters...
                as JSON has it. `open` compares it.
            counts: of what filters removed; read when the block ends.

        Raises:
            ValueError: the folder holds something else; no row was written.
        """
        fingerprint = _as_json("fingerprint", fingerprint or {})
        with (
            atomic_directory(directory, _is_store) as folder,
            contextlib.closing(Writer(folder)) as writer,
        ):
            yield writer
            writer.finish(fingerprint, counts or {})

    @classmethod
    def open(
        cls, directory: str | os.PathLike, fingerprint: Mapping | None = None
    ) -> "IdStore":
        """The store of a folder, memory-mapped.

        Args:
            directory: of `write` or `writer`.
            fingerprint: if given, what the store must have been written with.

        Raises:
            FileNotFoundError: there is no store.
            ValueError: it is damaged, of a newer format, or of another fingerprint.
        """
        directory = Path(directory)
        settings = _read_settings(directory)
        if fingerprint is not None:
            _compare(directory, settings["fingerprint"], fingerprint)
        values, offsets = {}, {}
        for key, about in settings["keys"].items():
            dtype = _NARROW if about["dtype"] == "uint16" else _WIDE
            rows = settings["rows"] + 1
            values[key] = _map(directory / f"{key}.ids", dtype, about["ids"])
            offsets[key] = _map(directory / f"{key}.offsets", _OFFSET, rows)
        return cls(
            values,
            offsets,
            fingerprint=settings["fingerprint"],
            counts=settings["counts"],
            name=str(directory),
        )

    @staticmethod
    def remove(directory: str | os.PathLike):
        """Deletes a store if there is one, and nothing else."""
        if _is_store(Path(directory)):
            shutil.rmtree(directory, ignore_errors=True)


class Writer:
    """Appends rows to the files of a folder. Made by `IdStore.writer`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, _KeyFiles] = {}
        self.rows = 0

    def add(self, chunk: Mapping[str, tuple]):
        """Appends rows: {key: (values, lengths)}, vectors one after the other.

        Raises:
            ValueError: other keys than before, or not as many rows of each; an empty
                vector; no integers, or negative ones.
        """
        chunk = _checked(chunk)
        if not self._files:
            self._files = {key: _KeyFiles(self._folder, key) for key in chunk}
        if set(chunk) != set(self._files):
            raise _other_keys(self._files, chunk)
        for key, (values, lengths) in chunk.items():
            self._files[key].add(values, lengths)
        self.rows += len(lengths)

    def finish(self, fingerprint: dict, counts: Mapping):
        """Writes what is buffered, and the settings."""
        if not self.rows:
            raise ValueError(
                "A store must hold at least one row. None was written; removed by "
                f"filters: {dict(counts)}"
            )
        settings = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "rows": self.rows,
            "keys": {key: files.finish() for key, files in self._files.items()},
            "counts": _as_json("counts", counts),
            "fingerprint": fingerprint,
        }
        text = json.dumps(settings, indent=1, ensure_ascii=False)
        (self._folder / "settings.json").write_text(text + "\n", encoding="utf-8")

    def close(self):
        """Closes the files."""
        for files in self._files.values():
            files.close()


class _KeyFiles:
    """The two files of a key while they are written."""

    def __init__(self, folder: Path, key: str):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", key):
            raise ValueError(f"a key must be a name of letters. Received: {key!r}")
        self._path = folder / f"{key}.ids"
        self._dtype = _NARROW
        self._ids = open(self._path, "wb")  # noqa: SIM115
        self._offsets = open(folder / f"{key}.offsets", "wb")  # noqa: SIM115
        self._offsets.write(np.zeros(1, _OFFSET).tobytes())
        self._end = 0

    def add(self, values, lengths):
        if self._dtype is _NARROW and values.max() > np.iinfo(_NARROW).max:
            self._widen()
        self._ids.write(values.astype(self._dtype).tobytes())
        ends = self._end + np.cumsum(lengths, dtype=_OFFSET)
        self._offsets.write(ends.tobytes())
        self._end = int(ends[-1])

    def _widen(self):
        """What is written as uint16, once more as int32."""
        self._ids.close()
        narrow = self._path.with_suffix(".narrow")
        self._path.rename(narrow)
        self._ids, self._dtype = open(self._path, "wb"), _WIDE  # noqa: SIM115
        with open(narrow, "rb") as stream:
            while part := stream.read(_COPIED * _NARROW.itemsize):
                self._ids.write(np.frombuffer(part, _NARROW).astype(_WIDE).tobytes())
        narrow.unlink()

    def finish(self) -> dict:
        self.close()
        return {"dtype": self._dtype.name, "ids": self._end}

    def close(self):
        self._ids.close()
        self._offsets.close()


def _chunks_of(rows: Iterable[Mapping]) -> Iterator[dict]:
    """Rows, some thousands at once."""
    waiting: list[Mapping] = []
    for row in rows:
        if waiting and set(row) != set(waiting[0]):
            raise _other_keys(waiting[0], row)
        waiting.append(row)
        if len(waiting) == _CHUNK:
            yield _chunk_of(waiting)
            waiting = []
    if waiting:
        yield _chunk_of(waiting)


def _chunk_of(rows: list[Mapping]) -> dict:
    chunk = {}
    for key in rows[0]:
        vectors = [np.asarray(row[key]) for row in rows]
        if any(vector.ndim != 1 for vector in vectors):
            raise ValueError(f"Each row must have a vector of ids as {key!r}.")
        lengths = np.array([len(vector) for vector in vectors])
        # An empty list is a vector of floats, and its length will be refused.
        vectors = [vector for vector in vectors if len(vector)]
        values = np.concatenate(vectors) if vectors else np.zeros(0, "int32")
        chunk[key] = values, lengths
    return chunk


def _checked(chunk: Mapping) -> dict:
    found, rows = {}, set()
    for key, (values, lengths) in chunk.items():
        values, lengths = np.asarray(values), np.asarray(lengths)
        if not len(lengths) or lengths.min() < 1 or lengths.sum() != len(values):
            raise ValueError(
                f"Rows must have at least one id as {key!r}, and lengths that sum to "
                f"their number. Received: {len(values)} ids, {len(lengths)} rows, the "
                f"shortest of {lengths.min(initial=0)}"
            )
        if not np.issubdtype(values.dtype, np.integer) or not (
            0 <= values.min() <= values.max() <= np.iinfo(_WIDE).max
        ):
            raise ValueError(
                f"Ids must be integers from 0 to {np.iinfo(_WIDE).max}. Received as "
                f"{key!r}: {values.dtype} from {values.min()} to {values.max()}"
            )
        found[key] = values.astype("int32", copy=False), lengths
        rows.add(len(lengths))
    if len(rows) != 1:
        raise ValueError(
            "A chunk must have as many rows of each key. "
            f"Received: {[(key, len(lengths)) for key, (_, lengths) in found.items()]}"
        )
    return found


def _other_keys(first, other) -> ValueError:
    return ValueError(
        f"All rows must have the same keys, {sorted(first)}. Received: {sorted(other)}"
    )


def _lengths(values, offsets, name: str) -> np.ndarray:
    lengths = np.diff(offsets)
    if (
        not len(lengths)
        or offsets[0]
        or lengths.min() < 1
        or offsets[-1] != len(values)
    ):
        raise ValueError(
            f"{name} must have offsets that start at 0, grow, and end at the number of "
            f"ids, {len(values)}: it is damaged."
        )
    return lengths.astype("int32")


def _as_json(name: str, value: Mapping) -> dict:
    try:
        return json.loads(json.dumps(dict(value), default=_integer))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a dict that JSON can hold: {error}"
        ) from None


def _integer(value) -> int:
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"{value!r} is {type(value).__name__}")


def _read_settings(directory: Path) -> dict:
    path = directory / "settings.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} must be an id store: it has no {path.name}"
        )
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}") from None
    if not isinstance(settings, dict) or settings.get("format") != _FORMAT:
        raise ValueError(f"{path} must be the settings of an id store.")
    version = settings.get("format_version")
    if version != _FORMAT_VERSION:
        raise ValueError(
            f"{path} must have format version {_FORMAT_VERSION}. Received: {version!r}"
        )
    if not _complete(settings):
        raise ValueError(f"{path} must name rows, keys, counts and fingerprint.")
    return settings


def _complete(settings: dict) -> bool:
    keys = settings.get("keys")
    return (
        all(isinstance(settings.get(name), dict) for name in ("counts", "fingerprint"))
        and isinstance(settings.get("rows"), int)
        and isinstance(keys, dict)
        and all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", key) for key in keys)
        and all(
            isinstance(about, dict)
            and about.get("dtype") in ("uint16", "int32")
            and isinstance(about.get("ids"), int)
            for about in keys.values()
        )
    )


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    size = path.stat().st_size if path.is_file() else None
    if size != count * dtype.itemsize:
        raise ValueError(
            f"{path} must have {count * dtype.itemsize} bytes, as settings.json says: "
            f"the store is damaged. Received: {'no file' if size is None else size}"
        )
    return np.memmap(path, dtype, "r")


def _compare(directory: Path, written: dict, wanted: Mapping):
    wanted = _as_json("fingerprint", wanted)
    if written == wanted:
        return
    names = sorted(
        name
        for name in written.keys() | wanted.keys()
        if (name in written, written.get(name)) != (name in wanted, wanted.get(name))
    )
    raise ValueError(
        f"{directory} must have been written with the fingerprint that is wanted. "
        "Different: "
        + ", ".join(
            f"{name} ({written.get(name)!r}, wanted {wanted.get(name)!r})"
            for name in names
        )
    )


def _is_store(path: Path) -> bool:
    try:
        _read_settings(path)
    except (OSError, ValueError):
        # A damaged one may be written anew, a folder of something else may not.
        text = path / "settings.json"
        return text.is_file() and f'"format": "{_FORMAT}"' in text.read_text("utf-8")
    return True
