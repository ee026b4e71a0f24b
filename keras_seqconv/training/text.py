"""The text of a run: its corpus, its tokenizers, and its stores of ids."""

import collections
import contextlib
import dataclasses
import textwrap
from pathlib import Path
from typing import NamedTuple

from keras_seqconv import tokenizers
from keras_seqconv.data.corpora import Corpus, hold_out, open_corpus
from keras_seqconv.data.ids import IdStore, blocks, encode
from keras_seqconv.presets import PRESETS
from keras_seqconv.recipes import Recipe
from keras_seqconv.support.files import (
    atomic_directory,
    digest,
    read_json,
    remove_folder,
)
from keras_seqconv.tokenizers.common import check_one_vocabulary
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translation.text_model import UnknownTokens

# Names of the folders of tokenizers: in runs and prepared corpora, and in models.
_FOLDERS = (("source", "target"), ("source_tokenizer", "target_tokenizer"))


class Text(NamedTuple):
    """Text of a corpus for training.

    Attributes:
        recipe: as this corpus allows it.
        corpus: where the text comes from.
        tokenizers: of source (None for language models) and target, the same object
            twice where the vocabulary is joint.
        train: store of ids.
        validation: the same, or None where the corpus has no such split.
    """

    recipe: Recipe
    corpus: Corpus
    tokenizers: tuple
    train: IdStore
    validation: IdStore | None


def corpus_of(run) -> Corpus:
    """The corpus of a run, noted at its first start and compared later.

    So are the vocabularies in files, of which the run has its own copy.

    Raises:
        ValueError: they are not those that the checkpoints were trained with.
    """
    corpus = open_corpus_of(run.options)
    splits = [s for s in ("train", "validation", "test") if s in corpus.splits]
    settings, changed = read_json(run.settings), set()
    vocabularies = settings.get("vocabularies", {})  # kept where a file is gone
    for kind, _, file in (choice.partition(":") for choice in run.options.tokenizers):
        if kind in tokenizers.VOCABULARIES and Path(file).is_file():
            vocabularies = {**vocabularies, file: digest(file)}
    notes = {"corpus": corpus.digests(splits), "vocabularies": vocabularies}
    for name, digests in notes.items():
        before = settings.get(name) or digests
        names = before.keys() | digests
        changed |= {name for name in names if before.get(name) != digests.get(name)}
    if changed and (run.has_trained or not run.writes):
        raise ValueError(
            f"`dataset` and vocabularies must hold what they held when the run in "
            f"{run.folder} began; put the old text back, or give another `workdir`. "
            "Changed, new or missing: " + ", ".join(sorted(changed))
        )
    if changed:
        remove_text(run)
    run.note(**notes)
    return corpus


def remove_text(run) -> None:
    """Removes what a start that trained nothing has made of another text."""
    remove_folder(run.tokenizers)
    remove_folder(run.data)


def sentences_of(
    corpus: Corpus, split: str, limit: int | None = None
) -> tuple[list[str], list[str]]:
    """Sources and references of a split, at most `limit`."""
    return tuple([*corpus.texts(split, side, limit)] for side in ("source", "target"))


def open_corpus_of(options: TrainingOptions) -> Corpus:
    """The corpus that the options name; the preset says what they leave open.

    Raises:
        ValueError, OSError: as `open_corpus`; there is no training text, or not what
            the preset needs; options for a validation split, and there is none.
    """
    preset = PRESETS[options.preset]
    named_languages = options.source_language, options.target_language
    corpus = open_corpus(
        options.dataset,
        source_language=options.source_language,
        target_language=options.target_language,
        default_languages=preset.task.languages,
        data_dir=options.data_dir,
        manual_dir=options.manual_dir,
        variant=options.variant,
        tsv_header=options.tsv_header,
        on_error="skip" if options.skip_bad_lines else "raise",
    )
    languages = corpus.source_language, corpus.target_language
    if not any(named_languages) and preset.task.languages not in (None, languages):
        raise ValueError(
            "`source_language` and `target_language` must be given: "
            f"{options.preset} translates {' to '.join(preset.task.languages)}, and "
            f"{options.dataset} has {' and '.join(map(str, languages))}. "
            "Received: None and None"
        )
    if "train" not in corpus.splits:
        raise ValueError(
            f"`dataset` must have a split 'train'. Received: {options.dataset} with "
            f"{', '.join(corpus.splits) or 'no split'}"
        )
    if corpus.source_language is None and not preset.is_language_model:
        raise ValueError(
            f"`dataset` must have two languages for the translation model "
            f"{options.preset}. Received: {options.dataset} with "
            f"{corpus.target_language!r} only"
        )
    if options.validation_share is not None:
        return hold_out(corpus, options.validation_share)
    if "validation" in corpus.splits:
        return corpus
    for name in ("early_stopping", "validation_bleu", "average_kind"):
        value = getattr(options, name)
        if value not in (None, False, "last_epochs"):
            raise ValueError(
                f"`{name}` needs a validation split, which {options.dataset} does not "
                "have; `validation_share` holds out a part of the training data. "
                f"Received: {name}={value!r}"
            )
    return corpus


def text_of(run, recipe: Recipe, corpus: Corpus, say) -> Text:
    """Trains or reads the tokenizers, and writes the stores.

    Finished results of an earlier start of the run are read.

    Args:
        run: whose folder keeps tokenizers and stores.
        recipe: resolved. Without a validation split, its `average_kind` changes.
        corpus: of the run, see `corpus_of`.
        say: prints a line of progress.
    """
    options = run.options
    languages = [corpus.source_language, corpus.target_language]
    if PRESETS[options.preset].is_language_model:
        languages[0] = None
    direction = " → ".join(filter(None, languages))
    if languages[0] is not None:  # with a pair to see that it is so
        pair = [next(corpus.texts("train", side, 1)) for side in ("source", "target")]
        example = " → ".join(repr(textwrap.shorten(text, 60)) for text in pair)
        say(f"{direction}, for example {example}")
    unread = [s for s in corpus.splits if s not in ("train", "validation", "test")]
    if unread:
        say(
            f"Training reads the splits train, validation and test of {corpus.name}, "
            f"and not {', '.join(unread)}."
        )
    if "validation" not in corpus.splits and recipe.average_kind == "best":
        recipe = dataclasses.replace(recipe, average_kind="last_epochs")
        say(
            "There is no validation split, so the last checkpoints are averaged and not"
            " the best; --validation-share 0.01 would hold out a part for it."
        )
    run.note(languages=languages, recipe=dataclasses.asdict(recipe))
    pair = tokenizers_of(run, corpus, say)
    stores = {
        split: _store(run, recipe, corpus, pair, split, say)
        for split in ("train", "validation")
        if split in corpus.splits
    }
    return Text(recipe, corpus, pair, stores["train"], stores.get("validation"))


def _store(run, recipe: Recipe, corpus, pair: tuple, split: str, say) -> IdStore:
    folder, options = run.data / split, run.options
    with contextlib.suppress(FileNotFoundError):
        return IdStore.open(folder)
    say(f"Reading the {split} split ...")
    counts = collections.Counter()
    unknown = [UnknownTokens(tokenizer) for tokenizer in pair]
    training = split == "train"
    texts = corpus.blocks(split)
    if PRESETS[options.preset].is_language_model:
        settings = dataclasses.asdict(recipe.blocks)
        if training:
            settings["context_window"] = 0
        lines = (ids for *_, part in texts for ids in unknown[1].tokenize_lines(part))
        rows = blocks(lines, **settings)
    else:
        longest = options.max_length, options.max_length
        if options.truncate_source is not None:  # as far as a batch can hold it
            longest = max(options.max_length, options.truncate_source - 1), longest[1]
        rows = encode(
            texts,
            *unknown,
            min_length=options.min_length if training else 1,
            max_length=tuple(min(n, recipe.tokens_per_batch - 1) for n in longest),
            max_ratio=options.max_ratio if training else None,
            truncate_source=options.truncate_source,
            counts=counts,
        )
    store = IdStore.write(folder, rows)
    cut = counts.pop("truncated", 0)
    left_out = {**corpus.counts[split], **counts}
    left_out.pop("kept", None)
    more = f"; {cut:,} sources cut" if cut else ""
    if left_out:
        words = (f"{name} {number:,}" for name, number in left_out.items())
        more += f"; left out: {', '.join(words)}"
    languages = corpus.source_language, corpus.target_language
    for side, language in zip(unknown, languages, strict=True):
        side.tell(lambda message, of=language: say(f"{split}, {of}: {message}"))
    say(f"{split}: {len(store):,} rows{more}")
    return store


# --- Tokenizers ---


def tokenizers_of(run, corpus, say) -> tuple:
    """Source and target; the source of a language model is None.

    They are read from the run, or from the folder that the options name, or trained.
    """
    if run.tokenizers.exists():
        pair = read_tokenizers(run.tokenizers)
    else:
        pair = _new_tokenizers(run.options, corpus, say)
        names = _FOLDERS[0][pair[0] is pair[1] :]
        with atomic_directory(run.tokenizers) as folder:
            for name, tokenizer in zip(names, pair[-len(names) :], strict=True):
                tokenizer.save(folder / name)
    if run.options.shares_all_embeddings:
        check_one_vocabulary(*pair)
    return (None if PRESETS[run.options.preset].is_language_model else pair[0]), pair[1]


def _new_tokenizers(options: TrainingOptions, corpus, say) -> tuple:
    """The tokenizers that the options name, read or trained."""
    source, target = options.tokenizers
    if PRESETS[options.preset].is_language_model or source == target:
        return _tokenizers(options, target, ("source", "target"), corpus, say)
    pair = [
        _tokenizers(options, choice, (side,), corpus, say)
        for side, choice in zip(("source", "target"), (source, target), strict=True)
    ]
    return pair[0][0], pair[1][1]


def _tokenizers(options, choice: str, sides: tuple, corpus, say) -> tuple:
    """Tokenizers of both sides by one choice, of which those of `sides` are used."""
    kind, _, file = choice.partition(":")
    if choice in tokenizers.KINDS:
        return _learned_tokenizers(options, choice, sides, corpus, say)
    if file and kind in tokenizers.VOCABULARIES:
        pair = (tokenizers.read_vocabulary(kind, file),) * 2
    else:
        names = "source_tokenizer", "target_tokenizer", "tokenizer", "initialize_from"
        name = next(name for name in names if getattr(options, name) == choice)
        pair = read_tokenizers(Path(choice), name)
    used = pair if len(sides) == 2 else (pair[sides == ("target",)],)
    _check_tokenizers(options, used, choice)
    return pair


def _check_tokenizers(options: TrainingOptions, used: tuple, choice: str) -> None:
    """ValueError where the options ask for others than the tokenizers that are read."""
    if used[0].kind == "dictionary":  # which are asked for by their merges
        return
    values = {"joint_vocabulary": {used[0] is used[-1]}} if len(used) == 2 else {}
    trained = [kind for kind in options.tokenizers if kind in tokenizers.KINDS]
    if not trained:  # whose size it would be
        values["vocabulary_size"] = {tokenizer.vocabulary_size for tokenizer in used}
    for name, theirs in values.items():
        value = getattr(options, name)
        if value is not None and {value} != theirs:
            raise ValueError(
                f"`{name}` must be that of the tokenizers of {choice}, or not given: "
                f"{' and '.join(map(str, theirs))}. Received: {value}"
            )


def read_tokenizers(folder: Path, name: str = "tokenizer") -> tuple:
    """Source and target of a folder, the same object where only one is there.

    `name` is that of the option that names the folder.

    Raises:
        ValueError: it is no folder of tokenizers, a run, a prepared corpus or a model.
    """
    for parent in (folder, folder / "tokenizers", folder / "model"):
        for names in _FOLDERS:
            folders = [parent / name for name in names if (parent / name).is_dir()]
            if folders:
                pair = [tokenizers.load_tokenizer(path) for path in folders]
                return pair[0], pair[-1]
    raise ValueError(
        f"`{name}` must be one of {', '.join(tokenizers.KINDS)}, a vocabulary such "
        "as words:FILE, or the folder of a run, a prepared corpus or a model. "
        f"Received: {folder}"
    )


def _learned_tokenizers(options, kind: str, sides: tuple, corpus, say) -> tuple:
    preset = PRESETS[options.preset]
    single = preset.is_language_model
    sides = ("target",) if single else sides
    joint = len(sides) == 1 or options.joint_vocabulary
    if joint is None:
        joint = options.shares_all_embeddings
    size = options.vocabulary_size
    symbols = kind in ("words", "characters")
    # Of the symbols of its own task a preset counts those there are; all are taken.
    if size is None and not (symbols and kind in preset.task.tokenizers):
        size = max(preset.task.vocabulary_sizes, default=None)
    if size is None and not symbols:
        raise ValueError(
            "`vocabulary_size` must be given: the preset names none. Received: None"
        )
    more, unit = {"vocabulary_size": size}, "entries"
    if kind == "moses_bpe":
        if not single and len(sides) == 1:
            raise ValueError(
                "`tokenizer` must be moses_bpe for both sides or none: its merges are "
                f"learned from both. Received: {' and '.join(options.tokenizers)}"
            )
        # As in the papers' recipes: merges are given, entries follow from them.
        source = corpus.source_language or corpus.target_language
        languages, unit = (source, corpus.target_language), "merges"
        more = {"languages": languages, "moses": True, "merges": size}
    elif options.vocabulary_size is None and kind.startswith("sentencepiece"):
        more["at_most"] = True  # it was meant for another corpus
    if single and kind.startswith("sentencepiece"):
        more["remove_extra_whitespaces"] = False  # of a running text it is content
    noun = "tokenizer" if joint else "tokenizers"
    noun += f" of the {sides[0]}" if len(sides) == 1 and not single else ""
    limit = f", at most {size} {unit}" if size else ""
    say(f"Training the {noun} ({kind}{limit}) ...")
    texts = {
        side: corpus.texts("train", side) if side in sides else ()
        for side in ("source", "target")
    }
    if single and kind == "characters":  # line breaks are characters too
        texts["target"] = (f"{line}\n" for line in texts["target"])
    pair = tokenizers.train_tokenizers(kind, *texts.values(), joint=joint, **more)
    sizes = [tokenizer.vocabulary_size for tokenizer in (pair[:1] if joint else pair)]
    say(f"Entries: {' and '.join(map(str, sizes))}")
    return pair
