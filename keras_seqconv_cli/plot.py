"""`keras-seqconv plot`: pictures of training runs and of what models do."""

import argparse
import os
from pathlib import Path
from typing import Literal

import keras_seqconv as ks
from keras_seqconv.support.files import check_output, read_lines
from keras_seqconv.support.schema import REQUIRED, Options, option
from keras_seqconv_cli import add_flags

HELP = "learning curves, attention, kernels, errors as .png, .svg or .pdf"


class _Flags(Options):
    output: str = option(REQUIRED, "a .png, .svg or .pdf file", metavar="FILE")


class _Curves(_Flags):
    names: tuple[str, ...] = option((), "a name for each run")


class _Attention(_Flags):
    text: str = option(REQUIRED, "the sentence", metavar="TEXT")
    translation: str | None = option(
        None, "translation (default: the model's)", metavar="TEXT"
    )


class _DynamicKernels(_Attention):
    layer: str | None = option(
        None, 'such as "encoder 1" or "decoder 6"; by default the first one'
    )


class _References(_Flags):
    references: tuple[str, ...] = option(
        REQUIRED,
        "reference texts; may be given several times",
        flag="--reference",
        repeated=True,
        metavar="FILE",
    )


class _BleuByLength(_References):
    sources: str = option(REQUIRED, "source texts", flag="--source", metavar="FILE")
    hypotheses: tuple[str, ...] = option(
        REQUIRED, "translations of the systems", metavar="FILE"
    )
    names: tuple[str, ...] = option((), "a name for each system")
    edges: tuple[int, ...] = option(
        (), "most words of each group (default 10 20 30 40 50)", ge=1
    )


class _Confusion(_References):
    hypotheses: str = option(REQUIRED, "outputs of a system", metavar="FILE")
    unit: Literal["words", "characters"] = option(
        "words", "symbols: words, which are phonemes with blanks between them, or "
        "characters"
    )  # fmt: skip
    number: int = option(25, "number of confusions", ge=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def kind(draw, name, text, flags):
        parser = kinds.add_parser(name, help=text, description=text)
        parser.set_defaults(draw=draw)
        add_flags(parser, flags)
        return parser.add_argument

    model = {"metavar": "MODEL", "help": "a model directory or a run"}
    text = "learning curves of one or several runs"
    add = kind(_curves, "curves", text, _Curves)
    add("runs", nargs="+", metavar="RUN", help="work directories, or their log.jsonl")
    text = "attention of each target token to the source"
    kind(_attention, "attention", text, _Attention)("model", **model)
    text = "the kernels of all LightConv layers"
    kind(_kernels, "kernels", text, _Flags)("model", **model)
    text = "the kernels of a DynamicConv along a sentence"
    kind(_dynamic_kernels, "dynamic-kernels", text, _DynamicKernels)("model", **model)
    text = "BLEU of systems by the length of the source"
    kind(_bleu_by_length, "bleu-by-length", text, _BleuByLength)
    text = "the most frequent substitutions, insertions and deletions of symbols"
    kind(_confusion, "confusion", text, _Confusion)


def check(options: argparse.Namespace) -> None:
    formats = ks.plots.FORMATS
    if Path(options.output).suffix.lower() not in formats:
        raise ValueError(
            f"`output` must end in one of {', '.join(formats)}. "
            f"Received: {options.output}"
        )
    check_output(options.output)
    for run in getattr(options, "runs", ()):
        _log(run)


def run(options: argparse.Namespace) -> int:
    ks.plots.save_figure(options.draw(options), options.output)
    print(options.output)
    return 0


def _curves(options):
    from keras_seqconv.callbacks.reporting import read_log

    files = [_log(run) for run in options.runs]
    paths = [Path(os.path.abspath(file)) for file in files]  # whose folders have names
    stems = [p.parent.name if p.name == "log.jsonl" else p.stem for p in paths]
    names = _names(options, "runs", stems)
    runs = dict(zip(names, map(read_log, files), strict=True))
    if not any("update" in record for records in runs.values() for record in records):
        files = ", ".join(map(str, files))
        raise ValueError(f"{files} must hold records with an update; none has.")
    return ks.plots.learning_curves(runs)


def _log(run: str) -> Path:
    path = Path(run)
    path = path / "log.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `train` writes it.")
    return path


def _names(options, what: str, default: list[str]) -> list[str]:
    names = options.names or default
    if len(names) != len(default):
        raise ValueError(
            f"`names` must be as many as there are {what}. "
            f"Received: {len(names)} and {len(default)}"
        )
    if len(set(names)) != len(names):
        raise ValueError(
            f"The {what} must have different names: give `names`. "
            f"Received: {', '.join(names)}"
        )
    return names


def _attention(options):
    from keras import ops

    loaded = ks.load(options.model)
    if not loaded.model.has_source:
        raise ValueError(f"{options.model} has no attention to a source.")
    inputs, tokens = ks.inspection.sentence(loaded, options.text, options.translation)
    weights = ops.convert_to_numpy(loaded.model.attention_weights(inputs))
    target = [*tokens["decoder"][1:], "</s>"]
    return ks.plots.attention(weights[0], tokens["encoder"], target)


def _kernels(options):
    kernels = ks.inspection.light_conv_kernels(ks.load(options.model).model)
    return ks.plots.light_conv_kernels(kernels)


def _dynamic_kernels(options):
    loaded = ks.load(options.model)
    inputs, tokens = ks.inspection.sentence(loaded, options.text, options.translation)
    layers = ks.inspection.dynamic_conv_kernels(loaded.model, inputs)
    by_name = {layer.name: layer for layer in layers}
    name = layers[0].name if options.layer is None else options.layer
    if name not in by_name:
        raise ValueError(
            f"`layer` must be one of {', '.join(by_name)}. Received: {name!r}"
        )
    side = tokens[name.partition(" ")[0]]
    values, left = by_name[name].values[0], by_name[name].left
    return ks.plots.dynamic_conv_kernels(values, side, left, name)


def _bleu_by_length(options):
    stems = [Path(file).stem for file in options.hypotheses]
    names = _names(options, "hypotheses", stems)
    sources, *references = map(read_lines, [options.sources, *options.references])
    values, edges = {}, {"edges": options.edges} if options.edges else {}
    for name, file in zip(names, options.hypotheses, strict=True):
        groups, values[name], counts = ks.evaluation.bleu_by_length(
            sources, read_lines(file), references, **edges
        )
    return ks.plots.bleu_by_length(values, groups, counts)


def _confusion(options):
    hypotheses, *references = map(read_lines, [options.hypotheses, *options.references])
    pairs = ks.evaluation.confusions(hypotheses, references, options.unit)
    if not pairs:
        raise ValueError("`hypotheses` must differ from `references`; they are equal.")
    return ks.plots.confusions(pairs[: options.number])
