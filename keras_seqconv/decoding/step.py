"""A step of the search, and the hypotheses that end in it.

Greedy search, beam search and sampling are the same step with another strategy. It
knows nothing of models, only a function `step(ids, state) -> (logits, state)`. The
loops around it are in `loops.py`, for Keras, and in `runtime/onnx_model.py`, for ONNX
Runtime.

A step writes down each beam's token and parent; the hypotheses are put together from
these backpointers after the loop, so nothing but the state of the model moves when
beams change places.

Sentences end at different steps, and those that have ended may leave the batch: a step
computes rows for the b <= B sentences that are left, r = b * G rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_seqconv.decoding import array_ops as ops
from keras_seqconv.decoding.hypotheses import NOTHING, Ended, Records
from keras_seqconv.decoding.next_tokens import NEVER, Constraints
from keras_seqconv.decoding.strategies import Choice

# The batch is gathered anew when at most this part of it is left: a gathering reads the
# state once, which costs less than one step. (Other parts were not tried.)
SHRINK_AT = 0.75


class SearchTask(NamedTuple):
    """Constants of all steps, for any remaining sentences.

    step: `step(ids (R, 1) int32, state) -> (logits (R, V), state)`. The state is
        {"shared": ..., "beams": ...}, nested. Leaves of "shared" have a row for each
        sentence, leaves of "beams" R rows, or rank 0. When beams change places, these
        rows do; when sentences leave, both. With the option `return_attention`,
        `state["beams"]["attention"]` is (R, S). Other keys are left as they are.
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
    rules: those tensors of `Constraints` that there are, by name (`tasks.rules_of`).
    """

    ids: object
    state: dict
    history: object
    rules: dict


class Sentences(NamedTuple):
    """Tensors with a row for each sentence that is left, and their one step.

    steps: int32 scalar, the number of tokens so far.
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


def begin(task: SearchTask, rules: dict, state: dict, num_steps) -> tuple:
    """Common state, rows and sentences before the first step."""
    constraints, num_beams = task.constraints, task.strategy.num_beams
    start = rules["limits"][:, None]
    history, ids = NOTHING, ops.full_like(start, constraints.model.start_id)
    if constraints.options.no_repeat_ngram_size:
        none = ops.full_like(start, constraints.model.pad_id)
        history = ops.broadcast_to(none, (ops.shape(start)[0], num_steps))
    origins = ops.reshape(ops.zeros_like(start), (-1, num_beams))
    is_alive = np.arange(num_beams) < task.strategy.num_first_beams
    scores = ops.cast(origins, "float32")
    scores = scores + np.where(is_alive, 0.0, NEVER).astype("float32")
    common = {k: v for k, v in state.items() if k not in ("shared", "beams")}
    return (
        common,
        Rows(ids, state["beams"], history, rules),
        Sentences(
            steps=ops.sum(ops.zeros_like(start)),
            shared=state["shared"],
            scores=scores,
            finished=ops.full_like(scores, NEVER),
            origins=origins,
        ),
    )


# Steps


def advance(task: SearchTask, common: dict, rows: Rows, sentences: Sentences) -> tuple:
    """One step: rows and sentences after it, and its `Records` without the axis L."""
    number = sentences.steps
    task = task._replace(constraints=task.constraints._replace(**rows.rules))
    strategy, constraints = task.strategy, task.constraints
    state = {**common, "shared": sentences.shared, "beams": rows.state}
    logits, state = task.step(rows.ids, state)
    following = constraints.next_tokens(logits, number, rows.history)
    if constraints.uniforms is not None:
        draws = ops.take(constraints.uniforms, number, axis=1)
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
    rows = _moved(rows, choice, number, strategy)
    sentences = sentences._replace(
        steps=sentences.steps + 1,
        scores=ops.where(done, NEVER, choice.scores),
        finished=finished,
        origins=origins,
    )
    return rows, sentences, Records(links, choice.scores, attention)


def taken(task: SearchTask, rows: Rows, sentences: Sentences, places) -> tuple:
    """The rows and sentences of some of the sentences, `places` int32 (n,)."""
    order = rows_of(places, task.strategy.num_beams)
    return _take_rows(rows, order), _take_rows(sentences, places)


def _moved(rows: Rows, choice: Choice, step, strategy) -> Rows:
    """Each beam, with its new token, in the place in which it goes on."""
    state, history = rows.state, rows.history
    ids = ops.reshape(choice.tokens, (-1, 1))
    if strategy.reorders:
        first = ops.arange(0, ops.shape(rows.ids)[0], strategy.num_beams, dtype="int32")
        order = ops.reshape(first[:, None] + choice.parents, (-1,))
        state, history = _take_rows((state, history), order)
    if history is not NOTHING:
        columns = ops.arange(ops.shape(history)[1])
        is_now = step == columns
        history = ops.where(is_now, ids, history)
    return rows._replace(ids=ids, state=state, history=history)


# Hypotheses that end


def best_ended(task: SearchTask, sentences: Sentences) -> Ended:
    options, num_beams = task.constraints.options, task.strategy.num_beams
    divisor = options.length_divisor(sentences.origins // num_beams + 1)
    scores, best = ops.top_k(sentences.finished / divisor, task.num_hypotheses)
    origins = ops.take_each(sentences.origins, best)
    return Ended(
        scores=scores,
        sums=ops.take_each(sentences.finished, best),
        last=ops.where(scores > NEVER, origins // num_beams, -1),
        beams=origins % num_beams,
    )


def _finished(task: SearchTask, sentences: Sentences, choice: Choice, step) -> tuple:
    """The G first or, with `optimal`, the G best of old and new complete hypotheses."""
    options, num_beams = task.constraints.options, task.strategy.num_beams
    sums = ops.concatenate([sentences.finished, choice.end_scores], axis=1)
    origins = step * num_beams + choice.end_parents
    origins = ops.concatenate([sentences.origins, origins], axis=1)
    if task.strategy.optimal:
        key = sums / options.length_divisor(origins // num_beams + 1)
    else:
        count = sums.shape[1]
        order = np.arange(count, 0, -1, dtype="float32")
        key = ops.where(sums > NEVER, order, 0.0)
    _, kept = ops.top_k(key, num_beams)
    return tuple(ops.take_each(part, kept) for part in (sums, origins))


def _is_done(task: SearchTask, sums, origins, choice: Choice, step):
    """(B, 1): whether nothing that is unfinished counts any more."""
    if not task.strategy.optimal:
        return ops.min(sums, axis=1, keepdims=True) > NEVER
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
    return map_leaves(
        lambda leaf: ops.take(leaf, places) if len(leaf.shape) else leaf, tree
    )


def map_leaves(change: Callable, tree):
    """The nest of dicts, lists and tuples with `change(leaf)` in place of leaves."""
    if isinstance(tree, dict):
        return {name: map_leaves(change, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_leaves(change, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return change(tree)


def rows_of(sentences, num_beams: int):
    """The rows (n * G,) of the beams of sentences (n,)."""
    beams = np.arange(num_beams, dtype="int32")
    return ops.reshape(sentences[:, None] * num_beams + beams, (-1,))
