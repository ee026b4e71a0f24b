"""Whether a SavedModel holds only what every stock server since 2.12 can run.

`stock_ops.txt` lists ops with their attributes, one op a line: those that the C++
runtime of both TensorFlow 2.12.1 with tensorflow-text 2.12.1 and TensorFlow 2.20.0 with
tensorflow-text 2.20.0 registers with a kernel for CPUs, without Python, private ones
and XLA's. `tests/export/list_stock_ops.py` wrote it. (tensorflow-text 2.12.1 is part of
the servers 2.12 to 2.19.)
"""

import functools
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

_FILE = "saved_model.pb"


@functools.cache
def stock_ops() -> dict[str, frozenset[str]]:
    """Names of attributes by op."""
    text = resources.files(__package__).joinpath("stock_ops.txt").read_text("utf-8")
    entries = (line.split() for line in text.splitlines())
    return {name: frozenset(attributes) for name, *attributes in entries}


def strip_names(folder: Path) -> None:
    """Takes away the one attribute that is newer than TensorFlow 2.12.

    `debug_name` of a variable stands in error messages; older servers refuse a node
    with an attribute that they do not know.
    """
    saved = _read(folder)
    for meta_graph in saved.meta_graphs:
        graph = meta_graph.graph_def
        functions = (function.node_def for function in graph.library.function)
        for nodes in (graph.node, *functions):
            for node in nodes:
                if node.op == "VarHandleOp":
                    node.attr.pop("debug_name", None)
    (folder / _FILE).write_bytes(saved.SerializeToString(deterministic=True))
    # Of the file as it was; servers do without.
    (folder / "fingerprint.pb").unlink(missing_ok=True)


def offenders(folder: Path, xla: bool = False) -> list[str]:
    """What in a SavedModel a stock server cannot run, as "where/node: what".

    Args:
        folder: with `saved_model.pb`.
        xla: functions that XLA compiles are allowed.
    """
    return [
        offence
        for meta_graph in _read(folder).meta_graphs
        for offence in _of_graph(meta_graph.graph_def, xla)
    ]


def _read(folder: Path):
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString((folder / _FILE).read_bytes())


def _of_graph(graph, xla: bool) -> Iterator[str]:
    for node in graph.node:
        yield from _of_node("graph", node, xla)
    for function in graph.library.function:
        name = function.signature.name
        if function.attr["_XlaMustCompile"].b and not xla:
            yield f"{name}: XLA must compile it"
        for node in function.node_def:
            yield from _of_node(name, node, xla)


def _of_node(where: str, node, xla: bool) -> Iterator[str]:
    place = f"{where}/{node.name}"
    if node.op not in stock_ops():
        # Functions are called by PartitionedCall, so this is no function's name.
        yield f"{place}: op {node.op}"
        return
    private = {name for name in node.attr if name.startswith("_")}
    for name in sorted(set(node.attr) - private - stock_ops()[node.op]):
        yield f"{place}: attribute {name} of {node.op}"
    for name in ("_XlaMustCompile", "_XlaCompile"):
        if name in node.attr and node.attr[name].b and not xla:
            yield f"{place}: XLA must compile it"
