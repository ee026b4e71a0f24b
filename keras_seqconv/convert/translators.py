"""From a checkpoint of fairseq with its dictionaries to a model that takes text.

A published archive is a folder of `model.pt`, `dict.<language>.txt` and `bpecodes`.
"""

import os
import re
import warnings
from pathlib import Path

from keras_seqconv.convert.checkpoint import read_checkpoint
from keras_seqconv.convert.fairseq import from_fairseq
from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from keras_seqconv.translator import Translator

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
    """A model from a checkpoint of fairseq, with tokenizers from its dictionaries.

    Args:
        checkpoint: a file that `fairseq-train` wrote, or a folder: then `model.pt`, or
            the only `*.pt`, or `weights.npz` with `args.json` is taken from it, and
            what is not given of the dictionaries (`dict.<language>.txt`; `dict.txt` of
            a language model) and of the byte-pair codes (`bpecodes`, `code`, `codes` or
            `codes.*`; ValueError where there are several).
        source_dictionary, target_dictionary: of a translation model.
        dictionary: of a language model.
        source_language, target_language: by default what the checkpoint says. They
            name the dictionaries of a folder, and Moses needs them.
        source_bpe_codes, target_bpe_codes: files of subword-nmt; of a language model
            the latter.
            Without them a dictionary with `@@` in it is a warning: texts must be split
            already then, and stay so.
        search: options of the search that differ from fairseq's defaults.
        dtype: dtype or policy of the model.
        **text_options: `moses`, `normalize`, `aggressive_dash_splits`, `escape`,
            `lowercase` of `DictionaryTokenizer`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: see `from_fairseq`; and where a file must be chosen that is not
            named, or does not belong to the model.
        ImportError: torch, sacremoses or subword-nmt is missing.
    """
    given = {
        "source_dictionary": source_dictionary,
        "target_dictionary": target_dictionary,
        "dictionary": dictionary,
        "source_bpe_codes": source_bpe_codes,
        "target_bpe_codes": target_bpe_codes,
    }
    files = {name: None if path is None else Path(path) for name, path in given.items()}
    for name, path in files.items():
        if path is not None and not path.exists():
            raise FileNotFoundError(f"`{name}`: there is no file {path}.")
        if path is not None and path.is_dir():
            raise ValueError(f"`{name}` must be a file. {path} is a folder.")
    folder = path = Path(checkpoint)
    if folder.is_dir():
        path = _checkpoint_in(folder)
    else:
        _check_choice(files)
    content = read_checkpoint(path)
    languages = {"source": source_language, "target": target_language}
    for side in languages:
        language = content.options.get(f"{side}_lang")
        if languages[side] is None and isinstance(language, str) and language.isalnum():
            languages[side] = language
    if folder.is_dir():
        _complete(folder, files, languages)
        _check_choice(files)
    sides = ("source", "target") if files["dictionary"] is None else ("target",)
    moses = text_options.get("moses") or text_options.get("normalize")
    tokenizers = []
    for side in sides:
        language = languages[side]
        # Moses would look for a file of this name.
        if moses and not re.fullmatch("[a-z]{2,3}", language or ""):
            raise ValueError(
                f"`{side}_language` must be two or three small letters, such as 'de', "
                "for Moses' steps, given or in the checkpoint. "
                f"Received: {language!r}"
            )
        codes = files[f"{side}_bpe_codes"]
        tokenizer = DictionaryTokenizer(
            Dictionary.read(files["dictionary"] or files[f"{side}_dictionary"]),
            language=language if moses else None,
            bpe_codes=None if codes is None else _text_of(codes),
            **text_options,
        )
        tokenizers.append(tokenizer)
    _warn_of_pieces(tokenizers)
    translates = any(name.startswith("encoder.") for name in content.weights)
    if translates != (len(sides) == 2):
        kind = ("language", "translation")[translates]
        names = ["`dictionary`", "`source_dictionary` and `target_dictionary`"]
        wanted, unwanted = names[translates], names[not translates]
        raise ValueError(
            f"The checkpoint is a {kind} model: {wanted} must be given instead of "
            f"{unwanted}"
        )
    dictionaries = [tokenizer.dictionary for tokenizer in tokenizers]
    if translates:
        model = from_fairseq(content, *dictionaries, dtype=dtype)
        known = (languages["source"], languages["target"])
        return Translator(model, *tokenizers, search, languages=known)
    model = from_fairseq(content, target_dictionary=dictionaries[0], dtype=dtype)
    return LanguageGenerator(model, *tokenizers, search)


def _check_choice(files: dict):
    pair = (files["source_dictionary"], files["target_dictionary"])
    if files["dictionary"] is not None and pair != (None, None):
        raise ValueError(
            "`dictionary` is for language models, `source_dictionary` and "
            "`target_dictionary` are for translation. Received: both"
        )
    if files["dictionary"] is None and None in pair:
        raise ValueError(
            "`source_dictionary` and `target_dictionary` must be given for a "
            "translation model, or `dictionary` for a language model. fairseq writes "
            "them beside the binarized data: dict.de.txt, dict.en.txt; dict.txt"
        )


def _text_of(codes: Path) -> str:
    try:
        return codes.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{codes} must be valid UTF-8 ({error})") from error


def _warn_of_pieces(tokenizers):
    for tokenizer in tokenizers:
        pieces = [name for name in tokenizer.dictionary.symbols if name[-2:] == "@@"]
        if pieces and tokenizer.bpe_codes is None:
            warnings.warn(
                f"A dictionary has parts of words, such as {pieces[0]!r}, and there "
                "are no byte-pair codes that split words into them: texts must be "
                f"split already, and stay so. {_GIVE_CODES}",
                stacklevel=3,
            )
            return


# --- What lies in a folder ---


def _checkpoint_in(folder: Path) -> Path:
    names = sorted(path.name for path in folder.glob("*.pt"))
    if "model.pt" in names:
        return folder / "model.pt"
    if (folder / "weights.npz").exists() and (folder / "args.json").exists():
        return folder
    if len(names) != 1:
        listed = f"it holds {', '.join(names)}" if names else "it holds no *.pt"
        raise ValueError(
            f"{folder} must hold model.pt or one *.pt; {listed}. Name the checkpoint "
            "file itself, and the dictionaries"
        )
    return folder / names[0]


def _complete(folder: Path, files: dict, languages: dict) -> None:
    """Adds the dictionaries and codes that were not given."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    given = any(files[name] for name in files if name.endswith("dictionary"))
    if not given and "dict.txt" in names:
        files["dictionary"] = folder / "dict.txt"
    sides = ("source", "target") if files["dictionary"] is None else ()
    for side in sides:
        name = f"dict.{languages[side]}.txt"
        if files[f"{side}_dictionary"] is not None:
            continue
        if languages[side] is None or name not in names:
            there = sorted(name for name in names if name.startswith("dict."))
            raise ValueError(
                f"{folder} must hold dict.<language>.txt of the {side}; "
                f"`{side}_language` is {languages[side]}, and it holds "
                f"{', '.join(there) or 'no dictionary'}. Give `{side}_language` or "
                f"`{side}_dictionary`"
            )
        files[f"{side}_dictionary"] = folder / name
    codes = sorted(filter(_CODES.fullmatch, names))
    for name in (f"{side}_bpe_codes" for side in sides or ("target",)):
        if files[name] is None and len(codes) > 1:
            raise ValueError(f"{folder} holds {', '.join(codes)}. {_GIVE_CODES}")
        if files[name] is None and codes:
            files[name] = folder / codes[0]
