"""What tests of sub-commands share: calling them, tiny models to call them with."""

import functools
from types import SimpleNamespace

import keras
import pytest

import keras_seqconv as ks
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from keras_seqconv_cli import main

WORDS = [f"w{number}" for number in range(26)]
TOKENIZER = DictionaryTokenizer(Dictionary((word, 1) for word in WORDS))


def call(capsys, *arguments):
    """Status, output and errors of `keras-seqconv` with these arguments."""
    capsys.readouterr()
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    return SimpleNamespace(status=status, output=captured.out, errors=captured.err)


def refused(capsys, *arguments):
    """The one line of an error."""
    done = call(capsys, *arguments)
    assert done.status == 2 and done.output == ""
    lines = done.errors.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.errors
    return lines[0]


@pytest.fixture(scope="module")
def loaded_once():
    """Directories are read once for all tests of a module: tracing takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        cached = functools.cache(ks.load)

        @functools.cache
        def load_ensemble(directories):
            return (
                cached(directories[0])
                if len(directories) == 1
                else (original(directories))
            )

        original = ks.translator.load_ensemble
        patch.setattr(ks, "load", cached)
        patch.setattr(
            ks.translator,
            "load_ensemble",
            lambda names, dtype: load_ensemble(tuple(names)),
        )
        yield


@functools.cache
def make_translator(mixer="dynamic_conv", seed=3, max_length=None):
    """With `max_length`, of learned positions."""
    learned = {"kind": "learned", "max_length": max_length}
    keras.utils.set_random_seed(1)
    model = ks.models.EncoderDecoder(
        30, 30, hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=1,
        num_decoder_layers=1, kernel_sizes=[3], mixer=mixer, seed=seed,
        positions=learned if max_length else "sinusoidal",
    )  # fmt: skip
    for weight in model.trainable_weights:  # clear preferences, so no ties
        weight.assign(2.5 * weight)
    return ks.Translator(
        model, TOKENIZER, TOKENIZER, {"num_beams": 2, "max_length": 8},
        languages=("en", "xx"),
    )  # fmt: skip


@functools.cache
def make_language_model():
    keras.utils.set_random_seed(1)
    model = ks.models.LanguageModel(
        30, hidden_dim=8, intermediate_dim=8, num_heads=2, num_layers=1,
        kernel_sizes=[3], seed=1,
    )  # fmt: skip
    return ks.LanguageGenerator(model, TOKENIZER)


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
