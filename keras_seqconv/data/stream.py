"""Batches of few fixed shapes, without end, from an `IdStore`.

`BatchStream` is a function from a position, the number of batches since the start of
training, to a batch. So a run resumes anywhere at the cost of planning one epoch, which
is about a second for five million rows, and shards of several hosts agree without
talking to each other.

Letters: B rows of a batch, S source time, T target time.
"""

import collections
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from keras_seqconv.data import plan
from keras_seqconv.data.background import guarded, untuned
from keras_seqconv.data.store import IdStore
from keras_seqconv.support.arguments import check_integer, check_positive_integer

# Epochs whose plan is kept: while one ends, prefetching is in the next.
_KEPT = 2
# Batches made ahead of training.
_AHEAD = 8


class BatchStream:
    """Batches of a store, reshuffled and recomposed every epoch.

    A batch is (inputs, labels): inputs {"source_ids": (B, S), "target_ids": (B, T)},
    labels (B, T), int32. `target_ids` of the inputs are the start id and the target
    without its last id; labels are the target. A store with "labels" of its own gives
    those, and its "target_ids" as they are; one without "source_ids" gives none.
    Everything is padded on the right. Rows of padding, which fill the last batch of a
    shape, are padding in all three, so that a masked loss does not see them.

    Args:
        store: what to stream.
        tokens_per_batch: most B / num_replicas * max(S, T), padding included.
        num_replicas: devices that a batch is split over; B is a multiple of 8 times
            this wherever `tokens_per_batch` allows.
        shard: (i, n): only rows i * B / n to (i + 1) * B / n of each batch, for host i
            of n. Every host has the same shapes at the same position.
        seed: with the epoch's number, all that order and composition depend on.
        max_shapes: most shapes; each is compiled once where training is compiled.
        width_multiple: widths are multiples of this.
        start_id, pad_id: ids.
        shapes: a table of `plan.choose_shapes` to use instead of choosing one.
        resample: epoch -> `IdStore` with the same keys, and the same rows in another
            tokenisation (BPE-dropout). It must depend on the epoch only. The shapes
            are chosen for its epoch 0. A row that comes out too long for every shape
            keeps the form that it has in `store`; `unsampled` counts these.

    Raises:
        ValueError: an argument; a row that is longer than `tokens_per_batch`; keys of
            the store other than described above.

    Example:

    ```python
    from keras_seqconv.data.store import IdStore
    from keras_seqconv.data.stream import BatchStream
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
        width_multiple: int = 1,
        start_id: int = 2,
        pad_id: int = 1,
        shapes: tuple[plan.Shape, ...] | None = None,
        resample: Callable[[int], IdStore] | None = None,
    ):
        self.store = store
        self.tokens_per_batch = check_positive_integer(
            "tokens_per_batch", tokens_per_batch
        )
        self.num_replicas = check_positive_integer("num_replicas", num_replicas)
        self.shard = _check_shard(shard, num_replicas)
        self.seed = check_integer("seed", seed, 0)
        self.start_id = check_integer("start_id", start_id, 0)
        self.pad_id = check_integer("pad_id", pad_id, 0)
        self._columns = _columns(store)
        self._resample = resample
        self._choice = dict(max_shapes=max_shapes, width_multiple=width_multiple)
        self._lock = threading.RLock()
        self._epochs: collections.OrderedDict[int, _Epoch] = collections.OrderedDict()
        self._num_batches: list[int] = []
        self._shapes = self._choose() if shapes is None else self._check(shapes)

    # --- What there is ---

    @property
    def shapes(self) -> tuple[plan.Shape, ...]:
        """Every shape (of all shards together) that a batch can have."""
        return self._shapes

    @property
    def element_spec(self):
        """TensorSpecs of a batch; axes of one size in all shapes have that size."""
        import tensorflow as tf

        rows = {shape.rows // self.shard[1] for shape in self.shapes}
        sizes = [
            {shape.widths[self._columns.index(key)] for shape in self.shapes}
            for key in self._columns
        ]
        rows, *widths = [
            found.pop() if len(found) == 1 else None for found in (rows, *sizes)
        ]
        specs = {
            key: tf.TensorSpec((rows, width), tf.int32)
            for key, width in zip(self._columns, widths, strict=True)
        }
        return specs, specs["target_ids"]

    @property
    def padding_share(self) -> float:
        """Cells without a token in an epoch, rows of padding included, by all cells."""
        epoch = self._epoch(0)
        return plan.padding_share(epoch.lengths, epoch.assigned, self.shapes)

    def unsampled(self, epoch: int) -> int:
        """Rows that keep their form in `store`, as the sampled one fits no shape."""
        return int(self._epoch(epoch).kept.sum())

    def batches_per_epoch(self, epoch: int = 0) -> int:
        """The same for each epoch, unless there is `resample`."""
        check_integer("epoch", epoch, 0)
        if self._resample is None:
            epoch = 0
        with self._lock:
            while len(self._num_batches) <= epoch:
                number = self._epoch(len(self._num_batches)).plan.num_batches
                self._num_batches.append(number)
        return self._num_batches[epoch]

    def epoch_of(self, position: int) -> int:
        """The epoch that a position is in, from 0."""
        return self._place(position)[0]

    def start_of(self, epoch: int) -> int:
        """The position of the first batch of an epoch."""
        check_integer("epoch", epoch, 0)
        if self._resample is None:
            return epoch * self.batches_per_epoch()
        return sum(map(self.batches_per_epoch, range(epoch)))

    def get_state(self) -> dict:
        """What makes resuming exact and quick, as JSON has it.

        That is the table of shapes, and the number of batches of each epoch that was
        begun, without which a stream with `resample` would sample them all again.
        """
        return {
            "shapes": [[shape.rows, list(shape.widths)] for shape in self.shapes],
            "batches_per_epoch": list(self._num_batches),
        }

    def set_state(self, state: Mapping):
        """Takes over what `get_state` of an earlier run returned.

        Raises:
            ValueError: the shapes are not those of this store and these arguments.
        """
        shapes = [plan.Shape(rows, tuple(widths)) for rows, widths in state["shapes"]]
        with self._lock:
            self._shapes = self._check(shapes)
            self._epochs.clear()
            self._num_batches = [int(number) for number in state["batches_per_epoch"]]

    # --- Batches ---

    def batch(self, position: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The (inputs, labels) at a position, as NumPy arrays."""
        epoch, index = self._place(position)
        return self._batch(self._epoch(epoch), index)

    def batches(self, position: int = 0) -> Iterator[tuple]:
        """The batches from a position on, without end, without TensorFlow."""
        while True:
            yield self.batch(position)
            position += 1

    def dataset(self, position: int = 0):
        """A `tf.data.Dataset` of the batches from a position on, without end.

        For `model.fit(..., steps_per_epoch=..., shuffle=False)`, or `fit_stream`.

        Batches are made ahead, in the background and in order.
        """
        import tensorflow as tf

        check_integer("position", position, 0)
        positions = tf.data.Dataset.counter(position)
        return self._mapped(positions, self.batch)

    def once(self):
        """A `tf.data.Dataset` of every row of `store` once, for validation.

        The order is fixed: shape by shape, in each the rows as in the store.
        """
        import tensorflow as tf

        epoch = self._made(self.store, None, 0)
        positions = tf.data.Dataset.range(epoch.plan.num_batches)
        return self._mapped(positions, lambda index: self._batch(epoch, index))

    def _mapped(self, positions, batch: Callable):
        import tensorflow as tf

        inputs, labels = self.element_spec
        keys = list(inputs)

        @guarded
        def flat(position):
            found, labels = batch(int(position))
            return *(found[key] for key in keys), labels

        def padded(position):
            found = tf.numpy_function(flat, [position], [tf.int32] * (len(keys) + 1))
            for array, spec in zip(found, [*inputs.values(), labels], strict=True):
                array.set_shape(spec.shape)
            return dict(zip(keys, found, strict=False)), found[-1]

        options = tf.data.Options()
        options.deterministic = True
        # Shards are rows of each batch, not files.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        return untuned(positions.map(padded).prefetch(_AHEAD).with_options(options))

    def _batch(self, epoch: "_Epoch", index: int):
        shape, rows = epoch.plan.batch(index)
        i, n = self.shard
        rows = rows[i * len(rows) // n : (i + 1) * len(rows) // n]
        widths = dict(zip(self._columns, self.shapes[shape].widths, strict=True))
        if "labels" in self.store.keys:
            widths["labels"] = widths["target_ids"]
        kept = epoch.kept[rows] & (rows >= 0) if len(epoch.kept) else None
        if kept is None or not kept.any():
            inputs = epoch.store.gather(rows, widths, self.pad_id)
        else:
            sampled = np.where(kept, -1, rows)
            inputs = epoch.store.gather(sampled, widths, self.pad_id)
            forms = self.store.gather(rows[kept], widths, self.pad_id)
            for key, values in forms.items():
                inputs[key][kept] = values
        if "labels" in inputs:
            return inputs, inputs.pop("labels")
        labels = inputs["target_ids"]
        inputs["target_ids"] = shifted(labels, self.start_id, self.pad_id)
        return inputs, labels

    # --- Epochs ---

    def _place(self, position: int) -> tuple[int, int]:
        """Epoch, and number of the batch in it."""
        check_integer("position", position, 0)
        if self._resample is None:
            return divmod(position, self.batches_per_epoch())
        epoch = 0
        while position >= self.batches_per_epoch(epoch):
            position -= self.batches_per_epoch(epoch)
            epoch += 1
        return epoch, position

    def _epoch(self, epoch: int) -> "_Epoch":
        with self._lock:
            if epoch not in self._epochs:
                store = self.store if self._resample is None else self._sampled(epoch)
                self._epochs[epoch] = self._made(store, self.seed, epoch)
                if len(self._epochs) > _KEPT:
                    self._epochs.popitem(last=False)
            self._epochs.move_to_end(epoch)
            return self._epochs[epoch]

    def _made(self, store: IdStore, seed: int | None, epoch: int) -> "_Epoch":
        lengths = self._lengths(store)
        assigned = plan.assign_shapes(lengths, self.shapes)
        kept = np.zeros(0, bool)
        if store is not self.store:
            kept = assigned < 0
            own = self._lengths(self.store)
            lengths = np.where(kept[:, None], own, lengths)
            assigned[kept] = plan.assign_shapes(own[kept], self.shapes)
        batches = plan.epoch_plan(assigned, self.shapes, seed, epoch)
        return _Epoch(store, lengths, assigned, kept, batches)

    def _sampled(self, epoch: int) -> IdStore:
        store = self._resample(epoch)
        if set(store.keys) != set(self.store.keys) or len(store) != len(self.store):
            raise ValueError(
                f"`resample` must return a store of {len(self.store)} rows of "
                f"{sorted(self.store.keys)}. Received: {len(store)} rows of "
                f"{sorted(store.keys)}"
            )
        return store

    def _lengths(self, store: IdStore) -> np.ndarray:
        return np.stack([store.lengths[key] for key in self._columns], axis=1)

    def _choose(self) -> tuple[plan.Shape, ...]:
        lengths = self._lengths(self.store)
        if self._resample is not None:
            sampled = self._lengths(self._sampled(0))
            fits = sampled.max(axis=1) <= self.tokens_per_batch
            # The larger of the two, as any row may have to keep its form.
            sampled = np.maximum(sampled, lengths)
            lengths = np.where(fits[:, None], sampled, lengths)
        return plan.choose_shapes(
            lengths,
            self.tokens_per_batch,
            num_replicas=self.num_replicas,
            **self._choice,
        )

    def _check(self, shapes) -> tuple[plan.Shape, ...]:
        shapes = tuple(plan.Shape(*shape) for shape in shapes)
        for shape in shapes:
            rows, rest = divmod(shape.rows, self.num_replicas)
            if (
                len(shape.widths) != len(self._columns)
                or rest
                or not 0 < rows * max(shape.widths) <= self.tokens_per_batch
            ):
                raise ValueError(
                    f"Each of `shapes` must have {len(self._columns)} widths, rows in "
                    f"multiples of num_replicas={self.num_replicas}, and at most "
                    f"tokens_per_batch={self.tokens_per_batch} for each replica. "
                    f"Received: {shape}"
                )
        misfits = int((plan.assign_shapes(self._lengths(self.store), shapes) < 0).sum())
        if misfits:
            raise ValueError(
                "`shapes` must hold every row of the store. Received: a table that "
                f"{misfits} of {len(self.store)} rows do not fit in"
            )
        return shapes


class _Epoch(NamedTuple):
    """What an epoch is made from.

    store: the (re)sampled one; lengths: (N, D) in it, of rows `kept` (N or 0,) in the
    stream's own; assigned: shapes of rows; plan: its batches.
    """

    store: IdStore
    lengths: np.ndarray
    assigned: np.ndarray
    kept: np.ndarray
    plan: plan.Plan


def shifted(labels: np.ndarray, start_id: int = 2, pad_id: int = 1) -> np.ndarray:
    """Inputs of a decoder for padded labels (B, T): all but the last, after the start.

    Example:

    ```python
    import numpy as np
    from keras_seqconv.data.stream import shifted
    labels = np.array([[7, 8, 2, 1], [1, 1, 1, 1]])
    assert shifted(labels).tolist() == [[2, 7, 8, 1], [1, 1, 1, 1]]
    ```
    """
    inputs = np.full_like(labels, start_id)
    inputs[:, 1:] = labels[:, :-1]
    inputs[labels == pad_id] = pad_id
    return inputs


def _columns(store: IdStore) -> tuple[str, ...]:
    """Keys whose lengths count."""
    keys = set(store.keys)
    if keys - {"source_ids", "labels"} != {"target_ids"}:
        raise ValueError(
            "`store` must have target_ids, and may have source_ids and labels. "
            f"Received: {sorted(keys)}"
        )
    if "labels" in keys and not np.array_equal(
        store.lengths["labels"], store.lengths["target_ids"]
    ):
        raise ValueError("`store` must have labels as long as its target_ids.")
    return ("source_ids", "target_ids") if "source_ids" in keys else ("target_ids",)


def _check_shard(shard, num_replicas: int) -> tuple[int, int]:
    try:
        index, count = shard
        check_positive_integer("shard", count)
        check_integer("shard", index, 0)
    except (TypeError, ValueError):
        index, count = 0, 0
    if not index < count or num_replicas % count:
        raise ValueError(
            "`shard` must be (i, n) with 0 <= i < n, and n a divisor of "
            f"`num_replicas`. Received: shard={shard!r}, num_replicas={num_replicas}"
        )
    return index, count
