"""Shapes that fit, epochs that hold every row once."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv.data import plan
from keras_seqconv.data.plan import Shape
from tests.conftest import SHARED

# Of the plan of 8 rows in one shape of 4, seed 1, epoch 0.
PINNED = [3, 5, 2, 7, 0, 6, 1, 4]
STARTS = [0, 4]


@st.composite
def corpora(draw):
    """(lengths, arguments of `choose_shapes`)."""
    rows = draw(st.integers(1, 300))
    longest = draw(st.integers(1, 60))
    columns = draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = rng.integers(1, longest + 1, (rows, columns))
    if draw(st.booleans()):
        lengths[:, -1] = np.minimum(60, lengths[:, 0] + rng.integers(0, 3, rows))
    return lengths, {
        "tokens_per_batch": draw(st.integers(60, 1500)),
        "max_shapes": draw(st.integers(1, 12)),
        "num_replicas": draw(st.sampled_from([1, 2, 3, 8])),
        "width_multiple": draw(st.sampled_from([1, 4, 8])),
    }


def plan_of(lengths, arguments, seed=1, epoch=0):
    shapes = plan.choose_shapes(lengths, **arguments)
    assigned = plan.assign_shapes(lengths, shapes)
    return shapes, assigned, plan.epoch_plan(assigned, shapes, seed, epoch)


# A table whose search tries widths below the multiple of 8.
NARROW = np.array(
    [[52, 54], [53, 54], [52, 54], [39, 41], [24, 25], [11, 13], [30, 32], [46, 47],
     [46, 47], [49, 50], [17, 17], [15, 17], [48, 49], [43, 43], [11, 11], [5, 5],
     [15, 15], [23, 24], [9, 11], [31, 32], [38, 38], [27, 28], [25, 27], [27, 29],
     [1, 2], [51, 52], [53, 53]]
)  # fmt: skip
NARROW_ARGUMENTS = {
    "tokens_per_batch": 224,
    "max_shapes": 6,
    "num_replicas": 2,
    "width_multiple": 8,
}


@settings(deadline=None, max_examples=60)
@given(corpora(), st.integers(0, 3))
@example((NARROW, NARROW_ARGUMENTS), 0)
def test_epoch_holds_every_row_once_in_few_bounded_shapes(corpus, epoch):
    lengths, arguments = corpus
    tokens, replicas = arguments["tokens_per_batch"], arguments["num_replicas"]
    shapes, assigned, found = plan_of(*corpus, epoch=epoch)
    assert len(shapes) <= arguments["max_shapes"]
    for shape in shapes:
        rows, rest = divmod(shape.rows, replicas)
        assert rest == 0 and 1 <= rows * max(shape.widths) <= tokens
        assert rows % 8 == 0 or 8 * max(shape.widths) > tokens
        for width in shape.widths:
            assert width % arguments["width_multiple"] == 0 or width == tokens
    seen, cells = [], 0
    for index in range(found.num_batches):
        shape, rows = found.batch(index)
        assert len(rows) == shapes[shape].rows
        real = rows[rows >= 0]
        assert len(real) and (rows[len(real) :] == -1).all()
        assert (lengths[real] <= shapes[shape].widths).all()
        seen.extend(real.tolist())
        cells += shapes[shape].cells
    assert sorted(seen) == list(range(len(lengths)))
    assert plan.padding_share(lengths, assigned, shapes) == 1 - lengths.sum() / cells


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(51, 62), min_size=1, max_size=60), st.integers(1, 3))
def test_widths_of_one_length_are_the_best_there_are(lengths, most):
    # One row a batch: nothing but widths matters, and all choices can be tried.
    def cells(widths):
        return sum(min(w for w in widths if w >= length) for length in lengths)

    different = sorted(set(lengths))
    tables = itertools.combinations(different, min(most, len(different)))
    best = min(cells(table) for table in tables if max(lengths) in table)
    shapes = plan.choose_shapes(np.array(lengths), 100, max_shapes=most)
    assert {shape.rows for shape in shapes} == {1}
    assert cells([shape.widths[0] for shape in shapes]) == best


def test_source_and_target_widths_differ_where_that_saves_padding():
    kinds = [(5, 20), (20, 5), (20, 20), (5, 5)]
    lengths = np.repeat(kinds, 64, axis=0)
    shapes = plan.choose_shapes(lengths, 320, max_shapes=4)
    assert {shape.widths for shape in shapes} == set(kinds)
    assigned = plan.assign_shapes(lengths, shapes)
    assert plan.padding_share(lengths, assigned, shapes) == 0


def test_few_rows_make_small_batches():
    lengths = np.array([[2, 3]] * 8 + [[10, 12]] * 9)
    shapes = plan.choose_shapes(lengths, 1000, max_shapes=2)
    assert shapes == (Shape(24, (10, 12)),)  # 17 rows, where tokens allow 80
    shapes = plan.choose_shapes(lengths, 100, max_shapes=2, num_replicas=2)
    assert shapes == (Shape(16, (2, 3)), Shape(16, (10, 12)))


def test_what_a_batch_has_left_goes_to_rows_of_smaller_shapes():
    shapes = (Shape(8, (4, 4)), Shape(4, (8, 8)))
    assigned = np.array([0] * 10 + [1] * 2)
    found = plan.epoch_plan(assigned, shapes, seed=3)
    assert plan.count_batches(assigned, shapes).tolist() == [1, 1]
    assert found.num_batches == 2 and (found.rows >= 0).all()


def test_rows_do_not_go_where_they_do_not_fit():
    shapes = (Shape(4, (2, 9)), Shape(4, (9, 2)))
    assigned = np.array([0, 0, 0, 1, 1, 1])
    found = plan.epoch_plan(assigned, shapes, seed=3)
    for index in range(2):
        shape, rows = found.batch(index)
        assert (assigned[rows[:3]] == shape).all() and rows[3] == -1


def test_order_is_that_of_seed_and_epoch_for_all_time():
    # Written down: another process, machine or version must give the same.
    def rows(seed, epoch):
        return plan.epoch_plan(np.zeros(8, int), [Shape(4, (1,))], seed, epoch)

    assert rows(1, 0).rows.tolist() == PINNED
    assert rows(1, 0).starts.tolist() == STARTS
    others = [rows(1, 1).rows, rows(2, 0).rows, rows(0, 1).rows]
    assert len({tuple(other) for other in [*others, PINNED]}) == 4


def test_batches_are_composed_anew_every_epoch():
    assigned = np.zeros(64, int)
    plans = [plan.epoch_plan(assigned, [Shape(8, (1,))], 1, epoch) for epoch in (0, 1)]
    batches = [{frozenset(p.batch(i)[1]) for i in range(8)} for p in plans]
    assert not batches[0] & batches[1]


def test_without_seed_rows_stay_in_order():
    shapes = (Shape(2, (1,)), Shape(2, (2,)))
    found = plan.epoch_plan(np.array([1, 0, 1, 0, 0]), shapes, None)
    assert [found.batch(i) for i in range(3)] == [
        (0, pytest.approx([1, 3])),
        (0, pytest.approx([4, -1])),
        (1, pytest.approx([0, 2])),
    ]


def test_geometric_shapes_grow_to_the_longest_row():
    shapes = plan.geometric_shapes(100, 1000, max_shapes=4, num_replicas=2)
    widths = [shape.widths[0] for shape in shapes]
    assert widths[-1] == 100 and len(widths) == 4
    ratios = np.divide(widths[1:], widths[:-1])
    assert ratios.max() / ratios.min() < 1.15
    assert [shape.rows for shape in shapes] == [
        2 * (1000 // w // 8 * 8 or 1000 // w) for w in widths
    ]
    assert widths[0] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(tokens_per_batch=0), "`tokens_per_batch`"),
        (dict(max_shapes=True), "`max_shapes`"),
        (dict(num_replicas=0), "`num_replicas`"),
        (dict(width_multiple=1.0), "`width_multiple`"),
        (dict(tokens_per_batch=7), "2 longer rows of 3, the longest of 9"),
        (dict(lengths=np.zeros((0, 2), int)), "at least one row"),
        (dict(lengths=np.array([[1, 0]])), "at least 1"),
        (dict(lengths=np.array([[1.0, 2.0]])), "integers"),
        (dict(lengths=np.ones((4, 3), int)), r"\(4, 3\)"),
    ],
)
def test_wrong_arguments(arguments, message):
    good = dict(lengths=np.array([[3, 9], [8, 2], [1, 1]]), tokens_per_batch=64)
    with pytest.raises(ValueError, match=message):
        plan.choose_shapes(**{**good, **arguments})


def test_plan_needs_a_shape_for_each_row():
    shapes = (Shape(2, (4,)),)
    assigned = plan.assign_shapes(np.array([3, 5]), shapes)
    assert assigned.tolist() == [0, -1]
    with pytest.raises(ValueError, match="a shape for each"):
        plan.epoch_plan(assigned, shapes, 1)


@pytest.mark.parametrize("tokens_per_batch", [4096, 8192])
def test_multi30k_is_padded_by_a_tenth_at_most(tokens_per_batch):
    folder = SHARED / "data" / "multi30k"
    if not folder.is_dir():
        pytest.skip(f"Multi30k is missing: {folder}")
    texts = [folder / f"train.lc.norm.tok.{language}" for language in ("de", "en")]
    lengths = [
        [len(line.split()) + 1 for line in text.read_text("utf-8").splitlines()]
        for text in texts
    ]
    lengths = np.transpose(lengths)
    shapes, assigned, _ = plan_of(lengths, {"tokens_per_batch": tokens_per_batch})
    assert len(shapes) <= 16
    assert plan.padding_share(lengths, assigned, shapes) < 0.1
