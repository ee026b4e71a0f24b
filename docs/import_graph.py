"""A picture of the imports between the folders and modules of the package."""

import ast
from pathlib import Path

import matplotlib.pyplot as plt

PACKAGE = Path(__file__).parents[1] / "keras_seqconv"


def imports() -> dict[str, set[str]]:
    """Folder -> folders that its files import; support, which all use, left out."""
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if folder in ("__init__", "support", "version"):
            continue
        graph.setdefault(folder, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                parts = [name.split(".") for name in names]
                graph[folder] |= {
                    part[1] for part in parts if part[0] == PACKAGE.name and part[1:]
                }
    return {
        folder: {other for other in others if other in graph and other != folder}
        for folder, others in graph.items()
    }


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """How many imports lie below a folder; leaves have 0."""
    level_of: dict[str, int] = {}

    def level(folder):
        if folder not in level_of:
            level_of[folder] = 1 + max(
                (level(other) for other in graph[folder]), default=-1
            )
        return level_of[folder]

    for folder in graph:
        level(folder)
    return level_of


def picture():
    graph = imports()
    height = levels(graph)
    rows: dict[int, list[str]] = {}
    for folder in sorted(graph):
        rows.setdefault(height[folder], []).append(folder)
    places = {}
    for level, folders in rows.items():
        for number, folder in enumerate(folders):
            x = (number + 0.5) / len(folders) + 0.03 * (level % 2)
            # Neighbours stand a little apart in height, or long names would overlap.
            places[folder] = (x, level + (0.3 if number % 2 else 0.0))
    figure, axes = plt.subplots(figsize=(11, 1.1 * len(rows)))
    for folder, others in graph.items():
        for other in others:
            axes.annotate(
                "",
                xy=places[other],
                xytext=places[folder],
                arrowprops={
                    "arrowstyle": "->",
                    "color": "0.75",
                    "shrinkA": 12,
                    "shrinkB": 12,
                },
            )
    for folder, (x, y) in places.items():
        box = {"boxstyle": "round", "facecolor": "#d9e8f5", "edgecolor": "#0072B2"}
        axes.text(x, y, folder, ha="center", va="center", fontsize=9, bbox=box)
    axes.set(xlim=(-0.02, 1.08), ylim=(-0.6, len(rows) - 0.4))
    axes.axis("off")
    plt.show()
