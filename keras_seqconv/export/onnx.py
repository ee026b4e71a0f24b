"""A translator for ONNX Runtime, outside of Keras: for a program or a web page.

| file              | inputs -> outputs, or content                                   |
|-------------------|-----------------------------------------------------------------|
| `start.onnx`      | `source_ids` (B, S) -> all inputs of the first step             |
| `step.onnx`       | see below -> those of the next step, `backpointers`, `sums`     |
| `end.onnx`        | `finished`, `origins` -> `scores`, `sums`, `last`, `beams`, all |
|                   | (B, N): the N best hypotheses, best first                       |
| `weights.bin`     | the weights of `start.onnx` and `step.onnx`                     |
| `generation.json` | search options, special ids, folders of the tokenizers          |

All integers are int64. A row of `source_ids` ends with the end token, then padding. G
is `num_beams` of the options, R = B * G. The graphs have all of the search: rules,
choice of beams, reordered state, stopping, length penalty.

| input of `step.onnx`           | meaning                                            |
|--------------------------------|----------------------------------------------------|
| `ids` (R, 1)                   | last token of each beam                            |
| `steps` ()                     | tokens so far                                      |
| `limits` (R,)                  | most tokens of a hypothesis, its end not counted   |
| `history` (R, L)               | all tokens, where n-grams may not repeat           |
| `scores` (B, G)                | sums of log-probabilities; -inf for beams that do  |
|                                | not go on                                          |
| `finished`, `origins` (B, G)   | sums of ended hypotheses, -inf for none; G * step  |
|                                | + beam of each                                     |
| `shared_0` ..., `beams_0` ...  | state of the model                                 |

The loop, as in `examples/onnx_loop.py`, is the same for all options:

1. The outputs of `start.onnx` are the inputs.
2. While one of `scores` is above -inf, run `step.onnx`, keep its `backpointers` (B, G),
   and put each output `next_NAME` in the place of the input NAME. Other inputs stay.
3. Run `end.onnx`. Hypothesis n of sentence b took its end token at step `last[b, n]`
   (from 0; -1 if there is no hypothesis) and extended beam `beams[b, n]`. Its tokens,
   backwards: for each step from `last[b, n] - 1` to 0, `backpointers[step][b, beam]` is
   G * token + the beam of the step before.

`scores` of `end.onnx` are `sums` over the length penalty.

A web page has these files in addition. Any file server can serve it, and it fetches
nothing from other servers:

| file                                      | content                                 |
|-------------------------------------------|-----------------------------------------|
| `index.html`, `translate.js`              | the page; the loop                      |
| `kernels.onnx`                            | `source_ids` -> kernels of the          |
|                                           | encoder's dynamic convolutions          |
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

import numpy as np

from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.evaluation import inspection
from keras_seqconv.models.configuration import SPECIAL_IDS
from keras_seqconv.models.onnx_graphs import converted, write_graphs
from keras_seqconv.runtime.graph_files import quantize_graphs
from keras_seqconv.runtime.onnx_model import OnnxModel
from keras_seqconv.support import require, require_tensorflow, tf
from keras_seqconv.support.arguments import check_choice
from keras_seqconv.support.files import atomic_directory, write_file, write_json
from keras_seqconv.tokenizers import VOCABULARIES

# What npm fetches for a page: folder in the page, package, files of the package.
_FETCHED = (
    ("ort", "onnxruntime-web@1.30.0", (
        "dist/ort.wasm.min.mjs", "dist/ort-wasm-simd-threaded.mjs",
        "dist/ort-wasm-simd-threaded.wasm",
    )),
    # SentencePiece's own code. Any text has the ids of the Python package.
    ("sentencepiece", "@agnai/sentencepiece-js@1.1.1", ("dist/index.js", "LICENSE")),
)  # fmt: skip


def onnx_model(
    translator,
    directory: str | os.PathLike,
    *,
    quantize: str | None = None,
    **search,
) -> Path:
    """Writes a `Translator` as graphs for ONNX Runtime, with its tokenizers.

    A search by them, as in `examples/onnx_loop.py`, needs neither Keras nor TensorFlow.
    Its hypotheses are those of `translate` in float32.

    Args:
        translator: a `Translator` of one model, which stays unchanged.
        directory: new or empty folder, written completely or not at all.
        quantize: "int8" for products in 8 bits, or None.
        **search: options of `keras_seqconv.decoding.beam_search`, by default those of
            the translator.

    Returns:
        The folder.

    Raises:
        ValueError, TypeError: an argument breaks its rule, or the backend is JAX.
        ImportError: the extra `onnx` is not installed.
    """
    options = _options(translator, quantize, search)
    with atomic_directory(directory) as folder:
        _write_search(translator, options, folder, quantize)
    return Path(directory)


def web_page(
    translator,
    directory: str | os.PathLike,
    *,
    quantize: str | None = None,
    **search,
) -> Path:
    """Writes a static web page that translates on the visitor's machine.

    Args:
        translator: a `Translator` of one model, with tokenizers of the kinds
            sentencepiece, words or characters.
        directory: new or empty folder, written completely or not at all.
        quantize, **search: as in `onnx_model`.

    Returns:
        The folder.

    Raises:
        ValueError, TypeError: an argument breaks its rule, or the backend is JAX.
        ImportError: the extra `onnx` is not installed.
        FileNotFoundError: npm is not installed.
        OSError: npm cannot fetch the packages.
    """
    options = _options(translator, quantize, search)
    for side, tokenizer in translator.tokenizers.items():
        if tokenizer.kind not in VOCABULARIES:
            raise ValueError(
                f"`{side}_tokenizer` must be of a kind that the page can run: "
                f"{', '.join(VOCABULARIES)}. Received: {type(tokenizer).__name__}"
            )
    with atomic_directory(directory) as folder:
        _fetch(folder, {tokenizer.kind for tokenizer in translator.tokenizers.values()})
        kernels = _write_kernels(translator.model.in_float32(), folder)
        _write_search(translator, options, folder, quantize, kernels=kernels)
        for file in resources.files(__package__).joinpath("page").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    return Path(directory)


def _options(translator, quantize, search: dict) -> BeamOptions:
    """The options to write; raises as `onnx_model`."""
    check_choice("quantize", quantize, (None, "int8"))
    require_tensorflow()
    model = getattr(translator, "model", None)
    if (
        not getattr(translator, "source_tokenizer", None)
        or not translator.is_of_keras
        or hasattr(model, "models")
    ):
        raise ValueError(
            "`translator` must be a Translator of one model of Keras, with tokenizers. "
            f"Received: {type(translator).__name__} of {type(model).__name__}"
        )
    require("tf2onnx", "onnx")
    return translator.search_options(search)


# --- Files ---


def _write_search(translator, options, folder: Path, quantize, **more) -> None:
    """The graphs, the tokenizers and `generation.json`, with `more` of it."""
    model = translator.model
    write_graphs(model, folder)
    if quantize is not None:
        quantize_graphs(folder, folder)
    graphs = OnnxModel(folder).search_graphs(options)
    for name, graph in graphs.items():
        write_file(folder / f"{name}.onnx", graph.SerializeToString())
    (folder / "graphs.json").unlink()
    folders = {}
    for side, tokenizer in translator.tokenizers.items():
        shared = tokenizer is translator.source_tokenizer
        folders[side] = "source_tokenizer" if shared else f"{side}_tokenizer"
        tokenizer.save(folder / folders[side])
    settings = {
        "search": dataclasses.asdict(options),
        "special_ids": {n: getattr(model, f"{n}_id") for n in SPECIAL_IDS},
        "max_source_length": translator.max_source_length,
        "languages": [translator.source_language, translator.target_language],
        "tokenizers": folders,
    }
    write_json(folder / "generation.json", settings | more)


def _write_kernels(model, folder: Path) -> list[str]:
    """Names of the layers whose kernels the graph returns; or none, and no graph."""

    def kernels(source_ids):
        layers = inspection.encoder_kernels(model, source_ids)
        return {layer.name.replace(" ", "_"): layer.values for layer in layers}

    names = list(kernels(np.array([[model.end_id]])))
    if names:
        source = tf.TensorSpec([None, None], "int64", "source_ids")
        graph = converted(kernels, [source], model.variables)
        write_file(folder / "kernels.onnx", graph.SerializeToString())
    return names


# --- The page ---


def _fetch(folder: Path, kinds: set[str]) -> None:
    """Copies the files of `_FETCHED` into a folder, after npm has run elsewhere.

    SentencePiece is for tokenizers of this kind.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            "A page needs npm, which fetches ONNX Runtime for it: install Node.js."
        )
    fetched = [part for part in _FETCHED if part[0] in {"ort", *kinds}]
    packages = [package for _, package, _ in fetched]
    flags = ["--no-audit", "--no-fund", "--ignore-scripts"]
    with tempfile.TemporaryDirectory() as install:
        # Without a prefix, npm installs into a project of a folder above.
        command = [npm, "install", "--prefix", install, *flags, *packages]
        done = subprocess.run(command, cwd=install, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise OSError(f"npm cannot fetch {' and '.join(packages)}: {reason}")
        for name, package, files in fetched:
            (folder / name).mkdir()
            for file in files:
                path = Path(install, "node_modules", package.rpartition("@")[0], file)
                shutil.copy(path, folder / name)
