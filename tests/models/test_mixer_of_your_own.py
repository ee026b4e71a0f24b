"""A mixer from outside: a layer of one's own and a row of `MIXERS`, nothing else."""

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.layers import LightConv
from keras_seqconv.models import MIXERS, from_preset
from tests.backends import EAGERLY, to_numpy
from tests.cases import quick_and_slow
from tests.models.families import (
    Previous,
    check_steps,
    encoder_decoder,
    inputs_of,
    language_model,
    logits_of,
    model_of,
    randomize,
)

PREVIOUS = {"kind": "previous", "reach": 2}


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setitem(MIXERS, "previous", Previous)


@pytest.mark.parametrize("make", quick_and_slow([encoder_decoder], [language_model]))
def test_it_trains_decodes_and_is_saved(make, tmp_path):
    """In a decoder; an encoder has it beside one that sees both sides."""
    both = {"encoder": "dynamic_conv", "decoder": [PREVIOUS, "previous"]}
    mixer = both if make is encoder_decoder else both["decoder"]
    model = make(mixer=mixer, dropout=0.0)
    assert [block.mixer.layer.reach for block in model.decoder_blocks] == [2, 1]
    inputs = inputs_of(model)
    labels = np.roll(inputs["target_ids"], -1, axis=1)
    model.compile(keras.optimizers.Adam(0.01), **EAGERLY)
    losses = model.fit(inputs, labels, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    randomize(model)
    check_steps(model)
    source = inputs.get("source_ids")
    of_batch = {"batch_size": 3} if source is None else {}
    found = ks.decoding.beam_search(
        model, source, num_beams=2, max_length=5, **of_batch
    )
    ids, scores = map(to_numpy, found)
    # What the search says of its best is what the model says of it.
    known = ks.decoding.score(model, source, ids[:, 0])
    np.testing.assert_allclose(scores[:, 0], to_numpy(known.scores), atol=1e-4)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        logits_of(again, inputs_of(model)), logits_of(model, inputs_of(model)), 1e-5
    )
    assert again.get_config()["mixer"] == model.get_config()["mixer"]


def test_in_a_preset_and_by_class_or_registered_name():
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9}
    small = {"hidden_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    for mixer, saved in (
        (PREVIOUS, PREVIOUS), (LightConv, "keras_seqconv>LightConv"),
        ("keras_seqconv>LightConv", "keras_seqconv>LightConv"),
    ):  # fmt: skip
        model = from_preset("dynamic_conv_multi30k", **sizes, **small, num_heads=2,
                            dtype="mixed_bfloat16", mixer=mixer)  # fmt: skip
        layer = model.decoder_blocks[0].mixer.layer
        assert (layer.padding, layer.compute_dtype) == ("causal", "bfloat16")
        assert model.encoder_blocks[0].mixer.layer.padding == "same"
        assert model.get_config()["mixer"] == saved
    own = model_of("own").get_config()["mixer"]["decoder"][1]
    assert own == {"kind": "tests>Previous", "reach": 2}
