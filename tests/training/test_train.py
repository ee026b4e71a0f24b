"""Whole runs on tiny corpora: what they leave behind, resuming, wrong input."""

import dataclasses
import json
import os
import random
import re
import shutil
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import checkpoints
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.data.ids import IdStore
from keras_seqconv.devices import available_cores
from keras_seqconv.recipes import PlateauOptions
from keras_seqconv.support.files import read_lines
from keras_seqconv.tokenizers import WordTokenizer
from keras_seqconv.training import TrainingOptions, average_run, train
from keras_seqconv.training import finish as finishing
from keras_seqconv.training.finish import _average_or_best, translator_of
from keras_seqconv.training.recipe import make_model, resolve_recipe, warm_start
from keras_seqconv.training.run import Run, read_run, sole_run
from keras_seqconv.training.text import _store, open_corpus_of, read_tokenizers
from keras_seqconv.training.train import _callbacks, _check_positions
from keras_seqconv.translation.model_directory import save_with_graphs
from keras_seqconv_cli import main
from tests.cli.commands import write
from tests.processes import run_python
from tests.test_damaged_files import rewrite, with_header

pytestmark = pytest.mark.tensorflow

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
TINY = {"hidden_dim": 16, "intermediate_dim": 16, "num_heads": 2}
TINY |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
FINISHED = {"tokens_per_batch": 512, "max_updates": 9}


@pytest.fixture(autouse=True, scope="module")
def no_graphs():
    """Of ONNX Runtime, which take seconds; `test_a_run_leaves_...` has them."""

    def save(translator, folder, overwrite):
        translator.save(folder, overwrite)
        return f"Written to {folder}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finishing, "save_with_graphs", save)
        yield


@pytest.fixture
def no_finish(monkeypatch):
    """Trainings end with their last checkpoint."""
    module = sys.modules["keras_seqconv.training.train"]  # `train` is a function, too
    monkeypatch.setattr(module, "finish", lambda *_: {})


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A corpus and a run on it, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    corpus, run = write_corpus(folder / "corpus"), folder / "run"
    train(options_for(corpus, run, **FINISHED), str)
    return corpus, run


@pytest.fixture
def copied(finished, tmp_path):
    """The same corpus, and a copy of the run, which a test changes."""
    return finished[0], shutil.copytree(finished[1], tmp_path / "run")


def write_corpus(folder):
    """Sentences and their words in reverse order."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for split, count in (("train", 96), ("valid", 8), ("test", 8)):
        rows = [
            [WORDS[i] for i in random.integers(len(WORDS), size=length)]
            for length in random.integers(1, 8, size=count)
        ]
        write(folder / f"{split}.en", *(" ".join(row) for row in rows))
        write(folder / f"{split}.de", *(" ".join(row[::-1]) for row in rows))
    return folder


def options_for(corpus, workdir, **changes):
    defaults = dict(
        preset="dynamic_conv_phrases", dataset=str(corpus), workdir=str(workdir),
        source_language="en", target_language="de", tokenizer="words",
        architecture=TINY, tokens_per_batch=128, max_updates=8, warmup_steps=4,
        max_shapes=1, jit_compile="false",
    )  # fmt: skip
    return TrainingOptions(**{**defaults, **changes})


def flags(corpus, workdir, **changes):
    """The same for the command line."""
    options = options_for(corpus, workdir, **changes)
    words = ["train"]
    for name, value in options.changes().items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                value = json.dumps(value) if isinstance(value, dict) else str(value)
                words.append(value)
    return words


def weights_of(folder):
    return ks.load(folder).model.get_weights()


def weights_in(checkpoint):
    with np.load(checkpoint) as file:
        entries = json.loads(file["header.json"])["model"]
        return [
            file[f"model/{number}"]
            for number, entry in enumerate(entries)
            if "seed" not in entry["path"]
        ]


def test_a_run_leaves_a_model_scores_and_curves(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(finishing, "save_with_graphs", save_with_graphs)
    monkeypatch.setitem(sys.modules, "jax", None)  # not installed
    lines = []
    run = tmp_path / "run"
    reports = dict(validation_bleu=True, tensorboard=True)
    changes = dict(precision="mixed_bfloat16", **reports)
    options = options_for(corpus, run, truncate_source=6, **changes)

    def say(line):  # to the last line nobody else can train here
        with pytest.raises(ValueError, match="nobody is training"), sole_run(run):
            pytest.fail("the block ran")
        lines.append(line)

    before = keras.config.dtype_policy(), random.getstate()
    result = train(options, say)
    assert result.status == 0
    assert (keras.config.dtype_policy(), random.getstate()) == before
    assert lines[-1].startswith("test BLEU ")
    assert len((run / "test.hypotheses").read_text().splitlines()) == 8
    scores = json.loads((run / "scores.json").read_text())
    assert scores["BLEU"]["line"].startswith("BLEU|nrefs:1|case:mixed")
    assert (run / "curves.png").stat().st_size > 1000
    assert any(line.endswith("with graphs for ONNX Runtime") for line in lines)
    translator = ks.load(result.folder)
    assert translator.translate(["one two", ""])[1] == ""
    assert translator.search.num_beams == 4
    assert translator.max_source_length == 6
    assert (translator.source_language, translator.target_language) == ("en", "de")
    assert any(" sources cut" in line for line in lines)
    records = read_log(run / "log.jsonl")
    assert {"update", "loss", "nll", "learning_rate"} <= set().union(*records)
    assert any("val_bleu" in record for record in records)
    (events,) = (run / "tensorboard" / "validation").iterdir()
    assert b"epoch_bleu" in events.read_bytes()


@pytest.mark.slow
def test_a_run_without_a_validation_split_has_its_model_and_its_scores(
    corpus, tmp_path, capsys
):
    """A recipe that averages the best, of summaries, for a larger vocabulary."""
    for file in corpus.glob("valid.*"):
        file.unlink()
    run = tmp_path / "run"
    unknown = dict(source_language=None, target_language=None, tokenizer=None)
    changes = dict(preset="light_conv_cnn_dailymail", max_updates=4, **unknown)
    options = flags(corpus, run, **changes)
    assert main(options) == 2
    message = capsys.readouterr().err
    assert "--source-language=de --target-language=en or --source-l" in message
    options += ["--source-language", "en"]
    for flag, value in (("early-stopping", "2"), ("average-kind", "best")):
        assert main([*options, f"--{flag}", value]) == 2
        assert f"--{flag} needs a validation split" in capsys.readouterr().err
    assert main(options) == 0
    told = capsys.readouterr().out
    assert "en → de, for example" in told and "no validation split" in told
    assert re.search(r"\nEntries: \d+ and \d+\n", told)
    assert f"keras-seqconv translate {run}" in told
    scores = json.loads((run / "scores.json").read_text())
    assert {"ROUGE-1", "ROUGE-2", "ROUGE-L"} < set(scores) and "BLEU" not in scores
    assert json.loads((run / "run.json").read_text())["languages"] == ["en", "de"]
    translator = ks.load(run)
    assert (translator.source_language, translator.target_language) == ("en", "de")
    # Finished: the same again only tells so.
    written = (run / "test.hypotheses").stat().st_mtime_ns
    assert main(options) == 0
    assert "is finished" in capsys.readouterr().out
    assert (run / "test.hypotheses").stat().st_mtime_ns == written
    # Another average has no scores yet.
    assert main(["average", str(run), "--best", "2"]) == 0
    told = capsys.readouterr().out
    assert "(newest, as none is validated: updates 4); there are no 2" in told
    assert "Removed, as of the model before: scores.json" in told
    assert not (run / "scores.json").exists()


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


def test_a_changed_corpus_is_not_resumed(copied):
    (corpus, folder), name = copied, "valid.de"
    content = (corpus / name).read_bytes()
    (corpus / name).write_bytes(content[::-1])
    try:
        with pytest.raises(ValueError, match=f"give another `workdir`.* {name}$"):
            train(options_for(corpus, folder, **FINISHED), str)
    finally:
        (corpus / name).write_bytes(content)  # newer, which is no change


@pytest.mark.slow
@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_cores_share_batches(corpus, tmp_path):
    """Two cores come to the weights of one; in new processes, which they share."""
    program = """
import sys
from keras_seqconv_cli import main
status = main()
import tensorflow as tf
print("cores", len(tf.config.list_logical_devices("CPU")))
print("threads", tf.config.threading.get_intra_op_parallelism_threads())
sys.exit(status)
"""
    for path in corpus.glob("test.*"):
        path.unlink()
    changes = dict(
        # One shape, of as many rows for one core as for two.
        tokens_per_batch=256, average=1, dropout=0.0, attention_dropout=0.0,
        # Gradients of nothing but rounding must not count as any others.
        weight_dropout=0.0, learning_rate=1e-2, epsilon=1e-3,
    )  # fmt: skip
    for updates in (4, 12):  # the second goes on
        two = flags(corpus, tmp_path / "two", devices=2, max_updates=updates, **changes)
        found = run_python(program, *two)
        assert found.stdout.endswith("cores 2\nthreads 1\n")
        assert "at most 256 target tokens an update" in found.stdout
        assert ("Going on from" in found.stdout) == (updates == 12)
    assert main(flags(corpus, tmp_path / "one", max_updates=12, **changes)) == 0
    last = "checkpoints/update-00000012.npz"
    both = weights_in(tmp_path / "one" / last), weights_in(tmp_path / "two" / last)
    for first, second in zip(*both, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("one", "two")]
    assert logs[0][-1]["val_nll"] == pytest.approx(logs[1][-1]["val_nll"], rel=1e-5)


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


def test_rows_beyond_learned_positions_are_refused_before_training(corpus, tmp_path):
    short = {**TINY, "positions": {"kind": "learned", "max_length": 5}}
    with pytest.raises(ValueError, match="`max_length` must .* the 5 positions .*: 8"):
        train(options_for(corpus, tmp_path / "run", architecture=short), str)
    rows = IdStore.from_rows([{"source_ids": [4] * 7, "target_ids": [4] * 8}])
    model = SimpleNamespace(has_source=True, max_source_length=7, max_target_length=8)
    _check_positions(SimpleNamespace(train=rows, validation=None), model)


@pytest.mark.usefixtures("no_finish")
@pytest.mark.filterwarnings("default:No checkpoint of update")
def test_a_run_that_ends_in_nan_is_not_finished(corpus, tmp_path, capsys):
    options = options_for(corpus, tmp_path / "run", learning_rate=1e30, max_updates=60)
    assert train(options, str) == (None, {}, 1)
    assert "Training stopped at update" in capsys.readouterr().err
    assert "finished" not in json.loads((tmp_path / "run" / "run.json").read_text())


def test_what_does_not_fit_the_text_is_told_before_training(
    corpus, tmp_path, monkeypatch
):
    """Unknown tokens, targets beyond the search, a warm-up beyond the end, passes."""
    vocabulary, said = write(tmp_path / "words", *WORDS[:5]), []
    options = options_for(
        corpus, tmp_path / "run", preset="light_conv_g2p", source_tokenizer="words",
        target_tokenizer=f"words:{vocabulary}", max_translation_length=6,
        warmup_steps=1000, max_updates=1,
    )  # fmt: skip
    monkeypatch.setattr(ks.callbacks, "fit_stream", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(options, said.append)
    rows = [line.split() for line in read_lines(corpus / "train.de")]
    unknown = sum(word in WORDS[5:] for row in rows for word in row)
    words = f"train, de: {unknown} of {sum(map(len, rows))} tokens are unknown"
    (line,) = (line for line in said if line.startswith("train, "))  # none of en
    assert line.startswith(words) and "'six'" in line and "'seven'" in line
    longest = sum(len(row) > 6 for row in rows)
    assert 0 < longest < 96
    words = f"{longest} of 96 training targets have more tokens"
    assert any(line.startswith(words) for line in said)
    assert any(
        "rises for 1,000 updates" in line and "after 1 " in line for line in said
    )
    assert not any("passes over" in line or "one word" in line for line in said)
    corpus = tmp_path / "inflections"
    corpus.mkdir()
    for side in ("en", "de"):
        write(corpus / f"train.{side}", "two words", *(f"w{n}" for n in range(99)))
    options = options_for(
        corpus, tmp_path / "other", preset="light_conv_g2p", max_updates=2000,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        train(options, said.append)
    words = "2,000 updates (--max-updates) are 1,333 passes"
    assert any(words in line for line in said)
    assert any(line.startswith("99% of the targets are one word") for line in said)
    # Labels are words that the model need not compose.
    write(corpus / "train.de", *["a", "b"] * 50)
    options = dataclasses.replace(options, workdir=str(tmp_path / "labels"))
    said.clear()
    with pytest.raises(ZeroDivisionError):
        train(options, said.append)
    assert said and not any("--target-tokenizer" in line for line in said)


def test_sources_that_are_cut_lift_no_limit_of_targets(corpus, tmp_path):
    options = options_for(corpus, tmp_path, truncate_source=6, max_length=3)
    run = SimpleNamespace(data=tmp_path / "data", options=options)
    recipe, words = resolve_recipe(options), WordTokenizer(WORDS)
    _store(run, recipe, open_corpus_of(options), (words, words), "train", str)
    lengths = IdStore.open(tmp_path / "data" / "train").lengths
    assert lengths["target_ids"].max() == 4  # with the end
    assert len(lengths["target_ids"]) == sum(
        len(line.split()) <= 3 for line in read_lines(corpus / "train.de")
    )


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


def test_a_finished_run_is_left_alone(copied):
    corpus, folder = copied
    lines = []
    reports = dict(keep=3, jit_compile="auto", tensorboard=True)
    train(options_for(corpus, folder, **{**FINISHED, **reports}), lines.append)
    assert len(lines) == 1 and "is finished; its model is" in lines[0]
    notes = (folder / "run.json").read_text()
    for name, end in (("max_updates", 8), ("max_epochs", 4)):
        words = f"`{name}` must be at least {end + 1}, where the run in"
        with pytest.raises(ValueError, match=words):
            train(options_for(corpus, folder, **{**FINISHED, name: end}), lines.append)
    other = {**FINISHED, "max_updates": 8, "seed": 5}
    with pytest.raises(ValueError, match="`seed` was 1 and is 5"):
        train(options_for(corpus, folder, **other), lines.append)
    for name, value in (("count", 0), ("kind", "newest")):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            average_run(folder, folder.parent / "new", **{name: value}, say=str)
    assert (folder / "run.json").read_text() == notes and len(lines) == 1
    (folder / "model" / ".DS_Store").touch()
    longer = {**FINISHED, "max_updates": FINISHED["max_updates"] + 4}
    with pytest.raises(ValueError, match=r"must be empty .* holds: \.DS_Store"):
        train(options_for(corpus, folder, **longer), str)
    newest = checkpoints.latest(folder / "checkpoints")
    assert checkpoints.update_of(newest) == FINISHED["max_updates"]
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ValueError, match="`seed` was 1 and is 5"):
        train(options_for(corpus, folder, **other), lines.append)


def test_scores_are_those_of_the_model_or_missing(copied, monkeypatch):
    corpus, folder = copied
    options = options_for(corpus, folder, **FINISHED, num_beams=3)
    monkeypatch.setattr(finishing.evaluation, "scores", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(options, str)
    assert ks.load(folder).search.num_beams == 3
    assert not (folder / "scores.json").exists()
    for given in (options, options_for(corpus, folder, **FINISHED)):
        assert not Run(folder, given).finished


def test_messages_name_the_flag_that_was_typed(finished, tmp_path, capsys):
    corpus, run = finished
    bad = tmp_path / "bad"
    shutil.copytree(corpus, bad)
    (bad / "train.de").write_bytes(b"\xff\n" * 96)
    late = tmp_path / "late"
    shutil.copytree(corpus, late)
    *rows, _ = (late / "test.en").read_text().splitlines()
    write(late / "test.en", *rows, "")
    train = ["train", "--preset", "dynamic_conv_phrases", "--workdir", f"{tmp_path}/r"]
    for arguments, flag in (
        ([*train, "--dataset", str(bad)], "--skip-bad-lines"),
        ([*train, "--dataset", str(late), "--metrics", "chrf"], "test.en, line 8, has"),
        ([*train, "--dataset", str(corpus), "--num-beams", "999"], "--num-beams must"),
        ([*train, "--dataset", str(corpus), "--vocabulary-size", "5000"],
         "--vocabulary-size"),
        (["average", str(run), "--output", str(run / "model")], "--overwrite"),
        (["average", str(run), "--output", "."], "working directory"),
    ):  # fmt: skip
        assert main(arguments) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ") and flag in error
    assert not (tmp_path / "r" / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_finish")
def test_early_stopping_says_so_and_the_model_is_the_best(corpus, tmp_path):
    changes = dict(early_stopping=2, updates_per_epoch=1, learning_rate=1.0)
    lines, run = [], tmp_path / "run"
    train(options_for(corpus, run, **changes, max_updates=60), lines.append)
    records = [one for one in read_log(run / "log.jsonl") if "val_nll" in one]
    best = min(records, key=lambda record: record["val_nll"])
    end = records[-1]["update"]
    assert best["update"] == end - 2
    assert any(f"Training ended at update {end}: val_nll was" in one for one in lines)
    recipe = read_run(run)[1]
    assert (recipe.average_kind, recipe.average) == ("best", 1)
    (path,) = checkpoints.select(run / "checkpoints", "best", 1)
    assert checkpoints.update_of(path) == end - 2


@pytest.mark.slow
@pytest.mark.usefixtures("no_finish")
@pytest.mark.filterwarnings("default:Skipped a checkpoint")
def test_a_damaged_newest_checkpoint_is_named_before_the_one_taken(copied):
    corpus, folder = copied
    *_, taken, newest = checkpoints.find(folder / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-200])
    lines = []
    train(options_for(corpus, folder, **{**FINISHED, "max_updates": 10}), lines.append)
    about = [line for line in lines if "checkpoint" in line and "update-" in line]
    assert len(about) == 2 and "\n" not in about[0]
    assert about[0].startswith(f"Skipped a checkpoint. {newest}: it is damaged")
    assert about[1] == f"Going on from {taken}"


OF_CONV_S2S = {"architecture": {}, "warmup_steps": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"source_language": "fr"}, "two languages of .*fr"),
        ({"architecture": {"hiden_dim": 3}}, "^`architecture` must .* hidden_dim"),
        ({"architecture": {"num_heads": 3}}, "^`architecture` must .*`num_heads`"),
        (
            {"architecture": {**TINY, "source_vocabulary_size": 9}},
            "`architecture` must not hold `source_vocabulary_size`.*: 9",
        ),
        (
            {"dropout": 0.3, "architecture": {**TINY, "dropout": 0.1}},
            "`dropout` must be given once.*0.3 and 0.1",
        ),
        (
            {"preset": "conv_s2s_multi30k", "weight_dropout": 0.1, **OF_CONV_S2S},
            "ConvS2S has no argument `weight_dropout`",
        ),
        ({"warmup_steps": 0}, "`warmup_steps` must be"),
        ({"devices": 100_000}, "`devices` must be at most"),
        ({"hosts": "auto"}, "`hosts` needs the JAX backend"),
        ({"tokenizer": "spaces"}, "`tokenizer` must be one of"),
    ],
)
def test_wrong_input_is_named(corpus, tmp_path, changes, words):
    with pytest.raises((ValueError, OSError), match=words):
        train(options_for(corpus, tmp_path / "run", **changes), str)
    assert not (tmp_path / "run" / "data").exists()
