"""Rewriting of graphs in ONNX: fewer operations.

The operations of a step are so small that their number counts. A third of them take
away and add its time axis of length 1, for which products and ONNX have no use.
"""

import numpy as np

from keras_seqconv.decoding.onnx_graph import needed_nodes, outer_names
from keras_seqconv.support import onnx

# What gives the same with one axis less, other than the last.
_POINTWISE = {
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Cast", "Relu", "Sigmoid",
    "Tanh", "Erf", "Exp", "Neg", "Sqrt", "Reciprocal", "Softplus", "Elu", "LeakyRelu",
}  # fmt: skip
_BY_ROW = {"LayerNormalization", "Softmax"}  # over the last axis


def tidied(model):
    """The model without reshaping that its operations need not see."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _move_reshapes(model.graph)
    _add_in_normalization(model.graph)
    kept, _ = needed_nodes(model.graph.node, [x.name for x in model.graph.output])
    _replace_nodes(model.graph, kept)
    del model.graph.value_info[:]
    return model


def _move_reshapes(graph) -> None:
    """Moves reshaping that keeps the last axis behind operations that see only that.

    Where it meets its reverse, both are gone.
    """
    constants, sizes = _constants(graph), _sizes(graph)
    kept = {value.name for value in graph.output}.union(*map(outer_names, graph.node))
    roots = {}  # name -> what was reshaped to it
    views = {}  # name -> (source, shape): where that has the same last axis
    same, nodes = {}, []

    def reshape(source, shape, name):
        if not isinstance(shape, str):
            values = np.array(shape, "int64")
            shape = f"{name}/shape"
            graph.initializer.append(onnx.numpy_helper.from_array(values, shape))
        nodes.append(onnx.helper.make_node("Reshape", [source, shape], [name]))
        roots[name] = roots.get(source, source)

    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        name, shape = node.output[0], _new_shape(node, constants, sizes)
        if shape is not None:
            source = roots.get(node.input[0], node.input[0])
            size = sizes.get(source, ())
            fixed = not isinstance(shape, str)
            last = shape[-1] if fixed else (*sizes.get(name, ()), None)[-1]
            if fixed and size and shape == (-1, *size[1:]) and name not in kept:
                same[name] = source
                continue
            if fixed and len(shape) > 3 and shape[1] == 1:
                reshape(source, (shape[0], *shape[2:]), f"{name}/source")
                source, size = f"{name}/source", (None, *shape[2:])
                sizes[source] = size
            reshape(source, shape, name)
            if len(size) > 1 and last and size[-1] == last:
                views[name] = source, shape
            continue
        viewed = [views[key] for key in node.input if key in views]
        rest = [constants.get(key) for key in node.input if key not in views]
        simple = all(value is not None and value.ndim < 2 for value in rest)
        shapes = {shape for _, shape in viewed}
        if simple and len(shapes) == 1 and _is_by_rows(node, sizes.get(name, ())):
            longest = max((sizes[source] for source, _ in viewed), key=len)
            node.input[:] = [views.get(key, (key,))[0] for key in node.input]
            node.output[0] = source = f"{name}/source"
            sizes[source] = (*longest[:-1], sizes[name][-1])
            nodes.append(node)
            reshape(source, *shapes, name)
            views[name] = source, *shapes
        elif _is_lookup_of_columns(node, constants, sizes):
            width, ids, source = sizes[name][-1], f"{name}/ids", f"{name}/source"
            reshape(node.input[1], (-1,), ids)
            node.input[1], node.output[0] = ids, source
            sizes[source], views[name] = (None, width), (source, (-1, 1, width))
            nodes.append(node)
            reshape(*views[name], name)
        else:
            nodes.append(node)
    _replace_nodes(graph, nodes)


def _new_shape(node, constants, sizes):
    """The shape, constant or by name, to which a node reshapes its input, or None."""
    if node.op_type == "Reshape":
        shape = constants.get(node.input[1])
        if shape is None:
            return node.input[1]
        return None if 0 in shape else tuple(map(int, shape))
    size = sizes.get(node.output[0], ())
    is_static = len(size) > 1 and None not in size[1:]
    is_view = node.op_type in ("Squeeze", "Unsqueeze")
    return (-1, *size[1:]) if is_static and is_view else None


def _is_lookup_of_columns(node, constants, sizes) -> bool:
    """Whether a node reads rows of a table at indices (n, 1)."""
    if node.op_type != "Gather" or any(attribute.i for attribute in node.attribute):
        return False
    table = constants.get(node.input[0])
    ids = sizes.get(node.input[1], ())
    return table is not None and table.ndim == 2 and len(ids) == 2 and ids[1] == 1


def _is_by_rows(node, size) -> bool:
    """Whether an operation gives the same with other axes before the last."""
    if not size or size[-1] is None:
        return False
    if node.op_type not in _BY_ROW:
        return node.op_type in _POINTWISE
    axes = [axis for axis in node.attribute if axis.name == "axis"]
    is_last = all(axis.i in (-1, len(size) - 1) for axis in axes)
    for axis in axes:
        axis.i = -1 if is_last else axis.i
    return is_last


def _add_in_normalization(graph) -> None:
    """Gives a normalization the vector that is added to its result."""
    vectors = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 1}
    users = {}
    for node in graph.node:
        for name in (*node.input, *outer_names(node)):
            users.setdefault(name, []).append(node)
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        addition, *more = users.get(node.output[0], [None])
        is_sum = addition is not None and addition.op_type == "Add" and not more
        if node.op_type != "LayerNormalization" or len(node.input) > 2 or not is_sum:
            continue
        shift = [name for name in addition.input if name in vectors]
        if shift and node.output[0] not in outputs:
            node.input.extend(shift)
            # The sum's own node stays without a use.
            node.output[0], addition.output[0] = addition.output[0], node.output[0]


# --- Parts of graphs ---


def _constants(graph) -> dict:
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
    }


def _sizes(graph) -> dict:
    """Name -> sizes, None where they vary."""
    return {
        value.name: tuple(
            axis.dim_value if axis.HasField("dim_value") else None
            for axis in value.type.tensor_type.shape.dim
        )
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def _replace_nodes(graph, nodes: list) -> None:
    del graph.node[:]
    graph.node.extend(nodes)
