"""Validation inside of fit: its results are seen, and training does not notice it."""

import keras
import pytest

from keras_seqconv.callbacks import EarlyStopping, Validate, ValidationBLEU, ordered
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


def test_order():
    early, validate = EarlyStopping(1), Validate(Stream())
    bleu = ValidationBLEU(lambda texts: texts, ["a"], ["a"])
    own = keras.callbacks.LambdaCallback()
    assert ordered([early, own, bleu, validate]) == [validate, bleu, early, own]


def test_bleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    references = ["the cat sat on the mat", "a dog runs home now", "yes it is so"]
    sources = [text.upper() for text in references]
    calls = []

    def translate(texts, num_beams):
        calls.append((len(texts), num_beams))
        return [text.lower().replace("home", "away") for text in texts]

    bleu = ValidationBLEU(translate, sources, references, search={"num_beams": 3})
    history = fit(make_model(), [bleu], max_epochs=1)
    metric = sacrebleu.BLEU()
    wanted = metric.corpus_score(translate(sources, 1), [references]).score
    assert 0 < wanted < 100
    assert history.history["val_bleu"] == [wanted]
    assert calls[0] == (3, 3)
    assert bleu.signature == str(metric.get_signature())


def test_bleu_limits():
    texts = ["one two three four five"] * 10
    counts = []

    def translate(some):
        counts.append(len(some))
        return some

    few = ValidationBLEU(translate, texts, texts, max_sentences=3)
    fit(make_model(), [few], max_epochs=1)
    assert counts == [3]
    with pytest.raises(ValueError, match="same number of texts"):
        ValidationBLEU(translate, texts, texts[:2])
