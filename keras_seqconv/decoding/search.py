"""The search: one loop for greedy search, beam search and sampling.

It knows nothing of models, only a function `step(ids, state) -> (logits, state)`.

A step writes down each beam's token and parent; the hypotheses are put together from
these backpointers after the loop, so nothing but the state of the model moves when
beams change places.

Sentences end at different steps, and those that have ended leave the batch: a step
computes rows for the b <= B sentences that are left, r = b * G rows. There are two
loops around the same step:

- `run_steps` is for XLA and JAX, which want constant shapes: some steps with the same
  sentences. `compiled.py` calls it in chunks, between which others take the places of
  those that have ended, so that each sentence has a number of steps of its own.
- `_run_resizing` is for graphs of TensorFlow that serve all sizes (and for eager
  loops): sentences leave inside of the loop. There the past that attention keeps grows
  with the steps; in the former it has all L positions from the start.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_seqconv.decoding.hypotheses import (
    NOTHING,
    Ended,
    Hypotheses,
    Records,
    follow_in_graph,
    hypotheses,
    shaped_like,
    written,
)
from keras_seqconv.decoding.next_tokens import NEVER, Constraints
from keras_seqconv.decoding.strategies import Choice
from keras_seqconv.ops.compilation import compiled_by_xla, in_graph
from keras_seqconv.ops.fused import take, take_each

# The batch is gathered anew when at most this part of it is left: a gathering reads the
# state once, which costs less than one step. (Other parts were not tried.)
_SHRINK_AT = 0.75


class Task(NamedTuple):
    """Constants of all steps, for any remaining sentences.

    step: `step(ids, state) -> (logits, state)`.
    strategy: chooses what goes on (decoding/strategies.py).
    constraints: model and options; the tensors of the rules are in `Rows`.
    num_hypotheses: N.
    """

    step: Callable
    strategy: object
    constraints: Constraints
    num_hypotheses: int


class Rows(NamedTuple):
    """Tensors with a row for each beam of the sentences that are left.

    ids: (r, 1) int32, the last token of each beam.
    state: "beams" of the state of the model.
    history: (r, L) int32, all tokens of each beam, or nothing.
    rules: those tensors of `Constraints` that there are, by name.
    """

    ids: object
    state: dict
    history: object
    rules: dict


class Sentences(NamedTuple):
    """Tensors with a row for each sentence that is left.

    steps: (b,) int32, the number of tokens so far; a scalar where it is that of all.
    shared: "shared" of the state of the model.
    scores: (b, G) float32, of the unfinished; -inf for beams that do not go on.
    finished: (b, G) float32, sums of log-probabilities of the complete hypotheses.
    origins: (b, G) int32, where these ended: G * step + beam.
    """

    steps: object
    shared: dict
    scores: object
    finished: object
    origins: object


def search(
    step: Callable,
    state: dict,
    strategy,
    constraints: Constraints,
    *,
    num_steps,
    num_hypotheses: int,
) -> Hypotheses:
    """Search for the best, or draw, continuations of a start token.

    Args:
        step: `step(ids (R, 1) int32, state) -> (logits (R, V), state)`.
        state: {"shared": ..., "beams": ...}, nested. Leaves of "shared" have B rows,
            leaves of "beams" R rows, or rank 0. When beams change places, these rows
            do; when sentences leave, both. With the option `return_attention`,
            `state["beams"]["attention"]` is (R, S). Other keys are left as they are.
        strategy: chooses what goes on (decoding/strategies.py).
        constraints: what may be chosen, and the options.
        num_steps: L, int or int32 scalar tensor: the largest limit + 1.
        num_hypotheses: N, at most G.
    """
    task = Task(step, strategy, constraints, num_hypotheses)
    common, rows, sentences = begin(task, state, num_steps)
    batch_size = ops.shape(sentences.scores)[0]
    if may_resize(batch_size):
        ended, records = _run_resizing(task, common, rows, sentences, num_steps)
    else:
        _, _, sentences, records = run_steps(task, common, rows, sentences, num_steps)
        ended = best_ended(task, sentences)
    tokens, beams = follow_in_graph(
        records.backpointers, ended, strategy.num_beams, num_steps
    )
    return hypotheses(ops, constraints.model, ended, records, tokens, beams)


def begin(task: Task, state: dict, num_steps) -> tuple:
    """Common state, rows and sentences before the first step."""
    constraints, num_beams = task.constraints, task.strategy.num_beams
    names = ("limits", "prefix", "first_beam", "uniforms")
    rules = {name: getattr(constraints, name) for name in names}
    rules = {name: value for name, value in rules.items() if value is not None}
    num_rows = ops.shape(constraints.limits)[0]
    history, ids = NOTHING, ops.full((num_rows, 1), constraints.model.start_id)
    if constraints.options.no_repeat_ngram_size:
        size = (num_rows, num_steps)
        history = ops.full(size, constraints.model.pad_id, dtype="int32")
    batch_size = num_rows // num_beams
    is_alive = ops.arange(num_beams) < task.strategy.num_first_beams
    scores = ops.zeros((batch_size, 1)) + ops.where(is_alive, 0.0, NEVER)
    common = {k: v for k, v in state.items() if k not in ("shared", "beams")}
    return (
        common,
        Rows(ops.cast(ids, "int32"), state["beams"], history, rules),
        Sentences(
            steps=ops.zeros((), "int32"),
            shared=state["shared"],
            scores=scores,
            finished=ops.full((batch_size, num_beams), NEVER),
            origins=ops.zeros((batch_size, num_beams), "int32"),
        ),
    )


# Steps


def _advance(task: Task, common: dict, rows: Rows, sentences: Sentences, draws=None):
    """One step: rows and sentences after it, and its `Records` without the axis L.

    draws: (r,) in [0, 1), by which tokens are drawn; by default the `uniforms`' own.
    """
    number = number_of_rows = sentences.steps
    if len(number.shape):
        number_of_rows = ops.repeat(number, task.strategy.num_beams)
        number = number[:, None]
    task = task._replace(constraints=task.constraints._replace(**rows.rules))
    strategy, constraints = task.strategy, task.constraints
    state = {**common, "shared": sentences.shared, "beams": rows.state}
    logits, state = task.step(rows.ids, state)
    following = constraints.next_tokens(logits, number_of_rows, rows.history)
    if draws is None and constraints.uniforms is not None:
        draws = take(constraints.uniforms, sentences.steps, axis=1)
    following = following._replace(uniforms=draws)
    choice = strategy.choose(following, sentences.scores)
    finished, origins = _finished(task, sentences, choice, number)
    done = _is_done(task, finished, origins, choice, number)
    attention = NOTHING
    if constraints.options.return_attention:
        attention = ops.cast(state["beams"]["attention"], "float32")
        attention = ops.pad(attention, [(0, 0), (0, 1)])
        shape = (-1, strategy.num_beams, ops.shape(attention)[-1])
        attention = ops.reshape(attention, shape)
    links = choice.tokens * strategy.num_beams + choice.parents
    rows = rows._replace(state=state["beams"])
    rows = _moved(rows, choice, number_of_rows, strategy)
    sentences = sentences._replace(
        steps=sentences.steps + 1,
        scores=ops.where(done, NEVER, choice.scores),
        finished=finished,
        origins=origins,
    )
    return rows, sentences, Records(links, choice.scores, attention)


def run_steps(
    task: Task, common, rows, sentences, size, most=None, least=0, draws=None
) -> tuple:
    """Some steps.

    Args:
        common, rows, sentences: as in `begin`.
        size: int: steps that the records have room for.
        most: int32 scalar: the largest number of steps, `size` if None.
        least: int32 scalar: no step if no more sentences are unfinished.
        draws: (r, size) of these steps, see `_advance`, or None.

    Returns:
        The number of steps, rows, sentences, `Records` of these steps.
    """
    shared, most = sentences.shared, size if most is None else most

    def goes_on(count, rows, sentences, records):
        unfinished = ops.any(sentences.scores > NEVER, axis=1)
        return (count < most) & (ops.sum(ops.cast(unfinished, "int32")) > least)

    def body(count, rows, sentences, records):
        before = sentences._replace(shared=shared)
        here = None if draws is None else take(draws, count, axis=1)
        rows_after, after, made = _advance(task, common, rows, before, here)
        place = ops.reshape(count, (1, 1))
        made = keras.tree.map_structure(
            lambda buffer, values: written(buffer, place, values), records, made
        )
        after = count + 1, rows_after, after._replace(shared=NOTHING), made
        return shaped_like(after, (count, rows, sentences, records))

    records = _no_records(task, rows, sentences, size)
    start = ops.convert_to_tensor(0, "int32"), rows, sentences._replace(shared=NOTHING)
    start = (*start, records)
    count, rows, sentences, records = ops.while_loop(goes_on, body, start)
    return count, rows, sentences._replace(shared=shared), records


def _run_resizing(task: Task, common, rows, sentences, num_steps) -> tuple:
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
        least = _SHRINK_AT * ops.cast(ops.shape(places)[0], "float32")
        least, size = ops.cast(least, "int32"), num_steps - first
        count, rows, sentences, made = run_steps(
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
        return shaped_like(after, before)

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


def may_resize(batch_size) -> bool:
    """Whether tensors of a loop may change their sizes from step to step.

    `batch_size` is the number of sentences.
    """
    if compiled_by_xla():
        return False
    # A number that is known in a graph is part of its tensors' shapes.
    return not isinstance(batch_size, int) or not in_graph()


def taken(task: Task, rows: Rows, sentences: Sentences, places) -> tuple:
    """The rows and sentences of some of the sentences, `places` int32 (n,)."""
    order = _rows_of(places, task.strategy.num_beams)
    return _take_rows(rows, order), _take_rows(sentences, places)


def replaced(task: Task, state, places, new) -> tuple:
    """Rows and sentences, with those of n new ones at `places` int32 (n,)."""
    orders = _rows_of(places, task.strategy.num_beams), places

    def with_new(order, leaf, new):
        # New sources may be narrower.
        sizes = zip(ops.shape(leaf)[1:], ops.shape(new)[1:], strict=True)
        extra = [(0, size - of_new) for size, of_new in sizes]
        if any(not isinstance(size, int) or size for _, size in extra):
            new = ops.pad(new, [(0, 0), *extra])
        return ops.scatter_update(leaf, order[:, None], new)

    return tuple(
        keras.tree.map_structure(functools.partial(with_new, order), *parts)
        for order, *parts in zip(orders, state, new, strict=True)
    )


def _moved(rows: Rows, choice: Choice, step, strategy) -> Rows:
    """Each beam, with its new token, in the place in which it goes on."""
    state, history = rows.state, rows.history
    ids = ops.reshape(choice.tokens, (-1, 1))
    if strategy.reorders:
        sentences = ops.arange(ops.shape(choice.parents)[0], dtype="int32")
        order = _rows_of(sentences, strategy.num_beams, choice.parents)
        state, history = _take_rows((state, history), order)
    if history is not NOTHING:
        columns = ops.arange(ops.shape(history)[1])
        is_now = columns == (step[:, None] if len(step.shape) else step)
        history = ops.where(is_now, ids, history)
    return rows._replace(ids=ids, state=state, history=history)


def _no_records(task: Task, rows: Rows, sentences: Sentences, size) -> Records:
    by_step = (size, *ops.shape(sentences.scores))
    attention = NOTHING
    if task.constraints.options.return_attention:
        width = ops.shape(rows.state["attention"])[-1] + 1
        attention = ops.zeros((*by_step, width))
    return Records(ops.zeros(by_step, "int32"), ops.zeros(by_step), attention)


# Hypotheses that end


def best_ended(task: Task, sentences: Sentences) -> Ended:
    options, num_beams = task.constraints.options, task.strategy.num_beams
    divisor = options.length_divisor(sentences.origins // num_beams + 1)
    scores, best = ops.top_k(sentences.finished / divisor, task.num_hypotheses)
    origins = take_each(sentences.origins, best)
    return Ended(
        scores=scores,
        sums=take_each(sentences.finished, best),
        last=ops.where(scores > NEVER, origins // num_beams, -1),
        beams=origins % num_beams,
    )


def _finished(task: Task, sentences: Sentences, choice: Choice, step) -> tuple:
    """The G first or, with `optimal`, the G best of old and new complete hypotheses."""
    options, num_beams = task.constraints.options, task.strategy.num_beams
    sums = ops.concatenate([sentences.finished, choice.end_scores], axis=1)
    origins = step * num_beams + choice.end_parents
    origins = ops.concatenate([sentences.origins, origins], axis=1)
    if task.strategy.optimal:
        key = sums / options.length_divisor(origins // num_beams + 1)
    else:
        count = sums.shape[1]
        order = ops.cast(ops.arange(count, 0, -1), "float32")
        key = ops.where(sums > NEVER, order, 0.0)
    _, kept = ops.top_k(key, num_beams)
    return tuple(take_each(part, kept) for part in (sums, origins))


def _is_done(task: Task, sums, origins, choice: Choice, step):
    """(B, 1): whether nothing that is unfinished counts any more."""
    if not task.strategy.optimal:
        return ops.all(sums > NEVER, axis=1, keepdims=True)
    options, num_beams = task.constraints.options, task.strategy.num_beams
    scores = sums / options.length_divisor(origins // num_beams + 1)
    worst = scores[:, task.num_hypotheses - 1 : task.num_hypotheses]
    # Log-probabilities are at most 0, and the penalty is monotonous in the length, so
    # the best is to lose nothing more and end at once, or as late as possible.
    best = ops.max(choice.scores, axis=1, keepdims=True)
    limits = ops.reshape(task.constraints.limits, (-1, num_beams))[:, :1]
    if options.unk_penalty < 0:  # a reward, for each token until the limit
        best = best - options.unk_penalty * ops.cast(limits - step - 1, "float32")
    latest = ops.maximum(limits + 1, step + 2)
    earliest = ops.minimum(ops.maximum(step + 2, options.min_length + 1), latest)
    bound = ops.maximum(
        best / options.length_divisor(earliest), best / options.length_divisor(latest)
    )
    return bound <= worst


# Rows


def _take_rows(tree, places):
    """All leaves (n, ...) at some places; a leaf without rows stays."""
    return keras.tree.map_structure(
        lambda leaf: take(leaf, places) if len(leaf.shape) else leaf, tree
    )


def _rows_of(sentences, num_beams: int, beams=None):
    """The rows (n * G,) of the beams of sentences (n,), in another order (n, G)."""
    if beams is None:
        beams = ops.arange(num_beams, dtype="int32")
    return ops.reshape(sentences[:, None] * num_beams + beams, (-1,))
