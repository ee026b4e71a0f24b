"""Configurations that earlier versions wrote, in today's words."""

from keras_seqconv.models.stacks import SIDES, SPECIAL_IDS, maker, of_side, parameters

# Options of all mixers, which were arguments of the models once.
_ONCE_ARGUMENTS = (
    "num_conv_heads", "conv_dim", "query_dim", "gate", "query_groups",
    "permute_channels", "compat", "kernel_softmax", "weight_dropout_mask",
    "input_dropout",
)  # fmt: skip


def where_now(name: str) -> str:
    """Where an argument of earlier versions is now, or "", for an error."""
    if name in _ONCE_ARGUMENTS:
        return 'It is an option of `mixer` now: {"kind": ..., and options}. '
    if name.removesuffix("_id") in SPECIAL_IDS:
        return "It is in `special_ids` now. "
    return "It is in `positions` now. " if name == "max_length" else ""


def current_arguments(config: dict) -> dict:
    """A model's configuration, also of a file of an older version, in today's words.

    Options of the mixers stood beside `mixer` (and `use_glu` and `gate` were one),
    `max_length` beside `positions`, and special ids were four arguments.
    """
    config = dict(config)
    ids = {k: config.pop(f"{k}_id") for k in SPECIAL_IDS if f"{k}_id" in config}
    if ids:
        config["special_ids"] = ids
    if "convolutions" in config:
        return config
    options = {key: config.pop(key) for key in _ONCE_ARGUMENTS if key in config}
    max_length = config.pop("max_length", None)

    def by_side(value_of):
        if "vocabulary_size" in config:  # a language model
            return value_of(None)
        values = {side: value_of(side) for side in SIDES}
        same = values["encoder"] == values["decoder"]
        return values["encoder"] if same else values

    def mixers(side):
        chosen = {key: of_side(key, value, side) for key, value in options.items()}
        mixer = of_side("mixer", config.get("mixer", "dynamic_conv"), side)
        if isinstance(mixer, (list, tuple)):
            return [_with_options(kind, chosen) for kind in mixer]
        return _with_options(mixer, chosen)

    def positions(side):
        kind = of_side("positions", config["positions"], side)
        length = of_side("max_length", max_length, side)
        return {"kind": kind, "max_length": length} if kind == "learned" else kind

    if options:
        config["mixer"] = by_side(mixers)
    if max_length is not None and "positions" in config:
        config["positions"] = by_side(positions)
    return config


def _with_options(kind, options):
    """A mixer with those of the options that it knows."""
    if kind == "attention":
        return kind
    gate = options.get("gate", "glu")
    options = {
        **options,
        "num_heads": options.get("num_conv_heads"),
        "gate": gate,
        "use_glu": gate == "glu",
    }
    names = parameters(maker(kind, kind))
    known = {k: v for k, v in options.items() if k in names and v is not None}
    return {"kind": kind, **known}
