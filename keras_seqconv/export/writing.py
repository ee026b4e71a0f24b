"""`saved_model`: a version for TensorFlow Serving, complete or not at all."""

import os
from pathlib import Path

import numpy as np

from keras_seqconv import ops
from keras_seqconv.support import require_tensorflow, tf
from keras_seqconv.support.arguments import check_integer
from keras_seqconv.support.files import atomic_directory

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")
# (Sentences of a request, tokens of a sentence.)
_SIZES = [(1, 8), (1, 32), (1, 128), (8, 32), (32, 16)]


def saved_model(
    translator,
    directory: str | os.PathLike,
    *,
    max_source_length: int | None = None,
    n_best: int | None = None,
    tokens_per_batch: int | None = None,
    xla: bool = False,
    version: int | None = None,
    warmup_texts: list[str] | None = None,
    run: str | os.PathLike | None = None,
    **search,
) -> Path:
    """Writes `directory/<version>/` for a stock `tensorflow_model_server`.

    The graph maps text to text: it has tokenizer, search and detokenizer. Its results
    equal those of `translate` (or `generate`) with the settings below. The version has
    `MODEL_CARD.md` with signatures and limits, and warm-up requests.

    The new version appears complete or not at all; other versions are unchanged. A
    running server that watches `directory` loads it within seconds.

    Args:
        translator: a `Translator` or `LanguageGenerator`, which stays unchanged.
        directory: folder of the versions, named like the model.
        max_source_length: tokens of a source (a prompt) to read, including its end; 512
            by default, or the limit of the model. The rest is ignored.
        n_best: hypotheses of `translate_n_best`; `num_beams` by default.
        tokens_per_batch: tokens times beams in computation, by default those of the
            translator; bounds the memory of a request.
        xla: whether XLA compiles the search, for servers with
            `--xla_cpu_compilation_enabled` or `--xla_gpu_compilation_enabled` only.
        version: a positive integer; by default one more than the largest version.
        warmup_texts: typical texts of users; None makes texts of random tokens.
        run: work folder of the training, for scores in the model card.
        **search: of `BeamOptions`, such as `num_beams`; default: the translator's.

    Returns:
        The folder of the version.

    Raises:
        ValueError, TypeError: an argument breaks its rule, the version exists, or the
            backend is JAX.
        ImportError: a tokenizer needs a package that is not installed.
        OSError: names the folder that cannot be written.
    """
    require_tensorflow()
    # They need TensorFlow.
    from keras_seqconv.export.model_card import model_card
    from keras_seqconv.export.servable import Servable
    from keras_seqconv.export.signatures import make_signatures

    if not hasattr(translator, "search_options"):
        raise ValueError(
            "`translator` must be a Translator or LanguageGenerator "
            f"(keras_seqconv.load). Received: {type(translator).__name__}"
        )
    if not translator.is_of_keras:
        raise ValueError(
            "`translator` must be of Keras: load it with the `runtime` keras. "
            f"Received: a {type(translator.model).__name__}"
        )
    if warmup_texts is not None and not warmup_texts:
        raise ValueError("`warmup_texts` must hold a text, or be None. Received: none")
    parent = Path(os.path.realpath(directory))
    if version is None:  # one more than the largest
        names = [entry.name for entry in parent.glob("*")]
        version = 1 + max((int(n) for n in names if n.isdecimal()), default=0)
    path = parent / str(check_integer("version", version, 1))
    if path.exists():
        raise ValueError(
            f"`version` must be one that does not exist in {parent}; versions are "
            f"never overwritten. Received: version={version}"
        )
    search = {name: value for name, value in search.items() if value is not None}
    if n_best is not None:
        beams = translator.search_options(search).num_beams
        check_integer("n_best", n_best, 1, beams)
        search["num_hypotheses"] = n_best
    # No op may choose XLA for itself: a stock server has none.
    limits = max_source_length, tokens_per_batch
    with ops.jit_scope(False):
        servable = Servable(translator, search, *limits, xla)
        signatures = make_signatures(translator, servable)
    longest = servable.max_source_length
    requests = _warmup_requests(signatures, translator, warmup_texts, longest)
    card = model_card(path, translator, servable, signatures, run)
    # Its name while it is written is no number: no server looks at it.
    with atomic_directory(path) as folder:
        _save(translator, servable, signatures, folder, path)
        _write_warmup(folder, requests, parent.name)
        (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
        for file in folder.rglob("*"):
            if file.is_file():  # reaches the disk before the folder gets its name
                with open(file, "rb+") as stream:
                    os.fsync(stream.fileno())
    return path


def _save(translator, servable, signatures: dict, folder: Path, path: Path) -> None:
    module = tf.Module(name="keras_seqconv")
    module.weights = servable.variables
    module.tables = [
        table
        for tokenizer in translator.tokenizers.values()
        for table in tokenizer.trackables
    ]
    # Nobody trains what is served: no gradients.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(folder), signatures, options)
    except tf.errors.OpError as error:
        reason = error.message.rpartition("; ")[2]
        raise OSError(f"{path} cannot be written: {reason}") from error
    _without_newer_attributes(folder)


def _without_newer_attributes(folder: Path) -> None:
    """Takes away the one attribute that is newer than TensorFlow 2.12.

    `debug_name` of a variable stands in error messages; older servers refuse a node
    with an attribute that they do not know.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in saved.meta_graphs:
        graph = meta_graph.graph_def
        for part in (graph.node, *(f.node_def for f in graph.library.function)):
            for node in part:
                if node.op == "VarHandleOp":
                    node.attr.pop("debug_name", None)
    file.write_bytes(saved.SerializeToString(deterministic=True))
    # Of the file as it was; servers do without.
    (folder / "fingerprint.pb").unlink(missing_ok=True)


# --- Requests that TensorFlow Serving runs when it loads a version ---


def _warmup_requests(
    signatures: dict, translator, texts: list[str] | None, longest: int
) -> list[tuple[str, dict]]:
    """Signature and inputs of typical sizes, of all sizes for the default signature.

    texts: what users send; None makes texts of random tokens.
    longest: tokens of the longest source.
    """
    from keras_seqconv.export.signatures import inputs_of

    rng = np.random.default_rng(0)
    tokenizer = next(iter(translator.tokenizers.values()), None)

    def value(spec, count: int, length: int):
        if spec.dtype.name == "string" and texts is not None:
            return [texts[index % len(texts)].encode() for index in range(count)]
        if spec.dtype.name == "string":
            never = {*tokenizer.unspellable_ids, tokenizer.end_id, tokenizer.unk_id}
            ids = sorted(set(range(tokenizer.vocabulary_size)) - never)
            drawn = rng.choice(ids, (count, max(1, length - 1)))
            return [text.encode() for text in tokenizer.detokenize(drawn.tolist())]
        if not spec.shape.rank:  # how a language model is to draw
            return np.array(min(length, 9), spec.dtype.as_numpy_dtype)
        if len(spec.shape) == 1:
            return np.full(count, length, "int32")
        size = max(translator.model.target_vocabulary_size, 5)
        return rng.integers(4, size, (count, length)).astype("int32")

    requests = []
    for name, function in signatures.items():
        sizes = _SIZES if name == "serving_default" or not requests else _SIZES[1:4:2]
        for count, length in sizes:
            inputs = {
                key: value(spec, count, min(length, longest))
                for key, spec in inputs_of(function).items()
            }
            requests.append((name, inputs))
    return requests


def _write_warmup(folder: Path, requests: list[tuple[str, dict]], name: str) -> None:
    """A TFRecord of `PredictionLog` messages, written field by field.

    (tensorflow_serving/apis/prediction_log.proto; an export does not need the package
    tensorflow-serving-api.)

        PredictionLog   6: PredictLog predict_log
        PredictLog      1: PredictRequest request
        PredictRequest  1: ModelSpec model_spec   2: map<string, TensorProto> inputs
        ModelSpec       1: string name            3: string signature_name
    """

    def field(number: int, content: bytes) -> bytes:
        """A field of the wire type 2, a string or a message; its size is a varint."""
        start, size = [number << 3 | 2], len(content)
        while size > 127:
            start.append(size & 127 | 128)
            size >>= 7
        return bytes([*start, size]) + content

    (folder / WARMUP_FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / WARMUP_FILE)) as writer:
        for signature, inputs in requests:
            spec = field(1, name.encode()) + field(3, signature.encode())
            request = field(1, spec)
            for key, value in inputs.items():
                tensor = tf.make_tensor_proto(value).SerializeToString()
                request += field(2, field(1, key.encode()) + field(2, tensor))
            writer.write(field(6, field(1, request)))
