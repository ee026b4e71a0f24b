"""`keras-seqconv demo`: models in the browser."""

import argparse

import keras_seqconv as ks
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import Runtime, add_flags, load_models

LOADS_KERAS = False
HELP = "a page in the browser to try one model, or two side by side"
DESCRIPTION = (
    "Serve a page with translations, scores of tokens, attention and kernels of "
    "dynamic convolutions, or with continuations of a language model. Kernels need "
    "--runtime keras. Without --host, only this machine reaches the page."
)


class _Flags(Options):
    host: str = option(
        "127.0.0.1",
        "address to listen on: 0.0.0.0 for all machines",
        metavar="ADDRESS",
    )
    port: int = option(7860, "port to listen on", ge=1, le=65535)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "one or two models or runs"
    parser.add_argument("model", nargs="+", metavar="MODEL", help=text)
    add_flags(parser, _Flags)
    add_flags(parser, Runtime)


def check(options: argparse.Namespace) -> None:
    if len(options.model) > 2:
        raise ValueError(f"`model` must be one or two. Received: {len(options.model)}")


def run(options: argparse.Namespace) -> int:
    models = {name: load_models(options, name) for name in options.model}
    blocks = ks.demo.page(models)
    print(f"http://{options.host}:{options.port}  (Ctrl-C ends it)", flush=True)
    ks.demo.serve(blocks, options.host, options.port)
    return 0
