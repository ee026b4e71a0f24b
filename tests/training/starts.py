"""Starts of `keras-seqconv train` that kill themselves: starts.py CONFIG STARTS.

STARTS is a list of (workdir, place, calls, signal) as JSON; one of a workdir alone runs
to its end. Prints the exit status of each. All are forked from one process that has
imported what they need and not used TensorFlow yet, as importing takes seconds.
"""

import functools
import json
import os
import sys
from pathlib import Path

import matplotlib.backends.backend_agg  # noqa: F401
import numpy as np
import tensorflow  # noqa: F401

import keras_seqconv.training  # noqa: F401
from keras_seqconv import callbacks, checkpoints
from keras_seqconv.data import ids
from keras_seqconv.tokenizers import WordTokenizer
from keras_seqconv.translation import model_directory
from keras_seqconv_cli import main

# Where a start dies: before a call of this function, or after it.
PLACES = {
    "ids": (ids, "write_json", "before"),
    "update": (callbacks.Progress, "on_train_batch_end", "before"),
    "array of a checkpoint": (np.lib.format, "write_array", "before"),
    "end of an epoch": (callbacks.Checkpoints, "on_epoch_end", "before"),
    "checkpoint of an epoch": (callbacks.Checkpoints, "on_epoch_end", "after"),
    "mean of an array": (checkpoints, "_mean", "before"),
    "weights of the model": (model_directory, "_save_weights", "after"),
    "tokenizer of the model": (WordTokenizer, "save", "after"),
    # The new model has its name; a second time, the old one is away.
    "rename of the model": (Path, "rename", "after"),
}


def die(place: str, calls: int, number: int) -> None:
    owner, name, when = PLACES[place]
    called, left = getattr(owner, name), calls

    @functools.wraps(called)
    def dying(*arguments, **options):
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            os.kill(os.getpid(), number)
        found = called(*arguments, **options)
        if left == 0 and when == "after":
            os.kill(os.getpid(), number)
        return found

    setattr(owner, name, dying)


def start(config: str, workdir: str, *death) -> int:
    """The exit status, as `subprocess` has it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if death:
                die(*death)
            status = main(["train", "--config", config, "--workdir", workdir])
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for one in json.loads(sys.argv[2]):
        sys.stdout.write(f"ended {start(sys.argv[1], *one)}\n")
        sys.stdout.flush()
