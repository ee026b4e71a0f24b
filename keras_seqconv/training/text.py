"""From the corpus of a run to its tokenizers and its stores of ids."""

import collections
import dataclasses
import textwrap
from pathlib import Path

from keras_seqconv import tokenizers
from keras_seqconv.data.corpora import Corpus, hold_out, open_corpus
from keras_seqconv.data.ids import IdStore, blocks, encode
from keras_seqconv.model_directory import tokenizer_fingerprint
from keras_seqconv.presets import PRESETS
from keras_seqconv.support.files import atomic_directory
from keras_seqconv.training.recipe import Recipe
from keras_seqconv.training.run import Run, note, note_corpus
from keras_seqconv.training_options import TrainingOptions

# In folders of tokenizers: of runs and prepared corpora, and of models.
_FOLDERS = (("source", "target"), ("source_tokenizer", "target_tokenizer"))
# Options that ids on disk depend on.
_OF_IDS = (
    "dataset", "variant", "min_length", "max_length", "max_ratio", "truncate_source",
    "validation_share",
)  # fmt: skip


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

    corpus: Corpus
    source_tokenizer: object
    target_tokenizer: object
    train: IdStore
    validation: IdStore | None

    @property
    def tokenizers(self) -> tuple:
        return self.source_tokenizer, self.target_tokenizer


def corpus_of(run: Run) -> Corpus:
    """The corpus of a run; ValueError if it is not what the run began with."""
    corpus = open_corpus_of(run.options)
    splits = [s for s in ("train", "validation", "test") if s in corpus.splits]
    note_corpus(run, corpus.digests(splits))
    return corpus


def read_text(run: Run, recipe: Recipe, corpus: Corpus, say) -> Text:
    """Trains or reads the tokenizers, and writes the stores.

    What an earlier start of the run has finished is read, not made again.

    Args:
        run: whose folder keeps tokenizers and stores.
        recipe: resolved. Its `averaging` changes where there is no validation split,
            and `data` says what the run was trained on.
        corpus: of the run, see `corpus_of`.
        say: prints a line of progress.
    """
    options = run.options
    languages = [corpus.source_language, corpus.target_language]
    if is_language_model(options.preset):
        languages[0] = None
    direction = " → ".join(filter(None, languages))
    if languages[0] is not None:  # with a pair to see that it is so
        pair = [next(corpus.texts("train", side, 1)) for side in ("source", "target")]
        example = " → ".join(repr(textwrap.shorten(text, 60)) for text in pair)
        say(f"{direction}, for example {example}")
    if "validation" not in corpus.splits and recipe.averaging["kind"] == "best":
        recipe.averaging["kind"] = "last_epochs"
        say(
            "There is no validation split, so the last checkpoints are averaged and not"
            " the best; --validation-share 0.01 would hold out a part for it."
        )
    recipe.data = f"{options.dataset}, {direction}"
    note(run, languages=languages, recipe=recipe.to_json())
    pair = _tokenizers(run, corpus, say)
    stores = {
        split: _store(run, recipe, corpus, pair, split, say)
        for split in ("train", "validation")
        if split in corpus.splits
    }
    return Text(corpus, *pair, stores["train"], stores.get("validation"))


def open_corpus_of(options: TrainingOptions) -> Corpus:
    """The corpus that the options name; the preset says what they leave open.

    Raises:
        ValueError, OSError: as `open_corpus`; there is no training text, or not what
            the preset needs; options for a validation split, and there is none.
    """
    languages = (options.source_language, options.target_language)
    if languages == (None, None):
        languages = PRESETS[options.preset].languages or languages

    settings = {
        "data_dir": options.data_dir,
        "manual_dir": options.manual_dir,
        "variant": options.variant,
        "on_error": "skip" if options.skip_bad_lines else "raise",
    }
    source, target = languages
    try:
        corpus = open_corpus(
            options.dataset, source_language=source, target_language=target, **settings
        )
    except ValueError:
        if languages != (options.source_language, options.target_language):
            # Its error names the languages, where those of the preset are wrong.
            open_corpus(options.dataset, **settings)
        raise
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
    if options.validation_share is not None:
        return hold_out(corpus, options.validation_share)
    if "validation" not in corpus.splits:
        _check_no_validation(options)
    return corpus


def _check_no_validation(options: TrainingOptions) -> None:
    for name in ("early_stopping", "validate_every", "validation_bleu", "average_kind"):
        value = getattr(options, name)
        if value not in (None, False, "last_epochs"):
            raise ValueError(
                f"`{name}` needs a validation split, which {options.dataset} does not "
                "have; `validation_share` holds out a part of the training data. "
                f"Received: {name}={value!r}"
            )


def is_language_model(preset: str) -> bool:
    return "LanguageModel" in PRESETS[preset].model


# --- Tokenizers ---


def _tokenizers(run: Run, corpus, say) -> tuple:
    if run.tokenizers.exists():
        pair = read_tokenizers(run.tokenizers)
    else:
        given = run.options.tokenizer
        if given is not None and given not in tokenizers.KINDS:
            pair = read_tokenizers(Path(given))
        else:
            pair = _train_tokenizers(run.options, corpus, say)
        with atomic_directory(run.tokenizers) as folder:
            for name, one in zip(_FOLDERS[0], pair, strict=True):
                if one is not None and not (name == "source" and pair[0] is pair[1]):
                    one.save(folder / name)
    return (None if is_language_model(run.options.preset) else pair[0]), pair[1]


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
    sizes = [size for name, size in preset.parameters.items() if name != "count"]
    size = options.vocabulary_size or max(sizes, default=None)
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
    sides = "" if joint else "s"
    say(f"Training the tokenizer{sides} ({kind}, {size or 'all'} {unit}) ...")
    pair = tokenizers.train_tokenizers(
        kind,
        () if single else corpus.texts("train", "source"),
        corpus.texts("train", "target"),
        joint=joint,
        **more,
    )
    found = [one.vocabulary_size for one in pair]
    if "at_most" in more and min(found) < size:
        say(f"The texts have no more than {' and '.join(map(str, {*found}))} entries")
    return pair


# --- Stores ---


def _store(run: Run, recipe: Recipe, corpus, pair: tuple, split: str, say) -> IdStore:
    folder, options = run.data / split, run.options
    fingerprint = {
        "languages": [corpus.source_language, corpus.target_language],
        "split": split,
        "blocks": recipe.blocks,
        "tokens_per_batch": recipe.tokens_per_batch,
        "tokenizers": [tokenizer_fingerprint(one) for one in pair],
        **{name: getattr(options, name) for name in _OF_IDS},
    }
    try:
        return IdStore.open(folder, fingerprint)
    except FileNotFoundError:
        pass
    say(f"Reading the {split} split ...")
    counts: collections.Counter = collections.Counter()
    training = split == "train"
    texts = corpus.blocks(split)
    if is_language_model(options.preset):
        tokenizer = pair[1]
        settings = dict(recipe.blocks)
        if training:
            settings["context_window"] = 0
        lines = (ids for *_, part in texts for ids in tokenizer.tokenize(part))
        rows = blocks(lines, **settings)
    else:
        # Scores of a validation set are of all of it, as far as a batch can hold it.
        rows = encode(
            texts,
            *pair,
            min_length=options.min_length if training else 1,
            max_length=min(options.max_length, recipe.tokens_per_batch - 1),
            max_ratio=options.max_ratio if training else None,
            truncate_source=options.truncate_source,
            counts=counts,
        )
    store = IdStore.write(folder, rows, fingerprint)
    left_out = [
        f"{name} {number:,}"
        for name, number in {**corpus.counts[split], **counts}.items()
        if name != "kept"
    ]
    more = f"; left out: {', '.join(left_out)}" if left_out else ""
    say(f"{split}: {len(store):,} rows{more}")
    return store
