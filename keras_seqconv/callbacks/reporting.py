"""What a training tells while it runs: lines on the terminal and in a file, curves."""

import contextlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from keras_seqconv.callbacks.counting import CountingCallback, rate_of
from keras_seqconv.support.arguments import check_positive_integer
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import naming, write_file
from keras_seqconv.support.progress import Progress as Lines
from keras_seqconv.support.progress import clock


class Reports(CountingCallback):
    """Base of callbacks that write down values.

    Every so many updates, and at the end of each epoch and of training,
    `write_training` gets the metrics of the batches since the time before; after each
    validation `write_validation` gets the values val_*.

    Keras logs means since the start of the epoch. With the metric `tokens` (target
    tokens of the epoch so far) the mean since then is (m t - m' t') / (t - t'); without
    it, the mean since the start of the epoch is given.

    Args:
        every_updates: updates between two calls of `write_training`.
    """

    def __init__(self, every_updates: int = 100):
        super().__init__()
        self.every_updates = check_positive_integer("every_updates", every_updates)
        self._before, self._since_time = {}, 0.0  # logs and time of the last reading
        self._written = self._validated = self._resumed = None

    def get_state(self) -> dict:
        seconds = time.perf_counter() - self._since_time
        return {"before": self._before, "seconds": seconds}

    def set_state(self, state: dict) -> None:
        self._resumed = state

    def write_training(self, values: dict[str, float]) -> None:
        raise NotImplementedError

    def write_validation(self, values: dict[str, float]) -> None:
        raise NotImplementedError

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._written, self._validated = self.update, None
        self._since_time = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        # Sums begin at zero, or go on from a checkpoint inside of an epoch.
        self._before = _running_metrics(self.model)
        resumed, self._resumed = self._resumed, None
        if resumed and self._before.get("tokens"):
            self._before = resumed["before"]
            self._since_time -= resumed["seconds"]

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._report(logs or {}, self.due(self.every_updates) or self.stopping)

    def on_epoch_end(self, epoch, logs=None):
        self._report(logs or {}, True)

    def _report(self, logs: Mapping, wanted: bool):
        self._since_time += float(logs.get("val_seconds", 0.0))  # which do not count
        if wanted and logs and self.update != self._written:
            self._written = self.update
            self.write_training(self.read(logs))
        validation = [name for name in logs if name.startswith("val_")]
        if validation and self.update != self._validated:
            self._validated = self.update
            self.write_validation({name: float(logs[name]) for name in validation})

    def read(self, logs: Mapping) -> dict[str, float]:
        """Values since the last reading, with `seconds` and `tokens_per_second`."""
        logs, before, now = _floats(logs), self._before, time.perf_counter()
        seconds = max(now - self._since_time, 1e-9)
        self._before, self._since_time = logs, now
        tokens, earlier = logs.get("tokens"), before.get("tokens") or 0.0
        values = {"seconds": seconds, "learning_rate": logs.get("learning_rate")}
        if values["learning_rate"] is None:
            values["learning_rate"] = rate_of(self.model)
        for name in ("loss", "nll", "accuracy", "perplexity", "gradient_norm"):
            if name in logs:
                values[name] = logs[name]
        if tokens is not None:
            values["tokens_per_second"] = max(tokens - earlier, 0.0) / seconds
            for name in {"loss", "nll", "accuracy"} & set(logs):
                if tokens > earlier:
                    sum_before = before.get(name, 0.0) * earlier if earlier else 0.0
                    total = logs[name] * tokens - sum_before
                    values[name] = total / (tokens - earlier)
        if "nll" in values:
            nll = values["nll"]
            values["perplexity"] = math.exp(nll) if nll < 700 else math.inf
        return values


class LogFile(Reports):
    """Appends what happens to a file of JSON lines, for curves.

    A record of training every so many updates and at the end of each epoch, with the
    keys update, epoch (from 1), loss, nll, perplexity, accuracy, learning_rate,
    gradient_norm, tokens_per_second (as far as there are such metrics; of the updates
    since the record before) and seconds (of training in all, those before a restart
    included). After a validation a record with update, epoch, seconds and val_*.
    When training starts, records of later updates than that of the optimizer are
    removed: after a restart nothing is there twice.

    Args:
        path: the file; missing folders are made.
        every_updates: updates between two records.
    """

    def __init__(self, path: str | os.PathLike, every_updates: int = 100):
        super().__init__(every_updates)
        self.path = Path(path)
        self._begin = time.perf_counter()

    def get_state(self) -> dict:
        return {**super().get_state(), "elapsed": time.perf_counter() - self._begin}

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._begin = time.perf_counter() - (self._resumed or {}).get("elapsed", 0.0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            kept = [
                json.dumps(record) + "\n"
                for record in read_log(self.path)
                if record.get("update", 0) <= self.update
            ]
            write_file(self.path, "".join(kept).encode())

    def write_training(self, values: Mapping[str, float]) -> None:
        record = {"update": self.update, "epoch": self.epoch + 1}
        for name, value in values.items():  # JSON has no NaN
            record[name] = value if math.isfinite(value) else None
        record["seconds"] = round(time.perf_counter() - self._begin, 3)
        with naming(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    # The names of the values tell which of the two a record is.
    write_validation = write_training


def read_log(path: str | os.PathLike) -> list[dict]:
    """The records of a `LogFile`; a last line that was cut off is left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another line is not a JSON object.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            if number == len(lines):
                break
            reason = f"must be a JSON object ({error})"
            raise ValueError(f"{path}, line {number}: {reason}.") from None
        records.append(record)
    return records


class Progress(Reports):
    """One line with update, epoch, loss, perplexity, rate, tokens a second, time left.

    On a terminal the line is written anew at most twice a second; elsewhere a line is
    printed every `plain_seconds`. Ends of epochs and results of validations stay. The
    values are those since the line before. Between lines a batch costs one look at the
    clock: nothing is fetched from the device.

    Args:
        max_updates: when training ends, for the time left; None: unknown.
        max_epochs: likewise; used where `max_updates` is None.
        stream: a text file, stderr by default.
        seconds: between two lines on a terminal.
        plain_seconds: between two lines elsewhere.
    """

    def __init__(
        self,
        max_updates: int | None = None,
        max_epochs: int | None = None,
        stream=None,
        seconds: float = 0.5,
        plain_seconds: float = 30.0,
    ):
        super().__init__()
        self.every_updates = None  # but when it is time to
        for name, value in (("max_updates", max_updates), ("max_epochs", max_epochs)):
            if value is not None:
                check_positive_integer(name, value)
        self.max_updates, self.max_epochs = max_updates, max_epochs
        self._of_lines = stream, seconds, plain_seconds
        self._shown = {}

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        stream, *pauses = self._of_lines
        self._lines = Lines(stream or sys.stderr, *pauses)
        self._first = None  # update and time after the first batch, which takes long

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self._first is None:
            self._first = self.update, time.perf_counter(), self.epoch
        if self.stopping:
            return  # its line is there
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            self._lines.update(lambda: self._line(self.read(logs or {})))

    def write_training(self, values: dict[str, float]) -> None:
        self._stay(self._line(values))

    def write_validation(self, values: dict[str, float]) -> None:
        results = "  ".join(
            f"{name} {_short(value)}"
            for name, value in values.items()
            if name not in ("val_seconds", "val_tokens")
        )
        self._stay(f"update {self.update}  epoch {self.epoch + 1}  {results}")

    def _stay(self, line: str):
        with contextlib.suppress(OSError, ValueError):
            self._lines.end(lambda: line)

    def _line(self, values: dict) -> str:
        self._shown |= values
        values = self._shown
        total = f"/{self.max_updates}" if self.max_updates else ""
        epochs = f"/{self.max_epochs}" if self.max_epochs else ""
        parts = [f"update {self.update}{total}", f"epoch {self.epoch + 1}{epochs}"]
        for key, name in (("loss", "loss"), ("perplexity", "ppl")):
            if key in values:
                parts.append(f"{name} {_short(values[key])}")
        parts.append(f"lr {values['learning_rate']:.2e}")
        if "tokens_per_second" in values:
            parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        if (left := self._seconds_left()) is not None:
            parts.append(f"{clock(left)} left")
        width = shutil.get_terminal_size((100, 24)).columns
        return "  ".join(parts)[: max(width - 1, 1)]

    def _seconds_left(self) -> float | None:
        """At the speed so far."""
        if self._first is None:
            return None
        update, start, epoch = self._first
        if self.max_updates:
            done, total = self.update - update, self.max_updates - update
        elif self.max_epochs and self.params.get("steps"):
            done = self.epoch - epoch + self.batches / self.params["steps"]
            total = self.max_epochs - epoch
        else:
            return None
        left = max(total - done, 0)
        return (time.perf_counter() - start) * left / done if done > 0 else None


class TensorBoard(Reports):
    """Writes scalars by update, and pictures after validations; on any backend.

    `train/loss`, `train/nll`, `train/perplexity`, `train/accuracy`,
    `train/learning_rate`, `train/gradient_norm`, `train/tokens_per_second` of the
    updates since the point before, and `validation/...` of all val_* in the logs
    (`validation/bleu`, for example), as far as there are such metrics. Points that were
    written after the checkpoint from which training goes on are covered by the new
    ones (TensorBoard shows the later file).

    Args:
        directory: of the event files.
        every_updates: updates between two points.
        attention_figure: called without arguments after each validation; returns a
            dictionary of images by name: (height, width, 1, 3 or 4), uint8 or floats
            from 0 to 1.

    Raises:
        ImportError: TensorBoard is missing: pip install 'keras-seqconv[mt]'.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        every_updates: int = 100,
        attention_figure: Callable[[], dict[str, np.ndarray]] | None = None,
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
        self._write("scalar", {f"train/{name}": values[name] for name in values})

    def write_validation(self, values: dict[str, float]) -> None:
        names = {name: name.replace("val_", "validation/", 1) for name in values}
        self._write("scalar", {names[name]: values[name] for name in values})
        if self.attention_figure is not None:
            pictures = self.attention_figure()
            self._write("image", {k: np.asarray(v)[None] for k, v in pictures.items()})

    def _write(self, kind: str, values: dict):
        import tensorflow as tf

        with self._writer.as_default():
            for name, value in values.items():
                getattr(tf.summary, kind)(name, value, step=self.update)


def _running_metrics(model) -> dict[str, float]:
    """Metrics of the epoch so far: nothing, or what came from a checkpoint."""
    if not model.metrics_variables:
        return {}
    try:
        return _floats(model.get_metrics_result())
    except ValueError:  # `metrics` of `compile` are built with the first batch
        return {}


def _floats(logs) -> dict[str, float]:
    return {name: float(logs[name]) for name in logs or ()}


def _short(value: float) -> str:
    if abs(value) < 1000:
        return f"{value:.4g}" if abs(value) < 1e-2 else f"{value:.3f}"
    return f"{value:.3g}"
