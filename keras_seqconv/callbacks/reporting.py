"""What a training tells while it runs: a line on the terminal, lines in a file."""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import keras

from keras_seqconv.callbacks.learning_rates import rate_of
from keras_seqconv.callbacks.updates import ENDS, UpdateCounter, next_multiple
from keras_seqconv.support.arguments import check_number, check_positive_integer
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

    def skip_validation(self, logs: Mapping | None) -> None:
        """The seconds of validation in the logs do not count."""
        self._time += float((logs or {}).get("val_seconds", 0.0))

    def read(self, logs: Mapping) -> dict[str, float]:
        """Values by name, `seconds` among them; starts the next interval."""
        logs = _plain(logs)
        before, self._before = self._before, logs
        now = time.perf_counter()
        found = {"seconds": max(now - self._time, 1e-9)}
        self._time = now
        tokens, earlier = logs.get("tokens"), before.get("tokens") or 0.0
        for name in _MEANS:
            if name not in logs:
                continue
            if tokens is None or not tokens > earlier:
                found[name] = logs[name]
            else:
                sum_before = before.get(name, 0.0) * earlier if earlier else 0.0
                total = logs[name] * tokens - sum_before
                found[name] = total / (tokens - earlier)
        if "nll" in found:
            found["perplexity"] = _exp(found["nll"])
        elif "perplexity" in logs:
            found["perplexity"] = logs["perplexity"]
        for name in ("learning_rate", "gradient_norm"):
            if name in logs:
                found[name] = logs[name]
        if tokens is not None:
            found["tokens_per_second"] = max(tokens - earlier, 0.0) / found["seconds"]
        return found


class Reports(keras.callbacks.Callback):
    """Base of callbacks that write down values by update.

    Every so many updates, and at the end of each epoch, `write_training` gets what an
    `Interval` reads; after each validation `write_validation` gets the values val_*.

    Args:
        every_updates: updates between two calls of `write_training`.
    """

    stage = 5

    def __init__(self, every_updates: int = 100):
        super().__init__()
        self.every_updates = check_positive_integer("every_updates", every_updates)
        self._counter = UpdateCounter(self)
        self._interval = Interval()
        self._next = self._written = self._validated = self._resumed = None

    def get_state(self) -> dict:
        return {"interval": self._interval.get_state()}

    def set_state(self, state: dict) -> None:
        self._resumed = state.get("interval")  # older versions have none

    def write_training(self, values: dict[str, float]) -> None:
        raise NotImplementedError

    def write_validation(self, values: dict[str, float]) -> None:
        raise NotImplementedError

    def on_train_begin(self, logs=None):
        self._counter.start()
        update = self._counter.read()
        self._next = next_multiple(self.every_updates, update)
        self._written, self._validated = update, None
        self._interval = Interval()

    def on_epoch_begin(self, epoch, logs=None):
        self._counter.start_epoch()
        self._interval.start_epoch(running_metrics(self.model), self._resumed)
        self._resumed = None

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

    def _train(self, logs):
        update = self._counter.read()
        if not logs or update == self._written:
            return
        self._written = update
        values = self._interval.read(logs)
        values.setdefault("learning_rate", rate_of(self.model))
        self.write_training(values)

    def _validation(self, logs):
        names = [name for name in logs or () if name.startswith("val_")]
        update = self._counter.read() if names else None
        if not names or update == self._validated:
            return
        self._validated = update
        self.write_validation({name: float(logs[name]) for name in names})


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
        self._seconds, self._start = 0.0, 0.0
        self._epoch = 0

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
            self._truncate(self._counter.read())

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1
        super().on_epoch_begin(epoch, logs)

    def on_train_end(self, logs=None):
        self._seconds, self._start = self._elapsed(), None

    def write_training(self, values: Mapping[str, float]) -> None:
        record = {"update": self._counter.read(), "epoch": self._epoch}
        record.update({name: _json(value) for name, value in values.items()})
        record["seconds"] = round(self._elapsed(), 3)
        with naming(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    # The names of the values tell which of the two a record is.
    write_validation = write_training

    def _elapsed(self) -> float:
        if not self._start:
            return self._seconds
        return self._seconds + time.perf_counter() - self._start

    def _truncate(self, update: int):
        kept = [
            json.dumps(record) + "\n"
            for record in read_log(self.path)
            if record.get("update", 0) <= update
        ]
        write_file(self.path, "".join(kept).encode())


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


class Progress(keras.callbacks.Callback):
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

    stage = 5

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
        self._counter = UpdateCounter(self)
        self._interval = Interval()
        self._open = False
        self._shown = {}

    def on_train_begin(self, logs=None):
        self._stream = self._stream or sys.stderr
        self._terminal = bool(getattr(self._stream, "isatty", lambda: False)())
        self._pause = self._pauses[0 if self._terminal else 1]
        self._counter.start()
        self._first = self._counter.read()
        self._interval = Interval()
        self._began, self._drawn = None, time.perf_counter()
        self._drawn_at = None
        self._validated = None
        self._epoch = 0
        self._epochs_begun = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._epochs_begun += 1
        self._counter.start_epoch()
        self._interval.start_epoch(running_metrics(self.model))

    def on_train_batch_end(self, batch, logs=None):
        self._counter.advance(batch)
        self._interval.skip_validation(logs)
        now = time.perf_counter()
        if self._began is None:  # the first batch takes long, as graphs are made
            self._began, self._first = now, self._counter.read()
        if now - self._drawn >= self._pause:
            self._draw(logs)
        self._validation(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._interval.skip_validation(logs)
        if self._counter.position != self._drawn_at:
            self._draw(logs)
        self._validation(logs)

    def on_train_end(self, logs=None):
        self.close()

    def close(self) -> None:
        """End the line."""
        if self._open:
            self._write("\n")
            self._open = False

    def _draw(self, logs):
        if not logs:
            return
        self._shown = {**self._shown, **self._interval.read(logs)}
        self._drawn, self._drawn_at = time.perf_counter(), self._counter.position
        self._show(self._line(self._shown))

    def _line(self, values: dict) -> str:
        update = self._counter.read()
        total = f"/{self.max_updates}" if self.max_updates else ""
        epochs = f"/{self.max_epochs}" if self.max_epochs else ""
        parts = [f"update {update}{total}", f"epoch {self._epoch + 1}{epochs}"]
        for key, name in (("loss", "loss"), ("perplexity", "ppl")):
            if key in values:
                parts.append(f"{name} {_short(values[key])}")
        rate = values.get("learning_rate") or rate_of(self.model)
        parts.append(f"lr {rate:.2e}")
        if "tokens_per_second" in values:
            parts.append(f"{_count(values['tokens_per_second'])} tokens/s")
        left = self._left(update)
        if left is not None:
            parts.append(f"{_clock(left)} left")
        return "  ".join(parts)

    def _left(self, update: int) -> float | None:
        """Seconds to the end, at the speed so far."""
        share = 0.0
        if self.max_updates:
            done, total = update - self._first, self.max_updates - self._first
            share = done / max(total, 1)
        elif self.max_epochs and self.params.get("steps"):
            begun = self._epochs_begun - 1
            done = begun + self._counter.batches / self.params["steps"]
            share = done / max(self.max_epochs - self._epoch + begun, 1)
        if not share > 0 or self._began is None:
            return None
        passed = time.perf_counter() - self._began
        return max(passed / min(share, 1.0) - passed, 0.0)

    def _validation(self, logs):
        found = {name: logs[name] for name in logs or () if name.startswith("val_")}
        for name in ("val_seconds", "val_tokens"):
            found.pop(name, None)
        update = self._counter.position
        if not found or update == self._validated:
            return
        self._validated = update
        values = "  ".join(f"{key} {_short(float(found[key]))}" for key in found)
        text = f"update {self._counter.read()}  epoch {self._epoch + 1}  {values}"
        if self._terminal:
            self._write("\r\x1b[K")
        self._write(text + "\n")
        self._open = False

    def _show(self, line: str):
        if not self._terminal:
            self._write(line + "\n")
            return
        width = shutil.get_terminal_size((100, 24)).columns
        self._write("\r" + line[: max(width - 1, 1)] + "\x1b[K")
        self._open = True

    def _write(self, text: str):
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more; training goes on
            self._open = False


def running_metrics(model) -> dict:
    """Metrics of the epoch so far: nothing, or what came from a checkpoint."""
    if not model.metrics_variables:
        return {}
    try:
        return _plain(model.get_metrics_result())
    except ValueError:  # `metrics` of `compile` are built with the first batch
        return {}


def _plain(logs) -> dict[str, float]:
    return {name: float(logs[name]) for name in logs or ()}


def _json(value: float):
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _short(value: float) -> str:
    if abs(value) < 1000:
        return f"{value:.4g}" if abs(value) < 1e-2 else f"{value:.3f}"
    return f"{value:.3g}"


def _count(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 10000 else f"{value:.0f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
