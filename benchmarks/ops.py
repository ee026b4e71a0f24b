"""How fast are the ops, and against what? One table per setting.

    python benchmarks/ops.py               # all tables, about 15 minutes
    python benchmarks/ops.py --only main   # the first setting

Rows of one table are timed in turns within one process, so that a machine that changes
its speed changes all of them; times are medians in milliseconds, with the quartiles of
the forward + backward times. "forward + backward" computes the outputs and the
gradients of inputs and kernel (of inputs and weights for layers). MB is the peak of
TensorFlow's allocator during one call, results included, inputs not. GB/s are the bytes
of a perfect op (inputs, kernel and outputs moved once; with the gradients for forward +
backward) over the time.
"""

import argparse
import functools
import gc
import itertools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from machine import machine

from keras_seqconv.ops import (
    causal_conv1d,
    causal_conv1d_update,
    dynamic_conv,
    jit_scope,
    light_conv,
)

# name -> (B, T, C, H, K, all rows?)
SETTINGS = {
    "main": (16, 128, 512, 8, 31, True),
    "K 3": (16, 128, 512, 8, 3, True),
    "K 7": (16, 128, 512, 8, 7, False),
    "K 15": (16, 128, 512, 8, 15, False),
    "B 64, T 32": (64, 32, 512, 8, 31, False),
    "C 1024, H 16": (16, 128, 1024, 16, 31, False),
}
SCALING = [1, 8, 64, 512, 1024, 2048, 4096]


class Case:
    """Tensors of one setting, and the rows to compare: name -> (function, jit)."""

    def __init__(self, batch, length, channels, heads, taps, every_row):
        self.shape = batch, length, channels, heads, taps
        rng = np.random.default_rng(0)

        def random(*shape):
            return tf.constant(rng.normal(size=shape).astype("float32"))

        self.inputs = random(batch, length, channels)
        self.upstream = random(batch, length, channels)
        self.light = random(heads, taps)
        self.dynamic = random(batch, length, heads, taps)
        self.left = (taps - 1) // 2
        self.every_row = every_row

    # Comparators, written as one would without this package.

    def padded(self, inputs):
        taps = self.shape[-1]
        return tf.pad(inputs, [[0, 0], [self.left, taps - 1 - self.left], [0, 0]])

    def split(self, inputs):
        _, _, channels, heads, _ = self.shape
        return tf.reshape(inputs, (inputs.shape[0], -1, heads, channels // heads))

    def native(self, inputs, kernel):
        kernel = tf.repeat(tf.transpose(kernel), self.shape[2] // self.shape[3], axis=1)
        kernel = kernel[None, :, :, None]
        strides = [1, 1, 1, 1]
        return tf.nn.depthwise_conv2d(inputs[:, None], kernel, strides, "SAME")[:, 0]

    def shifts_by_head(self, inputs, kernel):
        """Taps broadcast over (H, R): the best of the shifted forms."""
        padded, total = self.split(self.padded(inputs)), 0
        for tap in range(self.shape[-1]):
            shifted = padded[:, tap : tap + self.shape[1]]
            total += kernel[..., tap, None] * shifted
        return tf.reshape(total, self.inputs.shape)

    def shifts_by_channel(self, inputs, kernel):
        """Taps repeated to C channels."""
        _, length, channels, heads, taps = self.shape
        padded, total = self.padded(inputs), 0
        if len(kernel.shape) == 2:
            repeated = tf.repeat(tf.transpose(kernel), channels // heads, axis=1)
            rows = [repeated[tap] for tap in range(taps)]
        else:  # tap by tap: at once it would be (B, T, C, K), ten times slower
            rows = [
                tf.repeat(kernel[..., tap], channels // heads, axis=-1)
                for tap in range(taps)
            ]
        for tap, row in enumerate(rows):
            total += row * padded[:, tap : tap + length]
        return total

    def rows(self, op):
        """Ours, and forms that one would write instead: {name: (function, jit)}."""
        rows = {
            "ours, uncompiled graph": (op, False),
            "ours, inside jit_compile": (op, True),
            "ours, plain graph (export)": (plain(op), False),
            "shifted, by channel, XLA": (self.shifts_by_channel, True),
        }
        if self.every_row or op is dynamic_conv:
            rows["shifted, by head, XLA"] = self.shifts_by_head, True
        if op is light_conv:
            rows["tf.nn.depthwise_conv2d"] = self.native, False
        if self.every_row:
            rows["ours, eager"] = op, None
        if self.every_row and op is light_conv:
            rows["tf.nn.depthwise_conv2d, XLA"] = self.native, True
        return rows

    def layer_rows(self):
        """Layers that one would use in their place: (function of inputs, weights)."""
        _, _, channels, heads, taps = self.shape
        depthwise = keras.layers.DepthwiseConv1D(taps, padding="same", use_bias=False)
        attention = keras.layers.MultiHeadAttention(heads, channels // heads)
        depthwise.build(self.inputs.shape)
        attention(self.inputs, self.inputs)
        return {
            "keras DepthwiseConv1D": (depthwise, depthwise.trainable_variables),
            "keras MultiHeadAttention": (
                lambda inputs: attention(inputs, inputs),
                attention.trainable_variables,
            ),
        }


def plain(op):
    def without_xla(*arguments):
        with jit_scope(False):
            return op(*arguments)

    return without_xla


def with_gradients(function, upstream):
    def run(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            outputs = function(*arguments)
        # inside the scope of `plain` also while the gradient is traced
        return outputs, tape.gradient(outputs, arguments, upstream)

    return run


def graphs(function, jit, arguments):
    """The function as it is run, warmed up."""
    if jit is not None:
        function = tf.function(function, jit_compile=jit, autograph=False)
    for _ in range(3):
        function(*arguments)
    return lambda: function(*arguments)


def rows_of(case, kind):
    """{row: (forward call, forward + backward call)}, ready to be timed."""
    op, kernel = light_conv, case.light
    if kind == "DynamicConv":
        op, kernel = dynamic_conv, case.dynamic
    arguments = (case.inputs, kernel)
    ready = {}
    for name, (function, jit) in case.rows(op).items():
        both = with_gradients(function, case.upstream)
        if "plain" in name:
            both = plain(with_gradients(function, case.upstream))
        ready[name] = (
            graphs(function, jit, arguments),
            graphs(both, jit, arguments),
        )
    if case.every_row:
        ready |= layer_calls(case)
        if kind == "LightConv":
            ready |= torch_calls(case)
    return ready


def layer_calls(case):
    def both_of(layer, weights):
        def both(inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs)
            sources = [inputs, *[weight.value for weight in weights]]
            return outputs, tape.gradient(outputs, sources, case.upstream)

        return both

    return {
        name: (
            graphs(layer, False, (case.inputs,)),
            graphs(both_of(layer, weights), False, (case.inputs,)),
        )
        for name, (layer, weights) in case.layer_rows().items()
    }


def torch_calls(case):
    try:
        import torch
    except ImportError:
        return {}
    _, _, channels, heads, _ = case.shape
    # PyTorch's layout is (B, C, T); it is not charged for the transposition.
    inputs = torch.tensor(case.inputs.numpy()).transpose(1, 2).contiguous()
    upstream = torch.tensor(case.upstream.numpy()).transpose(1, 2).contiguous()
    kernel = torch.tensor(np.repeat(case.light.numpy(), channels // heads, 0))[:, None]
    inputs.requires_grad_(), kernel.requires_grad_()

    def forward():
        with torch.no_grad():
            return convolve()

    def convolve():
        padding = case.left
        return torch.nn.functional.conv1d(
            inputs, kernel, padding=padding, groups=channels
        )

    def both():
        inputs.grad = kernel.grad = None
        convolve().backward(upstream)

    for _ in range(3):
        forward(), both()
    return {f"PyTorch {torch.__version__} conv1d": (forward, both)}


def time_in_turns(ready, budget=1.0, rounds=8):
    """Seconds per call of every row and column, measured round by round."""
    times = {name: tuple([] for _ in calls) for name, calls in ready.items()}
    for _ in range(rounds):
        for name, calls in ready.items():
            for call, found in zip(calls, times[name], strict=True):
                call()  # after the other rows the caches are cold
                stop = time.perf_counter() + budget / rounds
                while time.perf_counter() < stop or len(found) < 3:
                    start = time.perf_counter()
                    call()
                    found.append(time.perf_counter() - start)
    return times


def peak_memory(call):
    """MB that TensorFlow's allocator held at most during one call, besides inputs."""
    result = call()
    del result
    gc.collect()
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    result = call()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    del result
    return (peak - before) / 1e6


def perfect_bytes(case, kind):
    batch, length, channels, heads, taps = case.shape
    values = batch * length * channels
    kernel = heads * taps * (batch * length if kind == "DynamicConv" else 1)
    return 4 * (2 * values + kernel), 4 * (4 * values + 2 * kernel)


def print_table(name, case, kind):
    letters = zip("BTCHK", case.shape, strict=True)
    shape = ", ".join(f"{letter} {size}" for letter, size in letters)
    print(f"\n### {kind}, {name}: {shape}\n")
    print(
        "| | forward ms | forward + backward ms | quartiles "
        "| MB forward | MB both | GB/s forward | GB/s both |"
    )
    print("|---|---|---|---|---|---|---|---|")
    ready = rows_of(case, kind)
    times = time_in_turns(ready)
    sizes = perfect_bytes(case, kind)
    for row, (forward, both) in times.items():
        low, middle, high = np.quantile(both, [0.25, 0.5, 0.75]) * 1e3
        first = np.median(forward) * 1e3
        cells = [f"{peak_memory(call):.0f}" for call in ready[row]]
        cells += [f"{sizes[0] / first / 1e6:.1f}", f"{sizes[1] / middle / 1e6:.1f}"]
        if row.startswith("keras Multi"):
            cells[2:] = ["", ""]  # other bytes are its
        if row.startswith("PyTorch"):
            cells[:2] = ["", ""]  # not seen by TensorFlow's allocator
        print(
            f"| {row} | {first:.2f} | {middle:.2f} | {low:.2f}–{high:.2f} | "
            + " | ".join(cells)
            + " |",
            flush=True,
        )


def print_scaling():
    print("\n### Time over length: B 1, C 512, H 8, K 31, uncompiled graph, ms\n")
    print("| T | LightConv forward | + backward | DynamicConv forward | + backward |")
    print("|---|---|---|---|---|")
    ready = {}
    for length in SCALING:
        case = Case(1, length, 512, 8, 31, False)
        for kind in ("LightConv", "DynamicConv"):
            calls = rows_of(case, kind)["ours, uncompiled graph"]
            ready[length, kind] = calls
    times = time_in_turns(ready, budget=2.0)
    found = {}
    for length in SCALING:
        cells = [
            np.median(times[length, kind][part]) * 1e3
            for kind in ("LightConv", "DynamicConv")
            for part in (0, 1)
        ]
        found[length] = np.array(cells)
        print(f"| {length} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    ratio = found[4096] / found[512]
    print("| 4096 / 512 | " + " | ".join(f"{cell:.1f}" for cell in ratio) + " |")


def print_channels():
    """Kernels of channels. Lambdas: `tf.function` binds defaults in every call."""
    print(f"\n### causal_conv1d, {keras.backend.backend()}: forward / with backward\n")
    print("| C | K | over keras.ops.depthwise_conv | peak memory "
          "| with bias, SiLU and residual over without |")  # fmt: skip
    print("|---|---|---|---|---|")
    for channels, taps in itertools.product((256, 1024), (3, 4, 7, 15, 31)):
        case = Case(16, 128, channels, channels, taps, False)
        inputs, kernel = case.inputs.numpy(), case.light.numpy()
        bias = np.ones(channels, "float32")
        rows = {
            "bare": (lambda x, k: causal_conv1d(x, k), inputs, kernel),
            "keras": (
                lambda x, k: keras.ops.depthwise_conv(x, k, padding="same"),
                inputs,
                kernel.T[..., None],
            ),
            "all": (
                lambda x, k, b: causal_conv1d(x, k, b, activation="silu", residual=x),
                inputs,
                kernel,
                bias,
            ),
        }
        ready = {
            row: pair_of_calls(function, arguments, case.upstream.numpy())
            for row, (function, *arguments) in rows.items()
        }
        times = time_in_turns(ready, budget=1.5)
        least = {row: np.array([min(t) for t in both]) for row, both in times.items()}
        cells = [least["bare"] / least["keras"], (), least["all"] / least["bare"]]
        if keras.backend.backend() == "tensorflow":
            ours, keras_peaks = (
                np.array([peak_memory(call) for call in ready[row]])
                for row in ("bare", "keras")
            )
            cells[1] = ours / keras_peaks
        cells = [" / ".join(f"{ratio:.2f}" for ratio in pair) for pair in cells]
        print(f"| {channels} | {taps} | {' | '.join(cells)} |", flush=True)
    inputs, state = np.ones((64, 1, 2048), "float32"), np.ones((64, 3, 2048), "float32")
    step, copy = (
        pair_of_calls(function, arguments)
        for function, *arguments in (
            (
                lambda x, state, k: causal_conv1d_update(x, state, k),
                inputs,
                state,
                np.ones((2048, 4), "float32"),
            ),
            (lambda state: state + 1.0, state),
        )
    )
    times = time_in_turns({"step": step, "copy": copy})
    ratio = min(times["step"][0]) / min(times["copy"][0])
    print(f"\nStep of one position, B 64, C 2048, K 4, over a copy of its state: "
          f"{ratio:.1f}")  # fmt: skip


def pair_of_calls(function, arguments, upstream=None):
    """The function and, with an upstream gradient, it with its gradients."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arguments]
    if keras.backend.backend() == "tensorflow":
        calls = [graphs(function, False, tensors)]
        if upstream is not None:
            both = with_gradients(function, tf.constant(upstream))
            calls.append(graphs(both, False, tensors))
        return tuple(calls)
    import jax

    def both(*tensors):
        outputs, gradient = jax.vjp(function, *tensors)
        return outputs, gradient(upstream)

    functions = [function] if upstream is None else [function, both]
    return tuple(
        functools.partial(lambda f: jax.block_until_ready(f(*tensors)), jax.jit(f))
        for f in functions
    )


def print_machine():
    print(machine())
    source = np.ones(64 << 20, "float32")
    target = np.empty_like(source)
    small, near = np.ones(1 << 20, "float32"), np.empty(1 << 20, "float32")
    matrix = tf.random.normal((1024, 1024))
    ready = {
        "copy": (lambda: np.copyto(target, source), lambda: np.copyto(near, small)),
        "matmul": (lambda: tf.matmul(matrix, matrix), lambda: None),
    }
    times = time_in_turns(ready, budget=0.5)
    far, close = (np.median(found) for found in times["copy"])
    product = np.median(times["matmul"][0])
    print(
        f"copy of 256 MB: {2 * 4 * source.size / far / 1e9:.1f} GB/s (one core); ",
        end="",
    )
    print(f"of 4 MB: {2 * 4 * small.size / close / 1e9:.1f} GB/s; ", end="")
    print(f"matrix product 1024^3: {2 * 1024**3 / product / 1e9:.0f} GFLOP/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", choices=[*SETTINGS, "channels", "scaling"], help="one part"
    )
    arguments = parser.parse_args()
    print_machine()
    for name, setting in SETTINGS.items():
        if arguments.only in (None, name):
            for kind in ("LightConv", "DynamicConv"):
                print_table(name, Case(*setting), kind)
    if arguments.only in (None, "channels"):
        print_channels()
    if arguments.only in (None, "scaling"):
        print_scaling()


if __name__ == "__main__":
    main()
