"""`keras-seqconv export`, called in this process."""

import json
import shlex

import keras
import pytest

import keras_seqconv as ks
from tests.cli.commands import call, refused
from tests.export.models import make_translator
from tests.full_disk import full_disk

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run as `keras-seqconv train` leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    one = make_translator()
    parts = one.model, one.source_tokenizer, one.target_tokenizer, one.search
    ks.Translator(*parts, languages=("en", "xx")).save(folder / "model")
    record = {"options": {"preset": "tiny", "dataset": "words"}, "recipe": {}}
    (folder / "run.json").write_text(json.dumps(record))
    line = "BLEU|nrefs:1|case:mixed = 12.34"
    scores = {"split": "test", "sentences": 7, "BLEU": {"score": 12.34, "line": line}}
    (folder / "scores.json").write_text(json.dumps(scores))
    return folder


@pytest.mark.slow
def test_a_run_becomes_versions(capsys, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.write_text("w1 w2\n\nw3\n")
    done = call(
        capsys, "export", run_folder, "--num-beams", 3, "--max-length", 5,
        "--length-penalty", 0.7, "--warmup-texts", texts,
    )  # fmt: skip
    assert done.status == 0, done.errors
    version = tmp_path / "saved_models" / "first" / "1"
    assert str(version) in done.output and "/v1/models/first:predict" in done.output
    card = (version / "MODEL_CARD.md").read_text()
    for words in (
        "preset: tiny", "= 12.34", "num_beams: 3", "length_penalty: 0.7",
        "max_length: 5", "translates from en to xx",
    ):  # fmt: skip
        assert words in card
    warmup = (version / "assets.extra" / "tf_serving_warmup_requests").read_bytes()
    assert b"w1 w2" in warmup and b"serving_default" in warmup


@pytest.mark.slow
def test_what_is_printed_can_be_asked(capsys, tmp_path):
    """Also of an export that knows ids only."""
    import tensorflow as tf

    translator = make_translator()
    ks.Translator(translator.model, search=translator.search).save(tmp_path / "bare")
    done = call(capsys, "export", tmp_path / "bare", "--output", tmp_path / "m")
    request = json.loads(shlex.split(done.output.splitlines()[-1])[2])
    assert "tokenised" not in done.output
    assert "no tokenizers" in (tmp_path / "m" / "1" / "MODEL_CARD.md").read_text()
    loaded = tf.saved_model.load(str(tmp_path / "m" / "1"))
    assert set(loaded.signatures) == {"translate_ids", "score_ids"}
    inputs = {name: tf.constant(one) for name, one in request["inputs"].items()}
    assert loaded.signatures[request["signature_name"]](**inputs)["ids"].shape[0] == 1


@pytest.mark.slow
def test_full_disk_is_one_line(capsys, run_folder, tmp_path):
    """First in the weights, then in the graph; with room the same command ends."""
    models = tmp_path / "m"
    for size in (2_000, 100_000):
        with full_disk(size):
            error = refused(capsys, "export", run_folder, "--output", models)
        words = f"error: {models / '1'} cannot be written: File too large"
        assert error.removesuffix(" [Op:SaveV2]") == words
        assert list(models.iterdir()) == []
    assert call(capsys, "export", run_folder, "--output", models).status == 0
    names = sorted(path.name for path in models.iterdir())
    assert names == ["1", "models.config"]
    assert (models / "1" / "saved_model.pb").stat().st_size > size


def test_wrong_wishes_are_one_line(capsys, run_folder, tmp_path):
    model = run_folder / "model"
    (tmp_path / "m" / "2").mkdir(parents=True)
    error = refused(capsys, "export", model, "--output", tmp_path / "m", "--version", 2)
    assert "--version" in error and "never" in error
    error = refused(capsys, "export", model, "--num-beams", 2, "--n-best", 3)
    assert "num_beams" in error or "--num-beams" in error
    error = refused(capsys, "export", tmp_path / "nothing")
    assert "nothing" in error
    (tmp_path / "empty").write_text("\n")
    error = refused(capsys, "export", model, "--warmup-texts", tmp_path / "empty")
    assert "--warmup-texts" in error
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["2"]


def test_jax_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        ks.export.saved_model(make_translator(), tmp_path / "m")
