"""Draws: how often, from what, with which scores, and again."""

import keras
import numpy as np
import pytest

from keras_seqconv import decoding
from keras_seqconv.decoding.draws import uniforms
from tests.backends import to_numpy
from tests.decoding.fakes import END, PAD, UNK, Recurrent, Table

P = {4: 0.4, 5: 0.3, 6: 0.15, 7: 0.1, UNK: 0.05}
ENDS = {END: 0.5, 4: 0.3, 5: 0.2}  # the end is drawn like any other token
DRAWS = 4000


@pytest.mark.parametrize(
    ("table", "options", "kept"),
    [
        (P, {}, [4, 5, 6, 7, UNK]),
        (P, {"top_k": 2}, [4, 5]),
        (P, {"top_p": 0.3}, [4]),
        (P, {"top_p": 0.65}, [4, 5]),
        (P, {"top_p": 0.9, "top_k": 2}, [4, 5]),
        (P, {"suppressed_ids": [4]}, [5, 6, 7, UNK]),
        # Half of what may follow, of which 5 is half.
        (P, {"suppressed_ids": [4], "top_p": 0.45}, [5]),
        (P, {"suppressed_ids": [4], "top_p": 0.7, "top_k": 3}, [5, 6]),
        (P, {"temperature": 2.0}, [4, 5, 6, 7, UNK]),
        (ENDS, {"top_k": 2}, [END, 4]),
    ],
)
def test_draws_follow_the_probabilities(table, options, kept):
    """A first token drawn from the table, then the end."""
    model = Table(8, [{(): table, **{(x,): {END: 1.0} for x in table if x != END}}])
    ids, scores = decoding.sample(
        model, [[0]], DRAWS, seed=3, max_length=2, length_penalty=0.0,
        min_length=0, **options,
    )  # fmt: skip
    ids, scores = to_numpy(ids)[0], to_numpy(scores)[0]
    firsts = ids[:, 0]
    assert (ids[firsts != END, 1] == END).all()
    heated = {x: p ** (1 / options.get("temperature", 1)) for x, p in table.items()}
    assert set(firsts.tolist()) == set(kept)
    for token in kept:
        p = heated[token] / sum(heated[token] for token in kept)
        limit = 4 * np.sqrt(p * (1 - p) / DRAWS)
        assert abs(np.mean(firsts == token) - p) <= limit
    # Scores are the model's probabilities, whatever was cut off.
    total = sum(heated.values())
    wanted = np.log([heated[token] / total for token in firsts.tolist()])
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    assert (np.diff(scores) <= 0).all()  # best first


def test_seeds_that_do_not_fit_are_named():
    model, sources = Recurrent(20), [[4, 2], [5, 2]]
    short = [keras.ops.ones((2, size)) for size in (4, 0)]  # and five steps
    for seed in ([(1, 1)], [(1, 1)] * 3, keras.ops.ones((3, 5)), *short):
        with pytest.raises(ValueError, match="`seed` must h"):
            decoding.sample(model, sources, seed=seed, max_length=4)
    draws = [
        to_numpy(decoding.sample(model, sources, seed=seed, max_length=4)[0])
        for seed in (3, np.int64(3))
    ]
    assert np.array_equal(*draws)
    none, _ = decoding.sample(model, np.zeros((0, 2), "int32"), seed=[], max_length=4)
    assert to_numpy(none).shape[0] == 0


@pytest.mark.tensorflow  # JAX wants constant shapes
def test_the_default_length_is_no_limit_of_a_tensor():
    length = keras.ops.convert_to_tensor(260)
    ids, _ = decoding.sample(
        Recurrent(20), [[4, 2]], seed=1, max_length=length, min_length=250
    )
    assert END not in to_numpy(ids)[0, 0, :250] and END in to_numpy(ids)[0, 0, 250:]


def test_draws_repeat_with_a_seed_only():
    model = Recurrent(20, scale=1.0)
    options = dict(num_samples=4, max_length=6)

    def draw(seed):
        return to_numpy(decoding.sample(model, [[4, 5, 2]], seed=seed, **options)[0])

    assert np.array_equal(draw(1), draw(1))
    traces = model.traces
    assert not np.array_equal(draw(1), draw(2))
    assert model.traces == traces  # another seed, the same graph
    assert not np.array_equal(draw(None), draw(None))
    generator = keras.random.SeedGenerator(5)
    assert not np.array_equal(draw(generator), draw(generator))


@pytest.mark.parametrize("top_k", [3, 20])
def test_options_of_a_call_may_be_tensors(top_k):
    """As an export has them: one graph for all values."""
    model = Recurrent(20, scale=1.0)
    given = dict(temperature=0.7, top_k=top_k, max_length=5)
    options = dict(source_ids=[[4, 5, 2], [6, 2, 1]], num_samples=4, min_length=0)
    uniforms = keras.random.uniform((8, 6), seed=3)
    if top_k == 20:  # all of them
        expected = decoding.sample(
            model, **options, **{**given, "top_k": None}, seed=uniforms
        )
    else:
        expected = decoding.sample(model, **options, **given, seed=3)
    tensors = {
        name: keras.ops.convert_to_tensor(value) for name, value in given.items()
    }
    if keras.backend.backend() == "jax":  # which wants constant shapes
        tensors["max_length"] = given["max_length"]
    found = decoding.sample(model, **options, **tensors, seed=uniforms)
    np.testing.assert_array_equal(to_numpy(found[0]), to_numpy(expected[0]))
    np.testing.assert_allclose(to_numpy(found[1]), to_numpy(expected[1]), atol=1e-5)
    numbers = to_numpy(uniforms).astype("float64")
    again, _ = decoding.sample(model, **options, **tensors, seed=numbers)
    np.testing.assert_array_equal(to_numpy(again), to_numpy(expected[0]))
    # A tensor replaces the option.
    one = decoding.SampleOptions(num_samples=4, temperature=0.2, max_length=5)
    tensors = {n: x for n, x in tensors.items() if keras.ops.is_tensor(x)}
    again = decoding.sample_hypotheses(
        model, options["source_ids"], options=one, seed=uniforms, **tensors
    )
    np.testing.assert_array_equal(to_numpy(again.ids), to_numpy(expected[0]))


def test_pairs_of_integers_may_be_an_array():
    model, pairs = Recurrent(20, scale=1.0), [(1, 2), (3, 4)]
    ids = [
        to_numpy(decoding.sample(model, [[4, 2], [4, 2]], seed=seed, max_length=5)[0])
        for seed in (pairs, tuple(pairs), np.array(pairs))
    ]
    np.testing.assert_array_equal(ids[0], ids[1])
    np.testing.assert_array_equal(ids[0], ids[2])
    assert (ids[0][0] != ids[0][1]).any()
    for wrong in ((1, 2), [(1, 2)], [(1, 2, 3)] * 2, [(1, 2), (3,)]):
        with pytest.raises(ValueError, match="`seed` must hold a pair for each of 2"):
            decoding.sample(model, [[4, 2], [4, 2]], seed=wrong, max_length=5)


def test_an_end_without_probability_still_ends():
    """At the limit, of models that never saw an end, such as those of characters."""
    model = Table(8, [{(): {4: 1.0, END: 1e-30}, (4,): {4: 1.0, END: 1e-30}}])
    ids, scores = decoding.sample(model, [[0]], seed=1, max_length=1, temperature=0.1)
    assert to_numpy(ids)[0, 0].tolist() == [4, END]
    assert np.isfinite(to_numpy(scores)).all()


def test_samples_keep_the_rules():
    model = Recurrent(20, scale=1.0)
    ids, scores = decoding.sample(
        model, [[4, 5, 2], [6, 2, 1]], 30, seed=1, max_length=5, min_length=3,
        suppressed_ids=[7, 8, 10], prefix_ids=[[9, PAD], [PAD, 10]],
        no_repeat_ngram_size=1,
    )  # fmt: skip
    ids = to_numpy(ids)
    assert (ids[0, :, 0] == 9).all() and (ids[1, :, 1] == 10).all()
    assert len(set(ids[1, :, 0].tolist())) > 3
    for row in ids.reshape(-1, 6).tolist():
        tokens = row[: row.index(END)]
        assert 3 <= len(tokens) <= 5 and len(set(tokens)) == len(tokens)
        assert not {7, 8, PAD} & set(tokens) and 10 not in (tokens[0], *tokens[2:])
    assert np.isfinite(to_numpy(scores)).all()


def test_scores_of_samples_are_those_of_the_model():
    model = Recurrent(12, seed=2, scale=1.0)
    source = [4, 5, 2]
    found = decoding.sample_hypotheses(
        model, [source], num_samples=5, top_k=4, seed=1, max_length=6
    )
    ids, scores, positional, lengths = map(to_numpy, found[:4])
    for rank in range(5):
        tokens = ids[0, rank, : lengths[0, rank]].tolist()
        parts = [model.log_probs(source, tokens[:n])[x] for n, x in enumerate(tokens)]
        np.testing.assert_allclose(positional[0, rank, : len(tokens)], parts, atol=1e-4)
        near = dict(rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(scores[0, rank], np.mean(parts), **near)


@pytest.mark.tensorflow
@pytest.mark.parametrize("seed", [(0, 0), (1, 2), (2**33 + 7, 2**62), (-1, -(2**40))])
def test_draws_are_those_of_the_op_in_exports(seed):
    import tensorflow as tf

    for shape in [(1,), (7, 3), (201, 5)]:
        expected = tf.random.stateless_uniform(shape, tf.constant(seed, "int64"))
        assert np.array_equal(uniforms(seed, shape), expected)
