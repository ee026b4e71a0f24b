"""The functions that take a model: arguments, caching, ensembles, scoring, export."""

import concurrent.futures
import dataclasses
import functools
import gc
import json
import weakref

import keras
import numpy as np
import pytest

from keras_seqconv import decoding
from keras_seqconv.decoding import graphs
from keras_seqconv.decoding.options import BeamOptions
from tests.backends import to_numpy
from tests.cases import quick_and_slow
from tests.convert.reference import log_softmax
from tests.decoding.fakes import END, PAD, Recurrent, Trained

ON_JAX = keras.backend.backend() == "jax"


WRONG = [
    ({"num_beams": 9}, "`num_beams` must be less than .* 9"),
    ({"num_hypotheses": 6}, "`num_hypotheses` must be at most `num_beams`"),
    ({"num_beams": 4, "num_groups": 3}, "`num_beams` must be a multiple"),
    ({"min_length": 5, "max_length": 4}, "`min_length` must be at most"),
    ({"max_length": 10**9}, "`max_length` must be at most 1000000"),
    ({"length_penalty": float("nan")}, "`length_penalty` must be a finite"),
    # Beyond these bounds float32 has no score, and no hypothesis would be left.
    ({"length_penalty": -11}, "`length_penalty` must be a finite number >= -10"),
    ({"length_penalty": 11}, "a finite number >= -10 and <= 10"),
    ({"unk_penalty": 1e30}, "`unk_penalty` must be a finite number"),
    ({"temperature": 1e-39}, "`temperature` must be a finite number >= 0.0001"),
    ({"suppressed_ids": [END]}, "`suppressed_ids` must not contain the end"),
    ({"suppressed_ids": [9]}, "`suppressed_ids` must be less than"),
    ({"min_length": 20}, "`min_length` must be less than the `max_target_length`"),
    ({"prefix_ids": [[4], [5], [6]]}, "must have as many rows"),
    ({"prefix_ids": [[4], [9]]}, "`prefix_ids` must be .* the target .* size 9"),
    ({"prefix_ids": [[4], [-3]]}, "`prefix_ids` must be at least 0 and less"),
    ({"batch_size": 2}, "`batch_size` is for language models"),
    ({"source_ids": None, "batch_size": -1}, "`batch_size` must be an integer >= 0"),
    ({"source_ids": None, "batch_size": 2.5}, "`batch_size` must be an integer >= 0"),
]


def test_wrong_arguments_are_named():
    model = Recurrent(9, max_target_length=12)
    for options, words in WRONG:
        with pytest.raises(ValueError, match=f"(?s){words}.*Received: "):
            decoding.beam_search(model, **{"source_ids": [[4, 2], [5, 2]]} | options)
    for options in ({"num_samples": 0}, {"top_k": 0}, {"top_p": 0.0}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            decoding.sample(model, [[4, 2]], **options)
    with pytest.raises(ValueError, match="must be given"):
        decoding.beam_search(model)
    for name, value in (("max_length_ratio", 1.0), ("return_attention", True)):
        with pytest.raises(ValueError, match=f"`{name}` needs `source_ids`"):
            decoding.beam_search_hypotheses(model, batch_size=2, **{name: value})
    largest = np.array([[8, 2], [8, 2]])
    ids, _ = decoding.beam_search(model, largest, max_length=3, prefix_ids=[[8], [8]])
    assert (to_numpy(ids)[:, :, 0] == 8).all()
    for penalty, unknown, temperature in ((-10, 1e6, 1e-4), (10, -1e6, 1e4)):
        ids, scores = decoding.beam_search(
            model, largest, max_length=11, prefix_ids=[[3], [3]],
            length_penalty=penalty, unk_penalty=unknown, temperature=temperature,
        )  # fmt: skip
        assert np.isfinite(to_numpy(scores)).all()
        assert (to_numpy(ids)[:, :, 0] == 3).all()
    with pytest.raises(TypeError, match="'beams'. Did you mean num_beams.*beams=3"):
        decoding.beam_search(model, [[4, 2]], beams=3)
    chosen = decoding.BeamOptions(num_beams=2, max_length=8)
    for search, options in (
        (decoding.beam_search, {"options": chosen}),  # whose arguments are names
        (decoding.beam_search_hypotheses, {"options": chosen, "num_beams": 4}),
        (decoding.beam_search_hypotheses, {"options": {"num_beams": 2}}),
        (decoding.sample_hypotheses, {"options": chosen}),
    ):
        with pytest.raises(
            ValueError, match="`options` must be a (Beam|Sample)Options"
        ):
            search(model, [[4, 2]], **options)
    found = decoding.beam_search_hypotheses(model, [[4, 2]], options=chosen)
    assert tuple(found.ids.shape) == (1, 2, 9)


def test_limits_are_those_of_the_sentence():
    """Nothing but the limit ends a hypothesis here."""
    model = Recurrent(9, max_target_length=9)
    model.output[:, END] = 0
    model.output += 1e4 * (np.arange(9) == 5)
    model.embedding, model.recurrent = abs(model.embedding), abs(model.recurrent)
    sources = np.full((4, 7), PAD)
    for row, length in enumerate((1, 3, 5, 7)):
        sources[row, :length] = 5
    found = decoding.beam_search_hypotheses(
        model, sources, num_beams=1, max_length=2, max_length_ratio=1.2
    )
    lengths = to_numpy(found.lengths)[:, 0].tolist()
    # int(1.2 S + 2) and the end token, but no more than the model has positions.
    assert lengths == [4, 6, 9, 9]
    assert found.ids.shape[-1] == 9


def test_language_models_may_begin_with_nothing():
    model = Recurrent(9, seed=3)
    ids, _ = decoding.beam_search(model, batch_size=2, num_beams=3, max_length=6)
    ids = to_numpy(ids)
    assert ids.shape == (2, 3, 7) and (ids[0] == ids[1]).all()


@pytest.mark.parametrize("count", [1, 3])
def test_scores_and_attention_belong_to_the_tokens(count):
    """Of a model, and of an ensemble, which averages both."""
    models = [
        Recurrent(12, seed=9 + n, scale=2.0, width=4 + n, max_target_length=limit)
        for n, limit in enumerate([None, 9, 7][:count])
    ]
    model = decoding.Ensemble(models) if count > 1 else models[0]
    assert model.max_target_length == (7 if count > 1 else None)
    source, temperature = [4, 9, 2], 0.7
    found = decoding.beam_search_hypotheses(
        model, [source, source], num_beams=4, max_length=6, return_attention=True,
        temperature=temperature,
    )  # fmt: skip
    ids, _, positional, lengths, attention = map(to_numpy, found)
    assert attention.shape == (2, 4, 7, 3)
    for rank, tokens in enumerate(ids[1].tolist()):
        assert (attention[1, rank, lengths[1, rank] :] == 0).all()
        for place in range(lengths[1, rank]):
            before = source, tokens[:place]
            each = [log_softmax(x.logits(*before) / temperature) for x in models]
            wanted = np.log(np.mean(np.exp(each), axis=0)[tokens[place]])
            np.testing.assert_allclose(positional[1, rank, place], wanted, atol=1e-4)
            wanted = np.mean([one.attention(*before) for one in models], axis=0)
            np.testing.assert_allclose(attention[1, rank, place], wanted, atol=1e-4)


@pytest.mark.parametrize(("kind", "exponent"), [("gnmt", 0.6), ("power", 0.6)])
def test_scores_of_what_a_search_found_are_those_of_the_search(kind, exponent):
    model = Trained(12)
    source = np.full((2, 3), 5)
    options = dict(length_penalty=exponent, length_penalty_kind=kind)
    found = decoding.beam_search_hypotheses(
        model, source, num_beams=3, max_length=5, **options
    )
    again = decoding.score(model, source, found.ids, **options)
    for name in ("scores", "positional_scores"):
        wanted = getattr(found, name)
        np.testing.assert_allclose(getattr(again, name), wanted, atol=1e-5)
    assert np.array_equal(again.lengths, found.lengths)
    first = decoding.score(model, source, to_numpy(found.ids)[:, 0])
    assert first.scores.shape == (2,) and first.positional_scores.shape == (2, 6)


def test_score_of_an_ensemble_and_of_nothing():
    models = [Trained(8), Trained(8)]
    target = np.array([[5, 4, END, PAD], [PAD] * 4])
    found = decoding.score(decoding.Ensemble(models), [[4], [4]], target)
    tables = [to_numpy(model.table.embeddings) for model in models]
    wanted = 0.0
    for before, token in [(END, 5), (5, 4), (4, END)]:
        each = [np.exp(log_softmax(table[before]))[token] for table in tables]
        wanted += np.log(np.mean(each))
    np.testing.assert_allclose(found.scores[0], wanted / 3, rtol=1e-5)
    assert to_numpy(found.scores)[1] == -np.inf
    assert to_numpy(found.positional_scores)[0, 3] == 0


def test_calls_are_traced_once_and_see_new_weights():
    """And neither keep a model alive nor disturb it."""
    # With "auto" it depends on the clock whether a second graph is traced.
    search = functools.partial(decoding.beam_search, jit_compile=True)
    model = Trained(12)
    names = {variable.path for variable in model.variables}
    source = np.full((2, 3), 5)
    ids, _ = search(model, source, 3, max_length=5)
    traces = model.traces
    assert traces <= 2  # a loop may trace its body more than once
    table = np.full((12, 12), -9.0, "float32")
    table[:, 7] = 3.0
    model.table.set_weights([table])
    again, _ = search(model, source, 3, max_length=5)
    assert model.traces == traces
    assert (to_numpy(again)[:, 0, :3] == 7).all()
    assert not np.array_equal(ids, again)
    if not ON_JAX:  # there each shape is compiled
        search(model, np.full((4, 7), 5), 3, max_length=5)
        assert model.traces == traces
    search(model, source, 2, max_length=5)
    assert model.traces > traces
    assert {variable.path for variable in model.variables} == names
    dead = weakref.ref(model)
    del model
    gc.collect()
    assert dead() is None


def test_graphs_of_few_options_are_kept(monkeypatch):
    monkeypatch.setattr(graphs, "_KEPT", 2)
    model = Recurrent(9)
    for penalty in (0.5, 0.6, 0.7):
        decoding.beam_search(model, [[4, 2]], 2, penalty, max_length=2)
    assert len(vars(model)[graphs._CACHE][2]) == 2


@pytest.mark.parametrize("floatx", ["bfloat16", "float64"])
def test_searches_do_not_depend_on_floatx(floatx):
    def searched():
        ids, options = [[4, 5, 2]], {"max_length": 3}
        yield from decoding.sample(Recurrent(9), ids, seed=3, **options)
        if not ON_JAX:  # where Keras makes indices of NumPy bfloat16, too
            yield from decoding.beam_search(Recurrent(9), ids, **options)

    expected, before = [*searched()], keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        found = [*searched()]
    finally:
        keras.config.set_floatx(before)
    for value, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(value), to_numpy(right))


class Counting(Recurrent):
    """Notes how many rows each step has."""

    def step(self, ids, state):
        import tensorflow as tf

        note = tf.numpy_function(self.note, [tf.shape(ids)[0]], tf.int32)
        with tf.control_dependencies([note]):
            ids = tf.identity(ids)
        return super().step(ids, state)

    def note(self, rows):
        self.rows.append(int(rows))
        return rows


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "options",
    quick_and_slow(
        [{"no_repeat_ngram_size": 2, "return_attention": True}],
        [{"prefix_ids": np.array([[5, 6], [1, 1], [4, 1], [8, 1]])}, {"seed": 3}],
    ),
)  # fmt: skip
def test_sentences_that_have_ended_leave_the_batch(options):
    """A long one costs its own steps only, and finds what it finds under XLA."""
    model = Counting(300, seed=2)
    model.rows = []
    sources = np.full((4, 30), PAD)
    for row, length in enumerate([2, 30, 5, 1]):
        sources[row, :length] = 4 + np.arange(length)
    function = decoding.beam_search_hypotheses
    size = {"num_beams": 3}
    if "seed" in options:
        function, size = decoding.sample_hypotheses, {"num_samples": 3}
    # No end before the limit, which is that of the source.
    rules = {"min_length": 1, "max_length": 1, "max_length_ratio": 1.0}
    found = function(model, sources, **size, **rules, **options)
    steps = model.rows
    assert steps[0] == 12 and steps[-1] == 3
    assert steps == sorted(steps, reverse=True)
    options = {**size, **rules, **options, "jit_compile": True}
    wanted = function(Recurrent(300, seed=2), sources, **options)
    assert np.array_equal(found.ids, wanted.ids)
    for one, two in zip(found, wanted, strict=True):
        if one is not None:
            np.testing.assert_allclose(one, two, atol=1e-4)


def test_few_programs_for_all_lengths():
    """Of all numbers and lengths of sentences up to powers of two, made once each."""
    model, random = Recurrent(20, seed=4), np.random.default_rng(0)

    def search(sources):
        return decoding.beam_search(
            model, sources, 2, max_length=4, max_length_ratio=0.9, jit_compile=True
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, two = pool.map(search, [[[4, 5, 2]]] * 2)
    for part, other in zip(one, two, strict=True):
        assert np.array_equal(part, other)
    traces = model.traces
    for length in range(1, 61):
        search([random.integers(4, 20, length)])
    # JAX traces for each width, up to 32 tokens and up to 64.
    assert model.traces == (2 * traces if ON_JAX else traces)


def test_options_of_numpy_are_those_of_python():
    ids = ([4, 5], np.array([4, 5]), keras.ops.convert_to_tensor([4, 5]))
    found = [
        BeamOptions(num_beams=np.int64(3), temperature=np.float32(2), suppressed_ids=x)
        for x in ids
    ]
    for options in found:
        assert json.loads(json.dumps(dataclasses.asdict(options)))["num_beams"] == 3
        assert options == found[0] and options.suppressed_ids == (4, 5)
