"""A preset's recipe with the user's changes, and what is made of it."""

import collections
import copy
import dataclasses
import json
import math
import random
import re
import types
from collections.abc import Iterator

import keras

from keras_seqconv import callbacks, losses, optimizers, schedules
from keras_seqconv.model_directory import tokenizer_fingerprint
from keras_seqconv.models import from_preset
from keras_seqconv.presets import PRESETS
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translator import load

# What an optimizer or schedule has that is not the preset's, beside the learning rate.
_OPTIMIZERS = {
    "adam": {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-8, "weight_decay": 0.0},
    "nag": {"momentum": 0.99, "weight_decay": 0.0},
}
_SCHEDULES = {
    "inverse_square_root": {},
    "cosine": {"period": None, "floor": 1e-7, "period_growth": 1.0, "shrink": 1.0},
    "fixed": {"force_anneal": None, "shrink": 0.1},
    "plateau": {"shrink": 0.1, "patience": 0},
}
_EVERY_SCHEDULE = ("learning_rate", "warmup_steps", "warmup_start")
# What language models have nothing of.
_OF_PAIRS = (
    "joint_vocabulary", "min_length", "max_length", "max_ratio", "truncate_source",
    "validation_bleu",
)  # fmt: skip
# Of these a recipe needs one, or training would have no end.
_ENDS = ("max_updates", "max_epochs", "stop_learning_rate")


@dataclasses.dataclass
class Recipe:
    """How a model is trained, decoded and scored, as `keras_seqconv.presets` has it."""

    optimizer: dict
    schedule: dict
    global_clipnorm: float | None
    label_smoothing: dict
    tokens_per_batch: int
    gradient_accumulation_steps: int
    num_replicas: int
    max_updates: int | None
    max_epochs: int | None
    stop_learning_rate: float | None
    precision: str
    averaging: dict
    search: dict | None
    blocks: dict | None
    scoring: str
    data: str
    updates_of_original: int | None
    source: str
    sources: dict
    notes: list

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict) -> "Recipe":
        """ValueError for what this version does not know; its None means nothing."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name, value in values.items():
            if name not in known and value is not None:
                raise ValueError(
                    f"`{name}` is not in recipes of this version. Received: {value!r}"
                )
        return cls(**{name: values[name] for name in known})


def resolve_recipe(options: TrainingOptions, devices: int = 1) -> Recipe:
    """The preset's recipe with what the options say instead.

    Args:
        options: of the run.
        devices: that training will use. Where the options do not say how many batches
            of a device an update has, batches become fewer and then smaller with their
            number: an update keeps its tokens.

    Raises:
        ValueError: an option that the chosen optimizer, schedule or kind of model does
            not have.
    """
    # Through JSON, as it is going to be stored: tuples become lists.
    preset = json.loads(json.dumps(PRESETS[options.preset].recipe))
    recipe, given = Recipe.from_json(preset), options.for_recipe()
    _check_kind(options, recipe, given)
    recipe.optimizer = _of_kind(recipe.optimizer, options.optimizer, _OPTIMIZERS)
    recipe.schedule = _of_kind(recipe.schedule, options.schedule, _SCHEDULES)
    batches = recipe.gradient_accumulation_steps * recipe.num_replicas
    recipe.num_replicas = devices
    for name, (part, key, value) in given.items():
        if not part:
            setattr(recipe, key, value)
            continue
        settings = getattr(recipe, part)
        if key not in settings:
            raise ValueError(
                f"`{name}` must not be given with `{part}` {settings['name']!r}, which "
                f"has only {sorted(set(settings) - {'name'})}. "
                f"Received: {name}={value!r}"
            )
        settings[key] = value
    if "gradient_accumulation_steps" not in given:
        # The same tokens in an update: fewer batches first, then smaller ones.
        recipe.gradient_accumulation_steps = steps = math.ceil(batches / devices)
        tokens = recipe.tokens_per_batch * batches
        recipe.tokens_per_batch = math.ceil(tokens / (steps * devices))
    stops = options.early_stopping is not None and options.average_kind is None
    if stops and recipe.averaging["kind"] == "last_epochs":  # these are no better
        recipe.averaging = {"kind": "best", "count": options.average or 1}
    if recipe.schedule["name"] == "cosine" and recipe.schedule["period"] is None:
        if recipe.max_updates is None:
            raise ValueError(
                "`period` or `max_updates` must be given with `schedule` 'cosine'. "
                "Received: None of them"
            )
        # The rest of training after the warm-up, as fairseq has it.
        rest = recipe.max_updates - recipe.schedule["warmup_steps"]
        recipe.schedule["period"] = max(1, rest)
    if (blocks := recipe.blocks) is not None and "context_window" not in given:
        # Half of a block at most, and nothing where each line is by itself.
        window = min(blocks["context_window"] or 0, blocks["tokens_per_sample"] // 2)
        blocks["context_window"] = window if blocks["break_mode"] == "none" else 0
    if options.early_stopping is None and not any(getattr(recipe, n) for n in _ENDS):
        raise ValueError(
            f"One of {', '.join(f'`{name}`' for name in _ENDS)} and `early_stopping` "
            f"must be given: the recipe of {options.preset} names no end. Received: "
            "None of them"
        )
    return recipe


def _check_kind(options: TrainingOptions, recipe: Recipe, given: dict) -> None:
    """ValueError for what only the other kind of models has."""
    parts = {name: part for name, (part, _, _) in given.items() if part}
    wrong = [name for name, part in parts.items() if getattr(recipe, part) is None]
    if recipe.search is None:
        fields = type(options).model_fields
        wrong += [n for n in _OF_PAIRS if getattr(options, n) != fields[n].default]
    if wrong:
        kind = "a translation" if recipe.search is None else "a language"
        raise ValueError(
            f"`{wrong[0]}` must not be given, as {options.preset} is not {kind} model. "
            f"Received: {wrong[0]}={getattr(options, wrong[0])!r}"
        )


def _of_kind(part: dict, kind: str | None, kinds: dict) -> dict:
    """The recipe's optimizer or schedule, or one of another kind."""
    if kind in (None, part["name"]):
        return part
    common = {name: part[name] for name in _EVERY_SCHEDULE if name in part}
    return {"name": kind, **common, **copy.deepcopy(kinds[kind])}


def make_model(
    options: TrainingOptions, precision: str, source_tokenizer, target_tokenizer
) -> keras.Model:
    """The preset's model with fresh weights, with the changes of the options."""
    size = target_tokenizer.vocabulary_size
    arguments = {"seed": options.seed, "vocabulary_size": size}
    if source_tokenizer is not None:
        arguments["target_vocabulary_size"] = arguments.pop("vocabulary_size")
        arguments["source_vocabulary_size"] = source_tokenizer.vocabulary_size
    for name in ("dropout", "attention_dropout", "weight_dropout"):
        if getattr(options, name) is not None:
            arguments[name] = getattr(options, name)
    policy, state = keras.config.dtype_policy(), random.getstate()
    keras.config.set_dtype_policy(precision)
    random.seed(options.seed)  # from which Keras draws the seeds of initializers
    try:
        return from_preset(options.preset, **{**arguments, **options.architecture})
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(state)


def check_architecture(options: TrainingOptions, precision: str) -> None:
    """Makes a model, if only for its errors to come before the text is read."""
    if not options.architecture:
        return
    preset = PRESETS[options.preset]
    sizes = [size for name, size in preset.parameters.items() if name != "count"]
    size = options.vocabulary_size or max(sizes, default=1 << 15)
    tokenizer = types.SimpleNamespace(vocabulary_size=size)
    source = None if preset.is_language_model else tokenizer
    try:
        make_model(options, precision, source, tokenizer)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`architecture` must hold arguments that {preset.model} takes. {error}"
        ) from error


def warm_start(model, folder: str, tokenizers) -> str:
    """Gives a model the weights of another one, by name and shape; says how many.

    Args:
        model: to be trained.
        folder: a model directory or a run.
        tokenizers: of the model; ids mean something only if they are the same.

    Raises:
        ValueError: the tokenizers differ, or no weight has its like.
    """
    given = load(folder)
    theirs = [tokenizer_fingerprint(one) for one in given.tokenizers.values()]
    ours = [tokenizer_fingerprint(one) for one in tokenizers if one is not None]
    if ours != theirs:
        raise ValueError(
            "`initialize_from` must have the tokenizers of the run, or its ids mean "
            "other words: leave out `tokenizer`, or train another model. "
            f"Received: {folder}"
        )
    known, fresh = dict(_weights_by_name(given.model)), []
    weights = list(_weights_by_name(model))
    for key, variable in weights:
        like = known.get(key)
        if like is not None and like.shape == variable.shape:
            variable.assign(like)
        else:
            fresh.append(key[0])
    if len(fresh) == len(weights):
        raise ValueError(
            "`initialize_from` must have weights of the same names and shapes. "
            f"Received: {folder} ({type(given.model).__name__})"
        )
    news = f"; new are {', '.join(fresh[:3])}{', ...' * (len(fresh) > 3)}"
    taken = len(weights) - len(fresh)
    return f"{taken} of {len(weights)} arrays from {folder}{news * bool(fresh)}"


def _weights_by_name(model) -> Iterator[tuple]:
    """((name without Keras' counters, which of that name), variable)."""
    seen = collections.Counter()
    for variable in model.trainable_variables:
        name = re.sub(r"_\d+(?=/)", "", variable.path)
        yield (name, seen[name]), variable
        seen[name] += 1


def make_optimizer(recipe: Recipe) -> keras.optimizers.Optimizer:
    """The optimizer that sees token sums and counts updates."""
    settings = dict(recipe.optimizer)
    cls = {"adam": optimizers.AdamW, "nag": optimizers.NAG}[settings.pop("name")]
    schedule = dict(recipe.schedule)
    kind = schedule.pop("name")
    rate = schedule["learning_rate"]  # of the first update, where a callback changes it
    if kind == "inverse_square_root":
        rate = schedules.InverseSquareRoot(**schedule)
    elif kind == "cosine":
        rate = schedules.WarmupCosine(**schedule)
    optimizer = cls(rate, global_clipnorm=recipe.global_clipnorm, **settings)
    if recipe.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizers.TokenNormalized(
        optimizer, gradient_accumulation_steps=recipe.gradient_accumulation_steps
    )


def schedule_callbacks(recipe: Recipe, monitor: str, mode: str) -> list:
    """What changes the learning rate or ends training."""
    settings = dict(recipe.schedule)
    kind, made = settings.pop("name"), []
    if kind == "fixed":
        made.append(callbacks.FixedSchedule(**settings))
    elif kind == "plateau":
        made.append(callbacks.ReduceOnPlateau(**settings, monitor=monitor, mode=mode))
    if recipe.stop_learning_rate is not None:
        made.append(callbacks.StopAtLearningRate(recipe.stop_learning_rate))
    return made


def make_loss(recipe: Recipe, model):
    """Label smoothing, or None for the model's own -log p."""
    rate, kind = recipe.label_smoothing["rate"], recipe.label_smoothing["kind"]
    if rate == 0:
        return None
    if model.get_config().get("adaptive_softmax") is not None:
        raise ValueError(
            "`label_smoothing` must be 0 with an adaptive softmax, which knows no "
            f"probabilities of all words. Received: {rate}"
        )
    return losses.LabelSmoothedCrossentropy(rate, kind, pad_id=model.pad_id)
