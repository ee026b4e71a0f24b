"""Text in, text out: translators, their files, and the folder a model is kept in."""

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_seqconv.support.arguments import check_choice

if TYPE_CHECKING:  # the folder is looked at before Keras is loaded
    from keras_seqconv.runtime.onnx_model import OnnxModel
    from keras_seqconv.translation.translator import LanguageGenerator, Translator

RUNTIMES = ("auto", "onnx", "keras")


def load(
    directory: str | os.PathLike, dtype=None, runtime: str = "keras"
) -> "Translator | LanguageGenerator":
    """Reads a model directory: model, tokenizers, search options.

    Directories from unknown sources are safe: they hold JSON, arrays, text and graphs,
    and nothing is executed. A model loads on any Keras backend.

    Args:
        directory: folder of `Translator.save`, training or `keras-seqconv
            convert-fairseq`.
        dtype: dtype or policy of the model; by default that of the saved model. Only
            Keras has it.
        runtime: "keras"; "onnx" for the graphs in the directory, in ONNX Runtime on
            the CPU, without an import of Keras, TensorFlow or JAX; or "auto", ONNX
            Runtime if the directory has graphs that work, `dtype` is None and the
            machine has no GPU or TPU (`devices.accelerator`). Otherwise a warning
            names the reason, and Keras is used.

    Returns:
        A `Translator`, or for language models a `LanguageGenerator`.

    Raises:
        FileNotFoundError, ValueError, ImportError: see `model_directory.read`; or the
            directory has no graphs for "onnx", or graphs that do not work.
    """
    return load_ensemble([directory], dtype, graphs_of([directory], dtype, runtime))


def load_ensemble(
    directories: Sequence[str | os.PathLike],
    dtype=None,
    graphs: "OnnxModel | None" = None,
) -> "Translator | LanguageGenerator":
    """Reads model directories; several make a `decoding.Ensemble`.

    Args:
        directories: one or more. Search options, and notes about the training, are
            those of the first; `max_source_length` is the smallest.
        dtype: see `load`.
        graphs: result of `graphs_of` for the directories: the model in ONNX Runtime,
            or None for Keras.

    Raises:
        ValueError: no directories, or different languages, tokenizers or kinds of
            models; names the directories. For other errors see `load`.
    """
    from keras_seqconv.decoding import Ensemble
    from keras_seqconv.translation.model_directory import tokenizer_fingerprint

    directories = [*directories]
    members = [_loaded(path, dtype, graphs) for path in directories]
    if not members:
        raise ValueError("`directories` must name a model directory. Received: none")
    first, *further = members
    if not further:
        return first
    expectations: dict = {}
    for directory, member in zip(directories, members, strict=True):
        traits = {"kind": type(member).__name__}
        for side in ("source", "target", "text"):
            tokenizer = member.tokenizers.get(side)
            traits[f"{side} tokenizer"] = tokenizer_fingerprint(tokenizer)[:16]
        languages = (member.source_language, member.target_language)
        if languages != (None, None):  # unknown ones fit all
            traits["languages"] = languages
        for name, trait in traits.items():
            where, expected = expectations.setdefault(name, (directory, trait))
            if trait != expected:
                raise ValueError(
                    f"The models must have the same {name}. Received: "
                    f"{where} ({expected}), {directory} ({trait})"
                )
    model = graphs or Ensemble([member.model for member in members])
    options = {"search": first.search}
    if "languages" in expectations:
        options["languages"] = expectations["languages"][1]
    lengths = [m.chosen_length for m in members if m.chosen_length]
    if lengths:
        options["max_source_length"] = min(lengths)
    ensemble = type(first)(model, *first.tokenizers.values(), **options)
    ensemble.trained = first.trained
    return ensemble


def _loaded(directory, dtype, graphs):
    from keras_seqconv.translation import model_directory
    from keras_seqconv.translation.translator import LanguageGenerator, Translator

    contents = model_directory.read(directory, dtype, with_model=graphs is None)
    contents["model"] = contents["model"] or graphs
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


def graphs_of(
    directories: Sequence[str | os.PathLike],
    dtype=None,
    runtime: str = "auto",
    quantize: str | None = None,
) -> "OnnxModel | None":
    """The models of directories in ONNX Runtime, or None for Keras.

    Other arguments, errors and warning as in `load`; several models make an ensemble.
    `quantize`: "int8" or None, of products in the graphs.
    """
    from keras_seqconv.devices import accelerator
    from keras_seqconv.translation import model_directory

    check_choice("runtime", runtime, RUNTIMES)
    folders = [*map(model_directory.model_folder, directories)]
    if runtime == "keras":
        return None
    try:
        if dtype is not None:
            raise ValueError(f"only Keras has a `dtype`. Received: dtype={dtype!r}")
        if runtime == "auto" and (device := accelerator()):
            raise ValueError(f"there is a {device}.")
        graphs = [*map(model_directory.find_graphs, folders)]
        names = ", ".join(map(str, graphs))
        with model_directory.naming_file(names, "holds no graphs that work"):
            from keras_seqconv.runtime.onnx_model import OnnxModel

            return OnnxModel(*graphs, quantize=quantize)
    except (ImportError, FileNotFoundError, ValueError) as error:
        if runtime == "onnx":
            raise
        warnings.warn(f"Keras is used, not ONNX Runtime: {error}", stacklevel=3)
        return None
