"""Tokenize texts to rows of ids, and keep them on disk, memory-mapped.

A *row* is a dict of int32 vectors, such as {"source_ids", "target_ids"} of a sentence
pair, end ids included, or {"target_ids", "labels"} of a block of a language model. All
rows of a store have the same keys. A folder holds, for each key, `<key>.ids` (all
vectors in sequence, uint16 if every id allows it, otherwise int32, little endian) and
`<key>.offsets` (int64: the start of each vector, and the end of the last), and
`settings.json`, which is written last.
"""

import collections
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_seqconv.support.arguments import check_choice, check_integer, check_number
from keras_seqconv.support.files import (
    atomic_directory,
    naming_file,
    read_json,
    write_json,
)

_SUFFIXES = (".ids", ".offsets")
_FORMAT = {"format": "keras_seqconv id store", "format_version": 1}
_ROWS_AT_ONCE = 4096
# Key of the counts of rows left out -> in words.
_LENGTHS = {
    "too_short": "with a side shorter than `min_length`",
    "too_long": "with a side longer than `max_length`",
    "ratio": "with a ratio of their lengths above `max_ratio`",
}


def encode(
    blocks: Iterable[tuple[list[str], ...]],
    source_tokenizer,
    target_tokenizer,
    *,
    min_length: int = 1,
    max_length: int | tuple[int, int] | None = None,
    max_ratio: float | None = None,
    truncate_source: int | None = None,
    counts: collections.Counter | None = None,
) -> Iterator[dict[str, list[int]]]:
    """Yields rows of ids for the pairs of texts whose lengths are allowed.

    Lengths are tokens without the end id.

    Args:
        blocks: (sources, targets), as in `Corpus.blocks`.
        source_tokenizer, target_tokenizer: their `tokenize` maps a list of texts to a
            list of ids with the end id for each.
        min_length, max_length: limits of each side; a pair as `max_length` has those of
            source and target.
        max_ratio: limit of the longer side over the shorter one, at least 1.
        truncate_source: largest number of source ids, at least 2, including the end
            id, which stays. Sources are cut before the lengths are checked.
        counts: counter of skipped rows under "too_short", "too_long" or "ratio", the
            first that applies, and of cut sources under "truncated".

    Raises:
        ValueError: an argument breaks its rule, or, at the end, no row is left.
    """
    check_integer("min_length", min_length, 0)
    most = max_length if isinstance(max_length, tuple) else (max_length,) * 2
    for limit in most:
        if limit is not None:
            check_integer("max_length", limit, max(1, min_length))
    most = [math.inf if limit is None else limit for limit in most]
    if max_ratio is not None:
        check_number("max_ratio", max_ratio, ge=1)
    if truncate_source is not None:
        check_integer("truncate_source", truncate_source, 2)
    counts, kept = collections.Counter() if counts is None else counts, 0
    for sources, targets in blocks:
        ids = source_tokenizer.tokenize(sources), target_tokenizer.tokenize(targets)
        for source, target in zip(*ids, strict=True):
            if truncate_source is not None and len(source) > truncate_source:
                source = [*source[: truncate_source - 1], source[-1]]
                counts["truncated"] += 1
            lengths = len(source) - 1, len(target) - 1
            short, long = sorted(lengths)
            if short < min_length:
                counts["too_short"] += 1
            elif lengths[0] > most[0] or lengths[1] > most[1]:
                counts["too_long"] += 1
            elif max_ratio is not None and long > short * max_ratio:
                counts["ratio"] += 1
            else:
                kept += 1
                yield {"source_ids": source, "target_ids": target}
    if not kept:
        left_out = [
            f"{counts[key]:,} {words}" for key, words in _LENGTHS.items() if counts[key]
        ]
        raise ValueError(
            "At least one row of text must have the right lengths. Left out: "
            f"{', '.join(left_out) or 'none'}. Received: min_length={min_length}, "
            f"max_length={max_length}, max_ratio={max_ratio}"
        )


def check_window(context_window: int, tokens_per_sample: int) -> None:
    """ValueError unless blocks have tokens besides their context."""
    if check_integer("context_window", context_window, 0) >= tokens_per_sample:
        raise ValueError(
            "`context_window` must be smaller than `tokens_per_sample`. Received: "
            f"context_window={context_window}, tokens_per_sample={tokens_per_sample}"
        )


def blocks(
    lines: Iterable[Sequence[int]],
    tokens_per_sample: int,
    *,
    break_mode: str = "none",
    context_window: int = 0,
    end_id: int = 2,
    pad_id: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """Cuts tokenized lines into rows for a language model, as fairseq does.

    The sequence of lines is the stream. A row's labels are a piece of the stream, and
    its inputs the same piece one position earlier: the first input is the token before
    the piece, or the end token at the start of the stream. Every token of the stream is
    a label exactly once. Memory holds a row and a line only.

    Break modes:

    - "none": pieces of `tokens_per_sample` tokens, the last one shorter.
    - "sentence" (fairseq's "eos"): each line is a piece, for any `tokens_per_sample`.

    With a `context_window` w, pieces have `tokens_per_sample` - w tokens, and each is
    preceded by the last w tokens of input before it (fewer at the start, and before a
    long line), across lines. Their labels are padding: not scored.

    Args:
        lines: token ids of lines, each with its end: the end token, or a line break
            (`tokenize_lines` of tokenizers).
        tokens_per_sample: T of the longest row, except for long lines.
        break_mode: see above.
        context_window: w, 0 <= w < `tokens_per_sample`; for evaluation.
        end_id, pad_id: ids.

    Yields:
        {"target_ids": inputs (T,), "labels": (T,)}, int32, of equal length: of the
        lines [[5, 6, 2], [7, 2]] and 4 tokens first [2, 5, 6, 2] and [5, 6, 2, 7].

    Raises:
        ValueError: an argument breaks its rule, a line has no token or has padding, or,
            at the end, there was no line.
    """
    check_integer("tokens_per_sample", tokens_per_sample, 1)
    check_choice("break_mode", break_mode, ("none", "sentence"))
    check_window(context_window, tokens_per_sample)
    past = np.zeros(0, np.int32)  # the last inputs before the piece
    before = np.array([end_id], np.int32)  # the stream's token before it
    size = tokens_per_sample - context_window
    for piece in _pieces(lines, size, break_mode, pad_id):
        # A long line takes the room of its context.
        past = past[max(0, len(past) + len(piece) - tokens_per_sample) :]
        inputs = np.concatenate([past, before, piece[:-1]])
        unscored = np.full(len(past), pad_id, np.int32)
        yield {"target_ids": inputs, "labels": np.concatenate([unscored, piece])}
        past = inputs[max(0, len(inputs) - context_window) :]
        before = piece[-1:]


def _pieces(lines, size: int, mode: str, pad_id: int):
    """The stream in pieces, int32."""
    waiting, length, number = [], 0, 0
    for number, line in enumerate(lines, 1):
        line = np.asarray(line)
        wrong = line.dtype.kind not in "iu" or not line.size
        if wrong or ((line == pad_id) | (line >= 2**31)).any():
            raise ValueError(
                "A line must be token ids below 2**31, its end at least, and not hold "
                f"the padding id {pad_id}. "
                f"Received: line {number:,} = {line[:20].tolist()}"
            )
        line = line.astype(np.int32)
        if mode == "sentence":
            yield line
            continue
        waiting.append(line)
        length += len(line)
        if length >= size:
            tokens, end = np.concatenate(waiting), length - length % size
            yield from np.split(tokens[:end], range(size, end, size))
            waiting, length = [tokens[end:]], length - end
    if length:
        yield np.concatenate(waiting)
    if not number:
        raise ValueError("`lines` must hold at least one line. It holds none.")


class IdStore:
    """Stores rows of ids, accessed by number.

    `IdStore.write` makes a folder, `IdStore.open` reads one without loading it;
    `IdStore.from_rows` keeps rows in memory.

    Attributes:
        keys: names of the vectors of a row.
        lengths: {key: (N,) int32}, ids of each row, each at least 1.

    Example:

    ```python
    import tempfile
    from keras_seqconv.data import IdStore
    rows = [{"target_ids": [5, 6, 2]}, {"target_ids": [7, 2]}]
    with tempfile.TemporaryDirectory() as parent:
        store = IdStore.write(parent + "/ids", rows)
        padded = store.gather([1, 0, -1], {"target_ids": 3}, pad_id=1)
    assert padded["target_ids"].tolist() == [[7, 2, 1], [5, 6, 2], [1, 1, 1]]
    ```
    """

    def __init__(
        self, values: Mapping[str, np.ndarray], offsets: Mapping[str, np.ndarray]
    ):
        self._values, self._offsets = dict(values), dict(offsets)
        self.keys = tuple(self._values)
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
        """Returns rows padded on the right, {key: (B, width) int32}.

        Args:
            indices: (B,) row numbers; -1 gives a row of padding.
            widths: widths of some or all keys.

        Raises:
            ValueError: a row is longer than its width; no row is cut.
        """
        indices, padded = np.asarray(indices, "int64"), {}
        for key, width in widths.items():
            lengths = np.where(indices < 0, 0, self.lengths[key][indices])
            if lengths.max(initial=0) > width:
                raise ValueError(
                    "`widths` must be at least the longest row. Received: width "
                    f"{width} for {key}, and a row of {lengths.max()} ids"
                )
            positions = np.arange(width)
            real = positions < lengths[:, None]
            padded[key] = np.full((len(indices), width), pad_id, "int32")
            starts = self._offsets[key][indices]
            padded[key][real] = self._values[key][(starts[:, None] + positions)[real]]
        return padded

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping]) -> "IdStore":
        """Makes a store in memory; raises the errors of `write`."""
        parts = list(_parts(rows))
        values, offsets = {}, {}
        for key in parts[0]:
            columns = zip(*(part[key] for part in parts), strict=True)
            values[key], lengths = map(np.concatenate, columns)
            offsets[key] = np.append(0, lengths.cumsum())
        return cls(values, offsets)

    @classmethod
    def write(cls, directory: str | os.PathLike, rows: Iterable[Mapping]) -> "IdStore":
        """Writes rows to a folder, in parts, and opens it.

        The folder changes only after all rows are written without an error. A store in
        the folder is replaced, other files are not.

        Args:
            directory: the folder.
            rows: rows of one or more keys.

        Raises:
            ValueError: the folder has other files, there is no row, or a vector is
                empty, not integer or negative.
        """
        number, about = 0, {}
        with atomic_directory(directory, _is_store) as folder:
            for part in _parts(rows):
                for key, (values, lengths) in part.items():
                    path, offsets = folder / f"{key}.ids", folder / f"{key}.offsets"
                    if key not in about:
                        about[key] = {"dtype": "<u2", "ids": 0}
                        _append(offsets, np.zeros(1), "<i8")
                    array = about[key]
                    if array["dtype"] == "<u2" and values.max() >= 1 << 16:
                        array["dtype"] = "<i4"
                        if path.exists():
                            before = np.fromfile(path, "<u2").astype("<i4")
                            path.write_bytes(before.tobytes())
                    _append(path, values, array["dtype"])
                    ends = array["ids"] + lengths.cumsum()
                    _append(offsets, ends, "<i8")
                    array["ids"] = int(ends[-1])
                number += len(lengths)
            settings = {**_FORMAT, "rows": number, "keys": about}
            write_json(folder / "settings.json", settings)
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | os.PathLike) -> "IdStore":
        """Opens the store of a folder, memory-mapped.

        Raises:
            FileNotFoundError: the folder has no store.
            ValueError: the store is damaged, or of a newer format.
        """
        directory = Path(directory)
        settings = read_json(directory / "settings.json")
        if {name: settings.get(name) for name in _FORMAT} != _FORMAT:
            raise ValueError(f"{directory}/settings.json must have {_FORMAT}.")
        values, offsets = {}, {}
        with naming_file(directory / "settings.json", "describes no store"):
            for key, about in settings["keys"].items():
                path = directory / f"{key}.ids"
                values[key] = _map(path, about["dtype"], about["ids"])
                path = path.with_suffix(".offsets")
                offsets[key] = _map(path, "<i8", settings["rows"] + 1)
            return cls(values, offsets)


def _parts(rows: Iterable[Mapping]) -> Iterator[dict]:
    """{key: (values, lengths)} of some thousands of rows at once, checked."""
    rows, keys = iter(rows), None
    while part := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        keys, joined = keys or part[0].keys(), {}
        for row in part:
            if not row or row.keys() != keys:
                raise ValueError(
                    "All rows must have the same keys, at least one. "
                    f"Received: {[*keys]} and {[*row]}"
                )
        for key in keys:
            vectors = [row[key] for row in part]
            lengths = np.array([len(vector) for vector in vectors])
            if isinstance(vectors[0], np.ndarray):
                values = np.concatenate(vectors)
            else:
                values = np.array(list(itertools.chain.from_iterable(vectors)))
            if (
                not lengths.min()
                or values.ndim != 1
                or values.dtype.kind not in "iu"
                or not 0 <= values.min() <= values.max() < 1 << 31
            ):
                raise ValueError(
                    f"Rows must have at least one id as {key!r}, integers from 0 to "
                    f"2 ** 31 - 1. Received: {values.dtype}, {values}"
                )
            joined[key] = values.astype("int32", copy=False), lengths
        yield joined
    if keys is None:
        raise ValueError("A store must hold at least one row. Received: none")


def _append(path: Path, values: np.ndarray, dtype) -> None:
    with open(path, "ab") as stream:
        stream.write(values.astype(dtype).tobytes())


def _map(path: Path, dtype: str, count: int) -> np.ndarray:
    wanted = count * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.is_file() else "no file"
    if size != wanted:
        raise ValueError(
            f"{path} must have {wanted} bytes, as settings.json says: the store is "
            f"damaged. Received: {size}"
        )
    return np.memmap(path, dtype, "r")


def _is_store(path: Path) -> bool:
    """True also of a damaged store, which may be written anew; nothing else in it."""
    settings = path / "settings.json"
    others = {entry for entry in path.iterdir() if entry.suffix not in _SUFFIXES}
    return others == {settings} and _FORMAT["format"] in settings.read_text("utf-8")
