"""Callbacks that measure and report: validation, log lines, files, curves."""

import collections
import contextlib
import dataclasses
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_seqconv.callbacks.control import CountingCallback, floats, rate_of
from keras_seqconv.data.batches import untuned
from keras_seqconv.evaluation.corpus_scores import check_references, metric_of
from keras_seqconv.support import Progress as Lines
from keras_seqconv.support import clock, require, tf
from keras_seqconv.support.arguments import check_ids
from keras_seqconv.support.files import from_json, naming, read_text, write_file

# --- Validation ---


class Validation(CountingCallback):
    """Base of validations: decides when to call `results`.

    `results()` computes the results of the current model, which it may change.
    """

    _latest, _validated = {}, None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._validated = None

    def on_logs(self, logs, epoch_end):
        due = self.due(self.every_updates)
        if epoch_end:
            wanted = self.epoch_complete or self._validated == self.update
        else:
            wanted = self.unsynced_model.stop_training or (due and not self.last_batch)
        if not wanted:
            return
        if self.update != self._validated:
            self._validated, start = self.update, time.perf_counter()
            # Random states and the sums of the epoch's metrics come back afterwards.
            model = self.model
            kept = [
                v for v in model.variables if v.path.endswith("seed_generator_state")
            ]
            kept += model.metrics_variables
            values = [ops.convert_to_numpy(variable).copy() for variable in kept]
            self._latest = self.results()
            for variable, value in zip(kept, values, strict=True):
                variable.assign(value)
            seconds = time.perf_counter() - start
            logs["val_seconds"] = float(logs.get("val_seconds", 0.0)) + seconds
        logs.update(self._latest)


@dataclasses.dataclass(eq=False)
class Validate(Validation):
    """Runs `model.evaluate` and puts its results, as val_*, into the logs.

    Like `fit(validation_data=...)`, but also within epochs and after the last update of
    `StopAtUpdate`. Later callbacks in the list (see `ordered`) see the results, and the
    seconds of the validation in "val_seconds".

    Args:
        data: data for `model.evaluate`, such as a `tf.data.Dataset`, or a stream with a
            method `once() -> dataset`.
        every_updates: updates between two validations, in addition to each epoch.
    """

    data: Any
    every_updates: int | None = None

    def set_model(self, model):
        super().set_model(model)
        if hasattr(self.data, "once"):
            check_ids("data", self.data, model)
            self.data = self.data.once()

    def results(self) -> dict[str, float]:
        with warnings.catch_warnings():
            # Of data without a known number of batches. All of it is meant.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            results = self.model.evaluate(
                for_replicas(self.model, self.data), verbose=0, return_dict=True
            )
        return {f"val_{name}": float(value) for name, value in results.items()}


@dataclasses.dataclass(eq=False)
class ValidationBLEU(Validation):
    """Translates, and puts sacreBLEU's score into the logs as val_bleu.

    It runs, and puts the score into the logs, like `Validate`.

    Args:
        translator: object with `translate(texts) -> texts`, such as
            `Translator(model, source_tokenizer, target_tokenizer)` with the model in
            training, or such a function. sacreBLEU splits words by its
            `target_language`, if it has one.
        sources: texts.
        references: one text for each source.
        every_updates: as in `Validate`.
    """

    translator: Any
    sources: Sequence[str]
    references: Sequence[str]
    every_updates: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if len(self.sources) != len(self.references) or not len(self.sources):
            raise ValueError(
                "`sources` and `references` must have the same number of texts, at "
                f"least one. Received: {len(self.sources)} and {len(self.references)}"
            )
        check_references(self.references)
        language = getattr(self.translator, "target_language", None)
        self._metric = metric_of("bleu", target_language=language)

    def results(self) -> dict[str, float]:
        translate = getattr(self.translator, "translate", self.translator)
        hypotheses = translate(list(self.sources))
        score = self._metric.corpus_score(hypotheses, [list(self.references)])
        return {"val_bleu": score.score}


def for_replicas(model, data):
    """Prepares a `tf.data.Dataset` of batches for `fit` and `evaluate`.

    Left to Keras, `tf.distribute` reads for each device through a data set of its own,
    which starts the thread that `untuned` is about: every second end of an epoch took
    up to a minute. Here each device makes the batch and takes its rows.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return data
    replicas = strategy.num_replicas_in_sync
    if not isinstance(data, tf.data.Dataset):
        return data

    def of_replica(context):
        place = context.input_pipeline_id

        def rows(tensor):
            count = tf.shape(tensor)[0]
            return tensor[place * count // replicas : (place + 1) * count // replicas]

        return untuned(data.map(lambda *batch: tf.nest.map_structure(rows, batch)))

    options = tf.distribute.InputOptions(
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        experimental_fetch_to_device=False,
    )
    return strategy.distribute_datasets_from_function(of_replica, options)


# --- Reports ---


class Reports(CountingCallback):
    """Base of callbacks that record values.

    Every `every_updates` updates, and at the end of each epoch and of training, `write`
    gets the metrics since its last call; after each validation it gets the values
    val_*.

    Keras logs means since the start of the epoch. With the metric `tokens` (target
    tokens of the epoch so far) the mean since then is (m t - m' t') / (t - t'); without
    it, the mean since the start of the epoch is given.
    """

    # Logs of the last reading in this epoch, its time, seconds before a restart.
    _before, _since_time, _earlier = {}, 0.0, 0.0

    def get_state(self) -> dict:
        seconds = time.perf_counter() - self._since_time
        return {"before": self._before, "seconds": seconds}

    def set_state(self, state: dict) -> None:
        self._before, self._earlier = state["before"], state["seconds"]

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._written, self._validated = self.update, None
        self._since_time, self._earlier = time.perf_counter() - self._earlier, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        sums = map(ops.convert_to_numpy, self.unsynced_model.metrics_variables)
        if not any(map(np.any, sums)):  # else an epoch that is resumed
            self._before = {}

    def on_logs(self, logs, epoch_end):
        self._since_time += float(logs.get("val_seconds", 0.0))  # which do not count
        wanted = epoch_end or self.due(self.every_updates)
        wanted = wanted or self.unsynced_model.stop_training
        if wanted and logs and self.update != self._written:
            self._written = self.update
            self.write(self.read(logs))
        validation = {name: logs[name] for name in logs if name.startswith("val_")}
        if validation and self.update != self._validated:
            self._validated = self.update
            self.write(floats(validation))

    def read(self, logs: Mapping) -> dict[str, float]:
        """Values since the last call, with learning rate and tokens per second."""
        logs, before, now = floats(logs), self._before, time.perf_counter()
        seconds = max(now - self._since_time, 1e-9)
        self._before, self._since_time = logs, now
        values = {
            name: value
            for name, value in logs.items()
            if name != "tokens" and not name.startswith("val_")
        }
        if "learning_rate" not in values:
            values["learning_rate"] = rate_of(self.model)
        if "tokens" in logs:
            tokens, earlier = logs["tokens"], before.get("tokens", 0.0)
            values["tokens_per_second"] = max(tokens - earlier, 0.0) / seconds
            for name in {"loss", "nll", "accuracy"} & set(logs):
                if tokens > earlier:
                    total = logs[name] * tokens - before.get(name, 0.0) * earlier
                    values[name] = total / (tokens - earlier)
        if "nll" in values:
            nll = values["nll"]
            values["perplexity"] = math.exp(nll) if nll < 700 else math.inf
        return values


@dataclasses.dataclass(eq=False)
class LogFile(Reports):
    """Appends records to a file of JSON lines, for curves.

    Every `every_updates` updates and at the end of each epoch a record has update,
    epoch (from 1), metrics, learning_rate and tokens_per_second since the last record,
    and seconds (of the whole training, restarts included). After a validation a record
    has update, epoch, seconds and val_*. At the start of training, records of updates
    after the optimizer's are removed, so that a restart repeats no record.

    Args:
        path: the file; missing folders are made.
        every_updates: updates between two records.
    """

    path: str | os.PathLike
    every_updates: int = 100

    def __post_init__(self):
        super().__post_init__()
        self.path = Path(self.path)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._begin = time.perf_counter()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            records = read_log(self.path)
            kept = [one for one in records if one.get("update", 0) <= self.update]
            lines = [json.dumps(record) + "\n" for record in kept]
            write_file(self.path, "".join(lines).encode())
            self._begin -= max((one.get("seconds", 0.0) for one in kept), default=0.0)

    def write(self, values: Mapping[str, float]) -> None:
        record = {"update": self.update, "epoch": self.epoch + 1}
        for name, value in values.items():  # JSON has no NaN
            record[name] = value if math.isfinite(value) else None
        record["seconds"] = round(time.perf_counter() - self._begin, 3)
        with naming(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_log(path: str | os.PathLike) -> list[dict]:
    """Reads the records of a `LogFile`, without an incomplete last line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another line is not a JSON object.
    """
    lines, records = read_text(path).splitlines(), []
    for number, line in enumerate(lines, 1):
        name = f"{path}, line {number}"
        try:
            records.append(from_json(line, name, update=int, seconds=Real))
        except ValueError:
            if number < len(lines):
                raise
    return records


@dataclasses.dataclass(eq=False)
class Progress(Reports):
    """Shows update, epoch, loss, perplexity, learning rate, throughput and time left.

    On a terminal the line is replaced at most twice a second; otherwise a line is
    printed every half minute. Ends of epochs and results of validations stay. Values
    cover the updates since the last line. Between lines a batch reads the clock and
    fetches nothing from the device. A line before the first update announces its
    compilation. The time left is of the last 1,000 batches, without those that compile
    a new shape, and of all validations but the first, which is compiled too.

    Args:
        max_updates: last update, for the time left; None: unknown.
        max_epochs: last epoch, used if `max_updates` is None.
        lines: output, by default stderr at this pace.
    """

    max_updates: int | None = None
    max_epochs: int | None = None
    lines: Lines | None = None
    every_updates = None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.lines = self.lines or Lines(sys.stderr, 0.5, 30.0)
        self._first = None  # share and batches after the first one, which takes long
        # Of each later batch the seconds until this callback, and inside of it, where
        # it waits for the device; of each validation all of its seconds.
        self._batches, self._validations = collections.deque(maxlen=1000), []
        self._left = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        if self._first is None and not self.unsynced_model.run_eagerly:
            self._show(self.lines.end, lambda: "Compiling the first update ...")

    def on_logs(self, logs, epoch_end):
        start, validation = time.perf_counter(), float(logs.get("val_seconds", 0.0))
        if validation:
            self._validations.append(validation)
        super().on_logs(logs, epoch_end)
        if not epoch_end and not self.unsynced_model.stop_training:
            self._show(self.lines.update, lambda: self._line(self.read(logs)))
        before, self._left = self._left, time.perf_counter()
        if self._first is None:
            self._first = self._share_done(), self.position
        elif not epoch_end:
            self._batches.append((start - before - validation, self._left - start))

    def write(self, values: dict[str, float]) -> None:
        self._show(self.lines.end, lambda: self._line(values))

    def _show(self, show: Callable, line: Callable[[], str]):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            show(line)

    def _line(self, values: dict) -> str:
        total = f"/{self.max_updates}" if self.max_updates else ""
        epochs = f"/{self.max_epochs}" if self.max_epochs else ""
        parts = [f"update {self.update}{total}", f"epoch {self.epoch + 1}{epochs}"]
        for name, value in values.items():
            if name in ("loss", "perplexity") or (
                name.startswith("val_") and name not in ("val_seconds", "val_tokens")
            ):
                number = f"{value:.4g}" if abs(value) < 1e-2 else f"{value:.3f}"
                shown = number if abs(value) < 1000 else f"{value:.3g}"
                parts.append(f"{'ppl' if name == 'perplexity' else name} {shown}")
        if "learning_rate" not in values:  # a validation
            return "  ".join(parts)
        parts.append(f"lr {values['learning_rate']:.2e}")
        if "tokens_per_second" in values:
            parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        share, (first, position) = self._share_done(), self._first or (1.0, 0)
        if share > first and self._batches:
            until, inside = np.transpose(self._batches)
            usual = until <= max(1.0, 5 * np.quantile(until, 0.25))
            seconds = np.mean(until[usual]) + np.mean(inside)
            seconds = seconds * (self.position - position) + sum(self._validations[1:])
            parts.append(f"{clock(seconds * (1 - share) / (share - first))} left")
        width = shutil.get_terminal_size((100, 24)).columns
        return "  ".join(parts)[: max(width - 1, 1)]

    def _share_done(self) -> float:
        """Share of the training that is done; 0 if its end is unknown."""
        if self.max_updates:
            return min(self.update / self.max_updates, 1.0)
        steps = self.params.get("steps")
        if not self.max_epochs or not steps:
            return 0.0
        return min((self.epoch + self.batches / steps) / self.max_epochs, 1.0)


@dataclasses.dataclass(eq=False)
class TensorBoard(Reports):
    """Writes scalars by update, on any backend.

    `train/...` are the metrics (as in `LogFile`) of the updates since the last point,
    `validation/...` all val_* in the logs, for example `validation/bleu`. After a
    restart, new points cover those written after the checkpoint (TensorBoard shows the
    later file).

    Args:
        directory: folder of the event files.
        every_updates: updates between two points.
    """

    directory: str | os.PathLike
    every_updates: int = 100

    def __post_init__(self):
        super().__post_init__()
        require("tensorboard", "mt")  # tf.summary has no scalars without it

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._writer = tf.summary.create_file_writer(os.fspath(self.directory))

    def on_logs(self, logs, epoch_end):
        super().on_logs(logs, epoch_end)
        if epoch_end:
            self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()

    def write(self, values: dict[str, float]) -> None:
        with self._writer.as_default(step=self.update):
            for name, value in values.items():
                part = "validation" if name.startswith("val_") else "train"
                tf.summary.scalar(f"{part}/{name.removeprefix('val_')}", value)
