"""Models that Keras has changed since their constructor: quantized, LoRA, frozen."""

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import decoding
from tests.backends import to_numpy
from tests.cases import quick_and_slow
from tests.models import families
from tests.models.families import SOURCES, inputs_of, logits_of, make, randomize


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("dynamic_conv", "int8"),
        pytest.param("dynamic_conv", "float8", marks=pytest.mark.tensorflow),
        *quick_and_slow([], [("dynamic_conv", "int4"), ("lm_mixed", "int8")]),
    ],
)
def test_quantized(name, mode, tmp_path):
    """Near the model before, in full passes, steps, searches and files."""
    model = randomize(make(name))
    inputs = inputs_of(model)
    before = logits_of(model, inputs)
    model.quantize(mode)
    full = logits_of(model, inputs)
    distance = np.abs(full - before).max() / np.abs(before).max()
    assert 1e-4 < distance < (0.5 if mode == "int4" else 0.2)
    families.check_steps(model, splits=((1, 3),))
    if hasattr(model, "encode"):
        ids, scores = decoding.beam_search(model, SOURCES, num_beams=2, max_length=5)
        expected = decoding.score(model, SOURCES, ids).scores
        np.testing.assert_allclose(to_numpy(scores), to_numpy(expected), rtol=1e-4)
    model.save(tmp_path / "model.keras")
    owner = ks.Translator if hasattr(model, "encode") else ks.LanguageGenerator
    owner(model).save(tmp_path / "model")
    for again in (
        keras.saving.load_model(tmp_path / "model.keras"),
        ks.load(tmp_path / "model").model,
    ):
        assert again.get_config() == model.get_config()
        np.testing.assert_allclose(logits_of(again, inputs), full, atol=1e-6)


def test_what_is_not_quantized():
    with pytest.raises(ValueError, match="`quantize` needs layers.*a ConvS2S"):
        families.conv_s2s().quantize("int8")
