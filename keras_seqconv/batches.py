"""What turns lists of texts into batches for a model and its search.

Shared by `Translator` and `LanguageGenerator`. Letters: B texts of a batch.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import keras
import numpy as np

from keras_seqconv import decoding
from keras_seqconv.cores import available_cores
from keras_seqconv.support.arguments import check_positive_integer

# Always written down, so that a folder says what its search does.
_NAMED = ("num_beams", "length_penalty", "max_length")
# Say how much of the result is returned, not what is searched.
_NOT_DEFAULTS = {"num_hypotheses", "return_attention"}
# Logits that `scores` makes at a time, in elements.
_LOGITS = 1 << 26
# Most batches that are decoded side by side unless asked for: each takes its memory.
_PARALLEL = 8
# Fewer texts are not shared between cores: each step costs time whatever its size.
_FEWEST_ROWS = 8
# ASCII white space, what `tf.strings.strip` takes away in an export.
_BLANKS = " \t\n\v\f\r"


class Batch(NamedTuple):
    """Which texts are decoded together, and to which width they are padded."""

    indices: list[int]
    width: int

    def limited(self, most: int | None) -> "Batch":
        """The same with no larger width than this."""
        return self if most is None else self._replace(width=min(self.width, most))

    def padded(self, rows: list[list[int]], pad_id: int) -> np.ndarray:
        """Their ids, (B, width) int32.

        On JAX, where every shape is compiled, B is a power of two: further rows repeat
        the first one, and so take no further steps.
        """
        indices = self.indices
        if keras.backend.backend() == "jax":
            more = _power_of_two_from(len(indices)) - len(indices)
            indices = indices + indices[:1] * more
        padded = np.full((len(indices), self.width), pad_id, "int32")
        for row, index in zip(padded, indices, strict=True):
            row[: len(rows[index])] = rows[index]
        return padded


def batches(
    lengths: list[int], tokens: int, most: int | None, parallel: int = 1
) -> Iterator[Batch]:
    """Texts of similar lengths together, the longest first; none of length 0.

    Args:
        lengths: of all texts.
        tokens: most tokens of a batch, padding included; one text may have more.
        most: largest width.
        parallel: how many are decoded at a time; few texts are dealt out to them all.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    order = [index for index in order if lengths[index]]
    share = max(_FEWEST_ROWS, -(-len(order) // parallel))
    start = 0
    while start < len(order):
        width = _width(lengths[order[start]], most)
        # A power of two, so that padding adds no row to a full batch.
        rows = min(share, _power_of_two_from(max(1, tokens // width) + 1) // 2)
        yield Batch(order[start : start + rows], width)
        start += rows


def side_by_side(
    function: Callable, batches: Iterable[Batch], parallel: int
) -> Iterator:
    """Pairs of each batch and `function(batch)`, in their order.

    The products of a search step are too small to be shared by cores (two of them took
    as long as one); batches are not. Results are the same.

    Args:
        function: starts a search; most of its time must be TensorFlow's or JAX's.
        batches: to be decoded.
        parallel: how many at a time.
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
    """Batches at a time where nobody said how many, as `Translator` documents."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return 1
    return min(available_cores(), _PARALLEL)


def _width(length: int, most: int | None) -> int:
    """The length rounded up to 16, 24, 32, 48, 64, 96 and so on, at most `most`."""
    width = max(16, _power_of_two_from(length))
    if length <= width * 3 // 4 and width > 16:
        width = width * 3 // 4
    return width if most is None else min(width, most)


def _power_of_two_from(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def to_numpy(found):
    """A record of tensors as one of arrays."""
    return type(found)(
        *(
            None if value is None else keras.ops.convert_to_numpy(value)
            for value in found
        )
    )


def scores(owner, sources, targets, options) -> list[float]:
    """What `decoding.score` gives to targets, for sources if there are any."""
    names = ("length_penalty", "length_penalty_kind", "normalize")
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise TypeError(f"unknown options {unknown}; there are {list(names)}")
    options = {
        **{name: owner.search[name] for name in names if name in owner.search},
        **options,
    }
    model, scores = owner.model, [0.0] * len(targets)
    lengths = [len(ids) for ids in targets]
    if sources is not None:
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]

    def score_of(batch):
        source_ids = None
        if sources is not None:
            limited = batch.limited(owner.max_source_length)
            source_ids = limited.padded(sources, model.pad_id)
        limited = batch.limited(model.max_target_length)
        target_ids = limited.padded(targets, model.pad_id)
        found = decoding.score(model, source_ids, target_ids, **options)
        return keras.ops.convert_to_numpy(found.scores)

    parallel = owner.parallel_batches or default_parallel()
    tokens = _LOGITS // model.target_vocabulary_size // parallel
    parts = batches(lengths, min(owner.tokens_per_batch, tokens), None, parallel)
    for batch, found in side_by_side(score_of, parts, parallel):
        for place, index in enumerate(batch.indices):
            scores[index] = float(found[place])
    return scores


# --- Arguments ---


def check_parallel(number: int | None) -> int | None:
    """`parallel_batches`, checked."""
    if number is None:
        return None
    return check_positive_integer("parallel_batches", number)


def texts_of(name: str, texts: str | Iterable[str]) -> list[str]:
    """A list of them; a single text is one of one."""
    if isinstance(texts, bytes):
        raise ValueError(
            f"`{name}` must be a text or a list of texts. Received: {texts[:80]!r}"
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"`{name}` must be a list of texts (str). "
                f"Received: {name}[{index}] is {type(text).__name__}"
            )
    return texts


def is_blank(text: str) -> bool:
    """Whether there is nothing to translate, whatever tokens it has."""
    return not text.strip(_BLANKS)


def check_tokenizer(name: str, tokenizer, model, size: int):
    if tokenizer.vocabulary_size != size:
        raise ValueError(
            f"`{name}` must have as many symbols as the model has ids, {size}. "
            f"Received: {tokenizer.vocabulary_size}"
        )
    for special in ("pad_id", "start_id", "end_id", "unk_id"):
        if getattr(tokenizer, special) != getattr(model, special):
            raise ValueError(
                f"`{name}` must have the `{special}` of the model, "
                f"{getattr(model, special)}. Received: {getattr(tokenizer, special)}"
            )


def check_lengths(name: str, rows: list[list[int]], most: int | None):
    for index, ids in enumerate(rows):
        if most is not None and len(ids) > most:
            raise ValueError(
                f"Each of `{name}` must have at most {most} tokens. "
                f"Received: {name}[{index}] with {len(ids)}"
            )


def search_defaults(cls, search: Mapping | None) -> dict:
    """Search options to keep: those given, and always the most important ones."""
    options = search_options(cls, {}, dict(search or {}))
    never = sorted(_NOT_DEFAULTS & set(search or {}))
    if never:
        raise ValueError(f"`search` must not hold {never}: they are set in each call.")
    given = {name: options[name] for name in (*_NAMED, *(search or {}))}
    # As JSON has it, so that saving and loading changes nothing.
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
    }


def search_options(cls, defaults: Mapping, search: Mapping, **fixed) -> dict:
    """All options of a search, checked."""
    names = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(map(str, set(search) - (names - set(fixed))))
    if unknown:
        raise TypeError(
            f"unknown search options {unknown}; there are {sorted(names - set(fixed))}"
        )
    return dataclasses.asdict(cls(**{**defaults, **search, **fixed}))


def spellable(options: dict, tokenizer) -> dict:
    """Options of a search that chooses nothing the tokenizer has no text for.

    Tokenizers that run in no graph are fairseq's, whose search suppresses nothing.
    """
    if not tokenizer.in_graph:
        return options
    never = {*options["suppressed_ids"], *tokenizer.unspellable_ids}
    return {**options, "suppressed_ids": tuple(sorted(never))}
