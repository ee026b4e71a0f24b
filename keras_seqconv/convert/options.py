"""fairseq's hyper-parameters to the arguments of the package's models.

`options` are what a checkpoint carries (`args` or `cfg["model"]`). What the tensors say
themselves (widths, gates, which mixer) is read from them instead, since the options of
old files have gaps. Whatever would change the model and is not understood is reported,
all of it at once.
"""

import re

from keras_seqconv.models.notation import evaluate

# Options that a model reads and that may only have a value that changes nothing.
_REFUSED = (
    "adaptive_input",
    "base_layers",
    "char_embeddings",
    "char_inputs",
    "character_embeddings",
    "cross_self_attention",
    "layernorm_embedding",
    "merge_src_tgt_embed",
    "no_cross_attention",
    "no_scale_embedding",
    "scale_attn",
    "scale_fc",
    "scale_heads",
    "scale_resids",
)
# Options of a side that matter only while training or before the weights were loaded.
_HARMLESS = re.compile(
    r"(encoder|decoder)_(embed_path|layerdrop|freeze_embed|xformers_att_config"
    r"|(in|out)put_dim|attention_query_heads|(conv|query)_dim|(glu|gau)|conv_type)"
    r"|(encoder|decoder)_hidden_size"
)
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "tanh": "tanh", "linear": "linear"}


class Options:
    """Typed access to options, and a record of which were understood."""

    def __init__(self, options: dict, problems: list):
        self._options = dict(options)
        self._problems = problems
        self._used = set()
        for side in ("encoder", "decoder"):  # configurations of HEAD are nested
            nested = self._options.pop(side, None)
            if isinstance(nested, dict):
                self._options |= {f"{side}_{key}": nested[key] for key in nested}

    def raw(self, name: str, default=None):
        """The value as it stands in the file; `default` where it is missing or None."""
        self._used.add(name)
        value = self._options.get(name)
        return default if value is None else value

    def number(self, name: str, default=None):
        value = self.raw(name, default)
        try:
            return value if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            return self._wrong(name, value, "a number", default)

    def integer(self, name: str, default=None):
        value = self.number(name, default)
        if value is None or value == default or value.is_integer():
            return value if value is None else int(value)
        return self._wrong(name, value, "an integer", default)

    def positive(self, name: str) -> int:
        """A positive integer that no tensor tells; 1, and a problem noted, without."""
        value = self.integer(name)
        if value is not None and value > 0:
            return value
        if self._options.get(name) is None:
            self._problems.append(f"option {name} is missing")
        elif value is not None:
            self._wrong(name, value, "a positive integer")
        return 1

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw(name, default)
        if isinstance(value, str):
            words = {"true": True, "1": True, "false": False, "0": False, "": False}
            if value.strip().lower() not in words:
                return self._wrong(name, value, "True or False", default)
            return words[value.strip().lower()]
        if value not in (True, False):  # 1 and 0 equal them
            return self._wrong(name, value, "True or False", default)
        return bool(value)

    def numbers(self, name: str) -> list | None:
        """A list, also in the notations "[3,7] * 2 + [15]" and "10000,20000"."""
        value = self.raw(name)
        if isinstance(value, str):
            try:
                value = evaluate(value.strip() or "[]")
            except ValueError:
                return self._wrong(name, value, "a list of integers")
        if value is None:
            return None
        value = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(type(entry) is int for entry in value):
            return self._wrong(name, value, "a list of integers")
        return value

    def switches(self, name: str, default: bool):
        """One bool, or a list of bools, also as text ("[True] * 3 + [False]")."""
        value = self.raw(name, default)
        if isinstance(value, str):
            try:
                value = evaluate(value)
            except ValueError:
                return self._wrong(name, value, "a bool or a list of bools", default)
        return value

    def activation(self) -> str:
        name = self.raw("activation_fn", "relu")
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            return self._wrong("activation_fn", name, f"one of {[*_ACTIVATIONS]}")
        return _ACTIVATIONS[name]

    def refuse(self, *names: str) -> None:
        """Note options that are set and that the model at hand cannot express."""
        for name in names:
            if self._options.get(name):
                self._problems.append(
                    f"option {name}={self._options[name]!r} is not supported"
                )

    def must_be(self, name: str, found: int) -> None:
        """Note a number that contradicts what the tensors say."""
        self.must_agree(name, self.integer(name), found)

    def must_agree(self, name: str, declared, found) -> None:
        """Note a declared value, if there is one, that is not what tensors say."""
        if declared is not None and declared != found:
            self._problems.append(
                f"option {name}={declared!r} contradicts the tensors, which say {found}"
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

    def _wrong(self, name, value, rule, default=None):
        self._problems.append(f"option {name}={value!r} must be {rule}")
        return default
