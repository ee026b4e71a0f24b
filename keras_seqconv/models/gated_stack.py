"""Stacks of gated convolutions: fairseq's notation for them, their parts, the loop.

Letters: B batch, T time, C channels, E embedding width.
"""

import ast
import dataclasses
import itertools
import json
import reprlib
from collections.abc import Iterator
from typing import NamedTuple

import keras

from keras_seqconv.layers import (
    ConvS2SAttention,
    ConvS2SBlock,
    ConvS2SInitializer,
    PositionEncoding,
    ScaledResidual,
    TokenEmbedding,
    WeightNormDense,
)
from keras_seqconv.models.sequence_model import SequenceModel
from keras_seqconv.models.stacks import Embedder
from keras_seqconv.ops.fused import wide
from keras_seqconv.support.arguments import plain

# Bounds against typing errors and hostile files.
_MOST_ENTRIES = 1000
_MOST_PARTS = 10_000  # entries of entries counted
_MOST_CHARACTERS = 10_000


# --- The notation ---


def evaluate(text: str):
    """The value of a list in fairseq's options, such as "[(512, 3)] * 9 + [(1024, 3)]".

    fairseq executes such texts. Here lists, tuples, integers, bools, + and * are
    understood and nothing is executed.

    Raises:
        ValueError: for anything else, and for texts that are too long, nested too
            deeply, or repeat more than 1000 entries or 10,000 parts of them.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"there may be {_MOST_CHARACTERS} characters at most")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def _value(node):
    match node:
        case ast.Constant(value=bool() | int() as value):
            return value
        case ast.List(elts=entries):
            return [_value(entry) for entry in entries]
        case ast.Tuple(elts=entries):
            return tuple(_value(entry) for entry in entries)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            left, right = _value(left), _value(right)
            for entries, times in ((left, right), (right, left)):
                repeated = isinstance(entries, (list, tuple)) and isinstance(times, int)
                if repeated and len(entries) * times > _MOST_ENTRIES:
                    raise ValueError(f"more than {_MOST_ENTRIES} entries")
                if repeated and _parts(entries) * times > _MOST_PARTS:
                    raise ValueError(f"more than {_MOST_PARTS} parts of entries")
            return left * right
    raise ValueError(f"{type(node).__name__} is not allowed")


def _parts(value) -> int:
    return 1 + sum(map(_parts, value)) if isinstance(value, (list, tuple)) else 1


class Convolution(NamedTuple):
    """One layer: output channels, taps, and how far back its residual comes from.

    `residual` counts backwards in [input, output of layer 1, output of layer 2, ...]:
    1 is the input of this layer, 0 is no residual.
    """

    channels: int
    kernel_size: int
    residual: int = 1


def parse_convolutions(specification) -> list[Convolution]:
    """Layers from a text for `evaluate`, or from a list.

    Args:
        specification: list of (channels, kernel_size[, residual]), at most 1000, or a
            text of it.

    Raises:
        ValueError: for anything else, and for a residual from before the first input.
    """
    try:
        is_text = isinstance(specification, str)
        return _layers(evaluate(specification) if is_text else specification)
    except ValueError as error:
        raise ValueError(
            "`convolutions` must be a list of (channels, kernel_size[, residual]), "
            'all of them integers, or a text like "[(512, 3)] * 4 + [(1024, 1, 2)]"'
            f": {error}. Received: convolutions={reprlib.repr(specification)}"
        ) from error


def _layers(entries) -> list[Convolution]:
    entries = plain(entries)
    if not isinstance(entries, (list, tuple)) or not entries:
        raise ValueError("it holds no layer")
    if len(entries) > _MOST_ENTRIES:
        raise ValueError(f"there may be {_MOST_ENTRIES} layers at most")
    layers = []
    for number, entry in enumerate(entries, start=1):
        right = isinstance(entry, (list, tuple)) and len(entry) in (2, 3)
        right = right and all(type(x) is int for x in entry) and min(entry[:2]) >= 1
        if not right:
            raise ValueError(f"layer {number} is {reprlib.repr(entry)}")
        layers.append(Convolution(*entry))
        back = layers[-1].residual
        if not 0 <= back <= number:
            raise ValueError(
                f"the residual of layer {number} must be 0 to {number}, not {back}"
            )
    return layers


# --- The stack ---


@dataclasses.dataclass(frozen=True)
class GatedBlock:
    """A gated convolution, attention to the source, and a residual from `back` layers.

    A plain record: the layers belong to the model that calls them.
    """

    mixer: ConvS2SBlock
    attention: ConvS2SAttention | None
    residual: ScaledResidual | None
    back: int

    @property
    def mixers(self) -> list[ConvS2SBlock]:
        """The parts with a state in steps."""
        return [self.mixer]


def make_gated_blocks(
    convolutions: list[Convolution],
    *,
    padding: str,
    attention: list[bool] | None = None,
    dropout: float,
    seeds: Iterator,
    **plain,
) -> list[GatedBlock]:
    """Blocks, with attention in those where it is asked for. `plain`: folded, dtype."""
    blocks = []
    for number, (channels, kernel_size, back) in enumerate(convolutions):
        mixer = ConvS2SBlock(
            channels,
            kernel_size,
            padding=padding,
            dropout=dropout,
            residual=False,
            seed=next(seeds),
            **plain,
        )
        to_source = (
            ConvS2SAttention(**plain) if attention and attention[number] else None
        )
        residual = ScaledResidual(**plain) if back else None
        blocks.append(GatedBlock(mixer, to_source, residual, back))
    return blocks


def run_gated_blocks(blocks: list[GatedBlock], x, mix, attend=None):
    """x (B, T, C) through all blocks, with functions as in `stacks.run_blocks`."""
    outputs = [x]
    for block in blocks:
        x = mix(block.mixer, outputs[-1])
        if block.attention is not None:
            x = attend(block.attention, x)
        if block.residual is not None:
            x = block.residual(x, outputs[-block.back])
        outputs.append(x)
    return outputs[-1]


def make_gated_embedder(
    vocabulary_size: int,
    embedding_dim: int,
    *,
    max_length: int | None = None,
    use_bias: bool = False,
    dropout: float,
    seeds: Iterator,
    dtype,
    name: str,
) -> Embedder:
    """Tables of tokens and, with `max_length`, of positions: normal, deviation 0.1."""
    tokens = TokenEmbedding(
        vocabulary_size,
        embedding_dim,
        use_bias=use_bias,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1),
        dtype=dtype,
        name=name,
    )
    position = None
    if max_length is not None:
        position = PositionEncoding(
            "learned",
            max_length=max_length,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1),
            dtype=dtype,
        )
    dropout = keras.layers.Dropout(dropout, seed=next(seeds), dtype=dtype)
    return Embedder(tokens, None, position, dropout)


def weight_normed(units: int, dropout: float = 0.0, **plain) -> WeightNormDense:
    """Its variance corrected for the dropout in front of it."""
    initializer = ConvS2SInitializer(dropout=dropout)
    return WeightNormDense(units, kernel_initializer=initializer, **plain)


class WeightNormalizedModel(SequenceModel):
    """A model of weight-normalized layers, which `fold` makes plain."""

    # Of the steps, see `SequenceModel`.

    def _advance(self, x, mix, state, look: bool, attend=None) -> tuple:
        x = self.decoder_input(x)
        return run_gated_blocks(self.decoder_blocks, x, mix, attend), None

    def _head(self, x):
        if not self.has_logits:
            return x
        x = self.output_dropout(self.decoder_output(x))
        if self.output_dense is not None:
            return wide(self.output_dense(x))
        return self.target_embedder.tokens(x, reverse=True)

    def _step_layers(self) -> list:
        layers = [self.decoder_input]
        for block in self.decoder_blocks:
            layers += [block.mixer, block.attention, block.residual]
        if self.has_logits:
            output = self.output_dense or self.target_embedder.tokens
            layers += [self.decoder_output, output]
        inner = (layer._flatten_layers() for layer in layers if layer is not None)
        inner = itertools.chain.from_iterable(inner)
        return [layer for layer in inner if hasattr(layer, "step_kernel")]

    def fold(self) -> None:
        """Replaces all weight-normalized weights by plain kernels, for serving.

        Outputs stay the same. A compiled model that is to be trained on must be
        compiled again.
        """
        for layer in self.layers:
            if hasattr(layer, "fold"):
                layer.fold()
        self._config = json.dumps({**json.loads(self._config), "folded": True})

    def quantize(self, *args, **kwargs) -> None:
        """Raises an error: Keras quantizes `Dense` layers, which this model lacks."""
        raise ValueError(
            "`quantize` needs layers that Keras can quantize, such as `Dense`; all of "
            "these are weight-normalised, or were before `fold`. Received: a "
            f"{type(self).__name__}"
        )
