"""Checks of arguments and shapes that all of the package shares."""

import difflib
import sys
from collections.abc import Iterable


def check_integer(name: str, value: int, least: int) -> int:
    """`value`, or ValueError unless it is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        rule = "a positive integer" if least == 1 else f"an integer >= {least}"
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return value


def check_positive_integer(name: str, value: int) -> int:
    """`value`, or ValueError unless it is an int of at least 1."""
    return check_integer(name, value, 1)


def check_rate(name: str, value: float) -> float:
    """`value`, or ValueError unless it is a dropout rate, 0 <= rate < 1."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be at least 0 and less than 1. Received: {name}={value!r}"
        )
    return value


def check_choice(name: str, value, choices: tuple):
    """`value`, or ValueError unless it is one of `choices`."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {choices}. Received: {name}={value!r}"
        )
    return value


def check_boolean(name: str, value: bool) -> bool:
    """`value`, or ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def is_number(value) -> bool:
    """Whether it is a finite number, and no bool."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def check_number(name: str, value: float) -> float:
    """`value`, or ValueError unless it is a finite number."""
    if not is_number(value):
        raise ValueError(
            f"`{name}` must be a finite number. Received: {name}={value!r}"
        )
    return value


def near(name: str, names: Iterable[str]) -> str:
    """ "Did you mean ...? " with the names that come near, or "", for an error."""
    found = difflib.get_close_matches(str(name), names)
    return f"Did you mean {', '.join(found)}? " if found else ""


def known_width(name: str, shape: tuple) -> int:
    """The last axis of the shape of `name`, or ValueError when it is unknown."""
    if shape[-1] is None:
        raise ValueError(
            f"The last axis of `{name}` must have a known size. "
            f"Received: {name}.shape={tuple(shape)}"
        )
    return shape[-1]
