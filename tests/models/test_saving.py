"""Models through files: into a fresh process, and those of versions before."""

import json

import numpy as np
import pytest

from keras_seqconv import models
from tests.backends import to_numpy
from tests.models.families import (
    conv_s2s,
    encoder_decoder,
    inputs_of,
    model_of,
    tensors,
)
from tests.processes import run_python

CODE = """
import sys, numpy as np, keras, keras_seqconv
for path in sys.argv[1:]:
    arrays = dict(np.load(path + ".npz"))
    expected = arrays.pop("expected")
    outputs = keras.saving.load_model(path)(arrays)
    outputs = keras.ops.cast(outputs, "float32")
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.slow
def test_every_family_reloads_in_a_fresh_process(tmp_path):
    kinds = ("mixed", "query_conv", "conv_s2s", "lm_tied_projections", "conv_lm")
    paths = []
    for model in (
        *map(model_of, kinds),
        encoder_decoder(dtype="mixed_bfloat16", share_embeddings="all"),
        conv_s2s(dtype="mixed_float16"),
    ):
        paths.append(str(tmp_path / f"{len(paths)}.keras"))
        inputs = inputs_of(model)
        expected = to_numpy(model(tensors(inputs)))
        np.savez(f"{paths[-1]}.npz", expected=expected, **inputs)
        model.save(paths[-1])
    run_python(CODE, *paths)


# What the version before the rebuilt house wrote beside what was not renamed.
BEFORE = {
    "num_conv_heads": None, "conv_dim": None, "query_dim": None, "gate": "glu",
    "query_groups": 1, "permute_channels": False, "compat": False,
    "kernel_softmax": True, "weight_dropout_mask": None, "input_dropout": 0.0,
    "positions": "sinusoidal", "max_length": 1024, "mixer": "dynamic_conv",
    "pad_id": 1, "start_id": 2, "end_id": 2, "unk_id": 3,
}  # fmt: skip
PLAIN = {"kernel_softmax": True, "input_dropout": 0.0}


@pytest.mark.parametrize(
    ("changes", "mixer", "positions"),
    [
        (
            {"gate": "none", "num_conv_heads": 4, "conv_dim": 12, "max_length": 7,
             "positions": "learned", "weight_dropout_mask": "position",
             "mixer": ["light_conv", "attention"]},
            [{"kind": "light_conv", **PLAIN, "num_heads": 4, "conv_dim": 12,
              "use_glu": False, "weight_dropout_mask": "position"}, "attention"],
            {"kind": "learned", "max_length": 7},
        ),
        (
            {"gate": {"encoder": "none", "decoder": "glu"}, "positions": "learned",
             "max_length": {"encoder": 5, "decoder": 6},
             "mixer": {"encoder": "keras_seqconv>LightConv", "decoder": "light_conv"}},
            {"encoder": {"kind": "keras_seqconv>LightConv", "kernel_softmax": True},
             "decoder": {"kind": "light_conv", **PLAIN, "use_glu": True}},
            {"encoder": {"kind": "learned", "max_length": 5},
             "decoder": {"kind": "learned", "max_length": 6}},
        ),
    ],
    ids=["layers", "sides"],
)  # fmt: skip
def test_configurations_of_the_version_before(changes, mixer, positions):
    sides = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    small = {"hidden_dim": 12, "intermediate_dim": 8, "num_heads": 2}
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9}
    classes = [("EncoderDecoder", {**sizes, **sides})]
    if not any(isinstance(value, dict) for value in changes.values()):
        classes.append(("LanguageModel", {"vocabulary_size": 9, "num_layers": 2}))
    for name, others in classes:
        config = {**BEFORE, **small, **others, **changes, "pad_id": 0}
        before = json.dumps(config)
        model = getattr(models, name).from_config(config)
        assert json.dumps(config) == before and model.pad_id == 0
        now = model.get_config()
        assert (now["mixer"], now["positions"]) == (mixer, positions)
        assert now["special_ids"] == {"pad": 0, "start": 2, "end": 2, "unk": 3}
        assert not set(now) & (set(BEFORE) - {"mixer", "positions"})
    conv = {"vocabulary_size": 9, "convolutions": "[(4, 2)]", "end_id": 0}
    model = models.ConvLanguageModel.from_config(conv)
    assert model.get_config()["special_ids"]["end"] == 0
