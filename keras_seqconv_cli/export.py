"""`keras-seqconv export`: a model for TensorFlow Serving."""

import argparse
import json
import shlex
from pathlib import Path

from keras_seqconv_cli import check_files, check_models, positive_integer

HELP = "write a SavedModel that TensorFlow Serving serves, text in and text out"
DESCRIPTION = (
    "Write the next version of a model for TensorFlow Serving: tokenizer, search and "
    "detokenizer inside, with requests to warm up with, a model card and example "
    "configurations. A version appears complete or not at all, and none is ever "
    "overwritten."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a model directory, or a run with `model` in it"
    )
    add = parser.add_argument
    add(
        "--output",
        metavar="DIR",
        help="the folder of versions (default saved_models/NAME, NAME that of the "
        "model directory or run); its last part is the model's name on the server",
    )
    add("--num-beams", type=positive_integer, metavar="N", help="beams of the search")
    add("--length-penalty", type=float, metavar="A", help="exponent of the length")
    add("--max-length", type=positive_integer, metavar="N", help="tokens of a result")
    add(
        "--max-source-length",
        type=positive_integer,
        metavar="N",
        help="tokens of a text that are read (default 512)",
    )
    add(
        "--n-best",
        type=positive_integer,
        metavar="N",
        help="hypotheses of translate_n_best (default: as many as beams)",
    )
    add(
        "--tokens-per-batch",
        type=positive_integer,
        metavar="N",
        help="tokens times beams computed at once; bounds the memory (default 4096)",
    )
    add(
        "--xla",
        action="store_true",
        help="compile with XLA, for servers that were started with XLA enabled only",
    )
    add(
        "--version",
        type=positive_integer,
        metavar="N",
        help="number of the version (default: the next)",
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


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.export import saved_model
    from keras_seqconv.model_directory import model_folder
    from keras_seqconv.translator import load

    folder = model_folder(options.model)
    work_folder = folder.resolve().parent
    if not (work_folder / "run.json").is_file():
        work_folder = None
    output = options.output
    if output is None:
        output = Path("saved_models", (work_folder or folder).resolve().name)
    names = (
        "num_beams", "length_penalty", "max_length", "max_source_length", "n_best",
        "tokens_per_batch", "xla", "version",
    )  # fmt: skip
    translator = load(folder)
    path = saved_model(
        translator,
        output,
        warmup_texts=_lines(options.warmup_texts),
        run=work_folder,
        **{name: getattr(options, name) for name in names},
    )
    print(_summary(path, translator))
    return 0


def _lines(path: str | None) -> list[str] | None:
    if path is None:
        return None
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise ValueError(f"`warmup_texts` must have a line of text. Received: {path}")
    return lines


def _summary(path: Path, translator) -> str:
    """What was written, and what to paste next."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    name = path.parent.name
    mount = shlex.quote(f"{path.parent}:/models/{name}")
    request = shlex.quote(json.dumps(_request(translator)))
    reads = [*translator.tokenizers.values()][:1]
    tokenised = any(getattr(tokenizer, "needs_moses", False) for tokenizer in reads)
    return "\n".join(
        [
            f"written to  {path}  ({size / 1e6:.1f} MB)",
            f"model card  {path / 'MODEL_CARD.md'}",
            "",
            "Serve it:",
            f"  docker run --rm -p 8500:8500 -p 8501:8501 -v {mount} \\",
            f"    -e MODEL_NAME={shlex.quote(name)} tensorflow/serving:2.20.0",
            "Ask it:",
            f"  curl -d {request} http://localhost:8501/v1/models/{name}:predict",
        ]
        + ["Text must be tokenised by Moses, see the model card."] * tokenised
    )


def _request(translator) -> dict:
    """One that every such export answers."""
    names = ("translate_ids", "source_ids"), ("generate_ids", "prefix_ids")
    signature, ids = names[not hasattr(translator, "source_tokenizer")]
    if not translator.tokenizers:
        inputs = {ids: [[translator.model.end_id]], "lengths": [1]}
        return {"signature_name": signature, "inputs": inputs}
    return {"instances": ["..."]}
