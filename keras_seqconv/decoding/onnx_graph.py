"""ONNX graphs, built by operations on their values.

    graph = Graph()
    x = graph.input("x", "float32", (None, 4))
    graph.model({"y": x * 2.0})

Arrays and numbers that meet a value become constants of the graph. All integers are
int64, which the operators of ONNX take and return; a model's inputs are cast.
"""

import numpy as np

from keras_seqconv.support import onnx

OPSET = 18  # of all graphs; models, which are inlined, have the same


def _operator(name: str, dtype: str | None = None):
    """A method of two values, of which one may be an array or a number."""
    return lambda self, other: binary(name, self, other, dtype)


class Value:
    """A tensor of a graph.

    Attributes:
        graph: the `Graph` that it belongs to.
        name: str, its name there.
        dtype: "float32", "int64" or "bool"; "float64" between casts.
        shape: tuple of int, or None where a size is unknown.
    """

    __array_ufunc__ = None  # so that an array leaves its operators to a value

    def __init__(self, graph, name, dtype, shape):
        self.graph, self.name, self.dtype = graph, name, dtype
        self.shape = tuple(shape)

    def cast(self, dtype: str) -> "Value":
        if dtype == self.dtype:
            return self
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.graph.node("Cast", [self], dtype, self.shape, to=kind)

    __add__, __sub__, __mul__ = map(_operator, ("Add", "Sub", "Mul"))
    __radd__, __rmul__ = __add__, __mul__
    __truediv__, __mod__ = map(_operator, ("Div", "Mod"))
    __floordiv__ = __truediv__  # of numbers that are not negative
    __lt__, __le__ = _operator("Less", "bool"), _operator("LessOrEqual", "bool")
    __gt__, __ge__ = _operator("Greater", "bool"), _operator("GreaterOrEqual", "bool")
    __and__, __or__ = _operator("And", "bool"), _operator("Or", "bool")
    __eq__, __hash__ = _operator("Equal", "bool"), object.__hash__

    def __ne__(self, other):
        equal = self == other
        return self.graph.node("Not", [equal], "bool", equal.shape)

    def __neg__(self):
        return self.graph.node("Neg", [self], self.dtype, self.shape)

    def __getitem__(self, key):
        return _sliced(self, key if isinstance(key, tuple) else (key,))


class Graph:
    """A graph under construction."""

    def __init__(self):
        self._nodes, self._inputs, self._weights = [], {}, []
        self._constants, self._opsets = {}, {"": OPSET}

    def input(self, name: str, dtype, shape) -> Value:
        self._inputs[name] = dtype, shape
        return Value(self, name, dtype, shape)

    def constant(self, array, dtype: str | None = None) -> Value:
        array = np.asarray(array)
        kinds = {"b": "bool", "i": "int64", "u": "int64"}
        array = array.astype(dtype or kinds.get(array.dtype.kind, "float32"))
        key = array.dtype.name, array.shape, array.tobytes()
        name = self._constants.setdefault(key, (f"c{len(self._constants)}", array))[0]
        return Value(self, name, array.dtype.name, array.shape)

    def node(self, operator: str, inputs, dtype, shape, **attributes) -> Value:
        """A node with one output."""
        return self.nodes(operator, inputs, [(dtype, shape)], **attributes)[0]

    def nodes(self, operator: str, inputs, outputs, **attributes) -> list[Value]:
        """A node with the outputs (dtype, shape)."""
        names = [self.value(x).name for x in inputs]
        count = len(self._nodes)
        values = [
            Value(self, f"v{count}_{place}", *kind)
            for place, kind in enumerate(outputs)
        ]
        made = [value.name for value in values]
        self._nodes.append(onnx.helper.make_node(operator, names, made, **attributes))
        return values

    def value(self, x) -> Value:
        return x if isinstance(x, Value) else self.constant(x)

    def inline(self, model, prefix: str, feeds: dict[str, Value]) -> dict[str, Value]:
        """The nodes of another model, for other inputs.

        Args:
            model: `onnx.ModelProto`.
            prefix: of the names of its values and weights.
            feeds: value by input.

        Returns:
            Value by output.
        """
        # Graphs inside of nodes get their prefix before onnx looks at the weights.
        names = {x.name: f"{prefix}{x.name}" for x in model.graph.initializer}
        for item in model.graph.input:
            kind = onnx.helper.tensor_dtype_to_np_dtype(
                item.type.tensor_type.elem_type
            ).name
            names[item.name] = feeds[item.name].cast(kind).name
        graph = onnx.compose.add_prefix_graph(
            model.graph,
            prefix,
            rename_inputs=False,
            rename_value_infos=False,
            name_map=names,
        )
        self._weights += graph.initializer
        self._nodes += graph.node
        for opset in model.opset_import:
            version = self._opsets.get(opset.domain, 0)
            self._opsets[opset.domain] = max(version, opset.version)
        outputs = {}
        for item, renamed in zip(model.graph.output, graph.output, strict=True):
            tensor = item.type.tensor_type
            shape = [dim.dim_value or None for dim in tensor.shape.dim]
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            outputs[item.name] = Value(self, renamed.name, kind, shape)
        return outputs

    def model(self, outputs: dict[str, Value]):
        """The `onnx.ModelProto` with these outputs, by name; it ends the graph."""

        def info(name, dtype, shape):
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            return onnx.helper.make_tensor_value_info(name, kind, shape)

        nodes = [*self._nodes]
        made = {name for node in nodes for name in node.output}
        made -= {name for node in nodes for name in outer_names(node)}
        final = {x.name: name for name, x in outputs.items() if x.name in made}
        for node in nodes:
            node.input[:] = [final.get(name, name) for name in node.input]
            node.output[:] = [final.get(name, name) for name in node.output]
        for name, value in outputs.items():
            source = final.get(value.name, value.name)
            if source != name:
                nodes.append(onnx.helper.make_node("Identity", [source], [name]))
        kept, needed = needed_nodes(nodes, outputs)
        graph = onnx.helper.make_graph(
            kept,
            "search",
            [info(n, *kind) for n, kind in self._inputs.items() if n in needed],
            [info(name, v.dtype, v.shape) for name, v in outputs.items()],
            [
                *(weight for weight in self._weights if weight.name in needed),
                *(
                    onnx.numpy_helper.from_array(x, n)
                    for n, x in self._constants.values()
                    if n in needed
                ),
            ],
        )
        opsets = [onnx.helper.make_opsetid(*item) for item in self._opsets.items()]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


# --- Nodes ---


def needed_nodes(nodes, names) -> tuple[list, set]:
    """Nodes that the values of these names depend on; the names of all that they use.

    ONNX Runtime would run the others, too.
    """
    kept, needed = [], {*names}
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input, outer_names(node))
            kept.append(node)
    return kept[::-1], needed


def outer_names(node) -> set:
    """Names that the graphs inside of a node use."""
    graphs = [part.g for part in node.attribute if part.HasField("g")]
    nodes = [part for graph in graphs for part in graph.node]
    names = {value.name for graph in graphs for value in graph.output}
    return names.union(*(part.input for part in nodes), *map(outer_names, nodes))


# --- Operators ---


def graph_of(*args) -> Graph:
    return next(x.graph for x in args if isinstance(x, Value))


def binary(operator, x, y, dtype=None):
    x, y = promoted(x, y)
    shape = broadcast(x.shape, y.shape)
    return x.graph.node(operator, [x, y], dtype or x.dtype, shape)


def promoted(x, y) -> tuple[Value, Value]:
    """Both of one dtype: a number takes that of the tensor."""
    if not isinstance(x, Value):
        return y.graph.constant(x, y.dtype), y
    if not isinstance(y, Value):
        return x, x.graph.constant(y, x.dtype)
    if x.dtype != y.dtype:
        return x.cast("float32"), y.cast("float32")
    return x, y


def broadcast(*shapes) -> tuple:
    rank = max(map(len, shapes))
    sizes = zip(
        *((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True
    )
    return tuple(
        next((size for size in axis if size not in (1, None)), None)
        if set(axis) != {1}
        else 1
        for axis in sizes
    )


def _sliced(x: Value, key: tuple) -> Value:
    limits, axes, new, single, sizes = [], [], [], [], list(x.shape)
    axis = 0
    for place, part in enumerate(key):
        if part is None:
            new.append(place)
            continue
        if isinstance(part, int):
            single.append((axis, part))
        elif part != slice(None):
            axes.append(axis)
            end = 2**31 - 1 if part.stop is None else part.stop
            limits.append((part.start or 0, end, part.step or 1))
            if sizes[axis] is not None:
                sizes[axis] = len(range(sizes[axis])[part])
        axis += 1
    if axes:
        starts, ends, steps = np.array(limits).T
        inputs = [x, starts, ends, np.array(axes), steps]
        x = x.graph.node("Slice", inputs, x.dtype, sizes)
    for axis, index in reversed(single):
        kept = [*x.shape[:axis], *x.shape[axis + 1 :]]
        x = x.graph.node("Gather", [x, np.array(index)], x.dtype, kept, axis=axis)
    if new:
        shape = list(x.shape)
        new = [n - sum(isinstance(part, int) for part in key[:n]) for n in new]
        for n in new:
            shape.insert(n, 1)
        x = x.graph.node("Unsqueeze", [x, np.array(new)], x.dtype, shape)
    return x
