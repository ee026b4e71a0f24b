"""Plots: learning curves, attention, kernels, BLEU by length, confusions.

Functions take arrays and return a `matplotlib.figure.Figure`; `save_figure` writes it.
pyplot and its global state are not used. Needs the extra `plot` (matplotlib).

Colours are those of Okabe and Ito, and maps of rising lightness, which people with a
colour vision deficiency can distinguish. The font of tokens is DejaVu Sans (Latin,
Greek, Cyrillic, Arabic and more), or for other characters, such as Chinese and
Japanese, an installed font of `FALLBACK_FONTS`; without such a font they are boxes, and
matplotlib warns.

Letters: L target tokens, S source tokens, T time, H heads, K taps.
"""

import functools
import io
import itertools
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_seqconv.support import require
from keras_seqconv.support.arguments import is_number
from keras_seqconv.support.files import atomic_file

FORMATS = (".png", ".svg", ".pdf")
FALLBACK_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei",
    "IPAexGothic", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS",
    "Hiragino Sans", "Microsoft YaHei", "Yu Gothic",
)  # fmt: skip
# Okabe and Ito 2008, Color Universal Design.
COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
# Label, keys of the records; a loss is drawn where there is no nll.
_CURVES = {
    "nll (nats per token)": ("nll", "val_nll"),
    "loss (nats per token)": ("loss", "val_loss"),
    "BLEU of validation": ("val_bleu",),
    "accuracy": ("accuracy", "val_accuracy"),
    "learning rate": ("learning_rate",),
    "gradient norm": ("gradient_norm",),
    "tokens per second": ("tokens_per_second",),
}
_VALIDATION = {"linestyle": "--", "marker": "o", "markersize": 3}
_MOST_POINTS = 2000


def save_figure(figure, path: str | os.PathLike) -> None:
    """Writes a figure to a .png, .svg or .pdf file, completely or not at all.

    Raises:
        ValueError: unknown file ending.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"`path` must end in one of {', '.join(FORMATS)}. Received: {path}"
        )
    with atomic_file(path) as part:
        kind = path.suffix[1:].lower()
        figure.savefig(part, format=kind, dpi=150, bbox_inches="tight")


def learning_curves(runs: Mapping[str, Sequence[Mapping]]):
    """Plots learning curves of one or several runs.

    Args:
        runs: name -> log records: dictionaries with `update` and any of `nll` (else
            `loss`), `accuracy`, `learning_rate`, `gradient_norm`, `tokens_per_second`,
            `val_nll` (else `val_loss`), `val_accuracy`, `val_bleu`. Other keys, and
            values that are no numbers, are ignored.

    Returns:
        A figure with a panel for each quantity that some run has: training as lines,
        validation dashed with points.

    Raises:
        ValueError: no record has any of these keys.
    """
    drawn, validated = {}, set()
    for label, keys in _CURVES.items():
        curves = [
            (color, key, points)
            for records, color in zip(runs.values(), itertools.cycle(COLORS))
            for key in keys
            if len(points := _points(records, key))
        ]
        if curves and not (label.startswith("loss") and drawn):
            drawn[label] = curves
    if not drawn:
        raise ValueError("`runs` must hold records with something to draw; none has.")
    figure, panels = _panels(len(drawn), 2, 5.0, 2.9, 0.0, 0.4)
    for axes, (label, curves) in zip(panels, drawn.items(), strict=True):
        axes.set(xlabel="update", ylabel=label)
        axes.grid(alpha=0.3)
        axes.locator_params(axis="x", nbins=6)
        for color, key, points in curves:
            validated.add(key.startswith("val_"))
            style = _VALIDATION if key.startswith("val_") else {}
            axes.plot(*points.T, color=color, linewidth=1.3, **style)
    # One legend below all panels: runs by colour, and what is dashed.
    entries = []
    if len(runs) > 1:
        entries += [(name, c, {}) for name, c in zip(runs, itertools.cycle(COLORS))]
    if len(validated) == 2:
        entries += [("training", "0.35", {}), ("validation", "0.35", _VALIDATION)]
    if entries:
        line = require("matplotlib.lines", "plot").Line2D
        handles = [
            line([], [], label=_short(label, 40), color=color, **style)
            for label, color, style in entries
        ]
        place = {"loc": "outside lower center", "ncols": min(4, len(entries))}
        _without_formulas(
            figure.legend(frameon=False, handles=handles, **place).get_texts()
        )
    return figure


def _points(records, key: str) -> np.ndarray:
    """(N, 2): updates and values."""
    points = [
        (record["update"], record[key])
        for record in records
        if is_number(record.get("update")) and is_number(record.get(key))
    ]
    # A run that was resumed repeats updates; the later record counts.
    points = np.array(sorted(dict(points).items()), "float64").reshape(-1, 2)
    return points[:: max(1, math.ceil(len(points) / _MOST_POINTS))]


def attention(weights, source_tokens: Sequence[str], target_tokens: Sequence[str]):
    """Plots the attention of each target token to the source.

    Args:
        weights: (L, S), rows of target tokens.
        source_tokens: S tokens, including the end token.
        target_tokens: L tokens.

    Raises:
        ValueError: numbers of tokens differ from rows and columns.
    """
    weights = np.asarray(weights, "float32")
    rows, columns = len(target_tokens), len(source_tokens)
    if weights.shape != (rows, columns):
        raise ValueError(
            "`weights` must have a row for each target token and a column for each "
            f"source token. Received: shape {weights.shape}, {rows} and {columns} "
            "tokens"
        )
    figure = _figure(max(3.2, 0.26 * columns + 2.2), max(2.6, 0.26 * rows + 1.6))
    axes = figure.subplots()
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    _token_labels(axes.xaxis, source_tokens, rotation=90)
    _token_labels(axes.yaxis, target_tokens)
    axes.xaxis.tick_top()
    # Thin lines between the cells.
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.04, pad=0.02)
    bar.set_label("attention")
    return figure


def light_conv_kernels(kernels: Sequence[tuple]):
    """Plots the kernels of LightConv layers: a panel for each, heads by taps.

    Args:
        kernels: (name, values (H, K), P) of each layer, as
            `keras_seqconv.inspection.light_conv_kernels` returns them; tap j reads the
            position j - P after its own.

    Raises:
        ValueError: no kernels are given.
    """
    if not kernels:
        raise ValueError("`kernels` must hold a layer at least. Received: none")
    heads = max(np.shape(values)[0] for _, values, _ in kernels)
    figure, panels = _panels(len(kernels), 4, 3.0, 1.2 + 0.14 * heads, 0.8, 0.0)
    _kernel_images(figure, panels, [(values, left) for _, values, left in kernels])
    for axes, (name, values, _) in zip(panels, kernels, strict=True):
        axes.set_title(name, fontsize=10)
        places = range(0, len(values), max(1, math.ceil(len(values) / 8)))
        axes.set_yticks(places, [str(place + 1) for place in places], fontsize=8)
    figure.supxlabel("position relative to the output", fontsize=10)
    figure.supylabel("head", fontsize=10)
    return figure


def dynamic_conv_kernels(values, tokens: Sequence[str], left: int, title: str = ""):
    """Plots the kernels of a DynamicConv for a sentence: a panel for each head.

    Args:
        values: (T, H, K), a kernel for each position and head.
        tokens: T tokens.
        left: P: tap j reads the position j - P after its own.
        title: title of the figure, such as the name of the layer.

    Raises:
        ValueError: numbers of tokens and kernels differ.
    """
    values = np.asarray(values, "float32")
    if values.ndim != 3 or len(values) != len(tokens):
        raise ValueError(
            "`values` must have shape (T, H, K) with a kernel for each of T tokens. "
            f"Received: shape {values.shape}, {len(tokens)} tokens"
        )
    length, heads, taps = values.shape
    width, height = min(3.2, 1.0 + 0.1 * taps), max(1.4, 0.19 * length + 0.6)
    figure, panels = _panels(heads, 4, width, height, 2.4, 0.6, sharey=True)
    _kernel_images(figure, panels, [(values[:, head], left) for head in range(heads)])
    for head, axes in enumerate(panels):
        axes.set_title(f"head {head + 1}", fontsize=9)
        if head % 4 == 0:
            _token_labels(axes.yaxis, tokens)
    if title:
        _without_formulas([figure.suptitle(title, fontsize=11)])
    figure.supxlabel("position relative to the token", fontsize=10)
    return figure


def _kernel_images(figure, panels, images) -> None:
    """Draws pairs (values (rows, K), P) with one map of colours, and its bar."""
    colors = require("matplotlib.colors", "plot")
    lowest = min(float(np.min(values)) for values, _ in images)
    largest = max(float(np.max(np.abs(values))) for values, _ in images) or 1.0
    if lowest < 0:  # kernels without softmax
        scale = {"cmap": "PuOr", "norm": colors.Normalize(-largest, largest)}
    else:  # small weights of long kernels can be seen beside 1
        scale = {"cmap": "Blues", "norm": colors.PowerNorm(0.5, 0.0, largest)}
    for axes, (values, left) in zip(panels, images, strict=True):
        image = axes.imshow(values, aspect="auto", interpolation="nearest", **scale)
        taps = np.shape(values)[1]
        step = max(1, math.ceil(taps / 7))
        offsets = [n - left for n in range(taps) if (n - left) % step == 0]
        labels = [f"{offset:+d}" if offset else "0" for offset in offsets]
        axes.set_xticks([left + offset for offset in offsets], labels, fontsize=8)
    bar = figure.colorbar(image, ax=panels, fraction=0.03, pad=0.02)
    bar.set_label("weight")


def bleu_by_length(
    values: Mapping[str, Sequence[float]], names: Sequence[str], counts: Sequence[int]
):
    """Plots BLEU of several systems by the length of the source.

    Args:
        values: system -> BLEU of each group, NaN if it is empty.
        names: names of the groups, as from `keras_seqconv.evaluation.bleu_by_length`.
        counts: sentences in each group.
    """
    figure = _figure(max(5.0, 1.1 * len(names) + 1), 3.6)
    axes = figure.subplots()
    width = 0.8 / max(1, len(values))
    for number, (system, color) in enumerate(zip(values, itertools.cycle(COLORS))):
        places = np.arange(len(names)) + (number - (len(values) - 1) / 2) * width
        heights = np.nan_to_num(np.asarray(values[system], "float64"))
        label = _short(system, 40)
        axes.bar(places, heights, 0.92 * width, color=color, label=label)
    labels = [f"{name}\n({count:,})" for name, count in zip(names, counts, strict=True)]
    axes.set_xticks(range(len(names)), labels)
    axes.set(xlabel="words of the source (sentences)", ylabel="BLEU")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if len(values) > 1:
        place = {"loc": "outside upper center", "ncols": min(3, len(values))}
        _without_formulas(figure.legend(frameon=False, **place).get_texts())
    return figure


def confusions(pairs: Sequence[Sequence]):
    """Plots the counts of substitutions, insertions and deletions.

    Args:
        pairs: symbol of the reference, symbol of the hypothesis, count, as from
            `keras_seqconv.evaluation.confusions`; the first is drawn on top.

    Raises:
        ValueError: `pairs` is empty.
    """
    if not pairs:
        raise ValueError("`pairs` must hold a confusion. Received: none")
    figure = _figure(5.0, 0.22 * len(pairs) + 0.9)
    axes = figure.subplots()
    labels = [f"{_shown(before)} → {_shown(after)}" for before, after, _ in pairs]
    axes.barh(range(len(pairs)), [count for *_, count in pairs], color=COLORS[0])
    _token_labels(axes.yaxis, labels)
    axes.invert_yaxis()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="count", ylabel="reference → hypothesis")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


def _shown(symbol: str) -> str:
    """A symbol on an axis: a dash for none, a sign for a blank, marks on a circle."""
    circle = "◌" if unicodedata.category(symbol[:1] or " ").startswith("M") else ""
    return "–" if symbol == "" else circle + symbol.replace(" ", "␣")


# --- What they share ---


def _figure(width: float, height: float):
    module = require("matplotlib.figure", "plot")
    figure = module.Figure(figsize=(width, height), layout="constrained")
    # Also where others save it, such as Gradio: labels would be cut.
    figure.savefig = functools.partial(figure.savefig, bbox_inches="tight")
    # What a notebook shows of a figure that pyplot does not know.
    figure._repr_png_ = functools.partial(_as_png, figure)
    return figure


def _as_png(figure) -> bytes:
    with io.BytesIO() as stream:
        figure.savefig(stream, format="png")
        return stream.getvalue()


def _panels(count, columns, width, height, more_width, more_height, **options):
    """A figure and `count` axes in rows, each of so many inches, and more for all."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = _figure(columns * width + more_width, rows * height + more_height)
    panels = figure.subplots(rows, columns, squeeze=False, **options).reshape(-1)
    for axes in panels[count:]:
        axes.remove()
    return figure, list(panels[:count])


def _token_labels(axis, tokens: Sequence[str], **options):
    manager = require("matplotlib.font_manager", "plot")
    installed = set(manager.get_font_names())
    fonts = ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]
    labels = [_short(token, 24) for token in tokens]
    axis.set_ticks(range(len(labels)), labels, fontsize=8, fontfamily=fonts, **options)
    _without_formulas(axis.get_ticklabels())


def _without_formulas(texts):
    """A dollar sign in a text is a dollar sign, not the start of a formula."""
    for text in texts:
        text.set_parse_math(False)


def _short(text: str, max_characters: int) -> str:
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"
