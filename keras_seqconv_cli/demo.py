"""`keras-seqconv demo`: models in the browser."""

import argparse

import keras_seqconv as ks
from keras_seqconv_cli import add_runtime, load_models, positive_integer

LOADS_KERAS = False
HELP = "a page in the browser to try one model, or two side by side"
DESCRIPTION = (
    "Serve a page with translations, scores of tokens, attention and kernels of "
    "dynamic convolutions, or with continuations of a language model. Kernels need "
    "--runtime keras. Without --host, only this machine reaches the page."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="+", metavar="MODEL", help="one or two models or runs")
    add(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on: 0.0.0.0 for all machines (default 127.0.0.1)",
    )  # fmt: skip
    text = "port (default 7860)"
    add("--port", type=positive_integer, default=7860, metavar="N", help=text)
    add_runtime(parser)


def check(options: argparse.Namespace) -> None:
    if len(options.model) > 2:
        raise ValueError(f"`model` must be one or two. Received: {len(options.model)}")


def run(options: argparse.Namespace) -> int:
    models = {name: load_models(options, name) for name in options.model}
    blocks = ks.demo.page(models)
    print(f"http://{options.host}:{options.port}  (Ctrl-C ends it)", flush=True)
    ks.demo.serve(blocks, options.host, options.port)
    return 0
