"""The configuration of a model: arguments of its constructor, and later changes.

Keras may quantize the layers of a model, give them LoRA and freeze parts of them. Files
must bring that back, for it says which variables there are and which are trained:

    {"quantized": {layer: mode, or a serialized `QuantizationConfig`},
     "lora": {layer: [rank, alpha]},
     "frozen": [variable, ...]}

with the numbers of layers and variables in the order that the constructor makes. Of
LoRA, Keras writes the sum of kernel and product; its matrices are read as zeros.
"""

import keras

from keras_seqconv.layers.sequences import quantize_layers, quantized_layers
from keras_seqconv.support.arguments import check_integer, plain

SPECIAL_IDS = {"pad": 1, "start": 2, "end": 2, "unk": 3}  # those of fairseq


def configuration_of(arguments: dict) -> dict:
    """The arguments of a model's constructor, its `locals()`, as JSON can hold them.

    Raises:
        ValueError: for wrong vocabulary sizes, special ids, seed or dtype, which all
            models have.
    """
    hidden = ("self", "__class__")
    config = plain({k: value for k, value in arguments.items() if k not in hidden})
    ids = config["special_ids"] or {}
    if not isinstance(ids, dict) or not set(ids) <= set(SPECIAL_IDS):
        raise ValueError(
            f"`special_ids` must be a dictionary with some of the keys "
            f"{tuple(SPECIAL_IDS)}. Received: special_ids={ids!r}"
        )
    config["special_ids"] = ids = SPECIAL_IDS | ids
    for name in [name for name in config if name.endswith("vocabulary_size")]:
        size = check_integer(name, config[name], 1)
        for key in ("pad",) if name.startswith("source") else ids:
            if type(ids[key]) is not int or not 0 <= ids[key] < size:
                raise ValueError(
                    f"`special_ids` must be integers from 0 to `{name}` - 1. "
                    f"Received: special_ids={ids}, {name}={size}"
                )
    if ids["pad"] == ids["end"]:
        raise ValueError(
            "`special_ids` must be different for pad and end: no padding is learned. "
            f"Received: special_ids={ids}"
        )
    if config["seed"] is not None:
        check_integer("seed", config["seed"], 0)
    policy = keras.dtype_policies.get(config["dtype"])  # None: the global one
    if isinstance(policy, keras.dtype_policies.QuantizedDTypePolicy):
        raise ValueError(
            "`dtype` must be no quantized policy: call `quantize` of the model. "
            f"Received: dtype={policy.name!r}"
        )
    # By name, where it has one: a plain configuration can be read and written by hand.
    named = type(policy) is keras.dtype_policies.DTypePolicy
    config["dtype"] = (
        policy.name if named else keras.saving.serialize_keras_object(policy)
    )
    return config


def changes_of(model) -> dict:
    """Returns the changes of a model; empty for a new model."""
    lora = {}
    for number, layer in enumerate(model._flatten_layers(include_self=False)):
        if getattr(layer, "lora_enabled", False):
            lora[str(number)] = [layer.lora_rank, layer.lora_alpha]
    frozen = [
        number
        for number, variable in enumerate(model.variables)
        if keras.backend.is_float_dtype(variable.dtype) and not variable.trainable
    ]
    changes = {"quantized": quantized_layers(model), "lora": lora, "frozen": frozen}
    return {name: change for name, change in changes.items() if change}


def repeat(changes: dict, model) -> None:
    """Make the changes to a model that is as its constructor makes it."""
    quantize_layers(model, changes.get("quantized", {}))
    layers = model._flatten_layers(include_self=False)
    for number, (rank, alpha) in changes.get("lora", {}).items():
        layers[int(number)].enable_lora(rank, lora_alpha=alpha)
    variables = model.variables
    frozen = {id(v): v for v in (variables[n] for n in changes.get("frozen", ()))}
    for layer in (model, *layers):  # what is frozen as a whole is trainable as a whole
        trained = layer.trainable_variables
        if trained and all(id(variable) in frozen for variable in trained):
            layer.trainable = False
    for variable in frozen.values():
        variable.trainable = False


def folded(model):
    """The model, or a folded copy of a model with weight normalization."""
    if not hasattr(model, "fold") or model.get_config().get("folded"):
        return model
    copy = model.copy_with()
    copy.fold()
    return copy
