"""Parts that the models of every family are made of.

Letters: B batch, T time, E width of the embedding, n new positions of a step.
"""

import dataclasses
import itertools

import keras
from keras import ops

from keras_seqconv.layers import AdaptiveInput, PositionEncoding, TokenEmbedding


@dataclasses.dataclass(frozen=True)
class Seeds:
    """A different seed for every layer of a model, or None for all."""

    first: int | None
    used: itertools.count = dataclasses.field(default_factory=itertools.count)

    def next(self) -> int | None:
        number = next(self.used)
        return None if self.first is None else self.first + number


@dataclasses.dataclass(frozen=True)
class Embedder:
    """Tokens and positions to the inputs of a stack.

        x = dropout(scale * projection(table[ids]) + position)

    A plain record: the layers belong to the model that calls them. (The projection
    stands where fairseq has it, in front of the position.)
    """

    tokens: TokenEmbedding | AdaptiveInput
    projection: keras.layers.Layer | None
    position: PositionEncoding | None
    dropout: keras.layers.Dropout
    scale: float = 1.0

    def __call__(self, ids, mask=None):
        """ids (B, T) -> (B, T, E); positions count the real tokens of the mask."""
        x = self._embed(ids)
        if self.position is not None:
            x = self.position(x, mask=mask)
        return self.dropout(x)

    def get_initial_state(self, batch_size, max_length) -> dict:
        if self.position is None:
            return {}
        return self.position.get_initial_state(batch_size, max_length)

    def step(self, ids, state: dict) -> tuple:
        """New ids (B, n) -> (B, n, E), and the state after them."""
        x = self._embed(ids)
        if self.position is None:
            return x, state
        return self.position.step(x, state)

    def _embed(self, ids):
        x = self.tokens(ids)
        x = x if self.projection is None else self.projection(x)
        return x if self.scale == 1.0 else x * self.scale

    @property
    def max_length(self) -> int | None:
        """Most positions that can be embedded, None without a limit."""
        return None if self.position is None else self.position.max_length


def initial_beams(
    embedder: Embedder, mixers: list, rows, max_length, attended_ids=None
) -> dict:
    """What every row of a search carries before the first step.

    Args:
        embedder: of the decoder.
        mixers: layers with a state, in the order in which steps call them.
        rows: beams of all sentences.
        max_length: most positions that the steps will add up to.
        attended_ids: source ids (B, S), if the last attention to them is to be kept.
    """
    beams = {
        "position": embedder.get_initial_state(rows, max_length),
        "mixers": [mixer.get_initial_state(rows, max_length) for mixer in mixers],
    }
    if attended_ids is not None:
        width = ops.shape(attended_ids)[1]
        beams["attention"] = ops.zeros((rows, width), dtype="float32")
    return beams


class Mixing:
    """The mixers' side of a step: gives each its state and collects the new ones."""

    def __init__(self, states: list):
        self.states = states
        self.new_states = []

    def __call__(self, mixer, x, *kernels):
        x, state = mixer.step(x, self.states[len(self.new_states)], *kernels)
        self.new_states.append(state)
        return x
