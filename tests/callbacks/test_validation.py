"""Validation inside of fit: its results are seen, and training does not notice it."""

import keras
import pytest

from keras_seqconv.callbacks import (
    Checkpoints,
    EarlyStopping,
    LogFile,
    StopAtLearningRate,
    StopAtUpdate,
    Validate,
    ValidationBLEU,
    ordered,
)
from tests.callbacks.small import Stream, fit, make_model, same


class Seen(keras.callbacks.Callback):
    """Updates at whose batch or epoch ends there was a result."""

    def __init__(self, name):
        super().__init__()
        self.name, self.batches, self.epochs, self.count = name, [], [], 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.name in logs:
            self.batches.append(self.count)

    def on_epoch_end(self, epoch, logs=None):
        if self.name in logs:
            self.epochs.append(self.count)


def test_validate_by_updates_epochs_and_at_the_end():
    seen, model = Seen("val_loss"), make_model()
    validate = Validate(Stream(), every_updates=4)
    history = fit(model, [seen, validate], updates=12)
    assert seen.batches == [4, 8, 12] and seen.epochs == [5, 10, 12]
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

    def make():
        keras.utils.set_random_seed(3)
        layers = [keras.Input((3,)), Draws(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
        return model

    first, second = make(), make()
    plain = fit(first, updates=8)
    validated = fit(second, [Validate(Stream(), every_updates=1)], updates=8)
    assert same(first, second)
    for name in ("loss", "mae"):  # the sums of the epoch are not touched either
        assert plain.history[name] == validated.history[name]


def test_order(tmp_path):
    bleu = ValidationBLEU(lambda texts: texts, ["a"], ["a"])
    own, early = keras.callbacks.LambdaCallback(), EarlyStopping(1)
    kept, log = Checkpoints(tmp_path), LogFile(tmp_path / "log")
    wanted = [StopAtUpdate(1), Validate(Stream()), bleu, early, own]
    wanted += [StopAtLearningRate(1.0), log, kept]
    shuffled = [kept, early, own, log, bleu, *wanted[1::4], wanted[0]]
    assert ordered(shuffled) == wanted and kept.others == wanted[:-1]


def test_bleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    references = ["the cat sat on the mat", "a dog runs home now", "yes it is so"]
    sources = [text.upper() for text in references]
    calls = []

    def translate(texts, num_beams):
        calls.append((len(texts), num_beams))
        return [text.lower().replace("home", "away") for text in texts]

    metric = sacrebleu.BLEU()
    for most in (None, 2):
        bleu = ValidationBLEU(
            translate, sources, references, max_sentences=most, search={"num_beams": 3}
        )
        history = fit(make_model(), [bleu], max_epochs=1)
        assert calls.pop() == (most or 3, 3)
        hypotheses = translate(sources, 1)[:most]
        wanted = metric.corpus_score(hypotheses, [references[:most]]).score
        assert 0 < wanted < 100
        assert history.history["val_bleu"] == [wanted]
        assert bleu.signature == str(metric.get_signature())
    with pytest.raises(ValueError, match="same number of texts"):
        ValidationBLEU(translate, sources, references[:2])
