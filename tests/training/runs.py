"""Small corpora, and options and weights of runs on them."""

import json

import numpy as np

import keras_seqconv as ks
from keras_seqconv.training import TrainingOptions
from keras_seqconv.training import run as runs
from keras_seqconv.training.recipe import resolve_recipe
from keras_seqconv.training.run import sole_run
from tests.cli.commands import write

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
TINY = {"hidden_dim": 16, "intermediate_dim": 16, "num_heads": 2}
TINY |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
FINISHED = {"tokens_per_batch": 512, "max_updates": 9}
BASE = {"preset": "dynamic_conv_multi30k", "dataset": "d", "workdir": "w"}


def write_corpus(folder):
    """Sentences and their words in reverse order."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for split, count in (("train", 96), ("valid", 8), ("test", 8)):
        rows = [
            [WORDS[i] for i in random.integers(len(WORDS), size=length)]
            for length in random.integers(1, 8, size=count)
        ]
        write(folder / f"{split}.en", *(" ".join(row) for row in rows))
        write(folder / f"{split}.de", *(" ".join(row[::-1]) for row in rows))
    return folder


def options(**values):
    return TrainingOptions(**{**BASE, **values})


def options_for(corpus, workdir, **changes):
    defaults = dict(
        preset="dynamic_conv_phrases", dataset=str(corpus), workdir=str(workdir),
        source_language="en", target_language="de", tokenizer="words",
        architecture=TINY, tokens_per_batch=128, max_updates=8, warmup_steps=4,
        max_shapes=1, jit_compile="false",
    )  # fmt: skip
    return TrainingOptions(**{**defaults, **changes})


def flags(corpus, workdir, **changes):
    """The same for the command line."""
    options = options_for(corpus, workdir, **changes)
    words = ["train"]
    for name, value in options.changes().items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                value = json.dumps(value) if isinstance(value, dict) else str(value)
                words.append(value)
    return words


def start(given):
    with sole_run(given.workdir):
        return runs.open_run(given, resolve_recipe(given))


def weights_of(folder):
    return ks.load(folder).model.get_weights()


def weights_in(checkpoint):
    with np.load(checkpoint) as file:
        entries = json.loads(file["header.json"])["model"]
        return [
            file[f"model/{number}"]
            for number, entry in enumerate(entries)
            if "seed" not in entry["path"]
        ]
