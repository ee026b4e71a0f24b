"""The command line `keras-seqconv`: one module per sub-command, one function call each.

A package beside keras_seqconv, so that help texts and wrong flags are answered before
Keras and TensorFlow are loaded, which takes seconds. A sub-command's module has `HELP`
(one line), `add_arguments(parser)` and `run(options)`, which returns the exit status
and raises ImportError, OSError or ValueError for what the user can mend. It may have
`check(options)`, which does so before Keras is loaded, and `LOADS_KERAS = False`, where
it does without Keras or calls `load_models`. Public names of the library it reaches by
`ks`, which imports them at first use; other modules it imports inside of functions. In
`check` and `add_arguments` are only those that do without Keras. The MODELs of a
command are checked for it.
"""

from keras_seqconv_cli import signals

# isort: split
import argparse
import dataclasses
import importlib
import itertools
import json
import os
import re
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from keras_seqconv.support import schema, warnings_as_lines
from keras_seqconv.support.arguments import near
from keras_seqconv.version import __version__

signals.loaded()

# In the order of a project: train, use, look, know.
COMMANDS = (
    "quickstart", "train", "average", "translate", "generate", "evaluate", "plot",
    "demo", "export", "presets", "convert-fairseq",
)  # fmt: skip


def program() -> None:
    """`main` as a process."""
    signals.ends_process()
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Args:
        arguments: words after the program's name, `sys.argv[1:]` when None.

    Raises:
        SystemExit: after help texts (0) and for arguments that do not parse (2).
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)

    def warn(line):
        print(f"warning: {one_line(line)}", file=sys.stderr)

    try:
        if None in (sys.stdout, sys.stderr):
            # Python would give their numbers to the next files that are opened.
            raise ValueError("standard output must not be closed: use >/dev/null")
        options = _parser(arguments).parse_args(arguments)
        module = options.module
        del options.module
        with signals.endable(), warnings_as_lines(warn):
            if hasattr(module, "check"):
                module.check(options)
            models = getattr(options, "model", None) or []
            check_models(*([models] if isinstance(models, str) else models))
            if getattr(module, "LOADS_KERAS", True):
                keep_memory(options)
                load_quietly()
            status = module.run(options)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read has left, as `head` does. Nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def _parser(arguments: Sequence[str]) -> "Parser":
    parser = Parser(
        prog="keras-seqconv", description="Convolutional sequence learning for Keras 3."
    )
    parser.add_argument(
        "--version",
        action="version",
        version=__version__,
        help="show the version of the package and end",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"keras_seqconv_cli.{name.replace('-', '_')}")
        command = commands.add_parser(
            name, help=module.HELP, description=getattr(module, "DESCRIPTION", None)
        )
        # The options of `train` are those of its configuration, which takes a moment.
        if name in arguments[:1]:
            module.add_arguments(command)
        command.set_defaults(module=module)
    return parser


def keep_memory(options: argparse.Namespace) -> None:
    """Before Keras is loaded, which may start threads whose heaps stay as they are.

    Batches that are decoded side by side have a heap each: logits are made anew in
    every step.
    """
    from keras_seqconv.devices import available_cores, keep_freed_memory

    batches = getattr(options, "parallel_batches", 1)
    keep_freed_memory(batches or min(available_cores(), 8))


def load_quietly() -> None:
    """Imports the package without the lines that TensorFlow's libraries print.

    They go to the file descriptor, past `sys.stderr` and past every setting. When
    Keras or TensorFlow cannot be imported they are shown after all.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            import keras  # noqa: F401
            import tensorflow  # noqa: F401  on JAX too, whose data it reads
        except Exception:
            printed.seek(0)
            os.write(kept, printed.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Runtime(schema.Options):
    """The flags that `load_models` reads."""

    runtime: typing.Literal["auto", "onnx", "keras"] = schema.option(
        "auto",
        "onnx: the models' graphs in ONNX Runtime, on the CPU; keras; auto: onnx where "
        "there are graphs and no GPU",
    )
    quantize: typing.Literal["int8"] | None = schema.option(
        None, "8-bit integers for products, of the graphs or of Keras' `Dense` layers"
    )


def load_models(options: argparse.Namespace, *models: str):
    """The models as one, by ONNX Runtime, or by Keras, which is loaded only then.

    options: `runtime`, `quantize`, and `dtype` and `parallel_batches` if there are.
    """
    from keras_seqconv import translation

    dtype = getattr(options, "dtype", None)
    quantize = options.quantize
    graphs = translation.graphs_of(models, dtype, options.runtime, quantize)
    if graphs is None:
        keep_memory(options)
        load_quietly()
        from keras_seqconv.devices import share_cores
        from keras_seqconv.translation.text_model import default_parallel

        # Before TensorFlow starts, which loading a model does.
        share_cores(getattr(options, "parallel_batches", 1) or default_parallel())
    loaded = translation.load_ensemble(models, dtype, graphs)
    if graphs is None and quantize is not None:
        for model in getattr(loaded.model, "models", [loaded.model]):
            model.quantize(quantize)
    return loaded


# Options of fairseq and what they are here (docs/fairseq.md), where the words differ.
FAIRSEQ = {
    "--arch": "--preset", "--save-dir": "--workdir",
    "--restore-file": "--config --initialize-from",
    "--lr": "--learning-rate", "--lr-scheduler": "--schedule",
    "--warmup-updates": "--warmup-steps", "--warmup-init-lr": "--warmup-start",
    "--lr-period-updates": "--period", "--t-mult": "--period-growth",
    "--lr-shrink": "--shrink", "--lr-patience": "--patience",
    "--min-lr": "--stop-learning-rate", "--stop-min-lr": "--stop-learning-rate",
    "--adam-betas": "--beta-1 --beta-2", "--adam-eps": "--epsilon",
    "--clip-norm": "--global-clipnorm", "--max-tokens": "--tokens-per-batch",
    "--max-sentences": "--tokens-per-batch", "--batch-size": "--tokens-per-batch",
    "--update-freq": "--gradient-accumulation-steps",
    "--fp16": "--precision --dtype", "--bf16": "--precision --dtype",
    "--sample-break-mode": "--break-mode", "--keep-last-epochs": "--keep",
    "--save-interval-updates": "--updates-per-epoch",
    "--validate-interval-updates": "--updates-per-epoch",
    "--eval-bleu": "--validation-bleu", "--best-checkpoint-metric": "--monitor",
    "--gen-subset": "--split", "--beam": "--num-beams", "--nbest": "--n-best",
    "--lenpen": "--length-penalty", "--unnormalized": "--not-normalized",
    "--unkpen": "--unk-penalty", "--max-len-a": "--max-length-ratio",
    "--max-len-b": "--max-length", "--min-len": "--min-length",
    "--no-early-stop": "--stopping", "--diverse-beam-groups": "--num-groups",
    "--diverse-beam-strength": "--diversity-strength", "--sampling": "--sample",
    "--sampling-topk": "--top-k", "--sampling-topp": "--top-p",
    "--replace-unk": "--replace-unknowns", "--print-alignment": "--attention",
    "--buffer-size": "--window", "--sacrebleu": "--metrics", "--scoring": "--metrics",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and what unknown options are called here."""

    # Argument -> its flag, or NAME, of the command that was parsed last.
    flags: dict[str, str] = {}

    def __init__(self, **options):
        # `--work` for `--workdir` would break when another flag begins so.
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args=None, namespace=None):
        # Here, as those of a command are else told without its help, and after what is
        # missing.
        if self._subparsers is None and args is not None:
            Parser.flags = {
                action.dest: (*action.option_strings, action.dest.upper())[0]
                for action in self._actions
            }
            for word in itertools.takewhile(lambda word: word != "--", args):
                name = word.partition("=")[0]
                if re.fullmatch(r"--\w[\w-]*", name):
                    self._check_name(name)
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def _check_name(self, name: str):
        names = self._option_string_actions
        if name not in names:
            equivalents = [
                flag for flag in FAIRSEQ.get(name, "").split() if flag in names
            ]
            hint = (
                f"Did you mean {', '.join(equivalents)}? "
                if equivalents
                else near(name, names)
            )
            self.error(f"unknown option {name}. {hint}".strip())

    def error(self, message: str):
        message = re.sub(r"argument (--[\w-]+): `\w+`", r"\1", message)
        self.exit(2, f"error: {message} (`{self.prog} --help` lists the options)\n")


def one_line(error: Exception | str) -> str:
    """The message with arguments named as on the command line.

    `name` becomes its flag, or NAME, where the command has such an argument.
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"

    def typed(match):
        return Parser.flags.get(match[1], match[0])

    return " ".join(re.sub(r"`(\w+)`(?:=True)?", typed, text).split())


def check_models(*paths: str) -> None:
    """FileNotFoundError where there is no model directory, nor a run with one."""
    from keras_seqconv.translation.model_directory import model_folder

    for path in paths:
        model_folder(path)


def check_files(*paths: str | None) -> None:
    """OSError where a file cannot be opened; None, "-" and pipes are no files."""
    for path in paths:
        if path not in (None, "-") and not Path(path).is_fifo():  # may have no writer
            open(path, "rb").close()


def given(options: argparse.Namespace, names: Iterable[str]) -> dict:
    """The options of these names that are not None."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def add_flags(parser, options: type) -> None:
    """Adds the flags of a command's own options; those not given have the default.

    A field without a default must be given.
    """
    fields = dataclasses.fields(options)
    actions = add_options(parser, fields, show_defaults=True)
    for field, action in zip(fields, actions, strict=True):
        action.required = field.default is schema.REQUIRED
        if not action.required:
            action.default = [] if field.default == () else field.default


def add_options(
    parser, fields: Iterable, aliases: Mapping[str, str] = {}, show_defaults=False
) -> list[argparse.Action]:
    """Adds a flag for each field of options that has a help text.

    The flag of `num_beams` is `--num-beams`, with the rule of the field; its value is
    None where it is not given. A switch sets the opposite of the field's default.

    Args:
        parser: or a group of one.
        fields: of a class of `keras_seqconv.support.schema.Options`.
        aliases: further flags, by the names of fields.
        show_defaults: whether help texts end with the default.
    """
    actions = []
    for field in fields:
        if not field.metadata.get("help"):
            continue
        names = [field.metadata.get("flag", f"--{field.name.replace('_', '-')}")]
        names += [aliases[field.name]] if field.name in aliases else []
        kind, text = schema.kind_of(field), field.metadata["help"].replace("%", "%%")
        untold = (None, "", (), schema.REQUIRED)
        if show_defaults and field.type is not bool and field.default not in untold:
            text += f" (default {field.default})"
        metavar = _METAVARS.get(schema.item_of(field), "JSON")
        metavar = field.metadata.get("metavar", metavar)
        if choices := schema.choices_of(field):
            metavar = f"{{{','.join(choices)}}}"
        settings = {"type": _value_of(field), "metavar": metavar}
        if field.type is bool:
            settings = {"action": "store_const", "const": not field.default}
        elif field.metadata.get("repeated"):
            settings |= {"action": "append"}
        elif typing.get_origin(kind) is tuple:
            settings |= {"nargs": "+", "action": "extend"}
        if "bare" in field.metadata:
            settings |= {"nargs": "?", "const": field.metadata["bare"]}
        settings |= {"dest": field.name, "help": text}
        actions.append(parser.add_argument(*names, **settings))
    return actions


_METAVARS = {bool: "{true,false}", int: "N", float: "X", str: "NAME"}
_READERS = {bool: lambda text: json.loads(text.lower()), dict: json.loads}


def _value_of(field) -> Callable:
    """`type=` of an argument: a text becomes a value that keeps to the field's rule."""
    many = typing.get_origin(schema.kind_of(field)) is tuple
    item = schema.item_of(field)
    read = str if schema.choices_of(field) else _READERS.get(item, item)

    def value(text: str):
        try:
            number = read(text)
        except ValueError:
            number = text  # which breaks the rule
        try:
            values = schema.checked_value(field, [number] if many else number)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return values[0] if many else values

    return value
