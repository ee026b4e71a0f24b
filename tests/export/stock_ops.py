"""What every stock server since TensorFlow Serving 2.12 can run."""

import collections
from pathlib import Path

# Ops and the names of their attributes that the C++ runtimes of both TensorFlow 2.12.1
# with tensorflow-text 2.12.1 (part of the servers 2.12 to 2.19) and TensorFlow 2.20.0
# with tensorflow-text 2.20.0 register with a kernel for CPUs, without those of Python,
# private ones and those of XLA. `tools/list_stock_ops.py` wrote the file.
STOCK_OPS = Path(__file__).with_name("stock_ops.txt")


def not_stock(folder: Path, xla: bool = False) -> list[str]:
    """Nodes of a SavedModel that a stock server cannot run, with reasons.

    xla: functions that XLA compiles are allowed.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    lines = map(str.split, STOCK_OPS.read_text().splitlines())
    stock = {name: set(attributes) for name, *attributes in lines}
    offenders, nodes = [], []
    content = (folder / "saved_model.pb").read_bytes()
    for meta_graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        graph = meta_graph.graph_def
        nodes += graph.node
        for function in graph.library.function:
            nodes += function.node_def
        for one in (*graph.library.function, *nodes):
            compiled = any(one.attr[f"_Xla{x}Compile"].b for x in ("", "Must"))
            if compiled and not xla:
                offenders.append("XLA must compile it")
    for node in nodes:
        # Functions are called by PartitionedCall: a name that is not known is an op's.
        if node.op not in stock:
            offenders.append(f"op {node.op}")
        else:
            new = {name for name in node.attr if name[0] != "_"} - stock[node.op]
            offenders += [f"attribute {name} of {node.op}" for name in sorted(new)]
    return offenders


def operations_of_a_step(folder: str | Path) -> collections.Counter:
    """How often each op stands in the loop over the steps of a search; no constants."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (Path(folder) / "saved_model.pb").read_bytes()
    (meta_graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    found = [
        collections.Counter(node.op for node in function.node_def)
        for function in meta_graph.graph_def.library.function
    ]
    (step,) = (
        ops
        for ops in found
        if {"TopKV2", "MatMul"} <= ops.keys() and "While" not in "".join(ops)
    )
    return step - collections.Counter(Const=step["Const"])
