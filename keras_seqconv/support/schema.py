"""Options as frozen dataclasses: a field has a type, a rule, a help text, a metavar.

The library, JSON files and flags (`keras_seqconv_cli.add_options`) read the same
fields. A type is int, float, bool, str, dict, a `Literal`, a tuple of int or of str, a
class of options, or a union of such classes; each may be optional.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Any

from keras_seqconv.support.arguments import (
    BOUNDS,
    check_boolean,
    check_choice,
    check_integer,
    check_number,
    near,
)

REQUIRED = dataclasses.MISSING


def option(default: Any = REQUIRED, help: str = "", **metadata) -> Any:
    """A field of `Options`.

    Args:
        default: value, or `REQUIRED`.
        help: text of the flag; without a text there is no flag.
        **metadata: bounds of a number by `ge`, `gt`, `le`, `lt`; `metavar` of the flag;
            `repeated`: the flag of a tuple takes one value and is given several times;
            further keys are the caller's.
    """
    settings = {"default": default}
    if isinstance(default, dict):
        settings = {"default_factory": default.copy}
    return dataclasses.field(**settings, metadata={"help": help, **metadata})


def choices_of(field: dataclasses.Field) -> tuple:
    """Words of a `Literal`, or ()."""
    kind = kind_of(field)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def kind_of(field: dataclasses.Field):
    """The type of a value that is not None; a tuple for a union of classes."""
    kinds = (field.type,)
    if typing.get_origin(field.type) in (typing.Union, types.UnionType):
        kinds = typing.get_args(field.type)
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    return kinds[0] if len(kinds) == 1 else kinds


def checked_value(field: dataclasses.Field, value):
    """The value as the field has it, or ValueError."""
    if value is None and types.NoneType in typing.get_args(field.type):
        return None
    name, rule, kind = field.name, field.metadata, kind_of(field)
    if choices := choices_of(field):
        return check_choice(name, value, choices)
    if kind is bool:
        return check_boolean(name, value)
    if kind is int:
        return check_integer(name, value, rule.get("ge"), rule.get("le"))
    if kind is float:
        bounds = {key: rule[key] for key in BOUNDS if key in rule}
        return float(check_number(name, value, **bounds))
    if typing.get_origin(kind) is tuple:
        return _checked_items(field, value)
    classes = kind if isinstance(kind, tuple) else (kind,)
    if issubclass(classes[0], Options):
        return _checked_part(name, value, classes)
    if not isinstance(value, kind if kind in (str, dict) else typing.get_origin(kind)):
        word = "a string" if kind is str else "a dict"
        raise ValueError(f"`{name}` must be {word}. Received: {name}={value!r}")
    return value


def item_of(field: dataclasses.Field):
    """The type of the items of a tuple, or that of the value."""
    kind = kind_of(field)
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind


def _checked_items(field: dataclasses.Field, values) -> tuple:
    """The integers of a list, an array or a tensor, or the strings of a list."""
    name, rule, item = field.name, field.metadata, item_of(field)
    if hasattr(values, "shape"):
        import numpy as np  # no flag needs it, and it takes a moment

        values = np.asarray(values).tolist()
    valid = isinstance(values, Iterable) and not isinstance(values, str)
    if item is str:
        valid = valid and all(isinstance(value, str) for value in values)
    if not valid:
        words = "strings" if item is str else "integers"
        raise ValueError(
            f"`{name}` must be a list of {words}. Received: {name}={values!r}"
        )
    if item is str:
        return tuple(values)
    return tuple(check_integer(name, value, rule.get("ge")) for value in values)


def _checked_part(name: str, value, classes: tuple):
    """Options in options; a dict, as JSON has it, says by its `name` of which class."""
    if isinstance(value, classes):
        return value
    if isinstance(value, dict):
        for cls in classes:
            if len(classes) == 1 or value.get("name") == cls.name:
                return cls.from_names(value)
    kinds = " or ".join(cls.__name__ for cls in classes)
    raise ValueError(f"`{name}` must be {kinds}. Received: {name}={value!r}")


def check_fields(holder, fields: Iterable[dataclasses.Field] | None = None) -> None:
    """Checks fields of a dataclass, by default those that are made by `option`.

    Numbers of NumPy become those of Python, which JSON can hold.
    """
    if fields is None:
        fields = [x for x in dataclasses.fields(holder) if "help" in x.metadata]
    for field in fields:
        value = checked_value(field, getattr(holder, field.name))
        object.__setattr__(holder, field.name, value)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Base of options: each subclass is a frozen dataclass of keyword arguments.

    Raises:
        ValueError: a value breaks the rule of its field; names both, and the value.
    """

    outdated = ()  # names in files of earlier versions, without effect

    def __init_subclass__(cls, kw_only: bool = True):
        dataclasses.dataclass(cls, frozen=True, kw_only=kw_only)

    def __post_init__(self):
        check_fields(self, dataclasses.fields(self))

    @classmethod
    def from_names(cls, values: dict) -> "typing.Self":
        """Options by name, as JSON has them.

        Raises:
            TypeError: unknown option; says which names are near.
            ValueError: a required one is missing, or a value breaks its rule.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in values.keys() - fields.keys():
            raise TypeError(
                f"{cls.__name__} got an unexpected keyword argument '{name}'. "
                f"{near(name, fields)}Received: {name}={values[name]!r}"
            )
        missing = [
            f"`{name}`"
            for name, field in fields.items()
            if name not in values and field.default is field.default_factory is REQUIRED
        ]
        if missing:
            raise ValueError(f"{', '.join(missing)} must be given.")
        return cls(**values)

    @classmethod
    def from_json(cls, values: dict) -> "typing.Self":
        """As `from_names` but for `outdated`; ValueError for an unknown option, too."""
        values = {n: value for n, value in values.items() if n not in cls.outdated}
        try:
            return cls.from_names(values)
        except TypeError as error:
            raise ValueError(str(error)) from None

    def changes(self) -> dict:
        """The values that differ from the defaults, by name."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
            and not (field.default_factory is not REQUIRED and not value)
        }
