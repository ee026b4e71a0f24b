"""Options of the searches, checked before tracing.

They are hashable, because they are keys of cached compiled searches. A new option is a
field with its check and its meaning, and the code that applies it.
"""

from typing import Literal

import numpy as np

from keras_seqconv.decoding import array_ops as ops
from keras_seqconv.support.schema import Options, option

# Those of `keras_seqconv.decoding.score`.
OF_SCORES = ("length_penalty", "length_penalty_kind", "normalize")


class SearchOptions(Options):
    """Options of both beam search and sampling.

    Attributes:
        min_length: smallest number of tokens before the end token.
        max_length: b, largest number of tokens before the end token, at most 10^6.
        max_length_ratio: a; the limit of a sentence is int(a * S + b) tokens, at
            most the model's `max_target_length`. S is the length of the source with
            its end token, without padding.
        length_penalty: exponent a of the divisor of log-probability sums. Above 1 it
            favours long hypotheses, below 1 short ones.
        length_penalty_kind: "power" for L**a (fairseq), "gnmt" for ((5 + L) / 6)**a (Wu
            et al., 2016, equation 14). L counts the end token.
        normalize: whether to divide by the length penalty.
        unk_penalty: subtracted from the log-probability of the unknown token.
        temperature: divisor of the logits.
        no_repeat_ngram_size: n, up to 100, or 0. No n-gram of a hypothesis, including
            the start token, occurs twice. With n = 1 the start token does not count:
            no token is chosen twice.
        suppressed_ids: tokens that are never chosen.
        return_attention: whether to return the attention to the source.

    Raises:
        ValueError: an option breaks its rule.
        TypeError: unknown option.
    """

    # Bounds, as each step takes memory from the start, and each token of an n-gram a
    # part of the graph.
    min_length: int = option(1, "fewest tokens of a translation", ge=0, le=10**6)
    max_length: int = option(200, "most tokens of a translation", ge=0, le=10**6)
    max_length_ratio: float = option(
        0.0, "added to --max-length for each source token", ge=0, le=1000
    )
    length_penalty: float = option(
        1.0, "exponent of the length that divides a score", ge=-10, le=10
    )
    length_penalty_kind: Literal["power", "gnmt"] = option(
        "power", "score / L**X, or score / ((5 + L) / 6)**X"
    )
    normalize: bool = option(
        True,
        "scores are sums, without division by the length",
        flag="--not-normalized",
    )
    unk_penalty: float = option(
        0.0, "subtracted from the log-probability of unknown tokens", ge=-1e6, le=1e6
    )
    temperature: float = option(1.0, "divisor of the logits", ge=1e-4)
    no_repeat_ngram_size: int = option(
        0, "size of n-grams that occur at most once", ge=0, le=100
    )
    suppressed_ids: tuple[int, ...] = option(
        (), "tokens that are never chosen", metavar="ID", ge=0
    )
    return_attention: bool = option(False)

    def __post_init__(self):
        super().__post_init__()
        if self.max_length_ratio == 0 and self.min_length > self.max_length:
            raise ValueError(
                "`min_length` must be at most `max_length`. Received: "
                f"min_length={self.min_length}, max_length={self.max_length}"
            )

    @classmethod
    def of_call(cls, options: "SearchOptions | None", names: dict) -> "SearchOptions":
        """The options of a call: an object of this class, or by name.

        Raises:
            ValueError: both are given, or an object of another class.
        """
        if options is None:
            return cls.from_names(names)
        if names or not isinstance(options, cls):
            raise ValueError(
                f"`options` must be a {cls.__name__}, without options by name beside "
                f"it. Received: options={options!r} and {', '.join(names) or 'no name'}"
            )
        return options

    def length_divisor(self, lengths):
        """Divisor of sums of log-probabilities for hypotheses of these lengths."""
        lengths = ops.cast(lengths, "float32")
        if not self.normalize:
            return ops.ones_like(lengths)
        if self.length_penalty_kind == "gnmt":
            lengths = (5.0 + lengths) / 6.0
        return ops.power(lengths, self.length_penalty)

    def length_limits(self, lengths, width, max_target_length: int | None = None):
        """int(max_length_ratio * S + max_length) of every sentence; tokens but the end.

        Args:
            lengths: (B,) int32: S of each sentence, at most `width`.
            width: int, or a scalar tensor in a graph with dynamic shapes.
            max_target_length: positions that the model has, or None.

        Returns:
            Limits (B,) int32, and a limit of them all: int where `width` is one.
        """
        ratio, offset = self.max_length_ratio, self.max_length
        limit = np.iinfo("int32").max
        if max_target_length is not None:
            limit = max_target_length - 1
        if ratio == 0:
            bound = min(offset, limit)
            return ops.full_like(lengths, bound), bound
        if isinstance(width, int):
            # Python's arithmetic, for all lengths that occur.
            table = [
                min(int(ratio * size + offset), limit) for size in range(width + 1)
            ]
            return ops.take(np.array(table, "int32"), lengths), table[-1]

        return tuple(
            ops.minimum(
                ops.cast(ops.cast(x, "float64") * ratio + offset, "int32"), limit
            )
            for x in (lengths, width)
        )

    def check_model(self, model, has_source: bool) -> None:
        """ValueError for an option that does not fit the model, or a missing source."""
        for name in ("max_length_ratio", "return_attention"):
            if not has_source and getattr(self, name):
                raise ValueError(
                    f"`{name}` needs `source_ids`, and so no language model. "
                    f"Received: {name}={getattr(self, name)}"
                )
        size = model.target_vocabulary_size
        if any(token >= size for token in self.suppressed_ids):
            raise ValueError(
                "`suppressed_ids` must be less than the size of the target "
                f"vocabulary, {size}. Received: suppressed_ids={self.suppressed_ids}"
            )
        if model.end_id in self.suppressed_ids:
            raise ValueError(
                f"`suppressed_ids` must not contain the end token, {model.end_id}: no "
                "hypothesis could end (`min_length` makes them longer). "
                f"Received: suppressed_ids={self.suppressed_ids}"
            )
        limit = model.max_target_length
        if limit is not None and self.min_length > limit - 1:
            raise ValueError(
                "`min_length` must be less than the `max_target_length` of the model, "
                f"{limit}. Received: min_length={self.min_length}"
            )


class BeamOptions(SearchOptions):
    """Options of beam search, in addition to `SearchOptions`.

    Attributes:
        num_beams: number of unfinished hypotheses to keep.
        num_hypotheses: N, results of a sentence, at most `num_beams`, the default.
        num_groups: groups of beams that avoid each other's tokens (diverse beam
            search); 1 for none. Divides `num_beams`.
        diversity_strength: cost of a token of another group, at least 0.
        stopping: "first": a sentence is complete after `num_beams` ended hypotheses
            (fairseq). "optimal" continues while an unfinished hypothesis can still be
            among the best `num_hypotheses`, keeps the best ended hypotheses instead of
            the first ones, and lets every beam end.
    """

    num_beams: int = option(5, "beams of the search", ge=1)
    num_hypotheses: int | None = option(None, ge=1)
    num_groups: int = option(1, "groups of diverse beam search", ge=1)
    diversity_strength: float = option(
        0.5, "penalty of a token that another group has chosen", ge=0
    )
    stopping: Literal["first", "optimal"] = option(
        "first", "first: as fairseq; optimal: when no better hypothesis is possible"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.num_results > self.num_beams:
            raise ValueError(
                "`num_hypotheses` must be at most `num_beams`. Received: "
                f"num_hypotheses={self.num_hypotheses}, num_beams={self.num_beams}"
            )
        if self.num_beams % self.num_groups:
            raise ValueError(
                "`num_beams` must be a multiple of `num_groups`. Received: "
                f"num_beams={self.num_beams}, num_groups={self.num_groups}"
            )

    @property
    def num_results(self) -> int:
        return self.num_hypotheses or self.num_beams

    def check_model(self, model, has_source: bool) -> None:
        super().check_model(model, has_source)
        size = model.target_vocabulary_size
        if self.num_beams > size - 1:
            raise ValueError(
                "`num_beams` must be less than the size of the target vocabulary, "
                f"{size}. Received: num_beams={self.num_beams}"
            )


class SampleOptions(SearchOptions):
    """Options of sampling, in addition to `SearchOptions`.

    Attributes:
        num_samples: N, independent draws for each sentence.
        top_k: draws from the k most probable tokens only, or None (Fan et al. 2018,
            Hierarchical Neural Story Generation).
        top_p: draws only from the fewest most probable tokens whose probabilities sum
            to at least p, or None (Holtzman et al. 2020, The Curious Case of Neural
            Text Degeneration). With `top_k`, a token must meet both conditions.
    """

    num_samples: int = option(1, ge=1)
    top_k: int | None = option(None, "draw from the N most probable tokens", ge=1)
    top_p: float | None = option(
        None,
        "draw from the most probable tokens with this total probability",
        gt=0,
        le=1,
    )
