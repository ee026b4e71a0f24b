"""Text in, text out: translators, their files, and the folder a model is kept in."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the folder is looked at before Keras is loaded
    from keras_seqconv.translation.translator import LanguageGenerator, Translator


def load(directory: str | os.PathLike, dtype=None) -> "Translator | LanguageGenerator":
    """Reads a model directory: model, tokenizers, search options.

    Directories from unknown sources are safe: they hold JSON, arrays and text, and
    nothing is executed. A model loads on any Keras backend.

    Args:
        directory: folder of `Translator.save`, training or `keras-seqconv
            convert-fairseq`.
        dtype: dtype or policy of the model; by default that of the saved model.

    Returns:
        A `Translator`, or for language models a `LanguageGenerator`.

    Raises:
        FileNotFoundError, ValueError, ImportError: see `model_directory.read`.
    """
    from keras_seqconv.translation import model_directory
    from keras_seqconv.translation.translator import LanguageGenerator, Translator

    contents = model_directory.read(directory, dtype)
    trained = contents.pop("trained")
    folder = model_directory.model_folder(directory)
    with model_directory.naming_file(folder, "holds no model that works"):
        if contents["model"].has_source:
            loaded = Translator(**contents)
        else:
            names = ("model", "target_tokenizer", "search")
            loaded = LanguageGenerator(*map(contents.get, names))
        loaded.trained = None if trained is None else dict(trained)
        return loaded


def load_ensemble(
    directories: Sequence[str | os.PathLike], dtype=None
) -> "Translator | LanguageGenerator":
    """Reads model directories; several make a `decoding.Ensemble`.

    Args:
        directories: one or more. Search options are those of the first.
        dtype: see `load`.

    Raises:
        ValueError: no directories, or different languages, tokenizers or kinds of
            models; names the directories. For other errors see `load`.
    """
    from keras_seqconv.decoding import Ensemble
    from keras_seqconv.translation.model_directory import tokenizer_fingerprint

    members = {directory: load(directory, dtype) for directory in directories}
    if not members:
        raise ValueError("`directories` must name a model directory. Received: none")
    first, *others = members.values()
    if not others:
        return first
    known: dict = {}
    for directory, member in members.items():
        traits = {"kind": type(member).__name__}
        for side in ("source", "target", "text"):
            tokenizer = member.tokenizers.get(side)
            traits[f"{side} tokenizer"] = tokenizer_fingerprint(tokenizer)[:16]
        languages = (member.source_language, member.target_language)
        if languages != (None, None):  # unknown ones fit all
            traits["languages"] = languages
        for name, trait in traits.items():
            where, expected = known.setdefault(name, (directory, trait))
            if trait != expected:
                raise ValueError(
                    f"The models must have the same {name}. Received: "
                    f"{where} ({expected}), {directory} ({trait})"
                )
    model = Ensemble([member.model for member in members.values()])
    options = {"search": first.search}
    if "languages" in known:
        options["languages"] = known["languages"][1]
    return type(first)(model, *first.tokenizers.values(), **options)
