"""Base of `Translator` and `LanguageGenerator`: options, and texts in batches.

A text gets into a batch in three steps: `translate_file` reads a window of lines,
`batches_by_length` puts those of similar lengths together, and `in_threads` decodes
several batches at a time.

Letters: B texts of a batch.
"""

import collections
import dataclasses
import functools
import os
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from keras_seqconv.decoding.options import OF_SCORES, BeamOptions, SampleOptions
from keras_seqconv.devices import available_cores
from keras_seqconv.support import not_finite, tf
from keras_seqconv.support.arguments import check_integer, power_of_two_from
from keras_seqconv.translation import model_directory

# Options of a call: how much of the result is returned.
_OF_A_CALL = {"num_hypotheses": None, "return_attention": False}
# Logits that `score` makes at a time, in elements.
_LOGITS = 1 << 26
# Most batches that are decoded in parallel by default: each takes its memory.
_PARALLEL = 8
# Texts of which `UnknownTokens` keeps the unknown ones: their number is bounded.
_MOST_WITH_EXAMPLES = 1000
# Fewer texts are not shared between cores: each step costs time whatever its size.
_FEWEST_ROWS = 8


class TextModel:
    """Base of `Translator` and `LanguageGenerator`.

    `model` is one of Keras, or searches by itself (`runtime.onnx_model.OnnxModel`).
    `tokenizers` is a dict, the input's first, the output's last; empty without texts.
    `trained` has notes about the training, by name, or is None; a saved model keeps it.
    `chosen_length` is the argument `max_source_length`, without the model's limits.
    """

    trained: dict | None = None
    source_language = target_language = chosen_length = None

    def __init__(self, model, tokenizers, search, tokens_per_batch, parallel_batches):
        self.model, self.tokenizers = model, tokenizers
        for member in getattr(model, "models", [model]):
            # A search would find nothing.
            if self.is_of_keras and (bad := not_finite(member.weights)):
                raise ValueError(
                    "`model` must have finite weights. "
                    f"Received: NaN or infinity in {bad[0]} ({len(bad)} such weights)"
                )
        self.tokens_per_batch = check_integer("tokens_per_batch", tokens_per_batch, 1)
        if parallel_batches is not None:
            check_integer("parallel_batches", parallel_batches, 1)
        self.parallel_batches = parallel_batches
        search = search.changes() if isinstance(search, BeamOptions) else search or {}
        self.search = BeamOptions.from_names(_with_fixed(search, _OF_A_CALL))
        specials = ("pad_id", "start_id", "end_id", "unk_id")
        expected = [(special, getattr(model, special)) for special in specials]
        for side, tokenizer in tokenizers.items():
            size = model.target_vocabulary_size
            if side == "source":
                size = model.source_vocabulary_size
            for name, value in [*expected, ("vocabulary_size", size)]:
                if getattr(tokenizer, name) != value:
                    raise ValueError(
                        f"The {side} tokenizer must have the `{name}` of the model, "
                        f"{value}. Received: {getattr(tokenizer, name)}"
                    )

    @property
    def is_of_keras(self) -> bool:
        return not hasattr(self.model, "beam_search_hypotheses")

    def search_options(
        self, search: Mapping, cls=BeamOptions, **fixed
    ) -> BeamOptions | SampleOptions:
        """Returns the options of a search: the given ones, and defaults of this model.

        Tokens without text are suppressed, unless the tokenizer has no graph: such
        tokenizers are fairseq's, whose search suppresses nothing.

        Args:
            search: options by name; TypeError for unknown ones.
            cls: `BeamOptions` or `SampleOptions`.
            **fixed: options that may not be given.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        defaults = {
            name: getattr(self.search, name) for name in names & {*vars(self.search)}
        }
        options = cls.from_names({**defaults, **_with_fixed(search, fixed)})
        if cls is BeamOptions:  # a number, for cards and files of exports
            options = dataclasses.replace(options, num_hypotheses=options.num_results)
        for tokenizer in [*self.tokenizers.values()][-1:]:
            if tokenizer.in_graph:
                never = {*options.suppressed_ids, *tokenizer.unspellable_ids}
                never = tuple(sorted(never))
                options = dataclasses.replace(options, suppressed_ids=never)
        return options

    def search_config(self) -> dict:
        """The options of the search, as a model directory has them."""
        options = dataclasses.asdict(self.search).items()
        return {name: value for name, value in options if name not in _OF_A_CALL}

    def save(
        self,
        directory: str | os.PathLike,
        overwrite: bool = False,
        *,
        onnx: bool = False,
    ) -> None:
        """Writes model, tokenizers and search options; see `model_directory`.

        Args:
            directory: new or empty folder, written completely or not at all.
            overwrite: whether to replace a folder that holds a saved model only.
            onnx: whether to write graphs for ONNX Runtime, in float32 (extra `onnx`).
                On JAX a process of TensorFlow makes them.

        Raises:
            ImportError, ValueError: see `model_directory.write`.
        """
        model_directory.write(directory, self, overwrite, onnx)

    def _texts(self, name: str, texts: str | Iterable[str]) -> list[str]:
        """A list of them, for a model with tokenizers; a single text is one of one."""
        texts = [texts] if isinstance(texts, str | bytes) else list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(
                    f"`{name}` must be a list of texts (str). "
                    f"Received: {name}[{index}] is {type(text).__name__}"
                )
        self.require_tokenizers()
        return texts

    def require_tokenizers(self) -> None:
        if not self.tokenizers:
            raise ValueError(
                "This model has no tokenizers: use keras_seqconv.decoding with its "
                f"`model`, or make a {type(self).__name__} with tokenizers."
            )

    def _of_decoding(self, name: str, **options) -> Callable:
        """A function of `keras_seqconv.decoding` for the model, or the model's own."""
        if not self.is_of_keras:
            return functools.partial(getattr(self.model, name), **options)
        from keras_seqconv import decoding

        return functools.partial(getattr(decoding, name), self.model, **options)

    def _search(self, options, name, rows, lengths, widest, seeds=None) -> Iterator:
        """Yields each `Batch` of texts, and the hypotheses for it as arrays.

        Args:
            options: `BeamOptions`, or `SampleOptions` with the `seeds` of the rows.
            name: "source_ids" or "prefix_ids": what `rows`, lists of ids, are.
            lengths: of the rows; those of length 0 are in no batch.
            widest: largest width of a batch, or None.
        """
        if isinstance(options, BeamOptions):
            function, results = "beam_search_hypotheses", options.num_beams
        else:
            function, results = "sample_hypotheses", options.num_samples
        function = self._of_decoding(function, options=options)

        def search(batch):
            arguments = {name: batch.padded(rows, self.model.pad_id)}
            if seeds is not None:
                arguments["seed"] = [seeds[index] for index in batch.indices]
            if self.is_of_keras:
                arguments["max_batch_size"] = len(batch.indices)
            hypotheses = function(**arguments)
            return hypotheses._make(
                None if value is None else np.asarray(value) for value in hypotheses
            )

        tokens = self.tokens_per_batch // results
        return self._each_batch(search, lengths, tokens, widest)

    def _each_batch(self, function, lengths, tokens, widest=None) -> Iterator:
        """Yields each `Batch` of texts of these lengths, and `function(batch)`."""
        parallel = self._parallel
        batches = batches_by_length(lengths, tokens, widest, parallel)
        return in_threads(function, batches, parallel)

    @property
    def _parallel(self) -> int:
        return self.parallel_batches or default_parallel(self.is_of_keras)

    def _scores(self, name, targets, options, sources=None) -> list[float]:
        """`decoding.score` of targets, with sources if the model has them."""
        model, function = self.model, self._of_decoding("score")
        defaults = {name: getattr(self.search, name) for name in OF_SCORES}
        check_lengths(name, targets, model.max_target_length)
        pairs = zip(targets, sources or targets, strict=True)
        lengths = [max(map(len, pair)) for pair in pairs]

        def score(batch):
            target_ids = batch.padded(targets, model.pad_id, model.max_target_length)
            source_ids = None
            if sources is not None:
                source_ids = batch.padded(sources, model.pad_id, self.max_source_length)
            scored = function(source_ids, target_ids, **{**defaults, **options})
            return np.ravel(np.asarray(scored.scores))

        scores = [0.0] * len(targets)
        tokens = _LOGITS // model.target_vocabulary_size // self._parallel
        tokens = min(self.tokens_per_batch, tokens)
        for batch, of_batch in self._each_batch(score, lengths, tokens):
            for index, value in zip(batch.indices, of_batch, strict=True):
                scores[index] = float(value)
        return scores


def _with_fixed(search: Mapping, fixed: dict) -> dict:
    """The options of a search by name, and those that it may not have."""
    if given := [name for name in fixed if name in search]:
        name = given[0]
        raise ValueError(
            f"`{name}` must not be an option of the search: it belongs to a call, "
            f"whose own arguments set it. Received: {name}={search[name]!r}"
        )
    return {**search, **fixed}


class UnknownTokens:
    """Counts unknown tokens, all tokens, and texts with an unknown one."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.unknown = self.tokens = self.texts = 0
        self._examples = collections.Counter()

    def count(self, rows: list[list[int]], texts: list[str]) -> "UnknownTokens":
        """Counts the ids of texts, which may be cut, but for the end of each."""
        unk_id = self.tokenizer.unk_id
        self.tokens += sum(map(len, rows)) - len(rows)
        for ids, text in zip(rows, texts, strict=True):
            if unk_id not in ids:
                continue
            self.unknown += ids.count(unk_id)
            self.texts += 1
            if self.texts <= _MOST_WITH_EXAMPLES:
                pairs = zip(self.tokenizer.split(text), ids, strict=False)
                self._examples.update(token for token, i in pairs if i == unk_id)
        return self

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """The ids of texts, as their tokenizer gives them, counted."""
        self.count(rows := self.tokenizer.tokenize(texts), texts)
        return rows

    def tokenize_lines(self, texts: list[str]) -> list[list[int]]:
        """The same of running text."""
        self.count(rows := self.tokenizer.tokenize_lines(texts), texts)
        return rows

    def tell(self, show: Callable = warnings.warn, **options) -> None:
        """Calls `show(message, **options)` if a token is unknown."""
        if self.unknown:
            examples = [_shown(token) for token, _ in self._examples.most_common(5)]
            if len(self._examples) > len(examples):
                examples.append("...")
            message = (
                f"{self.unknown:,} of {self.tokens:,} tokens are unknown to the "
                f"model; texts with unknown tokens: {self.texts:,}; unknown: "
                + ", ".join(examples)
            )
            show(message, **options)


def _shown(token: str) -> str:
    """A token, with the code point that tells one character from its like."""
    is_code_point = len(token) == 1 and not token.isascii()
    return f"{token!r} (U+{ord(token):04X})" if is_code_point else f"{token!r:.40}"


# --- Batches ---


class Batch(NamedTuple):
    """Texts that are decoded together, and their width."""

    indices: list[int]
    width: int

    def padded(
        self, rows: list[list[int]], pad_id: int, widest: int | None = None
    ) -> np.ndarray:
        """Their ids, (B, width) int32, no wider than `widest`."""
        width = self.width if widest is None else min(self.width, widest)
        padded = np.full((len(self.indices), width), pad_id, "int32")
        for row, index in zip(padded, self.indices, strict=True):
            row[: len(rows[index])] = rows[index]
        return padded


def batches_by_length(
    lengths: list[int], tokens: int, widest: int | None, parallel: int = 1
) -> Iterator[Batch]:
    """Yields batches of texts of similar lengths, the longest first.

    Args:
        lengths: tokens of each text; texts of length 0 are in no batch.
        tokens: largest number of tokens of a batch, padding included. A longer text is
            a batch of its own.
        widest: largest width, or None.
        parallel: number of batches that are decoded at a time. A few texts are divided
            between them.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    order = [index for index in order if lengths[index]]
    share = max(_FEWEST_ROWS, -(-len(order) // parallel))
    start = 0
    while start < len(order):
        width = _width(lengths[order[start]])
        # A power of two, so that padding adds no row to a full batch.
        size = min(share, power_of_two_from(max(1, tokens // width) + 1) // 2)
        width = width if widest is None else min(width, widest)
        yield Batch(order[start : start + size], width)
        start += size


def _width(length: int) -> int:
    """16, 24, 32, 48, 64, 96 and so on: few shapes."""
    width = max(16, power_of_two_from(length))
    return width * 3 // 4 if width > 16 and length <= width * 3 // 4 else width


def in_threads(
    function: Callable, batches: Iterable[Batch], parallel: int
) -> Iterator[tuple]:
    """Yields each batch and `function(batch)`, in order, from `parallel` threads.

    The products of a search step are too small for several cores: two of them took as
    long as one. Results do not depend on `parallel`.
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


def default_parallel(on_keras: bool = True) -> int:
    """Default of `parallel_batches` of a `Translator`."""
    if on_keras:
        import keras

        on_tensorflow = keras.backend.backend() == "tensorflow"
        if not on_tensorflow or tf.config.list_physical_devices("GPU"):
            return 1
    return min(available_cores(), _PARALLEL)


def check_seed(seed: int) -> int:
    """The seed, of 63 bits, or ValueError."""
    return check_integer("seed", seed, 0, 2**63 - 1)


def seeds_of(seed: int | None, numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Seeds of texts, by what they are numbered; None for one by Python's `random`."""
    if seed is None:
        seed = random.getrandbits(32)
    check_seed(seed)
    return [(seed, number) for number in numbers]


def check_lengths(
    name: str, rows: list[list[int]], limit: int | None, first: int = 0
) -> None:
    """ValueError for a row of more than `limit` ids, unless it is None.

    `first` is the number of the first row.
    """
    for index, ids in enumerate(rows, first):
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"Each of `{name}` must have at most {limit} tokens. "
                f"Received: {name}[{index}] with {len(ids)}"
            )
