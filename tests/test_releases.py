"""Files of each release are read by all later ones.

`files/release_0.1.0.tar.xz`: the model directory and the export of one small
translator, and directories of models of other classes and arguments (ids only);
`release_0.1.0.json`: texts, translations and scores.
"""

import json
import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.decoding import BeamOptions

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "release_0.1.0.json").read_text("utf-8"))
TEXTS = EXPECTED["texts"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(FILES / "release_0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_the_directory_still_loads(folder):
    translator = ks.load(folder / "model")
    search = BeamOptions(num_beams=2, length_penalty=0.6, max_length=8)
    assert translator.search == search
    assert (translator.source_language, translator.target_language) == ("de", "en")
    assert translator.max_source_length == 12  # the last text has 20 words
    found = translator.translate_n_best(TEXTS, 2)
    for row, expected in zip(found, EXPECTED["translations"], strict=True):
        assert [best.text for best in row] == [best["text"] for best in expected]
        np.testing.assert_allclose(
            [best.score for best in row],
            [best["score"] for best in expected],
            atol=1e-4,
        )
    scores = translator.score(TEXTS, TEXTS[::-1])
    np.testing.assert_allclose(scores, EXPECTED["scores"], atol=1e-4)


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@pytest.mark.parametrize("name", EXPECTED["log_probs"])
def test_all_classes_still_load(folder, name):
    model = ks.load(folder / "models" / name).model
    source_ids = np.array([[5, 6, 7, 2], [9, 2, 1, 1]])
    target_ids = np.array([[2, 5, 6], [2, 7, 8]])
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    outputs = model({name: inputs[name] for name in model.input})
    log_probs = model.log_prob(outputs, np.array([[5, 6, 2], [7, 8, 2]]))
    expected = EXPECTED["log_probs"][name]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(log_probs), expected, atol=1e-5
    )


@pytest.mark.tensorflow
def test_the_export_still_answers(folder):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text", reason="needs the extra mt")
    signatures = tf.saved_model.load(str(folder / "export" / "1")).signatures
    found = signatures["translate_n_best"](text=tf.constant(TEXTS))
    for place, expected in enumerate(EXPECTED["translations"]):
        texts = [text.decode() for text in found["translation"].numpy()[place]]
        scores = found["score"].numpy()[place]
        missing = 2 - len(expected)
        assert texts == [best["text"] for best in expected] + [""] * missing
        np.testing.assert_allclose(
            scores, [best["score"] for best in expected] + [-1e9] * missing, atol=1e-4
        )
    scores = signatures["score"](
        text=tf.constant(TEXTS), translation=tf.constant(TEXTS[::-1])
    )
    np.testing.assert_allclose(scores["score"], EXPECTED["scores"], atol=1e-4)
