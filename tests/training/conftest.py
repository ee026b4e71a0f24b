"""Corpora and runs of the tests of trainings."""

import shutil
import sys

import pytest

from keras_seqconv.training import finish as finishing
from keras_seqconv.training import train
from tests.training.runs import FINISHED, options_for, write_corpus


@pytest.fixture
def no_graphs(monkeypatch):
    """Of ONNX Runtime, which take seconds; `test_a_run_leaves_...` has them."""
    monkeypatch.setattr(finishing, "save_with_graphs", _save)


def _save(translator, folder, overwrite):
    translator.save(folder, overwrite)
    return f"Written to {folder}"


@pytest.fixture
def no_finish(monkeypatch):
    """Trainings end with their last checkpoint."""
    module = sys.modules["keras_seqconv.training.train"]  # `train` is a function, too
    monkeypatch.setattr(module, "finish", lambda *_: {})


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A corpus and a run on it, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    corpus, run = write_corpus(folder / "corpus"), folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finishing, "save_with_graphs", _save)
        train(options_for(corpus, run, **FINISHED), str)
    return corpus, run


@pytest.fixture
def copied(finished, tmp_path):
    """The same corpus, and a copy of the run, which a test changes."""
    return finished[0], shutil.copytree(finished[1], tmp_path / "run")
