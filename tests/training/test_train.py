"""Whole runs on tiny corpora: what they leave behind, resuming, wrong input."""

import json
import random
import re
import shutil
import sys

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import checkpoints
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.devices import available_cores
from keras_seqconv.training import average_run, train
from keras_seqconv.training import finish as finishing
from keras_seqconv.training.run import Run, read_run, sole_run
from keras_seqconv.translation.model_directory import save_with_graphs
from keras_seqconv_cli import main
from tests.cli.commands import write
from tests.processes import run_python
from tests.training.runs import FINISHED, TINY, flags, options_for, weights_in

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_graphs")]


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
    words = "(newest; none is validated and undamaged: updates 4); there are no 2"
    assert words in told
    assert "Removed, as of the model before: scores.json" in told
    assert not (run / "scores.json").exists()


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


@pytest.mark.usefixtures("no_finish")
@pytest.mark.filterwarnings("default:No checkpoint of update")
def test_a_run_that_ends_in_nan_is_not_finished(corpus, tmp_path, capsys):
    options = options_for(corpus, tmp_path / "run", learning_rate=1e30, max_updates=60)
    assert train(options, str) == (None, {}, 1)
    assert "Training stopped at update" in capsys.readouterr().err
    assert "finished" not in json.loads((tmp_path / "run" / "run.json").read_text())


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
