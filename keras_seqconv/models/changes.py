"""Changes that Keras makes to the layers of a model, as a part of its configuration.

A model is built by the arguments of its constructor, and may then be quantized, given
LoRA and be frozen in parts. Files must bring all of that back, for it says which
variables there are and which are trained:

    {"quantized": {layer: mode, or a serialized `QuantizationConfig`},
     "lora": {layer: [rank, alpha]},
     "frozen": [variable, ...]}

with the numbers of layers and variables in the order that the constructor makes. Of
LoRA, Keras writes the sum of kernel and product; its matrices are read as zeros.
"""

import keras

from keras_seqconv.layers.sequences import quantize_layers, quantized_layers


def changes_of(model) -> dict:
    """Returns the changes of a model; empty for a new model."""
    lora = {}
    for number, layer in enumerate(_layers(model)):
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
    layers = _layers(model)
    for number, (rank, alpha) in changes.get("lora", {}).items():
        layers[int(number)].enable_lora(rank, lora_alpha=alpha)
    variables = model.variables
    for number in changes.get("frozen", ()):
        variables[number].trainable = False


def _layers(model):
    return model._flatten_layers(include_self=False)


def folded(model):
    """The model without weight normalization; the one that is given is unchanged."""
    if not hasattr(model, "fold") or model.get_config().get("folded"):
        return model
    copy = model.copy_with()
    copy.fold()
    return copy
