"""Checks of arguments and shapes that all of the package shares."""

import difflib
import operator
import sys
import types
from collections.abc import Callable, Iterable

# Bounds of numbers: sign, comparison.
BOUNDS = {
    "ge": (">=", operator.ge), "gt": (">", operator.gt),
    "le": ("<=", operator.le), "lt": ("<", operator.lt),
}  # fmt: skip


def check_integer(
    name: str, value: int, least: int | None = None, most: int | None = None
) -> int:
    """`value` as an int, or ValueError unless it is one from `least` to `most`."""
    value = plain(value)
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or (least is not None and value < least):
        rule = "an integer" if least is None else f"an integer >= {least}"
        rule = "a positive integer" if least == 1 else rule
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    if most is not None and value > most:
        raise ValueError(f"`{name}` must be at most {most}. Received: {name}={value}")
    return value


def check_rate(name: str, value: float) -> float:
    """`value`, or ValueError unless it is a dropout rate, 0 <= rate < 1."""
    return check_number(name, value, ge=0, lt=1)


def check_choice(name: str, value, choices: tuple):
    """`value`, or ValueError unless it is one of `choices`."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {choices}. Received: {name}={value!r}"
        )
    return value


def check_ids(name: str, holder, model) -> None:
    """ValueError where `holder`, the argument `name`, has other ids than the model.

    Ids that only one of them has are not compared.
    """
    names = {"pad_id": "pad_id", "start_id": "start_id", "ignore_class": "pad_id"}
    for attribute, of_model in names.items():  # `ignore_class` is of Keras' losses
        expected = getattr(model, of_model, None)
        received = getattr(holder, attribute, None)
        if None not in (expected, received) and received != expected:
            raise ValueError(
                f"`{name}` must have the `{of_model}` of the model, {expected}. "
                f"Received: {attribute}={received} of {type(holder).__name__}"
            )


def check_boolean(name: str, value: bool) -> bool:
    """`value`, or ValueError unless it is True or False."""
    value = plain(value)
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def is_number(value) -> bool:
    """Whether it is a finite number, also one of NumPy, and no bool."""
    value = plain(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def check_number(name: str, value: float, **bounds: float) -> float:
    """`value`, or ValueError unless it is a finite number within bounds.

    These are `ge` (>=), `gt`, `le` and `lt`.
    """
    if not is_number(value) or not all(
        BOUNDS[key][1](value, bound) for key, bound in bounds.items()
    ):
        rules = [f"{BOUNDS[key][0]} {bounds[key]:g}" for key in BOUNDS if key in bounds]
        rule = f"a finite number {' and '.join(rules)}".strip()
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return plain(value)


def power_of_two_from(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def plain(value):
    """Scalars and arrays of NumPy as numbers of Python, also in lists and dicts."""
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {key: plain(entry) for key, entry in value.items()}
    of_numpy = type(value).__module__ == "numpy" and hasattr(value, "tolist")
    return value.tolist() if of_numpy else value


def public_names(members: dict, *modules: str) -> Callable:
    """`__dir__` of a module or package, from its `globals()`.

    Modules but the named ones are left out, and names from other packages.
    """
    home = members["__name__"]
    return lambda: [
        name
        for name, member in members.items()
        if name in modules
        or not name.startswith("_")
        and not isinstance(member, types.ModuleType)
        and getattr(member, "__module__", home).startswith(home)
    ]


def near(name: str, names: Iterable[str]) -> str:
    """ "Did you mean ...? " with the names that come near, or "", for an error."""
    matches = difflib.get_close_matches(str(name), names)
    return f"Did you mean {', '.join(matches)}? " if matches else ""


def known_width(name: str, shape: tuple) -> int:
    """The last axis of the shape of `name`, or ValueError when it is unknown."""
    if not shape or shape[-1] is None:
        raise ValueError(
            f"The last axis of `{name}` must have a known size. "
            f"Received: {name}.shape={tuple(shape)}"
        )
    return shape[-1]


def check_sequence(name: str, shape: tuple, channels: int | None = None) -> int:
    """C, or ValueError unless the shape of `name` is (B, T, C), C being `channels`."""
    is_sequence = len(shape) == 3 and shape[-1] is not None
    if not is_sequence or channels not in (None, shape[-1]):
        wanted = f"{channels} channels" if channels else "known channels"
        raise ValueError(
            f"`{name}` must have shape (batch, time, channels) with {wanted}. "
            f"Received: {name}.shape={tuple(shape)}"
        )
    return shape[-1]


_OF_WEIGHTS = (
    "set on a weight after `build`: `layer.weights[0].{} = ...`, and again after the "
    "layer is loaded or cloned"
)
_OURS = {
    "key_dim": "called `head_dim` here",
    "value_dim": "called `head_dim` here",
    "output_shape": "called `output_dim` here",
    **{
        f"{weight}_{kind}": _OF_WEIGHTS.format(kind)
        for weight in ("kernel", "bias")
        for kind in ("regularizer", "constraint")
    },
}


def refuse_names_of_keras(arguments: dict) -> None:
    """ValueError for arguments that only Keras' own layers have."""
    for name in set(arguments) & set(_OURS):
        raise ValueError(
            f"`{name}` is {_OURS[name]}. Received: {name}={arguments[name]!r}"
        )


def check_kernel_size(kernel_size: int | tuple[int]) -> int:
    """The taps K, which Keras also writes as (K,)."""
    if isinstance(kernel_size, (tuple, list)) and len(kernel_size) == 1:
        (kernel_size,) = kernel_size
    return check_integer("kernel_size", kernel_size, 1)


def check_dense(name: str, tensor) -> None:
    """ValueError for a `tf.RaggedTensor`, and for a value without a shape."""
    if not hasattr(tensor, "shape"):
        raise ValueError(
            f"`{name}` must be a tensor. Received: {name} of type {type(tensor)}"
        )
    if hasattr(tensor, "row_splits"):
        raise ValueError(
            f"`{name}` must be a dense tensor (B, T, C), padded by `to_tensor()` and "
            f"with a mask. Received: a RaggedTensor, {name}.shape={tensor.shape}"
        )


def check_keys(name: str, value, keys: Iterable[str]) -> None:
    """ValueError unless the value is a dict with these keys alone."""
    if not isinstance(value, dict) or set(value) != set(keys):
        received = list(value) if isinstance(value, dict) else type(value)
        raise ValueError(
            f"`{name}` must be a dict with the keys {list(keys)}, as "
            f"`get_initial_state` makes it. Received: {name}={received}"
        )


def check_shape(name: str, tensor, sizes: tuple, others: tuple = (None,)) -> None:
    """ValueError unless a tensor has these sizes, or `others`, where they are known."""
    check_dense(name, tensor)
    shape = tuple(tensor.shape)
    agree = len(shape) == len(sizes) and all(
        a in others or not isinstance(b, int) or a == b
        for a, b in zip(shape, sizes, strict=True)
    )
    if not agree:
        raise ValueError(
            f"`{name}` must have the shape {tuple(sizes)}. "
            f"Received: {name}.shape={shape}"
        )
