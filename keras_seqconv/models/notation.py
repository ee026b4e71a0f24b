"""The lists in fairseq's options: "[(512, 3)] * 9 + [(1024, 3)] * 4", "[True, False]".

fairseq executes such texts. Here lists, tuples, integers, bools, + and * are understood
and nothing is executed.
"""

import ast

# Bounds against typing errors and hostile files.
MOST_ENTRIES = 1000
MOST_CHARACTERS = 10_000


def evaluate(text: str):
    """The value of a text: an integer, a bool, or lists and tuples of them.

    Raises:
        ValueError: for anything else, and for texts that are too long, nested too
            deeply, or repeat more than 1000 entries.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"there may be {MOST_CHARACTERS} characters at most")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def _value(node):
    match node:
        case ast.Constant(value=bool() | int() as value):
            return value
        case ast.List(elts=entries):
            return [_value(entry) for entry in entries]
        case ast.Tuple(elts=entries):
            return tuple(_value(entry) for entry in entries)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _repeated(_value(left), _value(right))
    raise ValueError(f"{type(node).__name__} is not allowed")


def _repeated(left, right):
    """left * right, unless it would be huge: "[(1, 1)] * 1000000000" is 8 GB."""
    for entries, times in ((left, right), (right, left)):
        repeated = isinstance(entries, (list, tuple)) and isinstance(times, int)
        if repeated and len(entries) * times > MOST_ENTRIES:
            raise ValueError(f"more than {MOST_ENTRIES} entries")
    return left * right
