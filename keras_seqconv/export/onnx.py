"""Graphs for ONNX Runtime, for a search outside of Keras: by a program or a web page.

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

A web page has these files in addition. Any file server can serve it, and it fetches
nothing from other servers:

| file                                      | content                                 |
|-------------------------------------------|-----------------------------------------|
| `index.html`, `translate.js`              | the page; the search                    |
| `kernels.onnx`                            | source_ids -> kernels of the encoder's  |
|                                           | dynamic convolutions                    |
| `ort/`, `sentencepiece/`                  | ONNX Runtime and SentencePiece in       |
|                                           | WebAssembly, fetched by npm             |
"""

import dataclasses
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import keras
import numpy as np

from keras_seqconv.decoding.next_tokens import Constraints
from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.evaluation import inspection
from keras_seqconv.support import require, require_tensorflow, tf
from keras_seqconv.support.files import atomic_directory, write_json

_SPECIAL = ("pad", "start", "end", "unk")
# What npm fetches for a page: folder in the page, package, files of the package.
_FETCHED = (
    ("ort", "onnxruntime-web@1.30.0", (
        "dist/ort.wasm.min.mjs", "dist/ort-wasm-simd-threaded.mjs",
        "dist/ort-wasm-simd-threaded.wasm",
    )),
    # SentencePiece's own code. Any text has the ids of the Python package.
    ("sentencepiece", "@agnai/sentencepiece-js@1.1.1", ("dist/index.js", "LICENSE")),
)  # fmt: skip


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
    model, options = _prepared(translator, search)
    with atomic_directory(directory) as folder:
        _write_graphs(model, options, folder)
        _write_settings(translator, options, folder)
    return Path(directory)


def web_page(translator, directory: str | os.PathLike, **search) -> Path:
    """Writes a static web page that translates on the visitor's machine.

    Args:
        translator: a `Translator` of one model, with SentencePiece tokenizers.
        directory: new or empty folder, written completely or not at all.
        **search: as in `onnx_model`.

    Returns:
        The folder.

    Raises:
        ValueError, TypeError: an argument breaks its rule, or the backend is JAX.
        ImportError: the extra `onnx` is not installed.
        FileNotFoundError: npm is not installed.
        OSError: npm cannot fetch the packages.
    """
    model, options = _prepared(translator, search)
    for name, value in (("num_groups", 1), ("stopping", "first")):
        if getattr(options, name) != value:
            raise ValueError(
                f"`{name}` must be {value!r}, as the page searches. "
                f"Received: {name}={getattr(options, name)!r}"
            )
    for side, tokenizer in translator.tokenizers.items():
        if tokenizer.kind != "sentencepiece":
            raise ValueError(
                f"`{side}_tokenizer` must be a SentencePieceTokenizer, which the page "
                f"can run. Received: {type(tokenizer).__name__}"
            )
    with atomic_directory(directory) as folder:
        _fetch(folder)
        _write_graphs(model, options, folder)
        kernels = _write_kernels(model, folder)
        _write_settings(translator, options, folder, kernels=kernels)
        for file in resources.files(__package__).joinpath("page").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    return Path(directory)


def _prepared(translator, search: dict) -> tuple:
    """The model and `BeamOptions` to write; raises as `onnx_model`."""
    require_tensorflow()
    model = getattr(translator, "model", None)
    if not getattr(translator, "source_tokenizer", None) or hasattr(model, "models"):
        raise ValueError(
            "`translator` must be a Translator of one model, with tokenizers. "
            f"Received: {type(translator).__name__} of {type(model).__name__}"
        )
    require("tf2onnx", "onnx")
    from keras_seqconv.export.servable import folded

    return folded(model.in_float32()), BeamOptions(**translator.search_options(search))


# --- Graphs ---


def _write_graphs(model, options: BeamOptions, folder: Path) -> None:
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

    _write_graph(encode, [_spec("source_ids", None, None)], folder / "encoder.onnx")
    history = None
    if options.no_repeat_ngram_size:
        history = _spec("history", None, None)
    state = {}
    for name, leaf in _named(parts).items():  # of any number of rows
        shape = [None, *leaf.shape[1:]] if len(leaf.shape) else []
        state[name] = tf.TensorSpec(shape, leaf.dtype, name)
    arguments = [_spec("ids", None, 1), _spec("step"), _spec("limits", None)]
    _write_graph(step, [*arguments, history, state], folder / "step.onnx")


def _named(parts: dict) -> dict:
    """`{"beams_0": leaf, ...}` of nested parts, in the order of `keras.tree`."""
    return {
        f"{part}_{number}": leaf
        for part, nested in sorted(parts.items())
        for number, leaf in enumerate(keras.tree.flatten(nested))
    }


def _spec(name: str, *shape: int | None):
    """An int32 tensor of a signature."""
    return tf.TensorSpec(shape, "int32", name)


def _write_graph(function, signature: list, path: Path) -> None:
    """The ONNX file of a function; its outputs are a dict of tensors by name.

    Raises:
        ValueError: the function has an operation that ONNX lacks.
    """
    import onnx
    import tf2onnx

    graph = tf.function(function, autograph=False)
    tf2onnx.convert.from_function(graph, signature, output_path=str(path))
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(
            f"The model has an operation without a form in ONNX: {error}"
        ) from error


def _write_kernels(model, folder: Path) -> list[str]:
    """Names of the layers whose kernels the graph returns; or none, and no graph."""

    def kernels(source_ids):
        found = inspection.encoder_kernels(model, source_ids)
        return {layer.name.replace(" ", "_"): layer.values for layer in found}

    names = list(kernels(np.array([[model.end_id]], "int32")))
    if names:
        path = folder / "kernels.onnx"
        _write_graph(kernels, [_spec("source_ids", None, None)], path)
    return names


def _write_settings(translator, options, folder: Path, **more) -> None:
    """The tokenizers and `generation.json`, with `more` of it."""
    model = translator.model
    folders = {}
    for side, tokenizer in translator.tokenizers.items():
        shared = tokenizer is translator.source_tokenizer
        folders[side] = "source_tokenizer" if shared else f"{side}_tokenizer"
        tokenizer.save(folder / folders[side])
    settings = {
        "search": dataclasses.asdict(options),
        "special_ids": {n: getattr(model, f"{n}_id") for n in _SPECIAL},
        "max_source_length": translator.max_source_length,
        "max_target_length": model.max_target_length,
        "languages": [translator.source_language, translator.target_language],
        "tokenizers": folders,
    }
    write_json(folder / "generation.json", settings | more)


# --- The page ---


def _fetch(folder: Path) -> None:
    """Copies the files of `_FETCHED` into a folder, after npm has run elsewhere."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            "A page needs npm, which fetches ONNX Runtime and SentencePiece: install "
            "Node.js."
        )
    packages = [package for _, package, _ in _FETCHED]
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise OSError(f"npm cannot fetch {' and '.join(packages)}: {reason}")
        for name, package, files in _FETCHED:
            (folder / name).mkdir()
            for file in files:
                path = Path(place, "node_modules", package.rpartition("@")[0], file)
                shutil.copy(path, folder / name)
