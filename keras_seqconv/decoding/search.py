"""The search: one loop for greedy search, beam search and sampling.

It knows nothing of models, only a function `step(ids, state) -> (logits, state)`.

Letters: B sentences, G beams of a sentence, R = B * G rows (the beams of a sentence
adjacent), N hypotheses that are returned, L steps, S source time, V vocabulary.

A step writes down each beam's token and parent; the hypotheses are put together from
these links after the loop, so nothing but the state of the model moves when beams
change places.

Sentences end at different steps. In a graph of TensorFlow that serves all batch sizes
(and in eager loops) those that have ended leave the batch, and the steps that remain
are of fewer rows; one sentence that never ends costs the steps of a batch of one. What
a loop carries of the sentences that are left has rows for them only, b <= B sentences
and r = b * G rows; what is read after the loop keeps a row for each. XLA and JAX want
constant shapes, so there every tensor keeps its shape and all sentences stay until the
last has ended. For the same reason the past that attention keeps grows with the steps
in the former, and has all L positions from the start in the latter.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_seqconv.decoding.constraints import Constraints
from keras_seqconv.decoding.scores import NEVER
from keras_seqconv.decoding.strategies import top_k
from keras_seqconv.ops.compilation import compiled_by_xla, in_graph

# The batch is gathered anew when at most this part of it is left: a gathering reads the
# state once, which costs less than one step. (Other parts were not tried.)
_SHRINK_AT = 0.75


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


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    """What sums of log-probabilities are divided by.

    Attributes:
        exponent: a; above 1 favours long hypotheses, below 1 short ones.
        kind: "power" for L**a (fairseq), "gnmt" for ((5 + L) / 6)**a (Wu et al., 2016,
            equation 14). L counts the end token.
        normalize: False divides by 1.
    """

    exponent: float = 1.0
    kind: str = "power"
    normalize: bool = True

    def __call__(self, lengths):
        lengths = ops.cast(lengths, "float32")
        if not self.normalize:
            return ops.ones_like(lengths)
        if self.kind == "gnmt":
            lengths = (5.0 + lengths) / 6.0
        return ops.power(lengths, self.exponent)


class Finished(NamedTuple):
    """Complete hypotheses, (B, G) each: sum of log-probabilities, where they ended.

    An origin is G * step + beam.
    """

    sums: object
    origins: object

    def lengths(self, num_beams: int):
        return self.origins // num_beams + 1


class Links(NamedTuple):
    """What happened, by step.

    tokens: (L, B, G) int32: G * token + parent.
    sums: (L, B, G) float32: cumulative scores.
    attention: (L, R, S + 1) float32 or None.
    """

    tokens: object
    sums: object
    attention: object


def search(
    step: Callable,
    state: dict,
    strategy,
    constraints: Constraints,
    *,
    num_steps,
    length_penalty: LengthPenalty,
    num_hypotheses: int,
    stop_early: bool = True,
    return_attention: bool = False,
) -> Hypotheses:
    """Search for the best, or draw, continuations of a start token.

    Args:
        step: `step(ids (R, 1) int32, state) -> (logits (R, V), state)`.
        state: {"shared": ..., "beams": ...}, nested. Leaves of "shared" have B rows,
            leaves of "beams" R rows, or rank 0. When beams change places, these rows
            do; when sentences leave, both. With `return_attention`,
            `state["beams"]["attention"]` is (R, S). Other keys are left as they are.
        strategy: chooses what goes on (decoding/strategies.py).
        constraints: what may be chosen.
        num_steps: L, int or int32 scalar tensor: the largest limit + 1.
        length_penalty: how hypotheses of several lengths are compared.
        num_hypotheses: N, at most G.
        stop_early: a sentence is done when it has G hypotheses (fairseq). Otherwise
            better ones replace worse ones, until no unfinished one can be among the N
            best.
        return_attention: record the attention.
    """
    task = _Search(
        step, strategy, constraints, num_steps, length_penalty, num_hypotheses,
        stop_early,
    )  # fmt: skip
    links, finished = task.run(state, return_attention)
    return task.read(links, finished)


class _Search(NamedTuple):
    step: Callable
    strategy: object
    constraints: Constraints
    num_steps: object
    length_penalty: LengthPenalty
    num_hypotheses: int
    stop_early: bool

    @property
    def beams(self) -> int:
        return self.strategy.num_beams

    def run(self, state, with_attention):
        """The loop over steps. -> Links, Finished."""
        rules = self.constraints.rules
        rows = ops.shape(self.constraints.limits)[0]
        batch = rows // self.beams
        places = (self.num_steps, batch, self.beams)
        attention = None
        if with_attention:
            # A column more, because nothing can be written to empty rows.
            width = ops.shape(state["beams"]["attention"])[-1] + 1
            attention = ops.zeros((self.num_steps, rows, width))
        history = None
        if rules.no_repeat_ngram_size:
            history = ops.full((rows, self.num_steps), rules.pad_id, dtype="int32")
        sentences = None
        if may_resize(batch):
            sentences = ops.arange(batch, dtype="int32")
        # None is no loop variable: `optional` holds what is there.
        optional = {
            "attention": attention, "history": history, "sentences": sentences
        }  # fmt: skip
        start = {
            "step": ops.convert_to_tensor(0, "int32"),
            "ids": ops.full((rows, 1), rules.start_id, dtype="int32"),
            "scores": self.strategy.first_scores(batch),
            "state": state,
            "tokens": ops.zeros(places, "int32"),
            "sums": ops.zeros(places),
            "finished_sums": ops.full((batch, self.beams), NEVER),
            "origins": ops.zeros((batch, self.beams), "int32"),
            **{key: value for key, value in optional.items() if value is not None},
        }

        def unfinished(now):
            return (now["step"] < self.num_steps) & ops.any(now["scores"] > NEVER)

        def body(now):
            return keras.tree.map_structure(_shaped_like, self._advance(now), now)

        # In a tuple: Keras' loop passes a tuple's members to the functions.
        (end,) = ops.while_loop(unfinished, lambda now: (body(now),), (start,))
        links = Links(end["tokens"], end["sums"], end.get("attention"))
        return links, Finished(end["finished_sums"], end["origins"])

    def _advance(self, now: dict) -> dict:
        """One step of all beams that are left."""
        step, sentences = now["step"], now.get("sentences")
        rows = None if sentences is None else _rows_of(sentences, self.beams)
        task = self if rows is None else self._of_rows(rows)
        logits, state = self.step(now["ids"], now["state"])
        history = now.get("history")
        following = task.constraints.next_tokens(logits, step, history)
        choice = task.strategy.choose(following, now["scores"], step)
        finished = Finished(
            _of(now["finished_sums"], sentences), _of(now["origins"], sentences)
        )
        finished = task._collect(finished, choice, step)
        scores = ops.where(task._done(finished, choice, step), NEVER, choice.scores)
        tokens = choice.tokens * self.beams + choice.parents
        after = {
            **now,
            "step": step + 1,
            "ids": ops.reshape(choice.tokens, (-1, 1)),
            "scores": scores,
            "state": state,
            "tokens": _write(now["tokens"], step, tokens, sentences),
            "sums": _write(now["sums"], step, choice.scores, sentences),
            "finished_sums": _replaced(now["finished_sums"], finished.sums, sentences),
            "origins": _replaced(now["origins"], finished.origins, sentences),
        }
        if "attention" in now:
            attention = ops.cast(state["beams"]["attention"], "float32")
            attention = ops.pad(attention, [(0, 0), (0, 1)])
            after["attention"] = _write(now["attention"], step, attention, rows)
        if self.strategy.reorders:
            rows = _row_numbers(choice.parents)
            state = {**state, "beams": _take_rows(state["beams"], rows)}
            after["state"] = state
            history = None if history is None else ops.take(history, rows, axis=0)
        if history is not None:
            here = ops.arange(ops.shape(history)[1]) == step
            after["history"] = ops.where(here, after["ids"], history)
        return after if sentences is None else self._shrunk(after)

    def _of_rows(self, rows) -> "_Search":
        return self._replace(
            constraints=self.constraints.of_rows(rows),
            strategy=self.strategy.of_rows(rows),
        )

    def _shrunk(self, after: dict) -> dict:
        """The same without the sentences that have ended, if they are many."""
        left = ops.any(after["scores"] > NEVER, axis=1)
        count = ops.cast(ops.shape(left)[0], "float32")
        few = ops.sum(ops.cast(left, "float32")) <= _SHRINK_AT * count
        names = [name for name in _OF_SENTENCES + _OF_ROWS if name in after]
        parts = {name: after[name] for name in names}
        state = after["state"]
        parts["shared"], parts["beams"] = state["shared"], state["beams"]

        def shrink():
            kept = ops.cast(ops.reshape(ops.nonzero(left)[0], (-1,)), "int32")
            rows = _rows_of(kept, self.beams)
            return {
                name: _take_rows(part, rows if name in _OF_ROWS else kept)
                for name, part in parts.items()
            }

        parts = ops.cond(few, shrink, lambda: parts)
        state = {**state, "shared": parts.pop("shared"), "beams": parts.pop("beams")}
        return {**after, **parts, "state": state}

    def _collect(self, finished: Finished, choice, step) -> Finished:
        """Keep the G first or the G best of old and new complete hypotheses."""
        sums = ops.concatenate([finished.sums, choice.end_scores], axis=1)
        origins = step * self.beams + choice.end_parents
        origins = ops.concatenate([finished.origins, origins], axis=1)
        both = Finished(sums, origins)
        if self.stop_early:
            count = sums.shape[1]
            order = ops.cast(ops.arange(count, 0, -1), "float32")
            key = ops.where(sums > NEVER, order, 0.0)
        else:
            key = sums / self.length_penalty(both.lengths(self.beams))
        _, kept = top_k(key, self.beams)
        return Finished(*(ops.take_along_axis(part, kept, axis=1) for part in both))

    def _done(self, finished: Finished, choice, step):
        """(B, 1): whether nothing that is unfinished counts any more."""
        if self.stop_early:
            return ops.all(finished.sums > NEVER, axis=1, keepdims=True)
        lengths = finished.lengths(self.beams)
        kept = finished.sums / self.length_penalty(lengths)
        worst = kept[:, self.num_hypotheses - 1 : self.num_hypotheses]
        best = ops.max(choice.scores, axis=1, keepdims=True)
        return self._bound(best, step) <= worst

    def _bound(self, sums, step):
        """(B, 1): what hypotheses with these sums cannot surpass when they end.

        Log-probabilities are at most 0, and the penalty is monotonous in the length, so
        the best is to lose nothing more and end at once, or as late as possible.
        """
        rules = self.constraints.rules
        limits = ops.reshape(self.constraints.limits, (-1, self.beams))[:, :1]
        if rules.unk_penalty < 0:  # a reward, for each token until the limit
            sums = sums - rules.unk_penalty * ops.cast(limits - step - 1, "float32")
        latest = ops.maximum(limits + 1, step + 2)
        earliest = ops.minimum(ops.maximum(step + 2, rules.min_length + 1), latest)
        return ops.maximum(
            sums / self.length_penalty(earliest), sums / self.length_penalty(latest)
        )

    def read(self, links: Links, finished: Finished) -> Hypotheses:
        """Follow the links back from where the best hypotheses ended."""
        rules, beams = self.constraints.rules, self.beams
        scores = finished.sums / self.length_penalty(finished.lengths(beams))
        scores, best = top_k(scores, self.num_hypotheses)
        sums = ops.take_along_axis(finished.sums, best, axis=1)
        origins = ops.take_along_axis(finished.origins, best, axis=1)
        exists = scores > NEVER
        last = ops.where(exists, origins // beams, -1)
        tokens, sources = self._follow(links, last, origins % beams)
        step = ops.arange(self.num_steps, dtype="int32")[:, None, None]
        inside = step < last
        ends = step == last
        ids = ops.where(inside, tokens, ops.where(ends, rules.end_id, rules.pad_id))
        # The sum before a step is that of the beam which the step extends.
        before = ops.take_along_axis(links.sums[:-1], sources[1:], axis=2)
        none = ops.zeros_like(sums)[None]
        after = ops.concatenate([before, none], axis=0)
        before = ops.concatenate([none, before], axis=0)
        after = ops.where(ends, sums, after)
        positional = ops.where(inside | ends, after - before, 0.0)
        attention = None
        if links.attention is not None:
            attention = self._attention(links.attention, sources, inside | ends)
        return Hypotheses(
            ids=ops.transpose(ids, (1, 2, 0)),
            scores=scores,
            positional_scores=ops.transpose(positional, (1, 2, 0)),
            lengths=last + 1,
            attention=attention,
        )

    def _follow(self, links: Links, last, beam):
        """Tokens, and the beams that they were chosen from, (L, B, N)."""
        beams = self.beams
        places = (self.num_steps, *ops.shape(last))
        start = {
            "step": ops.max(last, initial=-1),
            "beam": beam,
            "tokens": ops.zeros(places, "int32"),
            "sources": ops.zeros(places, "int32"),
        }

        def body(now):
            step = now["step"]
            link = ops.take(links.tokens, step, axis=0)
            link = ops.take_along_axis(link, now["beam"], axis=1)
            # At its last step a hypothesis ended: its origin names the beam.
            source = ops.where(step < last, link % beams, now["beam"])
            after = {
                "step": step - 1,
                "beam": source,
                "tokens": _write(now["tokens"], step, link // beams),
                "sources": _write(now["sources"], step, source),
            }
            return (keras.tree.map_structure(_shaped_like, after, now),)

        (end,) = ops.while_loop(lambda now: now["step"] >= 0, body, (start,))
        return end["tokens"], end["sources"]

    def _attention(self, attention, sources, real):
        """(L, R, S + 1) by the beams (L, B, N) that tokens were chosen from."""
        steps, batch, number = ops.shape(sources)
        rows, width = ops.shape(attention)[1:]
        row = _row_numbers(sources, self.beams)
        row = row + ops.arange(steps, dtype="int32")[:, None] * rows
        flat = ops.reshape(attention, (steps * rows, width))
        found = ops.take(flat, ops.reshape(row, (-1,)), axis=0)
        found = ops.reshape(found, (steps, batch, number, width))
        found = ops.where(real[..., None], found[..., :-1], 0.0)
        return ops.transpose(found, (1, 2, 0, 3))


# What a loop carries that has a row for each sentence or beam that is left.
_OF_SENTENCES = ("sentences", "scores", "shared")
_OF_ROWS = ("ids", "history", "beams")


def _write(buffer, step, values, places=None):
    """`buffer` (L, n, ...) with `values` at `step`; done in place by a loop.

    `values` are (n, ...), or those at `places` of the second axis only.
    """
    if places is None:
        return ops.scatter_update(buffer, ops.reshape(step, (1, 1)), values[None])
    steps = ops.zeros_like(places) + step
    return ops.scatter_update(buffer, ops.stack([steps, places], axis=-1), values)


def may_resize(batch) -> bool:
    """Whether tensors of a loop may change their sizes from step to step.

    `batch` is the number of sentences.
    """
    if compiled_by_xla():
        return False
    # A number that is known in a graph is part of its tensors' shapes.
    return not isinstance(batch, int) or not in_graph()


def _of(values, sentences):
    """`values` (B, ...) of some sentences, or of all for None."""
    return values if sentences is None else ops.take(values, sentences, axis=0)


def _replaced(buffer, values, sentences):
    """`buffer` (B, ...) with the values of some sentences, or of all for None."""
    if sentences is None:
        return values
    return ops.scatter_update(buffer, sentences[:, None], values)


def _rows_of(sentences, beams: int):
    """The rows (n * G,) of the beams of sentences (n,)."""
    rows = sentences[:, None] * beams + ops.arange(beams, dtype="int32")
    return ops.reshape(rows, (-1,))


def _row_numbers(parents, beams=None):
    """Rows of beams (..., B, G) among the B * G rows, (..., B * G)."""
    beams = beams or parents.shape[-1]
    first = ops.arange(ops.shape(parents)[-2], dtype="int32") * beams
    rows = parents + first[:, None]
    return ops.reshape(rows, (*ops.shape(parents)[:-2], -1))


def _take_rows(beams, rows):
    """Gather rows of all leaves that have rows."""
    return keras.tree.map_structure(
        lambda leaf: ops.take(leaf, rows, axis=0) if len(leaf.shape) else leaf, beams
    )


def _shaped_like(value, model):
    """`value` with the static shape of `model`, which dynamic shapes may have lost.

    TensorFlow refuses loops whose variables come back with a less known shape.
    """
    known = tuple(model.shape)
    if None not in value.shape or known.count(None) > 1:
        return value
    return ops.reshape(value, [-1 if size is None else size for size in known])
