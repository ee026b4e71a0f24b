"""`keras-seqconv presets`: the named architectures, and the recipe of each."""

import argparse
import dataclasses
import itertools
import re

import keras_seqconv as ks

HELP = "list the named architectures, or show the recipe of one"
DESCRIPTION = "List the presets, or show architecture, task and recipe of one."
LOADS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the preset to show")


def run(options: argparse.Namespace) -> int:
    print(table() if options.name is None else describe(options.name))
    return 0


def table() -> str:
    """All presets, one to a line."""
    head = ("name", "model", "task", "width", "layers", "mixing", "parameters", "score")
    rows = [head, *(_row(name, preset) for name, preset in ks.presets.PRESETS.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def describe(name: str) -> str:
    """One preset with its recipe."""
    preset = ks.presets.preset_of(name)
    recipe, task = preset.recipe, preset.task
    lines = [f"{name}: {preset.model} for {task.name}"]
    lines += [f"Reference: {preset.reference}"] if preset.reference else []
    lines += ["", "Architecture; all else as in the constructor"]
    lines += [f"  {key:<28}{_text(v)}" for key, v in preset.architecture.items()]
    if preset.parameters is not None:
        lines += ["", f"Parameters: {preset.parameters:,}"]
    lines += ["", "Task"]
    for key, value in dataclasses.asdict(task).items():
        if value and key != "name":
            lines.append(f"  {key:<28}{_text(value)}")
    lines += ["", "Recipe"]
    for key, value in dataclasses.asdict(recipe).items():
        if value is not None or key == "global_clipnorm":
            lines.append(f"  {key:<28}{_text(value)}")
    lines += ["", "docs/models.md says where the values come from."]
    return "\n".join(lines)


def _row(name: str, preset) -> tuple[str, ...]:
    options, count = preset.architecture, preset.parameters
    if "convolutions" in options:
        sides = options["convolutions"]
        sides = list(sides.values()) if isinstance(sides, dict) else [sides]
        width = options.get("embedding_dim", 512 if preset.model == "ConvS2S" else 128)
        layers = "/".join(str(_depth(side)) for side in sides)
        mixing = " / ".join(s if len(s) <= 50 else f"{s[:47]}..." for s in sides)
    else:
        width = options.get("hidden_dim", 512)
        sides = ("num_encoder_layers", "num_decoder_layers")
        layers = "/".join(str(options.get(side, 6)) for side in sides)
        layers = str(options.get("num_layers", layers))
        mixer = options.get("mixer", "dynamic_conv")
        while isinstance(mixer, dict):  # of the encoder, where the sides differ
            mixer = mixer.get("kind") or mixer["encoder"]
        mixing = f"{mixer} {_kernels(options.get('kernel_sizes', []))}".rstrip()
    return (
        name,
        preset.model,
        preset.task.name,
        str(width),
        layers,
        mixing,
        "" if count is None else f"{count / 1e6:.1f}M",
        preset.reference,
    )


def _depth(stack: str) -> int:
    """Layers of a stack in fairseq's notation: tuples, times the factor after them."""
    groups = re.findall(r"\[([^]]*)\](?: \* (\d+))?", stack)
    return sum(group.count("(") * int(times or 1) for group, times in groups)


def _kernels(sizes: list | dict) -> str:
    """3,7,15,31x4 for [3, 7, 15, 31, 31, 31, 31]; sides with a slash."""
    if isinstance(sizes, dict):
        return "/".join(map(_kernels, sizes.values()))
    runs = [(size, len([*same])) for size, same in itertools.groupby(sizes)]
    return ",".join(f"{size}x{n}" if n > 1 else f"{size}" for size, n in runs)


def _text(value) -> str:
    """A value of a preset, without the quotes and braces of its repr."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
