"""From a checkpoint of fairseq with its dictionaries to a model that takes text.

A published archive is a folder of `model.pt`, `dict.<language>.txt` and `bpecodes`.
"""

import os
import re
import warnings
from pathlib import Path

from keras_seqconv.convert.checkpoint import read_arrays, read_checkpoint
from keras_seqconv.convert.fairseq import from_fairseq
from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from keras_seqconv.translator import Translator

_ARRAYS = ("weights.npz", "args.json")
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
    languages = {"source": source_language, "target": target_language}
    path = Path(checkpoint)
    _check_files({"checkpoint": path, **files})
    if path.is_dir():
        path = _complete(path, files, languages)
    _check_choice(files)
    _add_languages(path, languages)
    known = tuple(languages.values())
    if text_options.get("moses") or text_options.get("normalize"):
        sides = ["target"] if files["dictionary"] else ["source", "target"]
        for side in sides:
            # Moses would look for a file of this name.
            if not re.fullmatch("[a-z]{2,3}", languages[side] or ""):
                raise ValueError(
                    f"`{side}_language` must be two or three small letters, such as "
                    "'de', for Moses' steps, given or in the checkpoint. "
                    f"Received: {languages[side]!r}"
                )
    else:
        languages = {"source": None, "target": None}

    def tokenizer(file, side):
        codes = files[f"{side}_bpe_codes"]
        return DictionaryTokenizer(
            Dictionary.read(files[file]),
            language=languages[side],
            bpe_codes=None if codes is None else _text_of(codes),
            **text_options,
        )

    if files["dictionary"] is not None:
        tokenizers = [tokenizer("dictionary", "target")]
    else:
        tokenizers = [
            tokenizer(f"{side}_dictionary", side) for side in ("source", "target")
        ]
    for one in tokenizers:
        pieces = [symbol for symbol in one.dictionary.symbols if symbol[-2:] == "@@"]
        if pieces and one.bpe_codes is None:
            warnings.warn(
                f"A dictionary has parts of words, such as {pieces[0]!r}, and there "
                "are no byte-pair codes that split words into them: texts must be "
                f"split already, and stay so. {_GIVE_CODES}",
                stacklevel=2,
            )
            break
    model = from_fairseq(path, dtype=dtype)
    _check_sizes(model, tokenizers, files)
    if len(tokenizers) == 1:
        return LanguageGenerator(model, *tokenizers, search)
    return Translator(model, *tokenizers, search, languages=known)


def _check_files(files: dict):
    for name, path in files.items():
        if path is None:
            continue
        if not path.exists():
            raise FileNotFoundError(f"`{name}`: there is no file {path}.")
        if path.is_dir() and name != "checkpoint":
            raise ValueError(f"`{name}` must be a file. {path} is a folder.")


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


# --- What lies in a folder ---


def _complete(folder: Path, files: dict, languages: dict) -> Path:
    """Adds the files that were not given; returns the checkpoint."""
    names = {entry.name for entry in folder.iterdir() if entry.is_file()}
    checkpoint = _checkpoint(folder, names)
    given = any(files[name] for name in files if name.endswith("dictionary"))
    if not given and "dict.txt" in names:
        files["dictionary"] = folder / "dict.txt"
    if files["dictionary"] is None:
        _add_dictionaries(folder, names, checkpoint, files, languages)
    sides = ["target"] if files["dictionary"] else ["source", "target"]
    codes = sorted(filter(_CODES.fullmatch, names))
    for name in (f"{side}_bpe_codes" for side in sides):
        if files[name] is None and len(codes) > 1:
            raise ValueError(f"{folder} holds {', '.join(codes)}. {_GIVE_CODES}")
        if files[name] is None and codes:
            files[name] = folder / codes[0]
    return checkpoint


def _checkpoint(folder: Path, names: set) -> Path:
    found = sorted(name for name in names if name.endswith(".pt"))
    if "model.pt" in found:
        return folder / "model.pt"
    if set(_ARRAYS) <= names:
        return folder
    if len(found) != 1:
        listed = f"it holds {', '.join(found)}" if found else "it holds no *.pt"
        raise ValueError(
            f"{folder} must hold model.pt or one *.pt; {listed}. Name the checkpoint "
            "file itself, and the dictionaries"
        )
    return folder / found[0]


def _add_dictionaries(folder, names, checkpoint, files, languages):
    for side in ("source", "target"):
        if files[f"{side}_dictionary"] is not None:
            continue
        _add_languages(checkpoint, languages)
        name = f"dict.{languages[side]}.txt"
        if languages[side] is None or name not in names:
            there = sorted(n for n in names if n.startswith("dict."))
            raise ValueError(
                f"{folder} must hold dict.<language>.txt of the {side}; "
                f"`{side}_language` is {languages[side]}, and it holds "
                f"{', '.join(there) or 'no dictionary'}. Give `{side}_language` or "
                f"`{side}_dictionary`"
            )
        files[f"{side}_dictionary"] = folder / name


def _add_languages(checkpoint: Path, languages: dict):
    """From the options in the checkpoint, where they are not given."""
    if None not in languages.values():
        return
    read = read_arrays if checkpoint.is_dir() else read_checkpoint
    options = read(checkpoint).options
    for side, name in (("source", "source_lang"), ("target", "target_lang")):
        found = options.get(name)
        if languages[side] is None and isinstance(found, str) and found.isalnum():
            languages[side] = found


def _check_sizes(model, tokenizers: list, files: dict):
    translates = hasattr(model, "source_embedder")
    if translates and len(tokenizers) == 1:
        raise ValueError(
            "The checkpoint is a translation model: `source_dictionary` and "
            "`target_dictionary` must be given instead of `dictionary`"
        )
    if not translates and len(tokenizers) == 2:
        raise ValueError(
            "The checkpoint is a language model: `dictionary` must be given instead of "
            "`source_dictionary` and `target_dictionary`"
        )
    sizes = [model.target_vocabulary_size]
    names = ["dictionary"]
    if translates:
        sizes.insert(0, model.source_embedder.tokens.vocabulary_size)
        names = ["source_dictionary", "target_dictionary"]
    for name, size, tokenizer in zip(names, sizes, tokenizers, strict=True):
        if tokenizer.vocabulary_size != size:
            raise ValueError(
                f"`{name}` must be the dictionary that the model was trained with, of "
                f"{size} symbols with the four special ones. Received: {files[name]} "
                f"with {tokenizer.vocabulary_size}"
            )
