"""Pictures: learning curves, attention, kernels, BLEU by length.

Arrays in, a `matplotlib.figure.Figure` out; `save` writes it. pyplot and its global
state are not used. Needs the extra `plot` (matplotlib).

Colours are those of Okabe and Ito, and maps of one rising lightness, which people with
a colour vision deficiency tell apart. Tokens are drawn in DejaVu Sans (Latin, Greek,
Cyrillic, Arabic and more), and characters that it lacks, such as Chinese and Japanese
ones, in a font of `FALLBACK_FONTS` if one is installed; else they are boxes, and `save`
warns.

Letters: L target tokens, S source tokens, T time, H heads, K taps.
"""

import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_seqconv.support.extras import require
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
# Label, key of the training records, key of the validation records.
_CURVES = (
    ("nll (nats per token)", "nll", "val_nll"),
    ("BLEU of validation", None, "val_bleu"),
    ("accuracy", "accuracy", "val_accuracy"),
    ("learning rate", "learning_rate", None),
    ("gradient norm", "gradient_norm", None),
    ("tokens per second", "tokens_per_second", None),
)
_MOST_POINTS = 2000
_LONGEST_LABEL = 24


def save(figure, path: str | os.PathLike) -> None:
    """Writes a figure; the file appears complete or not at all.

    Args:
        figure: what a function of this module returned.
        path: ends in .png, .svg or .pdf.

    Raises:
        ValueError: for another ending.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"`path` must end in one of {', '.join(FORMATS)}. Received: {path}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} does not exist.")
    with atomic_file(path) as part, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(
            part, format=path.suffix[1:].lower(), dpi=150, bbox_inches="tight"
        )
    missing = {str(one.message) for one in caught if "missing from" in str(one.message)}
    for one in caught:
        if str(one.message) not in missing:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if missing:
        warnings.warn(
            f"{len(missing)} characters in {path} are boxes, as no installed font has "
            f"them: install one of {', '.join(FALLBACK_FONTS[:4])}",
            stacklevel=2,
        )


# --- Learning curves ---


def learning_curves(runs: Mapping[str, Sequence[Mapping]]):
    """Curves of one or several runs over their updates.

    Args:
        runs: name -> log records: dictionaries with `update` and any of `nll` (else
            `loss`), `accuracy`, `learning_rate`, `gradient_norm`, `tokens_per_second`,
            `val_nll` (else `val_loss`), `val_accuracy`, `val_bleu`. Other keys and
            values that are no numbers are left out.

    Returns:
        A figure with a panel for each quantity that some run has: training as lines,
        validation dashed with points.

    Raises:
        ValueError: no record has any of them.
    """
    panels = []
    for label, train, validation in _CURVES:
        keys = [key for key in (train, validation) if key]
        curves = {name: [_curve(runs[name], key) for key in keys] for name in runs}
        if train == "nll" and not _any(curves):
            label, keys = "loss (nats per token)", ["loss", "val_loss"]
            curves = {name: [_curve(runs[name], key) for key in keys] for name in runs}
        if _any(curves):
            panels.append((label, keys, curves))
    if not panels:
        raise ValueError("`runs` must hold records with something to draw; none has.")
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = _figure(5.0 * columns, 2.9 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    validated = trained = False
    for axis, (label, keys, curves) in zip(axes, panels, strict=False):
        axis.set(xlabel="update", ylabel=label)
        axis.grid(alpha=0.3)
        axis.locator_params(axis="x", nbins=6)
        for number, lines in enumerate(curves.values()):
            for key, (updates, values) in zip(keys, lines, strict=True):
                if not len(updates):
                    continue
                held_out = key.startswith("val_")
                validated, trained = validated or held_out, trained or not held_out
                axis.plot(updates, values, **_line(number, held_out))
    for axis in axes[len(panels) :]:
        axis.remove()
    _curves_legend(figure, list(runs), trained and validated)
    return figure


def _curve(records, key) -> tuple[np.ndarray, np.ndarray]:
    points = [
        (record["update"], record[key])
        for record in records
        if _number(record.get("update")) and _number(record.get(key))
    ]
    # A run that was resumed repeats updates; the later record counts.
    points = np.array(sorted(dict(points).items()), "float64").reshape(-1, 2)
    points = points[:: max(1, math.ceil(len(points) / _MOST_POINTS))]
    return points[:, 0], points[:, 1]


def _number(value) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _any(curves) -> bool:
    return any(len(updates) for lines in curves.values() for updates, _ in lines)


def _line(number, held_out) -> dict:
    style = {"color": COLORS[number % len(COLORS)], "linewidth": 1.3}
    if held_out:
        return {**style, "linestyle": "--", "marker": "o", "markersize": 3}
    return style


def _curves_legend(figure, names, both):
    """One legend below all panels: runs by colour, and what is dashed."""
    lines = require("matplotlib.lines", "plot")
    entries = []
    if len(names) > 1:
        entries = [
            lines.Line2D([], [], label=_short(name, 40), color=color)
            for name, color in zip(names, itertools.cycle(COLORS), strict=False)
        ]
    if both:
        grey = {"color": "0.35"}
        entries.append(lines.Line2D([], [], **grey, label="training"))
        entries.append(
            lines.Line2D(
                [], [], **grey, linestyle="--", marker="o", markersize=3,
                label="validation",
            )
        )  # fmt: skip
    if entries:
        legend = figure.legend(
            handles=entries, loc="outside lower center", ncols=min(4, len(entries)),
            frameon=False,
        )  # fmt: skip
        _plain(legend.get_texts())


def to_image(figure) -> np.ndarray:
    """A figure as pixels (height, width, 3), uint8, for TensorBoard."""
    module = require("matplotlib.backends.backend_agg", "plot")
    canvas = module.FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


# --- Attention ---


def attention(weights, source_tokens: Sequence[str], target_tokens: Sequence[str]):
    """Where each target token looks in the source.

    Args:
        weights: (L, S), rows of target tokens.
        source_tokens: S of them, the end token counted.
        target_tokens: L of them.

    Raises:
        ValueError: the tokens are not as many as rows and columns.
    """
    weights = np.asarray(weights, "float32")
    if weights.shape != (len(target_tokens), len(source_tokens)):
        raise ValueError(
            "`weights` must have a row for each target token and a column for each "
            f"source token. Received: shape {weights.shape}, {len(target_tokens)} and "
            f"{len(source_tokens)} tokens"
        )
    cell = 0.26
    width, height = cell * len(source_tokens) + 2.2, cell * len(target_tokens) + 1.6
    figure = _figure(max(3.2, width), max(2.6, height))
    axis = figure.subplots()
    image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    _token_labels(axis.xaxis, source_tokens, rotation=90)
    _token_labels(axis.yaxis, target_tokens)
    axis.xaxis.tick_top()
    _cells(axis, weights.shape)
    bar = figure.colorbar(image, ax=axis, shrink=0.8, fraction=0.04, pad=0.02)
    bar.set_label("attention")
    return figure


# --- Kernels ---


def light_conv_kernels(kernels: Sequence[tuple]):
    """The kernels of LightConv layers: a panel for each, heads by taps.

    Args:
        kernels: (name, values (H, K), P) of each layer, as
            `keras_seqconv.inspection.light_conv_kernels` returns them; tap j looks at
            the position that is j - P after its own.
    """
    kernels = list(kernels)
    if not kernels:
        raise ValueError("`kernels` must hold a layer at least. Received: none")
    columns = min(4, len(kernels))
    rows = math.ceil(len(kernels) / columns)
    heads = max(np.shape(values)[0] for _, values, _ in kernels)
    figure = _figure(3.0 * columns + 0.8, rows * (1.2 + 0.14 * heads))
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    scale = _scale([values for _, values, _ in kernels])
    for axis, (name, values, left) in zip(axes, kernels, strict=False):
        image = axis.imshow(values, aspect="auto", interpolation="nearest", **scale)
        axis.set_title(name, fontsize=10)
        _offsets(axis, np.shape(values)[1], left)
        _heads(axis, np.shape(values)[0])
    for axis in axes[len(kernels) :]:
        axis.remove()
    figure.supxlabel("position relative to the output", fontsize=10)
    figure.supylabel("head", fontsize=10)
    bar = figure.colorbar(image, ax=list(axes[: len(kernels)]), fraction=0.03, pad=0.02)
    bar.set_label("weight")
    return figure


def dynamic_conv_kernels(values, tokens: Sequence[str], left: int, title: str = ""):
    """The kernels that a DynamicConv makes along a sentence: a panel for each head.

    Args:
        values: (T, H, K), a kernel for each position and head.
        tokens: T of them.
        left: P: tap j looks at the position that is j - P after its own.
        title: over the picture, such as the name of the layer.

    Raises:
        ValueError: the tokens are not as many as the kernels.
    """
    values = np.asarray(values, "float32")
    if values.ndim != 3 or len(values) != len(tokens):
        raise ValueError(
            "`values` must have shape (T, H, K) with a kernel for each of T tokens. "
            f"Received: shape {values.shape}, {len(tokens)} tokens"
        )
    length, heads, taps = values.shape
    columns = min(4, heads)
    rows = math.ceil(heads / columns)
    width = min(3.2, 1.0 + 0.1 * taps)
    figure = _figure(columns * width + 2.4, rows * max(1.4, 0.19 * length + 0.6) + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).reshape(-1)
    scale = _scale([values])
    for head, axis in enumerate(axes[:heads]):
        image = axis.imshow(
            values[:, head], aspect="auto", interpolation="nearest", **scale
        )
        axis.set_title(f"head {head + 1}", fontsize=9)
        _offsets(axis, taps, left)
        if head % columns == 0:
            _token_labels(axis.yaxis, tokens)
    for axis in axes[heads:]:
        axis.remove()
    if title:
        _plain([figure.suptitle(title, fontsize=11)])
    figure.supxlabel("position relative to the token", fontsize=10)
    bar = figure.colorbar(image, ax=list(axes[:heads]), fraction=0.03, pad=0.02)
    bar.set_label("weight")
    return figure


def _scale(arrays) -> dict:
    """One map for all panels; small weights of long kernels can be seen beside 1."""
    colors = require("matplotlib.colors", "plot")
    lowest = min(float(np.min(values)) for values in arrays)
    largest = max(float(np.max(np.abs(values))) for values in arrays) or 1.0
    if lowest < 0:  # kernels without softmax
        return {"cmap": "PuOr", "norm": colors.Normalize(-largest, largest)}
    return {"cmap": "Blues", "norm": colors.PowerNorm(0.5, 0.0, largest)}


def _offsets(axis, taps: int, left: int):
    step = max(1, math.ceil(taps / 7))
    places = [place for place in range(taps) if (place - left) % step == 0]
    labels = [f"{place - left:+d}" if place != left else "0" for place in places]
    axis.set_xticks(places, labels, fontsize=8)


def _heads(axis, heads: int):
    places = range(0, heads, max(1, math.ceil(heads / 8)))
    axis.set_yticks(list(places), [str(place + 1) for place in places], fontsize=8)


# --- BLEU by length ---


def bleu_by_length(
    values: Mapping[str, Sequence[float]], names: Sequence[str], counts: Sequence[int]
):
    """BLEU of several systems by the length of the source.

    Args:
        values: system -> BLEU of each group, NaN where it is empty.
        names: of the groups, as `keras_seqconv.evaluation.bleu_by_length` returns them.
        counts: sentences in each group.

    Raises:
        ValueError: the systems have not as many values as there are groups.
    """
    for system, found in values.items():
        if len(found) != len(names):
            raise ValueError(
                "`values` must hold a value for each group of each system. "
                f"Received: {len(found)} for {system}, {len(names)} groups"
            )
    figure = _figure(max(5.0, 1.1 * len(names) + 1), 3.6)
    axis = figure.subplots()
    width = 0.8 / max(1, len(values))
    for number, (system, found) in enumerate(values.items()):
        places = np.arange(len(names)) + (number - (len(values) - 1) / 2) * width
        axis.bar(
            places,
            np.nan_to_num(np.asarray(found, "float64")),
            0.92 * width,
            color=COLORS[number % len(COLORS)],
            label=_short(system, 40),
        )
    labels = [f"{name}\n({count:,})" for name, count in zip(names, counts, strict=True)]
    axis.set_xticks(range(len(names)), labels)
    axis.set(xlabel="words of the source (sentences)", ylabel="BLEU")
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    if len(values) > 1:
        legend = figure.legend(
            loc="outside upper center", ncols=min(3, len(values)), frameon=False
        )
        _plain(legend.get_texts())
    return figure


# --- What they share ---


def _figure(width: float, height: float):
    module = require("matplotlib.figure", "plot")
    return module.Figure(figsize=(width, height), layout="constrained")


def _token_labels(axis, tokens: Sequence[str], **options):
    manager = require("matplotlib.font_manager", "plot")
    installed = set(manager.get_font_names())
    fonts = ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]
    labels = [_short(token, _LONGEST_LABEL) for token in tokens]
    axis.set_ticks(range(len(labels)), labels, fontsize=8, fontfamily=fonts, **options)
    _plain(axis.get_ticklabels())


def _plain(texts):
    """A dollar sign in a text is a dollar sign, not the start of a formula."""
    for text in texts:
        text.set_parse_math(False)


def _short(text: str, most: int) -> str:
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cells(axis, shape):
    """Thin lines between the cells of a matrix."""
    axis.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="0.9", linewidth=0.5)
    axis.tick_params(which="minor", length=0)
