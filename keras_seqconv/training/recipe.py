"""A preset's recipe with the user's changes, and what is made of it."""

import copy
import json
import math

import keras

from keras_seqconv import callbacks, losses, optimizers, schedules
from keras_seqconv.presets import PRESETS
from keras_seqconv.training_options import TrainingOptions

_OPTIMIZERS = {
    "adam": {
        "name": "adam",
        "beta_1": 0.9,
        "beta_2": 0.98,
        "epsilon": 1e-8,
        "weight_decay": 0.0,
    },
    "nag": {"name": "nag", "momentum": 0.99, "weight_decay": 0.0},
}
_EVERY_SCHEDULE = ("learning_rate", "warmup_steps", "warmup_start")
# What a kind of schedule has beside these.
_SCHEDULES = {
    "inverse_square_root": {},
    "cosine": {"period": None, "floor": 1e-7, "period_growth": 1.0, "shrink": 1.0},
    "fixed": {"force_anneal": None, "shrink": 0.1},
    "plateau": {"shrink": 0.1, "patience": 0},
}
# Of these a recipe needs one, or training would have no end.
_ENDS = ("max_updates", "max_epochs", "stop_learning_rate")
_TOP = (
    "global_clipnorm", "tokens_per_batch", "precision", *_ENDS
)  # fmt: skip
# Option -> name in the recipe's search.
_SEARCH = {
    "num_beams": "num_beams",
    "length_penalty": "length_penalty",
    "max_translation_length": "max_length",
}


def resolve_recipe(options: TrainingOptions, devices: int = 1) -> dict:
    """The preset's recipe with what the options say instead.

    Args:
        options: of the run.
        devices: that training will use. Where the options do not say how many batches
            an update has, it is so many that an update has the tokens of the preset.

    Returns:
        A recipe with the keys of `keras_seqconv.presets`, as plain JSON.

    Raises:
        ValueError: an option that the chosen optimizer or schedule does not have.
    """
    # Through JSON, as it is going to be stored: tuples become lists.
    recipe = json.loads(json.dumps(PRESETS[options.preset].recipe))
    given = {
        name: value
        for name, value in options.model_dump().items()
        if value is not None and name in options.model_fields_set
    }
    recipe.update({name: given[name] for name in _TOP if name in given})
    recipe["optimizer"] = _part("optimizer", recipe["optimizer"], _OPTIMIZERS, given)
    recipe["schedule"] = _part("schedule", recipe["schedule"], _SCHEDULES, given)
    _check_parts(recipe, given)
    if recipe["schedule"]["name"] == "cosine" and recipe["schedule"]["period"] is None:
        recipe["schedule"]["period"] = _cosine_period(recipe)
    smoothing = recipe["label_smoothing"]
    smoothing["rate"] = given.get("label_smoothing", smoothing["rate"])
    smoothing["kind"] = given.get("label_smoothing_kind", smoothing["kind"])
    averaging = recipe["averaging"]
    averaging["kind"] = given.get("average_kind", averaging["kind"])
    averaging["count"] = given.get("average", averaging["count"])
    recipe["gradient_accumulation_steps"] = given.get(
        "gradient_accumulation_steps",
        math.ceil(
            recipe["gradient_accumulation_steps"] * recipe["num_replicas"] / devices
        ),
    )
    recipe["num_replicas"] = devices
    if recipe["search"] is not None:
        changes = {new: given[old] for old, new in _SEARCH.items() if old in given}
        recipe["search"] |= changes
    if recipe["blocks"] is not None:
        _change_blocks(recipe["blocks"], given)
    if "early_stopping" not in given and not any(recipe[name] for name in _ENDS):
        raise ValueError(
            f"One of {', '.join(f'`{name}`' for name in _ENDS)} and `early_stopping` "
            f"must be given: the recipe of {options.preset} names no end. Received: "
            "None of them"
        )
    return recipe


def _change_blocks(blocks: dict, given: dict) -> None:
    for name in ("tokens_per_sample", "break_mode", "context_window"):
        blocks[name] = given.get(name, blocks[name])
    if "context_window" not in given:
        # Half of a block at most, and nothing where each line is by itself.
        window = min(blocks["context_window"] or 0, blocks["tokens_per_sample"] // 2)
        blocks["context_window"] = window if blocks["break_mode"] == "none" else 0


def _part(key: str, part: dict, kinds: dict, given: dict) -> dict:
    """The recipe's optimizer or schedule, or one of another kind, with the changes."""
    kind = given.get(key, part["name"])
    if kind != part["name"]:
        common = {name: part[name] for name in _EVERY_SCHEDULE if name in part}
        part = {**common, **copy.deepcopy(kinds[kind])}
    changes = {name: given[name] for name in part if name in given}
    return {**part, **changes, "name": kind}


def _check_parts(recipe: dict, given: dict) -> None:
    for key, kinds in (("optimizer", _OPTIMIZERS), ("schedule", _SCHEDULES)):
        kind = recipe[key]["name"]
        others = set().union(*map(set, kinds.values())) - set(recipe[key])
        for name in sorted(others & set(given)):
            raise ValueError(
                f"`{name}` must not be given with `{key}` {kind!r}, which has only "
                f"{sorted(set(recipe[key]) - {'name'})}. "
                f"Received: {name}={given[name]!r}"
            )


def _cosine_period(recipe: dict) -> int:
    """The rest of training after the warm-up, as fairseq has it."""
    if recipe["max_updates"] is None:
        raise ValueError(
            "`period` or `max_updates` must be given with `schedule` 'cosine'. "
            "Received: None of them"
        )
    return max(1, recipe["max_updates"] - recipe["schedule"]["warmup_steps"])


def make_optimizer(recipe: dict) -> keras.optimizers.Optimizer:
    """The optimizer that sees token sums and counts updates."""
    settings = dict(recipe["optimizer"])
    kind = settings.pop("name")
    cls = {"adam": optimizers.AdamW, "nag": optimizers.NAG}[kind]
    optimizer = cls(
        make_schedule(recipe), global_clipnorm=recipe["global_clipnorm"], **settings
    )
    if recipe["precision"] == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizers.TokenNormalized(
        optimizer, gradient_accumulation_steps=recipe["gradient_accumulation_steps"]
    )


def make_schedule(recipe: dict):
    """A function of the update, or the first rate where a callback changes it."""
    settings = dict(recipe["schedule"])
    kind = settings.pop("name")
    if kind == "inverse_square_root":
        return schedules.InverseSquareRoot(**settings)
    if kind == "cosine":
        return schedules.WarmupCosine(**settings)
    return settings["learning_rate"]


def schedule_callbacks(recipe: dict, monitor: str, mode: str) -> list:
    """What changes the learning rate or ends training."""
    settings = dict(recipe["schedule"])
    kind = settings.pop("name")
    found = []
    if kind == "fixed":
        found.append(callbacks.FixedSchedule(**settings))
    elif kind == "plateau":
        found.append(callbacks.ReduceOnPlateau(**settings, monitor=monitor, mode=mode))
    if recipe["stop_learning_rate"] is not None:
        found.append(callbacks.StopAtLearningRate(recipe["stop_learning_rate"]))
    return found


def make_loss(recipe: dict, model):
    """Label smoothing, or None for the model's own -log p."""
    smoothing = recipe["label_smoothing"]
    if smoothing["rate"] == 0:
        return None
    if model.get_config().get("adaptive_softmax") is not None:
        raise ValueError(
            "`label_smoothing` must be 0 with an adaptive softmax, which knows no "
            f"probabilities of all words. Received: {smoothing['rate']}"
        )
    return losses.LabelSmoothedCrossentropy(
        smoothing["rate"], smoothing["kind"], pad_id=model.pad_id
    )
