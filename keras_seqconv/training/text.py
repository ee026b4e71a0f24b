"""From the corpus of a run to its tokenizers and its stores of ids."""

import collections
import dataclasses
from pathlib import Path

from keras_seqconv import tokenizers
from keras_seqconv.atomic import atomic_directory
from keras_seqconv.data import blocks, sources, steps
from keras_seqconv.data.store import IdStore
from keras_seqconv.fingerprints import tokenizer_fingerprint
from keras_seqconv.presets import PRESETS, Preset
from keras_seqconv.training.options import TrainingOptions
from keras_seqconv.training.run import Run, note_corpus

# In folders of tokenizers: of runs and prepared corpora, and of models.
_FOLDERS = (("source", "target"), ("source_tokenizer", "target_tokenizer"))


@dataclasses.dataclass(frozen=True)
class Text:
    """What training needs of a corpus.

    Attributes:
        corpus: where the text comes from.
        source_tokenizer: None for language models.
        target_tokenizer: the same object where the vocabulary is joint.
        train: store of ids.
        validation: the same, or None where the corpus has no such split.
    """

    corpus: sources.Corpus
    source_tokenizer: object
    target_tokenizer: object
    train: IdStore
    validation: IdStore | None

    @property
    def tokenizers(self) -> tuple:
        return self.source_tokenizer, self.target_tokenizer


def read_text(run: Run, recipe: dict, say) -> Text:
    """Opens the corpus, trains or reads the tokenizers, and writes the stores.

    What an earlier start of the run has finished is read, not made again.

    Args:
        run: whose folder keeps tokenizers and stores.
        recipe: resolved.
        say: prints a line of progress.
    """
    options = run.options
    corpus = open_corpus_of(options)
    _check_corpus(options, corpus)
    splits = [s for s in ("train", "validation", "test") if s in corpus.splits]
    note_corpus(run, corpus.digests(splits))
    pair = _tokenizers(run, corpus, say)
    stores = {
        split: _store(run, recipe, corpus, pair, split, say)
        for split in ("train", "validation")
        if split in corpus.splits
    }
    return Text(corpus, *pair, stores["train"], stores.get("validation"))


def open_corpus_of(options: TrainingOptions) -> sources.Corpus:
    """The corpus that the options name; errors name the options."""
    try:
        return sources.open_corpus(
            options.dataset,
            source=options.source,
            target=options.target,
            data_dir=options.data_dir,
            manual_dir=options.manual_dir,
            variant=options.variant,
            on_error="skip" if options.skip_bad_lines else "raise",
        )
    except ValueError as error:
        raise ValueError(str(error).replace("`name`", "`dataset`")) from error


def is_language_model(preset: str) -> bool:
    return "LanguageModel" in PRESETS[preset].model


def texts_of(corpus, split: str, preset: str):
    """The dataset of a split, without the source for a language model."""
    dataset = corpus.split(split)
    if is_language_model(preset) and "source" in dataset.element_spec:
        dataset = dataset.map(lambda pair: {"target": pair["target"]})
    return dataset


def _check_corpus(options: TrainingOptions, corpus) -> None:
    if "train" not in corpus.splits:
        raise ValueError(
            f"`dataset` must have a split 'train'. Received: {options.dataset} with "
            f"{', '.join(corpus.splits) or 'no split'}"
        )
    if corpus.source_language is None and not is_language_model(options.preset):
        raise ValueError(
            f"`dataset` must have two languages for the translation model "
            f"{options.preset}. Received: {options.dataset} with "
            f"{corpus.target_language!r} only"
        )


# --- Tokenizers ---


def _tokenizers(run: Run, corpus, say) -> tuple:
    if not run.tokenizers.exists():
        given = run.options.tokenizer
        if given is not None and given not in tokenizers.KINDS:
            pair = read_tokenizers(Path(given))
        else:
            pair = _train_tokenizers(run.options, corpus, say)
        with atomic_directory(run.tokenizers) as folder:
            for name, one in zip(_FOLDERS[0], pair, strict=True):
                if one is not None and not (name == "source" and pair[0] is pair[1]):
                    one.save(folder / name)
    source, target = read_tokenizers(run.tokenizers)
    return (None if is_language_model(run.options.preset) else source), target


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
    kind = options.tokenizer or "sentencepiece_bpe"
    preset = PRESETS[options.preset]
    single = is_language_model(options.preset)
    joint = single or options.joint_vocabulary
    if joint is None:
        joint = preset.architecture.get("share_embeddings") == "all"
    size = options.vocabulary_size or _size_of(preset, kind)
    more, unit = {"vocabulary_size": size}, "entries"
    if kind == "moses_bpe":
        # As in the papers' recipes: merges are given, entries follow from them.
        source = corpus.source_language or corpus.target_language
        languages, unit = (source, corpus.target_language), "merges"
        more = {"languages": languages, "moses": True, "merges": size}
    sides = "" if joint else "s"
    say(f"Training the tokenizer{sides} ({kind}, {size or 'all'} {unit}) ...")
    return tokenizers.train_tokenizers(
        kind,
        () if single else corpus.texts("train", "source"),
        corpus.texts("train", "target"),
        joint=joint,
        **more,
    )


def _size_of(preset: Preset, kind: str) -> int | None:
    sizes = [size for name, size in preset.parameters.items() if name != "count"]
    if not sizes and kind not in ("words", "characters"):
        raise ValueError(
            "`vocabulary_size` must be given: the preset names none. Received: None"
        )
    return max(sizes, default=None)


# --- Stores ---


def _store(run: Run, recipe: dict, corpus, pair: tuple, split: str, say) -> IdStore:
    folder = run.data / split
    fingerprint = _fingerprint(run.options, recipe, pair, split)
    try:
        return IdStore.open(folder, fingerprint)
    except FileNotFoundError:
        pass
    say(f"Reading the {split} split ...")
    counts = collections.Counter()
    preset = run.options.preset
    dataset = texts_of(corpus, split, preset).apply(steps.tokenize(*pair))
    make = _blocks if is_language_model(preset) else _pairs
    dataset = make(dataset, run.options, recipe, counts, split)
    store = steps.write_store(dataset, folder, fingerprint, counts)
    skipped = {
        **{name: n for name, n in corpus.counts[split].items() if name != "kept"},
        **counts,
    }
    left_out = ", ".join(f"{name} {n:,}" for name, n in skipped.items() if n)
    say(
        f"{split}: {len(store):,} rows"
        + (f"; left out: {left_out}" if left_out else "")
    )
    return store


def _pairs(dataset, options: TrainingOptions, recipe: dict, counts, split: str):
    if options.truncate_source is not None:
        cut = steps.truncate_source(options.truncate_source, counts)
        dataset = dataset.apply(cut)
    # Scores of a validation set are of all of it, as far as a batch can hold it.
    training = split == "train"
    longest = min(options.max_length, recipe["tokens_per_batch"] - 1)
    return dataset.apply(
        steps.filter_by_length(
            min_length=options.min_length if training else 1,
            max_length=longest,
            max_ratio=options.max_ratio if training else None,
            counts=counts,
        )
    )


def _blocks(dataset, options: TrainingOptions, recipe: dict, counts, split: str):
    settings = dict(recipe["blocks"])
    if split == "train":
        settings["context_window"] = 0
    return dataset.apply(blocks.to_blocks(**settings))


def _fingerprint(options: TrainingOptions, recipe: dict, pair: tuple, split) -> dict:
    names = (
        "dataset", "source", "target", "variant", "min_length", "max_length",
        "max_ratio", "truncate_source",
    )  # fmt: skip
    return {
        "split": split,
        "blocks": recipe["blocks"],
        "tokens_per_batch": recipe["tokens_per_batch"],
        "tokenizers": [tokenizer_fingerprint(one) for one in pair],
        **{name: getattr(options, name) for name in names},
    }
