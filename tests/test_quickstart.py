"""The quickstart in small; README's commands train the same model in full."""

import re

import pytest

pytest.importorskip("pydantic", reason="the options need pydantic (extra mt)")

import keras_seqconv as ks
from keras_seqconv import quickstart

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SMALL = {
    "max_updates": 4,
    "tokens_per_batch": 256,
    "vocabulary_size": 400,
    "max_translation_length": 5,
    "architecture": {
        "hidden_dim": 16,
        "intermediate_dim": 16,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The work folder of a quickstart, and the lines that it printed."""
    folder, lines = tmp_path_factory.mktemp("quickstart") / "run", []
    assert quickstart.main(folder, lines.append, **SMALL) == 0
    return folder, lines


def test_scores_and_translates(run):
    folder, lines = run
    assert re.fullmatch(r"test BLEU \d+\.\d", lines[-1])
    told = "\n".join(lines)
    assert f"{quickstart._SHOWN} test sentences:" in told
    assert told.count("expected: ") == quickstart._SHOWN  # after four updates
    assert f"translate {folder / 'model'}" in told


def test_the_export_says_what_the_model_says(run):
    folder, lines = run
    (version,) = (folder / "saved_models/phrases").glob("[0-9]*")
    (found,) = ks.load(folder / "model").translate([quickstart._SENTENCE])
    said = "\n".join(lines).partition(f"{version}, loaded with nothing but")[2]
    assert f"says\n  {quickstart._SENTENCE}\n    {found}\n" in said


def test_again_does_not_train_again(run):
    folder, before = run
    lines = []
    assert quickstart.main(folder, lines.append, **SMALL) == 0
    assert lines[-1] == before[-1]
    assert not any(line.startswith("Training the tokenizer") for line in lines)
