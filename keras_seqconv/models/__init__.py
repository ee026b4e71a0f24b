"""Models of convolutional sequence learning, and the Transformer as their baseline."""

import copy
import inspect

from keras_seqconv.models.conv_s2s import ConvLanguageModel as ConvLanguageModel
from keras_seqconv.models.conv_s2s import ConvS2S as ConvS2S
from keras_seqconv.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from keras_seqconv.models.encoder_decoder import LanguageModel as LanguageModel
from keras_seqconv.models.sequence_model import SequenceModel as SequenceModel
from keras_seqconv.models.stacks import MIXERS as MIXERS
from keras_seqconv.models.stacks import SIDES, of_side
from keras_seqconv.presets import PRESETS, preset_of
from keras_seqconv.support.arguments import near, plain, public_names

__dir__ = public_names(globals())

CLASSES = {
    cls.__name__: cls
    for cls in (EncoderDecoder, ConvS2S, LanguageModel, ConvLanguageModel)
}


def list_presets() -> list[str]:
    """Lists the names for `from_preset`; `keras-seqconv presets` describes them."""
    return list(PRESETS)


def from_preset(
    name: str,
    *,
    source_vocabulary_size: int | None = None,
    target_vocabulary_size: int | None = None,
    vocabulary_size: int | None = None,
    **overrides,
) -> SequenceModel:
    """Builds a model of a preset's architecture and dropout with fresh weights.

    Args:
        name: one of `list_presets()`.
        source_vocabulary_size, target_vocabulary_size: for translation models. One of
            them is enough if all embeddings are shared.
        vocabulary_size: for language models.
        **overrides: arguments of the model's constructor that replace the preset's.
            With a different number of layers, a preset's list with one entry per layer
            (`kernel_sizes`) is cut, or its last entry is repeated.

    Returns:
        An `EncoderDecoder`, `ConvS2S`, `LanguageModel` or `ConvLanguageModel`.

    Raises:
        ValueError: unknown name or override, with similar names in the message, or
            missing vocabulary sizes.

    Example:

    ```python
    model = keras_seqconv.models.from_preset(
        "dynamic_conv_multi30k",
        source_vocabulary_size=1000,
        target_vocabulary_size=1000,
        dropout=0.1,
    )
    ```
    """
    preset = preset_of(name)
    model = CLASSES[preset.model]
    allowed = {*inspect.signature(model.__init__).parameters} - {"self"}
    for key in overrides:
        if key not in allowed:
            raise ValueError(
                f"{preset.model} has no argument `{key}`. {near(key, allowed)}"
                f"Received: {key}={overrides[key]!r}"
            )
    arguments = {**copy.deepcopy(preset.architecture), **overrides}
    for key in {"kernel_sizes", "mixer"} - set(overrides):
        if key in arguments:
            arguments[key] = _fitted(arguments[key], overrides)
    sizes = {
        "source_vocabulary_size": source_vocabulary_size,
        "target_vocabulary_size": target_vocabulary_size,
        "vocabulary_size": vocabulary_size,
    }
    wanted = [key for key in sizes if key in allowed]
    passed = {key: size for key, size in sizes.items() if size is not None}
    if arguments.get("share_embeddings") == "all" and len(passed) == 1:
        passed = dict.fromkeys(wanted, *passed.values())
    if sorted(passed) != sorted(wanted):
        raise ValueError(
            f"{name} needs {' and '.join(f'`{key}`' for key in wanted)}. "
            f"Received: {', '.join(f'{k}={v}' for k, v in passed.items()) or 'none'}"
        )
    return model(**passed, **arguments)


def _fitted(value, overrides):
    """An option of the preset, its lists brought to other numbers of layers."""
    overrides = plain(overrides)

    def resized(value, number):
        if not isinstance(value, list) or not isinstance(number, int):
            return value
        return [*value, *value[-1:] * (number - len(value))][:number]

    if "num_layers" in overrides:
        return resized(value, overrides["num_layers"])
    numbers = {side: overrides.get(f"num_{side}_layers") for side in SIDES}
    if not any(numbers.values()):
        return value
    return {side: resized(of_side("", value, side), numbers[side]) for side in SIDES}
