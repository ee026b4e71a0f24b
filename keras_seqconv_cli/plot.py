"""`keras-seqconv plot`: pictures of training runs and of what models do."""

import argparse
from pathlib import Path

import keras_seqconv as ks

UNITS = ("words", "characters")
HELP = "learning curves, attention, kernels, errors as .png, .svg or .pdf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def kind(draw, name, text):
        parser = kinds.add_parser(name, help=text, description=text)
        parser.set_defaults(draw=draw)
        parser.add_argument(
            "--output",
            required=True,
            metavar="FILE",
            help="a .png, .svg or .pdf file",
        )
        return parser.add_argument

    add = kind(_curves, "curves", "learning curves of one or several runs")
    add("runs", nargs="+", metavar="RUN", help="work directories, or their log.jsonl")
    add("--names", nargs="+", metavar="NAME", help="a name for each run")

    add = kind(_attention, "attention", "attention of each target token to the source")
    add("model", metavar="MODEL", help="a model directory or a run")
    add("--text", required=True, help="the sentence to translate")
    add("--translation", help="translation (default: the model's)")

    add = kind(_kernels, "kernels", "the kernels of all LightConv layers")
    add("model", metavar="MODEL", help="a model directory or a run")

    text = "the kernels of a DynamicConv along a sentence"
    add = kind(_dynamic_kernels, "dynamic-kernels", text)
    add("model", metavar="MODEL", help="a model directory or a run")
    add("--text", required=True, help="the sentence")
    add("--translation", help="translation (default: the model's)")
    add(
        "--layer", metavar="NAME",
        help='such as "encoder 1" or "decoder 6"; by default the first one',
    )  # fmt: skip

    text = "BLEU of systems by the length of the source"
    add = kind(_bleu_by_length, "bleu-by-length", text)
    add("--source", required=True, metavar="FILE", help="source texts")
    _add_references(add)
    text = "translations of the systems"
    add("--hypotheses", required=True, metavar="FILE", nargs="+", help=text)
    add("--names", nargs="+", metavar="NAME", help="a name for each system")
    add(
        "--edges", type=int, nargs="+", default=[10, 20, 30, 40, 50], metavar="N",
        help="most words of each group (default 10 20 30 40 50)",
    )  # fmt: skip

    text = "the most frequent substitutions, insertions and deletions of symbols"
    add = kind(_confusion, "confusion", text)
    _add_references(add)
    add("--hypotheses", required=True, metavar="FILE", help="outputs of a system")
    text = "symbols: words (default), which are phonemes with blanks between them, or "
    add("--unit", choices=UNITS, default=UNITS[0], help=f"{text}characters")
    text = "number of confusions (default 25)"
    add("--number", type=int, default=25, metavar="N", help=text)


def _add_references(add) -> None:
    text = "reference texts; may be given several times"
    add("--reference", required=True, metavar="FILE", action="append", help=text)


def check(options: argparse.Namespace) -> None:
    formats = ks.plots.FORMATS
    if Path(options.output).suffix.lower() not in formats:
        raise ValueError(
            f"`output` must end in one of {', '.join(formats)}. "
            f"Received: {options.output}"
        )
    if getattr(options, "number", 1) < 1:
        raise ValueError(f"`number` must be at least 1. Received: {options.number}")
    for run in getattr(options, "runs", ()):
        _log(run)


def run(options: argparse.Namespace) -> int:
    ks.plots.save_figure(options.draw(options), options.output)
    print(options.output)
    return 0


def _curves(options):
    from keras_seqconv.callbacks.reporting import read_log

    files = [_log(run) for run in options.runs]
    stems = [f.parent.name if f.name == "log.jsonl" else f.stem for f in files]
    names = _names(options, "runs", stems)
    runs = dict(zip(names, map(read_log, files), strict=True))
    if not any("update" in record for records in runs.values() for record in records):
        files = ", ".join(map(str, files))
        raise ValueError(f"{files} must hold records with an update; none has.")
    return ks.plots.learning_curves(runs)


def _log(run: str) -> Path:
    path = Path(run)
    path = path / "log.jsonl" if path.is_dir() else path.absolute()
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
    if not loaded.translates:
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
    from keras_seqconv.support.files import read_lines

    stems = [Path(file).stem for file in options.hypotheses]
    names = _names(options, "hypotheses", stems)
    sources, *references = map(read_lines, [options.source, *options.reference])
    values = {}
    for name, file in zip(names, options.hypotheses, strict=True):
        groups, values[name], counts = ks.evaluation.bleu_by_length(
            sources, read_lines(file), references, options.edges
        )
    return ks.plots.bleu_by_length(values, groups, counts)


def _confusion(options):
    from keras_seqconv.evaluation import confusions
    from keras_seqconv.support.files import read_lines

    hypotheses, *references = map(read_lines, [options.hypotheses, *options.reference])
    pairs = confusions(hypotheses, references, options.unit)
    return ks.plots.confusions(pairs[: options.number])
