"""Every family and its dtype policy through one file each, into a fresh process."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.backends import to_numpy
from tests.cases import quick_and_slow
from tests.models import (
    check_model,
    test_conv_s2s,
    test_encoder_decoder,
    test_language_models,
)

ROOT = Path(__file__).parents[2]

CODE = """
import sys, numpy as np, keras, keras_seqconv
for folder in sys.argv[1:]:
    model = keras.saving.load_model(folder + "/model.keras")
    arrays = dict(np.load(folder + "/arrays.npz"))
    expected, logits = arrays.pop("expected"), arrays.pop("logits")
    outputs = keras.ops.cast(model(arrays), "float32")
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    start = arrays.get("source_ids", len(expected))
    state = model.get_initial_state(start, max_length=4)
    found, state = model.step(arrays["target_ids"], state)
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
"""


def models():
    """A family and a model of it, for every class and some policies."""
    blocks, conv = test_encoder_decoder.FAMILY, test_conv_s2s.FAMILY
    for name in ("mixed", "query_conv"):
        yield blocks, test_encoder_decoder.model_of(name)
    yield conv, test_conv_s2s.model_of("layers")
    for name in ("tied_projections", "gated"):
        yield test_language_models.pair(name)
    yield blocks, blocks.make(dtype="mixed_bfloat16", share_embeddings="all")
    yield conv, conv.make(dtype="mixed_float16")


@pytest.mark.slow
def test_every_family_reloads_in_a_fresh_process(tmp_path):
    folders = []
    for number, (family, model) in enumerate(models()):
        folder = tmp_path / str(number)
        folder.mkdir()
        inputs = family.inputs()
        state = family.start(model, inputs, max_length=4)
        logits, _ = model.step(inputs["target_ids"], state)
        outputs = model(check_model.tensors(inputs))
        np.savez(
            folder / "arrays.npz",
            expected=to_numpy(outputs),
            logits=to_numpy(logits),
            **inputs,
        )
        model.save(folder / "model.keras")
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), *folders],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.tensorflow
@pytest.mark.parametrize("policy", quick_and_slow(["mixed_bfloat16"], ["float32"]))
def test_a_reloaded_model_goes_on_learning(tmp_path, policy):
    """Compiled state, optimizer and policy come back."""
    model = test_language_models.make(
        dtype=policy, mixer="light_conv", num_layers=1, kernel_sizes=3, dropout=0.0
    )
    inputs = test_language_models.BLOCKS.inputs()
    labels = np.roll(inputs["target_ids"], -1, axis=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    model.train_on_batch(inputs, labels)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.dtype_policy.name == policy
    for one in (model, again):
        one.train_on_batch(inputs, labels)
    limit = 1e-4 if policy == "float32" else 0.02
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)),
                               atol=limit)  # fmt: skip
    assert int(again.optimizer.iterations) == 2
