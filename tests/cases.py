"""Which cases of a test run with every change, in CI only, and on JAX."""

from collections.abc import Iterable

import pytest


def quick_and_slow(quick: Iterable, slow: Iterable) -> list:
    """The values of a `parametrize`: those of `slow` only run with the slow tests.

    `quick` holds the case that differs most from what other tests run, and one for
    each way through the code; what repeats such a way is `slow`. Of several arguments
    a value is a tuple.
    """
    rows = [one if isinstance(one, tuple) else (one,) for one in slow]
    return [*quick, *(pytest.param(*row, marks=pytest.mark.slow) for row in rows)]


def few_on_jax(few: Iterable, values: Iterable) -> list:
    """`values`, of which JAX, that compiles everything anew for each, sees `few`."""
    few, left_out = list(few), pytest.mark.tensorflow
    return [one if one in few else pytest.param(one, marks=left_out) for one in values]
