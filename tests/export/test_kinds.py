"""Every kind of model, served by a session in C++ on the graph as it lies in the file.

That is what TensorFlow Serving runs; that every op is one of stock servers,
`not_stock` sees.
"""

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.export.writing import WARMUP_FILE
from tests.export.load_and_run import check
from tests.export.make_cases import cases_of, n_best_of
from tests.export.stock_ops import not_stock
from tests.small_models import (
    TEXTS,
    make_adaptive_language_model,
    make_ensemble,
    make_translator,
)

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text", reason="needs the extra mt")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SOURCES = [
    TEXTS[0], "w9 x w25 w0", "", "\0\7 😀  tea", "the\u2028wood\u3000", "\u3000",
    "The\u2003GARDEN\u00a0\u0130 @@ a",
]  # fmt: skip
PROMPTS = ["w1 w2", "", "w3", "x"]
MIXERS = {"encoder": "attention", "decoder": "query_conv"}
# What is exported, and options of the export; test_saved_model.py has a dynamic_conv.
KINDS = {
    "mixed": (lambda: make_translator.__wrapped__(mixer=MIXERS),
              {"length_penalty": 2.0, "num_beams": 3, "max_length": 6}),
    "ensemble": (make_ensemble, {}),  # with a conv_s2s
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

    run.signatures = set(loaded.signature_def) - {"__saved_model_init_op"}
    return run


@pytest.mark.filterwarnings("ignore:.* were cut")  # what has learned positions
@pytest.mark.parametrize("kind", KINDS)
def test_answers(kind, tmp_path):
    """Those of the owner, whatever the size of a request."""
    make, options = KINDS[kind]
    owner = make()
    path = ks.export.saved_model(owner, tmp_path / "m", **options)
    assert not_stock(path) == []
    run = in_a_session(path)
    # Those that the server runs while it loads a version, the first of a signature.
    requests = warmup_requests(path)
    assert {one.model_spec.name for one in requests} == {"m"}
    signatures = {one.model_spec.signature_name: one for one in requests[::-1]}
    assert set(signatures) == {*run.signatures}
    for name, request in signatures.items():
        assert run(name, {k: tf.make_ndarray(v) for k, v in request.inputs.items()})
    texts = SOURCES if hasattr(owner, "translate") else PROMPTS
    with ks.ops.jit_scope(False):
        cases = cases_of(owner, texts, **options)
        if hasattr(owner, "translate"):
            long, count = (
                ["w1 " * 30],
                options.get("num_beams", owner.search.num_beams),
            )
            expected = {"translation": n_best_of(owner, long, count, **options)[0]}
            cases.append(["translate_n_best", {"text": long}, expected])
        if "length_penalty" in options:  # it makes a difference
            own = {**options, "length_penalty": owner.search.length_penalty}
            assert owner.translate(texts, **own) != cases[0][2]["translation"]
    for name, inputs, expected in cases:
        found = run(name, inputs)
        for key, value in expected.items():
            check(name, found[key].tolist(), value)


def warmup_requests(path) -> list:
    from tensorflow_serving.apis import prediction_log_pb2

    return [
        prediction_log_pb2.PredictionLog.FromString(one.numpy()).predict_log.request
        for one in tf.data.TFRecordDataset(str(path / WARMUP_FILE))
    ]
