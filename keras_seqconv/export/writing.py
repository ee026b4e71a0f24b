"""`saved_model`: a version for TensorFlow Serving, complete or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import keras

from keras_seqconv import ops
from keras_seqconv.export import stock_ops, warmup
from keras_seqconv.export.model_card import model_card
from keras_seqconv.export.servable import Servable
from keras_seqconv.export.signatures import make_signatures
from keras_seqconv.support.arguments import check_positive_integer
from keras_seqconv.support.files import atomic_directory, write_file

_BATCHING = """\
# Read with --enable_batching --batching_parameters_file=FILE, and but for the threads
# also with --enable_batching --enable_per_model_batching_parameters.
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
# As many as the machine has cores.
num_batch_threads { value: 4 }
max_enqueued_batches { value: 256 }
# Ids of several lengths share a batch.
pad_variable_length_inputs: true
"""
_MODELS = """\
# --model_config_file=/models/%(name)s/models.config
model_config_list {
  config {
    name: "%(name)s"
    base_path: "/models/%(name)s"
    model_platform: "tensorflow"
    # The newest version is served. To stay at one, or to roll back:
    # model_version_policy { specific { versions: %(version)d } }
    # version_labels { key: "stable" value: %(version)d }
  }
}
"""


def saved_model(
    translator,
    directory: str | os.PathLike,
    *,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    max_source_length: int | None = None,
    n_best: int | None = None,
    tokens_per_batch: int | None = None,
    xla: bool = False,
    version: int | None = None,
    warmup_texts: list[str] | None = None,
    run: str | os.PathLike | None = None,
) -> Path:
    """Writes `directory/<version>/`, which a stock `tensorflow_model_server` serves.

    Text in, text out: tokenizer, search and detokenizer are inside. For every text the
    answer is that of `translate` (or `generate`), with the settings below; signatures
    and what a request costs are in `MODEL_CARD.md` of the version, beside
    `batching_params.pbtxt` and requests to warm up with. `directory/models.config` is
    written where there is none.

    The new version appears complete or not at all; others are never touched. A running
    server that watches `directory` loads it within seconds.

    Args:
        translator: a `Translator` or `LanguageGenerator`. It stays as it is.
        directory: the name of its last part is the name of the model.
        num_beams, length_penalty, max_length: of the search, instead of its own.
        max_source_length: tokens of a source (a prompt), its end counted, that are
            read; the rest is ignored. 512 by default, less if the model takes no more.
        n_best: hypotheses of `translate_n_best`; `num_beams` by default.
        tokens_per_batch: tokens times beams that are computed at once, by default the
            translator's own: bounds the memory of a request.
        xla: compile the search with XLA: for servers that are started with
            `--xla_cpu_compilation_enabled` or `--xla_gpu_compilation_enabled` only.
        version: a positive integer; None is one more than the largest there is.
        warmup_texts: what users will send; None makes texts of random tokens.
        run: work folder of the training, for data and scores in the model card.

    Returns:
        The folder of the version.

    Raises:
        ValueError: for a wrong argument; the version exists; on the JAX backend; an op
            in the graph is none that every server since 2.12 has.
        ImportError: a tokenizer needs a package that is not installed.
        OSError: names the folder that cannot be written.

    Example:

    ```python
    import tempfile
    from keras_seqconv.tokenizers import WordTokenizer
    tokenizer = WordTokenizer(["ein", "Hund"])
    model = keras_seqconv.models.EncoderDecoder(
        6, 6, hidden_dim=8, intermediate_dim=8, num_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    )
    translator = keras_seqconv.Translator(model, tokenizer, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = keras_seqconv.export.saved_model(
            translator, folder + "/hund", num_beams=2, max_length=5
        )  # .../hund/1
    ```
    """
    _check_owner(translator)
    parent = Path(os.path.realpath(directory))
    version = _checked_version(parent, version)
    search = {
        "num_beams": num_beams, "length_penalty": length_penalty,
        "max_length": max_length, "num_hypotheses": n_best,
    }  # fmt: skip
    search = {name: value for name, value in search.items() if value is not None}
    # No op may choose XLA for itself: a stock server has none.
    with ops.jit_scope(False):
        servable = Servable(
            translator, search, max_source_length, tokens_per_batch, xla
        )
        signatures = make_signatures(translator, servable)
    requests = warmup.requests(
        signatures, translator, warmup_texts, servable.max_source_length
    )
    card = model_card(parent.name, version, translator, servable, signatures, run)
    path = parent / str(version)
    # Its name while it is written is no number: no server looks at it.
    with _named(path), atomic_directory(path) as folder:
        _save(translator, servable, signatures, folder)
        warmup.write(folder, requests, parent.name)
        (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
        (folder / "batching_params.pbtxt").write_text(_BATCHING)
        _sync(folder)
    if not (parent / "models.config").exists():
        config = _MODELS % {"name": parent.name, "version": version}
        with _named(parent / "models.config"):
            write_file(parent / "models.config", config.encode())
    return path


def next_version(directory: str | os.PathLike) -> int:
    """One more than the largest number among the entries of a folder, at least 1."""
    folder = Path(directory)
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def _check_owner(translator):
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is made on the TensorFlow backend: save the model as a "
            "directory (`save`), and load and export it in a process with "
            "KERAS_BACKEND=tensorflow. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    if not (hasattr(translator, "translate") or hasattr(translator, "generate")):
        raise ValueError(
            "`translator` must be a Translator or LanguageGenerator "
            f"(keras_seqconv.load). Received: {type(translator).__name__}"
        )


def _checked_version(parent: Path, version: int | None) -> int:
    if version is None:
        return next_version(parent)
    check_positive_integer("version", version)
    if (parent / str(version)).exists():
        raise ValueError(
            f"`version` must be one that does not exist in {parent}; versions are "
            f"never overwritten. Received: version={version}"
        )
    return version


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of writing, TensorFlow's too, as one that names the folder."""
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", str(error)).rpartition("; ")[2]
        raise OSError(f"{path} cannot be written: {reason}") from error


def _save(translator, servable: Servable, signatures: dict, folder: Path):
    import tensorflow as tf

    module = tf.Module(name="keras_seqconv")
    module.weights = servable.variables
    module.tables = [
        table
        for tokenizer in translator.tokenizers.values()
        for table in tokenizer.trackables
    ]
    # Nobody trains what is served: no gradients.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder), signatures, options)
    stock_ops.strip_names(folder)
    offenders = stock_ops.offenders(folder, servable.xla)
    if offenders:
        raise ValueError(
            f"The graph holds {len(offenders)} nodes that a stock server cannot run: "
            + "; ".join(offenders[:5])
        )


def _sync(folder: Path):
    """All files reach the disk before the folder gets its name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb+") as stream:
                os.fsync(stream.fileno())
