"""What tests of sub-commands share: calling them, tiny models to call them with."""

import functools
from types import SimpleNamespace

import pytest

import keras_seqconv as ks
from keras_seqconv import translation
from keras_seqconv_cli import main
from tests import small_models
from tests.small_models import SMALL_LM, TOKENIZER

make_translator = functools.partial(small_models.make_translator, "dictionary")


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
    load_ensemble = translation.load_ensemble
    cached = functools.cache(lambda name: load_ensemble([name]))

    def load(names, dtype, graphs):
        return cached(names[0]) if len(names) == 1 else load_ensemble(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ks, "load", cached)
        patch.setattr(translation, "load_ensemble", load)
        patch.setattr(translation, "graphs_of", lambda *_: None)
        yield


@functools.cache
def make_language_model():
    model = ks.models.LanguageModel(30, **SMALL_LM, kernel_sizes=[3])
    return ks.LanguageGenerator(model, TOKENIZER)


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
