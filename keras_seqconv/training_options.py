"""Options of a training run: typed, checked, and stored as JSON."""

import functools
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from keras_seqconv.presets import PARTS, PRESETS, Recipe, options_of
from keras_seqconv.support import require
from keras_seqconv.support.arguments import near
from keras_seqconv.support.files import read_json

pydantic = require("pydantic", "mt")

Count = Annotated[int, pydantic.Field(ge=1)]
Natural = Annotated[int, pydantic.Field(ge=0)]
Positive = Annotated[float, pydantic.Field(gt=0)]
Share = Annotated[float, pydantic.Field(ge=0, lt=1)]

# Sections of the help text.
GROUPS = {
    "run": "model, data and folder",
    "text": "text to batches",
    "architecture": "replaces values of the preset",
    "recipe": "replaces values of the recipe (`keras-seqconv presets NAME` shows them)",
    "reports": "validation, checkpoints, TensorBoard",
}


def _option(group: str, text: str, default=None, bare=None):
    """A field; `bare` is the value of its flag without one."""
    extra = {"group": group, "bare": bare}
    return pydantic.Field(default, description=text, json_schema_extra=extra)


_run, _text, _architecture, _recipe, _reports = (
    functools.partial(_option, group)
    for group in ("run", "text", "architecture", "recipe", "reports")
)


def _options_of_recipes() -> dict[str, tuple]:
    """Types and fields of the options that replace values of a recipe."""
    options = {}
    for part, kinds in {"": (Recipe,), **PARTS}.items():
        if len(kinds) > 1:
            choice = Literal[tuple(kind.name for kind in kinds)]
            options[part] = (choice | None, _recipe(f"kind of {part}"))
        for name, field in ((n, f) for k in kinds for n, f in options_of(k).items()):
            value = Annotated[field.type, pydantic.Field(**field.metadata["rules"])]
            options.setdefault(name, (value | None, _recipe(field.metadata["text"])))
    return options


_RecipeOptions = pydantic.create_model("_RecipeOptions", **_options_of_recipes())


class TrainingOptions(_RecipeOptions):
    """All options of `keras_seqconv.training.train` and of `keras-seqconv train`.

    None means: as the preset's recipe has it. The descriptions of the fields are the
    help texts of the command line. To these come the values of `presets.Recipe` and its
    parts that are options.

    Raises:
        ValueError: for an unknown option or a value that is out of range; names the
            option, the rule and what was received.

    Example:

    ```py
    options = TrainingOptions(
        preset="dynamic_conv_multi30k", dataset="data/multi30k", workdir="runs/one"
    )
    ```
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    preset: str = _run("architecture and recipe (keras-seqconv presets)", ...)
    dataset: str = _run(
        "a TFDS name such as wmt14_translate/de-en, a folder with train.de and "
        "train.en (and valid, test), a .tsv file of two columns, source first, a text "
        "file for a language model, or 'phrases', the embedded corpus",
        ...,
    )
    workdir: str = _run("folder of the run; a run in it is resumed", ...)
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**32)] = _run(
        "seed of weights, dropout and the order of the data", 1
    )
    deterministic: bool = _run("repeat a run to the same bits; slower", False)
    jit_compile: Literal["auto", "true", "false"] = _run(
        "compile the training step with XLA; auto: Keras decides", "auto"
    )
    devices: Count | None = _run(
        "GPUs to train on (default: all). Without a GPU: cores that share each batch "
        "(default: 1); more cores start later and train faster. On JAX: devices of "
        "each host (default: all)"
    )
    hosts: str | None = _run(
        "train on several hosts (JAX): ADDRESS:PORT of host 0, or no value on Slurm, "
        "Kubernetes and TPU pods; each host runs the same command",
        bare="auto",
    )
    num_hosts: Count | None = _run("number of hosts, with an address")
    host_index: Natural | None = _run("number of this host, from 0")

    source_language: str | None = _text(
        "language of the source, as the data set names it (default: the preset's)"
    )
    target_language: str | None = _text(
        "language of the target (default: the preset's)"
    )
    validation_share: Annotated[float, pydantic.Field(gt=0, le=0.5)] | None = _text(
        "share of the training data that becomes the validation split, for data "
        "without one; pairs of one source stay together (text of a language model: "
        "its end)"
    )
    variant: str | None = _text(
        "middle part of file names: lc.norm.tok for train.lc.norm.tok.de"
    )
    tsv_header: bool | None = _text(
        "whether line 1 of a .tsv file has names of columns; needed where it looks "
        "like names"
    )
    data_dir: str | None = _text("folder of TensorFlow Datasets")
    manual_dir: str | None = _text(
        "folder of the files that TensorFlow Datasets cannot download"
    )
    tokenizer: str | None = _text(
        "sentencepiece_bpe (the default), sentencepiece_unigram, words, characters, "
        "moses_bpe, or a run or model directory with tokenizers"
    )
    vocabulary_size: Count | None = _text(
        "entries of a new tokenizer; of moses_bpe, merges (default: entries of the "
        "preset)"
    )
    joint_vocabulary: bool | None = _text(
        "one tokenizer for both languages (default: if the model shares all "
        "embeddings; false: it shares those of the decoder only)"
    )
    min_length: Count = _text("fewest tokens of a sentence, without its end token", 1)
    max_length: Count = _text(
        "most tokens of a sentence, without its end token; longer pairs are left out",
        255,
    )
    max_ratio: Positive | None = _text(
        "largest ratio of the lengths of a pair (default: no limit)"
    )
    truncate_source: Annotated[int, pydantic.Field(ge=2)] | None = _text(
        "cut sources to this number of tokens, end token included, instead of leaving "
        "pairs out; the model does the same"
    )
    skip_bad_lines: bool = _text(
        "skip and count lines that are empty or not UTF-8", False
    )
    max_shapes: Count = _text(
        "largest number of batch shapes; each is compiled once", 16
    )

    initialize_from: str | None = _architecture(
        "run or model directory to start from: weights by name and shape, tokenizers"
    )
    dropout: Share | None = _architecture("dropout rate")
    attention_dropout: Share | None = _architecture("dropout rate of attention")
    weight_dropout: Share | None = _architecture(
        "dropout rate of convolution kernels (DropConnect)"
    )
    architecture: dict[str, Any] = _architecture(
        'other arguments of the model as JSON, such as {"hidden_dim": 192}', {}
    )

    updates_per_epoch: Count | None = _reports(
        "updates of an epoch, which ends with validation, log record and checkpoint "
        "(default: one pass over the training data)"
    )
    keep: Count = _reports("last checkpoints that are kept", 10)
    validation_bleu: bool = _reports(
        "translate the validation split after each epoch, for BLEU", False
    )
    monitor: Literal["nll", "bleu"] = _reports(
        "metric of the best checkpoint and of early stopping", "nll"
    )
    tensorboard: bool = _reports("write TensorBoard events", False)

    def __init__(self, **values):
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise ValueError(_in_one_sentence(error)) from None

    @pydantic.model_validator(mode="after")
    def _consistent(self):
        if self.preset not in PRESETS:
            raise ValueError(
                "`preset` must be one of those that `keras-seqconv presets` lists. "
                f"{near(self.preset, PRESETS)}Received: preset={self.preset!r}"
            )
        if self.monitor == "bleu" and not self.validation_bleu:
            raise ValueError(
                "`monitor`='bleu' needs `validation_bleu`. "
                f"Received: validation_bleu={self.validation_bleu}"
            )
        address = None if self.hosts == "auto" else self.hosts
        if len({one is None for one in (address, self.num_hosts, self.host_index)}) > 1:
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
        shared = self.architecture.get("share_embeddings")
        if shared == "all" and self.joint_vocabulary is False:
            raise ValueError(
                "`joint_vocabulary` must not be false with `share_embeddings`='all' in "
                f"`architecture`. Received: {self.architecture}"
            )
        return self

    @property
    def shares_all_embeddings(self) -> bool:
        """Whether source and target have one embedding, and so one vocabulary."""
        arguments = {**PRESETS[self.preset].architecture, **self.architecture}
        shared = arguments.get("share_embeddings") == "all"
        return shared and self.joint_vocabulary is not False


def _in_one_sentence(error: pydantic.ValidationError) -> str:
    """All that is missing, or else the first thing that is wrong."""
    errors = error.errors()
    if missing := [f"`{e['loc'][0]}`" for e in errors if e["type"] == "missing"]:
        return f"{', '.join(missing)} must be given."
    name = ".".join(map(str, errors[0]["loc"][:1]))
    message = errors[0]["msg"].removeprefix("Value error, ")
    if not name:
        return message
    return f"`{name}`: {message}. Received: {errors[0]['input']!r}"


def read_options(path: str | os.PathLike) -> dict:
    """The options of a run, from its folder or its `run.json`, or of a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no JSON object of options.
    """
    path = Path(path)
    settings = read_json(path / "run.json" if path.is_dir() else path, options=dict)
    return settings.get("options", settings)
