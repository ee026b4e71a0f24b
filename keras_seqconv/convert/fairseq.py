"""From a checkpoint of fairseq to a model with the same logits."""

import os
from pathlib import Path

from keras_seqconv.convert import blocks, convolutions
from keras_seqconv.convert.checkpoint import Checkpoint, read_arrays, read_checkpoint
from keras_seqconv.convert.options import Options
from keras_seqconv.convert.weights import Weights
from keras_seqconv.models import SequenceModel
from keras_seqconv.tokenizers import Dictionary


class ConversionError(ValueError):
    """A checkpoint that cannot become a model; `problems` lists all that was found."""

    def __init__(self, path, problems: list[str]):
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{path} cannot be converted:{lines}")


def from_fairseq(
    checkpoint: str | os.PathLike,
    source_dictionary: str | os.PathLike | Dictionary | None = None,
    target_dictionary: str | os.PathLike | Dictionary | None = None,
    dtype=None,
) -> SequenceModel:
    """A model from a checkpoint of fairseq.

    LightConv, DynamicConv, mixtures of both, the query-projected DynamicConv of
    choyi0521's branch dev6, ConvS2S and the Transformer, and their language models;
    files of 2018 to today. Nothing that is in the file is executed and fairseq is not
    needed. Ids are those of fairseq: 0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`; decoding
    starts from `</s>`.

        logits = model({"source_ids": ids, "target_ids": ids})   those of fairseq

    Args:
        checkpoint: a file that `fairseq-train` wrote (needs the package torch, extra
            `convert`), or a folder with `weights.npz` and `args.json`.
        source_dictionary: `dict.<language>.txt` or a `Dictionary`; where given, its
            size must be that of the embedding.
        target_dictionary: the same of the target, or of a language model.
        dtype: dtype or policy of the model.

    Returns:
        `EncoderDecoder`, `ConvS2S`, `LanguageModel` or `ConvLanguageModel`.

    Raises:
        FileNotFoundError: without such a file.
        ImportError: without torch, for a file that needs it.
        ConversionError: a ValueError that lists everything in the way at once: options
            that are set and not supported, tensors that are missing, of other shapes
            than the options say, or left over.
        ValueError: for a file that is damaged, no checkpoint, or names anything in its
            pickle that a checkpoint does not need.
    """
    dictionaries = {
        name: dictionary
        if isinstance(dictionary, Dictionary)
        else Dictionary.read(dictionary)
        for name, dictionary in (
            ("source", source_dictionary),
            ("target", target_dictionary),
        )
        if dictionary is not None
    }
    return _convert(_read(checkpoint), dictionaries, dtype)


def _read(checkpoint) -> Checkpoint:
    folder = Path(checkpoint)
    if folder.is_dir():
        return read_arrays(folder / "weights.npz", folder / "args.json")
    return read_checkpoint(checkpoint)


def _convert(checkpoint, dictionaries, dtype):
    problems = []
    options = Options(checkpoint.options, problems)
    weights = Weights(checkpoint.weights, problems)
    build = _builder(weights)
    if build is None:
        raise ConversionError(
            checkpoint.path,
            ["its tensors are of no model that the package knows (no `fc1` in layers)"],
        )
    try:
        model = build(options, weights, dtype)
    except ValueError as error:
        # What the options describe is no model; what was noted so far may say why.
        raise ConversionError(checkpoint.path, [*problems, str(error)]) from error
    weights.check_all_used()
    options.check_all_understood()
    problems += _wrong_sizes(model, dictionaries)
    if problems:
        raise ConversionError(checkpoint.path, problems)
    return model


def _builder(weights):
    """The family, from the names of the tensors: `arch` may be any user's own."""
    translation = weights.any("encoder.")
    if weights.any("decoder.convolutions."):
        family = (convolutions.conv_s2s, convolutions.conv_language_model)
    elif weights.any("decoder.layers."):
        family = (blocks.encoder_decoder, blocks.language_model)
    else:
        return None
    return family[0] if translation else family[1]


def _wrong_sizes(model, dictionaries):
    sizes = {"target": model.target_vocabulary_size}
    if hasattr(model, "source_embedder"):
        sizes["source"] = model.source_embedder.tokens.vocabulary_size
    return [
        f"the {name} dictionary has {len(dictionary)} symbols, the embedding "
        f"{sizes.get(name, 'is missing')}"
        for name, dictionary in dictionaries.items()
        if len(dictionary) != sizes.get(name)
    ]
