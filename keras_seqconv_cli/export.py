"""`keras-seqconv export`: a model for TensorFlow Serving, ONNX Runtime or a browser."""

import argparse
import json
import shlex
from pathlib import Path

from keras_seqconv_cli import check_files, check_models, positive_integer

HELP = "write a model for TensorFlow Serving, ONNX Runtime or a browser"
DESCRIPTION = (
    "Write the next version of a model for TensorFlow Serving: tokenizer, search and "
    "detokenizer inside, with requests to warm up with, a model card and example "
    "configurations. A version appears complete or not at all, and none is ever "
    "overwritten. With --format onnx: graphs of the encoder and of one step of the "
    "decoder, the tokenizers and the search options, for a search in any language. "
    "With --format web: these and a page that translates in the visitor's browser."
)
FORMATS = ("saved_model", "onnx", "web")
# Options of `saved_model` that are integers.
_INTEGERS = {
    "num_beams": "beams of the search",
    "max_length": "tokens of a result",
    "max_source_length": "tokens of a text that are read (default 512)",
    "n_best": "hypotheses of translate_n_best (default: as many as beams)",
    "tokens_per_batch": "tokens times beams computed at once; bounds the memory "
    "(default: the model's)",
    "version": "number of the version (default: the next)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model directory, or a run with `model` in it")
    add(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="saved_model (the default), onnx or web, which need the extra onnx",
    )
    add(
        "--output",
        metavar="DIR",
        help="the folder of versions (default saved_models/NAME, NAME that of the "
        "model directory or run); its last part is the model's name on the server. Of "
        "other formats: the folder to write, which must not exist",
    )
    for name, text in _INTEGERS.items():
        flag = f"--{name.replace('_', '-')}"
        add(flag, type=positive_integer, metavar="N", help=text)
    add("--length-penalty", type=float, metavar="A", help="exponent of the length")
    add(
        "--xla",
        action="store_true",
        help="compile with XLA, for servers that were started with XLA enabled only",
    )
    add(
        "--warmup-texts",
        metavar="FILE",
        help="typical texts, one a line, to warm a server up with",
    )
    parser.set_defaults(positional=("model",))


def check(options: argparse.Namespace) -> None:
    check_models(options.model)
    check_files(options.warmup_texts)
    if options.format != "saved_model":
        if options.output is None:
            raise ValueError(f"`output` must be given with --format {options.format}.")
        names = {*_INTEGERS, "xla", "warmup_texts"} - {"num_beams", "max_length"}
        for name in sorted(names):
            if getattr(options, name):
                raise ValueError(
                    f"`{name}` is an option of --format saved_model alone. "
                    f"Received: {name}={getattr(options, name)}"
                )


def run(options: argparse.Namespace) -> int:
    if options.format != "saved_model":
        return _run_graphs(options)
    from keras_seqconv.export import saved_model
    from keras_seqconv.translation.model_directory import model_folder
    from keras_seqconv.translation.translator import load

    folder = model_folder(options.model)
    work_folder = folder.resolve().parent
    # Another model in the folder of a run does not have its scores.
    if folder.resolve().name != "model" or not (work_folder / "run.json").is_file():
        work_folder = None
    texts = options.warmup_texts
    if texts is not None:
        lines = Path(texts).read_text(encoding="utf-8").splitlines()
        texts = [line for line in lines if line.strip()]
        if not texts:
            raise ValueError(
                "`warmup_texts` must have a line of text. "
                f"Received: {options.warmup_texts}"
            )
    translator = load(folder)
    path = saved_model(
        translator,
        options.output or Path("saved_models", (work_folder or folder.resolve()).name),
        length_penalty=options.length_penalty,
        xla=options.xla,
        warmup_texts=texts,
        run=work_folder,
        **{name: getattr(options, name) for name in _INTEGERS},
    )
    print(_summary(path, translator))
    return 0


def _run_graphs(options: argparse.Namespace) -> int:
    from keras_seqconv.export import onnx_model, web_page
    from keras_seqconv.translation.translator import load

    write = web_page if options.format == "web" else onnx_model
    names = ("num_beams", "length_penalty", "max_length")
    given = {name: getattr(options, name) for name in names}
    search = {name: value for name, value in given.items() if value is not None}
    path = write(load(options.model), options.output, **search)
    quoted = shlex.quote(str(path))
    print(f"written to  {path}")
    if options.format == "web":
        print(f"Open http://localhost:8000 after: python -m http.server -d {quoted}")
    else:
        print(f"Try it: echo '...' | python examples/onnx_translate.py {quoted}")
    return 0


def _summary(path: Path, translator) -> str:
    """What was written, and what to paste next."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    name, tokenizers = path.parent.name, [*translator.tokenizers.values()]
    mount = shlex.quote(f"{path.parent}:/models/{name}")
    # A request that every such export answers.
    request = {"instances": ["..."]}
    if not tokenizers:
        translates = hasattr(translator, "source_tokenizer")
        kind, ids = ("translate", "source") if translates else ("generate", "prefix")
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
