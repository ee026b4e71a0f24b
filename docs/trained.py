"""The small model of these pages, trained by the first page that asks for it."""

import os
from pathlib import Path

from keras_seqconv.training import TrainingOptions, train

WORK = Path(os.environ.get("DOCS_WORK", "work"))


def phrases() -> Path:
    """The work folder of a run on the embedded corpus, English to German."""
    options = TrainingOptions(
        preset="dynamic_conv_phrases",
        dataset="phrases",
        max_shapes=4,
        max_updates=300,
        warmup_steps=100,
        workdir=str(WORK / "phrases"),
    )
    train(options, say=lambda line: None)
    return WORK / "phrases"
