"""Every kind of model and tokenizer, served by Python and by a session in C++.

The latter, on the graph as it lies in the file, is what TensorFlow Serving runs; that
every op is registered without Python, test_saved_model.py sees.
"""

import functools

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.export.writing import WARMUP_FILE
from tests.export.load_and_run import check
from tests.export.make_cases import cases_of
from tests.small_models import (
    TEXTS,
    make_adaptive_language_model,
    make_conv_s2s,
    make_ensemble,
    make_language_model,
    make_translator,
)

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_serving", reason="needs the extra serve")
pytest.importorskip("tensorflow_text", reason="needs the extra mt")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SOURCES = [
    TEXTS[0], "w9 x w25 w0", "", "\0\7 😀  tea", "the\u2028wood\u3000", "\u3000",
    "The\u2003GARDEN\u00a0\u0130 @@ a",
]  # fmt: skip
PROMPTS = ["w1 w2", "", "w3", "x"]
of = functools.partial(functools.partial, make_translator)
# What is exported, and options of the export.
KINDS = {
    "dynamic_conv": (of("pieces"), {}),
    "attention": (of("characters", mixer="attention"), {}),
    "light_conv": (of(mixer="light_conv"),
                   {"length_penalty": 2.0, "num_beams": 3, "max_length": 6}),
    "query_conv": (of("byte pairs", mixer="query_conv"), {}),
    "conv_s2s": (make_conv_s2s, {}),
    "ensemble": (make_ensemble, {}),
    "conv_language_model": (make_language_model, {}),
    "language_model": (make_adaptive_language_model, {}),
}  # fmt: skip


def in_a_session(path):
    """Outputs of a signature for inputs by name, by `Session::Run`."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))

    def run(name: str, inputs: dict) -> dict[str, np.ndarray]:
        signature = loaded.signature_def[name]
        outputs = {key: info.name for key, info in signature.outputs.items()}
        feeds = {signature.inputs[key].name: inputs[key] for key in signature.inputs}
        return session.run(outputs, feeds)

    return run


@pytest.mark.filterwarnings("ignore:.* were cut")  # what has learned positions
@pytest.mark.parametrize("kind", KINDS)
def test_answers(kind, tmp_path):
    """In both those of the owner, whatever the size of a request."""
    from tensorflow_serving.apis import prediction_log_pb2

    make, options = KINDS[kind]
    owner = make()
    path = ks.export.saved_model(owner, tmp_path / "m", **options)
    signatures, served = tf.saved_model.load(str(path)).signatures, in_a_session(path)

    def answers(name, inputs) -> list[dict]:
        specs = signatures[name].structured_input_signature[1]
        tensors = {key: tf.constant(inputs[key], specs[key].dtype) for key in inputs}
        found = signatures[name](**tensors)
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        return [{key: one.numpy() for key, one in found.items()}, served(name, arrays)]

    # Those that the server runs while it loads a version.
    requests = [
        prediction_log_pb2.PredictionLog.FromString(one.numpy()).predict_log.request
        for one in tf.data.TFRecordDataset(str(path / WARMUP_FILE))
    ]
    assert {one.model_spec.signature_name for one in requests} == set(signatures)
    assert {one.model_spec.name for one in requests} == {"m"}
    for request in requests:
        inputs = {key: tf.make_ndarray(one) for key, one in request.inputs.items()}
        here, there = answers(request.model_spec.signature_name, inputs)
        assert set(here) == set(there)
        for name, value in here.items():
            assert value.dtype == there[name].dtype
            if value.dtype == np.float32:
                np.testing.assert_allclose(there[name], value, atol=1e-4)
            else:
                np.testing.assert_array_equal(there[name], value)
    texts = SOURCES if hasattr(owner, "translate") else PROMPTS
    with ks.ops.jit_scope(False):
        cases = cases_of(owner, texts, **options)
        if hasattr(owner, "translate"):
            long = ["w1 " * 30]
            expected = {"translation": owner.translate(long, **options)}
            cases.append(["serving_default", {"text": long}, expected])
        if "length_penalty" in options:  # it makes a difference
            own = {**options, "length_penalty": owner.search["length_penalty"]}
            assert owner.translate(texts, **own) != cases[0][2]["translation"]
    for name, inputs, expected in cases:
        for found in answers(name, inputs):
            for key, value in expected.items():
                check(name, found[key].tolist(), value)
