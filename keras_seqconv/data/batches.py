"""Endless batches of few fixed shapes with little padding, from an `IdStore`.

`BatchStream` maps a position, the number of batches since the start of training, to a
batch. A run resumes anywhere at the cost of ordering one epoch, which takes about a
second for five million rows, and shards of several hosts agree without
communication.

A *shape* is the size of a batch; its *padded tokens* are the entries of its arrays.
Shapes are chosen once, from the lengths of a corpus. Each epoch shuffles the rows and
cuts them into batches. A batch that the rows of its own shape do not fill takes rows of
a smaller shape. Rows of padding fill the rest, in a few batches of an epoch: there is
no further shape, and no row is skipped.

Letters: N rows of a corpus, D lengths of a row (1, or 2: source and target), B rows of
a batch, S source time, T target time.
"""

import atexit
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv.data.ids import IdStore
from keras_seqconv.support import tf
from keras_seqconv.support.arguments import check_integer

# Of the order of batches. Changes whenever the same seed gives other batches, so that
# a run of another version is refused and not continued with other data.
_ORDER = 2
# Quantiles of each length that shapes are made from.
_QUANTILES = 40


class Shape(NamedTuple):
    """Size of a batch: B rows of all replicas together, and widths (S, T) or (T,)."""

    rows: int
    widths: tuple[int, ...]


class BatchStream:
    """Batches of a store, reshuffled and recomposed every epoch.

    A batch is (inputs, labels): inputs {"source_ids": (B, S), "target_ids": (B, T)},
    labels (B, T), int32. `target_ids` of the inputs are the start id and the target
    without its last id; labels are the target. A store with "labels" provides these and
    its unchanged "target_ids"; a store without "source_ids" provides none. All arrays
    are padded on the right. Rows of padding, which fill the last batch of a shape, are
    padding in all arrays.

    Args:
        store: `IdStore` of the rows.
        tokens_per_batch: limit of B / num_replicas * max(S, T), padding included.
        num_replicas: number of devices that share a batch; B is a multiple of 8 times
            this if `tokens_per_batch` allows it.
        shard: (i, n): only rows i * B / n to (i + 1) * B / n of each batch, for host i
            of n, a divisor of `num_replicas`. Every host has the same shapes at the
            same position.
        seed: seed that, with the epoch's number, determines order and composition.
        max_shapes: largest number of shapes; a compiled training compiles each once.
        start_id, pad_id: ids of the start and of padding.

    Attributes:
        shapes: every `Shape` (of all shards together) that a batch can have.
        padding_share: share of padding in an epoch's padded tokens, rows of padding
            included.

    Raises:
        ValueError: a row is longer than `tokens_per_batch`, the store is empty or has
            other columns than those of a model, or an argument breaks these rules.

    Example:

    ```python
    from keras_seqconv.data import BatchStream, IdStore
    pairs = [{"source_ids": [5, 6, 2], "target_ids": [7, 2]}] * 20
    stream = BatchStream(IdStore.from_rows(pairs), tokens_per_batch=24)
    inputs, labels = stream.batch(0)
    assert inputs["target_ids"][0].tolist() == [2, 7]
    assert labels.shape == (8, 2) and stream.batches_per_epoch() == 3
    ```
    """

    def __init__(
        self,
        store: IdStore,
        tokens_per_batch: int,
        *,
        num_replicas: int = 1,
        shard: tuple[int, int] = (0, 1),
        seed: int = 1,
        max_shapes: int = 16,
        start_id: int = 2,
        pad_id: int = 1,
    ):
        self.tokens_per_batch = check_integer("tokens_per_batch", tokens_per_batch, 1)
        self.num_replicas = check_integer("num_replicas", num_replicas, 1)
        check_integer("max_shapes", max_shapes, 1)
        self.seed = check_integer("seed", seed, 0)
        self.store, self.shard = store, shard
        self.start_id, self.pad_id = start_id, pad_id
        index, count = shard
        if not 0 <= index < count or num_replicas % count:
            raise ValueError(
                "`shard` must be (i, n) with 0 <= i < n, and n a divisor of "
                f"`num_replicas`. Received: shard={shard}, num_replicas={num_replicas}"
            )
        labels = store.lengths.get("labels", store.lengths.get("target_ids"))
        known = {*store.keys} - {"source_ids", "labels"} == {"target_ids"}
        if not known or np.any(labels != store.lengths["target_ids"]):
            raise ValueError(
                "`store` must have target_ids, and may have source_ids, and labels as "
                f"long as target_ids. Received: {sorted(store.keys)}"
            )
        self._columns = [k for k in ("source_ids", "target_ids") if k in store.keys]
        self._lengths = np.stack([store.lengths[k] for k in self._columns], axis=1)
        self._tokens = int(self._lengths.sum(dtype="int64"))
        self._use(
            choose_shapes(self._lengths, tokens_per_batch, max_shapes, num_replicas)
        )

    def _use(self, shapes: tuple[Shape, ...]) -> None:
        self.shapes = shapes
        self._assigned = assign(self._lengths, shapes)
        counts = np.bincount(self._assigned, minlength=len(shapes))
        self._batches, padded_tokens = size_of_epoch(counts, shapes)
        self.padding_share = 1 - self._tokens / padded_tokens
        # Of two epochs: while one ends, prefetching is in the next.
        self._order = functools.lru_cache(2)(
            functools.partial(order_epoch, self._assigned, shapes, self.seed)
        )

    @property
    def element_spec(self):
        """TensorSpecs of a batch; axes of one size in all shapes have that size."""
        sizes = zip(
            *((s.rows // self.shard[1], *s.widths) for s in self.shapes), strict=True
        )
        rows, *widths = [
            sizes_of_axis[0] if len({*sizes_of_axis}) == 1 else None
            for sizes_of_axis in sizes
        ]
        specs = {
            key: tf.TensorSpec((rows, width), tf.int32)
            for key, width in zip(self._columns, widths, strict=True)
        }
        return specs, specs["target_ids"]

    def batches_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return self._batches

    def get_state(self) -> dict:
        """Returns the state that the batches depend on, for JSON."""
        return {
            "order": _ORDER,
            "seed": self.seed,
            "tokens_per_batch": self.tokens_per_batch,
            "num_replicas": self.num_replicas,
            "rows": len(self.store),
            "tokens": self._tokens,
            "shapes": [[shape.rows, list(shape.widths)] for shape in self.shapes],
        }

    def set_state(self, state: Mapping) -> None:
        """Uses the shapes of an earlier run, from its `get_state`.

        Raises ValueError if the batches would differ from that run: another store,
        other arguments, or another version of this package.
        """
        different = [
            f"{name} was {state.get(name)} and is {value}"
            for name, value in self.get_state().items()
            if name != "shapes" and state.get(name) != value
        ]
        if different:
            raise ValueError(
                "A training can only go on with the batches it began with: give it what"
                " it had (`order` tells versions of keras_seqconv apart), or start "
                f"anew in another folder. Different: {'; '.join(different)}"
            )
        self._use(tuple(Shape(rows, tuple(widths)) for rows, widths in state["shapes"]))

    def batch(self, position: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns (inputs, labels) at a position, as NumPy arrays."""
        check_integer("position", position, 0)
        epoch, index = divmod(position, self._batches)
        return self._padded(*self._order(epoch)[index])

    def _padded(self, shape: int, rows: np.ndarray):
        i, n = self.shard
        rows = rows[i * len(rows) // n : (i + 1) * len(rows) // n]
        widths = dict(zip(self._columns, self.shapes[shape].widths, strict=True))
        if "labels" in self.store.keys:
            widths["labels"] = widths["target_ids"]
        inputs = self.store.gather(rows, widths, self.pad_id)
        if "labels" in inputs:
            return inputs, inputs.pop("labels")
        labels = inputs["target_ids"]
        inputs["target_ids"] = shifted = np.full_like(labels, self.start_id)
        shifted[:, 1:] = labels[:, :-1]
        shifted[labels == self.pad_id] = self.pad_id
        return inputs, labels

    def dataset(self, position: int = 0):
        """Returns an endless `tf.data.Dataset` of the batches from a position on.

        For `model.fit(..., steps_per_epoch=..., shuffle=False)`, or `fit_stream`.
        """
        check_integer("position", position, 0)
        return self._mapped(tf.data.Dataset.counter(position), self.batch)

    def once(self):
        """Returns a `tf.data.Dataset` of every row once, always in the same order."""
        batches = order_epoch(self._assigned, self.shapes, None)
        positions = tf.data.Dataset.range(len(batches))
        return self._mapped(positions, lambda index: self._padded(*batches[index]))

    def _mapped(self, positions, batch: Callable):
        spec = self.element_spec
        shapes = [array.shape for array in tf.nest.flatten(spec)]
        atexit.unregister(_end)
        atexit.register(_end)

        def arrays(position):
            return tf.nest.flatten(_call(batch, int(position)))

        def padded(position):
            flat = tf.numpy_function(arrays, [position], [tf.int32] * len(shapes))
            flat = [tf.ensure_shape(*pair) for pair in zip(flat, shapes, strict=True)]
            return tf.nest.pack_sequence_as(spec, flat)

        options = tf.data.Options()
        options.deterministic = True
        # Shards are rows of each batch, not files.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        return untuned(positions.map(padded).prefetch(8).with_options(options))


# --- Which rows make which batch ---


def choose_shapes(
    lengths: np.ndarray,
    tokens_per_batch: int,
    max_shapes: int = 16,
    num_replicas: int = 1,
) -> tuple[Shape, ...]:
    """A table of shapes that holds every row with little padding.

    The rows, whose `lengths` are (N, D), are divided at quantiles of them; then those
    two groups are joined whose common widths add the fewest padded tokens, again and
    again. Of the tables that this leads to, from `max_shapes` shapes to one, the one
    with the fewest padded tokens in an epoch is taken: with fewer shapes, fewer batches
    are not full.

    Returns:
        Shapes, those with the fewest padded tokens in a row first.
    """
    longest = lengths.max(axis=1)
    if longest.max() > tokens_per_batch:
        raise ValueError(
            "Each row must have at most `tokens_per_batch` tokens, end id included: "
            "raise this number, cut longer rows, or leave out pairs by `max_length`. "
            "Received: "
            f"tokens_per_batch={tokens_per_batch} and "
            f"{(longest > tokens_per_batch).sum()} longer rows of {len(longest)}, the "
            f"longest of {longest.max()}"
        )
    # Groups between quantiles of tokens: their widths (G, D), and the rows in them.
    edges, groups_of_rows = [], []
    for column in lengths.T:
        tokens = np.cumsum(np.bincount(column) * np.arange(column.max() + 1))
        marks = tokens[-1] * np.arange(1, _QUANTILES + 1) // _QUANTILES
        edges.append(np.unique(np.searchsorted(tokens, marks)))
        groups_of_rows.append(np.searchsorted(edges[-1], column))
    sizes = [len(some) for some in edges]
    counts = np.bincount(
        np.ravel_multi_index(groups_of_rows, sizes), minlength=math.prod(sizes)
    )
    groups = np.flatnonzero(counts)
    counts, indices = counts[groups], np.unravel_index(groups, sizes)
    widths = np.stack([e[i] for e, i in zip(edges, indices, strict=True)], axis=1)

    tables = []
    for table in _joined(widths, counts, max_shapes):
        shapes = []
        for row in table:
            rows = tokens_per_batch // max(row)
            rows = rows // 8 * 8 if rows >= 8 else rows
            shapes.append(Shape(num_replicas * rows, row))
        rows_of_shapes = np.bincount(assign(widths, shapes), counts, len(shapes))
        # No more rows in a batch than the same number of batches needs.
        needed = []
        for rows, (limit, row) in zip(
            fill(rows_of_shapes, shapes)[0], shapes, strict=True
        ):
            if rows:
                unit = num_replicas * (8 if limit >= 8 * num_replicas else 1)
                batches = -(-rows // limit)
                rows = -(-rows // (batches * unit)) * unit
                needed.append(Shape(min(limit, rows), row))
        rows_of_shapes = np.bincount(assign(widths, needed), counts, len(needed))
        tables.append((size_of_epoch(rows_of_shapes, needed)[1], needed))
    return tuple(min(tables)[1])


def _joined(widths, counts, max_shapes: int) -> Iterator[list[tuple[int, ...]]]:
    """Tables of at most `max_shapes` widths, always one less, sorted by their sum."""
    widths, counts, left = widths.copy(), counts.copy(), len(widths)

    def costs_of(group: int) -> np.ndarray:
        """Padded tokens that joining it with each group adds; inf for those gone."""
        common = np.maximum(widths, widths[group]).sum(axis=1)
        sums = widths.sum(axis=1)
        added = counts * (common - sums) + counts[group] * (common - sums[group])
        added = np.where(counts, added, np.inf)
        added[group] = np.inf
        return added

    costs = np.stack([costs_of(group) for group in range(left)])
    while True:
        if left <= max_shapes:
            table = {tuple(row) for row in widths[counts > 0].tolist()}
            yield sorted(table, key=lambda row: (sum(row), row))
        if left == 1:
            return
        group, other = divmod(int(costs.argmin()), len(costs))
        widths[group] = np.maximum(widths[group], widths[other])
        counts[group], counts[other] = counts[group] + counts[other], 0
        costs[other] = costs[:, other] = np.inf
        costs[group] = costs[:, group] = costs_of(group)
        left -= 1


def assign(lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """The shape with the fewest padded tokens for each row, (N,) int16, or -1."""
    assigned = np.full(len(lengths), -1, "int16")
    for index in reversed(range(len(shapes))):
        assigned[(lengths <= shapes[index].widths).all(axis=1)] = index
    return assigned


def fill(
    counts: Sequence[int], shapes: Sequence[Shape]
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Rows in the batches of each shape, and the moves (from, to, number) to get there.

    The largest shapes first: what their last batch has left goes to the next smaller
    shape that fits inside, whose last batch then has more left, and so on down.
    `counts` are the rows that each shape is the smallest for.
    """
    counts, moves = [int(count) for count in counts], []
    for large in reversed(range(len(shapes))):
        for small in reversed(range(large)):
            number = min(-counts[large] % shapes[large].rows, counts[small])
            widths = zip(shapes[large].widths, shapes[small].widths, strict=True)
            if number and all(a >= b for a, b in widths):
                counts[small] -= number
                counts[large] += number
                moves.append((small, large, number))
    return counts, moves


def size_of_epoch(counts: Sequence[int], shapes: Sequence[Shape]) -> tuple[int, int]:
    """Numbers of batches and of padded tokens; `counts` as in `fill`."""
    filled, _ = fill(counts, shapes)
    batches = [
        -(-rows // shape.rows) for rows, shape in zip(filled, shapes, strict=True)
    ]
    padded_tokens = [shape.rows * sum(shape.widths) for shape in shapes]
    return sum(batches), sum(map(math.prod, zip(batches, padded_tokens, strict=True)))


def order_epoch(
    assigned: np.ndarray, shapes: Sequence[Shape], seed: int | None, epoch: int = 0
) -> list[tuple[int, np.ndarray]]:
    """The batches of an epoch, every row once: (shape, row numbers (B,), -1 for none).

    Random numbers come from Philox, keyed by seed and epoch, as raw bits that are
    sorted, so that no version of NumPy orders the rows differently. Without a seed rows
    and batches are in the order of the corpus and of the table.
    """
    order = _permutation(len(assigned), seed, epoch, 0).astype("int32")
    order = order[np.argsort(assigned[order], kind="stable")]
    counts = np.bincount(assigned, minlength=len(shapes))
    rows = np.split(order, np.cumsum(counts)[:-1])
    for small, large, number in fill(counts, shapes)[1]:
        rows[large] = np.append(rows[large], rows[small][-number:])
        rows[small] = rows[small][:-number]
    batches = []
    for index, (shape, numbers) in enumerate(zip(shapes, rows, strict=True)):
        padding = np.full(-len(numbers) % shape.rows, -1, "int32")
        numbers = np.append(numbers, padding).reshape(-1, shape.rows)
        batches += [(index, batch) for batch in numbers]
    return [batches[index] for index in _permutation(len(batches), seed, epoch, 1)]


def _permutation(count: int, seed: int | None, epoch: int, purpose: int) -> np.ndarray:
    if seed is None:
        return np.arange(count)
    bits = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, purpose])
    return np.argsort(bits.random_raw(count), kind="stable")


# --- What tf.data does in the background ---


def untuned(dataset):
    """The same `tf.data.Dataset`, whose iterators start no thread that tunes it.

    The end of an iterator waits for this thread, which looks whether it is needed after
    ever longer pauses, in the end of a minute, and does not always hear that it is not
    (TensorFlow 2.21): training stood still at the ends of epochs.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


_CALLING = threading.Lock()
_ended = False


def _call(function: Callable, *arguments):
    """Calls it for tf.data, unless the interpreter is about to end.

    When that happens while tf.data waits for a Python function, which can then never
    return, the process hangs: after Ctrl-C, for example, as prefetching goes on.
    """
    with _CALLING:
        if _ended:
            raise RuntimeError("no more data: Python is ending")
        return function(*arguments)


def _end() -> None:
    """Refuses more calls; returns when none runs and those on their way are refused."""
    global _ended
    with _CALLING:
        _ended = True
    time.sleep(0.2)
