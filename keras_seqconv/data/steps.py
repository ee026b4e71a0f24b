"""Steps of a `tf.data` pipeline of one's own: `dataset.apply(step(...))`.

Each function here returns a function from dataset to dataset. A dataset holds

- texts: {"source", "target"} scalar strings, as `open_corpus(...).split(...)` gives, or
  {"target"} for language models;
- rows: {"source_ids", "target_ids"} int32 vectors with their end ids, or
  {"target_ids"}, or {"target_ids", "labels"} of `to_blocks`;
- batches: the same keys, padded, (B, S) and (B, T);
- (inputs, labels): what a model trains on.

Everything streams; only `shuffle` and `batch_by_tokens` hold as many rows as they are
told to. Steps work on a thousand texts or rows at once, also where they are taken and
given one by one; those that follow each other directly never take them apart. They
take a dataset of batches of texts (`.batch(1024)`) or ragged batches of rows as well,
and then give such.

For training, `write_store` and `keras_seqconv.data.stream.BatchStream` are the better
end of the chain: their batches have less padding and resume at any position.

Example:

```python
import tensorflow as tf
from keras_seqconv.data import steps
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer

words = DictionaryTokenizer(Dictionary([("ein", 2), ("hund", 1), ("haus", 1)]))
texts = {"source": ["ein hund", "ein haus"], "target": ["hund", "ein haus"]}
batches = (
    tf.data.Dataset.from_tensor_slices(texts)
    .apply(steps.filter_by_length(max_length=175, max_ratio=2.0))  # in words
    .apply(steps.tokenize(words, words))
    .apply(steps.filter_by_length(max_length=255))  # in tokens
    .apply(steps.shuffle(seed=1, window=10_000))
    .repeat()
    .apply(steps.batch_by_tokens(4096, max_length=256, window=4))
    .apply(steps.to_inputs())
    .apply(steps.prefetch())
)
inputs, labels = next(iter(batches))
assert inputs["source_ids"].shape[0] == labels.shape[0]
```
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

import numpy as np

from keras_seqconv.data import plan
from keras_seqconv.data.background import guarded, guarded_generator, untuned
from keras_seqconv.data.rows import BATCHES, plain_errors
from keras_seqconv.data.store import IdStore
from keras_seqconv.support.arguments import (
    check_integer,
    check_positive_integer,
    is_number,
)

# Texts tokenised, and rows handed to or taken from Python, at once.
_TEXTS, _ROWS = 1024, 4096
# Why `filter_by_length` removes a row; 0 keeps it.
_REASONS = (None, "too_short", "too_long", "ratio")


def tokenize(source_tokenizer, target_tokenizer) -> Callable:
    """Texts to rows.

    A tokenizer that can run in a graph does; any other is called from Python with many
    texts at once.

    Args:
        source_tokenizer: None where there is no "source".
        target_tokenizer: may be the same object.
    """
    pairs = {"source": source_tokenizer, "target": target_tokenizer}
    pairs = {key: one for key, one in pairs.items() if one is not None}

    def to_ids(texts):
        return {f"{key}_ids": _ids(pairs[key], texts[key]) for key in pairs}

    def apply(dataset):
        _check_keys(dataset, [set(pairs)], "texts")
        return _on_batches(dataset, to_ids)

    return apply


def filter_by_length(
    *,
    min_length: int = 1,
    max_length: int | None = None,
    max_ratio: float | None = None,
    counts: MutableMapping | None = None,
) -> Callable:
    """Keeps the texts or rows whose lengths are right.

    Lengths of texts are words, divided by white space; lengths of rows are tokens
    without the end id.

    Args:
        min_length, max_length: of each side.
        max_ratio: of the longer side to the shorter one, at least 1.
        counts: goes up under "too_short", "too_long" or "ratio", the first that
            applies, for each removed row, in each pass over the dataset.
    """
    check_integer("min_length", min_length, 0)
    if max_length is not None:
        check_integer("max_length", max_length, max(1, min_length))
    if max_ratio is not None and not (is_number(max_ratio) and max_ratio >= 1):
        raise ValueError(
            f"`max_ratio` must be at least 1. Received: max_ratio={max_ratio!r}"
        )

    def reasons(batch):
        import tensorflow as tf

        lengths = tf.stack([_lengths(batch[key]) for key in sorted(batch)])
        short, long = tf.reduce_min(lengths, 0), tf.reduce_max(lengths, 0)
        found = tf.zeros_like(short)
        # The last one that is written is the first that applies.
        if max_ratio is not None:
            most = tf.cast(short, tf.float64) * max_ratio
            found = tf.where(tf.cast(long, tf.float64) > most, 3, found)
        if max_length is not None:
            found = tf.where(long > max_length, 2, found)
        return tf.where(short < min_length, 1, found)

    def good(batch):
        import tensorflow as tf

        found = reasons(batch)
        with tf.control_dependencies([_counted(found, counts, _REASONS)]):
            keep = tf.equal(found, 0)
        return {
            key: tf.ragged.boolean_mask(values, keep) for key, values in batch.items()
        }

    def apply(dataset):
        allowed = [{"source", "target"}, {"target"}, *_ROW_KEYS]
        keys = _check_keys(dataset, allowed, "texts or rows")
        if max_ratio is not None and not {"source", "source_ids"} & set(keys):
            raise ValueError(
                "`max_ratio` must be None for a dataset without sources. "
                f"Received: max_ratio={max_ratio}"
            )
        return _on_batches(dataset, good)

    return apply


def truncate_source(max_length: int, counts: MutableMapping | None = None) -> Callable:
    """Cuts the sources of rows to `max_length` ids, the end id included, which stays.

    Args:
        max_length: at least 2.
        counts: goes up under "truncated" for each source that is cut.
    """
    check_integer("max_length", max_length, 2)

    def cut(batch):
        import tensorflow as tf

        ids = batch["source_ids"]
        lengths = ids.row_lengths()
        longer = tf.cast(lengths > max_length, tf.int32)
        with tf.control_dependencies([_counted(longer, counts, (None, "truncated"))]):
            kept = tf.minimum(lengths, max_length)
        places = tf.ragged.range(lengths).values
        keep = (places < tf.repeat(kept - 1, lengths)) | (
            places == tf.repeat(lengths - 1, lengths)
        )
        values = tf.boolean_mask(ids.values, keep)
        ids = tf.RaggedTensor.from_row_lengths(values, kept, validate=False)
        return {**batch, "source_ids": ids}

    def apply(dataset):
        _check_keys(dataset, [{"source_ids", "target_ids"}], "rows")
        return _on_batches(dataset, cut)

    return apply


def shuffle(seed: int, window: int) -> Callable:
    """Texts or rows in an order drawn from the next `window` ones, which are in memory.

    Every pass of a `.repeat()` after it has another order; a new process has the same
    ones again.
    """
    check_integer("seed", seed, 0)
    check_positive_integer("window", window)

    def apply(dataset):
        return dataset.shuffle(window, seed=seed, reshuffle_each_iteration=True)

    return apply


def write_store(
    dataset,
    directory: str | os.PathLike,
    fingerprint: Mapping | None = None,
    counts: Mapping | None = None,
) -> IdStore:
    """Writes a finite dataset of rows to an `IdStore` and opens it.

    Args:
        dataset: rows.
        directory: becomes the store when all is written; see `IdStore.writer`.
        fingerprint: what the rows depend on.
        counts: of what the steps before removed, as it is after the last row.

    Raises:
        ValueError: no row is left; whatever a step before raises.
    """
    with plain_errors(), IdStore.writer(directory, fingerprint, counts) as writer:
        for chunk in _chunks(dataset):
            writer.add(chunk)
    return IdStore.open(directory, fingerprint)


def cache(
    directory: str | os.PathLike,
    fingerprint: Mapping,
    counts: Mapping | None = None,
) -> Callable:
    """Rows from a store in `directory`, which is written first if it is not there.

    That happens when the step is applied. A store with another fingerprint is written
    anew.

    Args:
        directory, fingerprint, counts: as of `write_store`.
    """

    def apply(dataset):
        try:
            store = IdStore.open(directory, fingerprint)
        except (FileNotFoundError, ValueError):
            store = write_store(dataset, directory, fingerprint, counts)
        return from_store(store)

    return apply


def from_store(store: IdStore, rows: int | None = None):
    """A dataset of the rows of a store, in order.

    Args:
        store: the rows.
        rows: in ragged batches of so many, instead of one by one.
    """
    import tensorflow as tf

    @guarded_generator
    def flat():
        for chunk in store.chunks(rows or _ROWS):
            yield tuple(array for pair in chunk.values() for array in pair)

    def ragged(*arrays):
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        return {
            key: tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
            for key, (values, lengths) in zip(store.keys, pairs, strict=True)
        }

    vector = tf.TensorSpec([None], tf.int32)
    signature = (vector, vector) * len(store.keys)
    chunks = tf.data.Dataset.from_generator(flat, output_signature=signature)
    batches = chunks.map(ragged)
    return _unbatched(batches) if rows is None else batches


def batch_by_tokens(
    tokens_per_batch: int,
    *,
    shapes: Sequence[plan.Shape] | None = None,
    max_length: int | None = None,
    max_shapes: int = 16,
    num_replicas: int = 1,
    window: int = 100_000,
    seed: int = 1,
    pad_id: int = 1,
) -> Callable:
    """Rows to padded batches of few shapes.

    Each `window` of rows is cut into batches by `plan.epoch_plan`; what is left over
    in it fills a batch together with rows of padding.

    Args:
        tokens_per_batch: most B / num_replicas times the longer width.
        shapes: a table of `plan.choose_shapes`; or
        max_length: of the longest row, end id included: widths grow up to it by one
            factor (`plan.geometric_shapes`).
        max_shapes, num_replicas: of the table, if `max_length` is given.
        window: rows, held in memory; the more, the fewer rows of padding.
        seed: of the order of batches, and of rows in a shape.
        pad_id: id of padding.

    Raises:
        ValueError: an argument. While reading: a row is longer than all shapes; such
            rows are for `filter_by_length` or `truncate_source` to handle.
    """
    check_positive_integer("tokens_per_batch", tokens_per_batch)
    check_positive_integer("window", window)
    check_integer("seed", seed, 0)
    if (shapes is None) == (max_length is None):
        raise ValueError(
            "One of `shapes` and `max_length` must be given. "
            f"Received: shapes={shapes}, max_length={max_length}"
        )

    def apply(dataset):
        import tensorflow as tf

        keys = _check_keys(dataset, _ROW_KEYS, "rows")
        columns = [key for key in ("source_ids", "target_ids") if key in keys]
        table = shapes
        if table is None:
            table = plan.geometric_shapes(
                max_length,
                tokens_per_batch,
                num_lengths=len(columns),
                max_shapes=max_shapes,
                num_replicas=num_replicas,
            )

        @guarded_generator
        def batches():
            for number, store in enumerate(_windows(dataset, window)):
                yield from _batches_of(store, columns, table, seed, number, pad_id)

        signature = {key: tf.TensorSpec([None, None], tf.int32) for key in keys}
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    return apply


def to_inputs(start_id: int = 2, pad_id: int = 1) -> Callable:
    """Batches to (inputs, labels).

    The labels are the targets; the inputs' "target_ids" are the start id and all of
    the targets but the last. "labels" of the batches stay what they are, and then the
    "target_ids" do too.
    """
    check_integer("start_id", start_id, 0)
    check_integer("pad_id", pad_id, 0)

    def apply(dataset):
        import tensorflow as tf

        def shift(batch):
            inputs = dict(batch)
            if "labels" in inputs:
                labels = inputs.pop("labels")
                return inputs, labels
            labels = inputs["target_ids"]
            start = tf.fill([tf.shape(labels)[0], 1], start_id)
            ids = tf.concat([start, labels[:, :-1]], axis=1)
            inputs["target_ids"] = tf.where(labels == pad_id, pad_id, ids)
            return inputs, labels

        return dataset.map(shift)

    return apply


def prefetch(batches: int | None = None) -> Callable:
    """Makes elements ahead in the background; tf.data chooses how many by default."""
    if batches is not None:
        check_positive_integer("batches", batches)

    def apply(dataset):
        import tensorflow as tf

        return dataset.prefetch(tf.data.AUTOTUNE if batches is None else batches)

    return apply


# --- Parts ---

_ROW_KEYS = (
    {"source_ids", "target_ids"},
    {"target_ids"},
    {"target_ids", "labels"},
    {"source_ids", "target_ids", "labels"},
)


def _check_keys(dataset, allowed, what: str) -> tuple[str, ...]:
    spec = dataset.element_spec
    keys = tuple(spec) if isinstance(spec, dict) else ()
    if set(keys) not in [set(one) for one in allowed]:
        raise ValueError(
            f"The dataset must hold {what} with the keys "
            + " or ".join(str(sorted(one)) for one in allowed)
            + f". Received: {spec}"
        )
    return keys


def _is_batched(dataset) -> bool:
    """Whether it holds batches of texts or rows rather than single ones."""
    spec = next(iter(dataset.element_spec.values()))
    return spec.shape.rank == (1 if spec.dtype == "string" else 2)


def _in_batches(dataset, rows: int):
    """Batches of texts, or ragged batches of rows."""
    import tensorflow as tf

    def ragged(batch):
        return {
            key: values
            if isinstance(values, tf.RaggedTensor) or values.dtype == tf.string
            else tf.RaggedTensor.from_tensor(values)
            for key, values in batch.items()
        }

    if _is_batched(dataset):
        return dataset.map(ragged)
    if rows >= _TEXTS and hasattr(dataset, BATCHES):
        return getattr(dataset, BATCHES)
    text = next(iter(dataset.element_spec.values())).dtype == tf.string
    # Vectors of one known size come out of `ragged_batch` as a matrix.
    batches = dataset.batch(rows) if text else dataset.ragged_batch(rows)
    return batches.map(ragged)


def _on_batches(dataset, function: Callable):
    """The dataset after a function of batches, in batches if it was."""
    import tensorflow as tf

    def some(batch):
        values = next(iter(batch.values()))
        ragged = isinstance(values, tf.RaggedTensor)
        return (values.nrows() if ragged else tf.size(values, tf.int64)) > 0

    made = _in_batches(dataset, _TEXTS)
    # AutoGraph would look for the source of what `import` runs, and warn.
    function = tf.autograph.experimental.do_not_convert(function)
    made = made.map(function, num_parallel_calls=tf.data.AUTOTUNE).filter(some)
    return made if _is_batched(dataset) else _unbatched(made)


def _ids(tokenizer, texts):
    """(N,) texts to a RaggedTensor of ids."""
    import tensorflow as tf

    if tokenizer.in_graph:
        return tf.cast(tokenizer.tokenize_tensor(texts), tf.int32)

    @guarded
    def python(texts):
        rows = tokenizer.tokenize([text.decode() for text in texts.tolist()])
        lengths = np.array([len(row) for row in rows], "int64")
        flat = np.fromiter(itertools.chain.from_iterable(rows), "int32", lengths.sum())
        return flat, lengths

    flat, lengths = tf.numpy_function(python, [texts], [tf.int32, tf.int64])
    flat.set_shape([None])
    lengths.set_shape([None])
    return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)


def _unbatched(batches):
    """Single texts or rows."""
    import tensorflow as tf

    # Ragged tensors of rank one are tensors in all but name.
    rows = batches.unbatch().map(
        lambda row: {key: tf.identity(value) for key, value in row.items()}
    )
    # The next step, if it is one of ours, starts from the batches: ten times as fast.
    setattr(rows, BATCHES, batches)
    return rows


def _chunks(dataset, rows: int = _ROWS) -> Iterator[dict[str, tuple]]:
    """{key: (values, lengths)} of so many rows at once, or of a batch."""
    for batch in untuned(_in_batches(dataset, rows)):
        yield {
            key: (vectors.values.numpy(), vectors.row_lengths().numpy())
            for key, vectors in batch.items()
        }


def _windows(dataset, rows: int) -> Iterator[IdStore]:
    """So many rows at once, or a few more if they come in batches."""
    waiting, number = [], 0
    for chunk in _chunks(dataset, min(rows, _ROWS)):
        waiting.append(chunk)
        number += len(chunk["target_ids"][1])
        if number >= rows:
            yield IdStore.from_chunks(waiting)
            waiting, number = [], 0
    if waiting:
        yield IdStore.from_chunks(waiting)


def _lengths(values):
    """(N,) words of texts, or ids of rows without the end ids."""
    import tensorflow as tf

    if values.dtype == tf.string:
        return tf.cast(tf.strings.split(values).row_lengths(), tf.int32)
    return tf.cast(values.row_lengths(), tf.int32) - 1


def _counted(reasons, counts: MutableMapping | None, names: tuple):
    """True, after `counts` went up by the names of (N,) reasons other than 0."""
    import tensorflow as tf

    if counts is None:
        return tf.constant(True)

    @guarded
    def count(reasons):
        numbers = np.bincount(reasons, minlength=len(names)).tolist()
        for name, number in zip(names[1:], numbers[1:], strict=True):
            if number:
                counts[name] = counts.get(name, 0) + number
        return np.True_

    return tf.cond(
        tf.reduce_any(reasons > 0),
        lambda: tf.ensure_shape(tf.numpy_function(count, [reasons], tf.bool), []),
        lambda: tf.constant(True),
    )


def _batches_of(store, columns, shapes, seed, number, pad_id) -> Iterator[dict]:
    lengths = np.stack([store.lengths[key] for key in columns], axis=1)
    assigned = plan.assign_shapes(lengths, shapes)
    if assigned.min() < 0:
        widest = np.max([shape.widths for shape in shapes], axis=0).tolist()
        raise ValueError(
            f"Each row must fit into a shape; the largest widths are {widest} ids. "
            f"Received: {int((assigned < 0).sum())} rows that do not, with up to "
            f"{lengths.max(axis=0).tolist()} ids"
        )
    batches = plan.epoch_plan(assigned, shapes, seed, number)
    for index in range(batches.num_batches):
        shape, rows = batches.batch(index)
        widths = dict(zip(columns, shapes[shape].widths, strict=True))
        if "labels" in store.keys:
            widths["labels"] = widths["target_ids"]
        yield store.gather(rows, widths, pad_id)
