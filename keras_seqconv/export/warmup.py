"""Requests that TensorFlow Serving runs when it loads a version, before it serves it.

`assets.extra/tf_serving_warmup_requests` is a TFRecord of `PredictionLog` messages
(tensorflow_serving/apis/prediction_log.proto). They are written field by field, so that
an export does not need the package tensorflow-serving-api:

    PredictionLog   6: PredictLog predict_log
    PredictLog      1: PredictRequest request
    PredictRequest  1: ModelSpec model_spec   2: map<string, TensorProto> inputs
    ModelSpec       1: string name            3: string signature_name
"""

from collections.abc import Mapping
from pathlib import Path

from keras_seqconv.export.signatures import inputs_of

FILE = Path("assets.extra", "tf_serving_warmup_requests")
# (Sentences of a request, tokens of a sentence.)
_SIZES = [(1, 8), (1, 32), (1, 128), (8, 32), (32, 16)]


def write(folder: Path, requests: list[tuple[str, dict]], name: str) -> None:
    """Writes the file of a version.

    Args:
        folder: of the version.
        requests: signature and inputs by name (arrays or lists of texts) of each.
        name: of the model.
    """
    import tensorflow as tf

    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(name, signature, inputs))


def prediction_log(name: str, signature: str, inputs: Mapping) -> bytes:
    """The message of one request."""
    import tensorflow as tf

    spec = _field(1, name.encode()) + _field(3, signature.encode())
    request = _field(1, spec)
    for key, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """A field of the wire type 2: a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def requests(signatures: dict, translator, texts: list[str] | None, most: int) -> list:
    """Requests of typical sizes for every signature, all sizes for the default one.

    Args:
        signatures: graphs by name.
        translator: the `Translator` or `LanguageGenerator`.
        texts: what users send; None makes texts of random tokens.
        most: tokens of the longest source.
    """
    requests = []
    for name, function in signatures.items():
        inputs = inputs_of(function)
        sizes = _SIZES if name == "serving_default" or not requests else _SIZES[1:4:2]
        for count, length in sizes:
            values = {}
            for key, spec in inputs.items():
                values[key] = _value(translator, spec, count, min(length, most), texts)
            requests.append((name, values))
    return requests


def _value(translator, spec, count: int, length: int, texts: list[str] | None):
    import numpy as np

    if spec.dtype.name == "string":
        if texts is None:
            return _texts(translator, count, length)
        return [texts[index % len(texts)].encode() for index in range(count)]
    if len(spec.shape) == 1:
        return np.full(count, length, "int32")
    rows = np.random.default_rng(0).integers(
        4, max(translator.model.target_vocabulary_size, 5), (count, length)
    )
    return rows.astype("int32")


def _texts(translator, count: int, length: int) -> list[bytes]:
    """Texts of about so many tokens."""
    import numpy as np

    tokenizer = next(iter(translator.tokenizers.values()))
    never = {*tokenizer.unspellable_ids, tokenizer.end_id, tokenizer.unk_id}
    ids = sorted(set(range(tokenizer.vocabulary_size)) - never)
    drawn = np.random.default_rng(0).choice(ids, (count, max(1, length - 1)))
    return [text.encode() for text in tokenizer.detokenize(drawn.tolist())]
