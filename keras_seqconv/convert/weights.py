"""fairseq's tensors, each to be used exactly once, into the layers of a model."""

import re

import numpy as np

# What is computed, or copied from other tensors, or never used: counters, sinusoids,
# the bias that HEAD's DynamicConv makes and never initialises, what fairseq 0.12's
# Transformer copies for PyTorch's fast path, and ConvS2S's caches of a search.
_COMPUTED = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.weights)"
    r"|.*\._float_tensor|.*\.conv\.conv_bias|decoder\.adaptive_softmax\.version"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
    r"|decoder\.convolutions\.\d+\._linearized_weight"
)


class Weights:
    """Tensors by name, and a record of which were used."""

    def __init__(self, arrays: dict, problems: list):
        self._arrays = arrays
        self._problems = problems
        self._used = set()

    def has(self, name: str) -> bool:
        return name in self._arrays

    def any(self, prefix: str) -> bool:
        """Whether any name begins like this."""
        return any(name.startswith(prefix) for name in self._arrays)

    def require(self, name: str, reason: str) -> None:
        """Note, with the reason, that a tensor is missing which carries no numbers."""
        if not self.has(name):
            self._problems.append(f"tensor {name} is missing: {reason}")

    def shape(self, name: str) -> tuple | None:
        """The shape of a tensor, None where it is missing."""
        return self._arrays[name].shape if self.has(name) else None

    def size(self, name: str, axis: int) -> int:
        """A size of a tensor; 1 where it is missing, which is noted when it is used."""
        shape = self.shape(name) or ()
        return shape[axis] if -len(shape) <= axis < len(shape) else 1

    def total(self) -> int:
        """The numbers of all tensors."""
        return sum(array.size for array in self._arrays.values())

    def count(self, pattern: str) -> int:
        """Entries of a list: different numbers that `pattern` (a group) finds."""
        found = [re.match(pattern, name) for name in self._arrays]
        return len({match[1] for match in found if match})

    def first(self, *names: str) -> str:
        """The first of the names that exists; the first of all when none does."""
        return next((name for name in names if self.has(name)), names[0])

    def take(self, name: str) -> np.ndarray | None:
        """A tensor, from now on used; None, and a problem noted, where missing."""
        if not self.has(name):
            self._problems.append(f"tensor {name} is missing")
            return None
        if name in self._used:
            raise AssertionError(f"{name} is used twice")
        self._used.add(name)
        return self._arrays[name]

    def put(self, variable, *names: str, arrange=lambda array: array) -> None:
        """Assign what `arrange` makes of tensors, mostly of one, to a variable."""
        arrays = {name: self.take(name) for name in names}
        if all(array is not None for array in arrays.values()):
            self.assign(variable, arrays, arrange)

    def assign(self, variable, arrays: dict, arrange=lambda array: array) -> None:
        """Assign what `arrange` makes of tensors that were taken, by their names."""
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
        if problem not in self._problems:  # a tensor may go into several variables
            self._problems.append(problem)

    def dense(self, layer, name: str) -> None:
        """A linear layer with bias: (out, in) of torch to (in, out) of Keras."""
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
            self._problems.append(
                f"tensor {name} differs from {other}, to which the options tie it"
            )

    def check_all_used(self) -> None:
        """Note every tensor that no layer took."""
        for name in sorted(set(self._arrays) - self._used):
            if not _COMPUTED.fullmatch(name):
                shape = self._arrays[name].shape
                self._problems.append(f"tensor {name} {shape} belongs to no layer")
