"""How fast is beam search, and against what? Tokens a second of every family.

    python benchmarks/decoding.py                      # the table, about 6 minutes
    python benchmarks/decoding.py --only dynamic_conv  # one family, and CTranslate2
    python benchmarks/decoding.py --size multi30k      # a quarter of the width
    python benchmarks/decoding.py --recompute          # against recomputing the prefix
    python benchmarks/decoding.py --scores             # reading the logits, one minute

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
from keras_seqconv.models import stacks
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


def search(model, source_ids, beams: int, jit_compile: bool | str = "auto"):
    return decoding.beam_search(
        model,
        source_ids,
        num_beams=beams,
        min_length=TARGET - 1,
        max_length=TARGET - 1,
        jit_compile=jit_compile,
    )


def graph_of(model, beams: int):
    """The search as a part of a user's graph, for all shapes of sources."""
    graph = tf.function(
        lambda source_ids: search(model, source_ids, beams), autograph=False
    )
    return graph.get_concrete_function(tf.TensorSpec([None, None], tf.int32))


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


# Recomputing the prefix in every step


class Recomputing:
    """A model for `beam_search` that has no state but the prefix.

    everything: every step is `model(...)`, encoder and all logits included; otherwise
    the source is encoded once, and logits are those of the last position only.
    """

    def __init__(self, model, everything: bool):
        self.model, self.everything = model, everything
        for name in ("pad_id", "start_id", "end_id", "unk_id"):
            setattr(self, name, getattr(model, name))
        self.target_vocabulary_size = model.target_vocabulary_size
        self.max_target_length = model.max_target_length

    def get_initial_state(self, source_ids, num_beams=1, max_length=None):
        rows = tf.shape(source_ids)[0] * num_beams
        shared = {"source_ids": source_ids}
        if not self.everything:
            memory, mask = self.model.encode(source_ids)
            shared = {"memory": memory, "mask": mask}
        ids = tf.fill((rows, max_length), self.pad_id)
        return {"shared": shared, "beams": {"ids": ids, "position": tf.constant(0)}}

    def step(self, ids, state):
        shared, beams = state["shared"], state["beams"]
        here = tf.range(tf.shape(beams["ids"])[1]) == beams["position"]
        filled = tf.where(here, ids, beams["ids"])
        after = {"ids": filled, "position": beams["position"] + 1}
        prefix = filled[:, : after["position"]]
        logits = self._everything if self.everything else self._last
        beams = tf.shape(ids)[0] // tf.shape(tf.nest.flatten(shared)[0])[0]
        repeated = {key: tf.repeat(one, beams, axis=0) for key, one in shared.items()}
        return logits(prefix, repeated), {"shared": shared, "beams": after}

    def _everything(self, prefix, shared):
        inputs = {"source_ids": shared["source_ids"], "target_ids": prefix}
        return self.model(inputs)[:, -1]

    def _last(self, prefix, shared):
        memory, mask = shared["memory"], shared["mask"]
        x = stacks.run(
            self.model.decoder_blocks,
            self.model.target_embedder(prefix),
            lambda mixer, x: mixer(x),
            lambda attention, x: attention(x, value=memory, value_mask=mask),
        )
        return self.model.vocabulary_map(x[:, -1])


def print_recompute(batch=16, beams=5):
    print(
        f"\n### DynamicConv, B {batch}, beam {beams}, graph: with and without state\n"
    )
    print("| | tokens/s (range), ms a step | time / time with state |")
    print("|---|---|---|")
    model = make_model("dynamic_conv")
    rows = {
        "with state": model,
        "prefix again, source encoded once, last logits": Recomputing(model, False),
        "`model(...)` on the prefix in every step": Recomputing(model, True),
    }
    sources = tf.constant(make_sources(batch))
    ready, found = {}, {}
    for row, searched in rows.items():
        graph = graph_of(searched, beams)
        ready[row] = lambda graph=graph: graph(sources)[0].numpy()
        found[row] = [part.numpy() for part in graph(sources)]
    ids, scores = found["with state"]
    for row in rows:
        np.testing.assert_allclose(found[row][1], scores, atol=1e-4, err_msg=row)
        same = (found[row][0] == ids).all(axis=2).mean()
        # Others may change places with one that is as good to rounding.
        np.testing.assert_array_less(0.95, same, err_msg=row)
    times = time_in_turns(ready, budget=20.0)
    first = np.median(times["with state"])
    for row, seconds in times.items():
        print(f"| {row} | {cell(seconds, batch)} | {np.median(seconds) / first:.1f} |")


# Reading the logits

LOGITS = [(5, 10000), (80, 10000), (80, 32768), (640, 6000)]  # (rows, V)


def score_functions() -> dict:
    """{row of the table: what is done to logits}, beam 5 asking for ten tokens."""
    from keras import ops

    from keras_seqconv.decoding.next_tokens import Blocks

    def two_stages(logits):
        bias = np.zeros(logits.shape[-1], "float32")
        bias[:3] = -np.inf  # padding, start, end
        return Blocks.of(logits).top_k(bias, 10)

    return {
        "`top_k`": lambda logits: ops.top_k(logits, 10),
        "in two stages": two_stages,
        "`logsumexp`": lambda logits: ops.logsumexp(logits, axis=-1),
        "`log_normalizer`": lambda logits: Blocks.of(logits).log_normalizer(),
    }


def print_scores():
    print("\n### reading logits (R, V) in float32, ms (range)\n")
    print("| | " + " | ".join(f"R {rows}, V {size:,}" for rows, size in LOGITS) + " |")
    print("|---" * (len(LOGITS) + 1) + "|")
    cells = collections.defaultdict(list)
    for rows, size in LOGITS:
        logits = tf.random.stateless_normal((rows, size), (0, 0))
        ready = {}
        for jit_compile in (False, True):
            for row, function in score_functions().items():
                graph = tf.function(function, autograph=False, jit_compile=jit_compile)
                ready[f"{row}, {'XLA' if jit_compile else 'graph'}"] = (
                    lambda graph=graph, logits=logits: tf.nest.flatten(graph(logits))[
                        0
                    ].numpy()
                )
        for row, seconds in time_in_turns(ready, budget=8.0).items():
            middle, low, high = (
                1e3 * found(seconds) for found in (np.median, np.min, np.max)
            )
            cells[row].append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
    for row, found in cells.items():
        print(f"| {row} | " + " | ".join(found) + " |")


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
    parser.add_argument("--recompute", action="store_true", help="only this comparison")
    parser.add_argument("--scores", action="store_true", help="only reading the logits")
    arguments = parser.parse_args()
    print(machine())
    before = product_rate()
    if arguments.recompute:
        print_recompute()
    elif arguments.scores:
        print_scores()
    else:
        families = FAMILIES if arguments.only is None else (arguments.only,)
        print_table(families, arguments.size, arguments.seconds)
    print(f"\n{PRODUCT}: {before} before, {product_rate()} after")


if __name__ == "__main__":
    main()
