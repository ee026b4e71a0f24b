"""Lines on the terminal and in the log file, and events for TensorBoard."""

import io
import json

import numpy as np
import pytest

from keras_seqconv.callbacks import LogFile, Progress, TensorBoard, Validate
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.fitting import FetchedLogs
from tests.callbacks.small import Stream, fit, make_model
from tests.full_disk import full_disk


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_means_are_of_the_batches_since_the_reading_before():
    log = LogFile("log")
    log.set_model(make_model())
    first = log.read({"loss": 4.0, "nll": 2.0, "tokens": 100.0, "accuracy": 0.5})
    assert first["loss"] == 4.0 and first["perplexity"] == pytest.approx(np.exp(2))
    # 300 more tokens with a mean of 2: (400 + 600) / 400 = 2.5.
    second = log.read({"loss": 2.5, "tokens": 400.0, "gradient_norm": 7.0})
    assert second["loss"] == pytest.approx(2.0) and second["gradient_norm"] == 7.0
    assert second["tokens_per_second"] == pytest.approx(300 / second["seconds"])
    assert second["learning_rate"] == pytest.approx(0.05)


def test_log_file(tmp_path):
    path = tmp_path / "logs" / "log.jsonl"
    path.parent.mkdir()
    lines = [json.dumps({"update": n, "loss": 1.0}) for n in (-1, 0, 1, 2)]
    path.write_text("\n".join(lines) + '\n{"update": 6, "lo')
    callbacks = [LogFile(path, every_updates=3), Validate(Stream())]
    model = make_model()
    # Whose variables are made with the first batch.
    model.compile(model.optimizer, "mse", metrics=["mae"], run_eagerly=True)
    fit(model, callbacks, updates=7)
    # Of what was there, what this training will not write again.
    *before, _, _, _, _, _, _ = records = read_log(path)
    assert before == [{"update": -1, "loss": 1.0}, {"update": 0, "loss": 1.0}]
    records = records[2:]
    trained = [record["update"] for record in records if "loss" in record]
    validated = [record["update"] for record in records if "val_loss" in record]
    assert trained == [3, 5, 6, 7] and validated == [5, 7]
    assert [record["epoch"] for record in records] == [1, 1, 1, 2, 2, 2]
    assert records[0]["learning_rate"] == pytest.approx(0.05)
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds) and seconds[0] > 0
    path.write_text('{"update": 1}\nbroken\n{"update": 2}\n')
    with pytest.raises(ValueError, match="line 2: must be a JSON object"):
        read_log(path)


def test_values_that_are_no_json_are_null(tmp_path):
    log = LogFile(tmp_path / "log.jsonl")
    log.set_model(make_model())
    log.on_train_begin()
    log.on_epoch_end(0, {"val_loss": float("nan")})
    (record,) = read_log(tmp_path / "log.jsonl")
    assert record["val_loss"] is None
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()


def test_log_on_a_full_disk_is_named(tmp_path):
    log = LogFile(tmp_path / "log.jsonl", every_updates=1)
    with pytest.raises(OSError) as error, full_disk(200):
        fit(make_model(), [log], updates=5)
    assert error.value.filename == str(log.path)


def test_progress_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    progress = Progress(max_updates=7, stream=stream, seconds=0.0)
    fit(make_model(), [progress, Validate(Stream())], updates=7)
    text = stream.getvalue()
    shown = [line.strip() for line in text.split("\r\x1b[K")]
    assert all(len(line) < 60 for line in shown if "val_" not in line)
    assert any("update 6/7  epoch 2  loss" in line for line in shown)
    assert any(line.endswith("left") for line in shown)
    # Ends of epochs and results of validations stay: each on a line of its own.
    stays = [line.split("\x1b[K")[-1].split("  ")[0] for line in text.split("\n")]
    assert stays == ["update 5/7", "update 5", "update 7/7", "update 7", ""]


def test_progress_elsewhere_writes_plain_lines():
    stream = io.StringIO()
    callbacks = [Progress(max_epochs=2, stream=stream, plain_seconds=1000.0)]
    fit(make_model(), callbacks, max_epochs=2)
    first, second = stream.getvalue().splitlines()  # the ends of the epochs
    assert first.startswith("update 5  epoch 1/2  loss ") and "lr 5.00e-02" in first
    assert first.endswith(" left") and second.endswith("  0:00 left")
    assert not set("\r\x1b") & set(stream.getvalue())


def test_progress_outlives_its_terminal():
    class Gone(Terminal):
        def write(self, text):
            raise BrokenPipeError

    fit(make_model(), [Progress(stream=Gone(), seconds=0.0)], updates=2)


def test_progress_of_a_single_update():
    stream = io.StringIO()
    fit(make_model(), [Progress(max_updates=1, stream=stream)], updates=1)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("update 1/1  epoch 1  loss ")


def test_logs_are_fetched_when_they_are_looked_at():
    class Value:
        count = 0

        def __array__(self, dtype=None, copy=None):
            Value.count += 1
            return np.asarray(3.0)

    logs = FetchedLogs({"loss": Value(), "nll": Value()})
    assert "loss" in logs and len(logs) == 2 and Value.count == 0
    assert logs["loss"] == logs["loss"] == 3.0 and Value.count == 1
    logs["val_loss"] = 1.0
    assert dict(logs) == {"loss": 3.0, "nll": 3.0, "val_loss": 1.0}


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    pictures = {"words": np.full((4, 6, 3), 200, "uint8"), "heads": np.ones((2, 2, 1))}
    board = TensorBoard(tmp_path, 3, attention_figure=lambda: pictures)
    history = fit(make_model(), [board, Validate(Stream())], updates=7)
    values = {}
    (path,) = tmp_path.iterdir()
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            array = tensor_util.make_ndarray(value.tensor)
            values.setdefault(value.tag, []).append((event.step, array))
    assert [step for step, _ in values["train/loss"]] == [3, 5, 6, 7]
    assert [step for step, _ in values["validation/loss"]] == [5, 7]
    losses = [float(value) for _, value in values["validation/loss"]]
    np.testing.assert_allclose(losses, history.history["val_loss"], rtol=1e-6)
    assert float(values["train/learning_rate"][0][1]) == pytest.approx(0.05)
    assert "heads" in values
    step, image = values["words"][0]
    assert step == 5 and image[:2].tolist() == [b"6", b"4"]  # width, height
    assert image[2].startswith(b"\x89PNG")
