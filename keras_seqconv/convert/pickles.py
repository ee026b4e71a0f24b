"""A look at a pickle before it is read: what it names, and how much it would make.

A small file can hold an object that is nearly endless to whoever hashes, compares or
prints it, for shared parts are walked through once for each reference to them. Here a
pickle's opcodes run on a stack of lists, each with the parts of an object.
"""

import pickletools
from typing import BinaryIO

# A checkpoint of a large Transformer with its optimizer has some 50,000 objects.
MOST_OBJECTS, MOST_LEVELS = 500_000, 100
# From here on integers share hashes, and a dictionary of them takes for ever.
_MOST = 2**61 - 2
_MAGIC = 0x1950A86A20F9469CFC6C  # what PyTorch's files of before 2020 begin with

_MARK, _ATOM = ["("], []
_FILL = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}


def look_at(stream: BinaryIO) -> set[str]:
    """The globals that one pickle names.

    Raises:
        ValueError: the pickle is damaged, has too large integers, or makes more than
            `MOST_OBJECTS`, shared ones counted for each reference, or more levels than
            `MOST_LEVELS`.
    """
    names, stack, memo, dropped = set(), [], {}, []
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number > MOST_OBJECTS:
            raise ValueError(f"more than {MOST_OBJECTS:,} steps of a pickle")
        if isinstance(argument, int) and argument != _MAGIC and abs(argument) > _MOST:
            raise ValueError(f"an integer of {argument.bit_length()} bits")
        if opcode.name in ("GLOBAL", "INST"):  # torch knows no other that names one
            names.add(argument.replace(" ", ".", 1))
        if opcode.name in _PUT or opcode.name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif opcode.name in _GET:
            stack.append(memo[argument])
        elif opcode.name == "MARK":
            stack.append(_MARK)
        else:
            parts = _popped(stack, opcode.stack_before)
            if opcode.name in _FILL:
                if parts[0] is _ATOM or parts[0] is _MARK:
                    raise ValueError("a pickle that fills what has no parts")
                parts[0].extend(parts[1:])
                stack.append(parts[0])
            elif opcode.stack_after:
                empty = opcode.name.startswith("EMPTY_")  # and may be filled
                made = parts if opcode.stack_before or empty else _ATOM
                stack.extend([made] * len(opcode.stack_after))
            else:
                dropped.append(parts)
    _check_size([*stack, *dropped])
    return names


def _popped(stack: list, kinds: list) -> list:
    """What an opcode takes from the stack, of whose parts it says the kinds."""
    marked = pickletools.markobject in kinds
    count = kinds.index(pickletools.markobject) if marked else len(kinds)
    start = len(stack)
    if marked:
        start = next(i for i in range(start - 1, -1, -1) if stack[i] is _MARK)
    parts = stack[start + 1 :]
    if start < count:
        raise ValueError("a pickle that takes more than there is")
    parts = stack[start - count : start] + parts
    del stack[start - count :]
    return parts


def _check_size(root: list) -> None:
    """ValueError where a walk through all parts would take too long, or never end."""
    todo, seen = [(root, 0)], 0
    while todo:
        parts, level = todo.pop()
        seen += len(parts)
        if seen > MOST_OBJECTS or level > MOST_LEVELS:
            raise ValueError(
                f"more than {MOST_OBJECTS:,} objects, shared ones counted for each "
                f"reference, or {MOST_LEVELS} levels"
            )
        todo += [(part, level + 1) for part in parts if part]
