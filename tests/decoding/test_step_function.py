"""Searches of a function of one's own against the reference; errors."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv import decoding
from tests.backends import modes, to_numpy
from tests.cases import quick_and_slow
from tests.decoding import reference
from tests.decoding.fakes import END, PAD, Recurrent

MODEL, LIMIT = Recurrent(12, seed=3), 6
SOURCES = np.array([[4, 5, 6, 7, 2], [9, 2, 1, 1, 1], [5, 5, 2, 1, 1]])
IDS = {"start_id": END, "end_id": END, "pad_id": PAD}
ROWS = ops.zeros((3, 6))


def step(ids, state):
    """The model's, with its own nest, a matrix of a row and a counter in it."""
    h, (seen, count) = state["h"], state["more"]
    assert len(ids.shape) == 2 and ids.shape[1] == 1
    embedded = ops.take(ops.convert_to_tensor(MODEL.embedding), ids[:, 0], axis=0)
    h = ops.tanh(ops.matmul(h, MODEL.recurrent) + embedded)
    seen = seen + ops.stack([embedded, h], axis=1)
    return ops.matmul(h, MODEL.output), {"h": h, "more": (seen, count + 1)}


def first(h):
    return {"h": h, "more": (ops.zeros((ops.shape(h)[0], 2, 6)), 0)}


def hidden():
    state = MODEL.get_initial_state(ops.convert_to_tensor(SOURCES))
    return ops.convert_to_tensor(state["beams"]["h"])


def ways(call):
    """Those of `modes`, and a graph for any number of rows."""
    found = modes(call)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        spec = tf.TensorSpec((None, 6), "float32")
        found["sizes"] = tf.function(call, autograph=False, input_signature=[spec])
    return found


@pytest.mark.parametrize(
    ("options", "of_reference"),
    quick_and_slow(
        [({"num_beams": 4, "no_repeat_ngram_size": 2}, {"beams": 4, "ngram": 2})],
        [
            ({"num_beams": 1}, {"beams": 1}),
            (
                {"num_beams": 4, "num_groups": 2, "stopping": "optimal"},
                {"beams": 4, "groups": 2, "stopping": "optimal"},
            ),
        ],
    ),
)
def test_beam_search_equals_the_reference(options, of_reference):
    def search(h):
        return tuple(
            decoding.beam_search_hypotheses(
                decoding.StepFunction(step, first(h), **IDS),
                max_length=LIMIT,
                **options,
            )[:4]
        )

    expected = [
        reference.beam_search(
            lambda tokens, source=source: MODEL.logits(source, tokens),
            limit=LIMIT,
            **of_reference,
        )
        for source in SOURCES
    ]
    for function in ways(search).values():
        found = function(hidden())
        for sentence, wanted in enumerate(expected):
            reference.assert_same(found, sentence, wanted)


def test_greedy_search_and_draws():
    model = decoding.StepFunction(step, first(hidden()), **IDS)
    prefix = [[7, 5], [8, PAD], [PAD, PAD]]
    ids, scores = decoding.greedy(model, max_length=LIMIT, prefix_ids=prefix)
    for sentence, tokens in enumerate([[7, 5], [8], []]):
        wanted = reference.beam_search(
            lambda tokens, source=SOURCES[sentence]: MODEL.logits(source, tokens),
            beams=1, limit=LIMIT, prefix=tokens,
        )  # fmt: skip
        tokens, score, _ = wanted[0]
        assert to_numpy(ids)[sentence, : len(tokens)].tolist() == tokens
        np.testing.assert_allclose(to_numpy(scores)[sentence], score, rtol=1e-4)
    uniforms = keras.random.uniform((6, LIMIT + 1), seed=3)
    draws = {"num_samples": 2, "top_k": 5, "temperature": 0.7, "seed": uniforms}
    draws["max_length"] = LIMIT
    found = decoding.sample(model, **draws)[0]
    wanted = decoding.sample(MODEL, SOURCES, **draws)[0]
    assert np.array_equal(to_numpy(found), to_numpy(wanted))


def returning(logits=(3, 9), state=(3, 6), dtype="float32"):
    return lambda ids, _: (ops.zeros(logits), ops.zeros(state, dtype))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": 0}, r"one row for each .*state=int32 \(\)"),
        ({"state": [ROWS, ROWS[:2]]},
         r"one row .*\['float32 \(3, 6\)', 'float32 \(2, 6\)'\]"),
        ({"step": lambda ids, state: state},
         r"`step` must return logits and the next state, \('float32 \(rows, 6\)', "
         r"'float32 \(rows, 6\)'\). Received: float32 \(rows, 6\), for 3 rows"),
        ({"step": returning((3, 1, 9))}, r"Received: \('float32 \(rows, 1, 9\)', "),
        ({"step": returning(state=(3, 7))}, r", 'float32 \(rows, 7\)'\), for"),
        ({"step": returning(dtype="int32")}, r", 'int32 \(rows, 6\)'\), for"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(changes, words):
    given = {"step": returning(), "state": ROWS, **IDS, **changes}
    with pytest.raises(ValueError, match=words) as error:
        decoding.StepFunction(**given)
    assert "\n" not in str(error.value)
