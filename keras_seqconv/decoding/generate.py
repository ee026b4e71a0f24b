"""Decoding with a model, or several: beam search, greedy search, sampling, scoring.

A model is any object with the attributes `pad_id`, `start_id`, `end_id`, `unk_id`,
`target_vocabulary_size`, `max_target_length` and the methods `get_initial_state` and
`step` of the models of this package; `score` calls it, and its `log_prob`. Where states
may grow, `max_length` is None.
"""

import dataclasses
import functools
from typing import NamedTuple

import keras
from keras import ops

from keras_seqconv.decoding.graphs import run_cached
from keras_seqconv.decoding.next_tokens import NEVER, Constraints
from keras_seqconv.decoding.options import BeamOptions, SampleOptions, SearchOptions
from keras_seqconv.decoding.search import Hypotheses, may_resize, search
from keras_seqconv.decoding.strategies import (
    BeamStrategy,
    DiverseBeamStrategy,
    SamplingStrategy,
)

_MAY_BE_TENSORS = ("temperature", "top_k", "max_length")
_COMMON = (
    "pad_id", "start_id", "end_id", "unk_id", "target_vocabulary_size", "has_source",
)  # fmt: skip


class Ensemble:
    """Models whose probabilities are averaged: log p = log(mean over models of p).

    As in fairseq. The models may differ in architecture, not in their vocabulary. An
    ensemble has the methods of a model that a search needs, so it takes the place of a
    model in every function of `keras_seqconv.decoding`. Keep it and use it again: the
    compiled searches belong to it.

    Args:
        models: list of models of `keras_seqconv.models`, or of other objects with the
            same methods.

    Raises:
        ValueError: for no models, or when their vocabularies or special tokens differ.
    """

    def __init__(self, models):
        self.models = list(models)
        if not self.models:
            raise ValueError("`models` must not be empty. Received: models=[]")
        for name in _COMMON:
            values = [getattr(model, name, None) for model in self.models]
            if len(set(values)) > 1:
                raise ValueError(
                    f"All of `models` must have the same `{name}`. Received: {values}"
                )
            setattr(self, name, values[0])
        limits = {model.max_target_length for model in self.models} - {None}
        self.max_target_length = min(limits, default=None)

    @property
    def variables(self) -> list:
        """The variables of all models, each once."""
        of_all = (v for model in self.models for v in getattr(model, "variables", []))
        return list({id(variable): variable for variable in of_all}.values())

    def get_initial_state(self, *args, **kwargs) -> dict:
        """The states of all models; the arguments are those of the models' method."""
        return _joined([m.get_initial_state(*args, **kwargs) for m in self.models])

    def step(self, ids, state, temperature: float = 1.0):
        """-> log-probabilities (rows, V) float32, new state.

        Each model's logits are divided by the temperature, before the mean.
        """
        log_probs, after = [], []
        states = state["common"], state["shared"], state["beams"]["models"]
        for model, common, shared, beams in zip(self.models, *states, strict=True):
            own = {"common": common, "shared": shared, "beams": beams}
            logits, own = model.step(ids, own)
            logits = ops.cast(logits, "float32") / temperature
            log_probs.append(ops.log_softmax(logits, axis=-1))
            after.append(own)
        return _log_of_mean(log_probs), _joined(after)

    def __call__(self, inputs) -> list:
        """The outputs of all models."""
        return [model(inputs) for model in self.models]

    def log_prob(self, outputs: list, ids):
        """Log-probabilities (B, T) of ids (B, T), given what a call has returned."""
        return _log_of_mean(
            [
                ops.cast(model.log_prob(output, ids), "float32")
                for model, output in zip(self.models, outputs, strict=True)
            ]
        )


def _joined(states: list) -> dict:
    """A state of the models' states, with the mean of their attention, if any."""
    beams = {"models": [state["beams"] for state in states]}
    if "attention" in states[0]["beams"]:
        attention = [ops.cast(own["attention"], "float32") for own in beams["models"]]
        beams["attention"] = sum(attention) / len(attention)
    return {
        "common": [state.get("common", {}) for state in states],
        "shared": [state["shared"] for state in states],
        "beams": beams,
    }


def _log_of_mean(log_probs: list):
    """log(mean(exp(log_probs))) of a list of tensors."""
    total = functools.reduce(ops.logaddexp, log_probs)
    return total - ops.log(ops.cast(len(log_probs), total.dtype))


def beam_search(
    model,
    source_ids=None,
    num_beams: int = 5,
    length_penalty: float = 1.0,
    max_length: int = 200,
    **options,
):
    """The most likely targets that a beam search finds.

    The search of fairseq, option by option (`fairseq-generate`): in every step the
    best `num_beams` unfinished hypotheses of a sentence go on; one ends where its end
    token is among the best `num_beams` candidates; a sentence is done when as many
    hypotheses have ended. The result for a sentence depends neither on its padding nor
    on the other sentences.

    Args:
        model: an encoder-decoder or language model of `keras_seqconv.models`, or an
            `Ensemble`.
        source_ids: integers (B, S), padded on the right. None for language models.
        num_beams, length_penalty, max_length: see `BeamOptions`.
        **options: `prefix_ids`, `batch_size`, `jit_compile`: see
            `beam_search_hypotheses`; and all others of `BeamOptions`:
            `num_hypotheses`, `min_length`, `max_length_ratio`, `no_repeat_ngram_size`,
            `num_groups`, `stopping` ...

    Returns:
        `ids` (B, N, L) int32 and `scores` (B, N) float32, best first: see `Hypotheses`.
        L is the largest possible length: `max_length + 1` if `max_length_ratio` is 0.

    Raises:
        ValueError: for a wrong option, named with its rule.
        TypeError: for an unknown option.

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
    jit_compile: bool = False,
    **options,
) -> Hypotheses:
    """All that `beam_search` knows of its results.

    Args:
        model, source_ids: see `beam_search`.
        prefix_ids: integers (B, P), tokens that the hypotheses begin with, start token
            not included. Where it is padding the search is free; at an end token the
            best hypothesis ends, and is the only result.
        batch_size: sentences to make with a language model, without `prefix_ids`.
        jit_compile: compile with XLA, anew for each shape. In a `tf.function`, where
            the search is a part of that function, this has no effect.
        **options: those of `BeamOptions`.

    Returns:
        `Hypotheses`: `ids`, `scores`, `positional_scores`, `lengths`, `attention`.
    """
    options = BeamOptions(**options)
    tensors = _inputs(model, options, source_ids, prefix_ids, batch_size)
    return run_cached(_search, model, options, tensors, jit_compile)


def greedy(model, source_ids=None, **options):
    """The target that takes the most likely token in every step.

    Args:
        model: see `beam_search`.
        source_ids: integers (B, S), or None for language models.
        **options: those of `beam_search` but `num_beams`.

    Returns:
        `ids` (B, L) int32 and `scores` (B,) float32, as from `beam_search`.
    """
    ids, scores = beam_search(model, source_ids, num_beams=1, **options)
    return ids[:, 0], scores[:, 0]


def sample(
    model,
    source_ids=None,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    **options,
):
    """Targets drawn from the model's distribution.

    Args:
        model, source_ids: see `beam_search`.
        num_samples, temperature, top_k, top_p: see `SampleOptions`.
        **options: `seed`, `prefix_ids`, `batch_size`, `jit_compile`: see
            `sample_hypotheses`; and all others of `SampleOptions`: `min_length`,
            `max_length` ...

    Returns:
        `ids` (B, N, L) and `scores` (B, N), as from `beam_search`, sorted by score.
        Scores are made of the model's probabilities (after the temperature), not of
        those that `top_k` and `top_p` leave.

    Raises:
        ValueError: for a wrong option, named with its rule.
    """
    options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return sample_hypotheses(model, source_ids, num_samples=num_samples, **options)[:2]


def sample_hypotheses(
    model,
    source_ids=None,
    *,
    seed=None,
    prefix_ids=None,
    batch_size=None,
    jit_compile: bool = False,
    **options,
) -> Hypotheses:
    """All that `sample` knows of its results.

    Args:
        model, source_ids, prefix_ids, batch_size, jit_compile: see
            `beam_search_hypotheses`.
        seed: int for the same draws in every call, a `keras.random.SeedGenerator`, or
            None for Keras' own. A function that is to be exported needs one of the
            first two, and must track the generator's state; or the numbers to draw by,
            a tensor (B * N, L) uniform in [0, 1).
        **options: those of `SampleOptions`. Of these `temperature`, `top_k` and
            `max_length` may be scalar tensors, so that one graph serves all values
            (unchecked, with `max_length_ratio` 0 and without a limit of the model);
            `max_length` not under XLA and on JAX, which want constant shapes.

    Returns:
        `Hypotheses`: `ids`, `scores`, `positional_scores`, `lengths`, `attention`.
    """
    names = [name for name in _MAY_BE_TENSORS if ops.is_tensor(options.get(name))]
    of_call = {name: options.pop(name) for name in names}
    options = SampleOptions(**options)
    tensors = _inputs(model, options, source_ids, prefix_ids, batch_size) | of_call
    if ops.is_tensor(seed):
        tensors["uniforms"] = seed
    else:
        limits, longest = _limits(model, options, tensors)
        # Drawn outside of the cached graph: another seed needs no other graph.
        tensors["uniforms"] = keras.random.uniform(
            (ops.shape(limits)[0] * options.num_samples, longest + 1), seed=seed
        )
    return run_cached(_search, model, options, tensors, jit_compile)


class TargetScores(NamedTuple):
    """What `score` returns.

    Attributes:
        scores: (B,) or (B, N) float32: sum of the positional scores over the length
            penalty; -inf for targets without a token.
        positional_scores: (B, T) or (B, N, T): log-probabilities, 0 at padding.
        lengths: (B,) or (B, N) int32: tokens, the end token counted.
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
    jit_compile: bool = False,
) -> TargetScores:
    """Scores that a model gives to targets, in one pass.

    Args:
        model: see `beam_search`.
        source_ids: integers (B, S), or None for language models.
        target_ids: integers (B, T), or (B, N, T) for several targets of a sentence, as
            returned by `beam_search`: without start token, with the end token, then
            padding.
        length_penalty, length_penalty_kind, normalize: see `SearchOptions`.
        jit_compile: see `beam_search_hypotheses`.

    Returns:
        `TargetScores`: `scores`, `positional_scores`, `lengths`.

    Raises:
        ValueError: for a wrong argument, named with its rule.
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
    _check_source(model, source_ids)
    tensors = {"target_ids": targets, **_ids(source_ids=source_ids)}
    _check_rows(tensors)
    return run_cached(_score, model, options, tensors, jit_compile)


# Inputs


def _ids(**given) -> dict:
    """Those of the ids that are given, as tensors."""
    tensors = {
        name: ops.convert_to_tensor(value, dtype="int32")
        for name, value in given.items()
        if value is not None
    }
    for name, value in tensors.items():
        if len(value.shape) != 2:
            raise ValueError(
                f"`{name}` must have two axes, sentences and time. "
                f"Received: {name}.shape={tuple(value.shape)}"
            )
    return tensors


def _inputs(model, options, source_ids, prefix_ids, batch_size) -> dict:
    """The tensors of a search by name; ValueError where arguments do not fit."""
    _check_source(model, source_ids)
    options.check_model(model)
    tensors = _ids(source_ids=source_ids, prefix_ids=prefix_ids)
    for name in ("max_length_ratio", "return_attention"):
        if source_ids is None and getattr(options, name):
            raise ValueError(
                f"`{name}` needs `source_ids`. Received: source_ids=None, "
                f"{name}={getattr(options, name)}"
            )
    if batch_size is not None:
        if tensors:
            raise ValueError(
                "`batch_size` is for language models without `prefix_ids`. "
                f"Received: batch_size={batch_size} and {', '.join(tensors)}"
            )
        # As a tensor, because one graph serves all sizes.
        tensors["rows"] = ops.zeros((batch_size, 0), "int32")
    if not tensors:
        raise ValueError(
            "One of `source_ids`, `prefix_ids` and `batch_size` must be given. "
            "Received: none of them"
        )
    _check_rows(tensors)
    return tensors


def _check_source(model, source_ids):
    """ValueError where a source is missing, or is not read."""
    if not hasattr(model, "step"):
        raise ValueError(
            "`model` must have the methods `get_initial_state` and `step`. "
            "`keras.models.clone_model` leaves them out: "
            "`type(model).from_config(model.get_config())` has them. "
            f"Received: model={model!r}"
        )
    wanted = getattr(model, "has_source", None)
    if wanted not in (None, source_ids is not None):
        rule = "be given for a translation" if wanted else "be None for a language"
        raise ValueError(
            f"`source_ids` must {rule} model. Received: source_ids="
            + ("None" if source_ids is None else f"{type(source_ids).__name__}")
            + f", model={type(model).__name__}"
        )


def _check_rows(tensors):
    """ValueError unless all have as many rows, as far as these are known."""
    rows = {name: value.shape[0] for name, value in tensors.items()}
    if len(set(rows.values()) - {None}) > 1:
        raise ValueError(
            f"{' and '.join(f'`{name}`' for name in rows)} must have as many rows. "
            f"Received: {' and '.join(map(str, rows.values()))}"
        )


def _sentences(tensors):
    """Of the tensors the first that has a row for each sentence."""
    names = ("source_ids", "prefix_ids", "rows")
    return next(tensors[name] for name in names if name in tensors)


def _limits(model, options, tensors):
    """Limits (B,) of the length, and a limit of them all."""
    ids = _sentences(tensors)
    width = ops.shape(ids)[1]
    lengths = ops.sum(ops.cast(ids != model.pad_id, "int32"), axis=1)
    if options.max_length_rule == "batch":
        lengths = ops.zeros_like(lengths) + width
    if (most := tensors.get("max_length")) is not None:
        return ops.zeros_like(lengths) + most, most
    return options.length_limits(lengths, width, model.max_target_length)


# What runs as one graph. Arguments: model, hashable options, tensors by name.


def _search(model, options: BeamOptions | SampleOptions, tensors) -> Hypotheses:
    if isinstance(options, SampleOptions):
        num_hypotheses = options.num_samples
        strategy = SamplingStrategy(
            num_hypotheses,
            tensors["uniforms"],
            tensors.get("top_k", options.top_k),
            options.top_p,
        )
    else:
        num_hypotheses, beams = options.num_hypotheses, options.num_beams
        optimal = options.stopping == "optimal"
        strategy = BeamStrategy(beams, optimal)
        if options.num_groups > 1:
            strategy = DiverseBeamStrategy(
                beams, options.num_groups, options.diversity_strength, optimal
            )
    num_beams = strategy.num_beams
    limits, longest = _limits(model, options, tensors)
    num_steps = longest + 1
    batch_size = ops.shape(_sentences(tensors))[0]
    of_state = {"num_beams": num_beams, "max_length": num_steps}
    if may_resize(batch_size):
        of_state["max_length"] = None
    if options.return_attention:
        of_state["return_attention"] = True
    state = model.get_initial_state(tensors.get("source_ids", batch_size), **of_state)
    step, temperature = model.step, tensors.get("temperature", options.temperature)
    if isinstance(model, Ensemble):
        # The temperature belongs before the mean of the models.
        step = functools.partial(model.step, temperature=temperature)
        options = dataclasses.replace(options, temperature=1.0)
    elif "temperature" in tensors:

        def step(ids, state):
            logits, state = model.step(ids, state)
            return ops.cast(logits, "float32") / temperature, state

    prefix, first_beam = tensors.get("prefix_ids"), None
    if prefix is not None:
        prefix = ops.pad(prefix, [(0, 0), (0, 1)], constant_values=model.pad_id)
        prefix = ops.repeat(prefix, num_beams, axis=0)
        if strategy.reorders:
            first_beam = ops.arange(ops.shape(prefix)[0]) % num_beams == 0
    limits = ops.repeat(limits, num_beams, axis=0)
    return search(
        step,
        state,
        strategy,
        Constraints(model, options, limits, prefix, first_beam),
        num_steps=num_steps,
        num_hypotheses=num_hypotheses,
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
