"""ONNX graphs, built by operations on their values.

    graph = Graph()
    x = graph.input("x", "float32", (None, 4))
    graph.model({"y": softmax(x * 2.0)})

The functions have the names and arguments of `keras.ops`; arrays and numbers among
their arguments become constants of the graph. All integers are int64, which the
operators of ONNX take and return. Only the operations of the search are here.
"""

import numpy as np

_OPSET = 18


class Value:
    """A tensor of a graph.

    Attributes:
        graph: the `Graph` that it belongs to.
        name: str, its name there.
        dtype: "float32", "int64" or "bool".
        shape: tuple of int, or None where a size is unknown.
    """

    __array_ufunc__ = None  # so that an array leaves its operators to a value

    def __init__(self, graph, name, dtype, shape):
        self.graph, self.name, self.dtype = graph, name, dtype
        self.shape = tuple(shape)

    def __add__(self, other):
        return _binary("Add", self, other)

    def __radd__(self, other):
        return _binary("Add", other, self)

    def __sub__(self, other):
        return _binary("Sub", self, other)

    def __rsub__(self, other):
        return _binary("Sub", other, self)

    def __mul__(self, other):
        return _binary("Mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return _binary("Div", self, other)

    # Of numbers that are not negative.
    def __floordiv__(self, other):
        return _binary("Div", self, other)

    def __mod__(self, other):
        return _binary("Mod", self, other)

    def __lt__(self, other):
        return _binary("Less", self, other, "bool")

    def __le__(self, other):
        return _binary("LessOrEqual", self, other, "bool")

    def __gt__(self, other):
        return _binary("Greater", self, other, "bool")

    def __ge__(self, other):
        return _binary("GreaterOrEqual", self, other, "bool")

    def __eq__(self, other):
        return _binary("Equal", self, other, "bool")

    def __ne__(self, other):
        equal = self == other
        return self.graph.node("Not", [equal], "bool", equal.shape)

    __hash__ = object.__hash__

    def __and__(self, other):
        return _binary("And", self, other, "bool")

    def __or__(self, other):
        return _binary("Or", self, other, "bool")

    def __neg__(self):
        return self.graph.node("Neg", [self], self.dtype, self.shape)

    def __getitem__(self, key):
        return _sliced(self, key if isinstance(key, tuple) else (key,))


class Graph:
    """A graph under construction."""

    def __init__(self):
        self._nodes, self._inputs, self._weights = [], {}, []
        self._constants, self._opsets = {}, {"": _OPSET}

    def input(self, name: str, dtype, shape) -> Value:
        self._inputs[name] = dtype, shape
        return Value(self, name, dtype, shape)

    def constant(self, array) -> Value:
        array = np.asarray(array)
        if array.dtype != bool:
            kind = "int64" if array.dtype.kind in "iu" else "float32"
            array = array.astype(kind)
        key = array.dtype.name, array.shape, array.tobytes()
        name = self._constants.setdefault(key, (f"c{len(self._constants)}", array))[0]
        return Value(self, name, array.dtype.name, array.shape)

    def node(self, operator: str, inputs, dtype, shape, **attributes) -> Value:
        """A node with one output. An input None is left out."""
        return self.nodes(operator, inputs, [(dtype, shape)], **attributes)[0]

    def nodes(self, operator: str, inputs, outputs, **attributes) -> list[Value]:
        """A node with the outputs (dtype, shape)."""
        from onnx import helper

        names = ["" if x is None else self.value(x).name for x in inputs]
        count = len(self._nodes)
        values = [
            Value(self, f"v{count}_{place}", *kind)
            for place, kind in enumerate(outputs)
        ]
        made = [value.name for value in values]
        self._nodes.append(helper.make_node(operator, names, made, **attributes))
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
        from onnx import TensorProto, helper

        renamed = {"": ""}
        for item in model.graph.input:
            kind = TensorProto.DataType.Name(item.type.tensor_type.elem_type).lower()
            value = feeds[item.name]
            if value.dtype != kind:
                value = _cast(value, kind)
            renamed[item.name] = value.name

        def name_of(name):
            return renamed.setdefault(name, f"{prefix}{name}")

        for weight in model.graph.initializer:
            copy = type(weight)()
            copy.CopyFrom(weight)
            copy.name = name_of(weight.name)
            self._weights.append(copy)
        for node in model.graph.node:
            copy = type(node)()
            copy.CopyFrom(node)
            copy.name = f"{prefix}{node.name}" if node.name else ""
            copy.input[:] = map(name_of, node.input)
            copy.output[:] = map(name_of, node.output)
            self._nodes.append(copy)
        for opset in model.opset_import:
            version = self._opsets.get(opset.domain, 0)
            self._opsets[opset.domain] = max(version, opset.version)
        outputs = {}
        for item in model.graph.output:
            tensor = item.type.tensor_type
            shape = [dim.dim_value or None for dim in tensor.shape.dim]
            kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            outputs[item.name] = Value(self, name_of(item.name), kind, shape)
        return outputs

    def model(self, outputs: dict[str, Value]):
        """The `onnx.ModelProto` with these outputs, by name."""
        from onnx import helper, numpy_helper

        def info(name, dtype, shape):
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            return helper.make_tensor_value_info(name, kind, shape)

        nodes = [
            *self._nodes,
            *(
                helper.make_node("Identity", [value.name], [name])
                for name, value in outputs.items()
            ),
        ]
        graph = helper.make_graph(
            nodes,
            "search",
            [info(name, *kind) for name, kind in self._inputs.items()],
            [info(name, v.dtype, v.shape) for name, v in outputs.items()],
            [
                *self._weights,
                *(numpy_helper.from_array(x, n) for n, x in self._constants.values()),
            ],
        )
        opsets = [helper.make_opsetid(*item) for item in self._opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


# --- Operations ---


def _graph_of(*args) -> Graph:
    return next(x.graph for x in args if isinstance(x, Value))


def _binary(operator, x, y, dtype=None):
    x, y = _promoted(x, y)
    shape = _broadcast(x.shape, y.shape)
    return x.graph.node(operator, [x, y], dtype or x.dtype, shape)


def _promoted(x, y) -> tuple[Value, Value]:
    """Both of one dtype: a number takes that of the tensor."""
    graph = _graph_of(x, y)
    values = [graph.value(part) for part in (x, y)]
    kinds = {value.dtype for value in values}
    if len(kinds) == 1:
        return tuple(values)
    for place, other in ((0, y), (1, x)):
        part = (x, y)[place]
        if not isinstance(part, Value):
            values[place] = graph.constant(np.asarray(part, other.dtype))
            return tuple(values)
    return tuple(cast(value, "float32") for value in values)


def _broadcast(*shapes) -> tuple:
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
    if Ellipsis in key:
        place = key.index(Ellipsis)
        count = len(x.shape) - (len(key) - 1 - key.count(None))
        key = (*key[:place], *[slice(None)] * count, *key[place + 1 :])
    starts, ends, axes, new, dropped, sizes = [], [], [], [], [], list(x.shape)
    axis = 0
    for place, part in enumerate(key):
        if part is None:
            new.append(place)
            continue
        if isinstance(part, int):
            part = slice(part, part + 1 if part != -1 else None)
            dropped.append(axis)
        if part != slice(None):
            axes.append(axis)
            starts.append(part.start or 0)
            ends.append(2**31 - 1 if part.stop is None else part.stop)
            if sizes[axis] is not None:
                sizes[axis] = len(range(sizes[axis])[part])
        axis += 1
    if axes:
        limits = [np.asarray(part, "int64") for part in (starts, ends, axes)]
        x = x.graph.node("Slice", [x, *limits], x.dtype, sizes)
    if dropped:
        kept = [size for axis, size in enumerate(x.shape) if axis not in dropped]
        x = x.graph.node("Squeeze", [x, np.array(dropped)], x.dtype, kept)
    if new:
        shape = list(x.shape)
        new = [n - sum(isinstance(part, int) for part in key[:n]) for n in new]
        for n in new:
            shape.insert(n, 1)
        x = x.graph.node("Unsqueeze", [x, np.array(new)], x.dtype, shape)
    return x


def _cast(x: Value, dtype) -> Value:
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return x.graph.node("Cast", [x], dtype, x.shape, to=kind)


def cast(x, dtype):
    dtype = {"int32": "int64"}.get(dtype, dtype)
    return x if x.dtype == dtype else _cast(x, dtype)


def convert_to_tensor(x, dtype=None):
    return x if dtype is None else cast(x, dtype)


def shape(x) -> tuple:
    """Sizes; a scalar of the graph where one is unknown."""
    sizes = list(x.shape)
    for axis, size in enumerate(sizes):
        if size is None:
            options = {"start": axis, "end": axis + 1}
            size = x.graph.node("Shape", [x], "int64", (1,), **options)
            sizes[axis] = x.graph.node("Squeeze", [size], "int64", ())
    return tuple(sizes)


def reshape(x, shape):
    graph = _graph_of(x, *shape)
    known = [size if isinstance(size, int) and size >= 0 else None for size in shape]
    if None in known and all(isinstance(size, int) for size in shape):
        sizes, rest = list(x.shape), [size for size in known if size is not None]
        if None not in sizes and -1 in shape:
            known[shape.index(-1)] = int(np.prod(sizes)) // int(np.prod(rest))
    if not all(isinstance(size, int) for size in shape):
        parts = [
            reshape(size, (1,)) if isinstance(size, Value) else np.array([size])
            for size in shape
        ]
        shape = graph.node("Concat", parts, "int64", (len(parts),), axis=0)
    else:
        shape = np.array(shape, "int64")
    return graph.node("Reshape", [x, shape], x.dtype, known)


def where(condition, x, y):
    graph = _graph_of(condition, x, y)
    if isinstance(x, Value) or isinstance(y, Value):
        x, y = _promoted(x, y)
    x, y = graph.value(x), graph.value(y)
    condition = graph.value(condition)
    sizes = _broadcast(condition.shape, x.shape, y.shape)
    return graph.node("Where", [condition, x, y], x.dtype, sizes)


def maximum(x, y):
    return _binary("Max", x, y)


def minimum(x, y):
    return _binary("Min", x, y)


def power(x, y):
    return _binary("Pow", x, y)


def isnan(x):
    return x.graph.node("IsNaN", [x], "bool", x.shape)


def exp(x):
    return x.graph.node("Exp", [x], x.dtype, x.shape)


def log(x):
    return x.graph.node("Log", [x], x.dtype, x.shape)


def softmax(x, axis=-1):
    return x.graph.node("Softmax", [x], x.dtype, x.shape, axis=axis)


def log_softmax(x, axis=-1):
    return x.graph.node("LogSoftmax", [x], x.dtype, x.shape, axis=axis)


def logaddexp(x, y):
    largest = maximum(x, y)
    return largest + log(exp(x - largest) + exp(y - largest))


def _reduced(operator, x, axis, keepdims):
    axes = [axis] if isinstance(axis, int) else list(axis)
    axes = [a % len(x.shape) for a in axes]
    sizes = [
        1 if a in axes else size
        for a, size in enumerate(x.shape)
        if keepdims or a not in axes
    ]
    axes = np.array(axes)
    return x.graph.node(operator, [x, axes], x.dtype, sizes, keepdims=int(keepdims))


def sum(x, axis, keepdims=False):  # noqa: A001
    return _reduced("ReduceSum", x, axis, keepdims)


def max(x, axis, keepdims=False):  # noqa: A001
    return _reduced("ReduceMax", x, axis, keepdims)


def min(x, axis, keepdims=False):  # noqa: A001
    return _reduced("ReduceMin", x, axis, keepdims)


def argmax(x, axis=-1):
    return x.graph.node("ArgMax", [x], "int64", x.shape[:-1], axis=axis, keepdims=0)


def cumsum(x, axis=-1):
    return x.graph.node("CumSum", [x, np.array(axis)], x.dtype, x.shape)


def top_k(x, k):
    size = (*x.shape[:-1], k)
    count = np.array([k])
    return x.graph.nodes("TopK", [x, count], [(x.dtype, size), ("int64", size)])


def sort(x, axis=-1):
    size = x.shape[-1]
    return x.graph.nodes(
        "TopK", [x, np.array([size])], [(x.dtype, x.shape), ("int64", x.shape)],
        largest=0,
    )[0]  # fmt: skip


def take(x, indices, axis=0):
    graph = _graph_of(x, indices)
    x, indices = graph.value(x), graph.value(indices)
    sizes = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return graph.node("Gather", [x, indices], x.dtype, sizes, axis=axis)


def take_each(x, indices):
    """x (B, N), indices (B, n) -> (B, n)."""
    graph = _graph_of(x, indices)
    x, indices = graph.value(x), graph.value(indices)
    sizes = (x.shape[0], *indices.shape[1:])
    return graph.node("GatherElements", [x, indices], x.dtype, sizes, axis=1)


def concatenate(parts, axis=0):
    graph = _graph_of(*parts)
    parts = [graph.value(part) for part in parts]
    sizes = [*parts[0].shape]
    along = [part.shape[axis] for part in parts]
    sizes[axis] = None if None in along else int(np.sum(along))
    return graph.node("Concat", parts, parts[0].dtype, sizes, axis=axis)


def stack(parts, axis=0):
    graph = _graph_of(*parts)
    axis = axis % (len(parts[0].shape) + 1)
    key = (slice(None),) * axis + (None,)
    return concatenate([graph.value(part)[key] for part in parts], axis)


def repeat(x, repeats, axis=0):
    sizes = [*x.shape]
    sizes.insert(axis + 1, repeats)
    key = (slice(None),) * (axis + 1) + (None,)
    x = x[key]
    ones = np.ones(len(x.shape), "int64")
    ones[axis + 1] = repeats
    x = x.graph.node("Expand", [x, ones], x.dtype, sizes)
    return reshape(x, (*sizes[:axis], -1, *sizes[axis + 2 :]))


def pad(x, widths, constant_values=0):
    begins, ends = zip(*widths, strict=True)
    sizes = [
        None if size is None else size + before + after
        for size, before, after in zip(x.shape, begins, ends, strict=True)
    ]
    value = np.asarray(constant_values, x.dtype)
    widths = np.array([*begins, *ends], "int64")
    return x.graph.node("Pad", [x, widths, value], x.dtype, sizes)


def broadcast_to(x, sizes):
    graph = _graph_of(x, *sizes)
    parts = [
        reshape(size, (1,)) if isinstance(size, Value) else np.array([size])
        for size in sizes
    ]
    target = graph.node("Concat", parts, "int64", (len(parts),), axis=0)
    known = [size if isinstance(size, int) else None for size in sizes]
    return graph.node("Expand", [graph.value(x), target], x.dtype, known)


def arange(start, stop=None, dtype="int64"):
    graph = _graph_of(start, stop)
    start, stop = (0, start) if stop is None else (start, stop)
    return graph.node("Range", [start, stop, 1], "int64", (None,))


def full_like(x, value, dtype=None):
    dtype = {"int32": "int64", None: x.dtype}.get(dtype, dtype)
    size = x.graph.node("Shape", [x], "int64", (len(x.shape),))
    return x.graph.node("Expand", [np.asarray(value, dtype), size], dtype, x.shape)


def zeros_like(x):
    return full_like(x, 0)


def ones_like(x):
    return full_like(x, 1)


def scatter_update(x, places, values):
    """x[places[i]] = values[i]."""
    return x.graph.node("ScatterND", [x, places, values], x.dtype, x.shape)


def float32_logits(logits):
    return cast(logits, "float32")


def compiled_by_xla(x) -> bool:
    return False
