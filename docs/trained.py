"""The small models of these pages, each trained by the first page that asks for it."""

import os
from pathlib import Path

import keras_seqconv as ks
from keras_seqconv.training import TrainingOptions, train

WORK = Path(os.environ.get("DOCS_WORK", "work"))


def phrases(preset: str = "dynamic_conv_phrases") -> Path:
    """The work folder of a run on the embedded corpus, English to German."""
    ks.keep_freed_memory()
    options = TrainingOptions(
        preset=preset,
        dataset="phrases",
        vocabulary_size=1000,
        max_shapes=4,
        max_updates=300,
        tokens_per_batch=2048,
        gradient_accumulation_steps=1,
        warmup_steps=100,
        learning_rate=5e-3,
        validate_every=50,
        workdir=str(WORK / preset),
    )
    train(options, say=lambda line: None)
    return WORK / preset
