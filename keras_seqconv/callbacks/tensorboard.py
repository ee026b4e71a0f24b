"""Curves and attention pictures for TensorBoard, on any backend."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_seqconv.callbacks.reporting import Reports
from keras_seqconv.support.extras import require


class TensorBoard(Reports):
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

    def __init__(
        self,
        directory: str | os.PathLike,
        every_updates: int = 100,
        attention_figure: Callable[[], np.ndarray | dict] | None = None,
    ):
        super().__init__(every_updates)
        require("tensorboard", "mt")  # tf.summary has no scalars without it
        self.directory = Path(directory)
        self.attention_figure = attention_figure
        self._writer = None

    def on_train_begin(self, logs=None):
        import tensorflow as tf

        super().on_train_begin(logs)
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.directory))

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._writer.flush()

    def on_train_end(self, logs=None):
        self.close()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def write_training(self, values: dict[str, float]) -> None:
        del values["seconds"]
        self._scalars("train", values)

    def write_validation(self, values: dict[str, float]) -> None:
        values = {name.removeprefix("val_"): value for name, value in values.items()}
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
