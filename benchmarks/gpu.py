"""What one GPU reaches on the JAX backend: ops, training and beam search.

    KERAS_BACKEND=jax python benchmarks/gpu.py     # 4 minutes on an H200

TensorFlow is not needed. Ops: B 1024, T 128, C 512, H 8, so that no tensor stays in a
cache; "of the copy" is the time of moving inputs, kernel and outputs once (with the
gradients for forward + backward) at the rate of a copy, over the time that was taken.
Models: the `*_iwslt_de_en` presets of benchmarks/training.py (7 + 6 layers, V 10,000),
mixed_bfloat16, by `fit_stream`; "of the rate" is their multiply-adds by the rate of a
bfloat16 product of 8192^3. Beam search: 32 source and 32 target tokens, encoder
included. Medians of five with the range.
"""

import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
from machine import machine
from training import WORDS, make_model, multiply_adds

import keras_seqconv as ks

SMALL = jax.default_backend() == "cpu"  # to try it
BATCH, LENGTH, CHANNELS, HEADS = (8, 32, 64, 8) if SMALL else (1024, 128, 512, 8)
ROUNDS = 5


def time_calls(call, repeats: int) -> np.ndarray:
    """Seconds of a call, for each round of so many without waiting in between."""
    for _ in range(2):
        jax.block_until_ready(call())
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            outputs = call()
        jax.block_until_ready(outputs)
        seconds.append((time.perf_counter() - start) / repeats)
    return np.sort(seconds)


def cell(values, digits: int) -> str:
    low, middle, high = np.sort(values)[[0, len(values) // 2, -1]]
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def limits() -> tuple[float, float]:
    """Bytes a second of a copy, operations a second of a bfloat16 product."""
    side = 256 if SMALL else 8192
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (side, side), "bfloat16") for key in keys)
    product = jax.jit(jnp.matmul)
    rate = 2 * side**3 / np.median(time_calls(lambda: product(a, b), 10))
    large = jnp.concatenate([a, b] * 4)
    scale = jax.jit(lambda large: large * 2)
    copied = 2 * large.nbytes / np.median(time_calls(lambda: scale(large), 10))
    print(f"copy {copied / 1e12:.2f} TB/s, product {rate / 1e12:.0f} TFLOP/s")
    return copied, rate


def by_shifts(inputs, kernel):
    """K multiply-adds, written as one would without this package."""
    taps, length = kernel.shape[-1], inputs.shape[1]
    left = (taps - 1) // 2
    padded = jnp.pad(inputs, ((0, 0), (left, taps - 1 - left), (0, 0)))
    return sum(
        jnp.repeat(kernel[..., tap], CHANNELS // HEADS, axis=-1)
        * padded[:, tap : tap + length]
        for tap in range(taps)
    )


def by_groups(inputs, kernel):
    """`lax.conv_general_dilated` with a group for each channel."""
    per_channel = jnp.repeat(kernel.T, CHANNELS // HEADS, axis=1)[:, None]
    left = (len(per_channel) - 1) // 2
    return jax.lax.conv_general_dilated(
        inputs,
        per_channel,
        window_strides=(1,),
        padding=[(left, len(per_channel) - 1 - left)],
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=CHANNELS,
    )


def print_ops(copied: float) -> None:
    rows = {
        "`light_conv`": (ks.ops.light_conv, False),
        "`lax.conv_general_dilated`, C groups": (by_groups, False),
        "K shifts, (H, K)": (by_shifts, False),
        "`dynamic_conv`": (ks.ops.dynamic_conv, True),
        "K shifts, (B, T, H, K)": (by_shifts, True),
    }
    for taps, dtype in [(31, "bfloat16"), (31, "float32"), (7, "bfloat16")]:
        print(f"\n### K {taps}, {dtype}, ms\n")
        print("| | forward | of the copy | forward + backward | of the copy |")
        print("|---|---|---|---|---|")
        for name, (function, dynamic) in rows.items():
            found = time_op(function, dynamic, taps, dtype)
            cells = [
                f"{cell(seconds * 1e3, 2)} | {moved / copied / seconds[2]:.0%}"
                for seconds, moved in found
            ]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def time_op(function, dynamic, taps, dtype) -> list:
    """(seconds, bytes of a perfect op), forward and with gradients."""
    rng = np.random.default_rng(0)

    def random(*shape):
        return jnp.asarray(rng.standard_normal(shape, "float32")).astype(dtype)

    rows = (BATCH, LENGTH) if dynamic else ()
    inputs, upstream = (random(BATCH, LENGTH, CHANNELS) for _ in range(2))
    kernel = random(*rows, HEADS, taps)

    def with_gradients(inputs, kernel, upstream):
        outputs, backward = jax.vjp(function, inputs, kernel)
        return outputs, backward(upstream)

    forward, both = jax.jit(function), jax.jit(with_gradients)
    return [
        (
            time_calls(lambda: forward(inputs, kernel), 10),
            2 * inputs.nbytes + kernel.nbytes,
        ),
        (
            time_calls(lambda: both(inputs, kernel, upstream), 10),
            4 * inputs.nbytes + 2 * kernel.nbytes,
        ),
    ]


class Clock(keras.callbacks.Callback):
    """Seconds of each round of updates; reading a loss waits for its update."""

    def __init__(self, updates):
        self.updates, self.times = updates, []

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.updates == self.updates - 1:
            float(logs["loss"])
            self.times.append(time.perf_counter())


def print_training(rate: float) -> None:
    print("\n| | tokens | ms an update | target tokens a second | of the rate |")
    print("|---|---|---|---|---|")
    for batch, length in [(4, 8)] if SMALL else [(128, 32), (1024, 32)]:
        for family in ("transformer", "dynamic_conv"):
            seconds = time_updates(family, batch, length)
            work = 6 * multiply_adds(family, length) * batch * length
            print(
                f"| {family} | {batch} x {length} | {cell(seconds * 1e3, 1)} "
                f"| {batch * length / np.median(seconds):,.0f} "
                f"| {work / np.median(seconds) / rate:.0%} |",
                flush=True,
            )


class Stream:
    """The same batch again and again, for `fit_stream`."""

    def __init__(self, *batch):
        self.batch = batch

    def dataset(self, position):
        while True:
            yield self.batch

    def batches_per_epoch(self):
        return 10**6


def time_updates(family, batch, length, updates=10) -> np.ndarray:
    model = make_model(family)
    model.compile(ks.optimizers.AdamW(1e-4), ks.losses.LabelSmoothedCrossentropy())
    ids = np.random.default_rng(0).integers(4, WORDS, (3, batch, length), dtype="int32")
    stream = Stream({"source_ids": ids[0], "target_ids": ids[1]}, ids[2])
    clock = Clock(updates)
    last = (ROUNDS + 1) * updates
    ks.fit_stream(model, stream, max_updates=last, callbacks=[clock])
    return np.diff(clock.times) / updates


def print_decoding() -> None:
    print("\n| | B | beams | target tokens a second | ms a step |")
    print("|---|---|---|---|---|")
    settings = [(2, 2)] if SMALL else [(1, 5), (64, 5), (512, 5)]
    for family in ("transformer", "dynamic_conv"):
        model = make_model(family)
        for batch, beams in settings:
            seconds = time_search(model, batch, beams)
            print(
                f"| {family} | {batch} | {beams} | {cell(batch * 32 / seconds, 0)} "
                f"| {np.median(seconds) / 32 * 1e3:.2f} |",
                flush=True,
            )


def time_search(model, batch, beams) -> np.ndarray:
    ids = np.random.default_rng(0).integers(4, WORDS, (batch, 32), dtype="int32")
    ids[:, -1] = model.end_id
    options = {"num_beams": beams, "min_length": 31, "max_length": 31}
    return time_calls(lambda: ks.decoding.beam_search(model, ids, **options), 1)


if __name__ == "__main__":
    print(machine(), end="; ")
    copied, rate = limits()
    print_ops(copied)
    keras.config.set_dtype_policy("mixed_bfloat16")
    print_training(rate)
    print_decoding()
