"""Parts of stacks of blocks: embeddings, mixers, the loop over blocks, logits.

`MIXERS` is the table of mixers. A new mixer is a layer and a row:

    call(inputs, mask=None, training=None)   (B, T, C) -> (B, T, C)
    get_initial_state(batch_size, max_length=None)   -> state, rows first
    step(inputs, state)   n >= 1 new positions (B, n, C) -> (B, n, C), state

Any split of the time axis into steps gives the results of `call`. Only decoding needs
the last two. Letters: B batch, T time, C channels, V vocabulary, n new positions.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_seqconv.layers import (
    AdaptiveInput,
    AdaptiveSoftmax,
    DynamicConvModule,
    FeedForward,
    GatedShortConv,
    LightConvModule,
    MultiHeadAttention,
    PositionEncoding,
    QueryConvModule,
    Residual,
    TokenEmbedding,
)
from keras_seqconv.layers.sequences import argument_names, by_rows, checked, zero_masked
from keras_seqconv.ops.fused import wide
from keras_seqconv.support.arguments import check_choice, check_integer, plain

SIDES = ("encoder", "decoder")
MOST_LAYERS = 1000  # against typing errors and hostile files


def make_attention(
    hidden_dim,
    num_heads,
    padding,
    attention_dropout=0.0,
    canon=None,
    seed=None,
    dtype=None,
) -> MultiHeadAttention:
    """The row of `MultiHeadAttention`, whose arguments have other names."""
    return MultiHeadAttention(
        num_heads,
        output_dim=hidden_dim,
        use_causal_mask=padding == "causal",
        dropout=attention_dropout,
        canon=canon,
        seed=seed,
        dtype=dtype,
    )


def make_short_conv(
    kernel_size, padding, use_bias=False, dilation_rate=1, dtype=None
) -> GatedShortConv:
    """The row of `GatedShortConv`, whose activation is not that of the model."""
    return GatedShortConv(
        kernel_size,
        padding=padding,
        use_bias=use_bias,
        dilation_rate=dilation_rate,
        dtype=dtype,
    )


# kind -> class or function that makes the layer. It is called with the options of the
# mixer, and with what else it names of `FOR_MIXERS`, `kernel_size`, `padding` ("causal"
# in a decoder, otherwise "same"), `canon` (`padding` for Canon-B, or None), `seed` and
# `dtype`.
MIXERS: dict[str, Callable] = {
    "light_conv": LightConvModule,
    "dynamic_conv": DynamicConvModule,
    "query_conv": QueryConvModule,
    "short_conv": make_short_conv,
    "attention": make_attention,
}
FOR_MIXERS = (
    "hidden_dim", "intermediate_dim", "num_heads", "activation", "dropout",
    "attention_dropout", "activation_dropout", "weight_dropout", "normalize_first",
)  # fmt: skip


def make_seeds(seed: int | None) -> Iterator:
    """A different seed for every layer of a model, or None for all."""
    if seed is None:
        return itertools.repeat(None)
    return (number % 2**32 for number in itertools.count(plain(seed)))  # as JAX has it


# --- Options ---


def of_side(name: str, value, side: str):
    """The value of an option that may be given as {"encoder": ..., "decoder": ...}.

    Dictionaries with a "kind" are values themselves.
    """
    if not isinstance(value, dict) or "kind" in value:
        return value
    if set(value) != set(SIDES):
        raise ValueError(
            f"`{name}` must be one value or have the keys {SIDES}. "
            f"Received: {name}={value!r}"
        )
    return value[side]


def of_layers(name: str, value, num_layers: int) -> list:
    """A list with a value for each layer, from such a list or from one value."""
    if not isinstance(value, (list, tuple)):
        return [value] * num_layers
    if len(value) not in (1, num_layers):
        raise ValueError(
            f"`{name}` must hold one entry, or one for each of {num_layers} layers. "
            f"Received: {name}={value!r}"
        )
    return list(value) * (num_layers if len(value) == 1 else 1)


def check_options(options: dict) -> None:
    """Refuse wrong options of one side, whether its layers use them or not."""
    for name in (
        "hidden_dim", "intermediate_dim", "num_heads", "embedding_dim", "output_dim",
        "normalize_first", "final_norm", "dropout", "attention_dropout",
        "activation_dropout", "weight_dropout",
    ):  # fmt: skip
        if name not in ("embedding_dim", "output_dim") or options[name] is not None:
            checked(name, options[name])


# --- Blocks ---


@dataclasses.dataclass(frozen=True)
class Block:
    """One layer of a stack, each part with residual and normalization around it.

    A plain record: the layers belong to the model that calls them.
    """

    mixer: Residual
    attention: Residual | None
    feed_forward: Residual
    canon: str = ""

    @property
    def mixers(self) -> list[Residual]:
        """The parts that look at earlier positions, and have a state in steps."""
        convolves = "c" in self.canon or "d" in self.canon
        return [self.mixer, *([self.feed_forward] if convolves else [])]


def run_blocks(blocks: list[Block], x, mix, attend=None):
    """x (B, T, C) through all blocks.

    The one loop of the full and of the incremental pass, which differ in how they mix
    positions (`mix(mixer, x)`) and attend to the source (`attend(attention, x)`).
    """
    for block in blocks:
        x = mix(block.mixer, x)
        if block.attention is not None:
            x = attend(block.attention, x)
        last = block.feed_forward
        x = mix(last, x) if last is block.mixers[-1] else last(x)
    return x


def make_blocks(
    name: str, num_layers: int, options: dict, seeds: Iterator
) -> list[Block]:
    """Blocks from the options of one side, the arguments of a model's constructor.

    Their layers are called `<name>_1_mixer` and so on. An "encoder" sees both sides, a
    "decoder" the past and a source, a "block" (of a language model) the past alone.
    """
    dtype, padding = options["dtype"], "same" if name == "encoder" else "causal"
    mixers = of_layers("mixer", options["mixer"], num_layers)
    kernel_sizes = options["kernel_sizes"]
    if kernel_sizes is None:
        # As in Wu et al. 2019, section 5.1 (their first 7).
        kernel_sizes = [*(3, 7, 15)[:num_layers], *[31] * (num_layers - 3)]
    kernel_sizes = of_layers("kernel_sizes", kernel_sizes, num_layers)
    arguments = {name: options[name] for name in FOR_MIXERS}
    canon = checked_canon(options["canon"])

    def residual(number, part, layer):
        has_canon = {"mixer": "a", "feed_forward": "c"}.get(part, "-") in canon
        return Residual(
            layer,
            canon=padding if has_canon else None,
            name=f"{name}_{number}_{part}",
            dropout=options["dropout"],
            normalize_first=options["normalize_first"],
            seed=next(seeds),
            dtype=dtype,
        )

    blocks = []
    for number, (mixer, kernel_size) in enumerate(
        zip(mixers, kernel_sizes, strict=True), start=1
    ):
        arguments["kernel_size"] = check_integer("kernel_sizes", kernel_size, 1)
        shared = {**arguments, "seed": next(seeds), "dtype": dtype}
        further = {"padding": padding, "canon": padding if "b" in canon else None}
        mixer = residual(number, "mixer", make_mixer(mixer, shared | further))
        to_source = None
        if name == "decoder":
            shared["seed"] = next(seeds)
            layer = make_mixer(make_attention, {**shared, "padding": "same"})
            to_source = residual(number, "attention", layer)
        feed_forward = FeedForward(
            options["intermediate_dim"],
            activation=options["activation"],
            dropout=options["activation_dropout"],
            canon=padding if "d" in canon else None,
            seed=next(seeds),
            dtype=dtype,
        )
        feed_forward = residual(number, "feed_forward", feed_forward)
        blocks.append(Block(mixer, to_source, feed_forward, canon))
    if "b" in canon and not any(getattr(x.mixer.layer, "canon", None) for x in blocks):
        raise ValueError(
            "`canon` with 'b' needs a block with attention as its mixer. "
            f"Received: canon={canon!r}, mixer={options['mixer']!r}"
        )
    return blocks


def checked_canon(canon: str | None) -> str:
    """The places of Canon layers in a block, some letters of "abcd"."""
    if canon is None:
        return ""
    if not isinstance(canon, str) or not canon or set(canon) - set("abcd"):
        raise ValueError(
            "`canon` must be None or some letters of 'abcd': a before the mixer, b "
            "inside of attention, c before the feed-forward network, d inside of it. "
            f"Received: canon={canon!r}"
        )
    return canon


def make_mixer(mixer, arguments: dict) -> keras.layers.Layer:
    """A layer from a row of `MIXERS`.

    Args:
        mixer: a kind, that is a row, a name that is registered with Keras, or a class
            or function itself; or {"kind": ..., and options of the layer}.
        arguments: of the model, None where not set; options of the mixer override them.
    """
    options = dict(mixer) if isinstance(mixer, dict) else {"kind": mixer}
    kind = options.pop("kind", None)
    if isinstance(kind, str):
        kind = MIXERS.get(kind) or keras.saving.get_registered_object(kind)
    if not callable(kind) or isinstance(kind, keras.layers.Layer):
        raise ValueError(
            f"`mixer` must be one of {tuple(MIXERS)}, a class or function that is "
            "registered with Keras, or a dictionary with one of these as 'kind'. "
            f"Received: mixer={mixer!r}"
        )
    names = _parameter_names(kind)
    for name in options:
        if name not in names or name in ("padding", "canon", "seed", "dtype"):
            raise ValueError(
                f"`mixer` has the option `{name}`, which its layer has not. "
                f"Received: mixer={mixer!r}"
            )
    arguments = {k: v for k, v in arguments.items() if k in names and v is not None}
    return kind(**{**arguments, **options})


def _parameter_names(kind) -> set:
    """Names of the arguments that a class or function takes, `dtype` by `**kwargs`."""
    parameters = inspect.signature(kind).parameters
    names = {*(argument_names(kind) if isinstance(kind, type) else parameters)}
    takes_more = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    return names | {"dtype"} if takes_more else names


# --- Ids to vectors, and vectors to logits ---


@dataclasses.dataclass(frozen=True)
class Embedder:
    """Tokens and positions to the inputs of a stack.

        x = dropout(scale * projection(table[ids]) + position)

    A plain record, like `Block`. (The projection stands where fairseq has it, in front
    of the position.)
    """

    tokens: TokenEmbedding | AdaptiveInput
    projection: keras.layers.Layer | None
    position: PositionEncoding | None
    dropout: keras.layers.Dropout
    scale: float = 1.0

    def __call__(self, ids, mask=None, pad_id: int | None = None):
        """ids (B, T) -> (B, T, C); positions count the real tokens of the mask.

        Without a mask `pad_id` is the padding on the right, which may be beyond the
        positions that are learned.
        """
        x = self._embed(ids)
        if self.position is not None:
            x = self.position(x, mask=mask)
        if pad_id is not None and self.max_length is not None:
            # NaN there would get into the gradients of weights.
            numbers = ops.cumsum(ops.ones_like(ids, "float32"), axis=1)
            is_token = ops.logical_or(ids != pad_id, numbers <= self.max_length)
            x = zero_masked(x, is_token)
        return self.dropout(x)

    def step(self, ids, state: dict) -> tuple:
        """New ids (B, n) -> (B, n, C), and the state after them."""
        x = self._embed(ids)
        return (x, state) if self.position is None else self.position.step(x, state)

    def _embed(self, ids):
        x = self.tokens(ids)
        x = x if self.projection is None else by_rows(self.projection, x)
        return x if self.scale == 1.0 else x * self.scale

    @property
    def max_length(self) -> int | None:
        """Most positions that can be embedded, None without a limit."""
        learned = self.position is not None and self.position.kind == "learned"
        return self.position.max_length if learned else None


def make_tokens(vocabulary_size: int, options: dict, name: str) -> TokenEmbedding:
    """The table of one side."""
    return TokenEmbedding(
        vocabulary_size,
        options["embedding_dim"] or options["hidden_dim"],
        dtype=options["dtype"],
        name=name,
    )


def make_embedder(tokens, options: dict, seeds: Iterator) -> Embedder:
    """Makes the embedder of a stack from the options of one side.

    Embeddings are scaled by the root of the model's width (Vaswani et al. 2017, 3.4).
    """
    width, dtype = options["hidden_dim"], options["dtype"]
    projection = position = None
    if isinstance(tokens, TokenEmbedding) and tokens.embedding_dim != width:
        projection = _linear(width, dtype)
    kind = options["positions"]
    if not isinstance(kind, dict):
        check_choice("positions", kind, ("sinusoidal", "learned", None))
        kind = {"kind": kind, **({"max_length": 1024} if kind == "learned" else {})}
    if kind.get("kind", "sinusoidal") is not None:
        position = PositionEncoding(**kind, dtype=dtype)
    dropout = keras.layers.Dropout(options["dropout"], seed=next(seeds), dtype=dtype)
    return Embedder(tokens, projection, position, dropout, scale=width**0.5)


@dataclasses.dataclass(frozen=True)
class VocabularyMap:
    """Outputs of a decoder to logits: a plain record, like `Block`.

    logits = projection(norm(x)) W   W: the kernel of `dense`, or the table transposed
    """

    norm: keras.layers.Layer | None
    projection: keras.layers.Layer | None
    dense: keras.layers.Dense | None
    table: TokenEmbedding | None

    def __call__(self, x):
        """x (..., C) -> (..., V), at least float32.

        Without W the inputs of an adaptive softmax, (..., width).
        """
        x = x if self.norm is None else self.norm(x)
        x = x if self.projection is None else self.projection(x)
        if self.dense is not None:
            return wide(self.dense(x))
        return x if self.table is None else self.table(x, reverse=True)


def make_vocabulary_map(
    tokens, options: dict, *, tied: bool, features_only: bool = False
) -> VocabularyMap:
    """The output of a decoder, from its embedding and the options of its side.

    `tied`: W is the table of `tokens`. `features_only`: without W.
    """
    dtype, width = options["dtype"], options["output_dim"] or options["hidden_dim"]
    if tied:
        width = tokens.embedding_dim
        if options["output_dim"] not in (None, width):
            raise ValueError(
                "`output_dim` must be the width of the embeddings when the output "
                f"shares its matrix. Received: output_dim={options['output_dim']}, "
                f"share_embeddings={options['share_embeddings']!r}, width {width}"
            )
    projection = dense = None
    if width != options["hidden_dim"]:
        projection = _linear(width, dtype)
    if not (tied or features_only):
        dense = keras.layers.Dense(
            tokens.vocabulary_size,
            use_bias=False,
            kernel_initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
            dtype=dtype,
            name="output_dense",
        )
    norm = make_final_norm(options)
    return VocabularyMap(norm, projection, dense, tokens if tied else None)


def make_final_norm(options: dict):
    """The normalization behind a pre-norm stack, or None."""
    if not (options["normalize_first"] and options["final_norm"]):
        return None
    return keras.layers.LayerNormalization(epsilon=1e-5, dtype=options["dtype"])


def make_adaptive_softmax(config: dict, seeds: Iterator, **tied):
    """The layer, or None, from the option `adaptive_softmax` of a model."""
    options = config["adaptive_softmax"]
    if options is None:
        return None
    return AdaptiveSoftmax(
        config["vocabulary_size"],
        seed=next(seeds),
        dtype=config["dtype"],
        **checked_adaptive("adaptive_softmax", options, ("factor", "dropout")),
        **tied,
    )


def checked_adaptive(name: str, options, further: tuple) -> dict:
    """The options of an adaptive layer, given as a dictionary."""
    keys = set(options) if isinstance(options, dict) else set()
    if "cutoffs" not in keys or not keys <= {"cutoffs", *further}:
        raise ValueError(
            f"`{name}` must be None or a dictionary with the key 'cutoffs' and, if "
            f"wanted, {further}. Received: {name}={options!r}"
        )
    return options


def _linear(units, dtype):
    """A linear map without bias, Glorot-uniform as in fairseq."""
    return keras.layers.Dense(units, use_bias=False, dtype=dtype)
