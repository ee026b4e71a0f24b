"""Pictures: what they show, and that nothing lies outside or on top of another."""

import math

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra plot (matplotlib)")

from keras_seqconv import plots


def records(count=30):
    found = []
    for update in range(100, 100 * count, 100):
        found.append(
            {"update": update, "nll": 3 + 1 / update, "learning_rate": 1e-3,
             "gradient_norm": 1.0, "epoch": 1, "tokens_per_second": 10.0}
        )  # fmt: skip
    found.append({"update": 100 * count, "val_nll": 4.0, "val_bleu": 12.5})
    return found


def drawn(figure):
    figure.draw_without_rendering()
    return figure


def check_labels_inside(figure):
    """All text of the axes lies in the picture, and neighbours do not overlap."""
    figure = drawn(figure)
    box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    for axes in figure.axes:
        for axis, along in ((axes.xaxis, "x"), (axes.yaxis, "y")):
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
            spans = sorted(
                (label.x0, label.x1) if along == "x" else (label.y0, label.y1)
                for label in labels
                if label.width
            )
            for one, other in zip(spans, spans[1:], strict=False):
                assert one[1] <= other[0] + 2, (axes.get_title(), along)


# --- Learning curves ---


def test_learning_curves():
    figure = plots.learning_curves({"a": records(), "b $x$": records(20)})
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == [
        "nll (nats per token)", "BLEU of validation", "learning rate", "gradient norm",
        "tokens per second",
    ]  # fmt: skip
    lines = figure.axes[0].get_lines()
    assert len(lines) == 4  # training and validation of two runs
    assert lines[0].get_xdata()[0] == 100
    assert lines[0].get_ydata()[0] == pytest.approx(3.01)
    assert lines[1].get_linestyle() == "--" and lines[1].get_ydata() == [4.0]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert len(figure.legends) == 1
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["a", "b $x$", "training", "validation"]
    check_labels_inside(figure)


def test_odd_records():
    found = [
        {"update": 200, "loss": 2.0}, {"update": 100, "loss": 3.0},
        {"update": 200, "loss": 1.0},  # resumed
        {"update": 300, "loss": math.nan}, {"loss": 1.0}, {"event": "start"},
        {"update": 400, "loss": None},
    ]  # fmt: skip
    figure = plots.learning_curves({"run": found})
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss (nats per token)"]
    line = figure.axes[0].get_lines()[0]
    assert line.get_xdata().tolist() == [100, 200]
    assert line.get_ydata().tolist() == [3, 1]
    assert not figure.legends
    many = [{"update": n, "loss": 1.0} for n in range(10_000)]
    line = plots.learning_curves({"run": many}).axes[0].get_lines()[0]
    assert len(line.get_xdata()) == 2000
    with pytest.raises(ValueError, match="none has"):
        plots.learning_curves({"run": [{"update": 1}]})


# --- Attention and kernels ---


@pytest.mark.parametrize("size", ((1, 1), (14, 23), (60, 90)))
def test_attention(size):
    rows, columns = size
    weights = np.random.default_rng(0).dirichlet(np.ones(columns), rows)
    source = [f"Donau@@{n}$" for n in range(columns)]
    target = [f"слово{n}" for n in range(rows)]
    figure = plots.attention(weights, source, target)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == source
    assert [label.get_text() for label in axes.get_yticklabels()] == target
    assert np.allclose(axes.images[0].get_array(), weights)
    check_labels_inside(figure)


def test_long_and_invisible_tokens():
    figure = plots.attention([[1.0, 0.0]], ["x" * 40, "a\nb\t"], ["\u2028"])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["x" * 23 + "…", "a b "]
    assert figure.axes[0].get_yticklabels()[0].get_text() == " "


def test_light_conv_kernels():
    draw = np.random.default_rng(0)
    layers = [
        (f"encoder {n}", draw.dirichlet(np.ones(taps), 4), (taps - 1) // 2)
        for n, taps in enumerate((3, 7, 15, 31, 31), 1)
    ]
    layers.append(("decoder 1", draw.dirichlet(np.ones(31), 16), 30))
    figure = plots.light_conv_kernels(layers)
    assert [axes.get_title() for axes in figure.axes[:6]] == [
        name for name, *_ in layers
    ]
    assert np.allclose(figure.axes[3].images[0].get_array(), layers[3][1])
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["-1", "0", "+1"]
    ticks = [label.get_text() for label in figure.axes[5].get_xticklabels()]
    assert ticks[0] == "-30" and ticks[-1] == "0"
    norms = {id(axes.images[0].norm) for axes in figure.axes[:6]}
    assert len(norms) == 1 and len(figure.axes) == 7  # one map, one bar
    check_labels_inside(figure)
    figure = plots.light_conv_kernels([("layer 1", draw.normal(size=(2, 3)), 2)])
    norm = figure.axes[0].images[0].norm
    assert norm.vmin == -norm.vmax
    with pytest.raises(ValueError, match="Received: none"):
        plots.light_conv_kernels([])


@pytest.mark.parametrize("shape", ((1, 1, 1), (7, 2, 3), (40, 8, 31)))
def test_dynamic_conv_kernels(shape):
    values = np.random.default_rng(0).dirichlet(np.ones(shape[2]), shape[:2])
    tokens = [f"token{n}" for n in range(shape[0])]
    figure = plots.dynamic_conv_kernels(values, tokens, shape[2] - 1, "decoder 1")
    for head in range(shape[1]):
        axes = figure.axes[head]
        assert axes.get_title() == f"head {head + 1}"
        assert np.allclose(axes.images[0].get_array(), values[:, head])
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == tokens
    check_labels_inside(figure)


# --- BLEU by length ---


def test_bleu_by_length():
    values = {"one": [30.0, math.nan, 10.0], "two": [31.0, math.nan, 9.0]}
    groups, counts = ["1–10", "11–20", "> 20"], [1200, 0, 3]
    figure = plots.bleu_by_length(values, groups, counts)
    axes = figure.axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [30, 0, 10, 31, 0, 9]
    places = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert np.allclose(np.mean([places[:3], places[3:]], axis=0), [0, 1, 2])
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1–10\n(1,200)", "11–20\n(0)", "> 20\n(3)"]
    assert len(figure.legends) == 1
    check_labels_inside(figure)
    assert not plots.bleu_by_length({"one": [1, 2, 3]}, groups, counts).legends


# --- Files ---


@pytest.mark.parametrize(
    "suffix, start", ((".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF"))
)
def test_files(tmp_path, suffix, start):
    path = tmp_path / f"picture{suffix}"
    plots.save(plots.attention([[1.0]], ["5 $ und 3 $ <&>"], ["Ελλάδα"]), path)
    assert path.read_bytes().startswith(start)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_global_state():
    import matplotlib.pyplot

    plots.attention([[1.0]], ["a"], ["b"])
    assert not matplotlib.pyplot.get_fignums()


def test_characters_without_a_font(tmp_path):
    figure = plots.attention([[1.0]], ["\U00012000"], ["b"])  # cuneiform
    with pytest.warns(UserWarning, match="1 characters in .* are boxes"):
        plots.save(figure, tmp_path / "a.png")


@pytest.mark.parametrize(
    "call, words",
    (
        (lambda: plots.attention([[1.0]], ["a", "b"], ["c"]), "shape (1, 1), 1 and 2"),
        (
            lambda: plots.dynamic_conv_kernels([[1.0]], ["a"], 0),
            "shape (1, 1), 1 tokens",
        ),
        (lambda: plots.bleu_by_length({"a": [1]}, ["x", "y"], [1, 2]), "1 for a, 2 gr"),
        (
            lambda: plots.save(None, "a.gif"),
            "`path` must end in one of .png, .svg, .pdf",
        ),
    ),
)
def test_refused(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="The folder .*none does not exist"):
        plots.save(None, tmp_path / "none" / "a.png")
