"""How models are trained and decoded: options with their ranges and help texts.

`presets.py` gives a recipe to each architecture, and `training/` runs it.
"""

import dataclasses
from typing import Literal

from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.support.schema import REQUIRED, Options, option

# Options of training that are fields of the search; `max_length` is one of the text.
_OF_SEARCH = {
    "num_beams": "num_beams",
    "length_penalty": "length_penalty",
    "max_length": "max_translation_length",
}


def options_of(part) -> dict[str, dataclasses.Field]:
    """Fields of a recipe, or of a part of it, by the options that replace them."""
    fields = {field.name: field for field in dataclasses.fields(part) if field.metadata}
    if isinstance(part, BeamOptions) or part is BeamOptions:
        return {option: fields[name] for name, option in _OF_SEARCH.items()}
    return fields


_SHRINK = "factor of the learning rate; cosine: per period"
_DECAY = "decoupled weight decay of all weights"
_BETA_1 = "adam, muon: decay of the first moment"
_BETA_2 = "adam, muon: decay of the second moment"
_EPSILON = "adam, muon: constant in the denominator"
_MOMENTUM = "nag, muon: momentum"


class AdamOptions(Options):
    """`keras_seqconv.optimizers.AdamW`."""

    name: Literal["adam"] = "adam"
    beta_1: float = option(0.9, _BETA_1, ge=0, lt=1)
    beta_2: float = option(0.98, _BETA_2, ge=0, lt=1)
    epsilon: float = option(1e-8, _EPSILON, gt=0)
    weight_decay: float = option(0.0, _DECAY, ge=0)


class MuonOptions(AdamOptions):
    """`keras_seqconv.optimizers.Muon`."""

    name: Literal["muon"] = "muon"
    momentum: float = option(0.95, _MOMENTUM, ge=0, lt=1)


class NagOptions(Options):
    """`keras_seqconv.optimizers.NAG`."""

    name: Literal["nag"] = "nag"
    momentum: float = option(0.99, _MOMENTUM, ge=0, lt=1)
    weight_decay: float = option(0.0, _DECAY, ge=0)


class ScheduleOptions(Options):
    """The rates of the warm-up, which all schedules have."""

    name: str = ""
    learning_rate: float = option(REQUIRED, "highest learning rate", gt=0)
    warmup_steps: int = option(0, "updates of the warm-up", ge=0)
    warmup_start: float = option(
        1e-7, "learning rate at the start of the warm-up", ge=0
    )


class InverseSquareRootOptions(ScheduleOptions):
    """`keras_seqconv.schedules.InverseSquareRoot`."""

    name: Literal["inverse_square_root"] = "inverse_square_root"


class CosineOptions(ScheduleOptions):
    """`keras_seqconv.schedules.WarmupCosine`; a `period` of None ends with training."""

    name: Literal["cosine"] = "cosine"
    period: int | None = option(
        None, "cosine: updates of the first period, from the end of the warm-up", ge=1
    )
    floor: float = option(1e-7, "cosine: lowest learning rate", ge=0)
    period_growth: float = option(1.0, "cosine: growth of further periods", ge=1)
    shrink: float = option(1.0, _SHRINK, gt=0)


class FixedOptions(ScheduleOptions):
    """`keras_seqconv.callbacks.FixedSchedule`."""

    name: Literal["fixed"] = "fixed"
    force_anneal: int | None = option(None, "fixed: first epoch that shrinks", ge=1)
    shrink: float = option(0.1, _SHRINK, gt=0)


class PlateauOptions(ScheduleOptions):
    """`keras_seqconv.callbacks.ReduceOnPlateau`."""

    name: Literal["plateau"] = "plateau"
    shrink: float = option(0.1, _SHRINK, gt=0)
    patience: int = option(0, "plateau: epochs without improvement", ge=0)


class BlockOptions(Options, kw_only=False):
    """Arguments of `keras_seqconv.data.blocks`; the context is that of evaluation."""

    tokens_per_sample: int = option(REQUIRED, "language model: tokens of a block", ge=1)
    break_mode: Literal["none", "sentence"] = option(
        "none", "language model: none cuts blocks anywhere, sentence at lines"
    )
    context_window: int = option(
        0, "language model: tokens before a block in evaluation", ge=0
    )


# The parts of a recipe, and the kinds of each.
PARTS = {
    "optimizer": (AdamOptions, MuonOptions, NagOptions),
    "schedule": (InverseSquareRootOptions, CosineOptions, FixedOptions, PlateauOptions),
    "search": (BeamOptions,),
    "blocks": (BlockOptions,),
}


class Recipe(Options):
    """How a model is trained and decoded.

    Updates see at most `tokens_per_batch` * `gradient_accumulation_steps` *
    `num_replicas` tokens of the longer side, padding included.

    Args:
        num_replicas: devices of the original.
        search: of translations; None for language models.
        blocks: of the text of language models; None for others.
    """

    outdated = ("source", "sources", "notes")  # of 0.1.0

    optimizer: AdamOptions | MuonOptions | NagOptions = AdamOptions()
    schedule: InverseSquareRootOptions | CosineOptions | FixedOptions | PlateauOptions
    global_clipnorm: float | None = option(
        None, "largest norm of the gradient per token", gt=0
    )
    label_smoothing: float = option(0.1, "probability spread over words", ge=0, lt=1)
    label_smoothing_kind: Literal["uniform", "others"] = option(
        "uniform", "uniform: all words (fairseq until 2021); others: all but the label"
    )
    tokens_per_batch: int = option(
        REQUIRED,
        "size of a batch: sentences x longest sentence, with padding; of several "
        "devices together, unless --gradient-accumulation-steps is given",
        ge=2,
    )
    gradient_accumulation_steps: int = option(
        1,
        "batches of an update on each device (default: as many as give an update the "
        "tokens of the recipe)",
        ge=1,
    )
    num_replicas: int = 1
    max_updates: int | None = option(None, "last update of training", ge=1)
    max_epochs: int | None = option(None, "last epoch of training", ge=1)
    stop_learning_rate: float | None = option(
        None, "training ends at a learning rate that is not above this value", ge=0
    )
    early_stopping: int | None = option(
        None,
        "validations without improvement before training ends; recipes that average "
        "the last epochs then take the best checkpoint, unless --average-kind is given",
        ge=1,
    )
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = option(
        "float32",
        "dtype policy; mixed_bfloat16 is faster on GPUs, and on CPUs with products in "
        "bfloat16 (avx512_bf16 or amx_bf16 in lscpu)",
    )
    average: int = option(1, "checkpoints of the average at the end", ge=1)
    average_kind: Literal["last_epochs", "best"] = option(
        "best", "which checkpoints (without both options: the best one, where better)"
    )
    search: BeamOptions | None = None
    blocks: BlockOptions | None = None
