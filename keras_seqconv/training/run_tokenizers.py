"""The tokenizers of a run: read again, taken from a folder, or trained."""

from pathlib import Path

from keras_seqconv import tokenizers
from keras_seqconv.presets import PRESETS
from keras_seqconv.support.files import atomic_directory
from keras_seqconv.training_options import TrainingOptions

# Names of their folders: in runs and prepared corpora, and in models.
_FOLDERS = (("source", "target"), ("source_tokenizer", "target_tokenizer"))


def tokenizers_of(run, corpus, say) -> tuple:
    """Source and target; the source of a language model is None.

    Those of the run, or else of the folder that the options name, or trained and kept.
    """
    if run.tokenizers.exists():
        pair = read_tokenizers(run.tokenizers)
    else:
        given = run.options.tokenizer or run.options.initialize_from
        if given is not None and given not in tokenizers.KINDS:
            pair = read_tokenizers(Path(given))
            _check_tokenizers(run.options, pair, given)
        else:
            pair = _train_tokenizers(run.options, corpus, say)
        with atomic_directory(run.tokenizers) as folder:
            for name, one in zip(_FOLDERS[0], pair, strict=True):
                if one is not None and not (name == "source" and pair[0] is pair[1]):
                    one.save(folder / name)
    return (None if PRESETS[run.options.preset].is_language_model else pair[0]), pair[1]


def _check_tokenizers(options: TrainingOptions, pair: tuple, folder: str) -> None:
    """ValueError where the options ask for others than the tokenizers of a folder."""
    if pair[0].kind == "dictionary":  # which are asked for by their merges
        return
    for name, theirs in (
        ("vocabulary_size", {one.vocabulary_size for one in pair}),
        ("joint_vocabulary", {pair[0] is pair[1]}),
    ):
        value = getattr(options, name)
        if value is not None and {value} != theirs:
            raise ValueError(
                f"`{name}` must be that of the tokenizers of {folder}, or not given: "
                f"{' and '.join(map(str, theirs))}. Received: {value}"
            )


def read_tokenizers(folder: Path) -> tuple:
    """Source and target of a folder, the same object where only one is there.

    Raises:
        ValueError: it is no folder of tokenizers, a run, a prepared corpus or a model.
    """
    for place in (folder, folder / "tokenizers", folder / "model"):
        for names in _FOLDERS:
            found = [place / name for name in names if (place / name).is_dir()]
            if found:
                pair = [tokenizers.load_tokenizer(one) for one in found]
                return pair[0], pair[-1]
    raise ValueError(
        f"`tokenizer` must be one of {', '.join(tokenizers.KINDS)}, or the folder of a "
        f"run, a prepared corpus or a model. Received: {folder}"
    )


def _train_tokenizers(options: TrainingOptions, corpus, say) -> tuple:
    preset = PRESETS[options.preset]
    kind = options.tokenizer or preset.task.tokenizer
    single = preset.is_language_model
    joint = single or options.joint_vocabulary
    if joint is None:
        joint = preset.architecture.get("share_embeddings") == "all"
    size = options.vocabulary_size or max(preset.task.vocabulary_sizes, default=None)
    if size is None and kind not in ("words", "characters"):
        raise ValueError(
            "`vocabulary_size` must be given: the preset names none. Received: None"
        )
    more, unit = {"vocabulary_size": size}, "entries"
    if kind == "moses_bpe":
        # As in the papers' recipes: merges are given, entries follow from them.
        source = corpus.source_language or corpus.target_language
        languages, unit = (source, corpus.target_language), "merges"
        more = {"languages": languages, "moses": True, "merges": size}
    elif options.vocabulary_size is None and kind.startswith("sentencepiece"):
        more["at_most"] = True  # it was meant for another corpus
    if single and kind.startswith("sentencepiece"):
        more["remove_extra_whitespaces"] = False  # of a running text it is content
    sides = "" if joint else "s"
    say(f"Training the tokenizer{sides} ({kind}, {size or 'all'} {unit}) ...")
    targets = corpus.texts("train", "target")
    if single and kind == "characters":  # line breaks are characters too
        targets = (f"{line}\n" for line in targets)
    pair = tokenizers.train_tokenizers(
        kind,
        () if single else corpus.texts("train", "source"),
        targets,
        joint=joint,
        **more,
    )
    found = [one.vocabulary_size for one in pair]
    if "at_most" in more and min(found) < size:
        say(f"The texts have no more than {' and '.join(map(str, {*found}))} entries")
    return pair
