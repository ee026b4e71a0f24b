"""Options and tensors of a checkpoint by name, and a record of those that were used.

All that would change the model and is not understood is collected as problems, so that
a user sees everything at once.
"""

import re
from collections.abc import Callable

import numpy as np

from keras_seqconv.models.gated_stack import evaluate

# Options that a model reads and that may only have a value that changes nothing.
_REFUSED = (
    "adaptive_input", "add_bos_token", "base_layers", "char_embeddings", "char_inputs",
    "character_embeddings", "cross_self_attention", "layernorm_embedding",
    "merge_src_tgt_embed", "no_cross_attention", "no_scale_embedding", "scale_attn",
    "scale_fc", "scale_heads", "scale_resids",
)  # fmt: skip
# Options of a side that tensors tell, or that matter only while training or before the
# weights were loaded.
_NOT_NEEDED = re.compile(
    r"(encoder|decoder)_(final_norm|embed_path|layerdrop|freeze_embed|xformers_att_config"
    r"|(in|out)put_dim|attention_query_heads|(conv|query)_dim|(glu|gau)|conv_type"
    r"|((out|ffn)_)?embed_dim|layers|kernel_size_list|attention|hidden_size)"
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
_KINDS = {
    bool: "True or False", float: "a number", int: "a positive integer",
    list: "a list of integers", str: "a text", object: "a value of Python",
}  # fmt: skip


class ConversionError(ValueError):
    """Raised for a checkpoint that cannot be converted; `problems` lists all causes."""

    def __init__(self, path, problems: list[str]):
        self.problems = list(dict.fromkeys(problems))
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{path} cannot be converted:{lines}")


class FairseqOptions:
    """fairseq's hyper-parameters, and which were asked for."""

    def __init__(self, options: dict, problems: list):
        self._options, self._problems, self._used = dict(options), problems, set()
        for side in ("encoder", "decoder"):  # configurations of HEAD are nested
            nested = self._options.pop(side, None)
            if isinstance(nested, dict):
                self._options |= {f"{side}_{key}": nested[key] for key in nested}

    def get(self, name: str, kind: type, default=None):
        """An option of a kind that `_KINDS` has, perhaps written as text.

        Where it is None or missing, or of another kind, which is noted: `default`, or
        else False or 0.0 of a bool or float, and None.
        """
        self._used.add(name)
        value = self._options.get(name)
        if default is None and kind in (bool, float):
            default = kind()
        if value is None:
            return default
        try:
            return _read(value, kind)
        except (TypeError, ValueError, OverflowError):
            self._problems.append(f"option {name}={value!r} must be {_KINDS[kind]}")
            return default

    def refuse(self, *names: str) -> None:
        """Note options that are set and that the model at hand cannot express."""
        for name in names:
            if self._options.get(name):
                self._problems.append(
                    f"option {name}={self._options[name]!r} is not supported"
                )

    def check_all_understood(self) -> None:
        """Notes each option of an encoder or decoder that is set and was not read."""
        self.refuse(*(name for name in _REFUSED if name not in self._used))
        for name, value in sorted(self._options.items()):
            sided = name.startswith(("encoder_", "decoder_"))
            if not sided or name in self._used or _NOT_NEEDED.fullmatch(name):
                continue
            if value not in (None, False, 0, "", "False", "0", [], ()):
                self._problems.append(f"option {name}={value!r} is not understood")


def _read(value, kind: type):
    if kind in (float, str):
        return kind(value)
    if isinstance(value, str):  # "[3, 7] * 2 + [15]", "10000,20000", "True"
        value = evaluate(value)
    if kind is object:
        return value
    if kind is bool and value in (True, False):  # 1 and 0 equal them
        return bool(value)
    several = kind is list and isinstance(value, (list, tuple))
    entries = list(value) if several else [value]
    if kind is bool or not all(type(n) is int and n > 0 for n in entries):
        raise ValueError
    return entries if kind is list else value


class Weights:
    """Tensors, each to be used exactly once."""

    def __init__(self, arrays: dict, problems: list):
        self.arrays, self.problems, self._used = dict(arrays), problems, set()

    def count(self, prefix: str) -> int:
        """Number of different words that follow a prefix of names."""
        rests = (n.removeprefix(prefix) for n in self.arrays if n.startswith(prefix))
        return len({rest.split(".")[0] for rest in rests})

    def size(self, name: str, axis: int) -> int:
        """A size of a tensor; 1 where it is missing, which is noted when it is used."""
        shape = self.arrays[name].shape if name in self.arrays else ()
        return shape[axis] if -len(shape) <= axis < len(shape) else 1

    def first(self, *names: str) -> str:
        """The first of the names that exists; the last of all when none does."""
        return next((name for name in names if name in self.arrays), names[-1])

    def split(self, name: str, names: list[str]) -> None:
        """Put parts of equal length, by names of their own, for a tensor."""
        array = self.arrays.get(name)
        if array is not None and array.ndim and len(array) % len(names) == 0:
            parts = np.split(self.arrays.pop(name), len(names))
            self.arrays |= dict(zip(names, parts, strict=True))

    def put(
        self, variable, *names: str, arrange: Callable = lambda array: array
    ) -> None:
        """Assigns `arrange(*tensors)`, mostly of one tensor, to a variable."""
        missing = [name for name in names if name not in self.arrays]
        self.problems += [f"tensor {name} is missing" for name in missing]
        if self._used & set(names):
            raise AssertionError(f"{names} are used twice")
        self._used |= set(names)
        if missing:
            return
        arrays = [self.arrays[name] for name in names]
        try:
            array = arrange(*arrays)
        except (ValueError, IndexError, TypeError):  # too few entries, or axes
            array = None
        if array is not None and array.shape == tuple(variable.shape):
            variable.assign(array)
            return
        stored = ", ".join(f"{name} {self.arrays[name].shape}" for name in names)
        shape = "no such shape" if array is None else f"shape {array.shape}"
        self.problems.append(
            f"tensor {stored} gives {shape}, where the model that the rest describes "
            f"has {tuple(variable.shape)}"
        )

    def dense(self, layer, name: str) -> None:
        """A linear layer: (out, in) of torch to (in, out) of Keras."""
        self.put(layer.kernel, f"{name}.weight", arrange=np.transpose)
        if layer.use_bias:
            self.put(layer.bias, f"{name}.bias")

    def norm(self, layer, *names: str) -> None:
        """A layer normalization by any of these names."""
        self.put(layer.gamma, self.first(*(f"{name}.weight" for name in names)))
        self.put(layer.beta, self.first(*(f"{name}.bias" for name in names)))

    def weight_norm(self, layer, name: str) -> None:
        """A convolution (K, in, out) or a linear layer (out, in), as v and its norm g.

        A plain kernel is v, and its norm g.
        """
        v, g, plain = (f"{name}.weight{end}" for end in ("_v", "_g", ""))
        axes = tuple(range(len(layer.v.shape) - 1))
        arrange = np.transpose if len(axes) == 1 else np.array
        kernel = None if v in self.arrays else self.arrays.pop(plain, None)
        shapes = [self.arrays[each].shape for each in (v, g) if each in self.arrays]
        if len(shapes) == 2 and shapes[1] == (*shapes[0][:1], 1, 1):
            # Files from before 2018: the norm of each tap (in, out).
            kernel = self.arrays[v]
            kernel = (kernel * (self.arrays[g] / _norm(kernel, (1, 2)))).astype("f4")
        if kernel is not None:
            self.arrays[v] = kernel
            self.arrays[g] = _norm(arrange(kernel), axes)
        self.put(layer.v, v, arrange=arrange)
        self.put(layer.g, g, arrange=np.ravel)
        self.put(layer.bias, f"{name}.bias")

    def must_equal(self, name: str, other: str) -> None:
        """Use up a tensor that is tied to another one, if it was stored as well."""
        if name not in self.arrays:
            return
        self._used.add(name)
        same = np.array_equal(self.arrays[name], self.arrays.get(other))
        if other in self.arrays and not same:
            self.problems.append(
                f"tensor {name} differs from {other}, to which the options tie it"
            )

    def check_all_used(self) -> None:
        """Note every tensor that no layer took."""
        for name in sorted(set(self.arrays) - self._used):
            if not _COMPUTED.fullmatch(name):
                shape = self.arrays[name].shape
                self.problems.append(f"tensor {name} {shape} belongs to no layer")


def _norm(array, axes):
    return np.sqrt(np.sum(np.square(array, dtype="float64"), axes, keepdims=True))
