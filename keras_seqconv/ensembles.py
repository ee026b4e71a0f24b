"""Several model directories as one translator."""

import os
from collections.abc import Sequence

from keras_seqconv.decoding import Ensemble
from keras_seqconv.fingerprints import tokenizer_fingerprint
from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.translator import Translator, load


def load_ensemble(
    directories: Sequence[str | os.PathLike], dtype=None
) -> Translator | LanguageGenerator:
    """Reads model directories; several decode as one, see `decoding.Ensemble`.

    Args:
        directories: one or more. Search options are those of the first.
        dtype: see `keras_seqconv.load`.

    Returns:
        A `Translator`, or for language models a `LanguageGenerator`.

    Raises:
        ValueError: there are none, the tokenizers are not the same, or one is a
            language model and another one is not; names the directories.
        FileNotFoundError, ImportError: see `keras_seqconv.load`.
    """
    directories = list(directories)
    if not directories:
        raise ValueError("`directories` must name a model directory. Received: none")
    members = [load(directory, dtype) for directory in directories]
    if len(members) == 1:
        return members[0]
    kinds = {type(member) for member in members}
    if len(kinds) > 1:
        raise ValueError(
            "All models must translate, or all be language models. Received: "
            + ", ".join(
                f"{directory} ({type(member).__name__})"
                for directory, member in zip(directories, members, strict=True)
            )
        )
    names = ["tokenizer"]
    if isinstance(members[0], Translator):
        names = ["source_tokenizer", "target_tokenizer"]
    for name in names:
        known = [tokenizer_fingerprint(getattr(member, name)) for member in members]
        for directory, fingerprint in zip(directories, known, strict=True):
            if fingerprint != known[0]:
                raise ValueError(
                    f"The models must have the same {name.replace('_', ' ')}; those of "
                    f"{directories[0]} and {directory} differ."
                )
    more = {}
    if isinstance(members[0], Translator):
        more["languages"] = _languages(directories, members)
    model = Ensemble([member.model for member in members])
    tokenizers = (getattr(members[0], name) for name in names)
    return type(members[0])(model, *tokenizers, members[0].search, **more)


def _languages(directories, members) -> tuple[str | None, str | None]:
    """Those of all members that know theirs."""
    known = {(one.source_language, one.target_language) for one in members}
    known.discard((None, None))
    if len(known) > 1:
        raise ValueError(
            "The models must translate between the same languages. Received: "
            + ", ".join(
                f"{directory} from {one.source_language} to {one.target_language}"
                for directory, one in zip(directories, members, strict=True)
            )
        )
    return known.pop() if known else (None, None)
