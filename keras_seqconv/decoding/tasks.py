"""Arguments of a search from a model or several, options and the tensors of a call.

Tensors by name: `source_ids` (B, S), `prefix_ids` (B, P), `rows` or `state` (B, 0);
`uniforms` (B * N, L) of sampling; and scalars `temperature`, `top_k`, `max_length`
where a call gives tensors for these options.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
from keras import ops

from keras_seqconv.decoding.hypotheses import Hypotheses
from keras_seqconv.decoding.next_tokens import Constraints
from keras_seqconv.decoding.options import BeamOptions, SampleOptions
from keras_seqconv.decoding.search import Task, may_resize, search
from keras_seqconv.decoding.strategies import (
    BeamStrategy,
    DiverseBeamStrategy,
    SamplingStrategy,
)
from keras_seqconv.support.arguments import check_integer, known_width

_COMMON = (
    "pad_id", "start_id", "end_id", "unk_id", "target_vocabulary_size", "has_source",
)  # fmt: skip


class StepFunction:
    """A function and its first state, in place of a model in one search.

    The search is a part of the `tf.function` or `jax.jit` that calls it. An eager call
    runs eagerly; on JAX it compiles the steps each time. `jit_compile`,
    `max_batch_size` and `unk_penalty` of a search have no effect.

    Args:
        step: `step(ids (rows, 1) int32, state) -> (logits (rows, V), state)`. Rows are
            the beams of all sentences, fewer when sentences have ended.
        state: the state before the first step: a nest of tensors with B rows, which
            the search repeats and gathers for beams, or of rank 0. The next states have
            the same shapes and dtypes.
        start_id: the first of the `ids`.
        end_id: token that ends a hypothesis.
        pad_id: token that fills up the results and is never chosen.

    Raises:
        ValueError: an id, the state or a result of `step` breaks its rule.

    Example: docs/step_functions.md.
    """

    has_source, max_target_length = False, None

    def __init__(self, step: Callable, state, *, start_id, end_id, pad_id):
        self.function = step
        self.state = keras.tree.map_structure(ops.convert_to_tensor, state)
        leaves = [leaf for leaf in keras.tree.flatten(self.state) if len(leaf.shape)]
        if not leaves or len({leaf.shape[0] for leaf in leaves} - {None}) > 1:
            raise ValueError(
                "`state` must hold tensors with one row for each sentence. "
                f"Received: state={_described(self.state)}"
            )
        count = ops.shape(leaves[0])[0]
        self.state_rows = ops.zeros((count, 0), "int32")
        self.start_id = check_integer("start_id", start_id, 0)
        # The size of the vocabulary is known from a first result.
        ids = ops.full((count, 1), start_id, dtype="int32")
        logits, _ = self.step(ids, {"beams": self.state})
        self.target_vocabulary_size = size = logits.shape[1]
        self.end_id = check_integer("end_id", end_id, 0, size - 1)
        self.pad_id = self.unk_id = check_integer("pad_id", pad_id, 0, size - 1)

    def get_initial_state(self, source, num_beams: int = 1, max_length=None) -> dict:
        """The state with `num_beams` rows for each of its own."""

        def repeated(leaf):
            return ops.repeat(leaf, num_beams, axis=0) if len(leaf.shape) else leaf

        beams = keras.tree.map_structure(repeated, self.state)
        return {"shared": {}, "beams": beams}

    def step(self, ids, state) -> tuple:
        """The step of the function; ValueError for a result of another shape."""
        returned, rows = self.function(ids, state["beams"]), ids.shape[0]
        logits, *_ = [*keras.tree.flatten(returned), None]
        size = known_width("logits", getattr(logits, "shape", ()))
        dtype = keras.backend.standardize_dtype(logits.dtype)
        wanted = f"{dtype} (rows, {size})", _described(state["beams"], rows)
        received = _described(returned, rows)
        if received != wanted:
            raise ValueError(
                f"`step` must return logits and the next state, {wanted}. "
                f"Received: {received}, for {rows} rows"
            )
        return logits, {**state, "beams": returned[1]}


def _described(state, rows=None):
    """Dtypes and shapes of a state, with a name for the number of rows."""

    def describe(leaf):
        if not hasattr(leaf, "shape"):
            return type(leaf).__name__
        first = ["rows" if size in (rows, None) else size for size in leaf.shape[:1]]
        shape = ", ".join(map(str, [*first, *leaf.shape[1:]]))
        return f"{keras.backend.standardize_dtype(leaf.dtype)} ({shape})"

    return keras.tree.map_structure(describe, state)


class Ensemble:
    """Averages the probabilities of models: log p = log(mean over models of p).

    As in fairseq. The models may differ in architecture, not in their vocabulary. An
    ensemble replaces a model in every function of `keras_seqconv.decoding`. Reuse an
    ensemble, because it caches its compiled searches.

    Args:
        models: list of models of `keras_seqconv.models`, or of objects with the same
            methods.

    Raises:
        ValueError: no models, or different vocabularies or special tokens.
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
        limits = {getattr(model, "max_target_length", None) for model in self.models}
        self.max_target_length = min(limits - {None}, default=None)

    @property
    def variables(self) -> list:
        """The variables of all models, each once."""
        of_all = (v for model in self.models for v in getattr(model, "variables", []))
        return list({id(variable): variable for variable in of_all}.values())

    def get_initial_state(self, *args, **kwargs) -> dict:
        """The states of all models; the arguments are those of the models' method."""
        return _joined([m.get_initial_state(*args, **kwargs) for m in self.models])

    def step(self, ids, state, temperature: float = 1.0):
        """Returns log-probabilities (rows, V) float32, and the next state.

        The temperature divides each model's logits before the mean.
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
        """Log-probabilities (B, T) of ids (B, T), given the outputs of a call."""
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


def source_embedders(model) -> list:
    """Source embedders of a model or of all of an ensemble; none of language models."""
    members = getattr(model, "models", [model])
    found = [getattr(member, "source_embedder", None) for member in members]
    return [embedder for embedder in found if embedder is not None]


# --- Tasks ---


def limits_of(model, options, tensors: dict, xp=ops) -> tuple:
    """Limits (B,) of the length, and a limit of them all.

    xp: `keras.ops`, or NumPy for arrays.
    """
    ids = of_sentences(tensors)
    width = xp.shape(ids)[1]
    lengths = xp.sum(xp.where(ids != model.pad_id, 1, 0), axis=1)
    most = tensors.get("max_length")  # AutoGraph knows no assignment in an expression
    if most is not None:
        return xp.zeros_like(lengths) + most, most
    return options.length_limits(lengths, width, model.max_target_length, xp)


def strategy_of(options: BeamOptions | SampleOptions, top_k=None):
    """The strategy; `top_k` is a tensor in the place of that of the options."""
    if isinstance(options, SampleOptions):
        top_k = options.top_k if top_k is None else top_k
        return SamplingStrategy(options.num_samples, top_k, options.top_p)
    beams, optimal = options.num_beams, options.stopping == "optimal"
    if options.num_groups > 1:
        return DiverseBeamStrategy(
            beams, options.num_groups, options.diversity_strength, optimal
        )
    return BeamStrategy(beams, optimal)


def task_of(model, options: BeamOptions | SampleOptions, tensors: dict) -> Task:
    """The task without the tensors of its rules, see `with_rules`."""
    strategy = strategy_of(options, tensors.get("top_k"))
    num_hypotheses = strategy.num_beams
    if isinstance(options, BeamOptions):
        num_hypotheses = options.num_hypotheses
    step, temperature = model.step, tensors.get("temperature", options.temperature)
    if isinstance(model, Ensemble):
        # The temperature belongs before the mean of the models.
        step = functools.partial(model.step, temperature=temperature)
        options = dataclasses.replace(options, temperature=1.0)
    elif "temperature" in tensors:

        def step(ids, state):
            logits, state = model.step(ids, state)
            return ops.cast(logits, "float32") / temperature, state

    return Task(step, strategy, Constraints(model, options, None), num_hypotheses)


def with_rules(task: Task, tensors: dict, limits) -> Task:
    """The task with limits (B,) and the other tensors of a call."""
    num_beams = task.strategy.num_beams
    prefix, first_beam = tensors.get("prefix_ids"), None
    if prefix is not None:
        pad_id = task.constraints.model.pad_id
        prefix = ops.pad(prefix, [(0, 0), (0, 1)], constant_values=pad_id)
        prefix = ops.repeat(prefix, num_beams, axis=0)
        if task.strategy.reorders:
            first_beam = ops.arange(ops.shape(prefix)[0]) % num_beams == 0
    constraints = task.constraints._replace(
        limits=ops.repeat(limits, num_beams, axis=0),
        prefix=prefix,
        first_beam=first_beam,
        uniforms=tensors.get("uniforms"),
    )
    return task._replace(constraints=constraints)


def initial_state(task: Task, tensors: dict, max_length) -> dict:
    """The state of the model before the first step; `max_length` as in the model."""
    model, options = task.constraints.model, task.constraints.options
    more = {"return_attention": True} if options.return_attention else {}
    source = tensors.get("source_ids", ops.shape(of_sentences(tensors))[0])
    return model.get_initial_state(
        source, num_beams=task.strategy.num_beams, max_length=max_length, **more
    )


def whole_search(model, options, tensors: dict) -> Hypotheses:
    """The search as a part of the graph that is being traced."""
    limits, longest = limits_of(model, options, tensors)
    num_steps = longest + 1
    task = with_rules(task_of(model, options, tensors), tensors, limits)
    resizes = may_resize(ops.shape(limits)[0])
    return search(
        task.step,
        initial_state(task, tensors, None if resizes else num_steps),
        task.strategy,
        task.constraints,
        num_steps=num_steps,
        num_hypotheses=task.num_hypotheses,
    )


def of_sentences(tensors: dict):
    """The first tensor with a row for each sentence."""
    names = ("source_ids", "prefix_ids", "rows", "state")
    return next(tensors[name] for name in names if name in tensors)
