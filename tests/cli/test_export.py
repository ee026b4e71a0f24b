"""`keras-seqconv export`, called in this process."""

import json
import shlex

import keras
import pytest

import keras_seqconv as ks
from tests.cli.commands import call, refused
from tests.processes import full_disk
from tests.small_models import make_translator

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run as `keras-seqconv train` leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    translator = make_translator.__wrapped__()
    translator.trained = {"preset": "tiny", "dataset": "words"}
    translator.save(folder / "model")
    (folder / "run.json").write_text("{}")
    line = "BLEU|nrefs:1|case:mixed = 12.34"
    scores = {"split": "test", "sentences": 7, "BLEU": {"score": 12.34, "line": line}}
    (folder / "scores.json").write_text(json.dumps(scores))
    return folder


@pytest.mark.slow
def test_a_run_becomes_versions(capsys, run_folder, tmp_path, monkeypatch):
    """First the disk is full, in the weights, then in the graph: an error of a line."""
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "texts"
    texts.write_text("w1 w2\u2028w4\n\nw3\n")
    arguments = (
        "export", run_folder, "--num-beams", 3, "--max-length", 5,
        "--length-penalty", 0.7, "--warmup-texts", texts,
    )  # fmt: skip
    models = tmp_path / "saved_models" / "first"
    version = models / "1"
    for size in (2_000, 100_000):
        with full_disk(size):
            error = refused(capsys, *arguments)
        assert str(version) in error and "File too large" in error
        assert list(models.iterdir()) == []
    done = call(capsys, *arguments)
    assert done.status == 0, done.errors
    assert {path.name for path in models.iterdir()} == {"1"}
    assert (version / "saved_model.pb").stat().st_size > size
    assert str(version) in done.output and "/v1/models/first:predict" in done.output
    card = (version / "MODEL_CARD.md").read_text()
    for words in (
        "preset: tiny", "= 12.34", "num_beams: 3", "length_penalty: 0.7",
        "max_length: 5", "translates from en to xx",
    ):  # fmt: skip
        assert words in card
    warmup = (version / "assets.extra" / "tf_serving_warmup_requests").read_bytes()
    assert "w1 w2\u2028w4".encode() in warmup and b"serving_default" in warmup


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
    signatures = tf.saved_model.load(str(tmp_path / "m" / "1")).signatures
    assert set(signatures) == {"translate_ids", "score_ids"}
    inputs = {name: tf.constant(one) for name, one in request["inputs"].items()}
    assert signatures[request["signature_name"]](**inputs)["ids"].shape[0] == 1


def test_wrong_wishes_are_one_line(capsys, run_folder, tmp_path, monkeypatch):
    model, versions = run_folder / "model", tmp_path / "m"
    (versions / "2").mkdir(parents=True)
    (tmp_path / "empty").write_text("\n")
    for words, *arguments in (
        ("never", model, "--output", versions, "--version", 2),
        (
            "--n-best must be at most 2",
            model,
            "--output",
            versions,
            "--num-beams",
            2,
            "--n-best",
            3,
        ),
        ("nothing", tmp_path / "nothing"),
        ("onnx and web", model, "--output", versions, "--quantize", "int8"),
        ("--warmup-texts", model, "--warmup-texts", tmp_path / "empty"),
    ):
        assert words in refused(capsys, "export", *arguments)
    assert [path.name for path in versions.iterdir()] == ["2"]
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        ks.export.saved_model(make_translator(), versions)
