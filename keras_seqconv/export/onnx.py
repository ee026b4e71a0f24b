"""Models for ONNX Runtime: an encoder and one step, for a search outside of Keras.

| file              | inputs -> outputs                                               |
|-------------------|-----------------------------------------------------------------|
| `encoder.onnx`    | source_ids (B, S) -> the state before the first step            |
| `step.onnx`       | ids (R, 1), step, limits (R,), state -> the next tokens, the    |
|                   | state                                                           |
| `generation.json` | search options, special ids, files of the tokenizers            |

R = B * G rows of beams. Parts of the state are `shared_0`, ... (B rows, which never
change) and `beams_0`, ... (B rows at first, R in the steps, or rank 0; the outputs of a
step are `next_beams_0`, ...). The state of a convolution has one size at every
position; keys and values of attention as a mixer grow by one position in each step.

The next tokens are `token_ids` and `log_probs` (R, k), the k best but the end token,
and `end_log_probs` (R,). All rules of `decoding/next_tokens.py` are in the graph.
"""

import dataclasses
import os
from pathlib import Path

import keras

from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.support import require, require_tensorflow
from keras_seqconv.support.files import atomic_directory, write_json

_SPECIAL = ("pad", "start", "end", "unk")
GENERATION, ENCODER, STEP = "generation.json", "encoder.onnx", "step.onnx"


def onnx_model(translator, directory: str | os.PathLike, **search) -> Path:
    """Writes a `Translator` as graphs for ONNX Runtime, with its tokenizers.

    A search around them, as in `examples/onnx_translate.py`, needs neither Keras nor
    TensorFlow. Its hypotheses are those of `translate` in float32.

    Args:
        translator: a `Translator` of one model, which stays unchanged.
        directory: new or empty folder, written completely or not at all.
        **search: options of `keras_seqconv.decoding.beam_search`, by default those of
            the translator.

    Returns:
        The folder.

    Raises:
        ValueError, TypeError: an argument breaks its rule, or the backend is JAX.
        ImportError: the extra `onnx` is not installed.
    """
    model, options = prepared(translator, search)
    with atomic_directory(directory) as folder:
        write(translator, model, options, folder)
    return Path(directory)


def prepared(translator, search: dict) -> tuple:
    """The model and `BeamOptions` to write; raises as `onnx_model`."""
    require_tensorflow()
    model = getattr(translator, "model", None)
    if not getattr(translator, "source_tokenizer", None) or hasattr(model, "models"):
        raise ValueError(
            "`translator` must be a Translator of one model, with tokenizers. "
            f"Received: {type(translator).__name__} of {type(model).__name__}"
        )
    require("tf2onnx", "onnx")
    from keras_seqconv.export.weights import folded

    return folded(model.in_float32()), BeamOptions(**translator.search_options(search))


def write(translator, model, options: BeamOptions, folder: Path) -> None:
    """Graphs, settings and tokenizers, into a folder."""
    _write_graphs(model, options, folder)
    write_json(folder / GENERATION, _generation(translator, options, folder))


def _write_graphs(model, options, folder: Path) -> None:
    import tensorflow as tf

    from keras_seqconv.decoding.next_tokens import Constraints

    parts = {}  # of the state

    def encode(source_ids):
        state = model.get_initial_state(source_ids)
        parts.update({part: state[part] for part in ("shared", "beams")})
        return _named(parts)

    def step(ids, step, limits, history, state):
        leaves = [state[name] for name in _named(parts)]
        state = keras.tree.pack_sequence_as(parts, leaves)
        # The weights of the last layer, which a search makes once, are constants here.
        logits, state = model.step(ids, {"common": model._kernels(), **state})
        rules = Constraints(model, options, limits)
        following = rules.next_tokens(logits, step, history)
        token_ids, log_probs = following.best(options.num_beams)
        ends = {"end_log_probs": following.end}
        return {
            "token_ids": token_ids, "log_probs": log_probs, **ends,
            **_named({"next_beams": state["beams"]}),
        }  # fmt: skip

    write_graph(encode, [spec("source_ids", None, None)], folder / ENCODER)
    history = None
    if options.no_repeat_ngram_size:
        history = spec("history", None, None)
    state = {
        name: tf.TensorSpec(_open_shape(leaf), leaf.dtype, name)
        for name, leaf in _named(parts).items()
    }
    arguments = [spec("ids", None, 1), spec("step"), spec("limits", None)]
    write_graph(step, [*arguments, history, state], folder / STEP)


def _named(parts: dict) -> dict:
    """`{"beams_0": leaf, ...}` of nested parts, in the order of `keras.tree`."""
    return {
        f"{part}_{number}": leaf
        for part, nested in sorted(parts.items())
        for number, leaf in enumerate(keras.tree.flatten(nested))
    }


def _open_shape(leaf) -> list:
    """Its shape, with any number of rows."""
    return [None, *leaf.shape[1:]] if len(leaf.shape) else []


def spec(name: str, *shape: int | None):
    """An int32 tensor of a signature."""
    import tensorflow as tf

    return tf.TensorSpec(shape, "int32", name)


def write_graph(function, signature: list, path: Path) -> None:
    """The ONNX file of a function; its outputs are a dict of tensors by name.

    Raises:
        ValueError: the function has an operation that ONNX lacks.
    """
    import onnx
    import tensorflow as tf
    import tf2onnx

    graph = tf.function(function, autograph=False)
    tf2onnx.convert.from_function(graph, signature, output_path=str(path))
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(
            f"The model has an operation without a form in ONNX: {error}"
        ) from error


def _generation(translator, options, folder: Path) -> dict:
    model = translator.model
    folders = {}
    for side, tokenizer in translator.tokenizers.items():
        shared = tokenizer is translator.source_tokenizer
        folders[side] = "source_tokenizer" if shared else f"{side}_tokenizer"
        tokenizer.save(folder / folders[side])
    return {
        "search": dataclasses.asdict(options),
        "special_ids": {n: getattr(model, f"{n}_id") for n in _SPECIAL},
        "max_source_length": translator.max_source_length,
        "max_target_length": model.max_target_length,
        "languages": [translator.source_language, translator.target_language],
        "tokenizers": folders,
    }
