"""`keras-seqconv demo`: models in the browser."""

import argparse

import keras_seqconv as ks
from keras_seqconv_cli import positive_integer

HELP = "a page in the browser to try one model, or two side by side"
DESCRIPTION = (
    "Serve a page: a text, its translations with the scores of each token, where the "
    "model looked, the kernels of dynamic convolutions; or what a language model "
    "continues. Only this machine reaches the page, unless --host says more."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="+", metavar="MODEL", help="a model directory or a run; or two")
    add(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="who may reach it: 0.0.0.0 is everybody (default 127.0.0.1, this machine)",
    )  # fmt: skip
    add("--port", type=positive_integer, default=7860, metavar="N", help="default 7860")


def check(options: argparse.Namespace) -> None:
    if len(options.model) > 2:
        raise ValueError(f"`model` must be one or two. Received: {len(options.model)}")


def run(options: argparse.Namespace) -> int:
    blocks = ks.demo.page({name: ks.load(name) for name in options.model})
    print(f"http://{options.host}:{options.port}  (Ctrl-C ends it)", flush=True)
    blocks.launch(
        server_name=options.host,
        server_port=options.port,
        quiet=True,
        footer_links=[],
    )
    return 0
