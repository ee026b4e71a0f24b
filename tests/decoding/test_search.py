"""The search against fairseq's vectors, a reference in plain Python, brute force."""

import json

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqconv import decoding
from keras_seqconv.decoding.loops import search
from keras_seqconv.decoding.tasks import rules_of, task_of
from tests.backends import to_numpy
from tests.decoding import reference
from tests.decoding.fakes import END, PAD, Recurrent, Table
from tests.decoding.reference import assert_same

ON_JAX = keras.backend.backend() == "jax"  # each search is compiled: fewer examples
MANY = settings(
    max_examples=10 if ON_JAX else 25, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def run(model, sources, *, beams, limits, prefix=None, groups=1, strength=0.5,
        stopping="first", **options):  # fmt: skip
    """The core itself, in eager mode, nothing traced."""
    options = decoding.BeamOptions(
        num_beams=beams,
        num_groups=groups,
        diversity_strength=strength,
        stopping=stopping,
        **options,
    )
    tensors = {"source_ids": sources, "prefix_ids": prefix}
    tensors = {
        name: ops.convert_to_tensor(ids, dtype="int32")
        for name, ids in tensors.items()
        if ids is not None
    }
    task = task_of(model, options, tensors)
    rules = rules_of(task, tensors, ops.convert_to_tensor(limits, dtype="int32"))
    return search(task, rules, tensors, max(limits) + 1)


def test_conformance_vectors_of_fairseq(golden):
    data = json.loads((golden / "search.json").read_text())
    names = data["ids"]
    columns = [names[name] for name in ("eos", "w1", "w2")]

    def ids_of(text):
        return [names[word] for word in text.split()]

    model = Table(6, [
        {tuple(ids_of(prefix)): dict(zip(columns, values, strict=True))
         for prefix, values in table.items()}
        for table in data["probabilities"]
    ])  # fmt: skip
    assert len(data["cases"]) >= 5
    for case in data["cases"]:
        options = {"max_length": 6, **case}
        expected = options.pop("expected")
        ids, scores = decoding.beam_search(model, [[0], [1]], num_beams=2, **options)
        ids, scores = map(to_numpy, (ids, scores))
        assert ids.shape == (2, 2, options["max_length"] + 1)
        assert (ids.dtype, scores.dtype) == ("int32", "float32")
        assert np.isfinite(scores).all()
        for sentence, hypotheses in enumerate(expected):
            for rank, text in enumerate(hypotheses):
                padding = [PAD] * (ids.shape[2] - len(text.split()))
                assert ids[sentence, rank].tolist() == ids_of(text) + padding, options


@st.composite
def searches(draw):
    size = draw(st.integers(6, 14))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    per_group = draw(st.integers(1, 5 if groups == 1 else 2))
    beams = min(groups * per_group, size - 1) // groups * groups
    batch = draw(st.integers(1, 3))
    limits = draw(st.lists(st.integers(0, 7), min_size=batch, max_size=batch))
    options = dict(
        beams=beams,
        groups=groups,
        strength=draw(st.sampled_from([0.0, 0.5, 1.3])),
        exponent=draw(st.sampled_from([1.0, 0.0, 0.6, 2.0, -0.7])),
        kind=draw(st.sampled_from(["power", "gnmt"])),
        normalize=draw(st.sampled_from([True, True, False])),
        stopping=draw(st.sampled_from(["first", "first", "optimal"])),
        min_length=draw(st.integers(0, 3)),
        unk_penalty=draw(st.sampled_from([0.0, 1.0, -2.5])),
        temperature=draw(st.sampled_from([1.0, 0.5, 3.0])),
        suppressed=tuple(draw(st.sets(st.integers(4, size - 1), max_size=2))),
        ngram=draw(st.sampled_from([0, 0, 1, 2, 3])),
    )
    prefix = None
    if draw(st.booleans()):
        tokens = st.sampled_from([PAD, PAD, END, 0, *range(3, size)])
        width = draw(st.integers(1, 4))
        row = st.lists(tokens, min_size=width, max_size=width)
        prefix = np.array(draw(st.lists(row, min_size=batch, max_size=batch)))
    scale = draw(st.sampled_from([0.5, 3.0]))
    model = Recurrent(size, draw(st.integers(0, 1000)), scale)
    token = st.integers(4, size - 1)
    sources = np.array(
        draw(st.lists(st.tuples(token, token), min_size=batch, max_size=batch))
    )
    return model, sources, limits, prefix, options


OURS = {
    "suppressed": "suppressed_ids", "ngram": "no_repeat_ngram_size",
    "exponent": "length_penalty", "kind": "length_penalty_kind",
}  # fmt: skip


def chosen(limits, prefix=None, model=None, **options):
    """A case that is seldom drawn."""
    defaults = dict(
        beams=3, groups=1, strength=0.0, exponent=1.0, kind="power", normalize=True,
        stopping="first", min_length=1, unk_penalty=0.0, temperature=1.0,
        suppressed=(), ngram=0,
    )  # fmt: skip
    sources = np.array([[4, 5], [6, 7], [8, 4]])[: len(limits)]
    prefix = None if prefix is None else np.array(prefix)
    model = model or Recurrent(14, 6)
    return model, sources, limits, prefix, {**defaults, **options}


def blocked(seed, **options):
    """A case whose beams change places often, with a history of their own."""
    return chosen([7, 7, 5], model=Recurrent(9, seed), **options)


@MANY
@given(searches())
# At an end token the best beam ends, and is the only result; 0 is a token too; what is
# forced is taken although suppressed, unknown or repeated; the limit cuts a prefix.
@example(chosen([6, 6], [[9, END, 5], [PAD, END, PAD]]))
@example(chosen([4, 5], [[9, 0, 0], [0, PAD, 8]], stopping="optimal"))
@example(chosen([5, 2], [[13, 4, 4], [9, 3, PAD]], suppressed=(13,), ngram=1,
                unk_penalty=2.0))  # fmt: skip
# No n-gram twice, where beams change places.
@example(blocked(0, ngram=1, beams=2))
@example(blocked(1, ngram=2, beams=5))
@example(blocked(2, ngram=3, beams=4, stopping="optimal"))
@example(blocked(3, ngram=2, beams=4, groups=2, strength=0.5))
def test_equals_the_reference(case):
    """Lengths, penalties, prefixes, n-grams, groups, both ways of stopping: the rules,
    and which comes before which."""
    model, sources, limits, prefix, options = case
    ours = {OURS.get(key, key): value for key, value in options.items()}
    hypotheses = run(model, sources, limits=limits, prefix=prefix, **ours)
    for sentence, source in enumerate(sources):
        expected = reference.beam_search(
            lambda tokens, source=source: model.logits(source, tokens),
            limit=limits[sentence],
            prefix=[] if prefix is None else prefix[sentence].tolist(),
            **options,
        )
        assert_same(hypotheses, sentence, expected)


@pytest.mark.parametrize(
    "options", [dict(exponent=-1.5, min_length=2), dict(exponent=0.6, unk_penalty=-4.0)]
)
def test_optimal_search_stops_too_early_never(options):
    """The bound of what may still come, for all signs of scores and exponents."""
    ours = {OURS.get(key, key): value for key, value in options.items()}
    for seed in range(4):
        model = Recurrent(8, seed, scale=1.0)
        model.output[:, END] += 1.0
        found = run(model, [[4, 5]], beams=3, limits=[8], stopping="optimal", **ours)
        expected = reference.beam_search(
            lambda tokens, model=model: model.logits([4, 5], tokens),
            beams=3, limit=8, stopping="optimal", **options,
        )  # fmt: skip
        assert_same(found, 0, expected)


def test_logits_without_a_number_are_never_chosen():
    """NaN in the rows of one sentence: it finds nothing, the other one everything."""
    a = 4
    table = {(): {a: 1.0}, (a,): {END: 1.0}}
    model = Table(6, [table, table])
    model.table[2:4] = np.nan
    ids, scores = decoding.beam_search(model, [[0], [1]], 2, max_length=3)
    ids, scores = map(to_numpy, (ids, scores))
    assert ids[0, 0].tolist() == [a, END, PAD, PAD]
    assert (ids[1] == PAD).all() and (scores[1] == -np.inf).all()
    # In one of two beams: the other goes on.
    model = Table(6, [{(): {a: 0.6, 5: 0.4}, (a,): {}, (5,): {END: 1.0}}])
    model.table[1] = np.nan
    found = run(model, [[0]], beams=2, limits=[3])
    assert to_numpy(found.ids)[0, 0, :2].tolist() == [5, END]
    np.testing.assert_allclose(found.scores[0, 0], np.log(0.4) / 2, rtol=1e-5)
