"""The search: one loop for greedy search, beam search and sampling.

It knows nothing of models, only a function `step(ids, state) -> (logits, state)`.

Letters: B sentences, G beams of a sentence, R = B * G rows (the beams of a sentence
adjacent), N hypotheses that are returned, L steps, S source time, V vocabulary.

A step writes down each beam's token and parent; the hypotheses are put together from
these backpointers after the loop, so nothing but the state of the model moves when
beams change places.

Sentences end at different steps. In a graph of TensorFlow that serves all batch sizes
(and in eager loops) those that have ended leave the batch, and the steps that remain
are of fewer rows; one sentence that never ends costs the steps of a batch of one. What
a loop carries of the sentences that are left has rows for them only, b <= B sentences
and r = b * G rows; what is read after the loop keeps a row for each. XLA and JAX want
constant shapes, so there every tensor keeps its shape and all sentences stay until the
last has ended. For the same reason the past that attention keeps grows with the steps
in the former, and has all L positions from the start in the latter.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_seqconv.decoding.next_tokens import NEVER, Constraints
from keras_seqconv.decoding.strategies import top_k
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
        positional_scores: (B, N, L) float32: log-probability of each token, penalties
            included, 0 after the end.
        lengths: (B, N) int32: tokens, the end token counted; 0 for no hypothesis.
        attention: (B, N, L, S) float32 or None: what the model looked at when it chose
            each token, 0 after the end.
    """

    ids: object
    scores: object
    positional_scores: object
    lengths: object
    attention: object = None


class _Finished(NamedTuple):
    """Complete hypotheses, (B, G) each: sum of log-probabilities, where they ended.

    An origin is G * step + beam.
    """

    sums: object
    origins: object

    def scores(self, options, num_beams: int):
        lengths = self.origins // num_beams + 1
        return self.sums / options.length_divisor(lengths)


class _Backpointers(NamedTuple):
    """What happened, by step.

    tokens: (L, B, G) int32: G * token + parent.
    sums: (L, B, G) float32: cumulative scores.
    attention: (L, R, S + 1) float32 or nothing; a column more, because TensorFlow
        cannot write to empty rows.
    """

    tokens: object
    sums: object
    attention: object


class _Progress(NamedTuple):
    """What goes from step to step.

    step: int32 scalar.
    sentences: (b,) int32, those that are left; nothing where all stay.
    ids: (r, 1) int32, the last token of each beam.
    scores: (b, G) float32, cumulative; -inf for beams that do not go on.
    history: (r, L) int32, all tokens of each beam, or nothing.
    state: of the model, r rows.
    finished, backpointers: of all sentences.
    """

    step: object
    sentences: object
    ids: object
    scores: object
    history: object
    state: dict
    finished: _Finished
    backpointers: _Backpointers


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
    start = _start(state, strategy, constraints, num_steps)
    sentences_leave = start.sentences is not _NOTHING

    def advance(now: _Progress) -> _Progress:
        """One step of all beams that are left."""
        sentences, rows, here = None, None, constraints  # None: all of them
        if sentences_leave:
            sentences = now.sentences
            rows = _rows_of(sentences, num_beams)
            here = constraints.of_rows(rows)
        logits, state = step(now.ids, now.state)
        following = here.next_tokens(logits, now.step, now.history)
        choice = strategy.choose(following, now.scores, now.step, rows)

        finished = _take_rows(now.finished, sentences)
        finished = _merge_finished(finished, choice, now.step, strategy, here)
        is_done = _is_done(finished, choice, now.step, strategy, here, num_hypotheses)
        scores = ops.where(is_done, NEVER, choice.scores)

        tokens, sums, attention = now.backpointers
        links = choice.tokens * num_beams + choice.parents
        tokens = _write(tokens, now.step, links, sentences)
        sums = _write(sums, now.step, choice.scores, sentences)
        if options.return_attention:
            weights = ops.cast(state["beams"]["attention"], "float32")
            weights = ops.pad(weights, [(0, 0), (0, 1)])
            attention = _write(attention, now.step, weights, rows)

        ids, history = ops.reshape(choice.tokens, (-1, 1)), now.history
        if strategy.reorders:
            order = _row_numbers(choice.parents)
            beams, history = _take_rows((state["beams"], history), order)
            state = {**state, "beams": beams}
        if options.no_repeat_ngram_size:
            is_now = ops.arange(ops.shape(history)[1]) == now.step
            history = ops.where(is_now, ids, history)
        return now._replace(
            step=now.step + 1,
            ids=ids,
            scores=scores,
            history=history,
            state=state,
            finished=_replace_rows(now.finished, finished, sentences),
            backpointers=_Backpointers(tokens, sums, attention),
        )

    def body(now):
        after = advance(now)
        if sentences_leave:
            after = _without_ended(after, num_beams)
        return (keras.tree.map_structure(_shaped_like, after, now),)

    def is_unfinished(now):
        return (now.step < num_steps) & ops.any(now.scores > NEVER)

    # In a tuple: Keras' loop passes a tuple's members to the functions.
    (end,) = ops.while_loop(is_unfinished, body, (start,))
    return _best_hypotheses(end, constraints, num_beams, num_steps, num_hypotheses)


def _start(state, strategy, constraints, num_steps) -> _Progress:
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
        attention = ops.zeros((num_steps, num_rows, width))
    return _Progress(
        step=ops.convert_to_tensor(0, "int32"),
        sentences=sentences,
        ids=ops.full((num_rows, 1), model.start_id, dtype="int32"),
        scores=strategy.first_scores(batch_size),
        history=history,
        state=state,
        finished=_Finished(
            sums=ops.full((batch_size, num_beams), NEVER),
            origins=ops.zeros((batch_size, num_beams), "int32"),
        ),
        backpointers=_Backpointers(
            ops.zeros(by_step, "int32"), ops.zeros(by_step), attention
        ),
    )


# Hypotheses that end


def _merge_finished(finished, choice, step, strategy, constraints) -> _Finished:
    """The G first or, with `optimal`, the G best of old and new complete hypotheses."""
    num_beams = strategy.num_beams
    sums = ops.concatenate([finished.sums, choice.end_scores], axis=1)
    origins = step * num_beams + choice.end_parents
    origins = ops.concatenate([finished.origins, origins], axis=1)
    both = _Finished(sums, origins)
    if strategy.optimal:
        key = both.scores(constraints.options, num_beams)
    else:
        count = sums.shape[1]
        order = ops.cast(ops.arange(count, 0, -1), "float32")
        key = ops.where(sums > NEVER, order, 0.0)
    _, kept = top_k(key, num_beams)
    return _Finished(*(ops.take_along_axis(part, kept, axis=1) for part in both))


def _is_done(finished, choice, step, strategy, constraints, num_hypotheses):
    """(B, 1): whether nothing that is unfinished counts any more."""
    if not strategy.optimal:
        return ops.all(finished.sums > NEVER, axis=1, keepdims=True)
    scores = finished.scores(constraints.options, strategy.num_beams)
    worst = scores[:, num_hypotheses - 1 : num_hypotheses]
    best = ops.max(choice.scores, axis=1, keepdims=True)
    return _score_bound(best, step, strategy.num_beams, constraints) <= worst


def _score_bound(sums, step, num_beams: int, constraints):
    """(B, 1): what hypotheses with these sums cannot surpass when they end.

    Log-probabilities are at most 0, and the penalty is monotonous in the length, so
    the best is to lose nothing more and end at once, or as late as possible.
    """
    options = constraints.options
    limits = ops.reshape(constraints.limits, (-1, num_beams))[:, :1]
    if options.unk_penalty < 0:  # a reward, for each token until the limit
        sums = sums - options.unk_penalty * ops.cast(limits - step - 1, "float32")
    latest = ops.maximum(limits + 1, step + 2)
    earliest = ops.minimum(ops.maximum(step + 2, options.min_length + 1), latest)
    return ops.maximum(
        sums / options.length_divisor(earliest), sums / options.length_divisor(latest)
    )


# Sentences that end


def may_resize(batch_size) -> bool:
    """Whether tensors of a loop may change their sizes from step to step.

    `batch_size` is the number of sentences.
    """
    if compiled_by_xla():
        return False
    # A number that is known in a graph is part of its tensors' shapes.
    return not isinstance(batch_size, int) or not in_graph()


def _without_ended(now: _Progress, num_beams: int) -> _Progress:
    """The same without the sentences that have ended, if they are many."""
    is_left = ops.any(now.scores > NEVER, axis=1)
    count = ops.cast(ops.shape(is_left)[0], "float32")
    few = ops.sum(ops.cast(is_left, "float32")) <= _SHRINK_AT * count
    of_sentences = (now.sentences, now.scores, now.state["shared"])
    of_rows = (now.ids, now.history, now.state["beams"])

    def gather():
        left = ops.cast(ops.reshape(ops.nonzero(is_left)[0], (-1,)), "int32")
        rows = _rows_of(left, num_beams)
        return _take_rows(of_sentences, left), _take_rows(of_rows, rows)

    of_sentences, of_rows = ops.cond(few, gather, lambda: (of_sentences, of_rows))
    sentences, scores, shared = of_sentences
    ids, history, beams = of_rows
    state = {**now.state, "shared": shared, "beams": beams}
    return now._replace(
        sentences=sentences, scores=scores, ids=ids, history=history, state=state
    )


# From backpointers to hypotheses


def _best_hypotheses(
    end: _Progress, constraints, num_beams: int, num_steps, num_hypotheses: int
) -> Hypotheses:
    """Follow the backpointers from where the best hypotheses ended."""
    finished, backpointers, model = end.finished, end.backpointers, constraints.model
    scores = finished.scores(constraints.options, num_beams)
    scores, best = top_k(scores, num_hypotheses)
    sums = ops.take_along_axis(finished.sums, best, axis=1)
    origins = ops.take_along_axis(finished.origins, best, axis=1)
    last = ops.where(scores > NEVER, origins // num_beams, -1)
    tokens, beams = _follow(backpointers.tokens, last, origins, num_beams, num_steps)
    step = ops.arange(num_steps, dtype="int32")[:, None, None]
    inside = step < last
    ends = step == last
    ids = ops.where(inside, tokens, ops.where(ends, model.end_id, model.pad_id))
    # The sum before a step is that of the beam which the step extends.
    before = ops.take_along_axis(backpointers.sums[:-1], beams[1:], axis=2)
    none = ops.zeros_like(sums)[None]
    after = ops.concatenate([before, none], axis=0)
    before = ops.concatenate([none, before], axis=0)
    after = ops.where(ends, sums, after)
    positional = ops.where(inside | ends, after - before, 0.0)
    attention = None
    if constraints.options.return_attention:
        attention = _attention(backpointers.attention, beams, num_beams, inside | ends)
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


def _attention(attention, beams, num_beams: int, is_token):
    """(L, R, S + 1) by the beams (L, B, N) that tokens were chosen from."""
    num_steps, batch_size, number = ops.shape(beams)
    num_rows, width = ops.shape(attention)[1:]
    rows = _row_numbers(beams, num_beams)
    rows = rows + ops.arange(num_steps, dtype="int32")[:, None] * num_rows
    flat = ops.reshape(attention, (num_steps * num_rows, width))
    chosen = ops.take(flat, ops.reshape(rows, (-1,)), axis=0)
    chosen = ops.reshape(chosen, (num_steps, batch_size, number, width))
    chosen = ops.where(is_token[..., None], chosen[..., :-1], 0.0)
    return ops.transpose(chosen, (1, 2, 0, 3))


# Rows: all of them, or those at `places` only


def _take_rows(tree, places):
    """All leaves (n, ...) at some places; a leaf without rows stays."""
    if places is None:
        return tree
    return keras.tree.map_structure(
        lambda leaf: ops.take(leaf, places, axis=0) if len(leaf.shape) else leaf, tree
    )


def _replace_rows(tree, values, places):
    """All leaves (n, ...), with new values at some places."""
    if places is None:
        return values
    return keras.tree.map_structure(
        lambda old, new: ops.scatter_update(old, places[:, None], new), tree, values
    )


def _write(buffer, step, values, places=None):
    """`buffer` (L, n, ...) with `values` at `step`; done in place by a loop.

    `values` are (n, ...), or those at `places` of the second axis.
    """
    if places is None:
        return ops.scatter_update(buffer, ops.reshape(step, (1, 1)), values[None])
    steps = ops.zeros_like(places) + step
    return ops.scatter_update(buffer, ops.stack([steps, places], axis=-1), values)


def _rows_of(sentences, num_beams: int):
    """The rows (n * G,) of the beams of sentences (n,)."""
    rows = sentences[:, None] * num_beams + ops.arange(num_beams, dtype="int32")
    return ops.reshape(rows, (-1,))


def _row_numbers(beams, num_beams=None):
    """Rows of beams (..., B, N) among the B * G rows, (..., B * N)."""
    num_beams = num_beams or beams.shape[-1]
    first = ops.arange(ops.shape(beams)[-2], dtype="int32") * num_beams
    rows = beams + first[:, None]
    return ops.reshape(rows, (*ops.shape(beams)[:-2], -1))


def _shaped_like(value, model):
    """`value` with the static shape of `model`, which dynamic shapes may have lost.

    TensorFlow refuses loops whose variables come back with a less known shape.
    """
    known = tuple(model.shape)
    if None not in value.shape or known.count(None) > 1:
        return value
    return ops.reshape(value, [-1 if size is None else size for size in known])
