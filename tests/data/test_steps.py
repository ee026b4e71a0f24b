"""Each step on small examples, one by one and in batches."""

import re
from collections import Counter

import numpy as np
import pytest

from keras_seqconv.data import plan, steps
from keras_seqconv.data.store import IdStore
from keras_seqconv.data.stream import shifted
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow

WORDS = DictionaryTokenizer(Dictionary([("a", 3), ("b", 2), ("c", 1)]))


class InGraph:
    """a, b, c to 4, 5, 6 within a graph."""

    in_graph = True

    def tokenize_tensor(self, texts):
        words = tf.strings.split(texts)
        ids = tf.strings.unicode_decode(words.values, "UTF-8").values - 93
        ends = tf.fill([tf.shape(texts)[0], 1], 2)
        return tf.concat([words.with_values(ids), ends], axis=1)


def texts(*pairs):
    source, target = zip(*pairs, strict=True)
    return tf.data.Dataset.from_tensor_slices(
        {"source": list(source), "target": list(target)}
    )


def rows(*pairs):
    """A dataset of single rows of ids."""
    return steps.from_store(
        IdStore.from_rows({"source_ids": s, "target_ids": t} for s, t in pairs)
    )


def pairs_of(dataset):
    return [
        tuple(np.asarray(value).tolist() for value in row.values())
        for row in dataset.as_numpy_iterator()
    ]


@pytest.mark.parametrize("tokenizer", [WORDS, InGraph()], ids=["python", "graph"])
@pytest.mark.parametrize("batched", [False, True])
def test_tokenize(tokenizer, batched):
    dataset = texts(("a b", "c"), ("c", "b b a"), ("", "a"))
    if batched:
        dataset = dataset.batch(2).apply(steps.tokenize(tokenizer, tokenizer)).unbatch()
        dataset = dataset.map(lambda row: {k: tf.identity(row[k]) for k in row})
    else:
        dataset = dataset.apply(steps.tokenize(tokenizer, tokenizer))
    assert {spec.dtype for spec in dataset.element_spec.values()} == {tf.int32}
    assert {spec.shape.rank for spec in dataset.element_spec.values()} == {1}
    expected = [([4, 5, 2], [6, 2]), ([6, 2], [5, 5, 4, 2]), ([2], [4, 2])]
    assert pairs_of(dataset) == expected


def test_tokenize_targets_alone():
    dataset = tf.data.Dataset.from_tensor_slices({"target": ["a", "b c"]})
    dataset = dataset.apply(steps.tokenize(None, WORDS))
    assert pairs_of(dataset) == [([4, 2],), ([5, 6, 2],)]


def filtered(dataset, **options):
    counts = Counter()
    kept = dataset.apply(steps.filter_by_length(**options, counts=counts))
    return pairs_of(kept), dict(counts)


def test_filter_by_length_of_rows_and_texts():
    lengths = [(0, 2), (1, 1), (2, 4), (2, 5), (5, 2), (6, 6), (7, 0), (3, 3)]
    of_ids = rows(*(([9] * s + [2], [9] * t + [2]) for s, t in lengths))
    of_words = texts(*((" x" * s, "y  " * t) for s, t in lengths))
    for dataset in (of_ids, of_words):
        # 1 to 5 on both sides, at most twice as long; the first reason counts.
        kept, counts = filtered(dataset, max_length=5, max_ratio=2)
        numbers = [pairs_of(dataset).index(pair) for pair in kept]
        assert [lengths[i] for i in numbers] == [(1, 1), (2, 4), (3, 3)]
        assert counts == {"too_short": 2, "too_long": 1, "ratio": 2}
        kept, counts = filtered(dataset, min_length=0)
        assert len(kept) == len(lengths) and counts == {}


def test_filter_keeps_batches_batches_and_may_empty_them():
    dataset = texts(("a", "a"), ("b", ""), ("", ""), ("", "c"), ("c", "c")).batch(2)
    kept = list(dataset.apply(steps.filter_by_length()).as_numpy_iterator())
    assert [batch["source"].tolist() for batch in kept] == [[b"a"], [b"c"]]


def test_truncated_sources_keep_their_end():
    counts = Counter()
    dataset = rows(([5, 6, 7, 8, 2], [5, 2]), ([5, 6, 2], [5, 6, 7, 8, 2]), ([2], [2]))
    dataset = dataset.apply(steps.truncate_source(3, counts))
    assert pairs_of(dataset) == [
        ([5, 6, 2], [5, 2]),
        ([5, 6, 2], [5, 6, 7, 8, 2]),
        ([2], [2]),
    ]
    assert counts == {"truncated": 1}


def test_shuffle_draws_another_order_each_pass_and_the_same_each_time():
    def passes():
        dataset = texts(*((str(i), str(i)) for i in range(50)))
        shuffled = dataset.apply(steps.shuffle(seed=3, window=100)).repeat(2)
        found = [int(source) for source, _ in pairs_of(shuffled)]
        return found[:50], found[50:]

    first, second = passes()
    assert sorted(first) == sorted(second) == list(range(50)) and first != second
    assert passes() == (first, second)


def test_store_of_a_whole_chain(tmp_path):
    counts = Counter()
    dataset = (
        texts(("a b", "c"), ("c", ""), ("c", "a b c"), ("b", "b"))
        .apply(steps.filter_by_length(counts=counts))
        .apply(steps.tokenize(WORDS, WORDS))
        .apply(steps.filter_by_length(max_ratio=2, counts=counts))
    )
    store = steps.write_store(dataset, tmp_path / "ids", {"corpus": "x"}, counts)
    assert pairs_of(steps.from_store(store)) == [([4, 5, 2], [6, 2]), ([5, 2], [5, 2])]
    assert store.counts == {"too_short": 1, "ratio": 1}
    (batch,) = steps.from_store(store, rows=9)
    assert batch["source_ids"].to_list() == [[4, 5, 2], [5, 2]]


def test_store_of_vectors_of_one_size(tmp_path):
    ids = tf.data.Dataset.from_tensor_slices({"target_ids": [[4, 2], [5, 2], [6, 2]]})
    store = steps.write_store(ids, tmp_path / "ids")
    assert pairs_of(steps.from_store(store)) == [([4, 2],), ([5, 2],), ([6, 2],)]


def test_nothing_left_is_an_error(tmp_path):
    counts = Counter()
    dataset = rows(([2], [2])).apply(steps.filter_by_length(counts=counts))
    with pytest.raises(ValueError, match=r"at least one row.*'too_short': 1"):
        steps.write_store(dataset, tmp_path / "ids", counts=counts)
    assert not (tmp_path / "ids").exists()


def test_cache_is_written_once_for_each_fingerprint(tmp_path):
    read = Counter()

    def source(length):
        def lines():
            read[length] += 1
            yield from [{"target_ids": [4] * length + [2]}] * 3

        signature = {"target_ids": tf.TensorSpec([None], tf.int32)}
        return tf.data.Dataset.from_generator(lines, output_signature=signature)

    for length in (1, 1, 5):
        cached = source(length).apply(steps.cache(tmp_path / "ids", {"length": length}))
        for _ in range(2):
            assert pairs_of(cached) == [([4] * length + [2],)] * 3
    assert read == {1: 1, 5: 1}


def make_rows(number, seed=1):
    rng = np.random.default_rng(seed)
    return [
        (
            [10 + i, *[5] * rng.integers(0, 20), 2],
            [10 + i, *[6] * rng.integers(0, 20), 2],
        )
        for i in range(number)
    ]


@pytest.mark.parametrize("window", [32, 1000])
def test_batches_of_few_shapes_hold_every_row_once(window):
    pairs = make_rows(300)
    shapes = plan.geometric_shapes(24, 200, max_shapes=4)
    options = dict(max_length=24, max_shapes=4, window=window)
    batches = rows(*pairs).apply(steps.batch_by_tokens(200, **options))
    allowed = {(s.rows, s.widths[0], s.rows, s.widths[1]) for s in shapes}
    found, filled = [], 0
    for batch in batches.as_numpy_iterator():
        source, target = batch["source_ids"], batch["target_ids"]
        assert (*source.shape, *target.shape) in allowed
        for one, other in zip(source.tolist(), target.tolist(), strict=True):
            filled += one[0] == 1
            if one[0] != 1:
                found.append(([i for i in one if i != 1], [i for i in other if i != 1]))
    assert sorted(found) == sorted(pairs)
    # Some of one batch in a window, no more.
    assert filled < (300 // window + 1) * max(shape.rows for shape in shapes)
    again = rows(*pairs).apply(steps.batch_by_tokens(200, **options))
    assert pairs_of(again) == pairs_of(batches)


def test_batches_of_given_shapes_with_labels():
    lines = [{"target_ids": [2, 5], "labels": [5, 2]}] * 3
    shapes = [plan.Shape(2, (3,))]
    batches = steps.from_store(IdStore.from_rows(lines)).apply(
        steps.batch_by_tokens(6, shapes=shapes)
    )
    assert pairs_of(batches) == [
        ([[2, 5, 1], [2, 5, 1]], [[5, 2, 1], [5, 2, 1]]),
        ([[2, 5, 1], [1, 1, 1]], [[5, 2, 1], [1, 1, 1]]),
    ]
    inputs, labels = next(iter(batches.apply(steps.to_inputs())))
    assert inputs["target_ids"].numpy().tolist() == [[2, 5, 1], [2, 5, 1]]
    assert labels.numpy().tolist() == [[5, 2, 1], [5, 2, 1]]


def test_rows_longer_than_every_shape_are_an_error():
    batches = rows(([5] * 9 + [2], [2])).apply(
        steps.batch_by_tokens(64, max_length=8, max_shapes=1)
    )
    with pytest.raises(
        tf.errors.OpError, match="1 rows that do not, with up to .10, 1"
    ):
        next(iter(batches))


def test_inputs_are_those_of_the_stream():
    ids = np.array([[7, 8, 2, 1], [7, 2, 1, 1], [1, 1, 1, 1]], "int32")
    batches = tf.data.Dataset.from_tensors({"source_ids": ids, "target_ids": ids})
    ((inputs, labels),) = batches.apply(steps.to_inputs()).apply(steps.prefetch(1))
    np.testing.assert_array_equal(labels, ids)
    np.testing.assert_array_equal(inputs["source_ids"], ids)
    np.testing.assert_array_equal(inputs["target_ids"], shifted(ids))


def test_example_of_the_module_runs():
    (code,) = re.findall(r"```python\n(.*?)```", steps.__doc__, re.DOTALL)
    exec(compile(code, "steps", "exec"), {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: steps.filter_by_length(min_length=-1), "`min_length`"),
        (lambda: steps.filter_by_length(min_length=3, max_length=2), "`max_length`"),
        (lambda: steps.filter_by_length(max_ratio=0.5), "`max_ratio`"),
        (lambda: steps.truncate_source(1), "`max_length`"),
        (lambda: steps.shuffle(seed=-1, window=1), "`seed`"),
        (lambda: steps.shuffle(seed=1, window=0), "`window`"),
        (lambda: steps.batch_by_tokens(64), "One of `shapes` and `max_length`"),
        (lambda: steps.prefetch(0), "`batches`"),
        (lambda: rows(([2], [2])).apply(steps.tokenize(WORDS, WORDS)), "hold texts"),
        (lambda: texts(("a", "b")).apply(steps.truncate_source(9)), "hold rows"),
        (
            lambda: texts(("a", "b")).apply(steps.batch_by_tokens(9, max_length=9)),
            "hold rows",
        ),
        (
            lambda: rows(([2], [2])).apply(steps.batch_by_tokens(9, max_length=10)),
            "at most `tokens_per_batch`",
        ),
        (
            lambda: tf.data.Dataset.from_tensors({"target": "a"}).apply(
                steps.filter_by_length(max_ratio=2)
            ),
            "without sources",
        ),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
