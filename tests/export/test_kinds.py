"""Every kind of model and tokenizer, served by Python and by TensorFlow's C++ runtime.

The latter is what TensorFlow Serving is made of.
"""

import functools

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.export import warmup
from tests.export import cpp_runtime
from tests.export.load_and_run import check
from tests.export.make_cases import cases_of
from tests.export.models import (
    TEXTS,
    byte_pair_tokenizer,
    character_tokenizer,
    make_adaptive_language_model,
    make_conv_s2s,
    make_ensemble,
    make_language_model,
    make_translator,
    piece_tokenizer,
)
from tests.saved_models import compiled_functions

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_serving", reason="needs the extra serve")
pytest.importorskip("tensorflow_text", reason="needs the extra mt")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SOURCES = [
    TEXTS[0], "w9 x w25 w0", "", "\0\7 😀  tea", "the\u2028wood\u3000", "\u3000",
    "The\u2003GARDEN\u00a0\u0130 @@ a",
]  # fmt: skip
PROMPTS = ["w1 w2", "", "w3", "x"]
# What is exported, and options of the export.
KINDS = {
    "dynamic_conv": (functools.partial(make_translator, piece_tokenizer), {}),
    "attention": (
        functools.partial(make_translator, character_tokenizer, mixer="attention"),
        {},
    ),
    "light_conv": (
        functools.partial(make_translator, mixer="light_conv"),
        {"length_penalty": 2.0, "num_beams": 3, "max_length": 6},
    ),
    "query_conv": (
        functools.partial(make_translator, byte_pair_tokenizer, mixer="query_conv"),
        {},
    ),
    "conv_s2s": (make_conv_s2s, {}),
    "ensemble": (make_ensemble, {}),
    "conv_language_model": (make_language_model, {}),
    "language_model": (make_adaptive_language_model, {}),
}


@pytest.fixture(scope="module")
def runtime():
    with cpp_runtime.process() as executor:
        yield executor


@pytest.mark.filterwarnings("ignore:.* were cut")  # what has learned positions
@pytest.mark.parametrize("kind", KINDS)
def test_answers(kind, runtime, tmp_path):
    """In both those of the owner, whatever the size of a request."""
    make, options = KINDS[kind]
    owner = make()
    path = ks.export.saved_model(owner, tmp_path / "m", **options)
    assert compiled_functions(path) == []
    signatures = tf.saved_model.load(str(path)).signatures

    def answers(request) -> list[dict]:
        asked = str(path), request.SerializeToString()
        served = runtime.submit(cpp_runtime.predict, *asked)
        inputs = {key: tf.make_ndarray(one) for key, one in request.inputs.items()}
        found = signatures[request.model_spec.signature_name](
            **{key: tf.constant(one) for key, one in inputs.items()}
        )
        return [{key: one.numpy() for key, one in found.items()}, served.result()]

    requests = warm_up_requests(path)
    assert {one.model_spec.signature_name for one in requests} == set(signatures)
    assert {one.model_spec.name for one in requests} == {"m"}
    for request in requests:
        here, served = answers(request)
        assert set(here) == set(served)
        for name, value in here.items():
            assert value.dtype == served[name].dtype
            if value.dtype == np.float32:
                np.testing.assert_allclose(served[name], value, atol=1e-4)
            else:
                np.testing.assert_array_equal(served[name], value)
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
        for found in answers(request_of(name, inputs)):
            for key, value in expected.items():
                check(name, found[key].tolist(), value)


def warm_up_requests(path) -> list:
    """Those that the server runs while it loads a version."""
    from tensorflow_serving.apis import prediction_log_pb2

    return [
        prediction_log_pb2.PredictionLog.FromString(one.numpy()).predict_log.request
        for one in tf.data.TFRecordDataset(str(path / warmup.FILE))
    ]


def request_of(signature: str, texts: dict):
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, value in texts.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value, tf.string))
    return request
