"""What a training tells while it runs: lines on the terminal and in a file, curves."""

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
from keras_seqconv.support.arguments import check_number, check_positive_integer
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import naming, write_file

# Means over the tokens of an epoch so far, in the logs of a batch.
_MEANS = ("loss", "nll", "accuracy")


class Interval:
    """Metrics of the batches since the last reading.

    Keras logs means since the start of the epoch. With the metric `tokens` (target
    tokens of the epoch so far) the mean of an interval is (m t - m' t') / (t - t');
    without it, the mean since the start of the epoch is given.
    """

    def __init__(self):
        self._before = {}
        self._time = time.perf_counter()

    def start_epoch(
        self, logs: Mapping | None = None, state: Mapping | None = None
    ) -> None:
        """Sums begin at zero, or go on from a checkpoint inside of an epoch.

        Args:
            logs: means of the epoch so far.
            state: of an interval that had begun in it; by default one begins now.
        """
        self._before = _plain(logs)
        if state is not None and self._before.get("tokens"):
            self._before = state["before"]
            self._time -= state["seconds"]

    def get_state(self) -> dict:
        return {"before": self._before, "seconds": time.perf_counter() - self._time}

    def skip(self, seconds: float) -> None:
        """These seconds do not count."""
        self._time += seconds

    def read(self, logs: Mapping) -> dict[str, float]:
        """Values by name, `seconds` among them; starts the next interval."""
        logs, now = _plain(logs), time.perf_counter()
        before, self._before = self._before, logs
        values = {"seconds": max(now - self._time, 1e-9)}
        self._time = now
        tokens, earlier = logs.get("tokens"), before.get("tokens") or 0.0
        for name in _MEANS:
            if name in logs and tokens is not None and tokens > earlier:
                sum_before = before.get(name, 0.0) * earlier if earlier else 0.0
                total = logs[name] * tokens - sum_before
                values[name] = total / (tokens - earlier)
            elif name in logs:
                values[name] = logs[name]
        for name in ("perplexity", "learning_rate", "gradient_norm"):
            if name in logs:
                values[name] = logs[name]
        if "nll" in values:
            nll = values["nll"]
            values["perplexity"] = math.exp(nll) if nll < 700 else math.inf
        if tokens is not None:
            values["tokens_per_second"] = max(tokens - earlier, 0.0) / values["seconds"]
        return values


class Reports(CountingCallback):
    """Base of callbacks that write down values.

    When it is time to, and at the end of each epoch and of training, `write_training`
    gets what an `Interval` reads; after each validation `write_validation` gets the
    values val_*.

    Args:
        every_updates: updates between two calls of `write_training`.
    """

    def __init__(self, every_updates: int = 100):
        super().__init__()
        self.every_updates = check_positive_integer("every_updates", every_updates)
        self._interval = Interval()
        self._written = self._validated = self._resumed = None

    def get_state(self) -> dict:
        return {"interval": self._interval.get_state()}

    def set_state(self, state: dict) -> None:
        self._resumed = state["interval"]

    def write_training(self, values: dict[str, float]) -> None:
        raise NotImplementedError

    def write_validation(self, values: dict[str, float]) -> None:
        raise NotImplementedError

    def is_time(self) -> bool:
        """After each batch: whether to write."""
        return self.due(self.every_updates)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._written, self._validated = self.update, None
        self._interval = Interval()

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._interval.start_epoch(_running_metrics(self.model), self._resumed)
        self._resumed = None

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._report(logs or {}, self.is_time() or self.stopping)

    def on_epoch_end(self, epoch, logs=None):
        self._report(logs or {}, True)

    def _report(self, logs: Mapping, wanted: bool):
        validation = [name for name in logs if name.startswith("val_")]
        self._interval.skip(float(logs.get("val_seconds", 0.0)))
        if wanted and logs and self.update != self._written:
            self._written = self.update
            values = self._interval.read(logs)
            values.setdefault("learning_rate", rate_of(self.model))
            self.write_training(values)
        if validation and self.update != self._validated:
            self._validated = self.update
            self.write_validation({name: float(logs[name]) for name in validation})


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
        self._seconds, self._start = 0.0, None

    def get_state(self) -> dict:
        return {**super().get_state(), "seconds": self._elapsed()}

    def set_state(self, state: dict) -> None:
        super().set_state(state)
        self._seconds = state["seconds"]

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._start = time.perf_counter()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            kept = [
                json.dumps(record) + "\n"
                for record in read_log(self.path)
                if record.get("update", 0) <= self.update
            ]
            write_file(self.path, "".join(kept).encode())

    def on_train_end(self, logs=None):
        self._seconds, self._start = self._elapsed(), None

    def write_training(self, values: Mapping[str, float]) -> None:
        record = {"update": self.update, "epoch": self.epoch + 1}
        for name, value in values.items():  # JSON has no NaN
            record[name] = value if math.isfinite(value) else None
        record["seconds"] = round(self._elapsed(), 3)
        with naming(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    # The names of the values tell which of the two a record is.
    write_validation = write_training

    def _elapsed(self) -> float:
        running = 0.0 if self._start is None else time.perf_counter() - self._start
        return self._seconds + running


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
    printed every `plain_seconds`. After a validation its results stay as a line. The
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
        for name, value in (("max_updates", max_updates), ("max_epochs", max_epochs)):
            if value is not None:
                check_positive_integer(name, value)
        self.max_updates, self.max_epochs = max_updates, max_epochs
        self._stream = stream
        self._pauses = (
            check_number("seconds", seconds),
            check_number("plain_seconds", plain_seconds),
        )
        self._open = False  # whether a line is on the terminal without its end
        self._shown = {}

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._stream = self._stream or sys.stderr
        self._terminal = bool(getattr(self._stream, "isatty", lambda: False)())
        self._pause = self._pauses[0 if self._terminal else 1]
        self._drawn, self._began = time.perf_counter(), None
        self._epochs_begun = 0

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epochs_begun += 1

    def is_time(self) -> bool:
        now = time.perf_counter()
        if self._began is None:  # the first batch takes long, as graphs are made
            self._began, self._first = now, self.update
        return now - self._drawn >= self._pause

    def on_train_end(self, logs=None):
        self.close()

    def close(self) -> None:
        """End the line."""
        if self._open:
            self._write("\n")
            self._open = False

    def write_training(self, values: dict[str, float]) -> None:
        self._shown |= values
        self._drawn = time.perf_counter()
        line = self._line(self._shown)
        if self._terminal:
            width = shutil.get_terminal_size((100, 24)).columns
            self._write("\r" + line[: max(width - 1, 1)] + "\x1b[K")
            self._open = True
        else:
            self._write(line + "\n")

    def write_validation(self, values: dict[str, float]) -> None:
        results = "  ".join(
            f"{name} {_short(value)}"
            for name, value in values.items()
            if name not in ("val_seconds", "val_tokens")
        )
        text = f"update {self.update}  epoch {self.epoch + 1}  {results}\n"
        self._write("\r\x1b[K" + text if self._terminal else text)
        self._open = False

    def _line(self, values: dict) -> str:
        total = f"/{self.max_updates}" if self.max_updates else ""
        epochs = f"/{self.max_epochs}" if self.max_epochs else ""
        parts = [f"update {self.update}{total}", f"epoch {self.epoch + 1}{epochs}"]
        for key, name in (("loss", "loss"), ("perplexity", "ppl")):
            if key in values:
                parts.append(f"{name} {_short(values[key])}")
        parts.append(f"lr {values['learning_rate']:.2e}")
        if "tokens_per_second" in values:
            speed = values["tokens_per_second"]
            speed = f"{speed / 1000:.1f}k" if speed >= 10000 else f"{speed:.0f}"
            parts.append(f"{speed} tokens/s")
        if (left := self._seconds_left()) is not None:
            minutes, seconds = divmod(round(left), 60)
            hours, minutes = divmod(minutes, 60)
            parts.append(f"{hours}:{minutes:02d}:{seconds:02d} left")
        return "  ".join(parts)

    def _seconds_left(self) -> float | None:
        """At the speed so far."""
        share = 0.0
        if self.max_updates and self._began is not None:
            todo = self.max_updates - self._first
            share = (self.update - self._first) / max(todo, 1)
        elif self.max_epochs and self.params.get("steps"):
            begun = self._epochs_begun - 1
            done = begun + self.batches / self.params["steps"]
            share = done / max(self.max_epochs - self.epoch + begun, 1)
        if not share > 0 or self._began is None:
            return None
        passed = time.perf_counter() - self._began
        return max(passed / min(share, 1.0) - passed, 0.0)

    def _write(self, text: str):
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more; training goes on
            self._open = False


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
        self._write("scalar", {f"train/{name}": values[name] for name in values})

    def write_validation(self, values: dict[str, float]) -> None:
        scalars = {
            f"validation/{name.removeprefix('val_')}": value
            for name, value in values.items()
        }
        self._write("scalar", scalars)
        if self.attention_figure is None:
            return
        pictures = self.attention_figure()
        if not isinstance(pictures, dict):
            pictures = {"attention": pictures}
        pictures = {name: np.asarray(picture) for name, picture in pictures.items()}
        for name, picture in pictures.items():
            if picture.ndim != 3:
                raise ValueError(
                    "`attention_figure` must return images (height, width, "
                    f"channels). Received: {name} of shape {picture.shape}"
                )
        self._write("image", {name: pictures[name][None] for name in pictures})

    def _write(self, kind: str, values: dict):
        import tensorflow as tf

        with self._writer.as_default():
            for name, value in values.items():
                getattr(tf.summary, kind)(name, value, step=self.update)


def _running_metrics(model) -> dict:
    """Metrics of the epoch so far: nothing, or what came from a checkpoint."""
    if not model.metrics_variables:
        return {}
    try:
        return _plain(model.get_metrics_result())
    except ValueError:  # `metrics` of `compile` are built with the first batch
        return {}


def _plain(logs) -> dict[str, float]:
    return {name: float(logs[name]) for name in logs or ()}


def _short(value: float) -> str:
    if abs(value) < 1000:
        return f"{value:.4g}" if abs(value) < 1e-2 else f"{value:.3f}"
    return f"{value:.3g}"
