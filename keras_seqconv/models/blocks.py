"""The stacks of encoders and decoders: options of a side, blocks, the loop over them.

Letters: B batch, T time, C channels.
"""

import dataclasses
import inspect

import keras
from keras import ops

from keras_seqconv.layers import (
    DynamicConvModule,
    FeedForward,
    LightConvModule,
    MultiHeadAttention,
    PositionEncoding,
    QueryConvModule,
    Residual,
    TokenEmbedding,
)
from keras_seqconv.layers.feed_forward import accepted
from keras_seqconv.models.model import float32
from keras_seqconv.models.parts import Embedder, Seeds
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_positive_integer,
    check_rate,
)

MIXERS = ("light_conv", "dynamic_conv", "query_conv", "attention")
SIDES = ("encoder", "decoder")


def of_side(name: str, value, side: str):
    """The value of an option that may be given as {"encoder": ..., "decoder": ...}."""
    if not isinstance(value, dict):
        return value
    if set(value) != set(SIDES):
        raise ValueError(
            f"`{name}` must be one value or have the keys {SIDES}. "
            f"Received: {name}={value!r}"
        )
    return value[side]


def of_layers(name: str, value, num_layers: int) -> list:
    """One value for each layer: given one by one, or one for all."""
    if not isinstance(value, (list, tuple)):
        return [value] * num_layers
    if len(value) not in (1, num_layers):
        raise ValueError(
            f"`{name}` must hold one entry, or one for each of {num_layers} layers. "
            f"Received: {name}={value!r}"
        )
    return list(value) * (num_layers if len(value) == 1 else 1)


def check_options(options: dict) -> None:
    """Refuse wrong options of one side, whether its layers use them or not.

    Args:
        options: arguments of a model's constructor, without sides.
    """
    for name in ("hidden_dim", "intermediate_dim", "num_heads", "query_groups"):
        check_positive_integer(name, options[name])
    optional = (
        "num_conv_heads",
        "conv_dim",
        "query_dim",
        "embedding_dim",
        "output_dim",
    )
    for name in optional:
        if options[name] is not None:
            check_positive_integer(name, options[name])
    flags = ("permute_channels", "compat", "kernel_softmax")
    for name in (*flags, "normalize_first", "final_norm"):
        check_boolean(name, options[name])
    for name in ("", "attention_", "activation_", "input_", "weight_"):
        check_rate(f"{name}dropout", options[f"{name}dropout"])
    check_choice("gate", options["gate"], ("none", "glu", "gau"))
    check_choice("positions", options["positions"], ("sinusoidal", "learned", None))
    if options["positions"] == "learned":
        check_positive_integer("max_length", options["max_length"])
    granularities = ("shared", "position", None)
    check_choice("weight_dropout_mask", options["weight_dropout_mask"], granularities)


def _check_heads(options, mixers, source):
    """Refuse widths that the heads of the mixers do not divide."""
    width, heads = options["hidden_dim"], options["num_heads"]
    if width % heads and (source or "attention" in mixers):
        raise ValueError(
            "`hidden_dim` must be a multiple of `num_heads`. "
            f"Received: hidden_dim={width}, num_heads={heads}"
        )
    width, heads = options["conv_dim"] or width, options["num_conv_heads"] or heads
    groups = options["query_groups"] if "query_conv" in mixers else 1
    if width % (heads * groups) and set(mixers) & set(MIXERS[:3]):
        raise ValueError(
            "`conv_dim` (by default `hidden_dim`) must be a multiple of "
            "`num_conv_heads` (by default `num_heads`) times `query_groups`. Received: "
            f"conv_dim={width}, num_conv_heads={heads}, query_groups={groups}"
        )


def default_kernel_sizes(num_layers: int) -> list[int]:
    """3, 7, 15 and then 31, as in Wu et al. 2019, section 5.1 (their first 7)."""
    return [*(3, 7, 15)[:num_layers], *[31] * (num_layers - 3)]


@dataclasses.dataclass(frozen=True)
class Block:
    """One layer of a stack, each part with residual and normalization around it.

    A plain record: the layers belong to the model that calls them.
    """

    mixer: Residual
    attention: Residual | None
    feed_forward: Residual


def run(blocks: list[Block], x, mix, attend=None):
    """x (B, T, C) through all blocks.

    The one loop of the full and of the incremental pass, which differ in how they mix
    positions (`mix(mixer, x)`) and look at the source (`attend(attention, x)`).
    """
    for block in blocks:
        x = mix(block.mixer, x)
        if block.attention is not None:
            x = attend(block.attention, x)
        x = block.feed_forward(x)
    return x


def make_blocks(
    options: dict,
    num_layers: int,
    *,
    name: str,
    causal: bool,
    source: bool,
    seeds: Seeds,
) -> list[Block]:
    """Blocks from the options of one side, the arguments of a model's constructor.

    Args:
        options: without sides.
        num_layers: how many.
        name: of a block; its parts are called `<name>_1_mixer` and so on.
        causal: positions look at the past only.
        source: with attention to a source.
        seeds: of the model.
    """
    mixers = [_known(one) for one in of_layers("mixer", options["mixer"], num_layers)]
    _check_heads(options, mixers, source)
    kernel_sizes = options["kernel_sizes"]
    if kernel_sizes is None:
        kernel_sizes = default_kernel_sizes(num_layers)
    kernel_sizes = of_layers("kernel_sizes", kernel_sizes, num_layers)
    for kernel_size in kernel_sizes:
        check_positive_integer("kernel_sizes", kernel_size)

    def residual(number, part, layer):
        return Residual(
            layer,
            name=f"{name}_{number}_{part}",
            dropout=options["dropout"],
            normalize_first=options["normalize_first"],
            seed=seeds.next(),
            dtype=options["dtype"],
        )

    return [
        Block(
            residual(number, "mixer", _mixer(mixer, size, options, causal, seeds)),
            residual(number, "attention", _attention(options, seeds))
            if source
            else None,
            residual(number, "feed_forward", _feed_forward(options, seeds)),
        )
        for number, (mixer, size) in enumerate(
            zip(mixers, kernel_sizes, strict=True), start=1
        )
    ]


def _known(mixer):
    """One of `MIXERS`, or what makes a layer, itself or by its registered name."""
    if isinstance(mixer, str) and mixer not in MIXERS:
        mixer = keras.saving.get_registered_object(mixer) or mixer
    if callable(mixer) and not isinstance(mixer, keras.layers.Layer):
        return mixer
    return check_choice("mixer", mixer, MIXERS)


def _mixer(mixer, kernel_size, options, causal, seeds):
    if mixer == "attention":
        return _attention(options, seeds, use_causal_mask=causal)
    arguments = {
        "num_heads": options["num_conv_heads"] or options["num_heads"],
        "kernel_size": kernel_size,
        "padding": "causal" if causal else "same",
        "conv_dim": options["conv_dim"],
        "input_dropout": options["input_dropout"],
        "weight_dropout": options["weight_dropout"],
        "weight_dropout_mask": options["weight_dropout_mask"],
        "seed": seeds.next(),
        "dtype": options["dtype"],
    }
    if callable(mixer):
        made_by = mixer.__init__ if isinstance(mixer, type) else mixer
        arguments = accepted(made_by, options | arguments)
        if inspect.getfullargspec(made_by).varkw:  # as of layers
            arguments["dtype"] = options["dtype"]
        return mixer(**arguments)
    if mixer == "query_conv":
        names = ("query_dim", "gate", "query_groups", "permute_channels", "compat")
        return QueryConvModule(**arguments, **{name: options[name] for name in names})
    if options["gate"] == "gau":
        raise ValueError(
            '`gate` may be "gau" for the mixer "query_conv" only. '
            f'Received: gate="gau", mixer={mixer!r}'
        )
    module = LightConvModule if mixer == "light_conv" else DynamicConvModule
    return module(
        **arguments,
        use_glu=options["gate"] == "glu",
        kernel_softmax=options["kernel_softmax"],
    )


def _attention(options, seeds, **arguments):
    return MultiHeadAttention(
        options["num_heads"],
        output_dim=options["hidden_dim"],
        dropout=options["attention_dropout"],
        seed=seeds.next(),
        dtype=options["dtype"],
        **arguments,
    )


def _feed_forward(options, seeds):
    return FeedForward(
        options["intermediate_dim"],
        activation=options["activation"],
        dropout=options["activation_dropout"],
        seed=seeds.next(),
        dtype=options["dtype"],
    )


def make_embedder(tokens, options: dict, seeds: Seeds) -> Embedder:
    """What turns ids into the inputs of a stack, from the options of one side.

    Embeddings are scaled by the root of the model's width (Vaswani et al. 2017, 3.4).
    """
    width, dtype = options["hidden_dim"], options["dtype"]
    projection = position = None
    if isinstance(tokens, TokenEmbedding) and tokens.embedding_dim != width:
        projection = linear(width, dtype)
    kind = options["positions"]
    if kind is not None:
        max_length = options["max_length"] if kind == "learned" else None
        position = PositionEncoding(kind, max_length=max_length, dtype=dtype)
    dropout = keras.layers.Dropout(options["dropout"], seed=seeds.next(), dtype=dtype)
    return Embedder(tokens, projection, position, dropout, scale=width**0.5)


def make_tokens(vocabulary_size: int, options: dict, name: str) -> TokenEmbedding:
    """The table of one side."""
    return TokenEmbedding(
        vocabulary_size,
        options["embedding_dim"] or options["hidden_dim"],
        dtype=options["dtype"],
        name=name,
    )


@dataclasses.dataclass(frozen=True)
class VocabularyMap:
    """Outputs of a decoder to logits: a plain record, like `Embedder`.

    logits = projection(x) W     W: the kernel of `dense`, or the table transposed
    """

    projection: keras.layers.Layer | None
    dense: keras.layers.Dense | None
    table: TokenEmbedding | None

    def features(self, x):
        """x (..., C) -> what W multiplies."""
        return x if self.projection is None else self.projection(x)

    def logits(self, features):
        """(..., width) -> (..., V), at least float32."""
        if self.dense is None:
            return self.table(features, reverse=True)
        return float32(self.dense(features))

    def kernel(self):
        """W (width, V), in the layout that small products want."""
        if self.dense is None:
            return self.table.output_kernel()
        return ops.cast(self.dense.kernel, self.dense.compute_dtype)


def make_vocabulary_map(
    tokens, options: dict, *, tied: bool, features_only: bool = False
) -> VocabularyMap:
    """The output of a decoder, from the options of its side.

    Args:
        tokens: the embedding of the decoder.
        options: of the side.
        tied: W is the table of `tokens`.
        features_only: without W, for an adaptive softmax.
    """
    width = options["output_dim"] or options["hidden_dim"]
    if tied:
        _check_tied_width(tokens, options)
        width = tokens.embedding_dim
    projection = dense = None
    if width != options["hidden_dim"]:
        projection = linear(width, options["dtype"])
    if not (tied or features_only):
        dense = keras.layers.Dense(
            tokens.vocabulary_size,
            use_bias=False,
            kernel_initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
            dtype=options["dtype"],
            name="output_dense",
        )
    return VocabularyMap(projection, dense, tokens if tied else None)


def _check_tied_width(tokens, options):
    if options["output_dim"] not in (None, tokens.embedding_dim):
        raise ValueError(
            "`output_dim` must be the width of the embeddings when the output "
            f"shares its matrix. Received: output_dim={options['output_dim']}, "
            f"share_embeddings={options['share_embeddings']!r}, "
            f"width {tokens.embedding_dim}"
        )


def make_final_norm(options: dict):
    """The normalization behind a pre-norm stack, or None."""
    if not (options["normalize_first"] and options["final_norm"]):
        return None
    return keras.layers.LayerNormalization(epsilon=1e-5, dtype=options["dtype"])


def linear(units: int, dtype) -> keras.layers.Layer:
    """A linear map without bias, Glorot-uniform as in fairseq."""
    return keras.layers.Dense(units, use_bias=False, dtype=dtype)
