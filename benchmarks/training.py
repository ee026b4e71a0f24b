"""How fast is a training step, and where does the time go?

    python benchmarks/training.py                               # about 6 minutes
    python benchmarks/training.py --only "B 64, T 32" --parts   # what its parts cost

The DynamicConv and LightConv presets of IWSLT'14 de-en, with V 10,000, against the
Transformer preset with as many layers (7 + 6) and the same embeddings, and against that
Transformer with Keras' own attention layer; `model.train_on_batch`, float32, dropout of
the recipes, AdamW, cross entropy of logits. Rows of one setting are timed in turns
within one process. "ms" is the median, with the quartiles. Multiply-adds are those of
matrix products and convolutions, forward; a step computes three times as many, of two
operations each. "of the rate" divides that by what a 2048^3 matrix product reaches in
the same minute.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from machine import machine

import keras_seqconv as ks
from keras_seqconv.models import stacks

WORDS = 10_000
SETTINGS = {"B 64, T 32": (64, 32), "B 16, T 256": (16, 256), "B 4, T 1024": (4, 1024)}
LAYERS = {"num_encoder_layers": 7, "num_decoder_layers": 6, "share_embeddings": "none"}


class KerasAttention(keras.layers.MultiHeadAttention):
    """Keras' attention behind the arguments and the call of ours."""

    def __init__(
        self, num_heads, output_dim, use_causal_mask=False, canon=None, **arguments
    ):
        super().__init__(num_heads, output_dim // num_heads, **arguments)
        self.causal = use_causal_mask

    def build(self, inputs_shape, value_shape=None):
        super().build(inputs_shape, value_shape or inputs_shape)

    def call(self, inputs, value=None, mask=None, value_mask=None, training=None):
        if value is None:
            value, value_mask = inputs, mask
        return super().call(
            inputs,
            value,
            value_mask=value_mask,
            use_causal_mask=self.causal,
            training=training,
        )

    def compute_output_spec(self, inputs, value=None, **further):
        value = inputs if value is None else value
        return super().compute_output_spec(inputs, value)


def make_model(family, **overrides):
    """A preset with random weights; "keras" is the Transformer with Keras' layer."""
    preset = "transformer" if family == "keras" else family
    ours = stacks.MultiHeadAttention
    if family == "keras":
        stacks.MultiHeadAttention = KerasAttention
    try:
        return ks.models.from_preset(
            f"{preset}_iwslt_de_en",
            source_vocabulary_size=WORDS,
            target_vocabulary_size=WORDS,
            **{**LAYERS, **overrides},
        )
    finally:
        stacks.MultiHeadAttention = ours


def multiply_adds(family, length, width=512, inner=1024, heads=4) -> float:
    """Forward, of one source and one target position of a sentence pair."""
    attention = 4 * width**2 + 2 * length * width
    mixers = {"transformer": [attention] * 13, "keras": [attention] * 13}
    taps = [3, 7, 15, 31, 31, 31, 31, 3, 7, 15, 31, 31, 31]
    light = [2 * width**2 + k * width for k in taps]
    mixers["light_conv"] = light
    mixers["dynamic_conv"] = [
        cost + width * heads * k for cost, k in zip(light, taps, strict=True)
    ]
    rest = 13 * 2 * width * inner + 6 * attention + width * WORDS
    return sum(mixers[family]) + rest


def training_step(model, batch, length, optimizer=None, loss=None):
    """A function that takes one step on random ids."""
    optimizer = optimizer or ks.optimizers.AdamW(1e-4, weight_decay=1e-4, beta_2=0.98)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=1
    )
    model.compile(optimizer, loss)
    rng = np.random.default_rng(0)
    ids = rng.integers(4, WORDS, (3, batch, length), dtype="int32")
    inputs = {"source_ids": ids[0], "target_ids": ids[1]}
    return lambda: model.train_on_batch(inputs, ids[2])


def time_in_turns(ready: dict, rounds: int) -> dict:
    """name -> seconds of each round, after two rounds that count for nothing."""
    seconds = {name: [] for name in ready}
    for number in range(rounds + 2):
        for name, call in ready.items():
            start = time.perf_counter()
            call()
            if number > 1:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def product_rate() -> float:
    """Operations a second of a matrix product."""
    import tensorflow as tf

    matrix = tf.random.normal((2048, 2048))
    product = tf.function(lambda: tf.matmul(matrix, matrix))
    found = time_in_turns({"": lambda: product().numpy()}, 5)[""]
    return 2 * 2048**3 / np.median(found)


def print_setting(name, rounds):
    batch, length = SETTINGS[name]
    families = ["transformer", "keras", "dynamic_conv", "light_conv"]
    ready = {
        family: training_step(make_model(family), batch, length) for family in families
    }
    before = product_rate()
    seconds = time_in_turns(ready, rounds)
    rate = (before + product_rate()) / 2
    medians = {family: np.median(found) for family, found in seconds.items()}
    print(f"\n### {name} (matrix products at {rate / 1e9:.0f} GFLOP/s)\n")
    print(
        "| | ms | target tokens/s | GFLOP | of the rate | times the Transformer "
        "| ratio of multiply-adds |\n|---|---|---|---|---|---|---|"
    )
    for family in families:
        work = 6 * multiply_adds(family, length) * batch * length
        low, high = (np.percentile(seconds[family], q) * 1e3 for q in (25, 75))
        speedup = medians["transformer"] / medians[family]
        ratio = multiply_adds("transformer", length) / multiply_adds(family, length)
        print(
            f"| {family} | {medians[family] * 1e3:.0f} ({low:.0f}–{high:.0f}) "
            f"| {batch * length / medians[family]:.0f} | {work / 1e9:.0f} "
            f"| {work / medians[family] / rate:.0%} | {speedup:.2f} | {ratio:.2f} |",
            flush=True,
        )


def print_parts(name, rounds, family):
    """What a step costs when a part of it is left out."""
    batch, length = SETTINGS[name]
    silent = dict.fromkeys(("dropout", "attention_dropout", "weight_dropout"), 0.0)
    whole = make_model(family)
    ready = {
        "whole step": training_step(whole, batch, length),
        "no dropout": training_step(make_model(family, **silent), batch, length),
        "keras.optimizers.AdamW": training_step(
            make_model(family), batch, length, keras.optimizers.AdamW(1e-4)
        ),
        "no optimizer (SGD)": training_step(make_model(family), batch, length, "sgd"),
    }
    seconds = time_in_turns(ready, rounds)
    print(f"\n### Parts of {family}, {name}\n\n| | ms | difference |\n|---|---|---|")
    first = np.median(seconds["whole step"])
    for part, found in seconds.items():
        middle = np.median(found)
        print(f"| {part} | {middle * 1e3:.0f} | {(middle - first) * 1e3:+.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", choices=SETTINGS, help="one setting")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--parts",
        nargs="?",
        const="dynamic_conv",
        choices=["transformer", "dynamic_conv", "light_conv"],
        help="what the parts of a step cost",
    )
    options = parser.parse_args()
    print(f"{machine()}, float32")
    for name in [options.only] if options.only else SETTINGS:
        print_setting(name, options.rounds)
        if options.parts:
            print_parts(name, options.rounds, options.parts)


if __name__ == "__main__":
    main()
