"""The loops of the search for Keras, around the one step of `step.py`.

- `_run_steps` is for XLA and JAX, which want constant shapes: some steps with the same
  sentences.
- `_run_resizing` is for graphs of TensorFlow that serve all sizes (and for eager
  loops): sentences that have ended leave inside of the loop. There the past that
  attention keeps grows with the steps; in the former it has all L positions from the
  start.
"""

import keras
from keras import ops

from keras_seqconv.decoding.hypotheses import (
    NOTHING,
    Ended,
    Hypotheses,
    Records,
    hypotheses,
)
from keras_seqconv.decoding.next_tokens import NEVER
from keras_seqconv.decoding.step import (
    SHRINK_AT,
    Rows,
    SearchTask,
    Sentences,
    advance,
    begin,
    best_ended,
    taken,
)
from keras_seqconv.decoding.tasks import limits_of, of_sentences, rules_of, task_of
from keras_seqconv.ops.compilation import compiled_by_xla, in_graph
from keras_seqconv.ops.fused import take, take_each


def whole_search(model, options, tensors: dict) -> Hypotheses:
    """The search as a part of the graph that is being traced."""
    limits, longest = limits_of(model, options, tensors)
    task = task_of(model, options, tensors)
    return search(task, rules_of(task, tensors, limits), tensors, longest + 1)


def search(task: SearchTask, rules: dict, tensors: dict, num_steps) -> Hypotheses:
    """Searches for the best, or draws, continuations of a start token.

    Args:
        task, rules, tensors: of the call, see `tasks.py`.
        num_steps: L, int or int32 scalar tensor: the largest limit + 1.
    """
    model, options = task.constraints.model, task.constraints.options
    num_beams, count = task.strategy.num_beams, ops.shape(of_sentences(tensors))[0]
    # A number that is known in a graph is part of its tensors' shapes.
    known = any(isinstance(x.shape[0], int) for x in tensors.values() if len(x.shape))
    resizes = not (compiled_by_xla() or (known and in_graph()))
    more = {"return_attention": True} if options.return_attention else {}
    more["max_length"] = None if resizes else num_steps
    source = tensors.get("source_ids", count)
    state = model.get_initial_state(source, num_beams=num_beams, **more)
    common, rows, sentences = begin(task, rules, state, num_steps)
    if resizes:
        ended, records = _run_resizing(task, common, rows, sentences, num_steps)
    else:
        _, _, sentences, records = _run_steps(task, common, rows, sentences, num_steps)
        ended = best_ended(task, sentences)
    tokens, beams = _follow(records.backpointers, ended, num_beams, num_steps)
    return hypotheses(model, ended, records, tokens, beams)


def _run_steps(task: SearchTask, common, rows, sentences, size, least=0) -> tuple:
    """At most `size` steps, while more than `least` sentences are unfinished.

    Returns:
        The number of steps, rows, sentences, `Records` of these steps.
    """
    shared = sentences.shared

    def goes_on(count, rows, sentences, records):
        unfinished = ops.any(sentences.scores > NEVER, axis=1)
        return (count < size) & (ops.sum(ops.cast(unfinished, "int32")) > least)

    def body(count, rows, sentences, records):
        before = sentences._replace(shared=shared)
        rows_after, after, made = advance(task, common, rows, before)
        place = ops.reshape(count, (1, 1))
        made = keras.tree.map_structure(
            lambda buffer, values: _written(buffer, place, values), records, made
        )
        after = count + 1, rows_after, after._replace(shared=NOTHING), made
        return _shaped_like(after, (count, rows, sentences, records))

    records = _no_records(task, rows, sentences, size)
    start = ops.convert_to_tensor(0, "int32"), rows, sentences._replace(shared=NOTHING)
    start = (*start, records)
    count, rows, sentences, records = ops.while_loop(goes_on, body, start)
    return count, rows, sentences._replace(shared=shared), records


def _run_resizing(task: SearchTask, common, rows, sentences, num_steps) -> tuple:
    """All steps; sentences that have ended leave -> `Ended` and `Records` of all B.

    A loop around that of the steps: in it each of its tensors would cost each step
    operations, of which steps of few rows have enough.
    """
    places = ops.arange(ops.shape(sentences.scores)[0], dtype="int32")
    results = sentences.finished, sentences.origins
    records = _no_records(task, rows, sentences, num_steps)

    def put(at):
        return lambda of_all, some: ops.scatter_update(of_all, at, some)

    def body(*before):
        rows, sentences, places, results, records = before
        first = sentences.steps
        least = SHRINK_AT * ops.cast(ops.shape(places)[0], "float32")
        least, size = ops.cast(least, "int32"), num_steps - first
        count, rows, sentences, made = _run_steps(
            task, common, rows, sentences, size, least=least
        )
        made = keras.tree.map_structure(lambda x: x[:count], made)
        steps = ops.arange(first, sentences.steps)
        at = ops.stack(ops.meshgrid(steps, places, indexing="ij"), axis=-1)
        records = keras.tree.map_structure(put(at), records, made)
        made = sentences.finished, sentences.origins
        results = keras.tree.map_structure(put(places[:, None]), results, made)
        (left,) = ops.nonzero(ops.any(sentences.scores > NEVER, axis=1))
        moved = taken(task, rows, sentences, left)
        after = *moved, take(places, left), results, records
        return _shaped_like(after, before)

    _, sentences, _, results, records = ops.while_loop(
        lambda _, sentences, *__: (
            (sentences.steps < num_steps) & ops.any(sentences.scores > NEVER)
        ),
        body,
        (rows, sentences, places, results, records),
    )
    finished, origins = results
    of_all = sentences._replace(finished=finished, origins=origins)
    return best_ended(task, of_all), records


def _no_records(task: SearchTask, rows: Rows, sentences: Sentences, size) -> Records:
    by_step = (size, *ops.shape(sentences.scores))
    attention = NOTHING
    if task.constraints.options.return_attention:
        width = ops.shape(rows.state["attention"])[-1] + 1
        attention = ops.zeros((*by_step, width), "float32")
    sums = ops.zeros(by_step, "float32")
    return Records(ops.zeros(by_step, "int32"), sums, attention)


# Backpointers


def _follow(backpointers, ended: Ended, num_beams: int, num_steps):
    """Tokens, and the beams that they were chosen from, (L, B, N)."""
    last = ended.last
    by_step = (num_steps, *ops.shape(last))
    start = (
        ops.max(last, initial=-1),
        ended.beams,
        ops.zeros(by_step, "int32"),
        ops.zeros(by_step, "int32"),
    )

    def body(step, beams, tokens, chosen_from):
        link = take_each(take(backpointers, step), beams)
        # At its last step a hypothesis ended: its origin names the beam.
        parents = ops.where(step < last, link % num_beams, beams)
        place = ops.reshape(step, (1, 1))
        tokens = _written(tokens, place, link // num_beams)
        after = (step - 1, parents, tokens, _written(chosen_from, place, parents))
        return _shaped_like(after, start)

    *_, tokens, chosen_from = ops.while_loop(lambda step, *_: step >= 0, body, start)
    return tokens, chosen_from


def _written(buffer, place, values):
    """`buffer` (L, ...) with `values` (...) at `place` (1, 1); loops do it in place."""
    return ops.scatter_update(buffer, place, values[None])


def _shaped_like(tree, models):
    """Leaves with the static shapes of `models`, which dynamic shapes may have lost.

    TensorFlow refuses loops whose variables come back with a less known shape.
    """
    if keras.backend.backend() == "jax" or not in_graph():
        return tree
    tree = keras.tree.map_structure(ops.convert_to_tensor, tree)
    leaves, wanted = keras.tree.flatten(tree), keras.tree.flatten(models)
    for value, model in zip(leaves, wanted, strict=True):
        value.set_shape(model.shape)
    return tree
