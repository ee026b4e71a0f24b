"""Curves and attention pictures for TensorBoard, on any backend."""

import os
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from keras_seqconv.arguments import check_positive_integer
from keras_seqconv.callbacks.learning_rates import rate_of
from keras_seqconv.callbacks.reporting import Interval, running_metrics
from keras_seqconv.callbacks.updates import ENDS, UpdateCounter, next_multiple
from keras_seqconv.extras import require


class TensorBoard(keras.callbacks.Callback):
    """Writes scalars by update, and pictures after validations.

    `train/loss`, `train/nll`, `train/perplexity`, `train/accuracy`,
    `train/learning_rate`, `train/gradient_norm`, `train/tokens_per_second` of the
    updates since the point before, and `validation/...` of all val_* in the logs
    (`validation/bleu`, for example), as far as there are such metrics. Points that were
    written after the checkpoint from which training goes on are covered by the new
    ones (TensorBoard shows the later file).

    Args:
        directory: of the event files.
        every_updates: updates between two points.
        attention_figure: called without arguments after each validation; returns an
            image (height, width, 1, 3 or 4), uint8 or floats from 0 to 1, or a
            dictionary of such by name.

    Raises:
        ImportError: TensorBoard is missing: pip install 'keras-seqconv[mt]'.
    """

    stage = 5

    def __init__(
        self,
        directory: str | os.PathLike,
        every_updates: int = 100,
        attention_figure: Callable[[], np.ndarray | dict] | None = None,
    ):
        super().__init__()
        require("tensorboard", "mt")  # tf.summary has no scalars without it
        self.directory = Path(directory)
        self.every_updates = check_positive_integer("every_updates", every_updates)
        self.attention_figure = attention_figure
        self._writer = None
        self._counter = UpdateCounter(self)
        self._interval = Interval()
        self._next = self._written = self._validated = None

    def on_train_begin(self, logs=None):
        import tensorflow as tf

        self._counter.start()
        self._next = next_multiple(self.every_updates, self._counter.read())
        self._written, self._validated = self._counter.read(), None
        self._interval = Interval()
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.directory))

    def on_epoch_begin(self, epoch, logs=None):
        self._counter.start_epoch()
        self._interval.start_epoch(running_metrics(self.model))

    def on_train_batch_end(self, batch, logs=None):
        self._counter.advance(batch)
        self._interval.skip_validation(logs)
        if ENDS in (logs or {}) or self._counter.reached(self._next):
            self._next = next_multiple(self.every_updates, self._counter.read())
            self._train(logs)
        self._validation(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._interval.skip_validation(logs)
        self._train(logs)
        self._validation(logs)
        self._writer.flush()

    def on_train_end(self, logs=None):
        self.close()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _train(self, logs):
        update = self._counter.read()
        if not logs or update == self._written:
            return
        self._written = update
        values = self._interval.read(logs)
        del values["seconds"]
        values.setdefault("learning_rate", rate_of(self.model))
        self._scalars("train", values)

    def _validation(self, logs):
        names = [name for name in logs or () if name.startswith("val_")]
        update = self._counter.read() if names else None
        if not names or update == self._validated:
            return
        self._validated = update
        values = {name.removeprefix("val_"): float(logs[name]) for name in names}
        self._scalars("validation", values)
        if self.attention_figure is not None:
            self._pictures(self.attention_figure())

    def _scalars(self, group: str, values: dict):
        import tensorflow as tf

        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(f"{group}/{name}", value, step=self._counter.read())

    def _pictures(self, pictures):
        import tensorflow as tf

        if not isinstance(pictures, dict):
            pictures = {"attention": pictures}
        with self._writer.as_default():
            for name, picture in pictures.items():
                picture = np.asarray(picture)
                if picture.ndim != 3:
                    raise ValueError(
                        "`attention_figure` must return images (height, width, "
                        f"channels). Received: {name} of shape {picture.shape}"
                    )
                picture = picture[None]
                tf.summary.image(name, picture, step=self._counter.read())
