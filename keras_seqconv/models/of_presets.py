"""Models by the names of their presets."""

import copy
import inspect

from keras_seqconv.models.conv_s2s import ConvS2S
from keras_seqconv.models.earlier_versions import where_now
from keras_seqconv.models.encoder_decoder import EncoderDecoder
from keras_seqconv.models.language_models import ConvLanguageModel, LanguageModel
from keras_seqconv.models.sequence_model import SequenceModel
from keras_seqconv.models.stacks import SIDES, of_side
from keras_seqconv.presets import PRESETS
from keras_seqconv.support.arguments import near

_MODELS = {
    model.__name__: model
    for model in (EncoderDecoder, ConvS2S, LanguageModel, ConvLanguageModel)
}


def list_presets() -> list[str]:
    """The names that `from_preset` takes; `keras-seqconv presets` says more of them."""
    return list(PRESETS)


def from_preset(
    name: str,
    *,
    source_vocabulary_size: int | None = None,
    target_vocabulary_size: int | None = None,
    vocabulary_size: int | None = None,
    **overrides,
) -> SequenceModel:
    """A model with the architecture, and the dropout, of a preset and fresh weights.

    Args:
        name: one of `list_presets()`.
        source_vocabulary_size, target_vocabulary_size: of a translation model. One of
            them is enough where all embeddings are shared.
        vocabulary_size: of a language model.
        **overrides: arguments of the model's constructor that replace the preset's.
            With another number of layers, a list that the preset gives layer by layer
            (`kernel_sizes`) is cut, or goes on with its last entry.

    Returns:
        An `EncoderDecoder`, `ConvS2S`, `LanguageModel` or `ConvLanguageModel`.

    Raises:
        ValueError: for an unknown name or override, with those that come near, and for
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
    if name not in PRESETS:
        raise ValueError(
            f"`name` must be one of `list_presets()`. {near(name, PRESETS)}"
            f"Received: name={name!r}"
        )
    preset = PRESETS[name]
    model = _MODELS[preset.model]
    allowed = {*inspect.signature(model.__init__).parameters, "dtype"}
    allowed -= {"self", "kwargs"}
    for key in overrides:
        if key not in allowed:
            raise ValueError(
                f"{preset.model} has no argument `{key}`. "
                f"{where_now(key) or near(key, allowed)}"
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
    return model(**_sizes(sizes, preset, allowed, arguments), **arguments)


def _sizes(sizes, preset, allowed, arguments):
    """Those vocabulary sizes that the model takes, all of them given."""
    given = {key: size for key, size in sizes.items() if size is not None}
    if arguments.get("share_embeddings") == "all" and len(given) == 1:
        (size,) = given.values()
        given = {key: size for key in sizes if key in allowed}
    wanted = [key for key in sizes if key in allowed]
    if sorted(given) != sorted(wanted):
        raise ValueError(
            f"{preset.name} needs {' and '.join(f'`{key}`' for key in wanted)}. "
            f"Received: {', '.join(f'{k}={v}' for k, v in given.items()) or 'none'}"
        )
    return given


def _fitted(value, overrides):
    """An option of the preset, its lists brought to other numbers of layers."""

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
