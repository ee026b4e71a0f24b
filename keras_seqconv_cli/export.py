"""`keras-seqconv export`: a model for TensorFlow Serving, ONNX Runtime or a browser."""

import argparse
import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Literal

import keras_seqconv as ks
from keras_seqconv.support.files import read_lines
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import add_flags, add_options, check_files, given
from keras_seqconv_cli.translate import search_options

HELP = "write a model for TensorFlow Serving, ONNX Runtime or a browser"
DESCRIPTION = (
    "Write the next version of a model for TensorFlow Serving, with tokenizer, search "
    "and detokenizer in the graph, warm-up requests and a model card. A version "
    "appears complete or not at all, and is never overwritten. --format onnx writes "
    "the search as graphs, of which a loop in any language runs one in each step, and "
    "the tokenizers. --format web adds a page that translates in the visitor's "
    "browser."
)


class _Flags(Options):
    format: Literal["saved_model", "onnx", "web"] = option(
        "saved_model", "onnx and web need the extra onnx"
    )
    output: str | None = option(
        None,
        "folder of versions, whose name is the model's name on the server "
        "(default saved_models/NAME of the model directory or run); for other formats, "
        "the folder to write, which must not exist",
        metavar="DIR",
    )
    quantize: Literal["int8"] | None = option(
        None, "with --format onnx or web: 8-bit integers for products"
    )


class _Served(Options):
    """Options of `saved_model` alone."""

    max_source_length: int | None = option(
        None, "largest number of tokens of a source (default 512)", ge=1
    )
    n_best: int | None = option(
        None, "hypotheses of translate_n_best (default: as many as beams)", ge=1
    )
    tokens_per_batch: int | None = option(
        None,
        "largest number of tokens times beams of a batch, which bounds the memory "
        "(default: the model's)",
        ge=1,
    )
    version: int | None = option(
        None, "number of the version (default: the next)", ge=1
    )
    xla: bool = option(False, "compile with XLA, for servers with XLA only")
    warmup_texts: str | None = option(
        None, "typical texts, one a line, for the warm-up requests", metavar="FILE"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a model directory, or a run with `model` in it"
    parser.add_argument("model", metavar="MODEL", help=text)
    add_flags(parser, _Flags)
    add_options(parser.add_argument_group("search"), fields(ks.decoding.BeamOptions))
    add_flags(parser.add_argument_group("--format saved_model"), _Served)


def _served_names() -> list[str]:
    return [field.name for field in fields(_Served)]


def check(options: argparse.Namespace) -> None:
    check_files(options.warmup_texts)
    if options.format == "saved_model" and options.quantize:
        raise ValueError("`quantize` is an option of --format onnx and web.")
    if options.format != "saved_model":
        if options.output is None:
            raise ValueError(f"`output` must be given with --format {options.format}.")
        for name in _served_names():
            if getattr(options, name):
                raise ValueError(
                    f"`{name}` is an option of --format saved_model alone. "
                    f"Received: {name}={getattr(options, name)}"
                )


def run(options: argparse.Namespace) -> int:
    if options.format != "saved_model":
        return _run_graphs(options)
    from keras_seqconv.translation.model_directory import model_folder

    folder = model_folder(options.model)
    work_folder = folder.resolve().parent
    # Another model in the folder of a run does not have its scores.
    if folder.resolve().name != "model" or not (work_folder / "run.json").is_file():
        work_folder = None
    texts = options.warmup_texts
    if texts is not None:
        texts = [line for line in read_lines(texts) if line.strip()]
        if not texts:
            raise ValueError(
                "`warmup_texts` must have a line of text. "
                f"Received: {options.warmup_texts}"
            )
    translator = ks.load(folder)
    path = ks.export.saved_model(
        translator,
        options.output or Path("saved_models", (work_folder or folder.resolve()).name),
        run=work_folder,
        **search_options(options),
        **given(options, _served_names()) | {"warmup_texts": texts},
    )
    print(_summary(path, translator))
    return 0


def _run_graphs(options: argparse.Namespace) -> int:
    write = ks.export.web_page if options.format == "web" else ks.export.onnx_model
    chosen = given(options, ["quantize"]) | search_options(options)
    path = write(ks.load(options.model), options.output, **chosen)
    quoted = shlex.quote(str(path))
    print(f"written to  {path}")
    if options.format == "web":
        print(f"Open http://localhost:8000 after: python -m http.server -d {quoted}")
    else:
        print(f"Try it: echo '5 6 2' | python examples/onnx_loop.py {quoted}")
    return 0


def _summary(path: Path, translator) -> str:
    """Text about the result, and the commands that follow."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    name, tokenizers = path.parent.name, [*translator.tokenizers.values()]
    mount = shlex.quote(f"{path.parent}:/models/{name}")
    # A request that every such export answers.
    request = {"instances": ["..."]}
    if not tokenizers:
        has_source = translator.model.has_source
        kind, ids = ("translate", "source") if has_source else ("generate", "prefix")
        inputs = {f"{ids}_ids": [[translator.model.end_id]], "lengths": [1]}
        request = {"signature_name": f"{kind}_ids", "inputs": inputs}
    lines = [
        f"written to  {path}  ({size / 1e6:.1f} MB)",
        f"model card  {path / 'MODEL_CARD.md'}",
        "",
        "Serve it:",
        f"  docker run --rm -p 8500:8500 -p 8501:8501 -v {mount} \\",
        f"    -e MODEL_NAME={shlex.quote(name)} tensorflow/serving:2.20.0",
        "Ask it:",
        f"  curl -d {shlex.quote(json.dumps(request))} "
        f"http://localhost:8501/v1/models/{name}:predict",
    ]
    if tokenizers and getattr(tokenizers[0], "needs_moses", False):
        lines.append("Text must be tokenised by Moses, see the model card.")
    return "\n".join(lines)
