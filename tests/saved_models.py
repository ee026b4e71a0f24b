"""Looking into exported SavedModels."""

from pathlib import Path


def compiled_functions(folder: str | Path) -> list[str]:
    """Functions and nodes of a SavedModel that demand XLA; a stock server has none.

    Some single ops do as well: `keras.ops.slice_update` is XlaDynamicUpdateSlice.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((Path(folder) / "saved_model.pb").read_bytes())
    found = []
    for meta_graph in model.meta_graphs:
        graph = meta_graph.graph_def
        nodes = [("graph", node) for node in graph.node]
        for function in graph.library.function:
            if function.attr["_XlaMustCompile"].b:
                found.append(function.signature.name)
            nodes += [(function.signature.name, node) for node in function.node_def]
        found += [
            f"{owner}/{node.name}"
            for owner, node in nodes
            if node.attr["_XlaMustCompile"].b
            or node.attr["_XlaCompile"].b
            or node.op.startswith("Xla")
        ]
    return found
