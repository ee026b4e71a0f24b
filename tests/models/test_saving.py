"""Models through files, into a fresh process."""

import numpy as np
import pytest

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
