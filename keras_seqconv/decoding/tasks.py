"""Arguments of a search from a model or several, options and the tensors of a call.

Tensors by name: `source_ids` (B, S), `prefix_ids` (B, P), `rows` or `state` (B, 0);
`uniforms` (B * N, L) of sampling; and scalars `temperature`, `top_k`, `max_length`
where a call gives tensors for these options.
"""

import functools

import numpy as np

from keras_seqconv.decoding import array_ops as ops
from keras_seqconv.decoding.ensemble import Ensemble
from keras_seqconv.decoding.next_tokens import Constraints
from keras_seqconv.decoding.options import BeamOptions, SampleOptions
from keras_seqconv.decoding.step import SearchTask
from keras_seqconv.decoding.strategies import (
    BeamStrategy,
    DiverseBeamStrategy,
    SamplingStrategy,
)


def limits_of(model, options, tensors: dict) -> tuple:
    """Limits (B,) of the length, and a limit of them all."""
    ids = of_sentences(tensors)
    width = ops.shape(ids)[1]
    lengths = ops.sum(ops.cast(ids != model.pad_id, "int32"), axis=1)
    # AutoGraph knows no assignment in an expression.
    max_length = tensors.get("max_length")
    if max_length is not None:
        return ops.zeros_like(lengths) + max_length, max_length
    return options.length_limits(lengths, width, model.max_target_length)


def task_of(model, options: BeamOptions | SampleOptions, tensors: dict) -> SearchTask:
    """The task of a call; the tensors of its rules are in `rules_of`."""
    if isinstance(options, SampleOptions):
        num_hypotheses, top_k = options.num_samples, tensors.get("top_k", options.top_k)
        strategy = SamplingStrategy(num_hypotheses, top_k, options.top_p)
    else:
        num_hypotheses = options.num_results
        beams, optimal = options.num_beams, options.stopping == "optimal"
        strategy = BeamStrategy(beams, optimal)
        if options.num_groups > 1:
            strategy = DiverseBeamStrategy(
                beams, options.num_groups, options.diversity_strength, optimal
            )
    step, temperature = model.step, tensors.get("temperature", options.temperature)
    if isinstance(model, Ensemble):
        # The temperature belongs before the mean of the models.
        step = functools.partial(model.step, temperature=temperature)
    elif "temperature" in tensors or temperature != 1:

        def step(ids, state):
            logits, state = model.step(ids, state)
            return ops.float32_logits(logits) / temperature, state

    return SearchTask(step, strategy, Constraints(model, options), num_hypotheses)


def rules_of(task: SearchTask, tensors: dict, limits) -> dict:
    """The tensors of `Constraints` by name, of a call with the limits (B,)."""
    num_beams = task.strategy.num_beams
    rules = {"limits": ops.repeat(limits, num_beams, axis=0)}
    if "uniforms" in tensors:
        rules["uniforms"] = tensors["uniforms"]
    if "prefix_ids" in tensors:
        pad_id = task.constraints.model.pad_id
        prefix = ops.pad(
            tensors["prefix_ids"], [(0, 0), (0, 1)], constant_values=pad_id
        )
        rules["prefix"] = ops.repeat(prefix, num_beams, axis=0)
        if task.strategy.reorders:
            beams = np.arange(num_beams, dtype="int32")
            is_first = ops.zeros_like(limits)[:, None] == beams
            rules["first_beam"] = ops.reshape(is_first, (-1,))
    return rules


def of_sentences(tensors: dict):
    """The first tensor with a row for each sentence."""
    names = ("source_ids", "prefix_ids", "rows", "state")
    return next(tensors[name] for name in names if name in tensors)


def check_source(model, source_ids) -> None:
    """ValueError where a source is missing, or is not read."""
    wanted = getattr(model, "has_source", None)
    if wanted not in (None, source_ids is not None):
        rule = "be given for a translation" if wanted else "be None for a language"
        received = None if source_ids is None else type(source_ids).__name__
        raise ValueError(
            f"`source_ids` must {rule} model. "
            f"Received: source_ids={received}, model={type(model).__name__}"
        )


def check_tensors(model, tensors: dict, traced: bool = False) -> None:
    """ValueError unless all have as many rows, and ids are in the vocabulary.

    Args:
        model: object with the sizes of the vocabularies.
        tensors: by name, see above, and `target_ids`.
        traced: whether they have no values yet, and rows no number.
    """
    if not tensors:
        raise ValueError(
            "One of `source_ids`, `prefix_ids` and `batch_size` must be given. "
            "Received: none of them"
        )
    for name, value in tensors.items():
        if len(value.shape) != 2 and name != "target_ids":
            raise ValueError(
                f"`{name}` must have two axes, sentences and time. "
                f"Received: {name}.shape={tuple(value.shape)}"
            )
    rows = {name: value.shape[0] for name, value in tensors.items()}
    if len(set(rows.values()) - {None}) > 1:
        raise ValueError(
            f"{' and '.join(f'`{name}`' for name in rows)} must have as many rows. "
            f"Received: {' and '.join(map(str, rows.values()))}"
        )
    for name in () if traced else tensors:
        side, _, kind = name.partition("_")
        side = "source" if side == "source" else "target"
        size = getattr(model, f"{side}_vocabulary_size", None)
        if kind == "ids" and size is not None:
            # XLA and JAX would read other ids as the nearest one.
            ids = np.asarray(tensors[name])
            wrong = ids[(ids < 0) | (ids >= size)]
            if wrong.size:
                raise ValueError(
                    f"`{name}` must be at least 0 and less than the {side} "
                    f"vocabulary's size {size}. Received: {wrong[0]}"
                )
