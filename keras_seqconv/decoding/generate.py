"""Decoding with a model, or several: beam search, greedy search, sampling, scoring.

A model is any object with the methods and attributes `_OF_MODELS` of the models of this
package, such as a `StepFunction`; `score` calls the model and its `log_prob`. If states
may grow, `max_length` is None.
"""

import dataclasses
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqconv.decoding.draws import uniforms
from keras_seqconv.decoding.graphs import in_place, run_cached
from keras_seqconv.decoding.hypotheses import Hypotheses
from keras_seqconv.decoding.loops import whole_search
from keras_seqconv.decoding.next_tokens import NEVER
from keras_seqconv.decoding.options import BeamOptions, SampleOptions, SearchOptions
from keras_seqconv.decoding.tasks import (
    check_source,
    check_tensors,
    limits_of,
    of_sentences,
)
from keras_seqconv.ops.compilation import on_cpu
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_shape,
    plain,
    power_of_two_from,
)

_SMALLEST_WIDTH = 32  # of compiled programs
_MAY_BE_TENSORS = ("temperature", "top_k", "max_length")
_OF_MODELS = (
    "get_initial_state", "step", "pad_id", "start_id", "end_id", "unk_id",
    "target_vocabulary_size", "max_target_length",
)  # fmt: skip


def beam_search(
    model,
    source_ids=None,
    num_beams: int = 5,
    length_penalty: float = 1.0,
    max_length: int = 200,
    **options,
):
    """Finds the most probable targets by beam search.

    The search is that of `fairseq-generate`. Every step extends the best `num_beams`
    unfinished hypotheses of a sentence. A hypothesis ends if its end token is among the
    best `num_beams` candidates. A sentence is complete after `num_beams` ended
    hypotheses. Its result depends neither on padding nor on the other sentences.

    Args:
        model: an encoder-decoder or language model of `keras_seqconv.models`, an
            `Ensemble`, or a `StepFunction`.
        source_ids: integers (B, S), padded on the right. None for language models and
            a `StepFunction`.
        num_beams, length_penalty, max_length: see `BeamOptions`.
        **options: `prefix_ids`, `batch_size`, `jit_compile`: see
            `beam_search_hypotheses`; and all other options of `BeamOptions`:
            `num_hypotheses`, `min_length`, `max_length_ratio`, `no_repeat_ngram_size`,
            `num_groups`, `stopping` ...

    Returns:
        `ids` (B, N, L) int32 and `scores` (B, N) float32, best first: see `Hypotheses`.
        L is the largest possible length: `max_length + 1` if `max_length_ratio` is 0.

    Raises:
        ValueError: an option breaks its rule.
        TypeError: unknown option.

    Example: see `keras_seqconv.models.EncoderDecoder`.
    """
    options |= {"length_penalty": length_penalty, "max_length": max_length}
    return beam_search_hypotheses(model, source_ids, num_beams=num_beams, **options)[:2]


def beam_search_hypotheses(
    model,
    source_ids=None,
    *,
    prefix_ids=None,
    batch_size=None,
    max_batch_size: int = 64,
    jit_compile: bool | None = None,
    options: BeamOptions | None = None,
    **names,
) -> Hypotheses:
    """Runs `beam_search` and returns all details of its results.

    Args:
        model, source_ids: see `beam_search`.
        prefix_ids: integers (B, P), first tokens of the hypotheses, without the start
            token. After them, padding leaves the search free; an end token ends the
            best hypothesis, which is the only result.
        batch_size: sentences to generate with a language model, without `prefix_ids`.
        max_batch_size: sentences in computation at a time, which bounds the memory.
        jit_compile: True compiles the search with XLA, once for each of a few shapes to
            which B and S are padded; False runs a plain TensorFlow graph. None compiles
            on JAX and accelerators. No effect in a `tf.function`, of which the search
            is a part.
        options, **names: `BeamOptions`, or its options by name.

    Returns:
        `Hypotheses`: `ids`, `scores`, `positional_scores`, `lengths`, `attention`.
    """
    options = BeamOptions.of_call(options, names)
    tensors = _inputs(model, options, source_ids, prefix_ids, batch_size)
    return _searched(model, options, tensors, max_batch_size, jit_compile)


def greedy(model, source_ids=None, **options):
    """Takes the most probable token in every step.

    Args:
        model: see `beam_search`.
        source_ids: integers (B, S), or None for language models.
        **options: options of `beam_search` other than `num_beams`.

    Returns:
        `ids` (B, L) int32 and `scores` (B,) float32, as from `beam_search`.
    """
    ids, scores = beam_search(model, source_ids, num_beams=1, **options)
    return ids[:, 0], scores[:, 0]


def sample(model, source_ids=None, num_samples: int = 1, **options):
    """Draws targets from the model's distribution.

    Args:
        model, source_ids: see `beam_search`.
        num_samples: see `SampleOptions`.
        **options: `seed`, `prefix_ids`, `batch_size`, `jit_compile`: see
            `sample_hypotheses`; and all other options of `SampleOptions`:
            `temperature`, `top_k`, `top_p`, `max_length` ...

    Returns:
        `ids` (B, N, L) and `scores` (B, N), as from `beam_search`, sorted by score.
        Scores use the model's probabilities after the temperature, before `top_k`
        and `top_p`.

    Raises:
        ValueError: an option breaks its rule.
    """
    return sample_hypotheses(model, source_ids, num_samples=num_samples, **options)[:2]


def sample_hypotheses(
    model,
    source_ids=None,
    *,
    seed=None,
    prefix_ids=None,
    batch_size=None,
    max_batch_size: int = 64,
    jit_compile: bool | None = None,
    options: SampleOptions | None = None,
    **names,
) -> Hypotheses:
    """Runs `sample` and returns all details of its results.

    Args:
        model, source_ids, prefix_ids, batch_size, max_batch_size, jit_compile: see
            `beam_search_hypotheses`.
        seed: int for equal draws in every call, a `keras.random.SeedGenerator`, or None
            for Keras' own; an exported function needs one of the first two and tracks
            the generator's state. Or the random numbers, floats (B * N, L) uniform in
            [0, 1). Or, in eager calls, B pairs of integers: the draws of a sentence
            depend on its own pair alone.
        options, **names: `SampleOptions`, or its options by name. `temperature`,
            `top_k` and `max_length` may be scalar tensors, so that one graph serves all
            values (unchecked, with `max_length_ratio` 0 and without a limit of the
            model); `max_length` not under XLA and on JAX, which need constant shapes.

    Returns:
        `Hypotheses`: `ids`, `scores`, `positional_scores`, `lengths`, `attention`.
    """
    tensors = [name for name in _MAY_BE_TENSORS if ops.is_tensor(names.get(name))]
    of_call = {name: names.pop(name) for name in tensors}
    limit = {"max_length": 10**6} if "max_length" in of_call else {}  # the tensor's
    if options is None:
        names |= limit
    options = dataclasses.replace(SampleOptions.of_call(options, names), **limit)
    tensors = _inputs(model, options, source_ids, prefix_ids, batch_size) | of_call
    rows = of_sentences(tensors).shape[0]
    if isinstance(seed, np.ndarray) and seed.dtype.kind == "f":
        seed = ops.convert_to_tensor(seed, dtype="float32")
    seed = plain(seed)
    of_rows = isinstance(seed, list | tuple)
    if of_rows and [*map(np.shape, seed)] != [(2,)] * (rows or 0):
        raise ValueError(
            f"`seed` must hold a pair for each of {rows} sentences. "
            f"Received: seed={seed}"
        )
    limits, longest = limits_of(model, options, tensors)
    draws, length = options.num_samples, longest + 1
    if ops.is_tensor(seed):
        check_shape("seed", seed, (rows and rows * draws, None))
        sizes = seed.shape[1], length  # in a graph they may be unknown
        if all(isinstance(size, int) for size in sizes) and sizes[0] < length:
            raise ValueError(
                f"`seed` must have a column for each of {length} steps. "
                f"Received: seed.shape={tuple(seed.shape)}"
            )
        tensors["uniforms"] = seed
    # Else drawn outside of the cached graph: another seed needs no other graph.
    elif of_rows:
        # The steps first: a longer limit changes no draw.
        drawn = [uniforms(row_seed, (int(length), draws)).T for row_seed in seed]
        drawn = np.reshape(drawn, (-1, int(length)))
        tensors["uniforms"] = ops.convert_to_tensor(drawn, dtype="float32")
    else:
        shape = ops.shape(limits)[0] * draws, length
        tensors["uniforms"] = keras.random.uniform(shape, dtype="float32", seed=seed)
    return _searched(model, options, tensors, max_batch_size, jit_compile)


class TargetScores(NamedTuple):
    """Result of `score`.

    Attributes:
        scores: (B,) or (B, N) float32: sum of the positional scores over the length
            penalty; -inf for targets without a token.
        positional_scores: (B, T) or (B, N, T): log-probabilities, 0 at padding.
        lengths: (B,) or (B, N) int32: number of tokens, including the end token.
    """

    scores: object
    positional_scores: object
    lengths: object


def score(
    model,
    source_ids,
    target_ids,
    length_penalty: float = 1.0,
    *,
    length_penalty_kind: str = "power",
    normalize: bool = True,
) -> TargetScores:
    """Scores given targets with a model, in one pass.

    Args:
        model: see `beam_search`.
        source_ids: integers (B, S), or None for language models.
        target_ids: integers (B, T), or (B, N, T) for several targets of a sentence, as
            returned by `beam_search`: without start token, with the end token, then
            padding.
        length_penalty, length_penalty_kind, normalize: see `SearchOptions`.

    Returns:
        `TargetScores`: `scores`, `positional_scores`, `lengths`.

    Raises:
        ValueError: an argument breaks its rule.
    """
    options = SearchOptions(
        length_penalty=length_penalty,
        length_penalty_kind=length_penalty_kind,
        normalize=normalize,
    )
    targets = ops.convert_to_tensor(target_ids, dtype="int32")
    if len(targets.shape) not in (2, 3):
        raise ValueError(
            "`target_ids` must have shape (B, T) or (B, N, T). "
            f"Received: target_ids.shape={tuple(targets.shape)}"
        )
    _check_model(model, (*_OF_MODELS, "log_prob"))
    check_source(model, source_ids)
    tensors = {"target_ids": targets, **_ids(source_ids=source_ids)}
    check_tensors(model, tensors, in_place(tensors))
    return run_cached(_score, model, options, tensors)


# Inputs


def _ids(**inputs) -> dict:
    """The ids that are given, as tensors."""
    return {
        name: ops.convert_to_tensor(value, dtype="int32")
        for name, value in inputs.items()
        if value is not None
    }


def _inputs(model, options, source_ids, prefix_ids, batch_size) -> dict:
    """The tensors of a search by name; ValueError where arguments do not fit."""
    _check_model(model)
    check_source(model, source_ids)
    options.check_model(model, source_ids is not None)
    rows = getattr(model, "state_rows", None)  # of a `StepFunction`
    tensors = _ids(source_ids=source_ids, prefix_ids=prefix_ids, state=rows)
    if batch_size is not None:
        if tensors:
            raise ValueError(
                "`batch_size` is for language models without `prefix_ids`. "
                f"Received: batch_size={batch_size} and {', '.join(tensors)}"
            )
        if not ops.is_tensor(batch_size):
            check_integer("batch_size", batch_size, 0)
        # As a tensor, because one graph serves all sizes.
        tensors["rows"] = ops.zeros((batch_size, 0), "int32")
    check_tensors(model, tensors, in_place(tensors))
    return tensors


def _check_model(model, members=_OF_MODELS):
    """ValueError for an object that has not all of the members."""
    for member in getattr(model, "models", [model]):
        missing = [name for name in members if not hasattr(member, name)]
        if missing:
            raise ValueError(
                f"`model` must have {', '.join(members)}. `StepFunction` gives those "
                "of a search to a function; `keras.models.clone_model` leaves them out:"
                " `type(model).from_config(model.get_config())` has them. "
                f"Received: model={member!r}, without {', '.join(missing)}"
            )


def _searched(model, options, tensors, size, jit_compile) -> Hypotheses:
    check_integer("max_batch_size", size, 1)
    check_choice("jit_compile", jit_compile, (None, True, False))
    compiled = not on_cpu() if jit_compile is None else jit_compile
    compiled = compiled or keras.backend.backend() == "jax"
    if in_place(tensors) or "state" in tensors:
        return whole_search(model, options, tensors)
    count = of_sentences(tensors).shape[0]
    parts = []
    for start in range(0, max(count, 1), size):
        some = dict(tensors)
        for name, value in tensors.items():
            if len(value.shape) and count > size:
                each = value.shape[0] // count  # rows of a sentence
                some[name] = value[start * each : (start + size) * each]
        search = _compiled if compiled and count else run_cached
        parts.append(search(whole_search, model, options, some))
    return Hypotheses(
        *(
            part[0] if len(part) == 1 or part[0] is None else ops.concatenate(part)
            for part in zip(*parts, strict=True)
        )
    )


def _compiled(function, model, options, tensors) -> Hypotheses:
    """The search as a program, of which there are few: for sizes of powers of two.

    The first sentence is repeated, and padding does not change a result.
    """
    limits, longest = limits_of(model, options, tensors)
    count = limits.shape[0]
    more = power_of_two_from(count) - count
    padded = {}
    for name, value in tensors.items():
        if len(value.shape):
            each, width = value.shape[0] // count, value.shape[1]
            wide = power_of_two_from(max(width, _SMALLEST_WIDTH)) if width else 0
            if name == "source_ids":
                limit = getattr(model, "max_source_length", None) or wide
                wide = max(width, min(wide, limit))
            first = ops.repeat(value[:each], more, axis=0)
            value = ops.concatenate([value, first])
            fill = model.pad_id if name.endswith("_ids") else 0
            value = ops.pad(value, [(0, 0), (0, wide - width)], constant_values=fill)
        padded[name] = value
    hypotheses = run_cached(function, model, options, padded, jit_compile=True)
    width = tensors.get("source_ids", limits[:, None]).shape[1]
    cut = slice(count), slice(None), slice(int(longest) + 1), slice(width)
    return hypotheses._make(
        None if value is None else value[cut[: len(value.shape)]]
        for value in hypotheses
    )


def _score(model, options: SearchOptions, tensors) -> TargetScores:
    targets = tensors["target_ids"]
    shape = ops.shape(targets)
    flat = ops.reshape(targets, (-1, shape[-1])) if len(shape) == 3 else targets
    start = ops.full_like(flat[:, :1], model.start_id)
    inputs = {"target_ids": ops.concatenate([start, flat[:, :-1]], axis=1)}
    if "source_ids" in tensors:
        source = tensors["source_ids"]
        if len(shape) == 3:
            source = ops.repeat(source, shape[1], axis=0)
        inputs["source_ids"] = source
    log_probs = ops.cast(model.log_prob(model(inputs), flat), "float32")
    real = flat != model.pad_id
    positional = ops.where(real, log_probs, 0.0)
    lengths = ops.sum(ops.cast(real, "int32"), axis=-1)
    sums = ops.sum(positional, axis=-1)
    scores = sums / options.length_divisor(ops.maximum(lengths, 1))
    scores = ops.where(lengths > 0, scores, NEVER)
    return TargetScores(
        ops.reshape(scores, shape[:-1]),
        ops.reshape(positional, shape),
        ops.reshape(lengths, shape[:-1]),
    )
