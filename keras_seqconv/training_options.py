"""Options of a training run: typed, checked, and stored as JSON."""

import functools
import json
import os
from pathlib import Path
from typing import Literal

from keras_seqconv.presets import PRESETS, preset_of
from keras_seqconv.recipes import PARTS, Recipe, options_of
from keras_seqconv.support.arguments import plain
from keras_seqconv.support.files import read_json
from keras_seqconv.support.schema import REQUIRED, Options, option

# Sections of the help text.
GROUPS = {
    "run": "model, data and folder",
    "text": "text to batches",
    "architecture": "replaces values of the preset",
    "recipe": "replaces values of the recipe (`keras-seqconv presets NAME` shows them)",
    "reports": "validation, checkpoints, TensorBoard",
}


_run, _text, _architecture, _recipe, _reports = (
    functools.partial(option, group=group) for group in GROUPS
)


def _recipe_options() -> type:
    """Options that replace values of a recipe."""
    types, fields = {}, {}
    for part, kinds in {"": (Recipe,), **PARTS}.items():
        if len(kinds) > 1:
            types[part] = Literal[tuple(kind.name for kind in kinds)] | None
            fields[part] = _recipe(None, f"kind of {part}")
        for name, field in ((n, f) for k in kinds for n, f in options_of(k).items()):
            types.setdefault(name, field.type | None)
            fields.setdefault(name, _recipe(None, **field.metadata))
    return type("_RecipeOptions", (Options,), {"__annotations__": types, **fields})


class TrainingOptions(_recipe_options()):
    """All options of `keras_seqconv.training.train` and of `keras-seqconv train`.

    None means: as the preset's recipe has it. The descriptions of the fields are the
    help texts of the command line. To these come the values of `recipes.Recipe` and its
    parts that are options.

    Raises:
        ValueError: for an unknown option or a value that is out of range; names the
            option, the rule and what was received.
    """

    outdated = ("validate_every", "checkpoint_every")  # of 0.1.0

    preset: str = _run(REQUIRED, "architecture and recipe (keras-seqconv presets)")
    dataset: str = _run(
        REQUIRED,
        "a TFDS name such as wmt14_translate/de-en, a folder with train.de and "
        "train.en (and valid, test), a .tsv file of two columns, source first, a text "
        "file for a language model, or 'phrases', the embedded corpus",
    )
    workdir: str = _run(REQUIRED, "folder of the run; a run in it is resumed")
    seed: int = _run(
        1, "seed of weights, dropout and the order of the data", ge=0, le=2**32 - 1
    )
    deterministic: bool = _run(False, "repeat a run to the same bits; slower")
    jit_compile: Literal["auto", "true", "false"] = _run(
        "auto", "compile the training step with XLA; auto: Keras decides"
    )
    devices: int | None = _run(
        None,
        "GPUs to train on (default: all). Without a GPU: cores that share each batch "
        "(default: 1); more cores start later and train faster. On JAX: devices of "
        "each host (default: all)",
        ge=1,
    )
    hosts: str | None = _run(
        None,
        "train on several hosts (JAX): ADDRESS:PORT of host 0, or no value on Slurm, "
        "Kubernetes and TPU pods; each host runs the same command",
        bare="auto",
    )
    num_hosts: int | None = _run(None, "number of hosts, with an address", ge=1)
    host_index: int | None = _run(None, "number of this host, from 0", ge=0)

    source_language: str | None = _text(
        None, "language of the source, as the data set names it (default: the preset's)"
    )
    target_language: str | None = _text(
        None, "language of the target (default: the preset's)"
    )
    validation_share: float | None = _text(
        None,
        "share of the training data that becomes the validation split, for data "
        "without one; pairs of one source stay together (text of a language model: "
        "its end)",
        gt=0,
        le=0.5,
    )
    variant: str | None = _text(
        None, "middle part of file names: lc.norm.tok for train.lc.norm.tok.de"
    )
    tsv_header: bool | None = _text(
        None,
        "whether line 1 of a .tsv file has names of columns; needed where it looks "
        "like names",
    )
    data_dir: str | None = _text(None, "folder of TensorFlow Datasets")
    manual_dir: str | None = _text(
        None, "folder of the files that TensorFlow Datasets cannot download"
    )
    tokenizer: str | None = _text(
        None,
        "sentencepiece_bpe, sentencepiece_unigram, words, characters, moses_bpe; "
        "words:FILE, characters:FILE (a token a line), sentencepiece:FILE; or a run or "
        "model directory with tokenizers (default: the preset's, or sentencepiece_bpe)",
    )
    source_tokenizer: str | None = _text(
        None, "tokenizer of the source, if not that of both sides"
    )
    target_tokenizer: str | None = _text(None, "tokenizer of the target, likewise")
    vocabulary_size: int | None = _text(
        None,
        "entries of a new tokenizer; of moses_bpe, merges (default: entries of the "
        "preset)",
        ge=1,
    )
    joint_vocabulary: bool | None = _text(
        None,
        "one tokenizer for both languages (default: if the model shares all "
        "embeddings; false: it shares those of the decoder only)",
    )
    min_length: int = _text(
        1, "fewest tokens of a sentence, without its end token", ge=1
    )
    max_length: int = _text(
        255,
        "most tokens of a sentence, without its end token; longer pairs are left out",
        ge=1,
    )
    max_ratio: float | None = _text(
        None, "largest ratio of the lengths of a pair (default: no limit)", ge=1
    )
    truncate_source: int | None = _text(
        None,
        "cut sources to this number of tokens, end token included, instead of leaving "
        "pairs out; the model does the same",
        ge=2,
    )
    skip_bad_lines: bool = _text(
        False,
        "skip and count lines that are empty, not UTF-8, or without a partner: files "
        "may differ in length",
    )
    max_shapes: int = _text(
        16, "largest number of batch shapes; each is compiled once", ge=1
    )

    initialize_from: str | None = _architecture(
        None,
        "run or model directory to start from: weights by name and shape, tokenizers",
    )
    dropout: float | None = _architecture(None, "dropout rate", ge=0, lt=1)
    attention_dropout: float | None = _architecture(
        None, "dropout rate of attention", ge=0, lt=1
    )
    weight_dropout: float | None = _architecture(
        None, "dropout rate of convolution kernels (DropConnect)", ge=0, lt=1
    )
    architecture: dict = _architecture(
        {}, 'other arguments of the model as JSON, such as {"hidden_dim": 192}'
    )

    updates_per_epoch: int | None = _reports(
        None,
        "updates of an epoch, which ends with validation, log record and checkpoint "
        "(default: one pass over the training data)",
        ge=1,
    )
    keep: int = _reports(10, "last checkpoints that are kept", ge=1)
    validation_bleu: bool = _reports(
        False, "translate the validation split after each epoch, for BLEU"
    )
    metrics: str | None = _reports(
        None,
        "scores of the test split, with commas between them: bleu, tokenized_bleu, "
        "compound_split_bleu, chrf, ter, rouge, exact, wer, cer (default: by the task)",
        metavar="A,B",
    )
    monitor: Literal["nll", "accuracy", "bleu"] | None = _reports(
        None,
        "validation metric of the best checkpoint and of early stopping (default: nll; "
        "accuracy for presets of symbols)",
    )
    tensorboard: bool = _reports(False, "write TensorBoard events")

    def __post_init__(self):
        super().__post_init__()
        # As `run.json` has it, with which a resumed run compares it.
        as_read = json.loads(json.dumps(plain(self.architecture)))
        object.__setattr__(self, "architecture", as_read)
        preset_of(self.preset, "preset")
        if self.monitor == "bleu" and not self.validation_bleu:
            raise ValueError(
                "`monitor`='bleu' needs `validation_bleu`. "
                f"Received: validation_bleu={self.validation_bleu}"
            )
        address = None if self.hosts == "auto" else self.hosts
        given = [x is not None for x in (address, self.num_hosts, self.host_index)]
        if any(given) and not all(given):
            raise ValueError(
                "`hosts` with an address, `num_hosts` and `host_index` must be given "
                f"together. Received: hosts={self.hosts}, num_hosts={self.num_hosts}, "
                f"host_index={self.host_index}"
            )
        if self.num_hosts is not None and self.host_index >= self.num_hosts:
            raise ValueError(
                "`host_index` must be less than `num_hosts`. Received: "
                f"host_index={self.host_index}, num_hosts={self.num_hosts}"
            )
        if self.min_length > self.max_length:
            raise ValueError(
                "`min_length` must be at most `max_length`. Received: "
                f"min_length={self.min_length}, max_length={self.max_length}"
            )
        if self.source_language and self.source_language == self.target_language:
            raise ValueError(
                "`source_language` and `target_language` must differ. "
                f"Received: both {self.source_language!r}"
            )
        if self.joint_vocabulary and len({*self.tokenizers}) > 1:
            raise ValueError(
                "`joint_vocabulary` must not be true where the tokenizers of the sides "
                f"differ. Received: {' and '.join(self.tokenizers)}"
            )
        shared = self.architecture.get("share_embeddings")
        if shared == "all" and not self.shares_all_embeddings:
            raise ValueError(
                "`joint_vocabulary` must not be false, nor the tokenizers of the sides "
                "differ, with `share_embeddings`='all' in `architecture`. Received: "
                f"joint_vocabulary={self.joint_vocabulary}, tokenizers "
                f"{' and '.join(self.tokenizers)}"
            )

    @property
    def shares_all_embeddings(self) -> bool:
        """Whether source and target have one embedding, and so one vocabulary."""
        arguments = {**PRESETS[self.preset].architecture, **self.architecture}
        shared = arguments.get("share_embeddings") == "all"
        joint = self.joint_vocabulary is not False and len({*self.tokenizers}) == 1
        return shared and joint

    @property
    def tokenizers(self) -> tuple[str, str]:
        """Kinds of the tokenizers of source and target, or where they are read."""
        both = self.tokenizer or self.initialize_from
        sides = self.source_tokenizer, self.target_tokenizer
        kinds = PRESETS[self.preset].task.tokenizers
        return tuple(
            side or both or kind for side, kind in zip(sides, kinds, strict=True)
        )


def read_options(path: str | os.PathLike) -> dict:
    """The options of a run, from its folder or its `run.json`, or of a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no JSON object of options.
    """
    path = Path(path)
    settings = read_json(path / "run.json" if path.is_dir() else path, options=dict)
    return settings.get("options", settings)
