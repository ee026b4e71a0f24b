"""Stacks of gated convolutions: their specifications, parts, the loop over them.

Letters: B batch, T time, C channels, E embedding width, K kernel.
"""

import reprlib
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
from keras_seqconv.models.notation import MOST_ENTRIES, evaluate
from keras_seqconv.models.parts import Embedder, Seeds


class Convolution(NamedTuple):
    """One layer: output channels, taps, and how far back its residual comes from.

    `residual` counts backwards in [input, output of layer 1, output of layer 2, ...]:
    1 is the input of this layer, 0 is no residual.
    """

    channels: int
    kernel_size: int
    residual: int = 1


def parse_convolutions(specification) -> list[Convolution]:
    """Layers from fairseq's notation or from a list.

    Args:
        specification: list of (channels, kernel_size[, residual]), or a text like
            "[(512, 3)] * 9 + [(1024, 3, 2)]", of which lists, numbers, + and * are
            understood and nothing is executed. At most 1000 layers.

    Raises:
        ValueError: for anything else, and for a residual from before the first input.
    """
    entries = specification
    if isinstance(specification, str):
        try:
            entries = evaluate(specification)
        except ValueError as error:
            raise _wrong(specification, error) from error
    if not isinstance(entries, (list, tuple)) or not entries:
        raise _wrong(specification, "it holds no layer")
    if len(entries) > MOST_ENTRIES:
        raise _wrong(specification, f"there may be {MOST_ENTRIES} layers at most")
    layers = []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, (list, tuple)) or len(entry) not in (2, 3):
            raise _wrong(specification, f"layer {number} is {entry!r}")
        layer = Convolution(*entry)
        if not all(type(value) is int for value in layer) or min(layer[:2]) < 1:
            raise _wrong(specification, f"layer {number} is {entry!r}")
        if not 0 <= layer.residual <= number:
            raise _wrong(
                specification,
                f"the residual of layer {number} must be 0 to {number}, "
                f"not {layer.residual}",
            )
        layers.append(layer)
    return layers


def _wrong(specification, reason):
    return ValueError(
        "`convolutions` must be a list of (channels, kernel_size[, residual]), all of "
        'them integers, or a text like "[(512, 3)] * 4 + [(1024, 1, 2)]": '
        f"{reason}. Received: convolutions={reprlib.repr(specification)}"
    )


def make_embedder(
    vocabulary_size: int,
    embedding_dim: int,
    *,
    max_length: int | None = None,
    use_bias: bool = False,
    dropout: float,
    seeds: Seeds,
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
    dropped = keras.layers.Dropout(dropout, seed=seeds.next(), dtype=dtype)
    return Embedder(tokens, None, position, dropped)


def weight_normed(
    units: int, dropout: float = 0.0, *, folded: bool, dtype
) -> WeightNormDense:
    """Its variance corrected for the dropout in front of it."""
    initializer = ConvS2SInitializer(dropout=dropout)
    return WeightNormDense(
        units, kernel_initializer=initializer, folded=folded, dtype=dtype
    )


class ConvolutionStack:
    """Gated convolutions with residuals, and attention between the two where asked.

    A plain record: the layers belong to the model that calls them. The residual of
    layer i comes from `residual` entries back and is `ScaledResidual`.
    """

    def __init__(
        self,
        convolutions: list[Convolution],
        *,
        padding: str,
        attention: list[bool],
        dropout: float,
        folded: bool,
        seeds: Seeds,
        dtype,
    ):
        self.convolutions = convolutions
        self.blocks = [
            ConvS2SBlock(
                layer.channels,
                layer.kernel_size,
                padding=padding,
                dropout=dropout,
                residual=False,
                seed=seeds.next(),
                folded=folded,
                dtype=dtype,
            )
            for layer in convolutions
        ]
        self.attentions = [
            ConvS2SAttention(folded=folded, dtype=dtype) if wanted else None
            for wanted in attention
        ]
        self.residuals = [
            ScaledResidual(folded=folded, dtype=dtype) if layer.residual else None
            for layer in convolutions
        ]

    def run(self, x, convolve, attend=None, kernels=None):
        """x (B, T, C) through all layers.

        The one loop of the full and of the incremental pass, which differ in how they
        convolve (`convolve(block, x, kernels)`) and look at the source
        (`attend(attention, x, kernels)`). `kernels` is what `step_kernels` made.
        """
        outputs = [x]
        kernels = kernels or [{}] * len(self.blocks)
        for layer, block, attention, residual, given in zip(
            *self._layers(), kernels, strict=True
        ):
            x = convolve(block, outputs[-1], given.get("block"))
            if attention is not None:
                x = attend(attention, x, given.get("attention"))
            if residual is not None:
                skip = outputs[-layer.residual]
                x = residual(x, skip, kernels=given.get("residual"))
            outputs.append(x)
        return outputs[-1]

    def _layers(self):
        return self.convolutions, self.blocks, self.attentions, self.residuals

    def step_kernels(self) -> list:
        """The kernels of every layer, to be made once before a loop of steps."""
        parts = ("block", "attention", "residual")
        return [
            {
                part: layer.step_kernels()
                for part, layer in zip(parts, layers, strict=True)
                if layer is not None
            }
            for _, *layers in zip(*self._layers(), strict=True)
        ]

    def fold(self) -> None:
        """Replace all weights v and g by plain kernels."""
        for layer in (*self.blocks, *self.attentions, *self.residuals):
            if layer is not None:
                layer.fold()
