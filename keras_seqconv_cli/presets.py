"""`keras-seqconv presets`: the named architectures, and the recipe of each."""

import argparse
import dataclasses

HELP = "list the named architectures, or show the recipe of one"
LOADS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset to show")


def run(options: argparse.Namespace) -> int:
    print(table() if options.name is None else describe(options.name))
    return 0


def table() -> str:
    """All presets, one to a line."""
    from keras_seqconv.presets import PRESETS

    rows = [("name", "model", "task", "parameters", "score")]
    for name, preset in PRESETS.items():
        count = preset.parameters
        size = "" if count is None else f"{count / 1e6:.1f}M"
        rows.append((name, preset.model, preset.task.name, size, preset.reference))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def describe(name: str) -> str:
    """One preset with its recipe, each value with its source."""
    from keras_seqconv.presets import PRESETS
    from keras_seqconv.support.arguments import near

    if name not in PRESETS:
        raise ValueError(
            "`name` must be one of those that `keras-seqconv presets` lists. "
            f"{near(name, PRESETS)}Received: name={name!r}"
        )
    preset = PRESETS[name]
    recipe, task = preset.recipe, preset.task
    lines = [f"{name}: {preset.model} for {task.name}"]
    lines += [f"Reference: {preset.reference}"] if preset.reference else []
    lines += ["", f"Architecture [{preset.source}]; all else as in the constructor"]
    lines += [f"  {key:<28}{_text(v)}" for key, v in preset.architecture.items()]
    if preset.parameters is not None:
        lines += ["", f"Parameters: {preset.parameters:,}"]
    lines += ["", f"Task [{task.source}]"]
    for key, value in dataclasses.asdict(task).items():
        if value and key not in ("name", "source"):
            lines.append(f"  {key:<28}{_text(value)}")
    lines += ["", "Recipe"]
    for key, value in dataclasses.asdict(recipe).items():
        shown = value is not None or key == "global_clipnorm"
        if shown and key not in ("source", "sources", "notes"):
            source = recipe.sources.get(key, recipe.source)
            lines.append(f"  {key:<28}{_text(value)}  [{source}]")
    if notes := (*recipe.notes, *preset.notes):
        lines += ["", "Notes", *(f"  - {note}" for note in notes)]
    return "\n".join(lines)


def _text(value) -> str:
    """A value of a preset, without the quotes and braces of its repr."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
