"""Short texts that are equal where tokenizers or whole translators are equal."""

import hashlib
import json
import tempfile
from pathlib import Path

import keras


def tokenizer_fingerprint(tokenizer) -> str:
    """A digest of what `tokenizer.save` writes; "" for None."""
    if tokenizer is None:
        return ""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                name = path.relative_to(folder).as_posix()
                digest.update(f"{name}\n{len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()


def model_fingerprint(model) -> str:
    """A digest of the arguments and the weights of a model or an ensemble.

    Equal for a model and its copy read from a file; a second for 4 GB of weights.
    """
    digest = hashlib.sha256()
    for one in getattr(model, "models", [model]):
        arguments = {**one.get_config(), "name": None}
        digest.update(json.dumps(arguments, sort_keys=True).encode())
        for weight in one.weights:
            array = keras.ops.convert_to_numpy(weight)
            digest.update(f"{array.shape} {array.dtype}\n".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
