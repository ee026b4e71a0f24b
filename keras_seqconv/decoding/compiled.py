"""A search as compiled chunks of steps, with a loop of Python around them.

XLA compiles for one shape. So S is padded to a power of two, and so is the number of
places for sentences: the first ones begin, and between two chunks others take the
places of those that have ended. At the end, when few are left, they leave the empty
places behind. Results do not depend on any of this.

| part         | on TensorFlow                    | on JAX               |
|--------------|----------------------------------|----------------------|
| `_begin`     | plain graph for all shapes (for  | compiled for (B, S)  |
|              | B = 1 compiled as well)          |                      |
| `_steps`     | traced once, compiled for (b, S) | compiled for (b, S)  |
| `_move`      | eager, an operation a tensor     | compiled for (b, n)  |
| backpointers | NumPy: a graph would take longer to start than to run   |

Where attention is a mixer or n-grams are blocked, L is padded, and compiled for, too.
Attention as a mixer has one position for all rows: there the places are taken when all
sentences have ended.
"""

import dataclasses
import math
import weakref

import keras
import numpy as np
from keras import ops

from keras_seqconv.decoding.graphs import Tiered, cached, description, graph, sizeless
from keras_seqconv.decoding.hypotheses import (
    NOTHING,
    Ended,
    Hypotheses,
    follow,
    hypotheses,
)
from keras_seqconv.decoding.next_tokens import NEVER
from keras_seqconv.decoding.options import SampleOptions
from keras_seqconv.decoding.search import (
    begin,
    best_ended,
    replaced,
    run_steps,
    taken,
)
from keras_seqconv.decoding.tasks import (
    initial_state,
    limits_of,
    source_embedders,
    strategy_of,
    task_of,
    with_rules,
)
from keras_seqconv.support import tf

# Steps of a chunk at most, of few rows and of many: Ctrl-C waits for its end.
_STEPS, _STEPS_OF_MANY, _FEW = 64, 16, 8
_SMALLEST_WIDTH, _SMALLEST_LENGTH = 32, 64
# Seconds of plain graphs before the same shape is compiled on the side. To translate
# text by text is to wait for each: there one is enough.
_PATIENCE = 1.0
# One in so many places must be empty before others take them. At the end, when one in
# so many is still in use, these go on without the others: a second program.
_PART = 8
_MOVING = ("rows", "sentences")  # parts of a state


def compiled_search(
    model, options, tensors: dict, places: int, at_once: bool
) -> Hypotheses:
    """The search with the tensors of a call (`tasks.py`), eagerly; B is at least 1.

    Args:
        places: how many sentences are searched at a time.
        at_once: compile before the first step, not while plain graphs run.
    """
    # Without TensorFlow, whose eager operations take longer to start than to run.
    given = {name: np.asarray(value) for name, value in tensors.items()}
    limits, longest = limits_of(model, options, given, np)
    num_steps, count = int(longest) + 1, len(limits)
    size = max(_SMALLEST_LENGTH, power_of_two_from(num_steps))
    size = min(size, model.max_target_length or size)
    arrays, scalars = _padded(model, tensors, limits.astype("int32"))
    uniforms = arrays.pop("uniforms", None)
    # The limits are tensors here, so that one graph serves all lengths.
    options = dataclasses.replace(options, max_length=10**6, max_length_ratio=0.0)
    graphs = _graphs(model, options, size, arrays, scalars)
    places = min(power_of_two_from(count), power_of_two_from(places))
    patience = None if at_once else _PATIENCE if places > 1 else 0.0
    loop = _Loop(graphs, arrays, scalars, places, num_steps, model.pad_id, patience)
    loop.uniforms = uniforms
    ended, records = loop.run()
    tokens, beams = follow(records.backpointers, ended, strategy_of(options))
    with np.errstate(invalid="ignore"):  # between hypotheses that do not exist
        found = hypotheses(np, model, ended, records, tokens, beams)
    if found.attention is not None:
        width = tensors["source_ids"].shape[1]
        found = found._replace(attention=found.attention[..., :width])
    return _of_length(found, num_steps, model.pad_id)


def _padded(model, tensors: dict, limits: np.ndarray) -> tuple:
    """Arrays (B, ...) of few widths, `limits` among them; and the scalars.

    Uniforms are (B, N, L + what a chunk may go beyond).
    """
    arrays, scalars = {"limits": limits}, {}
    for name, value in tensors.items():
        if not len(value.shape):
            scalars[name] = value
            continue
        arrays[name] = value = np.asarray(value)
        if name.endswith("_ids"):
            width = power_of_two_from(max(value.shape[1], _SMALLEST_WIDTH))
            if name == "source_ids":
                most = [x.max_length for x in source_embedders(model) if x.max_length]
                width = max(value.shape[1], min([width, *most]))
            extra = [(0, 0), (0, width - value.shape[1])]
            arrays[name] = np.pad(value, extra, constant_values=model.pad_id)
        elif name == "uniforms":
            value = np.pad(value, [(0, 0), (0, _STEPS)])  # of a chunk beyond the end
            arrays[name] = value.reshape(len(limits), -1, value.shape[1])
    scalars.pop("max_length", None)  # in the limits
    return arrays, scalars


class _Loop:
    """The loop over chunks, and what it has found.

    Attributes:
        sentences: (b,) int: the number of the sentence in each place, -1 for none.
        ages: (b,) int: the steps that it has made.
        waiting: the number of the first sentence that has not begun.
    """

    def __init__(self, graphs, arrays, scalars, places, num_steps, pad_id, patience):
        self.begins, self.steps, self.moves = graphs
        self.arrays, self.scalars = arrays, scalars
        self.count, self.waiting = len(arrays["limits"]), 0
        self.sentences, self.ages = np.full(places, -1), np.zeros(places, int)
        self.capacity, self.pad_id = num_steps + _STEPS, pad_id
        self.patience = patience
        self.state = self.ended = self.records = self.uniforms = None

    def run(self) -> tuple:
        """`Ended` and `Records` of all sentences, as arrays."""
        self._enter()
        while (self.sentences >= 0).any():
            least = self._leave()
            self._advance(
                _STEPS if len(self.sentences) <= _FEW else _STEPS_OF_MANY, least
            )
            self._enter()
        steps = self.ended.last.max() + 1
        return self.ended, keras.tree.map_structure(lambda x: x[:steps], self.records)

    def _enter(self) -> None:
        """Give empty places to sentences that wait, many at a time."""
        number = self.count - self.waiting
        empty, places = np.flatnonzero(self.sentences < 0), len(self.sentences)
        begins = len(empty) == places
        if not number or not (begins or self.mixes and len(empty) >= places // _PART):
            return
        empty = empty[:number]
        entering = self.waiting + np.arange(len(empty))
        self.waiting += len(empty)
        self.sentences[empty], self.ages[empty] = entering, 0
        # Some stand there twice: for JAX, which wants few sizes, or to fill up.
        rows = places if begins else len(empty)
        if keras.backend.backend() == "jax":
            rows = power_of_two_from(rows)
        arrays = {n: x[np.resize(entering, rows)] for n, x in self.arrays.items()}
        if not begins and rows == len(empty) and "source_ids" in arrays:
            source = arrays["source_ids"]
            width = np.flatnonzero((source != self.pad_id).any(axis=0)).max(initial=0)
            arrays["source_ids"] = source[:, : width + 1]
        # For one sentence alone the encoder is compiled, too.
        patience = self.patience if places == 1 else math.inf
        widths = tuple(array.shape for array in arrays.values())
        state = self.begins(_tensors(arrays), widths, patience)
        if begins:
            self.state, sentences = state, state["sentences"]
            if len(empty) < places:  # what fills up has ended
                scores = np.array(sentences.scores)
                scores[len(empty) :] = NEVER
                scores = ops.convert_to_tensor(scores)
                self.state["sentences"] = sentences._replace(scores=scores)
            leaves = keras.tree.flatten(state["rows"])
            self.mixes = all(len(leaf.shape) for leaf in leaves)
            return
        new = {name: state[name] for name in _MOVING}
        self._move(np.resize(empty, rows), new=new)

    def _leave(self) -> int:
        """Go on in fewer places if few are in use and no sentence waits.

        Returns:
            How many of those in use may end before the next look.
        """
        places, used = len(self.sentences), int((self.sentences >= 0).sum())
        if self.waiting < self.count:
            return places - max(1, places // _PART) if self.mixes else 0
        # Plain graphs run in any number of places; each compiled one is a program.
        part = 2 if self.patience is not None else _PART
        if places > 1 and used <= max(1, places // part):
            places = power_of_two_from(used) if part == 2 else max(1, places // part)
            kept = np.argsort(self.sentences < 0, kind="stable")[:places]
            self._move(kept)
            self.sentences, self.ages = self.sentences[kept], self.ages[kept]
        return min(used - 1, places // part)

    def _move(self, places, **new) -> None:
        """Keep some places only, or give them to others."""
        places = ops.convert_to_tensor(places.astype("int32"))
        state = {name: self.state[name] for name in _MOVING}
        self.state |= self.moves({**state, "places": places, **new})

    def _advance(self, most: int, least: int) -> None:
        """A chunk of steps; write down what it has made and what has ended."""
        chunk = {"most": np.int32(most), "least": np.int32(least)}
        if self.uniforms is not None:
            steps = np.minimum(self.ages[:, None], self.capacity - _STEPS)
            columns = (steps + np.arange(_STEPS))[:, None, :]
            draws = np.take_along_axis(self.uniforms[self.sentences], columns, axis=2)
            chunk["draws"] = draws.reshape(-1, _STEPS)
        state = {**self.state, **self.scalars, **_tensors(chunk)}
        widths = tuple(array.shape[1:] for array in self.arrays.values())
        shape = len(self.sentences), widths
        after = self.steps(state, shape, self.patience)
        shared = self.state["sentences"].shared
        self.state["rows"] = after["rows"]
        self.state["sentences"] = after["sentences"]._replace(shared=shared)
        used = np.flatnonzero(self.sentences >= 0)
        sentences, steps = self.sentences[used], np.arange(int(after["count"]))
        self._write(after, used, sentences, self.ages[used] + steps[:, None])
        self.ages += len(steps)
        ended = ~(np.asarray(after["sentences"].scores) > NEVER).any(axis=1)
        self.sentences[ended] = -1

    def _write(self, after, used, sentences, steps) -> None:
        """Records of the `used` places at `steps` (n, used) of the sentences."""
        ended, records = keras.tree.map_structure(
            np.asarray, (after["ended"], after["records"])
        )
        if self.records is None:
            self.ended = Ended(
                *(np.zeros((self.count, *x.shape[1:]), x.dtype) for x in ended)
            )
            size = self.capacity, self.count
            self.records = keras.tree.map_structure(
                lambda x: np.zeros((*size, *x.shape[2:]), x.dtype), records
            )
        for of_all, part in zip(self.ended, ended, strict=True):
            of_all[sentences] = part[used]

        def write(of_all, part):
            of_all[steps, sentences] = part[: len(steps), used]

        keras.tree.map_structure(write, self.records, records)


def _tensors(arrays: dict) -> dict:
    return {name: ops.convert_to_tensor(value) for name, value in arrays.items()}


def _of_length(found, num_steps: int, pad_id: int) -> Hypotheses:
    """Tensors with L = num_steps, padding at the end."""

    def padded(array, value=0):
        extra = [(0, 0)] * array.ndim
        extra[2] = 0, num_steps - array.shape[2]
        return np.pad(array, extra, constant_values=value)

    found = found._replace(
        ids=padded(found.ids, pad_id).astype("int32"),
        positional_scores=padded(found.positional_scores),
    )
    if found.attention is not None:
        found = found._replace(attention=padded(found.attention))
    return Hypotheses(
        *(part if part is None else ops.convert_to_tensor(part) for part in found)
    )


def power_of_two_from(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


# Graphs. Arguments: model, hashable settings, tensors by name.


def _graphs(model, options, size, arrays: dict, scalars: dict) -> tuple:
    """`begins(arrays)`, `steps(state)` and `moves(states)`."""
    described = description(arrays | scalars)

    def make():
        specs = sizeless(arrays)

        def begin(jit_compile):
            return graph(_begin, reference(), (options, size), specs, jit_compile)

        reference, of_steps = weakref.ref(model), None
        begins = Tiered(begin, idle=lambda arrays: arrays)
        if keras.backend.backend() == "tensorflow":
            # What is known of the shapes of a state is known of the first one.
            state = begins.traced(False).structured_outputs
            number = tf.TensorSpec([], "int32")
            of_steps = {**state, **sizeless(scalars), "most": number, "least": number}
            if isinstance(options, SampleOptions):
                of_steps["draws"] = tf.TensorSpec([None, _STEPS], "float32")

        def steps(jit_compile):
            return graph(_steps, reference(), options, of_steps, jit_compile)

        # The steps of a convolution are the same for all lengths.
        shapes = [(str(x.shape), x.dtype) for x in keras.tree.flatten(of_steps or {})]
        idle = _tensors({"most": np.int32(0)})
        return (
            begins,
            cached(
                model,
                (_steps, options, *described, *shapes),
                lambda: Tiered(steps, lambda state: {**state, **idle}),
            ),
            graph(_move, model, options, None),
        )

    return cached(model, (compiled_search, options, size, described), make)


def _begin(model, settings, tensors) -> dict:
    options, size = settings
    task = with_rules(task_of(model, options, tensors), tensors, tensors["limits"])
    state = initial_state(task, tensors, size)
    common, rows, sentences = begin(task, state, size)
    # Each sentence has its own number of steps, and position where the model has one.
    for beams in rows.state.get("models", [rows.state]):
        if "position" in beams:
            beams["position"] = keras.tree.map_structure(
                lambda x: ops.zeros_like(rows.ids[:, 0]) + x, beams["position"]
            )
    steps = ops.zeros_like(tensors["limits"])
    return {
        "common": common, "rows": rows, "sentences": sentences._replace(steps=steps)
    }  # fmt: skip


def _steps(model, options, tensors) -> dict:
    task = task_of(model, options, tensors)
    state = tensors["common"], tensors["rows"], tensors["sentences"]
    chunk = _STEPS, tensors["most"], tensors["least"]
    draws = tensors.get("draws")
    count, rows, sentences, records = run_steps(task, *state, *chunk, draws)
    # To return what did not change would be to copy it.
    return {
        "count": count,
        "rows": rows,
        "sentences": sentences._replace(shared=NOTHING),
        "records": records,
        "ended": best_ended(task, sentences),
    }


def _move(model, options, tensors) -> dict:
    """The state in some of its places, or with "new" rows and sentences there."""
    task = task_of(model, options, tensors)
    state, places = [tensors[name] for name in _MOVING], tensors["places"]
    if "new" in tensors:
        new = [tensors["new"][name] for name in _MOVING]
        moved = replaced(task, state, places, new)
    else:
        moved = taken(task, *state, places)
    return dict(zip(_MOVING, moved, strict=True))
