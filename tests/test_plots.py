"""Pictures: what they show, and that nothing lies outside or on top of another."""

import itertools
import math

import numpy as np
import pytest

from keras_seqconv.evaluation import plots
from tests.cases import quick_and_slow


def texts_of(labels):
    return [label.get_text() for label in labels]


def check_labels_inside(figure):
    """All text of the axes lies in the picture, and neighbours do not overlap."""
    figure.draw_without_rendering()
    box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    for axis in itertools.chain(*((axes.xaxis, axes.yaxis) for axes in figure.axes)):
        low, high = sorted(axis.get_view_interval())
        labels = [
            label.get_window_extent()
            # Panels that share an axis have labels on the first one only.
            for place, label in zip(
                axis.get_ticklocs(), axis.get_ticklabels(), strict=False
            )
            if low <= place <= high and label.get_text()
        ]
        for label in labels:
            assert box.x0 - 1 <= label.x0 and label.x1 <= box.x1 + 1
            assert box.y0 - 1 <= label.y0 and label.y1 <= box.y1 + 1
        name = f"interval{axis.axis_name}"
        spans = sorted(tuple(getattr(label, name)) for label in labels if label.width)
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start + 2, (axis.axes.get_title(), axis.axis_name)


def test_confusions():
    pairs = [("AA", "AO", 2), ("T", "", 1), ("", " ", 1), ("e", "\u0301", 1)]
    figure = plots.confusions(pairs)
    (axes,) = figure.axes
    labels = ["AA → AO", "T → –", "– → ␣", "e → ◌\u0301"]
    assert texts_of(axes.get_yticklabels()) == labels
    assert [bar.get_width() for bar in axes.patches] == [2, 1, 1, 1]
    assert all(tick == round(tick) for tick in axes.get_xticks())
    low, high = axes.get_ylim()
    assert low > high  # the first on top
    check_labels_inside(figure)


def test_learning_curves():
    def records(count):
        kept = {"learning_rate": 1e-3, "gradient_norm": 1.0, "tokens_per_second": 10.0}
        return [
            *({"update": n, "nll": 3 + 1 / n, "epoch": 1, **kept}
              for n in range(100, 100 * count, 100)),
            {"update": 100 * count, "val_nll": 4.0, "val_bleu": 12.5},
        ]  # fmt: skip

    figure = plots.learning_curves({"a": records(30), "b $x$": records(20)})
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "nll (nats per token)", "BLEU of validation", "learning rate", "gradient norm",
        "tokens per second",
    ]  # fmt: skip
    lines = figure.axes[0].get_lines()
    assert len(lines) == 4  # training and validation of two runs
    assert lines[0].get_xdata()[0] == 100
    assert lines[0].get_ydata()[0] == pytest.approx(3.01)
    assert lines[1].get_linestyle() == "--" and lines[1].get_ydata() == [4.0]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    (legend,) = figure.legends
    labels = legend.get_texts()
    assert texts_of(labels) == ["a", "b $x$", "training", "validation"]
    check_labels_inside(figure)
    middles = [sum(label.get_window_extent().intervaly) / 2 for label in labels]
    assert np.ptp(middles) < 5  # one row

    # Resumed, not finite, of other keys.
    records = [
        {"update": 200, "loss": 2.0}, {"update": 100, "loss": 3.0},
        {"update": 200, "loss": 1.0}, {"update": 300, "loss": math.nan},
        {"loss": 1.0}, {"event": "start"}, {"update": 400, "loss": None},
    ]  # fmt: skip
    figure = plots.learning_curves({"run": records})
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss (nats per token)"]
    line = figure.axes[0].get_lines()[0]
    assert line.get_xdata().tolist() == [100, 200]
    assert line.get_ydata().tolist() == [3, 1]
    assert not figure.legends
    many = [{"update": n, "loss": 1.0} for n in range(10_000)]
    line = plots.learning_curves({"run": many}).axes[0].get_lines()[0]
    assert len(line.get_xdata()) == 2000


@pytest.mark.parametrize("size", quick_and_slow([(1, 1), (14, 23)], [((60, 90),)]))
def test_attention(size):
    rows, columns = size
    weights = np.random.default_rng(0).dirichlet(np.ones(columns), rows)
    source = [f"Donau@@{n}$" for n in range(columns)]
    target = [f"слово{n}" for n in range(rows)]
    figure = plots.attention(weights, source, target)
    axes = figure.axes[0]
    assert texts_of(axes.get_xticklabels()) == source
    assert texts_of(axes.get_yticklabels()) == target
    assert np.allclose(axes.images[0].get_array(), weights)
    check_labels_inside(figure)
    # Long and invisible tokens.
    figure = plots.attention([[1.0, 0.0]], ["x" * 40, "a\nb\t"], ["\u2028"])
    assert texts_of(figure.axes[0].get_xticklabels()) == ["x" * 23 + "…", "a b "]
    assert texts_of(figure.axes[0].get_yticklabels()) == [" "]


def test_kernels_and_bleu_by_length():
    values = np.random.default_rng(0).dirichlet(np.ones(4), (3, 2))  # (T, H, K)
    figure = plots.dynamic_conv_kernels(values, ["a", "b", "c"], 2, "encoder 1")
    for head, axes in enumerate(figure.axes[:2]):
        assert np.allclose(axes.images[0].get_array(), values[:, head])
        assert texts_of(axes.get_xticklabels()) == ["-2", "-1", "0", "+1"]
    assert texts_of(figure.axes[0].get_yticklabels()) == ["a", "b", "c"]
    axes = plots.light_conv_kernels([("encoder 1", values[0], 1)]).axes[0]
    assert np.allclose(axes.images[0].get_array(), values[0])
    assert axes.get_title() == "encoder 1"
    assert texts_of(axes.get_xticklabels()) == ["-1", "0", "+1", "+2"]
    bleu = {"a": [10.0, math.nan], "b": [20.0, 30.0]}
    (axes,) = plots.bleu_by_length(bleu, ["1-10", "> 10"], [5, 1200]).axes
    assert [bar.get_height() for bar in axes.patches] == [10, 0, 20, 30]
    assert texts_of(axes.get_xticklabels()) == ["1-10\n(5)", "> 10\n(1,200)"]
