"""The search: one loop for greedy search, beam search and sampling.

It knows nothing of models, only a function `step(ids, state) -> (logits, state)`.

A step writes down each beam's token and parent; the hypotheses are put together from
these backpointers after the loop, so nothing but the state of the model moves when
beams change places.

Sentences end at different steps. In a graph of TensorFlow that serves all batch sizes
(and in eager loops) those that have ended leave the batch: what a step computes has
rows for the b <= B sentences that are left, r = b * G rows, and what is written down
has a row for each of the B. XLA and JAX want constant shapes, so there all sentences
stay until the last has ended. For the same reason the past that attention keeps grows
with the steps in the former, and has all L positions from the start in the latter.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_seqconv.decoding.next_tokens import NEVER, Constraints
from keras_seqconv.decoding.strategies import Choice
from keras_seqconv.ops.compilation import compiled_by_xla, in_graph

# The batch is gathered anew when at most this part of it is left: a gathering reads the
# state once, which costs less than one step. (Other parts were not tried.)
_SHRINK_AT = 0.75
# In the place of what a loop does not carry: None is no loop variable.
_NOTHING = ()


class Hypotheses(NamedTuple):
    """What a search found, best first.

    Attributes:
        ids: (B, N, L) int32: tokens without start token, the end token, then padding;
            padding only where fewer than N hypotheses were found.
        scores: (B, N) float32: sum of the positional scores over the length penalty;
            -inf where there is no hypothesis.
        positional_scores: (B, N, L) float32: natural log-probability of each token,
            penalties included, 0 after the end.
        lengths: (B, N) int32: tokens, the end token counted; 0 for no hypothesis.
        attention: (B, N, L, S) float32 or None: what the model looked at when it chose
            each token, 0 after the end.
    """

    ids: object
    scores: object
    positional_scores: object
    lengths: object
    attention: object = None


class _Beams(NamedTuple):
    """What the next step computes with: r rows, of the sentences that are left.

    ids: (r, 1) int32, the last token of each beam.
    state: of the model.
    history: (r, L) int32, all tokens of each beam, or nothing.
    sentences: (b,) int32, which they are, or nothing where all stay.
    """

    ids: object
    state: dict
    history: object
    sentences: object


class _Records(NamedTuple):
    """What was written down of all B sentences.

    scores: (B, G) float32, of the unfinished; -inf for beams that do not go on.
    finished: (B, G) float32, sums of log-probabilities of the complete hypotheses.
    origins: (B, G) int32, where these ended: G * step + beam.
    backpointers: (L, B, G) int32, of each step: G * token + parent.
    sums: (L, B, G) float32, of each step: the scores.
    attention: (L, B, G, S + 1) float32 or nothing; a column more, because TensorFlow
        cannot write to empty rows.
    """

    scores: object
    finished: object
    origins: object
    backpointers: object
    sums: object
    attention: object


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
    num_beams, options = strategy.num_beams, constraints.options

    def body(number, beams, records):
        here, rows, scores = constraints, None, records.scores
        if beams.sentences is not _NOTHING:
            rows = _rows_of(beams.sentences, num_beams)
            here = constraints.of_rows(rows)
            scores = ops.take(scores, beams.sentences, axis=0)
        logits, state = step(beams.ids, beams.state)
        following = here.next_tokens(logits, number, beams.history)
        choice = strategy.choose(following, scores, number, rows)
        # What is written down has a row for each sentence.
        made, attention = choice, records.attention
        if rows is not None:
            batch_size = ops.shape(records.scores)[0]
            made = Choice(*(_spread(x, beams.sentences, batch_size) for x in choice))
        finished, origins = _finished(records, made, number, strategy, options)
        if options.return_attention:
            weights = ops.cast(state["beams"]["attention"], "float32")
            weights = ops.pad(weights, [(0, 0), (0, 1)])
            weights = ops.reshape(weights, (-1, num_beams, ops.shape(weights)[-1]))
            if rows is not None:
                weights = _spread(weights, beams.sentences, batch_size)
            attention = _write(attention, number, weights)
        done = _is_done(
            finished, origins, made, number, strategy, constraints, num_hypotheses
        )
        links = made.tokens * num_beams + made.parents
        after = _Records(
            scores=ops.where(done, NEVER, made.scores),
            finished=finished,
            origins=origins,
            backpointers=_write(records.backpointers, number, links),
            sums=_write(records.sums, number, made.scores),
            attention=attention,
        )
        moved = _moved(beams._replace(state=state), choice, number, strategy)
        if rows is not None:
            moved = _without_ended(moved, after.scores)
        return keras.tree.map_structure(
            _shaped_like, (number + 1, moved, after), (number, beams, records)
        )

    def is_unfinished(number, beams, records):
        return (number < num_steps) & ops.any(records.scores > NEVER)

    start = _start(state, strategy, constraints, num_steps)
    _, _, records = ops.while_loop(is_unfinished, body, start)
    return _best_hypotheses(records, constraints, num_beams, num_steps, num_hypotheses)


def _start(state, strategy, constraints, num_steps) -> tuple:
    """The number of the first step, and what is known before it."""
    model, options = constraints.model, constraints.options
    num_rows, num_beams = ops.shape(constraints.limits)[0], strategy.num_beams
    batch_size = num_rows // num_beams
    by_step = (num_steps, batch_size, num_beams)
    sentences = history = attention = _NOTHING
    if may_resize(batch_size):
        sentences = ops.arange(batch_size, dtype="int32")
    if options.no_repeat_ngram_size:
        history = ops.full((num_rows, num_steps), model.pad_id, dtype="int32")
    if options.return_attention:
        width = ops.shape(state["beams"]["attention"])[-1] + 1
        attention = ops.zeros((*by_step, width))
    ids = ops.full((num_rows, 1), model.start_id, dtype="int32")
    beams = _Beams(ids, state, history, sentences)
    is_alive = ops.arange(num_beams) < strategy.num_first_beams
    records = _Records(
        scores=ops.zeros((batch_size, 1)) + ops.where(is_alive, 0.0, NEVER),
        finished=ops.full((batch_size, num_beams), NEVER),
        origins=ops.zeros((batch_size, num_beams), "int32"),
        backpointers=ops.zeros(by_step, "int32"),
        sums=ops.zeros(by_step),
        attention=attention,
    )
    return ops.convert_to_tensor(0, "int32"), beams, records


# The sentences that are left


def may_resize(batch_size) -> bool:
    """Whether tensors of a loop may change their sizes from step to step.

    `batch_size` is the number of sentences.
    """
    if compiled_by_xla():
        return False
    # A number that is known in a graph is part of its tensors' shapes.
    return not isinstance(batch_size, int) or not in_graph()


def _moved(beams: _Beams, choice: Choice, step, strategy) -> _Beams:
    """Each beam, with its new token, in the place in which it goes on."""
    state, history = beams.state, beams.history
    ids = ops.reshape(choice.tokens, (-1, 1))
    if strategy.reorders:
        sentences = ops.arange(ops.shape(choice.parents)[0], dtype="int32")
        order = _rows_of(sentences, strategy.num_beams, choice.parents)
        of_beams, history = _take_rows((state["beams"], history), order)
        state = {**state, "beams": of_beams}
    if history is not _NOTHING:
        is_now = ops.arange(ops.shape(history)[1]) == step
        history = ops.where(is_now, ids, history)
    return beams._replace(ids=ids, state=state, history=history)


def _without_ended(beams: _Beams, scores) -> _Beams:
    """The same without the sentences that have ended, if they are many."""
    sentences, state = beams.sentences, beams.state
    is_left = ops.any(ops.take(scores, sentences, axis=0) > NEVER, axis=1)
    count = ops.cast(ops.shape(is_left)[0], "float32")
    few = ops.sum(ops.cast(is_left, "float32")) <= _SHRINK_AT * count
    of_rows = (beams.ids, beams.history, state["beams"])

    def gather():
        (left,) = ops.nonzero(is_left)
        of_sentences = _take_rows((sentences, state["shared"]), left)
        return *of_sentences, _take_rows(of_rows, _rows_of(left, scores.shape[1]))

    sentences, shared, (ids, history, of_beams) = ops.cond(
        few, gather, lambda: (sentences, state["shared"], of_rows)
    )
    state = {**state, "shared": shared, "beams": of_beams}
    return _Beams(ids, state, history, sentences)


# Hypotheses that end


def _finished(records, choice: Choice, step, strategy, options) -> tuple:
    """The G first or, with `optimal`, the G best of old and new complete hypotheses."""
    num_beams = strategy.num_beams
    sums = ops.concatenate([records.finished, choice.end_scores], axis=1)
    origins = step * num_beams + choice.end_parents
    origins = ops.concatenate([records.origins, origins], axis=1)
    if strategy.optimal:
        key = sums / options.length_divisor(origins // num_beams + 1)
    else:
        count = sums.shape[1]
        order = ops.cast(ops.arange(count, 0, -1), "float32")
        key = ops.where(sums > NEVER, order, 0.0)
    _, kept = ops.top_k(key, num_beams)
    return tuple(ops.take_along_axis(part, kept, axis=1) for part in (sums, origins))


def _is_done(sums, origins, choice, step, strategy, constraints, num_hypotheses):
    """(B, 1): whether nothing that is unfinished counts any more."""
    if not strategy.optimal:
        return ops.all(sums > NEVER, axis=1, keepdims=True)
    options, num_beams = constraints.options, strategy.num_beams
    scores = sums / options.length_divisor(origins // num_beams + 1)
    worst = scores[:, num_hypotheses - 1 : num_hypotheses]
    # Log-probabilities are at most 0, and the penalty is monotonous in the length, so
    # the best is to lose nothing more and end at once, or as late as possible.
    best = ops.max(choice.scores, axis=1, keepdims=True)
    limits = ops.reshape(constraints.limits, (-1, num_beams))[:, :1]
    if options.unk_penalty < 0:  # a reward, for each token until the limit
        best = best - options.unk_penalty * ops.cast(limits - step - 1, "float32")
    latest = ops.maximum(limits + 1, step + 2)
    earliest = ops.minimum(ops.maximum(step + 2, options.min_length + 1), latest)
    bound = ops.maximum(
        best / options.length_divisor(earliest), best / options.length_divisor(latest)
    )
    return bound <= worst


# From backpointers to hypotheses


def _best_hypotheses(
    records: _Records, constraints, num_beams: int, num_steps, num_hypotheses: int
) -> Hypotheses:
    """Follow the backpointers from where the best hypotheses ended."""
    model, options = constraints.model, constraints.options
    lengths = records.origins // num_beams + 1
    scores = records.finished / options.length_divisor(lengths)
    scores, best = ops.top_k(scores, num_hypotheses)
    sums = ops.take_along_axis(records.finished, best, axis=1)
    origins = ops.take_along_axis(records.origins, best, axis=1)
    last = ops.where(scores > NEVER, origins // num_beams, -1)
    tokens, beams = _follow(records.backpointers, last, origins, num_beams, num_steps)
    step = ops.arange(num_steps, dtype="int32")[:, None, None]
    inside, ends = step < last, step == last
    ids = ops.where(inside, tokens, ops.where(ends, model.end_id, model.pad_id))
    # The sum before a step is that of the beam which the step extends.
    before = ops.take_along_axis(records.sums[:-1], beams[1:], axis=2)
    none = ops.zeros_like(sums)[None]
    after = ops.concatenate([before, none], axis=0)
    before = ops.concatenate([none, before], axis=0)
    after = ops.where(ends, sums, after)
    positional = ops.where(inside | ends, after - before, 0.0)
    attention = None
    if options.return_attention:
        attention = ops.take_along_axis(records.attention, beams[..., None], axis=2)
        attention = ops.where((inside | ends)[..., None], attention[..., :-1], 0.0)
        attention = ops.transpose(attention, (1, 2, 0, 3))
    return Hypotheses(
        ids=ops.transpose(ids, (1, 2, 0)),
        scores=scores,
        positional_scores=ops.transpose(positional, (1, 2, 0)),
        lengths=last + 1,
        attention=attention,
    )


def _follow(backpointers, last, origins, num_beams: int, num_steps):
    """Tokens, and the beams that they were chosen from, (L, B, N).

    last: (B, N), the step at which each hypothesis ended, -1 for none.
    """
    by_step = (num_steps, *ops.shape(last))
    start = (
        ops.max(last, initial=-1),
        origins % num_beams,
        ops.zeros(by_step, "int32"),
        ops.zeros(by_step, "int32"),
    )

    def body(step, beams, tokens, chosen_from):
        link = ops.take(backpointers, step, axis=0)
        link = ops.take_along_axis(link, beams, axis=1)
        # At its last step a hypothesis ended: its origin names the beam.
        parents = ops.where(step < last, link % num_beams, beams)
        tokens = _write(tokens, step, link // num_beams)
        after = (step - 1, parents, tokens, _write(chosen_from, step, parents))
        return keras.tree.map_structure(_shaped_like, after, start)

    *_, tokens, chosen_from = ops.while_loop(lambda step, *_: step >= 0, body, start)
    return tokens, chosen_from


# Rows


def _take_rows(tree, places):
    """All leaves (n, ...) at some places; a leaf without rows stays."""
    return keras.tree.map_structure(
        lambda leaf: ops.take(leaf, places, axis=0) if len(leaf.shape) else leaf, tree
    )


def _spread(values, places, count):
    """(count, ...): `values` (n, ...) at `places`, elsewhere 0, or -inf of floats."""
    others = NEVER if keras.backend.is_float_dtype(values.dtype) else 0
    others = ops.full((count, *ops.shape(values)[1:]), others, values.dtype)
    return ops.scatter_update(others, places[:, None], values)


def _write(buffer, step, values):
    """`buffer` (L, n, ...) with `values` (n, ...) at `step`; loops do it in place."""
    return ops.scatter_update(buffer, ops.reshape(step, (1, 1)), values[None])


def _rows_of(sentences, num_beams: int, beams=None):
    """The rows (n * G,) of the beams of sentences (n,), in another order (n, G)."""
    if beams is None:
        beams = ops.arange(num_beams, dtype="int32")
    return ops.reshape(sentences[:, None] * num_beams + beams, (-1,))


def _shaped_like(value, model):
    """`value` with the static shape of `model`, which dynamic shapes may have lost.

    TensorFlow refuses loops whose variables come back with a less known shape.
    """
    known = tuple(model.shape)
    if None not in value.shape or known.count(None) > 1:
        return value
    return ops.reshape(value, [-1 if size is None else size for size in known])
