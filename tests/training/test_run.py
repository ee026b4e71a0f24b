"""The folder of a run: its settings, which may change, and who trains in it."""

import json
import os

import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.training import TrainingOptions
from keras_seqconv.training import run as runs
from keras_seqconv.training.recipe import resolve_recipe
from keras_seqconv.training.run import read_run, sole_run
from keras_seqconv.training.text import corpus_of, tokenizers_of
from keras_seqconv.training_options import read_options
from tests.callbacks.small import make_model as small_model
from tests.training.runs import BASE, options, start, write_corpus


def trained_once(run):
    """As if the run had come to its first checkpoint."""
    state = {"update": 1, "epoch": 1, "epoch_end": True}
    checkpoints.save(run.checkpoints / "update-00000001.npz", small_model(), state)


def test_a_run_is_written_down_and_read_back(tmp_path):
    given = options(workdir=str(tmp_path / "run"), seed=7)
    recipe, run = resolve_recipe(given), start(given)
    again, kept = read_run(run.folder)
    assert again.options == given
    assert kept == recipe
    assert read_options(run.folder) == given.changes()
    about = json.loads(run.settings.read_text())["starts"][0]
    assert about["versions"]["keras"]
    assert about["command"]


def test_another_start_may_change_when_it_ends_but_not_what_it_does(tmp_path):
    folder = str(tmp_path / "run")
    start(options(workdir=folder))
    start(options(workdir=folder, max_updates=9))
    # Nothing was trained: a mistake in the first command can be mended.
    start(options(workdir=folder, seed=3))
    run = start(options(workdir=folder))
    trained_once(run)
    with pytest.raises(ValueError, match="`seed` was 1 and is 2"):
        start(options(workdir=folder, seed=2))
    start(options(workdir=folder, monitor="bleu", validation_bleu=True))
    start(options(workdir=folder))
    with pytest.raises(ValueError, match="`monitor` was not given and is bleu"):
        start(options(workdir=folder, monitor="bleu", validation_bleu=True,
                      early_stopping=3))  # fmt: skip


def test_a_cosine_that_ends_with_the_training_is_not_made_longer(tmp_path):
    given = {"preset": "light_conv_g2p", "workdir": str(tmp_path / "run")}
    run = start(options(**given, max_updates=9000))
    start(options(**given, max_updates=9001))  # before anything is trained
    start(options(**given, max_updates=9000))
    trained_once(run)
    start(options(**given, max_updates=9000))
    words = "`period` was 8000 and is 8001; .* follows from `max_updates`"
    with pytest.raises(ValueError, match=words):
        start(options(**given, max_updates=9001))
    start(options(**given, max_updates=9001, period=8000))
    start(options(**given, max_updates=9000))


def test_a_preset_that_another_version_has_changed_is_told(tmp_path):
    run = start(options(workdir=str(tmp_path / "run")))
    trained_once(run)
    start(run.options)  # which warns of nothing
    notes = json.loads(run.settings.read_text())
    notes["recipe"]["schedule"]["learning_rate"] = 0.25
    run.settings.write_text(json.dumps(notes))
    with pytest.warns(UserWarning, match="schedule learning_rate was 0.25 and is 0.0"):
        start(run.options)


def test_arguments_of_models_are_as_a_file_has_them(tmp_path):
    arguments = {"kernel_sizes": (3, np.int64(7))}
    given = options(workdir=str(tmp_path / "run"), architecture=arguments)
    assert given.architecture == {"kernel_sizes": [3, 7]}
    trained_once(start(given))
    start(given)


def test_options_of_the_first_version_are_read(tmp_path):
    run = start(options(workdir=str(tmp_path)))
    notes = json.loads(run.settings.read_text())
    notes["options"] |= {"validate_every": None, "checkpoint_every": 9}
    run.settings.write_text(json.dumps(notes))
    assert read_run(tmp_path)[0].options == run.options
    assert TrainingOptions.from_json(read_options(tmp_path)) == run.options


def test_another_text_is_read_anew_until_something_was_trained(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    languages = dict(source_language="en", target_language="de")
    folder = str(tmp_path / "run")
    run = start(options(workdir=folder, dataset=str(corpus), **languages))
    corpus_of(run)
    run.tokenizers.mkdir()
    ids = tmp_path / "ids"  # on a faster disk
    ids.mkdir()
    run.data.symlink_to(ids)
    start(run.options)
    corpus_of(run)
    assert run.tokenizers.exists() and ids.exists()
    (corpus / "test.de").write_text("anders\n" * 8)
    corpus_of(run)
    # Not what the link leads to, which may be another run's.
    assert not run.tokenizers.exists() and not run.data.exists() and ids.exists()
    trained_once(run)
    corpus_of(run)
    (corpus / "train.de").write_text("anders\n" * 96)
    for path in corpus.glob("test.*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"missing: test\.de, test\.en, train\.de$"):
        corpus_of(run)


def test_another_vocabulary_is_read_anew_until_something_was_trained(tmp_path):
    corpus, phones = write_corpus(tmp_path / "corpus"), tmp_path / "phones"
    phones.write_text("one\ntwo\n")
    given = options(
        workdir=str(tmp_path / "run"), dataset=str(corpus), source_language="en",
        target_language="de", tokenizer=f"words:{phones}",
    )  # fmt: skip
    run = start(given)
    sizes = []
    for text in ("one\ntwo\n", "one\ntwo\nthree\n"):
        phones.write_text(text)
        sizes.append(tokenizers_of(run, corpus_of(run), str)[1].vocabulary_size)
    assert sizes == [6, 7]
    trained_once(run)
    phones.write_text("one\n")
    with pytest.raises(ValueError, match=rf"must hold what .* missing: {phones}$"):
        corpus_of(run)
    phones.unlink()  # the run has its own copy
    assert tokenizers_of(run, corpus_of(run), str)[1].vocabulary_size == 7


def test_one_training_at_a_time_in_a_folder(tmp_path):
    folder = tmp_path / "run"
    taken = pytest.raises(ValueError, match="nobody is training in now")
    (tmp_path / "letter.txt").write_text("dear")
    refused = pytest.raises(ValueError, match="`workdir` must be a folder of a run")
    with refused, sole_run(tmp_path):
        pytest.fail("the block ran")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    folder.mkdir()
    (folder / ".run.json.0123abcd.part").touch()  # of a start that was killed
    for _ in range(2):  # the end of the block lets the next one in
        with sole_run(folder), taken, sole_run(folder):
            pytest.fail("the block ran")
    start(options(workdir=str(folder)))
    with sole_run(folder), taken:
        runs.remove_run(folder)
    for name in (".run.json.0123abcd.part", ".log.jsonl.89abcdef.part"):
        (folder / name).touch()  # of a killed one
    (folder / ".model.0123abcd.part").mkdir()  # perhaps `average` is at work
    with sole_run(folder):
        left = {".lock", ".model.0123abcd.part", "run.json"}
        assert {*os.listdir(folder)} == left
    runs.remove_run(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "run.json"),
        ("[]", "run.json"),
        ({"format_version": 9}, "run.json"),
        ({"vocabularies": []}, "run.json"),
        ({"options": {**BASE, "r_drop": 1.0}}, "unexpected keyword argument 'r_drop'"),
        ({"recipe": {"r_drop": 1.0}}, "Recipe got an unexpected keyword argument"),
        (
            {"recipe": {"search": {"r_drop": 1.0}}},
            "BeamOptions got an unexpected keyword",
        ),
        ({"recipe": {"schedule": {"name": "linear"}}}, "`schedule` must be InverseSq"),
    ],
)
def test_damaged_notes_and_those_of_earlier_versions(tmp_path, content, words):
    run = start(options(workdir=str(tmp_path)))
    if isinstance(content, dict):
        notes = json.loads(run.settings.read_text())
        notes["recipe"] |= content.pop("recipe", {})
        content = json.dumps({**notes, **content})
    run.settings.write_text(content)
    with pytest.raises(ValueError, match=words):
        read_run(tmp_path)
