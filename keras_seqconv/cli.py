"""The command line: one function call per sub-command."""

import argparse
import contextlib
import difflib
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from keras_seqconv.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Args:
        arguments: words after the program's name, `sys.argv[1:]` when None.
    """
    parser = _Parser(
        prog="keras-seqconv", description="Convolutional sequence learning for Keras 3."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    quickstart = commands.add_parser(
        "quickstart",
        help="train a small causal model on data it makes, and show what it learned",
    )
    quickstart.add_argument(
        "--epochs", type=_positive, default=30, help="passes over the data (default 30)"
    )
    quickstart.set_defaults(run=_quickstart)
    presets = commands.add_parser(
        "presets", help="list the named architectures, or show the recipe of one"
    )
    presets.add_argument(
        "name", nargs="?", type=_preset, metavar="NAME", help="the preset to show"
    )
    presets.set_defaults(run=_presets)
    _add_convert_fairseq(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("\nInterrupted.")
        return 130


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def _preset(text: str) -> str:
    from keras_seqconv.presets import PRESETS

    if text in PRESETS:
        return text
    near = difflib.get_close_matches(text, PRESETS)
    hint = f": did you mean {', '.join(near)}?" if near else "."
    raise argparse.ArgumentTypeError(
        f"{text!r} is no preset{hint} `keras-seqconv presets` lists them"
    )


def _presets(options: argparse.Namespace) -> int:
    from keras_seqconv.presets import describe, table

    print(table() if options.name is None else describe(options.name))
    return 0


def _quickstart(options: argparse.Namespace) -> int:
    from keras_seqconv.quickstart import main as quickstart

    quickstart(options.epochs)
    return 0


# --- convert-fairseq ---


def _add_convert_fairseq(commands) -> None:
    convert = commands.add_parser(
        "convert-fairseq",
        help="make a model directory from a checkpoint of fairseq",
        description="Make a model directory, which keras_seqconv.load reads, from a "
        "checkpoint of fairseq. Nothing in the checkpoint is executed. Needs the "
        "package torch: pip install 'keras-seqconv[convert]'.",
    )
    convert.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a file, or a folder with model.pt (or one *.pt), dict.LANGUAGE.txt and "
        "bpecodes, as fairseq publishes them",
    )
    add = convert.add_argument
    add("--output", required=True, metavar="DIR", help="the folder to make")
    add("--overwrite", action="store_true", help="replace a model directory")
    add("--source-dictionary", metavar="FILE", help="dict.LANGUAGE.txt of the source")
    add("--target-dictionary", metavar="FILE", help="dict.LANGUAGE.txt of the target")
    add("--dictionary", metavar="FILE", help="dict.txt of a language model")
    add("--source-language", metavar="xx", help="two letters, for Moses and folders")
    add("--target-language", metavar="xx")
    add("--bpe-codes", metavar="FILE", help="of subword-nmt, for both sides")
    add("--source-bpe-codes", metavar="FILE")
    add("--target-bpe-codes", metavar="FILE")
    add("--moses", action="store_true", help="tokenize as Moses does")
    add("--normalize", action="store_true", help="normalize punctuation before that")
    add(
        "--no-dash-splits",
        dest="aggressive_dash_splits",
        action="store_false",
        help="leave x-y one token (the IWSLT recipe; Moses without -a)",
    )
    add("--lowercase", action="store_true", help="lower-case the text")
    convert.set_defaults(run=_convert_fairseq)


def _convert_fairseq(options: argparse.Namespace) -> int:
    from keras_seqconv.convert import translator_from_fairseq
    from keras_seqconv.model_directory import check_writable

    arguments = dict(vars(options))
    for name in ("command", "run", "output", "overwrite", "bpe_codes"):
        del arguments[name]
    for name in ("source_bpe_codes", "target_bpe_codes"):
        arguments[name] = arguments[name] or options.bpe_codes
    try:
        with _terminable():
            check_writable(options.output, options.overwrite)
            translator = translator_from_fairseq(**arguments)
            translator.save(options.output, options.overwrite)
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {_one_line(error, options)}", file=sys.stderr)
        return 2
    print(_summary(translator, options.output))
    return 0


def _summary(translator, output: str) -> str:
    """What was made, and what to paste next."""
    model, search = translator.model, translator.search
    translates = hasattr(translator, "source_tokenizer")
    sizes = f"target {model.target_vocabulary_size:,}"
    call = 'generate(["..."])'
    if translates:
        source = translator.source_tokenizer.vocabulary_size
        sizes = f"source {source:,}, {sizes}"
        call = 'translate(["..."])'
    program = f"import keras_seqconv as ks; print(ks.load({output!r}).{call})"
    program = program.replace("'", '"') if "'" not in output else program
    return "\n".join(
        [
            f"model         {_family(model)}",
            f"parameters    {model.count_params():,}",
            f"vocabularies  {sizes}",
            "search        "
            + ", ".join(f"{name} {value}" for name, value in search.items()),
            f"written to    {output}",
            "",
            "Next:",
            f"  python -c {shlex.quote(program)}",
        ]
    )


def _family(model) -> str:
    """The class, with the mixers of those that have a choice."""

    def names(value):
        if isinstance(value, dict):
            value = list(value.values())
        return {value} if isinstance(value, str) else set().union(*map(names, value))

    mixers = sorted(names(model.get_config().get("mixer", [])))
    return type(model).__name__ + (f" of {', '.join(mixers)}" if mixers else "")


def _one_line(error: Exception, options: argparse.Namespace) -> str:
    """The message with arguments named as on the command line."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"

    def option(found):
        name = found[1]
        if name == "checkpoint":
            return "CHECKPOINT"
        return f"--{name.replace('_', '-')}" if hasattr(options, name) else found[0]

    return " ".join(re.sub(r"`(\w+)`", option, text).split())


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Lets SIGTERM end the block as an exception does, so that it can tidy up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str):
        self.exit(2, f"error: {message} (`{self.prog} --help` lists the options)\n")
