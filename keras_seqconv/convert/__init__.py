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
    search: dict | None = None,
    dtype=None,
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
        search: options of the search that differ from fairseq's defaults.
        dtype: dtype or policy of the model.
        **text_options: `moses`, `normalize`, `aggressive_dash_splits`, `escape`,
            `lowercase` of `DictionaryTokenizer`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: see `from_fairseq`; or a file is ambiguous or does not belong to the
            model.
        ImportError: torch, sacremoses or subword-nmt is missing.
    """
    folder = Path(checkpoint)
    published = folder.is_dir()
    content = read_checkpoint(_checkpoint_in(folder) if published else folder)
    translates = is_translation_model(content)
    tables = {"source": source_dictionary, "target": target_dictionary}
    unwanted = [dictionary]
    if not translates:
        unwanted, tables = list(tables.values()), {"target": dictionary}
    if any(unwanted) or (not published and None in tables.values()):
        names = ["`source_dictionary` and `target_dictionary`", "`dictionary`"]
        wanted, unwanted = names if translates else names[::-1]
        raise ValueError(
            f"The checkpoint is a {'translation' if translates else 'language'} model: "
            f"{wanted} must be given, and no {unwanted}. fairseq writes them beside "
            "the binarized data: dict.de.txt, dict.en.txt; dict.txt"
        )
    languages = {"source": source_language, "target": target_language}
    for side in languages:
        language = content.options.get(f"{side}_lang")
        if languages[side] is None and isinstance(language, str):
            languages[side] = language if re.fullmatch(r"[\w-]+", language) else None
    codes = {"source": source_bpe_codes, "target": target_bpe_codes}
    moses = text_options.get("moses") or text_options.get("normalize")
    tokenizers = []
    for side, table in tables.items():
        language = languages[side]
        if table is None:
            table = _dictionary_in(folder, side, language, translates)
        if published and codes[side] is None:
            codes[side] = _codes_in(folder)
        tokenizer = DictionaryTokenizer(
            Dictionary.read(table),
            language=check_language(f"{side}_language", language) if moses else None,
            bpe_codes=codes[side] and read_text(codes[side]),
            **text_options,
        )
        tokenizers.append(tokenizer)
    dictionaries = [tokenizer.dictionary for tokenizer in tokenizers]
    pieces = [
        name
        for tokenizer in tokenizers
        for name in tokenizer.dictionary.symbols
        if name.endswith("@@") and tokenizer.bpe_codes is None
    ]
    if pieces:
        warnings.warn(
            f"A dictionary has parts of words, such as {pieces[0]!r}, and there are no "
            "byte-pair codes that split words into them: texts must be split already, "
            f"and stay so. {_GIVE_CODES}",
            stacklevel=2,
        )
    if translates:
        model = from_fairseq(content, *dictionaries, dtype=dtype)
        known = tuple(languages.values())
        return Translator(model, *tokenizers, search, languages=known)
    model = from_fairseq(content, target_dictionary=dictionaries[0], dtype=dtype)
    return LanguageGenerator(model, *tokenizers, search)


# --- What lies in a folder ---


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


def _dictionary_in(folder: Path, side: str, language: str | None, translates) -> Path:
    path = folder / (f"dict.{language}.txt" if translates else "dict.txt")
    if not path.exists():
        there = ", ".join(sorted(entry.name for entry in folder.glob("dict.*")))
        raise ValueError(
            f"{folder} must hold {path.name} of the {side}, and it holds "
            f"{there or 'no dictionary'}. Give `{side}_language` or the dictionary"
        )
    return path


def _codes_in(folder: Path) -> Path | None:
    codes = sorted(p for p in folder.iterdir() if _CODES.fullmatch(p.name))
    if len(codes) > 1:
        names = ", ".join(path.name for path in codes)
        raise ValueError(f"{folder} holds {names}. {_GIVE_CODES}")
    return codes[0] if codes else None
