"""The small models of these pages, each trained by the first page that asks for it."""

import fcntl
import os
from pathlib import Path

import tensorflow as tf

import keras_seqconv as ks
from keras_seqconv.training import TrainingOptions, train

# In a notebook TensorFlow tells of every file that it writes.
tf.get_logger().setLevel("WARNING")
WORK = Path(os.environ.get("DOCS_WORK", "work"))


def phrases() -> Path:
    """The work folder of a DynamicConv, from English to German."""
    return _run("dynamic_conv_phrases", max_updates=300, warmup_steps=100)


def link() -> None:
    """`runs/phrases` of the working directory, as commands on the pages name it."""
    Path("runs").mkdir(exist_ok=True)
    Path("runs/phrases").symlink_to(phrases().resolve())


def conv_s2s() -> Path:
    """The same of a ConvS2S."""
    return _run("conv_s2s_multi30k", max_updates=500, period=500)


def _run(preset: str, **recipe) -> Path:
    ks.keep_freed_memory()
    options = TrainingOptions(
        preset=preset,
        dataset="phrases",
        vocabulary_size=1000,
        max_shapes=4,
        tokens_per_batch=2048,
        gradient_accumulation_steps=1,
        updates_per_epoch=50,
        workdir=str(WORK / preset),
        **recipe,
    )
    WORK.mkdir(parents=True, exist_ok=True)
    with open(WORK / f"{preset}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pages run side by side
        train(options, say=lambda line: None)
    return WORK / preset
