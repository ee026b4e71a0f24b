"""Models and translators of fairseq's checkpoints.

A published archive is a folder of `model.pt`, `dict.<language>.txt` and `bpecodes`.
"""

import os
import re
import warnings
from pathlib import Path

from keras_seqconv.convert.checkpoint import read_checkpoint
from keras_seqconv.convert.fairseq import from_fairseq, is_translation_model
from keras_seqconv.convert.records import ConversionError
from keras_seqconv.support.arguments import public_names
from keras_seqconv.support.files import read_text
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from keras_seqconv.tokenizers.moses_bpe import check_language
from keras_seqconv.translation.translator import LanguageGenerator, Translator

__dir__ = public_names(globals())

__all__ = ["ConversionError", "from_fairseq", "translator_from_fairseq"]

_CODES = re.compile(r"bpecodes|codes?|codes\..+")
_GIVE_CODES = "Give `source_bpe_codes` and `target_bpe_codes`"


def translator_from_fairseq(
    checkpoint: str | os.PathLike,
    source_dictionary: str | os.PathLike | None = None,
    target_dictionary: str | os.PathLike | None = None,
    dictionary: str | os.PathLike | None = None,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    source_bpe_codes: str | os.PathLike | None = None,
    target_bpe_codes: str | os.PathLike | None = None,
    **text_options,
) -> Translator | LanguageGenerator:
    """Builds a model from a checkpoint of fairseq, with tokenizers of its dictionaries.

    Args:
        checkpoint: file of `fairseq-train`, or a folder with `model.pt`, a single
            `*.pt`, or `weights.npz` with `args.json`. A folder also provides the
            dictionaries (`dict.<language>.txt`; `dict.txt` of a language model) and
            byte-pair codes (`bpecodes`, `code`, `codes` or `codes.*`) not given here.
        source_dictionary, target_dictionary: dictionaries of a translation model.
        dictionary: dictionary of a language model.
        source_language, target_language: languages, by default those of the checkpoint.
            They name the dictionaries of a folder, and Moses needs them.
        source_bpe_codes, target_bpe_codes: files of subword-nmt; for a language model
            the latter. Without codes, a dictionary with `@@` gives a warning, because
            texts must then be split into byte pairs.
        **text_options: `moses`, `normalize`, `aggressive_dash_splits`, `escape`,
            `lowercase` of `DictionaryTokenizer`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: see `from_fairseq`; or a file is ambiguous or does not belong to the
            model.
        ImportError: torch, sacremoses or subword-nmt is missing.
    """
    path = Path(checkpoint)
    content = read_checkpoint(_checkpoint_in(path) if path.is_dir() else path)
    translates = is_translation_model(content)
    dictionaries = {"source": source_dictionary, "target": target_dictionary}
    _check_dictionaries(translates, path.is_dir(), dictionaries.values(), dictionary)
    languages = {
        "source": source_language or _language_of(content, "source_lang"),
        "target": target_language or _language_of(content, "target_lang"),
    }
    codes = {"source": source_bpe_codes, "target": target_bpe_codes}
    if not translates:
        dictionaries = {"target": dictionary}
    tokenizers = []
    for side, file in dictionaries.items():
        if file is None:
            name = f"dict.{languages[side]}.txt" if translates else "dict.txt"
            remedy = f"`{side}_language` or the" if translates else "`dictionary`, a"
            file = _dictionary_in(path, side, name, remedy)
        codes_file = codes[side]
        if codes_file is None and path.is_dir():
            codes_file = _codes_in(path)
        language = None
        if text_options.get("moses") or text_options.get("normalize"):
            language = check_language(f"{side}_language", languages[side])
        tokenizer = DictionaryTokenizer(
            Dictionary.read(file),
            language=language,
            bpe_codes=codes_file and read_text(codes_file),
            **text_options,
        )
        tokenizers.append(tokenizer)
    _warn_of_pieces(tokenizers)
    *source, target = (tokenizer.dictionary for tokenizer in tokenizers)
    model = from_fairseq(content, *(source or [None]), target)
    if not translates:
        return LanguageGenerator(model, *tokenizers)
    return Translator(model, *tokenizers, languages=tuple(languages.values()))


def _check_dictionaries(translates, is_folder, of_sides, of_language_model) -> None:
    """ValueError where those of the other kind of model are given, or some are not."""
    wanted = [*of_sides] if translates else [of_language_model]
    unwanted = [of_language_model] if translates else [*of_sides]
    if any(unwanted) or (None in wanted and not is_folder):
        rules = (
            "a language model: `dictionary` must be given, and no `source_dictionary` "
            "and `target_dictionary`",
            "a translation model: `source_dictionary` and `target_dictionary` must be "
            "given, and no `dictionary`",
        )
        raise ValueError(
            f"The checkpoint is {rules[translates]}. fairseq writes them beside the "
            "binarized data: dict.de.txt, dict.en.txt; dict.txt"
        )


def _language_of(checkpoint, option: str) -> str | None:
    language = checkpoint.options.get(option)
    is_code = isinstance(language, str) and re.fullmatch(r"[\w-]+", language)
    return language if is_code else None


def _warn_of_pieces(tokenizers) -> None:
    """A warning where a dictionary has parts of words that no codes make."""
    for tokenizer in tokenizers:
        pieces = [x for x in tokenizer.dictionary.symbols if x.endswith("@@")]
        if pieces and tokenizer.bpe_codes is None:
            warnings.warn(
                f"A dictionary has parts of words, such as {pieces[0]!r}, and there "
                "are no byte-pair codes that split words into them: texts must be "
                f"split already, and stay so. {_GIVE_CODES}",
                stacklevel=3,
            )
            return


# --- Files of a folder ---


def _checkpoint_in(folder: Path) -> Path:
    names = sorted(path.name for path in folder.glob("*.pt"))
    if "model.pt" in names:
        return folder / "model.pt"
    if (folder / "weights.npz").exists() and (folder / "args.json").exists():
        return folder
    if len(names) != 1:
        raise ValueError(
            f"{folder} must hold model.pt or one *.pt; it holds "
            f"{', '.join(names) or 'no *.pt'}. Name the checkpoint file itself, and "
            "the dictionaries"
        )
    return folder / names[0]


def _dictionary_in(folder: Path, side: str, name: str, remedy: str) -> Path:
    path = folder / name
    if not path.exists():
        names = ", ".join(sorted(entry.name for entry in folder.glob("dict.*")))
        raise ValueError(
            f"{folder} must hold {name} of the {side}, and it holds "
            f"{names or 'no dictionary'}. Give {remedy} dictionary"
        )
    return path


def _codes_in(folder: Path) -> Path | None:
    codes = sorted(p for p in folder.iterdir() if _CODES.fullmatch(p.name))
    if len(codes) > 1:
        names = ", ".join(path.name for path in codes)
        raise ValueError(f"{folder} holds {names}. {_GIVE_CODES}")
    return codes[0] if codes else None
