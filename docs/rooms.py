"""A picture of the package's rooms, drawn from what their files import."""

import ast
from pathlib import Path

import matplotlib.pyplot as plt

PACKAGE = Path(__file__).parents[1] / "keras_seqconv"


def imports() -> dict[str, set[str]]:
    """Room -> rooms that its files import; support, which all use, left out."""
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if room in ("__init__", "support", "version"):
            continue
        graph.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                parts = [name.split(".") for name in names]
                graph[room] |= {
                    part[1] for part in parts if part[0] == PACKAGE.name and part[1:]
                }
    return {
        room: {other for other in others if other in graph and other != room}
        for room, others in graph.items()
    }


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """How many imports lie below a room; leaves have 0."""
    known: dict[str, int] = {}

    def level(room):
        if room not in known:
            known[room] = 1 + max((level(other) for other in graph[room]), default=-1)
        return known[room]

    for room in graph:
        level(room)
    return known


def picture():
    graph = imports()
    height = levels(graph)
    rows: dict[int, list[str]] = {}
    for room in sorted(graph):
        rows.setdefault(height[room], []).append(room)
    places = {}
    for level, rooms in rows.items():
        for number, room in enumerate(rooms):
            x = (number + 0.5) / len(rooms) + 0.03 * (level % 2)
            # Neighbours stand a little apart in height, or long names would overlap.
            places[room] = (x, level + (0.3 if number % 2 else 0.0))
    figure, axes = plt.subplots(figsize=(11, 1.1 * len(rows)))
    for room, others in graph.items():
        for other in others:
            axes.annotate(
                "",
                xy=places[other],
                xytext=places[room],
                arrowprops={
                    "arrowstyle": "->",
                    "color": "0.75",
                    "shrinkA": 12,
                    "shrinkB": 12,
                },
            )
    for room, (x, y) in places.items():
        box = {"boxstyle": "round", "facecolor": "#d9e8f5", "edgecolor": "#0072B2"}
        axes.text(x, y, room, ha="center", va="center", fontsize=9, bbox=box)
    axes.set(xlim=(-0.02, 1.08), ylim=(-0.6, len(rows) - 0.4))
    axes.axis("off")
    plt.show()
