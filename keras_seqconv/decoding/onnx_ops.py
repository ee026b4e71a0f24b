"""`keras.ops` for values of a graph of ONNX: the operations that a search has."""

import functools

import numpy as np

from keras_seqconv.decoding.onnx_graph import (
    Value,
    binary,
    broadcast,
    graph_of,
    promoted,
)


def cast(x, dtype):
    return x.cast({"int32": "int64"}.get(dtype, dtype))


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
    graph = graph_of(x, *shape)
    static_sizes = [
        size if isinstance(size, int) and size >= 0 else None for size in shape
    ]
    if None in static_sizes and all(isinstance(size, int) for size in shape):
        sizes, rest = list(x.shape), [size for size in static_sizes if size is not None]
        if None not in sizes and -1 in shape:
            static_sizes[shape.index(-1)] = int(np.prod(sizes)) // int(np.prod(rest))
        if static_sizes == list(x.shape) and static_sizes.count(None) <= 1:
            return x
    return graph.node("Reshape", [x, _joined(graph, shape)], x.dtype, static_sizes)


def _joined(graph, sizes):
    """Sizes, some of which may be scalars of the graph, as one tensor."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, "int64")
    parts = [
        reshape(size, (1,)) if isinstance(size, Value) else np.array([size])
        for size in sizes
    ]
    return graph.node("Concat", parts, "int64", (len(parts),), axis=0)


def where(condition, x, y):
    graph = graph_of(condition, x, y)
    if isinstance(x, Value) or isinstance(y, Value):
        x, y = promoted(x, y)
    x, y = graph.value(x), graph.value(y)
    condition = graph.value(condition)
    if x.dtype == "bool":  # ONNX Runtime has no such kernel
        return condition & x | (condition == False) & y  # noqa: E712
    sizes = broadcast(condition.shape, x.shape, y.shape)
    return graph.node("Where", [condition, x, y], x.dtype, sizes)


maximum, minimum, power = (
    functools.partial(binary, operator) for operator in ("Max", "Min", "Pow")
)


def _unary(operator, x, dtype=None, **attributes):
    return x.graph.node(operator, [x], dtype or x.dtype, x.shape, **attributes)


exp, log, log_softmax = (  # the last of the last axis
    functools.partial(_unary, operator) for operator in ("Exp", "Log", "LogSoftmax")
)
isnan = functools.partial(_unary, "IsNaN", dtype="bool")


def logaddexp(x, y):
    largest = maximum(x, y)
    return largest + log(exp(x - largest) + exp(y - largest))


def _reduced(operator, x, axis=None, keepdims=False):
    rank = len(x.shape)
    axes = np.arange(rank) if axis is None else np.ravel(axis) % rank
    sizes = [
        1 if a in axes else size
        for a, size in enumerate(x.shape)
        if keepdims or a not in axes
    ]
    return x.graph.node(operator, [x, axes], x.dtype, sizes, keepdims=int(keepdims))


sum, max, min = (  # noqa: A001
    functools.partial(_reduced, f"Reduce{name}") for name in ("Sum", "Max", "Min")
)


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
    graph = graph_of(x, indices)
    x, indices = graph.value(x), graph.value(indices)
    sizes = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return graph.node("Gather", [x, indices], x.dtype, sizes, axis=axis)


def take_each(x, indices):
    """x (B, N), indices (B, n) -> (B, n)."""
    graph = graph_of(x, indices)
    x, indices = graph.value(x), graph.value(indices)
    sizes = (x.shape[0], *indices.shape[1:])
    return graph.node("GatherElements", [x, indices], x.dtype, sizes, axis=1)


def take_in_rows(x, indices):
    """x (R, N, C), indices (R, n) -> (R, n, C)."""
    sizes = (*indices.shape, x.shape[2])
    inputs = [x, indices[:, :, None]]
    return x.graph.node("GatherND", inputs, x.dtype, sizes, batch_dims=1)


def concatenate(parts, axis=0):
    graph = graph_of(*parts)
    parts = [graph.value(part) for part in parts]
    sizes = [*parts[0].shape]
    along = [part.shape[axis] for part in parts]
    sizes[axis] = None if None in along else int(np.sum(along))
    return graph.node("Concat", parts, parts[0].dtype, sizes, axis=axis)


def stack(parts, axis=0):
    graph = graph_of(*parts)
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
    graph = graph_of(x, *sizes)
    static_sizes = [size if isinstance(size, int) else None for size in sizes]
    inputs = [graph.value(x), _joined(graph, sizes)]
    return graph.node("Expand", inputs, x.dtype, static_sizes)


def arange(start, stop=None, step=1, dtype="int64"):
    graph = graph_of(start, stop)
    start, stop = (0, start) if stop is None else (start, stop)
    return graph.node("Range", [start, stop, step], "int64", (None,))


def full_like(x, value, dtype=None):
    dtype = {"int32": "int64", None: x.dtype}.get(dtype, dtype)
    size = x.graph.node("Shape", [x], "int64", (len(x.shape),))
    return x.graph.node("Expand", [np.asarray(value, dtype), size], dtype, x.shape)


zeros_like, ones_like = (functools.partial(full_like, value=value) for value in (0, 1))


def scatter_update(x, places, values):
    """x[places[i]] = values[i]."""
    return x.graph.node("ScatterND", [x, places, values], x.dtype, x.shape)


float32_logits = functools.partial(cast, dtype="float32")
