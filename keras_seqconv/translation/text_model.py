"""Base of `Translator` and `LanguageGenerator`: options, and texts in batches.

Letters: B texts of a batch.
"""

import dataclasses
import os
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import keras
import numpy as np

from keras_seqconv import decoding
from keras_seqconv.decoding.generate import power_of_two_from
from keras_seqconv.decoding.options import OF_SCORES, BeamOptions
from keras_seqconv.decoding.ensemble import source_embedders
from keras_seqconv.devices import available_cores
from keras_seqconv.support import tf, weights_not_finite
from keras_seqconv.support.arguments import check_integer, check_positive_integer
from keras_seqconv.translation import model_directory

# Always written down, so that a folder says what its search does.
_ALWAYS_KEPT = ("num_beams", "length_penalty", "max_length")
# Say how much of the result is returned, not what is searched.
_OF_A_CALL = {"num_hypotheses": None, "return_attention": False}
# Logits that `score` makes at a time, in elements.
_LOGITS = 1 << 26
# Most batches that are decoded side by side unless asked for: each takes its memory.
_PARALLEL = 8
# A compiled search takes further texts in the place of those that have ended: so many
# for each place, and in so many places, beyond which more are no faster.
_REFILLS, _MOST_ROWS = 16, 64
# Up to so many texts in one call are few (benchmarks/README.md, "Many texts").
_FEW_TEXTS = 16
# Fewer texts are not shared between cores: each step costs time whatever its size.
_FEWEST_ROWS = 8


class TextModel:
    """Base of `Translator` and `LanguageGenerator`.

    `tokenizers` is a dict, the input's first, the output's last; empty without texts.
    `jit_compile` as in `keras_seqconv.decoding.beam_search`. `trained` has notes
    about the training, by name, or is None; a saved model keeps it. `chosen_length` is
    the argument `max_source_length`, without the limits of the model.
    """

    jit_compile: bool | None = None
    trained: dict | None = None
    source_language = target_language = chosen_length = None

    def __init__(self, model, tokenizers, search, tokens_per_batch, parallel_batches):
        self.model, self.tokenizers = model, tokenizers
        for member in getattr(model, "models", [model]):
            if bad := weights_not_finite(member):  # a search would find nothing
                raise ValueError(
                    "`model` must have finite weights. "
                    f"Received: NaN or infinity in {bad[0]} ({len(bad)} such weights)"
                )
        self.tokens_per_batch = check_positive_integer(
            "tokens_per_batch", tokens_per_batch
        )
        if parallel_batches is not None:
            check_positive_integer("parallel_batches", parallel_batches)
        self.parallel_batches = parallel_batches
        given = dict(search or {})
        options = _checked_options(BeamOptions, given, {}, _OF_A_CALL)
        # As JSON has it, so that saving and loading changes nothing.
        self.search = {
            name: list(options[name]) if type(options[name]) is tuple else options[name]
            for name in (*_ALWAYS_KEPT, *given)
        }
        specials = ("pad_id", "start_id", "end_id", "unk_id")
        expected = [(special, getattr(model, special)) for special in specials]
        for side, tokenizer in tokenizers.items():
            sizes = [model.target_vocabulary_size]
            if side == "source":
                sizes = [x.tokens.vocabulary_size for x in source_embedders(model)]
            for name, value in [*expected, *(("vocabulary_size", n) for n in sizes)]:
                if getattr(tokenizer, name) != value:
                    raise ValueError(
                        f"The {side} tokenizer must have the `{name}` of the model, "
                        f"{value}. Received: {getattr(tokenizer, name)}"
                    )

    def search_options(self, search: Mapping, cls=BeamOptions, **fixed) -> dict:
        """Returns all search options: the given ones, and defaults of this model.

        Tokens without text are suppressed, unless the tokenizer has no graph: such
        tokenizers are fairseq's, whose search suppresses nothing.

        Args:
            search: options by name; TypeError for unknown ones.
            cls: `BeamOptions` or `SampleOptions`.
            **fixed: options that may not be given.
        """
        options = _checked_options(cls, search, self.search, fixed)
        for tokenizer in [*self.tokenizers.values()][-1:]:
            if tokenizer.in_graph:
                never = {*options["suppressed_ids"], *tokenizer.unspellable_ids}
                options["suppressed_ids"] = tuple(sorted(never))
        return options

    def save(self, directory: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes model, tokenizers and search options; see `model_directory`.

        Args:
            directory: new or empty folder, written completely or not at all.
            overwrite: whether to replace a folder that holds a saved model only.
        """
        model_directory.write(directory, self, overwrite)

    def _texts(self, name: str, texts: str | Iterable[str]) -> list[str]:
        """A list of them, for a model with tokenizers; a single text is one of one."""
        texts = [texts] if isinstance(texts, str | bytes) else list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(
                    f"`{name}` must be a list of texts (str). "
                    f"Received: {name}[{index}] is {type(text).__name__}"
                )
        if not self.tokenizers:
            raise ValueError(
                "This model has no tokenizers: use keras_seqconv.decoding with its "
                f"`model`, or make a {type(self).__name__} with tokenizers."
            )
        return texts

    def _searched(
        self, function, name, rows, lengths, options, most, seeds=None, plain=False
    ):
        """Pairs of each batch and the hypotheses of a search for it, as arrays.

        `function(model, name=ids, **options)` searches for a batch of `rows` (ids), or
        draws, by the seed of each row. `plain`: "auto" compiles nothing.
        """
        jit_compile = self.jit_compile
        # Many texts keep all cores busy without XLA, whose programs share cores badly.
        plain = plain or len(rows) > _FEW_TEXTS
        if jit_compile is None and plain and keras.backend.backend() != "jax":
            jit_compile = False

        def search(batch):
            more = {name: batch.padded(rows, self.model.pad_id)}
            if seeds is not None:
                more["seed"] = [seeds[index] for index in batch.places]
            more |= {"max_batch_size": batch.rows, "jit_compile": jit_compile}
            hypotheses = function(self.model, **options, **more)
            return hypotheses._make(
                None if value is None else keras.ops.convert_to_numpy(value)
                for value in hypotheses
            )

        parallel = self.parallel_batches or default_parallel()
        of_each = options.get("num_beams") or options["num_samples"]
        tokens = self.tokens_per_batch // of_each
        # Attention is large.
        compiled = decoding.is_compiled(jit_compile) and not options["return_attention"]
        refills = _REFILLS if compiled else 1
        parts = batches(lengths, tokens, most, parallel, refills)
        return side_by_side(search, parts, parallel)

    def _scores(self, name, targets, options, sources=None) -> list[float]:
        """`decoding.score` of targets, with sources if the model has them."""
        model = self.model
        own = {key: self.search[key] for key in OF_SCORES if key in self.search}
        check_lengths(name, targets, model.max_target_length)
        pairs = zip(targets, sources or targets, strict=True)
        lengths = [max(map(len, pair)) for pair in pairs]

        def score(batch):
            target_ids = batch.padded(targets, model.pad_id, model.max_target_length)
            source_ids = None
            if sources is not None:
                most = self.max_source_length
                source_ids = batch.padded(sources, model.pad_id, most)
            scored = decoding.score(model, source_ids, target_ids, **{**own, **options})
            return keras.ops.convert_to_numpy(scored.scores)

        scores = [0.0] * len(targets)
        parallel = self.parallel_batches or default_parallel()
        tokens = _LOGITS // model.target_vocabulary_size // parallel
        tokens = min(self.tokens_per_batch, tokens)
        parts = batches(lengths, tokens, None, parallel)
        for batch, row in side_by_side(score, parts, parallel):
            for place, index in enumerate(batch.indices):
                scores[index] = float(row[place])
        return scores


@dataclasses.dataclass
class UnknownTokens:
    """Numbers of unknown tokens, of all tokens, and of texts with an unknown one."""

    unknown: int = 0
    tokens: int = 0
    texts: int = 0

    def add(self, rows: Iterable[list[int]], unk_id: int) -> "UnknownTokens":
        """Counts the ids of texts, which have no end."""
        for ids in rows:
            unknown = ids.count(unk_id)
            self.unknown += unknown
            self.tokens += len(ids)
            self.texts += unknown > 0
        return self

    def tell(self, show: Callable = warnings.warn, **options) -> None:
        """Calls `show(message, **options)` if a token is unknown."""
        if self.unknown:
            message = (
                f"{self.unknown:,} of {self.tokens:,} input tokens are unknown to the "
                f"model; texts with unknown tokens: {self.texts:,}"
            )
            show(message, **options)


def _checked_options(cls, search: Mapping, defaults: Mapping, fixed: Mapping) -> dict:
    """All options of the class: of `search`, else of `defaults` if it has them."""
    names = {field.name for field in dataclasses.fields(cls)}
    own = {name: value for name, value in defaults.items() if name in names}
    return dataclasses.asdict(cls.from_names({**own, **dict(**search, **fixed)}))


# --- Batches ---


class Batch(NamedTuple):
    """Texts that are decoded together, their width, and the number at a time."""

    indices: list[int]
    width: int
    rows: int

    @property
    def places(self) -> list[int]:
        """Text of each of the B rows.

        On JAX, where every shape is compiled, B is a power of two: further rows repeat
        the first one.
        """
        more = 0
        if keras.backend.backend() == "jax":
            more = power_of_two_from(len(self.indices)) - len(self.indices)
        return self.indices + self.indices[:1] * more

    def padded(
        self, rows: list[list[int]], pad_id: int, most: int | None = None
    ) -> np.ndarray:
        """Their ids, (B, width) int32, no wider than `most`."""
        indices = self.places
        width = self.width if most is None else min(self.width, most)
        padded = np.full((len(indices), width), pad_id, "int32")
        for row, index in zip(padded, indices, strict=True):
            row[: len(rows[index])] = rows[index]
        return padded


def batches(
    lengths: list[int],
    tokens: int,
    most: int | None,
    parallel: int = 1,
    refills: int = 1,
) -> Iterator[Batch]:
    """Texts of similar lengths together, the longest first; none of length 0.

    Args:
        lengths: of all texts.
        tokens: most tokens that are computed at a time, padding included; one text may
            have more.
        most: largest width.
        parallel: how many are decoded at a time; few texts are dealt out to them all.
        refills: so many times its rows a batch may have, as long as its texts are
            about as long.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    order = [index for index in order if lengths[index]]
    share = max(_FEWEST_ROWS, -(-len(order) // parallel))
    start = 0
    while start < len(order):
        width = _width(lengths[order[start]], refills > 1)
        # A power of two, so that padding adds no row to a full batch.
        rows = power_of_two_from(max(1, tokens // width) + 1) // 2
        size = rows = min(share, rows)
        if refills > 1:
            rows = min(rows, _MOST_ROWS)
            # A wide memory costs little; the encoder takes each text as wide as it is.
            short = (8 * lengths[i] <= width for i in order[start:])
            size = next((n for n, is_short in enumerate(short) if is_short), len(order))
            size = min(max(size, rows), share, rows * refills)
        width = width if most is None else min(width, most)
        yield Batch(order[start : start + size], width, rows)
        start += size


def _width(length: int, is_compiled: bool) -> int:
    """16, 24, 32, 48, 64, 96 and so on, or 32, 64, 128: few shapes."""
    if is_compiled:
        return max(32, power_of_two_from(length))
    width = max(16, power_of_two_from(length))
    return width * 3 // 4 if width > 16 and length <= width * 3 // 4 else width


def side_by_side(
    function: Callable, batches: Iterable[Batch], parallel: int
) -> Iterator:
    """Pairs of each batch and `function(batch)`, in their order.

    The products of a search step are too small to be shared by cores (two of them took
    as long as one); `parallel` batches at a time are not. Results are the same.
    """
    batches = list(batches)
    parallel = min(parallel, len(batches))
    if parallel < 2:
        yield from ((batch, function(batch)) for batch in batches)
        return
    threads = ThreadPoolExecutor(parallel)
    try:
        yield from zip(batches, threads.map(function, batches), strict=True)
    finally:
        # After an error or Ctrl-C, batches that have not begun are left out.
        threads.shutdown(cancel_futures=True)


def default_parallel() -> int:
    """Default of `parallel_batches` of a `Translator`."""
    if keras.backend.backend() != "tensorflow":
        return 1
    gpu = tf.config.list_physical_devices("GPU")
    return 1 if gpu else min(available_cores(), _PARALLEL)


def seeds_of(seed: int | None, numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Seeds of texts, by what they are numbered; None for one by Python's `random`."""
    if seed is None:
        seed = random.getrandbits(32)
    check_integer("seed", seed, 0)
    return [(seed, number) for number in numbers]


def check_lengths(name: str, rows: list[list[int]], most: int | None):
    for index, ids in enumerate(rows):
        if most is not None and len(ids) > most:
            raise ValueError(
                f"Each of `{name}` must have at most {most} tokens. "
                f"Received: {name}[{index}] with {len(ids)}"
            )
