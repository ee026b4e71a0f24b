"""Validation inside of fit; lines on the terminal and in the log file; TensorBoard."""

import io
import json
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_seqconv.callbacks import LogFile, Progress, Validate, ValidationBLEU
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.support import ProgressLine
from tests.backends import to_numpy
from tests.callbacks.small import Stream, fit, make_model, same
from tests.processes import full_disk

# --- Validation ---


def test_validation_comes_first_at_ends_of_epochs_and_of_training():
    model, seen = make_model(), []

    def note(epoch, logs):
        assert "val_loss" in logs
        seen.append(int(to_numpy(model.optimizer.iterations)))

    look = keras.callbacks.LambdaCallback(on_epoch_end=note)
    options = dict(updates=10, updates_per_epoch=4)
    history = fit(model, [look, Validate(Stream())], **options)
    assert seen == [4, 8, 10]
    last = model.evaluate(Stream().once(), steps=2, verbose=0)
    assert history.history["val_loss"][-1] == pytest.approx(last, rel=1e-6)


def test_training_is_the_same_with_and_without_validation():
    class Draws(keras.layers.Layer):
        """Draws when not training, too."""

        def __init__(self):
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator(9)

        def call(self, inputs):
            shape = keras.ops.shape(inputs)
            return inputs + keras.random.normal(shape, seed=self.seed_generator)

    def train(*callbacks):
        model = make_model(None, False, True, Draws())
        model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
        return model, fit(model, callbacks, updates=8).history

    first, plain = train()
    second, validated = train(Validate(Stream()))
    assert same(first, second)
    for name in ("loss", "mae"):  # the sums of the epoch are not touched either
        assert plain[name] == validated[name]


def test_bleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    references = ["the cat sat on the mat", "a dog runs home now", "yes it is so"]
    sources = [text.upper() for text in references]

    def translate(texts):
        return [text.lower().replace("home", "away") for text in texts]

    bleu = ValidationBLEU(translate, sources, references)
    history = fit(make_model(), [bleu], max_epochs=2)
    wanted = sacrebleu.BLEU().corpus_score(translate(sources), [references]).score
    assert 0 < wanted < 100
    assert history.history["val_bleu"] == [wanted] * 2
    with pytest.raises(ValueError, match="same number of texts"):
        ValidationBLEU(translate, sources, references[:2])
    with pytest.raises(ValueError, match="line 1 is empty"):
        ValidationBLEU(translate, ["a"], [""])
    translator = SimpleNamespace(translate=lambda texts: texts, target_language="zh")
    chinese = ValidationBLEU(translator, ["他昨天去了北京大学"], ["他去了北京大学"])
    assert chinese.results()["val_bleu"] > 10  # as one word it were 0


# --- Log file ---


def test_values_of_an_epoch(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", iter([10.0, 12.0, 13.0]).__next__)
    log = LogFile("log")
    log.set_model(make_model())
    log.set_state({"seconds": 4.0})  # of this epoch before a restart
    log.on_epoch_begin(0)
    values = log.values({"nll": 2.0, "tokens": 600.0, "loss": 3.0})
    assert values["perplexity"] == pytest.approx(np.exp(2)) and values["loss"] == 3.0
    assert values["tokens_per_second"] == 100.0 and "tokens" not in values
    assert values["learning_rate"] == pytest.approx(0.05)
    # The time of a validation does not count.
    values = log.values({"tokens": 600.0, "val_seconds": 2.0})
    assert values["tokens_per_second"] == 120.0


def test_log_file(tmp_path):
    path = tmp_path / "logs" / "log.jsonl"
    path.parent.mkdir()
    old = [{"update": n, "loss": 1.0, "seconds": 100.0 + n} for n in (-1, 0, 1, 2)]
    path.write_text("\n".join(map(json.dumps, old)) + '\n{"update": 6, "lo')
    callbacks = [LogFile(path), Validate(Stream())]
    model = make_model()
    # Whose variables are made with the first batch.
    model.compile(model.optimizer, "mse", metrics=["mae"], run_eagerly=True)
    fit(model, callbacks, updates=7)
    # Of what was there, what this training will not write again.
    before, records = read_log(path)[:2], read_log(path)[2:]
    assert [record["update"] for record in before] == [-1, 0]
    assert [(record["update"], record["epoch"]) for record in records] == [
        (5, 1),
        (7, 2),
    ]
    assert {"loss", "mae", "val_loss", "val_mae"} < records[0].keys()
    assert records[0]["learning_rate"] == pytest.approx(0.05)
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds) and 100 < seconds[0] < 200
    # The checkpoint of an epoch that has begun knows more than the records.
    log = LogFile(path)
    log.set_state({"seconds": 400.0, "seconds_of_training": 500.0})
    fit(model, [log], updates=10)
    assert read_log(path)[-1]["update"] == 10
    assert 500 < read_log(path)[-1]["seconds"] < 600
    assert 500 < log.get_state()["seconds_of_training"] < 600
    path.write_text('{"update": 1}\nbroken\n{"update": 2}\n')
    with pytest.raises(ValueError, match="line 2 must be JSON"):
        read_log(path)


def test_log_has_null_for_nan_and_names_itself_on_a_full_disk(tmp_path):
    log = LogFile(tmp_path / "log.jsonl")
    log.set_model(make_model())
    log.set_params({})
    log.on_train_begin()
    log.on_epoch_end(0, {"val_loss": float("nan")})
    assert read_log(log.path)[0]["val_loss"] is None
    assert "NaN" not in log.path.read_text()
    log.path.unlink()
    with pytest.raises(OSError) as error, full_disk(200):
        fit(make_model(), [log], 5, Stream(1))
    assert error.value.filename == str(log.path)


# --- Terminal, TensorBoard ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Gone(Terminal):
    def write(self, text):
        raise BrokenPipeError


def test_progress_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    progress = Progress(max_updates=7, lines=ProgressLine(stream, 0.0))
    fit(make_model(), [progress, Validate(Stream())], updates=7)
    text = stream.getvalue()
    shown = [line.strip() for line in text.split("\r\x1b[K")]
    assert all(len(line) < 60 for line in shown if "val_" not in line)
    assert any("update 6/7  epoch 2  loss" in line for line in shown)
    assert any(line.endswith("left") for line in shown)
    # Ends of epochs stay: each on a line of its own.
    stays = [line.split("\x1b[K")[-1].split("  ")[0] for line in text.split("\n")]
    assert stays == ["update 5/7", "update 7/7", ""]
    assert text.count("val_loss") == 2
    fit(make_model(), [Progress(lines=ProgressLine(Gone(), 0.0))], updates=2)
