"""`keras-seqconv convert-fairseq`: a model directory of a fairseq checkpoint."""

import argparse
import json
import shlex
from pathlib import Path

from keras_seqconv_cli import add_flags, check_files, names_of

HELP = "make a model directory from a checkpoint of fairseq"
DESCRIPTION = (
    "Convert a checkpoint of fairseq to a model directory. No code of the checkpoint "
    "is executed. Needs torch: pip install 'keras-seqconv[convert]'."
)
_FILES = {
    "--source-dictionary FILE": "dict.LANGUAGE.txt of the source",
    "--target-dictionary FILE": "dict.LANGUAGE.txt of the target",
    "--dictionary FILE": "dict.txt of a language model",
    "--bpe-codes FILE": "byte-pair codes of subword-nmt, for both sides",
    "--source-bpe-codes FILE": "codes of the source",
    "--target-bpe-codes FILE": "codes of the target",
}
_FLAGS = {
    "--overwrite": "replace a model directory",
    **_FILES,
    "--source-language xx": "language of the source, for Moses and folders",
    "--target-language xx": "language of the target",
    "--moses": "tokenize with Moses",
    "--normalize": "normalize punctuation first",
    "--lowercase": "lower-case the text",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "a file, or a folder with model.pt (or one *.pt), dict.LANGUAGE.txt and "
        "bpecodes (or code, codes, codes.*), as fairseq publishes them"
    )
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help=text)
    add("--output", required=True, metavar="DIR", help="folder to write")
    add_flags(parser, _FLAGS)
    add(
        "--no-dash-splits",
        dest="aggressive_dash_splits",
        action="store_false",
        help="leave x-y one token (the IWSLT recipe; Moses without -a)",
    )


def check(options: argparse.Namespace) -> None:
    check_files(*(getattr(options, name) for name in names_of(_FILES)))
    if not Path(options.checkpoint).is_dir():
        check_files(options.checkpoint)


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.convert import translator_from_fairseq
    from keras_seqconv.translation.model_directory import (
        check_writable,
        save_with_graphs,
    )

    arguments = dict(vars(options))
    for name in ("command", "output", "overwrite", "bpe_codes"):
        del arguments[name]
    for name in ("source_bpe_codes", "target_bpe_codes"):
        arguments[name] = arguments[name] or options.bpe_codes
    check_writable(options.output, options.overwrite)
    translator = translator_from_fairseq(**arguments)
    written = save_with_graphs(translator, options.output, options.overwrite)
    print(_summary(translator, options.output, written))
    return 0


def _summary(translator, output: str, written: str) -> str:
    """Text about the result, and the commands that follow."""
    from keras_seqconv.models.stacks import MIXERS

    model, call = translator.model, "generate"
    family, mixers = type(model).__name__, json.dumps(model.get_config().get("mixer"))
    if kinds := [kind for kind in sorted(MIXERS) if f'"{kind}"' in mixers]:
        family += f" of {', '.join(kinds)}"
    sizes = f"target {model.target_vocabulary_size:,}"
    if hasattr(translator, "translate"):
        call = "translate"
        sizes = f"source {translator.source_tokenizer.vocabulary_size:,}, {sizes}"
    program = f'import keras_seqconv as ks; print(ks.load({output!r}).{call}(["..."]))'
    program = program.replace("'", '"') if "'" not in output else program
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    return "\n".join(
        [
            f"model         {family}",
            f"parameters    {model.count_params():,}",
            f"vocabularies  {sizes}",
            f"search        {search}",
            written,
            "",
            "Next:",
            f"  python -c {shlex.quote(program)}",
        ]
    )
