"""Callbacks that measure and report: validation, log lines, files, curves."""

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

from keras import ops

from keras_seqconv.callbacks.control import TrainingCallback, floats, rate_of
from keras_seqconv.data.batches import untuned
from keras_seqconv.evaluation.corpus_scores import metric_of
from keras_seqconv.evaluation.error_rates import check_references
from keras_seqconv.support import ProgressLine, clock, tf
from keras_seqconv.support.arguments import check_ids
from keras_seqconv.support.files import from_json, naming, read_text, write_file

# --- Validation ---


class Validation(TrainingCallback):
    """Base of validations: puts `results()` into the logs at the end of each epoch.

    `results()` computes the results of the current model, which it may change.
    """

    def on_epoch_end(self, epoch, logs=None):
        start = time.perf_counter()
        # Random states and the sums of the epoch's metrics come back afterwards.
        model = self.model
        kept = [v for v in model.variables if v.path.endswith("seed_generator_state")]
        kept += model.metrics_variables
        values = [ops.convert_to_numpy(variable).copy() for variable in kept]
        logs.update(self.results())
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
        seconds = time.perf_counter() - start
        logs["val_seconds"] = logs.get("val_seconds", 0.0) + seconds


@dataclasses.dataclass(eq=False)
class Validate(Validation):
    """Runs `model.evaluate` and puts its results, as val_*, into the logs.

    Like `fit(validation_data=...)`, but training stays the same to the bit. Later
    callbacks in the list see the results, and the seconds of the validation in
    "val_seconds".

    Args:
        data: data for `model.evaluate`, such as a `tf.data.Dataset`, or a stream with a
            method `once() -> dataset`.
    """

    data: Any

    def set_model(self, model):
        super().set_model(model)
        if hasattr(self.data, "once"):
            check_ids("data", self.data, model)
            self.data = self.data.once()

    def results(self) -> dict[str, float]:
        with warnings.catch_warnings():
            # For data without a known number of batches.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            results = self.model.evaluate(
                for_replicas(self.model, self.data), verbose=0, return_dict=True
            )
        return {f"val_{name}": value for name, value in floats(results).items()}


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
    """

    translator: Any
    sources: Sequence[str]
    references: Sequence[str]

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
    replicas = getattr(strategy, "num_replicas_in_sync", 1)
    if replicas == 1 or not isinstance(data, tf.data.Dataset):
        return data

    def of_replica(context):
        replica = context.input_pipeline_id

        def rows(tensor):
            count = tf.shape(tensor)[0]
            begin, end = replica * count // replicas, (replica + 1) * count // replicas
            return tensor[begin:end]

        return untuned(data.map(lambda *batch: tf.nest.map_structure(rows, batch)))

    options = tf.distribute.InputOptions(
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        experimental_fetch_to_device=False,
    )
    return strategy.distribute_datasets_from_function(of_replica, options)


# --- Reports ---


class Reports(TrainingCallback):
    """Base of callbacks that record the values of an epoch."""

    # Time at which the epoch began, seconds of it before a restart.
    _begin, _seconds_before = 0.0, 0.0

    def get_state(self) -> dict:
        return {"seconds": time.perf_counter() - self._begin}

    def set_state(self, state: dict) -> None:
        self._seconds_before = state["seconds"]

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._begin = time.perf_counter() - self._seconds_before
        self._seconds_before = 0.0

    def on_epoch_end(self, epoch, logs=None):
        self.write(epoch, self.values(logs or {}))
        if self.epoch_complete:
            self._begin = time.perf_counter()

    def values(self, logs: Mapping) -> dict[str, float]:
        """The logs of the epoch so far, with learning rate and tokens per second."""
        values = floats(logs)
        values.setdefault("learning_rate", rate_of(self.model))
        seconds = time.perf_counter() - self._begin - values.get("val_seconds", 0.0)
        if "tokens" in values:
            values["tokens_per_second"] = values.pop("tokens") / max(seconds, 1e-9)
        if "nll" in values:
            nll = values["nll"]
            values["perplexity"] = math.exp(nll) if nll < 700 else math.inf
        return values


@dataclasses.dataclass(eq=False)
class LogFile(Reports):
    """Appends a record for each epoch to a file of JSON lines, for curves.

    A record has update, epoch (from 1), the logs (metrics of the epoch and val_*),
    learning_rate, tokens_per_second, and seconds (of the whole training, restarts
    included). At the start of training, records of updates after the optimizer's are
    removed, so that a restart repeats no record.

    Args:
        path: the file; missing folders are made.
    """

    path: str | os.PathLike
    _seconds_of_training = 0.0  # before a restart

    def __post_init__(self):
        super().__post_init__()
        self.path = Path(self.path)

    def get_state(self) -> dict:
        seconds = time.perf_counter() - self._training_begin
        return super().get_state() | {"seconds_of_training": seconds}

    def set_state(self, state: dict) -> None:
        super().set_state(state)
        self._seconds_of_training = state.get("seconds_of_training", 0.0)

    def on_train_begin(self, logs=None):
        self._training_begin = time.perf_counter()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        seconds = [self._seconds_of_training]
        if self.path.exists():
            records, update = read_log(self.path), self.update
            kept = [record for record in records if record.get("update", 0) <= update]
            lines = [json.dumps(record) + "\n" for record in kept]
            write_file(self.path, "".join(lines).encode())
            seconds += [record.get("seconds", 0.0) for record in kept]
        self._training_begin -= max(seconds)
        self._seconds_of_training = 0.0

    def write(self, epoch: int, values: Mapping[str, float]) -> None:
        record = {"update": self.update, "epoch": epoch + 1}
        for name, value in values.items():  # JSON has no NaN
            record[name] = value if math.isfinite(value) else None
        record["seconds"] = round(time.perf_counter() - self._training_begin, 3)
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


_NOT_SHOWN = ("val_seconds", "val_tokens")


@dataclasses.dataclass(eq=False)
class Progress(Reports):
    """Shows update, epoch, loss, perplexity, learning rate, throughput and time left.

    On a terminal the line is replaced at most twice a second; otherwise a line is
    printed every half minute. Those of ends of epochs stay. Values cover the epoch so
    far. Between lines nothing is fetched from the device. A line before the first
    update announces its compilation. The time left is that of the batches and
    validations since the first update.

    Args:
        max_updates: last update, for the time left; None: unknown.
        max_epochs: last epoch, used if `max_updates` is None.
        lines: output, by default stderr at this pace.
    """

    max_updates: int | None = None
    max_epochs: int | None = None
    lines: ProgressLine | None = None

    def on_train_begin(self, logs=None):
        self.lines = self.lines or ProgressLine(sys.stderr, 0.5, 30.0)
        self._first = None  # time and share of the training that was done

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch
        if self._first is None and not self.unsynced_model.run_eagerly:
            self._show(self.lines.end, lambda: "Compiling the first update ...")

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if self._first is None:
            self._first = time.perf_counter(), self._share_done()

        def line():
            width = shutil.get_terminal_size((100, 24)).columns
            return self._line(self.values(logs))[: max(width - 1, 1)]

        self._show(self.lines.update, line)

    def write(self, epoch: int, values: dict[str, float]) -> None:
        self._show(self.lines.end, lambda: self._line(values))

    def _show(self, show: Callable, line: Callable[[], str]):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            show(line)

    def _line(self, values: dict) -> str:
        total = f"/{self.max_updates}" if self.max_updates else ""
        epochs = f"/{self.max_epochs}" if self.max_epochs else ""
        parts = [f"update {self.update}{total}", f"epoch {self._epoch + 1}{epochs}"]
        for name, value in values.items():
            validated = name.startswith("val_") and name not in _NOT_SHOWN
            if validated or name in ("loss", "perplexity"):
                plain = 1e-2 <= abs(value) < 1000
                name = "ppl" if name == "perplexity" else name
                parts.append(f"{name} {value:.3f}" if plain else f"{name} {value:.3g}")
        parts.append(f"lr {values['learning_rate']:.2e}")
        if "tokens_per_second" in values:
            parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        begin, share_before = self._first
        share = self._share_done()
        if share > share_before:
            seconds = time.perf_counter() - begin
            seconds *= (1 - share) / (share - share_before)
            parts.append(f"{clock(seconds)} left")
        return "  ".join(parts)

    def _share_done(self) -> float:
        """Share of the training that is done; 0 if its end is unknown."""
        if self.max_updates:
            return min(self.update / self.max_updates, 1.0)
        steps = self.params.get("steps")
        if not self.max_epochs or not steps:
            return 0.0
        return min((self._epoch + self.batches / steps) / self.max_epochs, 1.0)
