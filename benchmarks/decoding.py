"""How fast is beam search, and against what? Tokens a second of every family.

    python benchmarks/decoding.py                      # the table, about 6 minutes
    python benchmarks/decoding.py --only dynamic_conv  # one family, and CTranslate2
    python benchmarks/decoding.py --size multi30k      # a quarter of the width

Models are the `*_iwslt_de_en` presets, or the `*_multi30k` ones, with random weights
and two vocabularies of 10,000; sources have 32 tokens; minimum and maximum length force
32 target tokens, the end token counted. Times are those of the whole call, encoder
included, until the ids are there. A cell is tokens a second (of the best hypotheses
only: 32 B), the range of them over the repetitions, and milliseconds a step.

Rows of one setting are timed in turns within one process, so that a machine that
changes its speed changes all of them; the last row is the rate of a matrix product,
timed in the same turns.

"call" is a call of `keras_seqconv.decoding.beam_search` once its programs are compiled;
"plain" is the same with `jit_compile=False`, a graph without XLA, as it is exported.
"""

import argparse
import collections
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from machine import machine

from keras_seqconv import decoding, models
from keras_seqconv.presets import PRESETS

FAMILIES = ("dynamic_conv", "light_conv", "query_conv", "conv_s2s", "transformer")
VOCABULARY = 10000
SOURCE, TARGET = 32, 32  # tokens, the end tokens counted
SETTINGS = [(1, 1), (1, 5), (16, 1), (16, 5), (64, 1), (64, 5)]  # (B, beams)
WARM_UP = 5.0  # seconds, in which programs are compiled on the side
SIZE = 2048
PRODUCT = f"matrix product {SIZE}^3, GFLOP/s"


def preset_of(family: str, size: str):
    return PRESETS[f"{family}_{size}"]


def make_model(family: str, size: str = "iwslt_de_en"):
    preset = preset_of(family, size)
    return getattr(models, preset.model)(
        source_vocabulary_size=VOCABULARY,
        target_vocabulary_size=VOCABULARY,
        seed=0,
        **preset.architecture,
    )


def make_sources(batch: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    sources = rng.integers(4, VOCABULARY, (batch, SOURCE)).astype("int32")
    sources[:, -1] = 2
    return sources


def search(model, source_ids, beams: int, jit_compile: bool = True):
    return decoding.beam_search(
        model,
        source_ids,
        num_beams=beams,
        min_length=TARGET - 1,
        max_length=TARGET - 1,
        jit_compile=jit_compile,
    )


class Ours:
    """One family."""

    def __init__(self, family: str, size: str):
        self.model = make_model(family, size)

    def calls(self, batch: int, beams: int) -> dict:
        """{row: call} of one setting."""
        sources = tf.constant(make_sources(batch))
        calls = {
            "call": lambda: search(self.model, sources, beams),
            "plain": lambda: search(self.model, sources, beams, False),
        }
        warm = time.perf_counter() + WARM_UP
        while time.perf_counter() < warm:
            calls["call"]()
        return {name: self._checked(call, batch, beams) for name, call in calls.items()}

    def _checked(self, call, batch, beams):
        def checked():
            ids = call()[0].numpy()
            lengths = (ids != self.model.pad_id).sum(axis=2)
            np.testing.assert_array_equal(lengths, np.full((batch, beams), TARGET))

        return checked


# CTranslate2


def set_weights(spec, width: int, inner: int, vocabulary: int) -> None:
    """Random weights for a Transformer in CTranslate2's own specification."""
    from ctranslate2.specs import common_spec, model_spec

    rng = np.random.default_rng(0)

    def linear(layer, outputs, inputs, bias=True):
        limit = (6 / (inputs + outputs)) ** 0.5
        layer.weight = rng.uniform(-limit, limit, (outputs, inputs)).astype("float32")
        if bias:
            layer.bias = np.zeros(outputs, "float32")

    def attention(layer):
        *projections, last = layer.linear
        # Queries, keys and values in one, or queries, and keys with values.
        sizes = [3] if len(projections) == 1 else [1, 2]
        for projection, size in zip(projections, sizes, strict=True):
            linear(projection, size * width, width)
        linear(last, width, width)

    def norms(layer, *_):
        if isinstance(layer, common_spec.LayerNormSpec):
            layer.gamma = np.ones(width, "float32")
            layer.beta = np.zeros(width, "float32")

    table = (vocabulary, width)
    spec.encoder.embeddings[0].weight = rng.normal(0, width**-0.5, table)
    spec.decoder.embeddings.weight = rng.normal(0, width**-0.5, table)
    for embeddings in (spec.encoder.embeddings[0], spec.decoder.embeddings):
        embeddings.weight = embeddings.weight.astype("float32")
    # A matrix of its own, and nothing saved: only speed is asked for.
    spec.decoder.projection.weight = spec.decoder.embeddings.weight.copy()
    for stack in (spec.encoder, spec.decoder):
        for layer in stack.layer:
            attention(layer.self_attention)
            if hasattr(layer, "attention"):
                attention(layer.attention)
            linear(layer.ffn.linear_0, inner, width)
            linear(layer.ffn.linear_1, width, inner)
    model_spec.visit_spec(spec, norms)


def save_ctranslate2(folder: str, size: str, vocabulary: int = VOCABULARY, **options):
    """A Transformer of the size of the preset; options of `spec.optimize`."""
    import ctranslate2

    architecture = preset_of("transformer", size).architecture
    width = architecture.get("hidden_dim", 512)
    layers = [
        architecture.get(f"num_{side}_layers", 6) for side in ("encoder", "decoder")
    ]
    spec = ctranslate2.specs.TransformerSpec.from_config(
        tuple(layers), architecture["num_heads"], pre_norm=False
    )
    set_weights(spec, width, architecture["intermediate_dim"], vocabulary)
    words = [f"w{number}" for number in range(4, vocabulary)]
    words = ["<s>", "<pad>", "</s>", "<unk>", *words]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = "</s>"
    spec.validate()
    if options:
        spec.optimize(**options)
    spec.save(folder)


def load_ctranslate2(size: str) -> dict:
    """{compute type and threads: Translator} of the Transformer's preset, or {}.

    Of few rows, one thread is faster than two.
    """
    try:
        import ctranslate2
    except ImportError:
        print("CTranslate2 is not installed (pip install ctranslate2): no such rows\n")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        save_ctranslate2(folder, size)
        return {
            f"{kind}, threads {threads}": ctranslate2.Translator(
                folder, "cpu", compute_type=kind, intra_threads=threads
            )
            for kind in ("float32", "int8")
            for threads in sorted({1, os.cpu_count()})
        }


def ctranslate2_calls(translators: dict, batch: int, beams: int) -> dict:
    sources = make_sources(batch)
    words = [[f"w{number}" for number in row[:-1]] + ["</s>"] for row in sources]

    def call_of(translator):
        def call():
            results = translator.translate_batch(
                words,
                beam_size=beams,
                num_hypotheses=beams,
                return_end_token=True,
                min_decoding_length=TARGET,
                max_decoding_length=TARGET,
            )
            lengths = [[len(ids) for ids in result.hypotheses] for result in results]
            np.testing.assert_array_equal(lengths, np.full((batch, beams), TARGET))

        return call

    return {kind: call_of(translator) for kind, translator in translators.items()}


# Timing and tables


def matrix_product():
    matrix = tf.random.stateless_normal((SIZE, SIZE), (0, 0))
    product = tf.function(lambda: tf.matmul(matrix, matrix), autograph=False)
    return lambda: product()[0, 0].numpy()


def rate(seconds) -> str:
    rates = 2 * SIZE**3 / np.array(seconds) / 1e9
    return f"{np.median(rates):.0f} ({rates.min():.0f}–{rates.max():.0f})"


def product_rate() -> str:
    call = matrix_product()
    return rate(time_in_turns({"": call}, budget=1.0)[""])


def time_in_turns(ready: dict, budget: float, fewest: int = 3, most: int = 25) -> dict:
    """{row: seconds of each call}, round by round until `budget` seconds are over."""
    times = collections.defaultdict(list)
    for call in ready.values():
        call()  # traces, compiles
    stop = time.perf_counter() + budget
    for count in range(most):
        if count >= fewest and time.perf_counter() > stop:
            break
        for name, call in ready.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
            time.sleep(0.01)  # threads of the one before spin for a while
    return times


def cell(seconds, batch: int) -> str:
    rates = batch * TARGET / np.array(seconds)
    middle = np.median(seconds)
    return (
        f"{batch * TARGET / middle:.0f} ({rates.min():.0f}–{rates.max():.0f}), "
        f"{middle / TARGET * 1e3:.1f}"
    )


def print_table(families, size: str, budget: float):
    translators = load_ctranslate2(size)
    ours = {family: Ours(family, size) for family in families}
    cells = collections.defaultdict(dict)
    for setting in SETTINGS:
        batch, beams = setting
        ready = {}
        for family in families:
            calls = ours[family].calls(batch, beams)
            ready |= {f"{family}, {mode}": call for mode, call in calls.items()}
        calls = ctranslate2_calls(translators, batch, beams)
        ready |= {f"CTranslate2 Transformer, {kind}": calls[kind] for kind in calls}
        ready[PRODUCT] = matrix_product()
        for row, seconds in time_in_turns(ready, budget).items():
            product = row == PRODUCT
            cells[row][setting] = rate(seconds) if product else cell(seconds, batch)
    heads = [f"B {batch}, beam {beams}" for batch, beams in SETTINGS]
    print("\n### tokens a second (range), ms a step\n")
    print("| | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    modes = {mode: place for place, mode in enumerate(("call", "plain"))}
    order = {
        f"{f}, {m}": (i, j) for i, f in enumerate(families) for m, j in modes.items()
    }
    last = len(families), 0
    for row in sorted(cells, key=lambda row: order.get(row, last)):
        if row != PRODUCT:
            print_row(row, cells[row])
    print_row(PRODUCT, cells[PRODUCT])


def print_row(row: str, cells: dict):
    print(f"| {row} | " + " | ".join(cells.get(key, "") for key in SETTINGS) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=FAMILIES, help="one family")
    parser.add_argument(
        "--size", choices=("iwslt_de_en", "multi30k"), default="iwslt_de_en"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="for each setting")
    arguments = parser.parse_args()
    print(machine())
    before = product_rate()
    families = FAMILIES if arguments.only is None else (arguments.only,)
    print_table(families, arguments.size, arguments.seconds)
    print(f"\n{PRODUCT}: {before} before, {product_rate()} after")


if __name__ == "__main__":
    main()
