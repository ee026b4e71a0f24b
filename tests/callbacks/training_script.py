"""A training that is killed by `test_killed.py`: python training_script.py FOLDER.

A translation model with dropout, two micro-batches an update, validation between
updates. Ends with the arrays of all variables in `final.npz`.
"""

import sys
import time
from pathlib import Path

import keras
import numpy as np

from keras_seqconv import losses, models, optimizers
from keras_seqconv.callbacks import Checkpoints, GracefulStop, LogFile, Validate
from keras_seqconv.data.batches import BatchStream
from keras_seqconv.data.ids import IdStore
from keras_seqconv.fitting import fit_stream

UPDATES = 40


class Slowly(keras.callbacks.Callback):
    """Leaves time for a signal."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)


def main(folder: Path) -> int:
    keras.utils.set_random_seed(1)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    random = np.random.default_rng(2)
    rows = [
        {"source_ids": [*ids, 2], "target_ids": [*ids[::-1], 2]}
        for ids in (
            random.integers(4, 20, random.integers(2, 9)).tolist() for _ in range(150)
        )
    ]
    stream = BatchStream(IdStore.from_rows(rows), tokens_per_batch=160, max_shapes=2)
    model = models.EncoderDecoder(
        20,
        20,
        hidden_dim=8,
        intermediate_dim=8,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=0.3,
        seed=1,
    )
    optimizer = optimizers.TokenNormalized(optimizers.AdamW(1e-2), 2)
    model.compile(optimizer, losses.LabelSmoothedCrossentropy(0.1))
    stop = GracefulStop()
    fit_stream(
        model,
        stream,
        max_updates=UPDATES,
        directory=folder / "checkpoints",
        callbacks=[
            Checkpoints(folder / "checkpoints", every_updates=4),
            LogFile(folder / "log.jsonl", every_updates=1),
            Validate(stream, every_updates=7),
            Slowly(),
            stop,
        ],
    )
    if stop.signal is None:
        variables = [*model.variables, *model.optimizer.variables]
        arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
        np.savez(folder / "final.npz", *arrays)
    return stop.exit_status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
