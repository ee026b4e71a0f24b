"""How much processor time does beam search take, and CTranslate2 beside it?

    python benchmarks/decoding.py                      # the table, about 15 minutes
    python benchmarks/decoding.py --only dynamic_conv  # one family, and CTranslate2
    python benchmarks/decoding.py --size multi30k      # a quarter of the width

Models are the `*_iwslt_de_en` presets, or the `*_multi30k` ones, with random weights
and two vocabularies of 10,000, or 6,000; sources have 32 tokens; minimum and maximum
length force 32 target tokens, the end token counted. A cell is the least processor time
of a call in ms, that of all threads, encoder included. Calls of one setting take turns
within one process, so that a machine that changes its speed changes all of them.

"onnx" is `OnnxModel` with one thread, "onnx int8" the same with quantized graphs, and
CTranslate2 has one thread as well. "call" is `decoding.beam_search` of Keras compiled
by XLA, "plain" the same with `jit_compile=False`, a graph as it is exported.
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
from keras_seqconv.models.onnx_graphs import write_graphs
from keras_seqconv.presets import PRESETS
from keras_seqconv.runtime.onnx_model import OnnxModel

FAMILIES = ("dynamic_conv", "light_conv", "query_conv", "conv_s2s", "transformer")
VOCABULARIES = {"iwslt_de_en": 10000, "multi30k": 6000}
SOURCE, TARGET = 32, 32  # tokens, the end tokens counted
SETTINGS = [(1, 1), (1, 5), (16, 5), (64, 5)]  # (B, beams)
SETTINGS_OF_KERAS = [(1, 5), (64, 5)]
PAIRS = (("onnx", "float32"), ("onnx", "int8"), ("onnx int8", "int8"))  # ratios


def preset_of(family: str, size: str):
    return PRESETS[f"{family}_{size}"]


def make_model(family: str, size: str = "iwslt_de_en"):
    preset = preset_of(family, size)
    return getattr(models, preset.model)(
        source_vocabulary_size=VOCABULARIES[size],
        target_vocabulary_size=VOCABULARIES[size],
        seed=0,
        **preset.architecture,
    )


def make_sources(batch: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    words = rng.integers(4, min(VOCABULARIES.values()), (batch, SOURCE))
    words[:, -1] = 2
    return words.astype("int32")


def search(model, source_ids, beams: int, jit_compile: bool | None = None):
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
        with tempfile.TemporaryDirectory() as folder:
            write_graphs(self.model, folder)
            self.graphs = {
                "onnx": OnnxModel(folder),
                "onnx int8": OnnxModel(folder, quantize="int8"),
            }

    def calls(self, batch: int, beams: int) -> dict:
        """{row: call} of one setting."""
        sources, calls = make_sources(batch), {}
        for name, graphs in self.graphs.items():
            calls[name] = lambda graphs=graphs: graphs.beam_search_hypotheses(
                sources,
                num_beams=beams,
                min_length=TARGET - 1,
                max_length=TARGET - 1,
            )
        if (batch, beams) in SETTINGS_OF_KERAS:
            for name, jit_compile in (("call", True), ("plain", False)):
                calls[name] = lambda jit_compile=jit_compile: search(
                    self.model, tf.constant(sources), beams, jit_compile
                )
        return {name: self._checked(call, batch, beams) for name, call in calls.items()}

    def _checked(self, call, batch, beams):
        def checked():
            ids = np.asarray(call()[0])
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


def save_ctranslate2(folder: str, size: str, vocabulary: int, **options):
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
    """{compute type: Translator with one thread} of the Transformer's preset, or {}."""
    try:
        import ctranslate2
    except ImportError:
        print("CTranslate2 is not installed (pip install ctranslate2): no such rows\n")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        save_ctranslate2(folder, size, VOCABULARIES[size])
        return {
            kind: ctranslate2.Translator(
                folder, "cpu", compute_type=kind, intra_threads=1
            )
            for kind in ("float32", "int8")
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


def least_times(ready: dict, budget: float, fewest: int = 3, most: int = 100) -> dict:
    """{row: least ms of processor time}, in rounds until `budget` seconds are over."""
    times = collections.defaultdict(list)
    for call in ready.values():
        call()  # traces, compiles
    stop = time.perf_counter() + budget
    for count in range(most):
        if count >= fewest and time.perf_counter() > stop:
            break
        for name, call in ready.items():
            time.sleep(0.01)  # threads of the one before spin for a while
            start = time.process_time()
            call()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: min(found) for name, found in times.items()}


def print_table(families, size: str, budget: float):
    translators = load_ctranslate2(size)
    ours = {family: Ours(family, size) for family in families}
    columns = {}
    for batch, beams in SETTINGS:
        ready = {
            f"{family}, {mode}": call
            for family in families
            for mode, call in ours[family].calls(batch, beams).items()
        }
        calls = ctranslate2_calls(translators, batch, beams)
        ready |= {f"CTranslate2, {kind}": call for kind, call in calls.items()}
        columns[batch, beams] = least_times(ready, budget)
    heads = [f"B {batch}, beam {beams}" for batch, beams in SETTINGS]
    print("\n### least processor time of a call, ms\n")
    print("| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    for row in columns[SETTINGS_OF_KERAS[0]]:
        print_row(row, [f"{c[row]:.1f}" if row in c else "" for c in columns.values()])
    print("\nSpeed, ours over CTranslate2:\n")
    print("| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    for family in families:
        for mode, kind in PAIRS if translators else ():
            row, other = f"{family}, {mode}", f"CTranslate2, {kind}"
            ratios = [f"{c[other] / c[row]:.2f}" for c in columns.values()]
            print_row(f"{row} / {other}", ratios)


def print_row(row: str, cells: list[str]):
    print(f"| {row} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=FAMILIES, help="one family")
    parser.add_argument("--size", choices=[*VOCABULARIES], default="iwslt_de_en")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each setting")
    arguments = parser.parse_args()
    print(machine())
    families = FAMILIES if arguments.only is None else (arguments.only,)
    print_table(families, arguments.size, arguments.seconds)


if __name__ == "__main__":
    main()
