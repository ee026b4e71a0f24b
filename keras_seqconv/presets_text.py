"""Presets as `keras-seqconv presets` shows them: a table, and one recipe."""

import re

from keras_seqconv.presets import PRESETS, RECIPE_KEYS
from keras_seqconv.support.arguments import near


def table() -> str:
    """All presets, one to a line.

    Example:

    ```python
    from keras_seqconv.presets_text import table

    print(table())
    ```
    """
    head = ("name", "model", "task", "width", "layers", "mixing", "parameters", "score")
    rows = [head, *(_row(preset) for preset in PRESETS.values())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def describe(name: str) -> str:
    """One preset with its recipe, each value with its source.

    Example:

    ```python
    from keras_seqconv.presets_text import describe

    print(describe("dynamic_conv_iwslt_de_en"))
    ```

    Raises:
        ValueError: for a name that is not in `PRESETS`.
    """
    if name not in PRESETS:
        raise ValueError(
            "`name` must be one of those that `keras-seqconv presets` lists. "
            f"{near(name, PRESETS)}Received: name={name!r}"
        )
    preset = PRESETS[name]
    recipe = preset.recipe
    lines = [f"{name}: {preset.model} for {preset.task}", preset.description]
    lines += [f"Reference: {preset.reference}"] if preset.reference else []
    lines += ["", f"Architecture [{preset.source}]; all else as in the constructor"]
    lines += [f"  {key:<28}{_text(v)}" for key, v in preset.architecture.items()]
    if preset.parameters:
        lines += ["", "Parameters"]
        lines += [f"  {key:<28}{value:,}" for key, value in preset.parameters.items()]
    lines += ["", "Recipe"]
    for key in RECIPE_KEYS:
        if key in ("source", "sources", "notes"):
            continue
        if recipe[key] is not None or key == "global_clipnorm":
            source = recipe["sources"].get(key, recipe["source"])
            lines.append(f"  {key:<28}{_text(recipe[key])}  [{source}]")
    if recipe["notes"]:
        lines += ["", "Notes", *(f"  - {note}" for note in recipe["notes"])]
    return "\n".join(lines)


def _row(preset):
    options = preset.architecture
    if "convolutions" in options:
        width = _text(options.get("embedding_dim", ""))
        if not width:
            width = "512" if preset.model == "ConvS2S" else "128"
        layers, mixing = _stacks(options["convolutions"])
    else:
        width = _text(options.get("hidden_dim", 512))
        sides = ("num_encoder_layers", "num_decoder_layers")
        layers = "/".join(str(options.get(side, 6)) for side in sides)
        layers = str(options.get("num_layers", layers))
        mixing = _kind(options.get("mixer", "dynamic_conv"))
        if "kernel_sizes" in options:
            mixing += " " + _kernels(options["kernel_sizes"])
    count = preset.parameters.get("count")
    return (
        preset.name,
        preset.model,
        preset.task,
        width,
        layers,
        mixing,
        "" if count is None else f"{count / 1e6:.1f}M",
        preset.reference,
    )


def _kind(mixer):
    """Of the encoder, where the sides differ."""
    if isinstance(mixer, dict):
        return mixer["kind"] if "kind" in mixer else _kind(mixer["encoder"])
    return mixer


def _stacks(convolutions):
    """Number of layers, and the notation cut short; sides with a slash."""
    if not isinstance(convolutions, dict):
        convolutions = {"both": convolutions}
    found = [_depth(side) for side in convolutions.values()]
    sides = [
        side if len(side) <= 50 else f"{side[:47]}..." for side in convolutions.values()
    ]
    return "/".join(map(str, found)), " / ".join(sides)


def _depth(stack):
    """Layers of a stack in fairseq's notation: tuples, times the factor after them."""
    groups = re.findall(r"\[([^]]*)\](?: \* (\d+))?", stack)
    return sum(group.count("(") * int(times or 1) for group, times in groups)


def _kernels(sizes):
    """3,7,15,31x4 for [3, 7, 15, 31, 31, 31, 31]; sides with a slash."""
    if isinstance(sizes, dict):
        return "/".join(_kernels(side) for side in sizes.values())
    parts, start = [], 0
    while start < len(sizes):
        end = start
        while end < len(sizes) and sizes[end] == sizes[start]:
            end += 1
        times = f"x{end - start}" if end - start > 1 else ""
        parts.append(f"{sizes[start]}{times}")
        start = end
    return ",".join(parts)


def _text(value) -> str:
    """A value of a preset, without the quotes and braces of its repr."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
