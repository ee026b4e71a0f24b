"""A run that begins with the weights of another."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.training import train
from keras_seqconv.training.recipe import make_model, warm_start
from keras_seqconv.training.run import read_run
from keras_seqconv.training.text import read_tokenizers
from tests.training.runs import TINY, options_for, weights_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_graphs")]


def test_a_run_begins_with_the_weights_of_another(finished, tmp_path):
    """By name and shape, with its tokenizers; what has no like is new and named."""
    corpus, run = finished
    tokenizers = read_tokenizers(read_run(run)[0].tokenizers)

    def begun(**changes):
        model = make_model(
            options_for(corpus, run, seed=7, **changes), "float32", *tokenizers
        )
        return model, warm_start(model, str(run), tokenizers)

    same, line = begun()
    weights = len(same.trainable_variables)
    assert line == f"{weights} of {weights} arrays from {run}"
    np.testing.assert_equal(same.get_weights(), weights_of(run))
    _, line = begun(architecture={**TINY, "num_decoder_layers": 2})
    assert re.match(rf"{weights} of \d+ arrays from .*; new are decoder_2_", line)
    for changes, words in (
        ({"tokenizer": "characters"}, "`initialize_from` must have the tokenizers"),
        ({"vocabulary_size": 500}, "`vocabulary_size` must be that .* 11. Received: 5"),
        ({"joint_vocabulary": False}, "`joint_vocabulary` must be .*: True. Received"),
    ):
        options = {"tokenizer": None, "initialize_from": str(run), **changes}
        with pytest.raises(ValueError, match=words):
            train(options_for(corpus, tmp_path / "other", **options), str)
    ids_only = tmp_path / "ids_only"
    ks.Translator(ks.load(run).model).save(ids_only)
    options = options_for(corpus, run, initialize_from=str(ids_only), tokenizer=None)
    with pytest.raises(ValueError, match="`initialize_from` must be .* of a run"):
        train(dataclasses.replace(options, workdir=str(tmp_path / "other")), str)


def test_a_run_begins_with_frozen_weights_too(finished, tmp_path, monkeypatch):
    corpus, folder = finished
    tokenizers = read_tokenizers(read_run(folder)[0].tokenizers)
    options = options_for(corpus, folder, seed=7)
    source, model = (make_model(options, "float32", *tokenizers) for _ in range(2))
    source.layers[2].trainable = source.layers[3].trainable = False
    loaded = SimpleNamespace(model=source, tokenizers=dict(enumerate(tokenizers)))
    monkeypatch.setattr("keras_seqconv.training.recipe.load", lambda folder: loaded)
    line = warm_start(model, "frozen", tokenizers)
    assert line == f"{len(model.weights)} of {len(model.weights)} arrays from frozen"
