"""A function in the place of a model in a search."""

from collections.abc import Callable

import keras
from keras import ops

from keras_seqconv.support.arguments import check_integer, known_width


class StepFunction:
    """A function and its first state, in place of a model in one search.

    The search is a part of the `tf.function` or `jax.jit` that calls it. An eager call
    runs eagerly; on JAX it compiles the steps each time. `jit_compile`,
    `max_batch_size` and `unk_penalty` of a search have no effect.

    Args:
        step: `step(ids (rows, 1) int32, state) -> (logits (rows, V), state)`. Rows are
            the beams of all sentences, fewer when sentences have ended.
        state: the state before the first step: a nested structure of tensors with B
            rows, which the search repeats and gathers for beams, or of rank 0. The next
            states have the same shapes and dtypes.
        start_id: the first of the `ids`.
        end_id: token that ends a hypothesis.
        pad_id: token that fills up the results and is never chosen.

    Raises:
        ValueError: an id, the state or a result of `step` breaks its rule.

    Example: docs/step_functions.md.
    """

    has_source, max_target_length = False, None

    def __init__(self, step: Callable, state, *, start_id, end_id, pad_id):
        self.function = step
        self.state = keras.tree.map_structure(ops.convert_to_tensor, state)
        leaves = [leaf for leaf in keras.tree.flatten(self.state) if len(leaf.shape)]
        if not leaves or len({leaf.shape[0] for leaf in leaves} - {None}) > 1:
            raise ValueError(
                "`state` must hold tensors with one row for each sentence. "
                f"Received: state={_described(self.state)}"
            )
        count = ops.shape(leaves[0])[0]
        self.state_rows = ops.zeros((count, 0), "int32")
        self.start_id = check_integer("start_id", start_id, 0)
        # The size of the vocabulary is known from a first result.
        ids = ops.full((count, 1), start_id, dtype="int32")
        logits, _ = self.step(ids, {"beams": self.state})
        self.target_vocabulary_size = size = logits.shape[1]
        self.end_id = check_integer("end_id", end_id, 0, size - 1)
        self.pad_id = self.unk_id = check_integer("pad_id", pad_id, 0, size - 1)

    def get_initial_state(self, source, num_beams: int = 1, max_length=None) -> dict:
        """The state with `num_beams` rows for each of its own."""

        def repeated(leaf):
            return ops.repeat(leaf, num_beams, axis=0) if len(leaf.shape) else leaf

        beams = keras.tree.map_structure(repeated, self.state)
        return {"shared": {}, "beams": beams}

    def step(self, ids, state) -> tuple:
        """The step of the function; ValueError for a result of another shape."""
        returned, rows = self.function(ids, state["beams"]), ids.shape[0]
        logits, *_ = [*keras.tree.flatten(returned), None]
        size = known_width("logits", getattr(logits, "shape", ()))
        dtype = keras.backend.standardize_dtype(logits.dtype)
        wanted = f"{dtype} (rows, {size})", _described(state["beams"], rows)
        received = _described(returned, rows)
        if received != wanted:
            raise ValueError(
                f"`step` must return logits and the next state, {wanted}. "
                f"Received: {received}, for {rows} rows"
            )
        return logits, {**state, "beams": returned[1]}


def _described(state, rows=None):
    """Dtypes and shapes of a state, with a name for the number of rows."""

    def describe(leaf):
        if not hasattr(leaf, "shape"):
            return type(leaf).__name__
        first = ["rows" if size in (rows, None) else size for size in leaf.shape[:1]]
        shape = ", ".join(map(str, [*first, *leaf.shape[1:]]))
        return f"{keras.backend.standardize_dtype(leaf.dtype)} ({shape})"

    return keras.tree.map_structure(describe, state)
