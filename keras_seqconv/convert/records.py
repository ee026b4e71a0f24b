"""Options and tensors of a checkpoint by name, and a record of what was used.

What would change the model and is not understood is noted in a list of problems, all
of it, so that a user sees everything at once.
"""

import re
from collections.abc import Callable

import numpy as np

from keras_seqconv.models.gated_stack import evaluate

# Options that a model reads and that may only have a value that changes nothing.
_REFUSED = (
    "adaptive_input", "base_layers", "char_embeddings", "char_inputs",
    "character_embeddings", "cross_self_attention", "layernorm_embedding",
    "merge_src_tgt_embed", "no_cross_attention", "no_scale_embedding", "scale_attn",
    "scale_fc", "scale_heads", "scale_resids",
)  # fmt: skip
# Options of a side that matter only while training or before the weights were loaded.
_HARMLESS = re.compile(
    r"(encoder|decoder)_(embed_path|layerdrop|freeze_embed|xformers_att_config"
    r"|(in|out)put_dim|attention_query_heads|(conv|query)_dim|(glu|gau)|conv_type)"
    r"|(encoder|decoder)_hidden_size"
)
# What is computed, or copied from other tensors, or never used: counters, sinusoids,
# the bias that HEAD's DynamicConv makes and never initialises, what fairseq 0.12's
# Transformer copies for PyTorch's fast path, and ConvS2S's caches of a search.
_COMPUTED = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.weights)"
    r"|.*\._float_tensor|.*\.conv\.conv_bias|decoder\.adaptive_softmax\.version"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
    r"|decoder\.convolutions\.\d+\._linearized_weight"
)


class Options:
    """fairseq's hyper-parameters, and which were asked for."""

    def __init__(self, options: dict, problems: list):
        self._options, self._problems, self._used = dict(options), problems, set()
        for side in ("encoder", "decoder"):  # configurations of HEAD are nested
            nested = self._options.pop(side, None)
            if isinstance(nested, dict):
                self._options |= {f"{side}_{key}": nested[key] for key in nested}

    def get(self, name: str, read: Callable = lambda value: value, default=None):
        """What `read` makes of an option; `default` where it is missing or None.

        Also, and noted, where `read` refuses it; its docstring is the rule.
        """
        self._used.add(name)
        value = self._options.get(name)
        if value is None:
            return default
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError):
            self._problems.append(f"option {name}={value!r} must be {read.__doc__}")
            return default

    def flag(self, name: str, default: bool = False) -> bool:
        return self.get(name, flag, default)

    def number(self, name: str, default: float = 0.0) -> float:
        return self.get(name, number, default)

    def required(self, name: str) -> int:
        """A positive integer that no tensor tells; 1, and a problem noted, without."""
        if self._options.get(name) is None:
            self._problems.append(f"option {name} is missing")
        return self.get(name, positive, 1)

    def refuse(self, *names: str) -> None:
        """Note options that are set and that the model at hand cannot express."""
        for name in names:
            if self._options.get(name):
                self._problems.append(
                    f"option {name}={self._options[name]!r} is not supported"
                )

    def must_be(self, name: str, stored, declared=None) -> None:
        """Note an option, if it is set, that is not what the tensors say."""
        declared = self.get(name, integer) if declared is None else declared
        if declared is not None and declared != stored:
            self._problems.append(
                f"option {name}={declared!r} contradicts the tensors, which say "
                f"{stored}"
            )

    def check_all_understood(self) -> None:
        """Note every set option of an encoder or decoder that nobody asked for."""
        self.refuse(*(name for name in _REFUSED if name not in self._used))
        for name, value in sorted(self._options.items()):
            sided = name.startswith(("encoder_", "decoder_"))
            if not sided or name in self._used or _HARMLESS.fullmatch(name):
                continue
            if value not in (None, False, 0, "", "False", "0", [], ()):
                self._problems.append(f"option {name}={value!r} is not understood")


# --- How options are read; the docstring is what they must be ---


def number(value) -> float:
    """a number"""
    return float(value)


def integer(value) -> int:
    """an integer"""
    if not float(value).is_integer():
        raise ValueError
    return int(value)


def positive(value) -> int:
    """a positive integer"""
    if integer(value) < 1:
        raise ValueError
    return int(value)


def flag(value) -> bool:
    """True or False"""
    words = {"true": True, "1": True, "false": False, "0": False, "": False}
    if isinstance(value, str):
        value = words.get(value.strip().lower())
    if value not in (True, False):  # 1 and 0 equal them
        raise ValueError
    return bool(value)


def integers(value) -> list[int]:
    """a list of integers"""
    if isinstance(value, str):  # "[3,7] * 2 + [15]", "10000,20000"
        value = evaluate(value.strip() or "[]")
    value = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(type(entry) is int for entry in value):
        raise ValueError
    return value


def switches(value):
    """a bool or a list of bools"""
    return evaluate(value) if isinstance(value, str) else value


def activation(value) -> str:
    """one of relu, gelu, tanh, linear"""
    if value not in ("relu", "gelu", "tanh", "linear"):
        raise ValueError
    return value


class Weights:
    """Tensors, each to be used exactly once."""

    def __init__(self, arrays: dict, problems: list):
        self._arrays, self.problems, self._used = arrays, problems, set()

    def has(self, name: str) -> bool:
        return name in self._arrays

    def any(self, prefix: str) -> bool:
        """Whether any name begins like this."""
        return any(name.startswith(prefix) for name in self._arrays)

    def size(self, name: str, axis: int) -> int:
        """A size of a tensor; 1 where it is missing, which is noted when it is used."""
        shape = self._arrays[name].shape if self.has(name) else ()
        return shape[axis] if -len(shape) <= axis < len(shape) else 1

    def total(self) -> int:
        """The numbers of all tensors."""
        return sum(array.size for array in self._arrays.values())

    def count(self, pattern: str) -> int:
        """Entries of a list: different numbers that `pattern` (a group) finds."""
        matches = [re.match(pattern, name) for name in self._arrays]
        return len({match[1] for match in matches if match})

    def first(self, *names: str) -> str:
        """The first of the names that exists; the first of all when none does."""
        return next((name for name in names if self.has(name)), names[0])

    def take(self, name: str) -> np.ndarray | None:
        """A tensor, from now on used; None, and a problem noted, where missing."""
        if not self.has(name):
            self.problems.append(f"tensor {name} is missing")
            return None
        if name in self._used:
            raise AssertionError(f"{name} is used twice")
        self._used.add(name)
        return self._arrays[name]

    def put(self, variable, *names: str, arrange=lambda array: array) -> None:
        """Assign what `arrange` makes of tensors, mostly of one, to a variable."""
        self.assign(variable, {name: self.take(name) for name in names}, arrange)

    def assign(self, variable, arrays: dict, arrange=lambda array: array) -> None:
        """Assign what `arrange` makes of tensors that were taken, by their names."""
        if any(array is None for array in arrays.values()):
            return
        try:
            array = arrange(*arrays.values())
        except (ValueError, IndexError):  # too few entries, or axes
            array = None
        if array is not None and array.shape == tuple(variable.shape):
            variable.assign(array)
            return
        given = ", ".join(f"{name} {arrays[name].shape}" for name in arrays)
        made = "no such shape" if array is None else f"shape {array.shape}"
        problem = (
            f"tensor {given} gives {made}, where the model that the options describe "
            f"has {tuple(variable.shape)}"
        )
        if problem not in self.problems:  # a tensor may go into several variables
            self.problems.append(problem)

    def dense(self, layer, name: str) -> None:
        """A linear layer: (out, in) of torch to (in, out) of Keras."""
        self.put(layer.kernel, f"{name}.weight", arrange=np.transpose)
        if layer.use_bias:
            self.put(layer.bias, f"{name}.bias")

    def norm(self, layer, name: str) -> None:
        """A layer normalization."""
        self.put(layer.gamma, f"{name}.weight")
        self.put(layer.beta, f"{name}.bias")

    def must_equal(self, name: str, other: str) -> None:
        """Use up a tensor that is tied to another one, if it was stored as well."""
        if not self.has(name):
            return
        array = self.take(name)
        if self.has(other) and not np.array_equal(array, self._arrays[other]):
            self.problems.append(
                f"tensor {name} differs from {other}, to which the options tie it"
            )

    def check_all_used(self) -> None:
        """Note every tensor that no layer took."""
        for name in sorted(set(self._arrays) - self._used):
            if not _COMPUTED.fullmatch(name):
                shape = self._arrays[name].shape
                self.problems.append(f"tensor {name} {shape} belongs to no layer")
