"""Which rows make which batch: few fixed shapes, little padding. Pure NumPy.

A *shape* is the size of a batch; a batch has *cells*, the entries of its padded arrays.
Shapes are chosen once, from the lengths of a corpus. Each epoch shuffles the rows and
cuts them into batches; a batch that the rows of its own shape do not fill takes rows
that a smaller shape would have held. What is empty after that, in at most a few batches
of an epoch, is rows of padding: no new shape, no row left out.

Letters: N rows of a corpus, D lengths of a row (1, or 2: source and target), B rows of
a batch.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Quantiles of each length that shapes are made from.
_QUANTILES = 40


class Shape(NamedTuple):
    """The size of a batch.

    Attributes:
        rows: B, of all replicas together.
        widths: one for each length of a row, for example (source, target).
    """

    rows: int
    widths: tuple[int, ...]

    @property
    def cells(self) -> int:
        """Entries of all padded arrays of such a batch."""
        return self.rows * sum(self.widths)

    def holds(self, other: "Shape") -> bool:
        """Whether rows of the other shape fit into this one."""
        return all(a >= b for a, b in zip(self.widths, other.widths, strict=True))


def choose_shapes(
    lengths: np.ndarray,
    tokens_per_batch: int,
    max_shapes: int = 16,
    num_replicas: int = 1,
) -> tuple[Shape, ...]:
    """A table of shapes that holds every row with little padding.

    The rows are divided at quantiles of their lengths; then those two groups are joined
    whose common widths add the fewest cells, again and again. Of the tables that this
    leads to, from `max_shapes` shapes to one, the one with the fewest cells in an epoch
    is taken: with fewer shapes, fewer batches are not full.

    Args:
        lengths: (N, D), at least 1, end ids included.
        tokens_per_batch: most rows of one replica times the largest width.
        max_shapes: most shapes.
        num_replicas: B is a multiple of this.

    Returns:
        Shapes, those with the fewest cells in a row first. The rows of one replica are
        a multiple of 8 where `tokens_per_batch` allows 8 of that width.

    Raises:
        ValueError: a row that is longer than `tokens_per_batch`.
    """
    longest = lengths.max(axis=1)
    if longest.max() > tokens_per_batch:
        raise ValueError(
            "Each row must have at most `tokens_per_batch` tokens, end id included; "
            "leave out the others by `max_length`, or cut them. Received: "
            f"tokens_per_batch={tokens_per_batch} and "
            f"{(longest > tokens_per_batch).sum()} longer rows of {len(longest)}, the "
            f"longest of {longest.max()}"
        )
    widths, counts = _groups(lengths)
    tables = []
    for table in _joined(widths, counts, max_shapes):
        shapes = [
            Shape(_most_rows(max(row), tokens_per_batch, num_replicas), row)
            for row in table
        ]
        own = np.bincount(assign(widths, shapes), counts, len(shapes)).astype(int)
        filled, _ = fill(own, shapes)
        shapes = [
            _no_larger(shape, int(rows), num_replicas)
            for shape, rows in zip(shapes, filled, strict=True)
            if rows
        ]
        own = np.bincount(assign(widths, shapes), counts, len(shapes)).astype(int)
        tables.append((cells_of(own, shapes), shapes))
    return tuple(min(tables)[1])


def _groups(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Widths (G, D) between quantiles of tokens, and the rows (G,) they hold."""
    edges, places = [], []
    for column in lengths.T:
        tokens = np.cumsum(np.bincount(column) * np.arange(column.max() + 1))
        marks = tokens[-1] * np.arange(1, _QUANTILES + 1) // _QUANTILES
        edges.append(np.unique(np.searchsorted(tokens, marks)))
        places.append(np.searchsorted(edges[-1], column))
    sizes = [len(some) for some in edges]
    counts = np.bincount(
        np.ravel_multi_index(places, sizes), minlength=math.prod(sizes)
    )
    groups = np.flatnonzero(counts)
    indices = np.unravel_index(groups, sizes)
    widths = [some[index] for some, index in zip(edges, indices, strict=True)]
    return np.stack(widths, axis=1), counts[groups]


def _joined(widths, counts, max_shapes: int) -> Iterator[list[tuple[int, ...]]]:
    """Tables of at most `max_shapes` widths, always one less, sorted by their sum."""
    widths, counts, left = widths.copy(), counts.copy(), len(widths)

    def costs_of(group: int) -> np.ndarray:
        """Cells added by joining it with each other group, infinite for those gone."""
        common = np.maximum(widths, widths[group]).sum(axis=1)
        own = widths.sum(axis=1)
        added = counts * (common - own) + counts[group] * (common - own[group])
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
        one, other = divmod(int(costs.argmin()), len(costs))
        widths[one] = np.maximum(widths[one], widths[other])
        counts[one], counts[other] = counts[one] + counts[other], 0
        costs[other] = costs[:, other] = np.inf
        costs[one] = costs[:, one] = costs_of(one)
        left -= 1


def _most_rows(width: int, tokens_per_batch: int, num_replicas: int) -> int:
    rows = tokens_per_batch // width
    return num_replicas * (rows // 8 * 8 if rows >= 8 else rows)


def _no_larger(shape: Shape, rows: int, num_replicas: int) -> Shape:
    """With as many rows as the same number of batches needs to hold so many."""
    unit = num_replicas * (8 if shape.rows >= 8 * num_replicas else 1)
    batches = -(-rows // shape.rows)
    return shape._replace(rows=min(shape.rows, -(-rows // (batches * unit)) * unit))


def assign(lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """The shape of each row, (N,) int16: with the fewest cells, -1 where none fits."""
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

    Args:
        counts: rows that each shape is the smallest for.
        shapes: sorted by the cells of a row.
    """
    counts, moves = [int(count) for count in counts], []
    for large in reversed(range(len(shapes))):
        for small in reversed(range(large)):
            number = min(-counts[large] % shapes[large].rows, counts[small])
            if number and shapes[large].holds(shapes[small]):
                counts[small] -= number
                counts[large] += number
                moves.append((small, large, number))
    return counts, moves


def cells_of(counts: Sequence[int], shapes: Sequence[Shape]) -> int:
    """Of an epoch."""
    filled, _ = fill(counts, shapes)
    return sum(
        -(-rows // shape.rows) * shape.cells
        for rows, shape in zip(filled, shapes, strict=True)
    )


def order_epoch(
    assigned: np.ndarray, shapes: Sequence[Shape], seed: int | None, epoch: int = 0
) -> list[tuple[int, np.ndarray]]:
    """The batches of an epoch, every row once: (shape, row numbers (B,), -1 for none).

    Random numbers come from Philox, keyed by seed and epoch, as raw bits that are
    sorted, so that no version of NumPy orders the rows differently.

    Args:
        assigned: of `assign`, none -1.
        shapes: the table, sorted by the cells of a row.
        seed: None: rows and batches in the order of the corpus and of the table.
        epoch: from 0; others have other batches.
    """
    order = _permutation(len(assigned), seed, epoch, 0).astype("int32")
    order = order[np.argsort(assigned[order], kind="stable")]
    counts = np.bincount(assigned, minlength=len(shapes))
    rows = np.split(order, np.cumsum(counts)[:-1])
    for small, large, number in fill(counts, shapes)[1]:
        rows[large] = np.append(rows[large], rows[small][-number:])
        rows[small] = rows[small][:-number]
    batches = []
    for index, (shape, own) in enumerate(zip(shapes, rows, strict=True)):
        padding = np.full(-len(own) % shape.rows, -1, "int32")
        own = np.append(own, padding).reshape(-1, shape.rows)
        batches += [(index, batch) for batch in own]
    return [batches[place] for place in _permutation(len(batches), seed, epoch, 1)]


def _permutation(count: int, seed: int | None, epoch: int, purpose: int) -> np.ndarray:
    if seed is None:
        return np.arange(count)
    bits = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, purpose])
    return np.argsort(bits.random_raw(count), kind="stable")
