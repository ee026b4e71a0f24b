"""The model at the end of a run: an average of checkpoints, or the best one."""

import dataclasses
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import checkpoints
from keras_seqconv.data.ids import IdStore
from keras_seqconv.recipes import PlateauOptions
from keras_seqconv.training import TrainingOptions, average_run
from keras_seqconv.training.finish import _average_or_best, translator_of
from keras_seqconv.training.recipe import make_model, resolve_recipe
from keras_seqconv.training.run import Run, read_run
from keras_seqconv.training.text import open_corpus_of, read_tokenizers
from keras_seqconv.training.train import _callbacks
from keras_seqconv_cli import main
from tests.test_damaged_files import rewrite, with_header
from tests.training.runs import options_for, weights_in, weights_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_graphs")]


def test_average_of_other_checkpoints(copied, tmp_path):
    (corpus, run), output = copied, tmp_path / "averaged"
    done = average_run(run, output, "last_epochs", 2, up_to=8)
    assert done == "Averaged 2 checkpoints (last epochs: updates 6, 8)"
    translator = ks.load(output)
    assert translator.trained == {
        "preset": "dynamic_conv_phrases", "dataset": str(corpus),
        "checkpoints": done,
    }  # fmt: skip
    from keras_seqconv.export.model_card import _score_lines  # needs TensorFlow

    card = "\n".join([*_score_lines(None, translator.trained)])
    assert "- preset: dynamic_conv_phrases\n" in card and "updates 6, 8" in card
    with pytest.raises(ValueError, match="must be empty"):
        average_run(run, output)
    with pytest.raises(ValueError, match="no undamaged .* up to update 1 .`up_to`"):
        average_run(run, tmp_path / "none", "best", up_to=1)
    # What the model before was found to do goes with it.
    done = average_run(run, run / "model", overwrite=True)
    words = r"\nRemoved, as of the model before: scores.json, test.hypotheses \(test BL"
    assert re.search(words, done)
    left = {"model", "curves.png", "log.jsonl"}
    assert left < {*os.listdir(run)}
    assert not [*run.glob("scores.json"), *run.glob("test.*")]


def note_metrics(path, metrics):
    rewrite(path, with_header(["state", "metrics"], metrics))


@pytest.mark.parametrize(("kind", "best"), [("best", 7), ("last_epochs", 1)])
@pytest.mark.parametrize(
    ("monitor", "mode"), [("nll", "min"), ("accuracy", "max"), ("bleu", "max")]
)
def test_callbacks_keep_what_averaging_needs_and_know_the_direction(
    finished, monkeypatch, kind, best, monitor, mode
):
    run, recipe = read_run(finished[1])
    changes = dict(keep=2, monitor=monitor, validation_bleu=True)
    run.options = dataclasses.replace(run.options, **changes)
    averaging = {"average_kind": kind, "average": 7, "early_stopping": 3}
    recipe = dataclasses.replace(
        recipe, **averaging, schedule=PlateauOptions(learning_rate=0.1)
    )
    monkeypatch.setattr(ks.Translator, "__init__", lambda *given, **options: None)
    tokenizers = read_tokenizers(run.tokenizers)
    corpus = open_corpus_of(run.options)
    text = SimpleNamespace(recipe=recipe, corpus=corpus, tokenizers=tokenizers)
    made = _callbacks(run, text, [], SimpleNamespace(has_logits=True))
    by_name = {type(one).__name__: one for one in made}
    saves = by_name["Checkpoints"]
    assert (saves.keep_last, saves.keep_best) == (7, best)
    for name in ("Checkpoints", "ReduceOnPlateau", "EarlyStopping"):
        made = by_name[name]
        assert made.monitor == f"val_{monitor}"
        assert checkpoints.direction(made.monitor, made.mode) == mode
    if monitor == "accuracy":
        with pytest.raises(ValueError, match="`monitor` must be nll with an adaptive"):
            _callbacks(run, text, [], SimpleNamespace(has_logits=False))


@pytest.mark.parametrize(
    ("preset", "changes", "wanted"),
    [
        ("light_conv_g2p", {}, "val_accuracy"),
        ("conv_s2s_g2p", {"monitor": "nll"}, "val_nll"),
        ("light_conv_multi30k", {}, "val_nll"),
        ("light_conv_multi30k", {"monitor": "accuracy"}, "val_accuracy"),
    ],
)
def test_what_is_best_for_a_preset(tmp_path, preset, changes, wanted):
    options = TrainingOptions(preset=preset, dataset="d", workdir="w", **changes)
    run = Run(tmp_path, options)
    assert run.monitor == f"val_{run.what_matters()['monitor']}" == wanted


def test_callbacks_of_a_fixed_schedule():
    options = options_for(
        "d", "w", schedule="fixed", learning_rate=0.3, force_anneal=4, shrink=0.5,
        warmup_steps=9, stop_learning_rate=1e-3,
    )  # fmt: skip
    text = SimpleNamespace(recipe=resolve_recipe(options))
    run = SimpleNamespace(options=options, folder=".", checkpoints=".", log="l")
    made = {type(one).__name__: one for one in _callbacks(run, text, None, None)}
    fixed = made["FixedSchedule"]
    assert (fixed.learning_rate, fixed.force_anneal) == (0.3, 4)
    assert (fixed.shrink, fixed.warmup_steps) == (0.5, 9)
    assert made["StopAtLearningRate"].minimum == 1e-3


@pytest.mark.filterwarnings("default::UserWarning")
def test_damaged_checkpoints_are_named_and_the_others_averaged(
    copied, tmp_path, capsys
):
    folder = copied[1]
    folder_of_checkpoints = folder / "checkpoints"
    ends = checkpoints.select(folder_of_checkpoints, "last_epochs", 5)[::-1]
    *_, second, last = ends
    assert not checkpoints.read_state(last)["epoch_end"]
    second.write_bytes(second.read_bytes()[:-200])
    with pytest.warns(UserWarning, match=f"Skipped a checkpoint. .*{second.name}"):
        done = average_run(folder, tmp_path / "averaged", "last_epochs", len(ends))
    whole = [*ends[:-2], last]
    rest = ", ".join(str(checkpoints.update_of(path)) for path in whole)
    assert done.endswith(f"(last epochs: updates {rest}); there are no {len(ends)}")
    arrays = [weights_in(path) for path in whole]
    for weight, *rows in zip(weights_of(tmp_path / "averaged"), *arrays, strict=True):
        mean = np.mean(rows, axis=0, dtype="float64").astype("float32")
        np.testing.assert_array_equal(weight, mean)
    for path in ends:
        path.write_bytes(b"")
    capsys.readouterr()
    assert main(["average", str(folder), "--last-epochs", "2"]) == 2
    *warned, error = capsys.readouterr().err.splitlines()
    assert len(warned) == len({*warned}) and "no undamaged checkpoint" in error
    assert all(line.startswith("warning: Skipped a checkpoint. ") for line in warned)


def test_the_model_is_a_checkpoint_that_is_better_than_the_average(copied):
    run, recipe = read_run(copied[1])
    best, *_, second = checkpoints.find(run.checkpoints)
    note_metrics(best, {"val_nll": 1e-3})
    note_metrics(second, {"val_nll": 1e-2})
    tokenizers = read_tokenizers(run.tokenizers)
    model = make_model(run.options, recipe.precision, *tokenizers)
    model.compile()
    translator = ks.Translator(model, *tokenizers)
    translator.trained = {"checkpoints": "the average"}
    store = IdStore.open(run.data / "validation")
    text = SimpleNamespace(recipe=recipe, tokenizers=tokenizers, validation=store)
    update = checkpoints.update_of(best)
    assert _average_or_best(run, text, translator).endswith(
        f", of the checkpoint of update {update}: 0.001. The model is the checkpoint; "
        f"`keras-seqconv average {run.folder}` makes that of the average"
    )
    np.testing.assert_equal(model.get_weights(), weights_in(best))
    assert translator.trained["checkpoints"].endswith(f"(best: updates {update})")


@pytest.mark.parametrize(
    ("changes", "monitor", "of_best", "words"),
    [
        ({"average": 2}, "val_nll", 0.5, "0.5. The model is the average"),
        ({"average_kind": "last_epochs"}, "val_nll", 0.5, "average; .* --best 1` "),
        ({}, "val_nll", None, "val_nll of the model: 1$"),
        ({}, "val_nll", 0.99995, "val_nll of the model: 1$"),
        ({}, "val_bleu", 0.5, "val_bleu of the model: 1$"),
    ],
)
def test_the_model_is_the_average_where_it_is_asked_for_or_better(
    finished, tmp_path, monkeypatch, changes, monitor, of_best, words
):
    run, recipe = read_run(finished[1])
    changes = {**changes, "monitor": monitor.removeprefix("val_")}
    changes["validation_bleu"] = True
    run.options = dataclasses.replace(run.options, **changes)
    run.checkpoints = shutil.copytree(run.checkpoints, tmp_path / "checkpoints")
    for path in checkpoints.find(run.checkpoints):
        note_metrics(path, {} if of_best is None else {monitor: of_best})
    average = SimpleNamespace(
        set_model=lambda model: None, results=lambda: {monitor: 1.0}
    )
    for name in ("Validate", "ValidationBLEU"):
        monkeypatch.setattr(ks.callbacks, name, lambda *given: average)
    text = SimpleNamespace(
        recipe=recipe,
        corpus=open_corpus_of(run.options),
        tokenizers=read_tokenizers(run.tokenizers),
        validation=IdStore.open(run.data / "validation"),
    )
    translator = SimpleNamespace(model=None, trained={"checkpoints": "the average"})
    assert re.search(words, _average_or_best(run, text, translator))
    assert translator.trained == {"checkpoints": "the average"}


def test_notes_say_how_the_data_set_is_read(finished):
    """Which `evaluate` does as the training did."""
    run, recipe = read_run(finished[1])
    run.options = dataclasses.replace(run.options, tsv_header=False, variant="lc")
    loaded = ks.load(finished[1])
    pair = tuple(loaded.tokenizers.values())
    notes = translator_of(run, recipe, loaded.model, pair).trained
    assert notes["tsv_header"] is False and notes["variant"] == "lc"
