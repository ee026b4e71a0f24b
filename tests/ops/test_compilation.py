"""How the ops run: exports without XLA, few compilations, forced choices."""

import contextlib
import gc
import weakref

import keras
import numpy as np
import pytest

from keras_seqconv.layers import DynamicConv, LightConv
from keras_seqconv.losses import LabelSmoothedCrossentropy
from keras_seqconv.ops import convolution, dynamic_conv, jit_scope, light_conv
from keras_seqconv.ops.compilation import BUCKETS, bucket
from tests.cases import quick_and_slow
from tests.export.stock_ops import not_stock
from tests.processes import run_python

pytestmark = pytest.mark.tensorflow


def has_compiled_call(graph) -> bool:
    return any(
        "_XlaMustCompile" in str(node.attr) for node in graph.as_graph_def().node
    )


def test_ops_compile_themselves_where_that_is_faster_and_allowed():
    import tensorflow as tf

    inputs = tf.ones((2, 9, 6))
    kernels = {light_conv: tf.ones((3, 4)), dynamic_conv: tf.ones((2, 9, 3, 4))}

    def compiled_ops():
        return [
            op.__name__
            for op, kernel in kernels.items()
            if has_compiled_call(
                tf.function(lambda a, b, op=op: op(a, b))
                .get_concrete_function(inputs, kernel)
                .graph
            )
        ]

    # TensorFlow's own depthwise convolution is faster than XLA's for a light one.
    assert compiled_ops() == ["dynamic_conv"]
    with pytest.raises(RuntimeError), jit_scope(False):
        assert compiled_ops() == []
        with jit_scope(True):
            assert compiled_ops() == ["dynamic_conv"]
        raise RuntimeError
    assert compiled_ops() == ["dynamic_conv"]
    first, second = jit_scope(False), jit_scope(False)  # of two threads
    for change in (first.__enter__, second.__enter__):
        change()
    first.__exit__(None, None, None)
    assert compiled_ops() == []
    second.__exit__(None, None, None)
    assert compiled_ops() == ["dynamic_conv"]
    with pytest.raises(ValueError, match="`jit_compile`.*'auto'"), jit_scope("auto"):
        pass


def test_model_export_holds_no_compiled_function(tmp_path):
    import tensorflow as tf

    symbols = keras.Input((None, 6))
    outputs = LightConv(3, 4)(DynamicConv(3, 5, padding="causal")(symbols))
    model = keras.Model(symbols, outputs)
    inputs = np.random.default_rng(0).normal(size=(2, 9, 6)).astype("float32")
    expected = model.predict(inputs, verbose=0)  # traced before with XLA inside
    model.export(tmp_path / "model", verbose=False)
    # Its value would be the variable's name.
    named = {"attribute debug_name of VarHandleOp"}
    assert {*not_stock(tmp_path / "model")} <= named
    loaded = tf.saved_model.load(tmp_path / "model")
    got = loaded.signatures["serve"](tf.constant(inputs))
    np.testing.assert_allclose(
        next(iter(got.values())).numpy(), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: light_conv(x, np.ones((2, 3), "float32")),
        lambda x: LabelSmoothedCrossentropy()(np.ones((2, 3)), x),
    ],
)
def test_graphs_with_gradients_of_ours_die(function):
    import tensorflow as tf

    def differentiate(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(inputs)
        return tape.gradient(outputs, inputs)

    traced = tf.function(differentiate, autograph=False)
    graph = weakref.ref(traced.get_concrete_function(tf.ones((2, 3, 4))).graph)
    del traced
    gc.collect()
    assert graph() is None


@pytest.mark.tensorflow
def test_a_module_named_like_an_exporter_is_none():
    """Exporters refuse half precision."""
    program = "import tensorflow as tf\ntrace = tf.function(lambda f, x: f(x))"
    layer = LightConv(2, 3, dtype="mixed_float16")
    inputs = np.ones((1, 5, 4), "float32")
    layer(inputs)
    for name, refused in (("openvino_demo", False), ("openvino.demo", True)):
        exec(program, module := {"__name__": name})
        context = contextlib.nullcontext()
        if refused:
            context = pytest.raises(ValueError, match="float16")
        with context:
            assert module["trace"](layer, inputs).dtype == "float16"


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_compiled_functions_avoid_the_native_convolution(
    monkeypatch, order
):
    """XLA compiles depthwise convolutions to very slow loops on the CPU.

    The second derivative of a compiled function is traced where nothing shows that XLA
    will compile it too.
    """
    import tensorflow as tf

    def refuse(*_):
        raise AssertionError("the native formula was chosen")

    inputs, kernel = tf.ones((2, 9, 6)), tf.ones((3, 4))

    def differentiate(jit_compile):
        function = tf.function(lambda a: light_conv(a, kernel), jit_compile=jit_compile)
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                value = tf.reduce_sum(function(inputs) ** 3)
            gradient = inner.gradient(value, inputs)
        return gradient if order == 1 else outer.gradient(gradient, inputs)

    monkeypatch.setattr(convolution._LIGHT, "plain", refuse)
    monkeypatch.setattr(convolution._LIGHT, "plain_gradients", refuse)
    assert np.all(np.isfinite(differentiate(jit_compile=True)))
    with pytest.raises(AssertionError, match="native formula"):
        differentiate(jit_compile=False)


COUNT_COMPILATIONS = """
    import os, sys
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["XLA_FLAGS"] = "--xla_dump_to=" + sys.argv[1]
    import numpy as np, tensorflow as tf
    from keras_seqconv.ops import dynamic_conv, light_conv

    def layers(inputs, kernel, shared):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel, shared])
            # two layers of each op: they share what is compiled
            hidden = dynamic_conv(dynamic_conv(inputs, kernel), kernel)
            hidden = light_conv(light_conv(hidden, shared), shared)
        return tape.gradient(hidden, [inputs, kernel, shared])

    for length in range(1, 201):
        layers(tf.ones((2, length, 4)), tf.ones((2, length, 2, 3)), tf.ones((2, 3)))
"""


@pytest.mark.slow
def test_two_hundred_lengths_compile_few_modules(tmp_path):
    """At most a forward and a gradient module per op and bucket."""
    run_python(COUNT_COMPILATIONS, tmp_path)
    modules = {path.name.split(".")[0] for path in tmp_path.glob("module_*")}
    buckets = [size for size in BUCKETS if size <= bucket(200)]
    assert len(buckets) == 18
    assert 0 < len(modules) <= 4 * len(buckets)


@pytest.mark.parametrize(
    ("dynamic", "xla"),
    quick_and_slow([(True, True), (False, False)], [(True, False), (False, True)]),
)
def test_no_buffer_grows_with_time_squared_or_with_channels_times_taps(dynamic, xla):
    """Every tensor of forward and backward stays O(BTC + BTHK)."""
    import re

    import tensorflow as tf

    batch, length, channels, heads, taps = 2, 2048, 64, 2, 31
    shape = (batch, length, heads, taps) if dynamic else (heads, taps)

    def run(inputs, kernel, upstream):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            outputs = (dynamic_conv if dynamic else light_conv)(inputs, kernel)
        return outputs, tape.gradient(outputs, [inputs, kernel], upstream)

    specs = [tf.zeros((batch, length, channels)), tf.zeros(shape)]
    specs.append(specs[0])
    if xla:
        function = tf.function(run, jit_compile=True)
        text = function.experimental_get_compiler_ir(*specs)(stage="optimized_hlo")
        entry = text[text.index("ENTRY") :]
        found = re.findall(r"= f32\[([\d,]+)\]", entry)
        sizes = [np.prod([int(n) for n in dims.split(",")]) for dims in found]
    else:
        with jit_scope(False):
            graph = tf.function(run).get_concrete_function(*specs).graph
        tensors = [output for node in graph.get_operations() for output in node.outputs]
        sizes = [t.shape.num_elements() or 0 for t in tensors]
    # 3: windows and bands of blocks of 32 are up to 62 / 31 times as large, and a bit
    bound = 3 * (batch * length * channels + batch * length * heads * taps)
    assert len(sizes) > 5
    assert max(sizes) <= bound < batch * length * channels * taps
    assert bound < batch * heads * length**2
