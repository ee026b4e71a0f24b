"""Looking into exported SavedModels."""

import collections
from pathlib import Path


def compiled_functions(folder: str | Path) -> list[str]:
    """Functions and nodes of a SavedModel that demand XLA; a stock server has none.

    Some single ops do as well: `keras.ops.slice_update` is XlaDynamicUpdateSlice.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    content = (Path(folder) / "saved_model.pb").read_bytes()
    found = []
    for meta_graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        functions = meta_graph.graph_def.library.function
        nodes = [node for function in functions for node in function.node_def]
        nodes += meta_graph.graph_def.node
        found += [node.name for node in nodes if node.op.startswith("Xla")]
        for compilable in (*functions, *nodes):
            if any(compilable.attr[f"_Xla{x}Compile"].b for x in ("", "Must")):
                found.append(str(compilable)[:80])
    return found


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
