"""Batches of few fixed shapes with little padding, without end, from an `IdStore`.

`BatchStream` is a function from a position, the number of batches since the start of
training, to a batch. So a run resumes anywhere at the cost of ordering one epoch, which
is about a second for five million rows, and shards of several hosts agree without
talking to each other.

Letters: B rows of a batch, S source time, T target time.
"""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from keras_seqconv.data.ids import IdStore
from keras_seqconv.data.shapes import (
    Shape,
    assign,
    cells_of,
    choose_shapes,
    fill,
    order_epoch,
)
from keras_seqconv.support.arguments import check_integer, check_positive_integer

# Orders of epochs that are kept: while one ends, prefetching is in the next.
_KEPT = 2
# Batches made ahead of training.
_AHEAD = 8
# Of the order of batches. Changes whenever the same seed gives other batches, so that
# a run of another version is refused and not continued with other data.
_ORDER = 2


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
        start_id, pad_id: ids.

    Attributes:
        shapes: every `Shape` (of all shards together) that a batch can have.
        padding_share: cells without a token in an epoch, rows of padding included, by
            all cells.

    Raises:
        ValueError: an argument; a row that is longer than `tokens_per_batch`; keys of
            the store other than described above.

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
        self.store = store
        self.tokens_per_batch = check_positive_integer(
            "tokens_per_batch", tokens_per_batch
        )
        self.num_replicas = check_positive_integer("num_replicas", num_replicas)
        check_positive_integer("max_shapes", max_shapes)
        self.shard = _check_shard(shard, num_replicas)
        self.seed = check_integer("seed", seed, 0)
        self.start_id = check_integer("start_id", start_id, 0)
        self.pad_id = check_integer("pad_id", pad_id, 0)
        self._columns = _columns(store)
        columns = [store.lengths[key] for key in self._columns]
        self._lengths = np.stack(columns, axis=1)
        self._tokens = int(self._lengths.sum(dtype="int64"))
        shapes = choose_shapes(
            self._lengths, tokens_per_batch, max_shapes, num_replicas
        )
        self._use(shapes)

    def _use(self, shapes: tuple[Shape, ...]) -> None:
        self.shapes = shapes
        self._assigned = assign(self._lengths, shapes)
        counts = np.bincount(self._assigned, minlength=len(shapes))
        filled, _ = fill(counts, shapes)
        self._batches = sum(
            -(-rows // shape.rows) for rows, shape in zip(filled, shapes, strict=True)
        )
        self.padding_share = 1 - self._tokens / cells_of(counts, shapes)
        self._order = functools.lru_cache(_KEPT)(
            lambda epoch: order_epoch(self._assigned, shapes, self.seed, epoch)
        )

    @property
    def element_spec(self):
        """TensorSpecs of a batch; axes of one size in all shapes have that size."""
        import tensorflow as tf

        sizes = zip(
            *((s.rows // self.shard[1], *s.widths) for s in self.shapes), strict=True
        )
        rows, *widths = [one[0] if len({*one}) == 1 else None for one in sizes]
        specs = {
            key: tf.TensorSpec((rows, width), tf.int32)
            for key, width in zip(self._columns, widths, strict=True)
        }
        return specs, specs["target_ids"]

    def batches_per_epoch(self) -> int:
        """The same for each epoch."""
        return self._batches

    def get_state(self) -> dict:
        """What the batches depend on, as JSON has it."""
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
        """Takes over the shapes of an earlier run, from its `get_state`.

        Raises:
            ValueError: other batches than that run's would come: of another store,
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
        """The (inputs, labels) at a position, as NumPy arrays."""
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
        inputs["target_ids"] = shifted(labels, self.start_id, self.pad_id)
        return inputs, labels

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
        return self._mapped(tf.data.Dataset.counter(position), self.batch)

    def once(self):
        """A `tf.data.Dataset` of every row of `store` once, for validation.

        The order is fixed: shape by shape, in each the rows as in the store.
        """
        import tensorflow as tf

        batches = order_epoch(self._assigned, self.shapes, None)
        positions = tf.data.Dataset.range(len(batches))
        return self._mapped(positions, lambda index: self._padded(*batches[index]))

    def _mapped(self, positions, batch: Callable):
        import tensorflow as tf

        inputs, labels = self.element_spec
        keys = list(inputs)

        @_guarded
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


def shifted(labels: np.ndarray, start_id: int = 2, pad_id: int = 1) -> np.ndarray:
    """Inputs of a decoder for padded labels (B, T): all but the last, after the start.

    Example:

    ```python
    import numpy as np
    from keras_seqconv.data.batches import shifted
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


# --- What tf.data does in the background ---


def untuned(dataset):
    """The same `tf.data.Dataset`, whose iterators start no thread that tunes it.

    The end of an iterator waits for this thread, which looks whether it is needed after
    ever longer pauses, in the end of a minute, and does not always hear that it is not
    (TensorFlow 2.21): training stood still at the ends of epochs.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


class _Calls:
    """Python functions that tf.data calls, how many run, and whether there may be more.

    When the interpreter ends while tf.data waits for a Python function, which can then
    never return, the process hangs: after Ctrl-C, for example, as prefetching goes on.
    So they are refused once the interpreter is about to end, and it does not end before
    the last one has returned.
    """

    # tf.data calls again at once if it calls again at all, in seconds.
    _STILL = 0.1

    def __init__(self):
        self._lock = threading.Lock()
        self._running, self._last, self._closed = 0, None, False

    def __enter__(self):
        with self._lock:
            if self._last is None:
                atexit.register(self.close)
            self._last = time.monotonic()
            if self._closed:
                raise RuntimeError("no more data: Python is ending")
            self._running += 1

    def __exit__(self, *error):
        with self._lock:
            self._running -= 1
            self._last = time.monotonic()

    def close(self) -> None:
        """Refuses more calls; returns when none runs and none was tried lately."""
        self._closed = True
        while self._running or time.monotonic() < self._last + self._STILL:
            time.sleep(0.01)


_CALLS = _Calls()


def _guarded(function: Callable) -> Callable:
    """A function for `tf.numpy_function` that does not keep Python from ending."""

    @functools.wraps(function)
    def call(*arguments):
        with _CALLS:
            return function(*arguments)

    return call
