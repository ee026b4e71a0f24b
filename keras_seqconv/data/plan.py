"""Which rows go into which batch: few fixed shapes, little padding. Pure NumPy.

A *row* is a sentence pair or a block of text, a *shape* the size of a batch. The widths
of all shapes and their numbers of rows are chosen once, from the lengths of a corpus
(`choose_shapes`). Each epoch then cuts shuffled rows into batches of these shapes
(`epoch_plan`), a function of its arguments only, in any process.

Cells are entries of padded batches, padding included. A batch that its own rows do not
fill takes rows that a smaller shape would have held. What is empty after that, in at
most a few batches of an epoch, is rows of padding: no new shape, no row left out.

Letters: N rows of a corpus, D lengths of a row (1, or 2: source and target), B rows of
a batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv.support.arguments import check_integer, check_positive_integer

# Widths among which the first search of `choose_shapes` looks, for each length.
_LEVELS = 40
# Shapes of one width in one length and different ones in the other.
_BESIDE = 8
# Different rows up to which lengths are not rounded for the searches.
_DIFFERENT = 4000
# The second search: tables to start from, steps of a width, rounds.
_STARTS = 3
_STEPS = (1, -1, 2, -2, 4, -4, 8, -8)
_ROUNDS = 12


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


class Plan(NamedTuple):
    """The batches of an epoch, in order.

    Attributes:
        shapes: index of each batch's shape, in the table that the plan was made with.
        starts: where each batch's row numbers start in `rows`.
        counts: B of each batch.
        rows: row numbers of the corpus, int32; -1 is a row of padding.
    """

    shapes: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    rows: np.ndarray

    @property
    def num_batches(self) -> int:
        return len(self.shapes)

    def batch(self, index: int) -> tuple[int, np.ndarray]:
        """Index of its shape, and its row numbers (B,)."""
        start = self.starts[index]
        return int(self.shapes[index]), self.rows[start : start + self.counts[index]]


def choose_shapes(
    lengths: np.ndarray,
    tokens_per_batch: int,
    *,
    max_shapes: int = 16,
    num_replicas: int = 1,
    width_multiple: int = 1,
) -> tuple[Shape, ...]:
    """A table of shapes that holds every row with little padding.

    First by dynamic programming over a grid of widths, where slices of one length are
    cut along the other; then each width moves as long as the cells of an epoch, as
    `epoch_plan` will make it, become fewer. All shapes count: the fewer, the fewer
    batches are not full.

    Args:
        lengths: (N, D) or (N,), at least 1, end ids included.
        tokens_per_batch: most rows of one replica times the largest width.
        max_shapes: most shapes.
        num_replicas: B is a multiple of this.
        width_multiple: widths are multiples of this, or `tokens_per_batch`.

    Returns:
        Shapes, those with the fewest cells in a row first. The rows of one replica are
        a multiple of 8 where `tokens_per_batch` allows 8 of that width.

    Raises:
        ValueError: no rows; a row that is longer than `tokens_per_batch`.
    """
    check_positive_integer("tokens_per_batch", tokens_per_batch)
    check_positive_integer("max_shapes", max_shapes)
    check_positive_integer("num_replicas", num_replicas)
    check_positive_integer("width_multiple", width_multiple)
    lengths = _two_columns(lengths)
    _check_longest(lengths, tokens_per_batch)
    search = _Search(lengths[0], tokens_per_batch, num_replicas, width_multiple)
    shapes = search.best(max_shapes)
    columns = slice(2 - lengths[1], 2)
    return tuple(
        Shape(rows, tuple(int(width) for width in widths[columns]))
        for rows, widths in shapes
    )


def geometric_shapes(
    max_length: int,
    tokens_per_batch: int,
    *,
    num_lengths: int = 2,
    max_shapes: int = 16,
    num_replicas: int = 1,
    min_width: int = 8,
) -> tuple[Shape, ...]:
    """A table for rows that nobody has counted: the same width for all lengths.

    Widths grow by one factor, from `min_width` to `max_length`; longer rows do not fit.

    Raises:
        ValueError: `max_length` is more than `tokens_per_batch`.
    """
    check_positive_integer("max_length", max_length)
    check_positive_integer("tokens_per_batch", tokens_per_batch)
    check_positive_integer("max_shapes", max_shapes)
    check_positive_integer("num_replicas", num_replicas)
    if max_length > tokens_per_batch:
        raise ValueError(
            "`max_length` must be at most `tokens_per_batch`. "
            f"Received: max_length={max_length}, tokens_per_batch={tokens_per_batch}"
        )
    widths = np.geomspace(min(min_width, max_length), max_length, max_shapes)
    widths = sorted({int(width) for width in widths.round()} | {max_length})
    return tuple(
        Shape(_rows(width, tokens_per_batch, num_replicas), (width,) * num_lengths)
        for width in widths[-max_shapes:]
    )


def assign_shapes(lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """The shape of each row, (N,) int16: with the fewest cells, -1 where none fits."""
    lengths = np.asarray(lengths)
    lengths = lengths[:, None] if lengths.ndim == 1 else lengths
    found = np.full(len(lengths), -1, "int16")
    for index in _largest_first(shapes):
        fits = np.ones(len(lengths), bool)
        for column, width in zip(lengths.T, shapes[index].widths, strict=True):
            fits &= column <= width
        found[fits] = index
    return found


def count_batches(assigned: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """Batches of each shape in an epoch of these rows, whatever its seed."""
    counts = np.bincount(assigned, minlength=len(shapes)).tolist()
    return np.array([batches for batches, _ in _share(counts, shapes)])


def epoch_plan(
    assigned: np.ndarray, shapes: Sequence[Shape], seed: int | None, epoch: int = 0
) -> Plan:
    """The batches of an epoch: every row once.

    Random numbers come from Philox, keyed by seed and epoch, as raw bits that are
    sorted, so that no version of NumPy orders the rows differently.

    Args:
        assigned: of `assign_shapes`, none -1.
        shapes: the table.
        seed: None: rows and batches in the order of the corpus and of the table.
        epoch: from 0; others have other batches.
    """
    if seed is not None:
        check_integer("seed", seed, 0)
    check_integer("epoch", epoch, 0)
    assigned = np.asarray(assigned)
    if not len(assigned) or assigned.min() < 0:
        raise ValueError("`assigned` must hold rows, and a shape for each.")
    order = _order(len(assigned), seed, epoch, 0).astype("int32")
    order = order[np.argsort(assigned[order], kind="stable")]
    counts = np.bincount(assigned, minlength=len(shapes))
    shared = _share(counts.tolist(), shapes)
    rows = _cut(order, counts, shared, shapes)
    batches = np.array([batches for batches, _ in shared])
    of_batch = np.repeat(np.arange(len(shapes)), batches)
    sizes = np.array([shape.rows for shape in shapes])[of_batch]
    starts = np.cumsum(sizes) - sizes
    order = _order(len(of_batch), seed, epoch, 1)
    return Plan(of_batch[order], starts[order], sizes[order], rows)


def padding_share(
    lengths: np.ndarray, assigned: np.ndarray, shapes: Sequence[Shape]
) -> float:
    """Cells of an epoch without a token, rows of padding included, by all cells."""
    batches = count_batches(assigned, shapes)
    cells = sum(int(n) * shape.cells for n, shape in zip(batches, shapes, strict=True))
    return 1 - int(np.sum(lengths, dtype="int64")) / cells


def _order(count: int, seed: int | None, epoch: int, purpose: int) -> np.ndarray:
    if seed is None:
        return np.arange(count)
    bits = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, purpose])
    return np.argsort(bits.random_raw(count), kind="stable")


def _largest_first(shapes: Sequence[Shape]) -> list[int]:
    return sorted(
        range(len(shapes)),
        key=lambda index: (-sum(shapes[index].widths), shapes[index].widths, index),
    )


def _share(counts: list[int], shapes: Sequence[Shape]) -> list[tuple[int, dict]]:
    """Batches of each shape, and how many rows it takes from which smaller shape.

    The largest shapes first: what their last batch has left goes to the next smaller
    shape that fits inside, whose last batch then has more left, and so on down.
    """
    counts = list(counts)
    shared: list = [None] * len(shapes)
    order = _largest_first(shapes)
    for place, index in enumerate(order):
        rows, widths = shapes[index]
        batches = -(-counts[index] // rows)
        left, taken = batches * rows - counts[index], {}
        for smaller in order[place + 1 :]:
            if not left:
                break
            if counts[smaller] and _inside(shapes[smaller].widths, widths):
                taken[smaller] = min(left, counts[smaller])
                counts[smaller] -= taken[smaller]
                left -= taken[smaller]
        shared[index] = batches, taken
    return shared


def _inside(smaller: tuple, larger: tuple) -> bool:
    return all(a <= b for a, b in zip(smaller, larger, strict=True))


def _cut(order, counts, shared, shapes) -> np.ndarray:
    """Row numbers of all batches, in the order of shapes, with -1 where none is left.

    `order` holds the rows of each shape together.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    parts: list = [None] * len(shapes)
    for index in _largest_first(shapes):
        batches, taken = shared[index]
        mine = [order[starts[index] : ends[index]]]
        for smaller, number in taken.items():
            ends[smaller] -= number
            mine.append(order[ends[smaller] : ends[smaller] + number])
        left = batches * shapes[index].rows - sum(map(len, mine))
        parts[index] = np.concatenate([*mine, np.full(left, -1, "int32")])
    return np.concatenate(parts)


# --- Choosing shapes ---


def _two_columns(lengths) -> tuple[np.ndarray, int]:
    """(N, 2) and D; a first column of zeros stands in for a missing one."""
    lengths = np.asarray(lengths)
    if lengths.ndim == 1:
        lengths = lengths[:, None]
    if lengths.ndim != 2 or lengths.shape[1] not in (1, 2) or not len(lengths):
        raise ValueError(
            "`lengths` must be of shape (N, 1) or (N, 2) with at least one row. "
            f"Received: shape {lengths.shape}"
        )
    if not np.issubdtype(lengths.dtype, np.integer) or lengths.min() < 1:
        raise ValueError("`lengths` must be integers, each at least 1.")
    columns = lengths.shape[1]
    if columns == 1:
        lengths = np.concatenate([np.zeros_like(lengths), lengths], axis=1)
    return lengths, columns


def _check_longest(lengths, tokens_per_batch: int):
    longest = lengths[0].max(axis=1)
    if longest.max() > tokens_per_batch:
        raise ValueError(
            "Each row must have at most `tokens_per_batch` tokens, end id included; "
            "remove the others with `filter_by_length`, or cut them. Received: "
            f"tokens_per_batch={tokens_per_batch} and "
            f"{(longest > tokens_per_batch).sum()} longer rows of {len(longest)}, the "
            f"longest of {longest.max()}"
        )


def _rows(width: int, tokens_per_batch: int, num_replicas: int) -> int:
    rows = tokens_per_batch // width
    return num_replicas * (rows // 8 * 8 if rows >= 8 else rows)


class _Search:
    """What is known of a corpus while its table is sought.

    A table is here a sorted list of widths (source, target).
    """

    def __init__(self, lengths, tokens_per_batch, num_replicas, multiple):
        self.tokens, self.replicas = tokens_per_batch, num_replicas
        self.multiple = multiple
        lengths = self.rounded(lengths)
        self.lengths, self.counts = _different(lengths)
        self.most = self.lengths.max(axis=0)

    def best(self, max_shapes: int) -> list[Shape]:
        """The table with the fewest cells that was found."""
        exact = self.lengths, self.counts
        if len(self.lengths) > _DIFFERENT:
            coarse = np.minimum(self.rounded(_coarse(self.lengths)), self.most)
            self.lengths, self.counts = _different(coarse, self.counts)
        tables = sorted(self.first_tables(max_shapes), key=self.cells)[:_STARTS]
        tables = [self.improved(table) for table in tables]
        self.lengths, self.counts = exact
        tables += [self.tightened(table) for table in tables]
        return self._planned(min(tables, key=self.cells))[0]

    def rounded(self, lengths):
        """Up to the multiple that widths must be, where that does not exceed tokens."""
        up = -(-lengths // self.multiple) * self.multiple
        return np.minimum(up, self.tokens)

    def shapes(self, table) -> list[Shape]:
        """With as many rows as tokens allow."""
        return [
            Shape(_rows(max(widths), self.tokens, self.replicas), widths)
            for widths in table
        ]

    def tightened(self, table) -> list:
        """With the largest widths of the rows that are in each shape."""
        assigned = assign_shapes(self.lengths, self.shapes(table))
        found = [self.lengths[assigned == index] for index in range(len(table))]
        found = {tuple(rows.max(axis=0).tolist()) for rows in found if len(rows)}
        return sorted(found, key=_cells_of_row)

    def cells(self, table) -> float:
        """Cells of an epoch; infinite if a row fits into no shape."""
        return self._planned(table)[1]

    def _planned(self, table):
        """Shapes, and their cells in an epoch.

        They have fewer rows than tokens allow where as many batches still hold all.
        """
        shapes = self.shapes(table)
        assigned = assign_shapes(self.lengths, shapes)
        if assigned.min() < 0:
            return shapes, float("inf")
        counts = np.bincount(assigned, self.counts, len(shapes)).astype(int).tolist()
        shared = _share(counts, shapes)
        own = list(counts)
        for _, taken in shared:
            for smaller, number in taken.items():
                own[smaller] -= number
        found, cells = [], 0
        for index, (batches, taken) in enumerate(shared):
            if batches:
                real = own[index] + sum(taken.values())
                shape = self._even(shapes[index], batches, real)
                found.append(shape)
                cells += batches * shape.cells
        return found, cells

    def _even(self, shape: Shape, batches: int, real: int) -> Shape:
        unit = self.replicas * (8 if shape.rows >= 8 * self.replicas else 1)
        rows = -(-real // (batches * unit)) * unit
        return shape._replace(rows=min(shape.rows, rows))

    def first_tables(self, max_shapes: int) -> list[list]:
        """By dynamic programming: tables of 1 to `max_shapes` shapes, sliced both ways.

        Their cells count full batches only.
        """
        grid, levels = self._grid()
        tables = _sliced(grid, *levels, max_shapes)
        turned = _sliced(grid.T, *levels[::-1], max_shapes)
        tables += [[widths[::-1] for widths in table] for table in turned]
        return [sorted(set(table), key=_cells_of_row) for table in tables]

    def _grid(self):
        levels = [_levels(column, self.counts) for column in self.lengths.T]
        places = [
            np.searchsorted(level, column)
            for level, column in zip(levels, self.lengths.T, strict=True)
        ]
        grid = np.zeros([len(level) for level in levels])
        np.add.at(grid, tuple(places), self.counts)
        return grid, levels

    def improved(self, table) -> list:
        """The table after steps of single widths, as long as they save cells."""
        cells = self.cells(table)
        for _ in range(_ROUNDS):
            before = cells
            for index in range(len(table)):
                for widths in self._neighbours(table[index]):
                    others = {*table[:index], widths, *table[index + 1 :]}
                    other = sorted(others, key=_cells_of_row)
                    found = self.cells(other)
                    if found < cells:
                        cells, table = found, other
                        break
                if index + 1 >= len(table):
                    break
            if cells == before:
                break
        return table

    def _neighbours(self, widths):
        for column in (0, 1):
            for step in _STEPS:
                width = max(1, widths[column] + step * self.multiple)
                width = min(int(self.most[column]), int(self.rounded(width)))
                if self.most[column] and width != widths[column]:
                    yield (width, widths[1]) if column == 0 else (widths[0], width)


def _cells_of_row(widths) -> tuple:
    return sum(widths), widths


def _different(lengths, counts=None):
    """Different rows, and how often each occurs."""
    base = int(lengths[:, 1].max()) + 1
    keys = lengths[:, 0].astype("int64") * base + lengths[:, 1]
    keys, places = np.unique(keys, return_inverse=True)
    counts = np.bincount(places.reshape(-1), counts, len(keys))
    return np.stack([keys // base, keys % base], axis=1), counts


def _coarse(lengths):
    """Long ones rounded up: to even numbers from 32, multiples of 4 from 64, ..."""
    steps = 2.0 ** np.maximum(0, np.floor(np.log2(np.maximum(lengths, 1))) - 4)
    return (np.ceil(lengths / steps) * steps).astype("int64")


def _levels(column, counts) -> np.ndarray:
    """Up to `_LEVELS` widths with about equally many rows, or tokens, between them."""
    different, places = np.unique(column, return_inverse=True)
    if len(different) <= _LEVELS:
        return different
    rows = np.bincount(places.reshape(-1), counts)
    found = [len(different) - 1]
    for weights in (rows, rows * different):
        share = np.cumsum(weights) / weights.sum()
        ticks = np.arange(1, _LEVELS // 2) / (_LEVELS // 2)
        found.extend(np.searchsorted(share, ticks))
    return different[np.unique(found)]


def _sliced(grid, first, second, max_shapes: int) -> list[list]:
    """Tables of 1 to `max_shapes` shapes: `first` sliced, each slice cut in `second`.

    Args:
        grid: (m, n) rows of each pair of levels.
        first: (m,) widths, ascending; second: (n,) as well.
    """
    m, n = grid.shape
    beside = max_shapes if m == 1 else min(_BESIDE, max_shapes)
    sums = np.zeros((m + 1, n + 1))
    sums[1:, 1:] = grid.cumsum(0).cumsum(1)
    # rows[a, b, j]: in slice a < level <= b of the first length, up to j of the second.
    rows = sums[None, :, :] - sums[:, None, :]
    widths = np.zeros((m + 1, n + 1))
    widths[1:, 1:] = first[:, None] + second[None, :]
    slices, cuts = _cut_slices(rows, widths, beside)
    later = np.arange(m + 1)[:, None] < np.arange(m + 1)[None, :]
    slices = [np.where(later, costs, np.inf) for costs in slices]
    best = [np.where(np.arange(m + 1) == 0, 0.0, np.inf)]
    choices = [None]
    for count in range(1, max_shapes + 1):
        options = [
            best[count - k][:, None] + slices[k - 1]
            for k in range(1, min(count, beside) + 1)
        ]
        options = np.stack(options)  # k, a, b
        flat = options.reshape(-1, m + 1)
        choices.append(np.unravel_index(flat.argmin(0), options.shape[:2]))
        best.append(flat.min(0))
    tables = []
    for count in range(1, max_shapes + 1):
        if np.isfinite(best[count][m]):
            tables.append(_traced(choices, cuts, rows, first, second, count))
    return tables


def _cut_slices(rows, widths, beside: int):
    """For 1 to `beside` cuts: cells of each slice (a, b), and where its last cut is."""
    m, n = rows.shape[0] - 1, rows.shape[2] - 1
    best = np.full((m + 1, m + 1, n + 1), np.inf)
    best[:, :, 0] = 0
    costs, cuts = [], []
    for _ in range(beside):
        found = np.full_like(best, np.inf)
        where = np.zeros(best.shape, "int32")
        for j in range(1, n + 1):
            cells = (rows[:, :, j, None] - rows[:, :, :j]) * widths[None, :, j, None]
            options = best[:, :, :j] + cells
            where[:, :, j] = options.argmin(-1)
            found[:, :, j] = options.min(-1)
        best = found
        costs.append(best[:, :, n])
        cuts.append(where)
    return costs, cuts


def _traced(choices, cuts, rows, first, second, count: int) -> list:
    """The widths of the best table of `count` shapes; empty ones are left out."""
    table, b = [], len(first)
    while count:
        k, a = (int(choice[b]) for choice in choices[count])
        count, j = count - (k + 1), len(second)
        for cut in reversed(cuts[: k + 1]):
            i = int(cut[a, b, j])
            if rows[a, b, j] > rows[a, b, i]:
                table.append((int(first[b - 1]), int(second[j - 1])))
            j = i
        b = a
    return table
