"""Compilation of ops by XLA or as plain operations, and custom gradients.

Of two formulas for one result, `run_formula` takes the one that fits where it is traced
(or run eagerly). Under TensorFlow:

| where                             | formula                     |
|-----------------------------------|-----------------------------|
| inside a function compiled by XLA | fused, inline               |
| while a model is exported         | plain                       |
| eagerly, in an uncompiled graph   | the faster; fused means XLA |
| the same under `jit_scope(False)` | plain                       |

A stock TensorFlow Serving refuses compiled functions, hence the second row. The
compiled functions are shared by all layers and compiled once per shape; T, or the
number of rows, is padded to one of few (`bucket`) so that ragged batches do not compile
each of them.

With JAX every call is compiled by `jax.jit` unless `jit_scope` forbids it.
"""

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_seqconv.support import jax, tf
from keras_seqconv.support.arguments import check_boolean

# What each open `jit_scope` says, also those of other threads: the last one counts.
# Each has an object of its own, so that it is removed by identity.
_scopes: list[tuple[object, bool]] = []


def _may_compile() -> bool:
    return all(may_compile for _, may_compile in _scopes[-1:])


@contextlib.contextmanager
def jit_scope(jit_compile: bool) -> Iterator[None]:
    """Allows or forbids the ops of this package to compile themselves by XLA.

    It acts on what is traced, or run eagerly, in a `with` block, and not on functions
    that Keras, TensorFlow or JAX compile as a whole.

    Args:
        jit_compile: True, as without a scope, lets an op compile itself where that is
            faster; False never does.

    Example:

    ```python
    with keras_seqconv.ops.jit_scope(False):
        model.fit(dataset)  # traced here, so it runs without XLA
    ```

    Raises:
        ValueError: `jit_compile` is no boolean.
    """
    scope = object(), check_boolean("jit_compile", jit_compile)
    _scopes.append(scope)
    try:
        yield
    finally:
        _scopes.remove(scope)


def run_formula(
    fused: Callable,
    plain: Callable,
    *tensors,
    static: tuple = (),
    prefer_plain: bool = False,
    inside_xla: bool = False,
    rows: int = 0,
):
    """Runs one of two formulas for the same result, see the table above.

    Args:
        fused: formula for XLA, called as `fused(*tensors, *static)`.
        plain: formula for uncompiled graphs, called in the same way.
        tensors: tensors (B, T, ...), or (H, K) for a shared kernel.
        static: hashable values; part of what a compiled function is cached by.
        prefer_plain: the plain formula is the faster one in an uncompiled graph.
        inside_xla: XLA compiles the result though the graph does not show it: gradients
            of a compiled function are traced outside of it.
        rows: for formulas without T, how many of the first tensors are (N, ...). Their
            N is not padded here; see `padded_rows`.

    Returns:
        What the formula returns; tensors (B, T, ...) are cut back to T.
    """
    if keras.backend.backend() == "jax":
        if _may_compile():
            return _jitted(fused, static)(*tensors)
        return plain(*tensors, *static)
    inside_xla = inside_xla or compiled_by_xla()
    if in_export():
        return (fused if inside_xla else plain)(*tensors, *static)
    if not inside_xla and (prefer_plain or not _may_compile()):
        if in_graph():
            return plain(*tensors, *static)
        # One call of a graph instead of many small ones.
        return _function(plain, static, tensors, rows, jit_compile=False)(*tensors)
    # Also inside XLA a function of its own, which XLA inlines: TensorFlow may reuse the
    # surrounding trace where nothing is compiled.
    function = _function(fused, static, tensors, rows, jit_compile=True)
    if inside_xla or rows:
        return function(*tensors)
    return _run_with_padded_time(function, tensors)


@functools.cache
def _jitted(formula, static):
    return jax.jit(lambda *tensors: formula(*tensors, *static))


# Modules of exporters to other runtimes. TensorFlow tells when it traces a SavedModel;
# these leave no trace but their frames, and start from any `keras.Model`.
_EXPORTERS = (
    "keras.src.export.litert.", "keras.src.export.onnx.", "keras.src.export.openvino.",
    "tf2onnx.", "openvino.", "keras_seqconv.models.onnx_graphs.",
)  # fmt: skip


def _in_save_context() -> bool:
    from tensorflow.python.saved_model import save_context

    return save_context.in_save_context()


def in_export() -> bool:
    """Whether the trace is for a SavedModel or another runtime: stock operations."""
    if keras.backend.backend() == "jax":
        return False
    return _in_save_context() or leaves_tensorflow()


def leaves_tensorflow() -> bool:
    """Whether an exporter to another runtime, such as ONNX, is tracing."""
    if keras.backend.backend() == "jax" or not in_graph() or _in_save_context():
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if f"{frame.f_globals.get('__name__', '')}.".startswith(_EXPORTERS):
            return True
        frame = frame.f_back
    return False


def check_export_dtype(dtype: str) -> None:
    """ValueError for half precision on its way out of TensorFlow.

    Exporters write bfloat16 as float16, LiteRT has neither.
    """
    if dtype in ("float16", "bfloat16") and leaves_tensorflow():
        raise ValueError(
            "`dtype` must be float32 for exports to ONNX, LiteRT and OpenVINO: build "
            "the model again in float32, call `set_weights`, and export that model. "
            f"Received: a layer that computes in {dtype}"
        )


def in_graph() -> bool:
    """Whether TensorFlow is tracing a function."""
    return not tf.executing_eagerly()


def compiled_by_xla() -> bool:
    """Whether XLA compiles what is traced here, as on JAX: sizes must be fixed."""
    if keras.backend.backend() == "jax":
        return True
    from tensorflow.python.ops import control_flow_util

    return in_graph() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def on_cpu() -> bool:
    if keras.backend.backend() == "jax":
        return jax.default_backend() == "cpu"
    return not tf.config.list_logical_devices("GPU")


def _run_with_padded_time(function, tensors):
    """Runs with T padded to a bucket; shared kernels (H, K) have no T."""
    sequence = next(tensor for tensor in tensors if len(tensor.shape) > 2)
    length, extra = _size_and_extra(sequence, axis=1)
    if isinstance(extra, int) and extra == 0:
        return function(*tensors)
    results = function(
        *[t if len(t.shape) == 2 else _padded(t, 1, extra) for t in tensors]
    )
    return tf.nest.map_structure(
        lambda result: result[:, :length] if len(result.shape) > 2 else result, results
    )


def _size_and_extra(tensor, axis):
    """The size of an axis, and what it lacks to its bucket; ints where it is known."""
    size = tensor.shape[axis]
    size = tf.shape(tensor)[axis] if size is None else size
    return size, bucket(size) - size


def _padded(tensor, axis, extra):
    paddings = [[0, 0] for _ in tensor.shape]
    paddings[axis][1] = extra
    return tf.pad(tensor, paddings)


def padded_rows(tensor):
    """(N, ...) -> (M, ...) with zeros below, M one of few numbers if XLA compiles it.

    Gradients of the padding, and of the cut back to N, need no code.
    """
    if compiled_by_xla() or in_export() or not _may_compile():
        return tensor
    _, extra = _size_and_extra(tensor, axis=0)
    is_empty = isinstance(extra, int) and extra == 0
    return tensor if is_empty else _padded(tensor, 0, extra)


def _function(formula, static, tensors, rows, jit_compile):
    """The formula as a `tf.function`, one for all lengths and batch sizes."""
    specs = []
    for place, tensor in enumerate(tensors):
        shape = tuple(tensor.shape)
        if place < rows:
            shape = (None, *shape[1:])
        elif not rows and len(shape) > 2:
            shape = (None, None, *shape[2:])
        specs.append((shape, tensor.dtype.name))
    return _cached_function(formula, static, tuple(specs), jit_compile)


@functools.cache
def _cached_function(formula, static, specs, jit_compile):
    # Of many functions from one line TensorFlow would warn as of retracing; a `partial`
    # has no line.
    return tf.function(
        functools.partial(lambda *tensors: formula(*tensors, *static)),
        input_signature=[tf.TensorSpec(shape, dtype) for shape, dtype in specs],
        jit_compile=jit_compile,
        autograph=False,
    )


# 1, 2, 4, then multiples of 8 with at most a quarter more than needed.
BUCKETS = (1, 2, 4, *range(8, 64, 8))
BUCKETS += tuple(x for n in range(6, 20) for x in range(2**n, 2 ** (n + 1), 2**n // 4))
BUCKETS += (2**20,)


def bucket(length):
    """The smallest of the lengths that are compiled for which is at least `length`.

    `length` is an int or a scalar int32 tensor; so is the result. Beyond the longest
    bucket (a million positions) a length is its own bucket.
    """
    if isinstance(length, int):
        return next((size for size in BUCKETS if size >= length), length)
    table = tf.constant(BUCKETS, tf.int32)
    place = tf.searchsorted(table, [length])[0]
    inside = tf.minimum(place, len(BUCKETS) - 1)
    return tf.maximum(length, table[inside])


def varying_alike(*tensors) -> tuple:
    """The tensors, each varying over all axes of a `shard_map` that one varies over.

    JAX does this to the arguments of its own operations; the gradient is the sum
    over the devices that share a tensor.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tensors
    # The sum of no numbers, to which XLA adds nothing, varies as its tensors do.
    zero = sum(ops.sum(ops.reshape(tensor, (-1,))[:0]) for tensor in tensors)
    return tuple(tensor + ops.cast(zero, tensor.dtype) for tensor in tensors)


@functools.cache
def _tangent():
    """The JAX primitive of a function's tangents, with a hand-written transpose.

    Of n tensors the first `count` move, by as many tangents in front of them.
    """
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    def tangent(*values, function, gradient, count):
        tensors, rest = values[count : 2 * count], values[2 * count :]
        moved = jax.jvp(lambda *t: function(*t, *rest), tensors, values[:count])[1]
        return jax.tree.leaves(moved)

    def abstract(*values, **static):
        return jax.make_jaxpr(functools.partial(tangent, **static))(*values).out_avals

    def transpose(upstream, *values, function, gradient, count):
        upstream = tuple(map(ad.instantiate_zeros, upstream))
        upstream = upstream if len(upstream) > 1 else upstream[0]
        gradients = gradient(upstream, *values[count:])
        return [*gradients[:count], *[None] * (len(values) - count)]

    def moved(values, tangents, **static):
        call = functools.partial(tangent, **static)
        return jax.jvp(call, tuple(values), tuple(map(ad.instantiate_zeros, tangents)))

    def batched(values, axes, function, gradient, count):
        # All of them batched.
        values = jax.vmap(lambda *values_of_one: values_of_one, axes)(*values)
        static = {"function": jax.vmap(function), "gradient": jax.vmap(gradient)}
        tangents = made.bind(*values, **static, count=count)
        return tangents, [0] * len(tangents)

    made = Primitive("tangent_with_gradient")
    made.multiple_results = True
    made.def_impl(tangent)
    made.def_abstract_eval(abstract)
    ad.primitive_transposes[made], ad.primitive_jvps[made] = transpose, moved
    batching.primitive_batchers[made] = batched
    mlir.register_lowering(made, mlir.lower_fun(tangent, multiple_results=True))
    return made


def with_gradient(function: Callable, gradient: Callable) -> Callable:
    """`function` with `gradient` in place of what autodiff would make of it.

    `keras.ops.custom_gradient` would serve for first derivatives. For those of higher
    order each backend has a condition of its own, met here.

    Args:
        function: maps tensors to a tensor or a tuple of tensors.
            Those without a gradient, integers, come last.
        gradient: called as `gradient(upstream, *tensors)`, `upstream` in the structure
            of the outputs; returns one gradient per tensor. Made of functions with
            hand-written gradients itself, it can be differentiated any number of times.
    """
    if keras.backend.backend() == "jax":
        differentiable = jax.custom_jvp(function)

        @differentiable.defjvp
        def moved(tensors, tangents):
            count = sum(
                keras.backend.is_float_dtype(tensor.dtype) for tensor in tensors
            )
            static = {"function": function, "gradient": gradient, "count": count}
            tangents = _tangent().bind(*tangents[:count], *tensors, **static)
            outputs = differentiable(*tensors)
            return outputs, jax.tree.unflatten(jax.tree.structure(outputs), tangents)

        return lambda *tensors: differentiable(*varying_alike(*tensors))

    @custom_gradient
    def differentiable(*tensors):
        if tf.executing_eagerly():
            # A tape that recorded what runs inside would make TensorFlow compile a
            # second, slower version of it that keeps intermediates.
            outputs = function(*[tf.stop_gradient(tensor) for tensor in tensors])
        else:
            # The gradient below keeps its arguments. When the graph of a gradient is
            # differentiated, those from a surrounding graph would be out of scope.
            tensors = [tf.identity(tensor) for tensor in tensors]
            outputs = function(*tensors)

        def backward(*upstream):
            single = not isinstance(outputs, tuple)
            return gradient(upstream[0] if single else upstream, *tensors)

        return outputs, backward

    # Keras takes variables for tensors; a custom gradient refuses them.
    return lambda *tensors: differentiable(*map(tf.convert_to_tensor, tensors))


def custom_gradient(function: Callable) -> Callable:
    """`keras.ops.custom_gradient` whose traces die with their graphs on TensorFlow.

    On JAX this is automatic differentiation, which has a forward mode too. On
    TensorFlow each trace adds a gradient to a registry that never forgets it, and with
    it the graph, which is that of a whole model. Here the registry has a weak
    reference, and the graph the gradient.
    """
    if keras.backend.backend() == "jax":
        return lambda *tensors: function(*tensors)[0]
    differentiable = keras.ops.custom_gradient(function)

    def call(*tensors):
        results = differentiable(*tensors)
        if in_graph():
            _leave_to_graph(results[0] if isinstance(results, tuple) else results)
        return results

    return call


def _leave_to_graph(result):
    from tensorflow.python.framework import ops

    graph, name = result.graph, result.op.get_attr("_gradient_op_type").decode()
    gradient = ops.gradient_registry.lookup(name)
    reference, entries = weakref.ref(gradient), ops.gradient_registry._registry
    entries[name]["type"] = lambda *arguments: reference()(*arguments)
    graph._keras_seqconv_gradients = [
        *getattr(graph, "_keras_seqconv_gradients", ()),
        gradient,
    ]
    weakref.finalize(graph, entries.pop, name, None)
