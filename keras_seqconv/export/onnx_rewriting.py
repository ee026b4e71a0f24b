"""Rewriting of graphs in ONNX to fewer operations, each of which has a cost of its own.

Graphs of TensorFlow become long in ONNX: sizes are int32 and cast back and forth, a
layer normalization is ten operations, and each layer takes away and adds the time axis
of a step.
"""

import numpy as np

# What gives the same with one axis less, other than the last.
_POINTWISE = {
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Cast", "Relu", "Sigmoid",
    "Tanh", "Erf", "Exp", "Neg", "Sqrt", "Reciprocal", "Softplus", "Elu", "LeakyRelu",
}  # fmt: skip
_BY_ROW = {"LayerNormalization", "Softmax"}  # over the last axis
_INT32, _INT64 = 6, 7  # of TensorProto


def tidied(model):
    """The model with layer normalization as one operation, all integers int64 inside,
    and axes before the last only where they matter."""
    import onnx

    _spell_products(model.graph)
    _widen_integers(model.graph)
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    _fuse_norms(model.graph)
    _move_reshapes(model.graph)
    _find_sizes(model.graph)
    _drop_unused(model.graph)
    del model.graph.value_info[:]
    return model


def _spell_products(graph) -> None:
    """MatMul for Einsum of the rows of two tensors, "abc,adc->abd"."""
    from onnx import helper

    nodes = []
    for node in graph.node:
        if node.op_type == "Einsum":
            equation = node.attribute[0].s.decode().replace(" ", "")
            letters = dict(zip(equation.partition(",")[0], "abc", strict=False))
            letters |= dict.fromkeys(set(equation) - {*letters, *",->"}, "d")
            if "".join(letters.get(x, x) for x in equation) == "abc,adc->abd":
                first, second = node.input
                turned = f"{node.output[0]}/turned"
                nodes.append(
                    helper.make_node("Transpose", [second], [turned], perm=[0, 2, 1])
                )
                node = helper.make_node("MatMul", [first, turned], node.output)
        nodes.append(node)
    _replace_nodes(graph, nodes)


def _widen_integers(graph) -> None:
    """Makes all int32 inside of the graph int64, as sizes in ONNX are."""
    from onnx import helper

    inputs, outputs = (
        {
            one.name: f"{one.name}/wide"
            for one in values
            if one.type.tensor_type.elem_type == _INT32
        }
        for values in (graph.input, graph.output)
    )
    _widen(graph, inputs | outputs)
    before = [
        helper.make_node("Cast", [name], [wide], to=_INT64)
        for name, wide in inputs.items()
    ]
    after = [
        helper.make_node("Cast", [wide], [name], to=_INT32)
        for name, wide in outputs.items()
    ]
    _replace_nodes(graph, [*before, *graph.node, *after])


def _widen(graph, names: dict) -> None:
    """`_widen_integers` inside of a graph, with new names of some tensors."""
    from onnx import numpy_helper

    def widen(tensor):
        if tensor.data_type == _INT32:
            values = numpy_helper.to_array(tensor).astype("int64")
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    for tensor in graph.initializer:  # may be an output
        widen(tensor)
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _widen(attribute.g, names)
            if attribute.HasField("t"):
                widen(attribute.t)
            if node.op_type == "Cast" and attribute.i == _INT32:
                attribute.i = _INT64


def _fuse_norms(graph) -> None:
    """LayerNormalization for the operations of `ops.fused.layer_norm`."""
    from onnx import helper, numpy_helper

    makers, constants, sizes = _makers(graph), _constants(graph), _sizes(graph)

    def inputs(name, operation):
        node = makers.get(name)
        return list(node.input) if node and node.op_type == operation else [None] * 2

    def factors(name):
        product = inputs(name, "Mul")
        if None in product or product[0] == product[1]:
            return [name]
        return [factor for one in product for factor in factors(one)]

    def norm(node):
        """Inputs and epsilon of the normalization that ends here, or None."""
        sums = [node.output]  # without beta
        if node.op_type == "Add":
            sums = [node.input, node.input[::-1]]
        for scaled, *beta in sums:
            parts = factors(scaled)
            gamma = [name for name in parts if name in constants]
            inverse = [name for name in parts if inputs(name, "Reciprocal")[0]]
            centred = [name for name in parts if name not in (*gamma, *inverse)]
            if not len(centred) == len(inverse) == 1 or len(gamma) > 1:
                continue
            root = inputs(inputs(inverse[0], "Reciprocal")[0], "Sqrt")[0]
            variance, epsilon = inputs(root, "Add")
            square = inputs(inputs(variance, "ReduceMean")[0], "Mul")
            x, mean = inputs(centred[0], "Sub")
            right = square == centred * 2 and inputs(mean, "ReduceMean")[0] == x
            if right and epsilon in constants and all(one in constants for one in beta):
                return [x, *(gamma or [ones(x)]), *beta], float(constants[epsilon])
        return None

    def ones(x):  # where TensorFlow has left out gamma
        width = sizes[x][-1]
        name = f"ones/{width}"
        if name not in constants:
            constants[name] = np.ones(width, "float32")
            graph.initializer.append(numpy_helper.from_array(constants[name], name))
        return name

    for node in graph.node:
        found = norm(node) if node.op_type in ("Add", "Mul") else None
        if found:
            names, epsilon = found
            options = {"axis": -1, "epsilon": epsilon}
            new = helper.make_node("LayerNormalization", names, node.output, **options)
            node.CopyFrom(new)


def _move_reshapes(graph) -> None:
    """Moves reshaping that keeps the last axis behind operations that see only that.

    Where it meets its reverse, both are gone.
    """
    from onnx import helper, numpy_helper

    constants, outputs = _constants(graph), {value.name for value in graph.output}
    sizes = _sizes(graph)
    roots = {}  # name -> what was reshaped to it
    views = {}  # name -> (source, shape): where that has the same last axis
    squeezed = {}  # name -> inputs of Squeeze
    same, nodes = {}, []

    def reshape(source, shape, name):
        if not isinstance(shape, str):
            values = np.array(shape, "int64")
            shape = f"{name}/shape"
            graph.initializer.append(numpy_helper.from_array(values, shape))
        nodes.append(helper.make_node("Reshape", [source, shape], [name]))
        roots[name] = roots.get(source, source)

    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        name, shape = node.output[0], _new_shape(node, constants, sizes)
        if node.op_type == "Squeeze":
            squeezed[name] = list(node.input)
        before = squeezed.get(node.input[0]) if node.op_type == "Unsqueeze" else None
        if before and _equal(before[1:], node.input[1:], constants):
            same[name] = before[0]
            continue
        if shape is not None:
            source = roots.get(node.input[0], node.input[0])
            size = sizes.get(source, ())
            fixed = not isinstance(shape, str)
            last = shape[-1] if fixed else (*sizes.get(name, ()), None)[-1]
            if fixed and size and shape == (-1, *size[1:]) and name not in outputs:
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
        found = [views[one] for one in node.input if one in views]
        rest = [constants.get(one) for one in node.input if one not in views]
        simple = all(value is not None and value.ndim < 2 for value in rest)
        shapes = {shape for _, shape in found}
        if simple and len(shapes) == 1 and _is_by_rows(node, sizes.get(name, ())):
            longest = max((sizes[source] for source, _ in found), key=len)
            node.input[:] = [views.get(one, (one,))[0] for one in node.input]
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


def _find_sizes(graph) -> None:
    """Takes each size from the first tensor that has it, masks twice as once.

    Where sizes come from one tensor, what is computed of them is, too.
    """
    from onnx import helper

    makers, constants, sizes = _makers(graph), _constants(graph), _sizes(graph)
    same, nodes = {}, []

    def origin(name, axis):
        """The tensor and axis that have this size."""
        node = makers.get(name)
        if node is None:
            return name, axis
        rank = len(sizes.get(name, ()))
        if node.op_type == "Transpose":
            return origin(node.input[0], node.attribute[0].ints[axis])
        if node.op_type in _POINTWISE | _BY_ROW:
            for one in node.input:
                if one not in constants and rank and len(sizes.get(one, ())) == rank:
                    return origin(one, axis)
        if node.op_type == "Reshape" and node.input[1] in makers:
            parts = makers[node.input[1]]
            if parts.op_type == "Concat" and len(parts.input) == rank:
                part = parts.input[axis]
                if part in taken:
                    return taken[part]
        return name, axis

    taken = {}  # name -> tensor and axis of which it is the size, (1,)
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        name, kind = node.output[0], node.op_type
        if kind == "Where" and node.input[1] in makers:
            inner = makers[node.input[1]]
            again = inner.op_type == "Where" and inner.input[0] == node.input[0]
            if again and inner.input[2] == node.input[2]:
                same[name] = node.input[1]
                continue
        bounds = _slice_of_one(node, constants)
        if bounds is not None and makers.get(node.input[0], node).op_type == "Shape":
            tensor, axis = origin(makers[node.input[0]].input[0], bounds)
            taken[name] = tensor, axis
            shape = f"{name}/of"
            nodes.append(
                helper.make_node("Shape", [tensor], [shape], start=axis, end=axis + 1)
            )
            nodes.append(helper.make_node("Identity", [shape], [name]))
            continue
        nodes.append(node)
    _replace_nodes(graph, nodes)


def _slice_of_one(node, constants) -> int | None:
    """The place that a Slice or Gather takes from a vector, as (1,)."""
    places = [constants.get(name) for name in node.input[1:]]
    if any(one is None or one.size != 1 for one in places):
        return None
    places = [int(one.reshape(())) for one in places]
    if node.op_type == "Slice" and places[0] >= 0 and places[1] == places[0] + 1:
        return places[0]
    return None


def _equal(axes, other, constants) -> bool:
    known = [[*constants.get(name, ())] for name in (*axes, *other)]
    return len(known) == 2 and known[0] == known[1] != []


def _new_shape(node, constants, sizes):
    """The shape, constant or by name, to which a node reshapes its input, or None."""
    if node.op_type == "Reshape":
        shape = constants.get(node.input[1])
        if shape is None:
            return node.input[1]
        return None if 0 in shape else tuple(map(int, shape))
    size = sizes.get(node.output[0], ())
    known = len(size) > 1 and None not in size[1:]
    return (
        (-1, *size[1:]) if known and node.op_type in ("Squeeze", "Unsqueeze") else None
    )


def _is_lookup_of_columns(node, constants, sizes) -> bool:
    """Whether a node reads rows of a table at indices (n, 1)."""
    if node.op_type != "Gather" or any(one.i for one in node.attribute):
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
    axes = [one for one in node.attribute if one.name == "axis"]
    is_last = all(one.i in (-1, len(size) - 1) for one in axes)
    for one in axes:
        one.i = -1 if is_last else one.i
    return is_last


# --- Parts of graphs ---


def _constants(graph) -> dict:
    from onnx import numpy_helper

    return {one.name: numpy_helper.to_array(one) for one in graph.initializer}


def _makers(graph) -> dict:
    return {name: node for node in graph.node for name in node.output}


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


def _replace_nodes(graph, nodes) -> None:
    nodes = list(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _drop_unused(graph) -> None:
    used, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if used.intersection(node.output):
            kept.append(node)
            used.update(node.input)
            used.update(_outer_names(node))
    _replace_nodes(graph, reversed(kept))
    tensors = [one for one in graph.initializer if one.name in used]
    del graph.initializer[:]
    graph.initializer.extend(tensors)


def _outer_names(node) -> set:
    """Names that the graphs inside of a node use."""
    graphs = [one.g for one in node.attribute if one.HasField("g")]
    nodes = [one for graph in graphs for one in graph.node]
    names = {value.name for graph in graphs for value in graph.output}
    return names.union(*(one.input for one in nodes), *map(_outer_names, nodes))
