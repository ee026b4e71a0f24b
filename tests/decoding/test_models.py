"""Searches with whole models against a reference that has no states.

The reference, in plain Python, calls the whole model on every prefix of one sentence.
"""

import concurrent.futures
import functools
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_seqconv import decoding
from keras_seqconv.models.onnx_graphs import write_graphs
from keras_seqconv.runtime.onnx_model import OnnxModel
from tests.backends import modes, to_numpy
from tests.cases import quick_and_slow
from tests.convert.reference import log_softmax
from tests.decoding import reference
from tests.decoding.reference import PAD, START, assert_same
from tests.models import families
from tests.small_models import answering

ON_JAX = keras.backend.backend() == "jax"
BEAMS, LIMIT = 4, 8
# Nine sentences of different lengths.
SOURCES, PREFIXES = np.full((2, 9, 7), PAD)
for row, length in enumerate([1, 6, 3, 7, 2, 5, 4, 1, 6]):
    words = np.random.default_rng(row).permutation(np.arange(4, 14))
    SOURCES[row, : length - 1], SOURCES[row, length - 1] = words[1:length], 2
    PREFIXES[row, : 1 + length % 3] = words[: 1 + length % 3]
PREFIXES = PREFIXES[:, :3]


def given(family, prefix=False, rows=slice(None)):
    """Ids of a search: language models go on from what others translate."""
    ids = {"source_ids": SOURCES[rows], "prefix_ids": PREFIXES[rows]}
    unused = "source_ids" if family.endswith("_lm") else "" if prefix else "prefix_ids"
    return {name: ids[name] for name in ids if name != unused}


@functools.cache
def log_probs_of(family):
    """A function of ids to the log-probabilities (T, V) that the whole model gives."""
    model = answering(family)
    members = getattr(model, "models", [model])
    call = modes(lambda ids: [families.scores(one, ids) for one in members])
    call = call["xla" if ON_JAX else "graph"]

    def log_probs(ids):
        each = [to_numpy(one)[0] for one in call(families.tensors(ids))]
        each = [[np.exp(log_softmax(row)) for row in one] for one in each]
        return np.log(np.mean(each, axis=0))

    return log_probs


@functools.cache
def expected(family, sentence, stopping="first", ngram=0, prefix=False):
    """What the reference finds."""
    given_ids = given(family, prefix, [sentence])
    prefix = given_ids.pop("prefix_ids", np.empty((1, 0), int))[0].tolist()

    @functools.cache
    def logits_of(tokens):
        target = np.full((1, LIMIT + 1), PAD)
        target[0, : len(tokens) + 1] = START, *tokens
        ids = {**given_ids, "target_ids": target}
        return log_probs_of(family)(ids)[len(tokens)]

    return reference.beam_search(
        logits_of, beams=BEAMS, limit=LIMIT, stopping=stopping, ngram=ngram,
        prefix=prefix,
    )  # fmt: skip


RULES = {
    "all": {},
    "n-grams": {"ngram": 2, "num_hypotheses": 2},
    "best": {"num_hypotheses": 1},
    "prefix": {"prefix": True},
    "optimal": {"stopping": "optimal", "num_hypotheses": 3},
    "attention": {"return_attention": True},
}
# Sentences that have ended leave plain graphs. Functions are the user's.
WAYS = {
    "graph": {"jit_compile": False},
    "parts": {"max_batch_size": 4},
    "compiled": {"max_batch_size": 4, "jit_compile": True},
    "function": {},
    "compiled function": {},
}


def search(family, way, ngram=0, prefix=False, **options):
    model = answering(family)  # no variables are made inside of a function

    def run(ids):
        return decoding.beam_search_hypotheses(
            model, **ids, num_beams=BEAMS, max_length=LIMIT,
            no_repeat_ngram_size=ngram, **options, **WAYS[way],
        )  # fmt: skip

    if way.endswith("function"):
        of_user = modes(run)
        run = of_user["xla" if ON_JAX or way.startswith("compiled") else "graph"]
    return run(families.tensors(given(family, prefix)))


@pytest.mark.parametrize(
    ("family", "rule", "way"),
    quick_and_slow(
        [
            ("dynamic_conv", "prefix", "compiled"),
            ("conv_s2s", "attention", "parts"),
            ("conv_lm", "best", "parts"),
            ("attention_lm", "n-grams", "graph"),
        ],
        [
            ("light_conv", "prefix", "compiled function"),
            ("query_conv", "all", "function"),
            ("ensemble", "prefix", "graph"),
            ("attention", "optimal", "compiled"),
            ("conv_s2s", "optimal", "compiled function"),
        ],
    ),
)
def test_search_finds_what_the_reference_finds(family, rule, way):
    options = dict(RULES[rule])
    if family.endswith("_lm"):
        options.pop("return_attention", None)
    found = search(family, way, **options)
    for sentence in range(len(SOURCES)):
        assert_same(found, sentence, expected(family, sentence, **of_reference(rule)))
    source = given(family).get("source_ids")
    again = decoding.score(answering(family), source, found.ids)
    for name in ("scores", "positional_scores"):
        wanted = to_numpy(getattr(found, name))
        np.testing.assert_allclose(to_numpy(getattr(again, name)), wanted, atol=1e-4)


def of_reference(rule):
    names = "ngram", "prefix", "stopping"
    return {name: x for name, x in RULES[rule].items() if name in names}


@functools.cache
def in_onnx_runtime(family):
    model, folders = answering(family), []
    with tempfile.TemporaryDirectory() as parent:
        for number, member in enumerate(getattr(model, "models", [model])):
            folders.append(Path(parent, str(number)))
            folders[-1].mkdir()
            write_graphs(member, folders[-1])
        return OnnxModel(*folders)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("family", "rule"),
    quick_and_slow(
        [
            ("dynamic_conv", "n-grams"),
            ("dynamic_conv", "prefix"),
            ("ensemble", "attention"),
            ("conv_lm", "all"),
        ],
        [("attention", "optimal"), ("query_conv", "best"), ("attention_lm", "n-grams")],
    ),
)
def test_onnx_runtime_finds_what_the_reference_finds(family, rule):
    options = dict(RULES[rule])
    ids = given(family, options.pop("prefix", False))
    model, ngram = in_onnx_runtime(family), options.pop("ngram", 0)
    size = {"num_beams": BEAMS, "max_length": LIMIT, "no_repeat_ngram_size": ngram}
    found = model.beam_search_hypotheses(**ids, **size, **options)
    for sentence in range(len(SOURCES)):
        assert_same(found, sentence, expected(family, sentence, **of_reference(rule)))
    wanted = decoding.beam_search_hypotheses(
        answering(family), **families.tensors(ids), **size, **options
    )
    length = found.ids.shape[2]
    for name in ("scores", "positional_scores", "lengths", "attention"):
        one, two = getattr(found, name), getattr(wanted, name)
        if two is not None:
            two = to_numpy(two)
            two = two[:, :, :length] if two.ndim > 2 else two
            np.testing.assert_allclose(one, two, atol=1e-4)
    best = found.ids[:, 0]
    again = model.score(ids.get("source_ids"), best)
    np.testing.assert_allclose(again.scores[:, 0], found.scores[:, 0], atol=1e-4)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "options",
    [{"top_k": 5, "no_repeat_ngram_size": 1}, {"top_p": 0.8, "temperature": 1.5}],
)
def test_onnx_runtime_draws_what_keras_draws(options):
    """In eight threads at a time, whatever sentences are drawn beside."""
    seeds, ids = [(31, number) for number in range(9)], given("dynamic_conv")
    size = {"num_samples": 3, "max_length": LIMIT, **options}
    wanted = decoding.sample_hypotheses(
        answering("dynamic_conv"), **ids, seed=seeds, **size
    )
    model = in_onnx_runtime("dynamic_conv")

    def drawn(start):
        some = ids["source_ids"][start:]
        return model.sample_hypotheses(some, seed=seeds[start:], **size)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for start, found in enumerate(pool.map(drawn, range(8))):
            length = found.ids.shape[2]
            assert np.array_equal(found.ids, to_numpy(wanted.ids)[start:, :, :length])
            np.testing.assert_allclose(
                found.scores, to_numpy(wanted.scores)[start:], atol=1e-4
            )


def test_answers_differ():
    """From source to source, in length, and in more than their ends."""
    found = [expected("dynamic_conv", sentence) for sentence in range(len(SOURCES))]
    best = [tuple(row[0][0]) for row in found]
    assert len(set(best)) >= 7 and len(set(map(len, best))) >= 3
    # Hypotheses that share their first words were one beam, which took other places.
    firsts = [len({tuple(tokens[:2]) for tokens, *_ in row}) for row in found]
    assert sum(first < BEAMS for first in firsts) >= 4, firsts


@pytest.mark.parametrize("family", quick_and_slow(["light_conv"], ["attention_lm"]))
def test_samples_belong_to_their_sentence(family):
    """The same numbers draw the same words, whichever sentences have ended before."""
    model, ids = answering(family), given(family)
    uniforms = np.random.default_rng(31).uniform(size=(9, 2, LIMIT + 1))

    def drawn(rows, **options):
        some = {name: value[rows] for name, value in ids.items()}
        seed = keras.ops.convert_to_tensor(
            uniforms[rows].reshape(-1, LIMIT + 1), "float32"
        )
        return decoding.sample_hypotheses(
            model, **some, num_samples=2, max_length=LIMIT, seed=seed, **options
        )

    together = drawn(slice(None), jit_compile=False)
    assert len(set(to_numpy(together.lengths).ravel().tolist())) > 3
    # A third has left before the last steps, and others have gone on without them.
    assert sum(to_numpy(together.lengths).max(axis=1) < LIMIT - 2) >= 3
    in_parts = drawn(slice(None), max_batch_size=2)
    for one, two in zip(in_parts[:4], together[:4], strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(two), atol=1e-4)
    alone = drawn(slice(4, 5), jit_compile=False)
    assert np.array_equal(to_numpy(alone.ids)[0], to_numpy(together.ids)[4])
