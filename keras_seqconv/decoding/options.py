"""Options of the searches, checked before anything is traced.

They are hashable: a compiled search is cached by them.
"""

import dataclasses

from keras_seqconv.decoding.constraints import Rules
from keras_seqconv.decoding.search import LengthPenalty
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_integer,
    check_number,
    is_number,
)

KINDS = ("power", "gnmt")
LENGTH_RULES = ("sentence", "batch")
STOPPING = ("first", "optimal")
# Each step takes memory from the start, each token of an n-gram a part of the graph.
_MOST = {"min_length": 10**6, "max_length": 10**6, "no_repeat_ngram_size": 100}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What beam search and sampling have in common; see `beam_search`."""

    min_length: int = 1
    max_length: int = 200
    max_length_ratio: float = 0.0
    max_length_rule: str = "sentence"
    length_penalty: float = 1.0
    length_penalty_kind: str = "power"
    normalize: bool = True
    unk_penalty: float = 0.0
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    suppressed_ids: tuple[int, ...] = ()
    return_attention: bool = False

    def __post_init__(self):
        for name, most in _MOST.items():
            if (value := check_integer(name, getattr(self, name), 0)) > most:
                raise ValueError(
                    f"`{name}` must be at most {most}. Received: {name}={value}"
                )
        for name in ("length_penalty", "unk_penalty"):
            check_number(name, getattr(self, name))
        for name in ("normalize", "return_attention"):
            check_boolean(name, getattr(self, name))
        _check(
            "max_length_ratio",
            self.max_length_ratio,
            lambda value: 0 <= value <= 1000,
            "a number from 0 to 1000",
        )
        _check(
            "temperature",
            self.temperature,
            lambda value: value > 0,
            "a positive number",
        )
        check_choice("max_length_rule", self.max_length_rule, LENGTH_RULES)
        check_choice("length_penalty_kind", self.length_penalty_kind, KINDS)
        ids = tuple(self.suppressed_ids)
        for token in ids:
            check_integer("suppressed_ids", token, 0)
        object.__setattr__(self, "suppressed_ids", ids)
        if self.max_length_ratio == 0 and self.min_length > self.max_length:
            raise ValueError(
                "`min_length` must be at most `max_length`. Received: "
                f"min_length={self.min_length}, max_length={self.max_length}"
            )

    def rules(self, model) -> Rules:
        """Rules for the tokens of a model."""
        return Rules(
            pad_id=model.pad_id,
            start_id=model.start_id,
            end_id=model.end_id,
            unk_id=model.unk_id,
            min_length=self.min_length,
            unk_penalty=self.unk_penalty,
            suppressed_ids=self.suppressed_ids,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            temperature=self.temperature,
        )

    def penalty(self) -> LengthPenalty:
        return LengthPenalty(
            self.length_penalty, self.length_penalty_kind, self.normalize
        )

    def check_model(self, model) -> None:
        """ValueError where an option does not fit the model."""
        size = model.target_vocabulary_size
        for token in self.suppressed_ids:
            if token >= size:
                raise ValueError(
                    "`suppressed_ids` must be less than the size of the target "
                    f"vocabulary, {size}. Received: suppressed_ids="
                    f"{self.suppressed_ids}"
                )
        if model.end_id in self.suppressed_ids:
            raise ValueError(
                f"`suppressed_ids` must not contain the end token, {model.end_id}: no "
                "hypothesis could end (`min_length` makes them longer). "
                f"Received: suppressed_ids={self.suppressed_ids}"
            )
        most = model.max_target_length
        if most is not None and self.min_length > most - 1:
            raise ValueError(
                "`min_length` must be less than the `max_target_length` of the model, "
                f"{most}. Received: min_length={self.min_length}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamOptions(SearchOptions):
    """Options of `beam_search`."""

    num_beams: int = 5
    num_hypotheses: int | None = None
    num_groups: int = 1
    diversity_strength: float = 0.5
    stopping: str = "first"

    def __post_init__(self):
        super().__post_init__()
        check_integer("num_beams", self.num_beams, 1)
        check_integer("num_groups", self.num_groups, 1)
        if self.num_hypotheses is None:
            object.__setattr__(self, "num_hypotheses", self.num_beams)
        check_integer("num_hypotheses", self.num_hypotheses, 1)
        if self.num_hypotheses > self.num_beams:
            raise ValueError(
                "`num_hypotheses` must be at most `num_beams`. Received: "
                f"num_hypotheses={self.num_hypotheses}, num_beams={self.num_beams}"
            )
        if self.num_beams % self.num_groups:
            raise ValueError(
                "`num_beams` must be a multiple of `num_groups`. Received: "
                f"num_beams={self.num_beams}, num_groups={self.num_groups}"
            )
        _check(
            "diversity_strength",
            self.diversity_strength,
            lambda value: value >= 0,
            "a finite number of at least 0",
        )
        check_choice("stopping", self.stopping, STOPPING)

    def check_model(self, model) -> None:
        super().check_model(model)
        size = model.target_vocabulary_size
        if self.num_beams > size - 1:
            raise ValueError(
                "`num_beams` must be less than the size of the target vocabulary, "
                f"{size}. Received: num_beams={self.num_beams}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOptions(SearchOptions):
    """Options of `sample`."""

    num_samples: int = 1
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        super().__post_init__()
        check_integer("num_samples", self.num_samples, 1)
        if self.top_k is not None:
            check_integer("top_k", self.top_k, 1)
        if self.top_p is not None:
            _check(
                "top_p",
                self.top_p,
                lambda value: 0 < value <= 1,
                "greater than 0 and at most 1",
            )


def _check(name, value, valid, rule):
    if not (is_number(value) and valid(value)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
