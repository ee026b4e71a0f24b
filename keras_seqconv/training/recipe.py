"""A preset's recipe with the user's changes; model, optimizer and loss from it."""

import collections
import math
import os
import random
import re
import types
from collections.abc import Iterator
from dataclasses import asdict, fields, replace

import keras

from keras_seqconv import losses, optimizers, schedules
from keras_seqconv.data.ids import check_window
from keras_seqconv.models import from_preset
from keras_seqconv.models.limits import at_most
from keras_seqconv.presets import PRESETS
from keras_seqconv.recipes import PARTS, Recipe, ScheduleOptions, options_of
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translation import load
from keras_seqconv.translation.model_directory import tokenizer_fingerprint

# What language models have nothing of.
_OF_PAIRS = (
    "source_tokenizer", "target_tokenizer", "joint_vocabulary", "min_length",
    "max_length", "max_ratio", "truncate_source", "validation_bleu", "metrics",
)  # fmt: skip
_DROPOUTS = "dropout", "attention_dropout", "weight_dropout"
# Of these a recipe needs one, or training would have no end.
_ENDS = ("max_updates", "max_epochs", "stop_learning_rate", "early_stopping")


def resolve_recipe(options: TrainingOptions, devices: int = 1) -> Recipe:
    """The preset's recipe, with the values that options replace.

    Args:
        options: of the run.
        devices: number of devices. Unless the options give the batches of an update,
            more devices mean fewer and then smaller batches on each: an update keeps
            its tokens.

    Raises:
        ValueError: an option that the chosen optimizer, schedule or kind of model does
            not have.
    """
    recipe = PRESETS[options.preset].recipe
    batches = recipe.gradient_accumulation_steps * recipe.num_replicas
    recipe = replace(
        recipe,
        optimizer=_of_kind("optimizer", recipe.optimizer, options.optimizer),
        schedule=_of_kind("schedule", recipe.schedule, options.schedule),
        num_replicas=devices,
    )
    _check_rate(options, recipe)
    parts = {name: part for name in PARTS if (part := getattr(recipe, name))}
    _check_given(options, recipe, parts)
    search, longest = recipe.search, options.max_translation_length
    if longest is not None and longest < search.min_length:
        raise ValueError(
            f"`max_translation_length` must be at least {search.min_length}, the "
            f"shortest translation of {options.preset}. Received: {longest}"
        )
    parts = {name: _changed(part, options) for name, part in parts.items()}
    recipe = replace(_changed(recipe, options), **parts)
    rest = {}
    if options.gradient_accumulation_steps is None:
        # The same tokens in an update: fewer batches first, then smaller ones.
        rest["gradient_accumulation_steps"] = steps = math.ceil(batches / devices)
        tokens = recipe.tokens_per_batch * batches
        rest["tokens_per_batch"] = math.ceil(tokens / (steps * devices))
    stops = recipe.early_stopping is not None and options.average_kind is None
    if stops and recipe.average_kind == "last_epochs":  # these are no better
        rest |= {"average_kind": "best", "average": options.average or 1}
    if recipe.schedule.name == "cosine" and recipe.schedule.period is None:
        if recipe.max_updates is None:
            raise ValueError(
                "`period` or `max_updates` must be given with `schedule` 'cosine'. "
                "Received: None of them"
            )
        # The rest of training after the warm-up, as fairseq has it.
        period = max(1, recipe.max_updates - recipe.schedule.warmup_steps)
        rest["schedule"] = replace(recipe.schedule, period=period)
    if (blocks := recipe.blocks) is not None and options.context_window is None:
        # Half of a changed block at most, and nothing where each line is by itself.
        window = blocks.context_window if blocks.break_mode == "none" else 0
        if options.tokens_per_sample is not None:
            window = min(window, blocks.tokens_per_sample // 2)
        rest["blocks"] = replace(blocks, context_window=window)
    elif blocks is not None:
        check_window(blocks.context_window, blocks.tokens_per_sample)
    if not any(getattr(recipe, name) for name in _ENDS):
        raise ValueError(
            f"One of {', '.join(f'`{name}`' for name in _ENDS)} must be given: the "
            f"recipe of {options.preset} names no end. Received: None of them"
        )
    return replace(recipe, **rest)


def _of_kind(name: str, part, kind: str | None):
    """The recipe's optimizer or schedule, or one of another kind."""
    if kind in (None, part.name):
        return part
    # All of a schedule but its name.
    common = fields(ScheduleOptions)[1:] if name == "schedule" else ()
    kinds = {cls.name: cls for cls in PARTS[name]}
    return kinds[kind](**{field.name: getattr(part, field.name) for field in common})


def _check_rate(options: TrainingOptions, recipe: Recipe) -> None:
    """ValueError where the recipe's learning rate is meant for another optimizer.

    Those of Adam and Muon are alike, those of NAG some hundred times larger.
    """
    before = PRESETS[options.preset].recipe.optimizer.name
    after = recipe.optimizer.name
    if options.learning_rate is None and (before == "nag") != (after == "nag"):
        raise ValueError(
            f"`learning_rate` must be given with `optimizer` {after!r}: that of "
            f"{options.preset}, {recipe.schedule.learning_rate:g}, is for {before!r}. "
            "Received: None"
        )


def _changed(part, options: TrainingOptions):
    """A recipe, or a part of it, with what the options say instead."""
    changes = {f.name: getattr(options, name) for name, f in options_of(part).items()}
    return replace(part, **{key: v for key, v in changes.items() if v is not None})


def _check_given(options: TrainingOptions, recipe: Recipe, parts: dict) -> None:
    """ValueError for options of other kinds of models, optimizers or schedules."""
    others = {n for kinds in PARTS.values() for kind in kinds for n in options_of(kind)}
    for part in parts.values():
        others -= options_of(part).keys()
    kind = "translation"
    if recipe.search is None:
        others, kind = others.union(_OF_PAIRS), "language"
    for name, value in options.changes().items():
        if name in others:
            raise ValueError(
                f"`{name}` must not be given for {options.preset}, a {kind} model with "
                f"`optimizer` {recipe.optimizer.name!r} and `schedule` "
                f"{recipe.schedule.name!r}. Received: {name}={value!r}"
            )


def make_model(
    options: TrainingOptions, precision: str, source_tokenizer, target_tokenizer
) -> keras.Model:
    """The preset's model with fresh weights, with the changes of the options."""
    size = target_tokenizer.vocabulary_size
    arguments = {"seed": options.seed, "vocabulary_size": size}
    if source_tokenizer is not None:
        arguments["target_vocabulary_size"] = arguments.pop("vocabulary_size")
        arguments["source_vocabulary_size"] = source_tokenizer.vocabulary_size
    for name in _DROPOUTS:
        if getattr(options, name) is not None:
            arguments[name] = getattr(options, name)
    shared = PRESETS[options.preset].architecture.get("share_embeddings")
    if shared == "all" and not options.shares_all_embeddings:
        arguments["share_embeddings"] = "decoder"
    policy, state = keras.config.dtype_policy(), random.getstate()
    keras.config.set_dtype_policy(precision)
    random.seed(options.seed)  # from which Keras draws the seeds of initializers
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with at_most(memory // 4, 100_000):
            return from_preset(options.preset, **{**arguments, **options.architecture})
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(state)


def check_architecture(options: TrainingOptions, recipe: Recipe) -> None:
    """Makes model and loss, if only for their errors to come before text is read."""
    if not {"architecture", "label_smoothing", *_DROPOUTS} & options.changes().keys():
        return
    for name, value in options.architecture.items():
        if name.endswith("vocabulary_size"):
            raise ValueError(
                f"`architecture` must not hold `{name}`, which follows from the "
                f"tokenizers. Received: {value}"
            )
        if name in _DROPOUTS and getattr(options, name) is not None:
            raise ValueError(
                f"`{name}` must be given once, alone or in `architecture`. "
                f"Received: {getattr(options, name)} and {value}"
            )
    preset = PRESETS[options.preset]
    sizes = preset.task.vocabulary_sizes
    size = options.vocabulary_size or max(sizes, default=1 << 15)
    tokenizer = types.SimpleNamespace(vocabulary_size=size)
    source = None if preset.is_language_model else tokenizer
    try:
        model = make_model(options, recipe.precision, source, tokenizer)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`architecture` must hold arguments that {preset.model} takes. {error}"
        ) from error
    make_loss(recipe, model)


def warm_start(model, folder: str, tokenizers) -> str:
    """Gives a model the weights of another one, by name and shape; says how many.

    Args:
        model: to be trained.
        folder: a model directory or a run.
        tokenizers: of the model; ids mean something only if they are the same.

    Raises:
        ValueError: the tokenizers differ, or no weight has its like.
    """
    source = load(folder)
    ours, theirs = (
        [*map(tokenizer_fingerprint, filter(None, side))]
        for side in (tokenizers, source.tokenizers.values())
    )
    if ours != theirs:
        raise ValueError(
            "`initialize_from` must have the tokenizers of the run, or its ids mean "
            "other words: leave out `tokenizer`, or train another model. "
            f"Received: {folder}"
        )
    source_weights, fresh = dict(_weights_by_name(source.model)), []
    weights = list(_weights_by_name(model))
    for key, variable in weights:
        weight = source_weights.get(key)
        of_both = [weight, variable]
        if weight is not None and len({(x.shape, x.dtype) for x in of_both}) == 1:
            variable.assign(weight)
        else:
            fresh.append(key[0])
    if len(fresh) == len(weights):
        raise ValueError(
            "`initialize_from` must have weights of the same names and shapes. "
            f"Received: {folder} ({type(source.model).__name__})"
        )
    news = f"; new are {', '.join(fresh[:3])}{', ...' * (len(fresh) > 3)}"
    taken = len(weights) - len(fresh)
    return f"{taken} of {len(weights)} arrays from {folder}{news * bool(fresh)}"


def _weights_by_name(model) -> Iterator[tuple]:
    """((name without Keras' counters, which of that name), variable)."""
    seen = collections.Counter()
    for variable in model.weights:  # frozen ones, too
        name = re.sub(r"_\d+(?=/)", "", variable.path)
        yield (name, seen[name]), variable
        seen[name] += 1


def make_optimizer(recipe: Recipe) -> keras.optimizers.Optimizer:
    """The optimizer that sees token sums and counts updates."""
    settings = asdict(recipe.optimizer)
    classes = {"adam": optimizers.AdamW, "nag": optimizers.NAG, "muon": optimizers.Muon}
    name = settings.pop("name")
    if name == "muon":
        settings["compute_dtype"] = keras.DTypePolicy(recipe.precision).compute_dtype
    schedule = asdict(recipe.schedule)
    kind = schedule.pop("name")
    rate = schedule["learning_rate"]  # of the first update, where a callback changes it
    if kind == "inverse_square_root":
        rate = schedules.InverseSquareRoot(**schedule)
    elif kind == "cosine":
        rate = schedules.WarmupCosine(**schedule)
    clipping = {"global_clipnorm": recipe.global_clipnorm}
    optimizer = classes[name](rate, **clipping, **settings)
    if recipe.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizers.TokenNormalized(
        optimizer, gradient_accumulation_steps=recipe.gradient_accumulation_steps
    )


def make_loss(recipe: Recipe, model):
    """Label smoothing, or None for the model's own -log p."""
    if recipe.label_smoothing == 0:
        return None
    if model.get_config().get("adaptive_softmax") is not None:
        raise ValueError(
            "`label_smoothing` must be 0 with an adaptive softmax, which knows no "
            f"probabilities of all words. Received: {recipe.label_smoothing}"
        )
    return losses.LabelSmoothedCrossentropy(
        recipe.label_smoothing, recipe.label_smoothing_kind, pad_id=model.pad_id
    )
