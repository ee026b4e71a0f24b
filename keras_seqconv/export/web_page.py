"""Web page that translates on the visitor's machine with ONNX Runtime.

Files in addition to those of `onnx.py`:

| file                                      | content                                 |
|-------------------------------------------|-----------------------------------------|
| `index.html`, `translate.js`              | the page; tokenizer and search          |
| `source_pieces.json`, `target_pieces.json`| pieces, scores and kinds                |
| `kernels.onnx`                            | source_ids -> kernels of the encoder's  |
|                                           | dynamic convolutions                    |
| `ort/`                                    | ONNX Runtime, fetched by npm            |

Any file server can serve the page, which fetches nothing from other servers.
"""

import json
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np

from keras_seqconv.evaluation import inspection
from keras_seqconv.export import onnx
from keras_seqconv.support.files import atomic_directory, write_json

_RUNTIME = "onnxruntime-web@1.30.0"
_RUNTIME_FILES = (
    "ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm",
)  # fmt: skip


def web_page(translator, directory: str | os.PathLike, **search) -> Path:
    """Writes a static web page that translates.

    Args:
        translator: a `Translator` of one model, with SentencePiece tokenizers that do
            not normalize letters.
        directory: new or empty folder, written completely or not at all.
        **search: as in `onnx_model`.

    Returns:
        The folder.

    Raises:
        ValueError, TypeError: an argument breaks its rule, or the backend is JAX.
        ImportError: the extra `onnx` is not installed.
        FileNotFoundError: npm is not installed.
        OSError: npm cannot fetch the runtime.
    """
    model, options = onnx.prepared(translator, search)
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
    pieces = {side: _pieces(side, one) for side, one in translator.tokenizers.items()}
    with (
        tempfile.TemporaryDirectory() as fetched,
        atomic_directory(directory) as folder,
    ):
        runtime = _fetched(Path(fetched))
        onnx.write(translator, model, options, folder)
        settings = json.loads((folder / onnx.GENERATION).read_text("utf-8"))
        settings["kernels"] = _write_kernels(model, folder / "kernels.onnx")
        write_json(folder / onnx.GENERATION, settings)
        for side, content in pieces.items():
            write_json(folder / f"{side}_pieces.json", content)
        (folder / "ort").mkdir()
        for name in _RUNTIME_FILES:
            shutil.copy(runtime / name, folder / "ort" / name)
        for file in resources.files(__package__).joinpath("page").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    return Path(directory)


def _fetched(folder: Path) -> Path:
    """The folder with the files of the runtime, after npm has run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            "A page needs npm, which fetches ONNX Runtime: install Node.js."
        )
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", _RUNTIME]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OSError(f"npm cannot fetch {_RUNTIME}: {reason}")
    return folder / "node_modules" / "onnxruntime-web" / "dist"


def _pieces(side: str, tokenizer) -> dict:
    """What `translate.js` needs of a SentencePiece model."""
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    processor = SentencePieceProcessor(model_proto=tokenizer.model)
    letters = [chr(code) for code in range(1, 1 << 16) if not 0xD800 <= code < 0xE000]
    # Of each letter, without the blank and the letter in front and the one behind.
    normalized = [one[2:-1] for one in processor.normalize([f"a{c}a" for c in letters])]
    pairs = list(zip(letters, normalized, strict=True))
    changed = "".join(c for c, one in pairs if one not in (c, "\u2581"))
    if changed:
        raise ValueError(
            f"`{side}_tokenizer` must be without normalization of letters, which the "
            f"page does not have. Received: one that changes {changed[:10]!r}"
        )
    return {
        "model_type": "unigram" if model.trainer_spec.model_type == 1 else "bpe",
        "byte_fallback": model.trainer_spec.byte_fallback,
        "blanks": [c for c, one in pairs if one == "\u2581"],
        "folds_blanks": model.normalizer_spec.remove_extra_whitespaces,
        "pieces": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "kinds": [piece.type for piece in model.pieces],
    }


def _write_kernels(model, path: Path) -> list[str]:
    """Names of the layers whose kernels the graph returns; or none, and no graph."""

    def kernels(source_ids):
        found = inspection.encoder_kernels(model, source_ids)
        return {layer.name.replace(" ", "_"): layer.values for layer in found}

    names = list(kernels(np.array([[model.end_id]], "int32")))
    if names:
        onnx.write_graph(kernels, [onnx.spec("source_ids", None, None)], path)
    return names
