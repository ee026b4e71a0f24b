"""What an export fixes: checked options of the search and of the cost of a request."""

import dataclasses

from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.support.arguments import (
    check_boolean,
    check_positive_integer,
)

LONGEST_SOURCE = 512


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of an export.

    Attributes:
        search: options of the search, with `num_hypotheses` as of `translate_n_best`.
        max_source_length: tokens of a source that are read, its end counted. Of a
            language model: tokens of a prompt.
        max_target_length: tokens of a given translation (or text) that are scored, its
            end counted.
        tokens_per_batch: tokens times beams that are computed at once.
        xla: whether the search is compiled by XLA.
    """

    search: BeamOptions
    max_source_length: int
    max_target_length: int
    tokens_per_batch: int
    xla: bool


def make_settings(
    owner,
    *,
    num_beams: int | None,
    length_penalty: float | None,
    max_length: int | None,
    max_source_length: int | None,
    n_best: int | None,
    tokens_per_batch: int | None,
    xla: bool,
) -> Settings:
    """The settings for a `Translator` or `LanguageGenerator`; None is its own.

    Raises:
        ValueError: for a wrong option, named with its rule.
    """
    check_boolean("xla", xla)
    given = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_length": max_length,
        "num_hypotheses": n_best,
    }
    given = {name: value for name, value in given.items() if value is not None}
    options = owner.search_options(given)
    if options["max_length_rule"] == "batch":
        raise ValueError(
            "`max_length_rule` must be 'sentence' in an export: a server puts the "
            "requests of strangers into one batch. Received: 'batch'"
        )
    search = BeamOptions(**options)
    search.check_model(owner.model)
    longest = _longest_target(owner.model, search)
    if tokens_per_batch is None:
        tokens_per_batch = owner.tokens_per_batch
    return Settings(
        search=search,
        max_source_length=_max_source_length(owner, longest, max_source_length),
        max_target_length=_limited(
            max(LONGEST_SOURCE, search.max_length + 1), owner.model.max_target_length
        ),
        tokens_per_batch=check_positive_integer("tokens_per_batch", tokens_per_batch),
        xla=xla,
    )


def _max_source_length(owner, longest_target: int, wanted: int | None) -> int:
    if wanted is not None and check_positive_integer("max_source_length", wanted) < 2:
        raise ValueError(
            "`max_source_length` must be at least 2, one of them for the end token. "
            f"Received: max_source_length={wanted}"
        )
    most = getattr(owner, "max_source_length", longest_target)
    return _limited(LONGEST_SOURCE if wanted is None else wanted, most)


def _longest_target(model, search: BeamOptions) -> int:
    """Tokens before the end token, for sources of no length."""
    most = model.max_target_length
    return _limited(search.max_length, None if most is None else most - 1)


def _limited(value: int, most: int | None) -> int:
    return value if most is None else min(value, most)
