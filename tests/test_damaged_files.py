"""Every file of a model directory and of a run, damaged in every way, is named.

The error has one line; no file is waited for, and none takes memory beyond its bound.
The largest real files are read.
"""

import contextlib
import io
import json
import math
import os
import shutil
import signal
import threading
import types
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import checkpoints
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.data.ids import IdStore
from keras_seqconv.models.limits import at_most
from keras_seqconv.presets import PRESETS
from keras_seqconv.tokenizers import (
    Dictionary,
    SentencePieceTokenizer,
    WordTokenizer,
    load_tokenizer,
)
from keras_seqconv.training import TrainingOptions, average_run
from keras_seqconv.training.finish import _remove_results
from keras_seqconv.training.recipe import make_model, make_optimizer, resolve_recipe
from keras_seqconv.training.run import open_run, read_run
from tests.cases import quick_and_slow
from tests.small_models import SMALL, TOKENIZER, encoder_decoder, tokenizer_of

pytestmark = pytest.mark.tensorflow

CHECKPOINT = "checkpoints/update-00000001.npz"
STATE = {"update": 1, "epoch": 1, "position": 1, "epoch_end": True}
STATE |= {"metrics": {"val_nll": 1.0}, "callbacks": {}}


def make_run(folder):
    """The files of a run, without the training."""
    folder.mkdir()
    options = TrainingOptions(
        preset="dynamic_conv_phrases", dataset="none", workdir=str(folder),
        architecture=SMALL,
    )  # fmt: skip
    recipe = resolve_recipe(options)
    open_run(options, recipe)
    model = make_model(options, recipe.precision, TOKENIZER, TOKENIZER)
    model.compile(make_optimizer(recipe))
    checkpoints.save(folder / CHECKPOINT, model, STATE)
    TOKENIZER.save(folder / "tokenizers" / "target")
    IdStore.write(folder / "data", [{"target": [4, 5]}])
    records = [{"update": n, "nll": 1.0, "seconds": 1.0} for n in (1, 2, 3)]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    scores = {"split": "test", "BLEU": {"score": 1.0, "line": "BLEU 1"}}
    (folder / "scores.json").write_text(json.dumps(scores))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    ks.Translator(encoder_decoder(), TOKENIZER, TOKENIZER).save(folder / "model")
    for kind in ("words", "pieces", "byte pairs"):
        tokenizer_of(kind).save(folder / kind)
    make_run(folder / "run")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(made, tmp_path / "copy")


def average(folder, **options):
    average_run(folder / "run", folder / "run" / "model", overwrite=True, **options)


READERS = {
    "model/config.json": lambda folder: ks.load(folder / "model"),
    "model/model.weights.h5": lambda folder: ks.load(folder / "model"),
    "words/settings.json": lambda folder: load_tokenizer(folder / "words"),
    "words/vocabulary.json": lambda folder: load_tokenizer(folder / "words"),
    "pieces/sentencepiece.model": lambda folder: load_tokenizer(folder / "pieces"),
    "byte pairs/bpe.codes": lambda folder: load_tokenizer(folder / "byte pairs"),
    "byte pairs/dict.txt": lambda folder: load_tokenizer(folder / "byte pairs"),
    "run/run.json": average,
    f"run/{CHECKPOINT}": lambda folder: average(
        folder, files=[folder / "run" / CHECKPOINT]
    ),
    "run/log.jsonl": lambda folder: read_log(folder / "run" / "log.jsonl"),
    "run/scores.json": lambda folder: _remove_results(read_run(folder / "run")[0]),
    "run/data/settings.json": lambda folder: IdStore.open(folder / "run" / "data"),
}
JSON = [name for name in READERS if name.endswith(("json", "jsonl"))]


def peak() -> int:
    """Largest memory of this process since `clear_refs`, MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


HEADER = ("format_version", "state", "model", "optimizer")


@contextlib.contextmanager
def refused(path, words=None, more=700):
    """One line that names the file, in bounded time and `more` MiB of memory."""

    def stop(*_):
        pytest.fail(f"{path} was waited for")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = peak()
    try:
        with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < 800
    assert peak() - before < more


@pytest.mark.parametrize("name", READERS)
def test_other_files_than_regular_ones_and_endless_ones(folder, name):
    path = folder / name
    path.unlink()
    os.mkfifo(path)
    with refused(path, "regular file|is missing"):
        READERS[name](folder)
    path.unlink()
    path.symlink_to("/dev/zero")
    with refused(path, "regular file|is missing"):
        READERS[name](folder)
    path.unlink()
    with open(path, "wb") as stream:
        stream.truncate(10**10)
    with refused(path):
        READERS[name](folder)


def rewrite(path, change, **options):
    """Writes a checkpoint anew, of records that `change(name, content)` returns."""
    with zipfile.ZipFile(path) as file:
        records = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in records.items():
            if (content := change(name, content)) is not None:
                file.writestr(name, content)


def with_header(keys, value):
    def change(name, content):
        if name != "header.json":
            return content
        entry = header = json.loads(content)
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value
        return json.dumps(header)

    return change


def array(shape, dtype="<f4"):
    """The start of an array file of a shape."""
    with io.BytesIO() as stream:
        about = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, about)
        return stream.getvalue() + bytes(4)


@pytest.mark.parametrize(
    "change",
    [
        *(with_header([key], 3) for key in HEADER),
        *(with_header(["state", key], "x") for key in STATE if key != "epoch_end"),
        with_header(["state", "metrics"], [1]),
        with_header(["model", 0], [1]),
        with_header(["model", 0, "shape"], "x"),
        with_header(["model", 0, "dtype"], {"a": 1}),
        with_header(["optimizer", 0], {}),
        *(
            lambda name, content, new=new: new if name == "model/0.npy" else content
            for new in (
                None, array((10**12,)), array((10**10,)), array((1,), "|O"), array(()),
                b"PK",
            )
        ),
        lambda name, content: bytes(33 << 20) if name == "header.json" else content,
    ],
)  # fmt: skip
def test_checkpoints_of_strangers(folder, change):
    path = folder / "run" / CHECKPOINT
    rewrite(path, change)
    with refused(path, "it is damaged, cut off or no checkpoint"):
        average(folder, files=[path])
    with pytest.warns(UserWarning, match="Skipped a checkpoint"):
        assert checkpoints.latest(path.parent) is None


def test_packed_checkpoints(folder):
    path = folder / "run" / CHECKPOINT
    rewrite(path, lambda name, content: content + bytes(1 << 28) * ("header" in name),
            compression=zipfile.ZIP_DEFLATED)  # fmt: skip
    with refused(path, "its records have .* bytes, far more than the file", more=200):
        checkpoints.read_state(path)


def test_models_larger_than_memory(folder):
    path = folder / "run" / "run.json"
    settings = json.loads(path.read_text())
    changes = {"hidden_dim": 10**5, "intermediate_dim": 10**7}
    settings["options"]["architecture"] |= changes
    path.write_text(json.dumps(settings))
    with refused(path, "describes no model .*more than .* memory"):
        average(folder)


@pytest.mark.slow
def test_the_largest_preset_has_room(tmp_path):
    """The architecture of 428 M parameters, with its whole vocabulary."""
    preset = max(PRESETS, key=lambda name: PRESETS[name].parameters or 0)
    options = TrainingOptions(preset=preset, dataset="none", workdir=str(tmp_path))
    size = max(PRESETS[preset].task.vocabulary_sizes)
    tokenizer = types.SimpleNamespace(vocabulary_size=size)
    model = make_model(options, "float32", None, tokenizer)
    assert model.count_params() == PRESETS[preset].parameters > 4e8


def test_weights_of_a_large_file_without_a_digest(folder):
    """Without reading it: zeros follow what HDF5 needs, or a model that is larger."""
    path, config = folder / "model" / "model.weights.h5", folder / "model/config.json"
    content = json.loads(config.read_text())
    content.pop("weights_sha256")
    content["model"]["config"]["hidden_dim"] = 10**5
    config.write_text(json.dumps(content))
    with open(path, "r+b") as stream:
        stream.truncate(10**10)
    with refused(path, "it has 10,000,000,000 bytes, and arrays of", more=100):
        ks.load(folder / "model")


# --- The largest real files ---


def test_the_largest_tokenizers(tmp_path):
    words = [f"{number:x}".ljust(24, "ü") for number in range(262_140)]
    WordTokenizer(words).save(tmp_path / "words")
    assert load_tokenizer(tmp_path / "words").vocabulary_size == 262_144
    dictionary = Dictionary((word, 10**12) for word in words)
    (tmp_path / "dict.txt").write_text(dictionary.to_text(), encoding="utf-8")
    assert Dictionary.read(tmp_path / "dict.txt").counts[-1] == 10**12
    # An unknown field of protobuf, number 1000, of 64 MiB.
    pieces = tokenizer_of("pieces").model
    model = pieces + bytes.fromhex("c23e 80808020") + bytes(1 << 26)
    SentencePieceTokenizer(model).save(tmp_path / "pieces")
    assert load_tokenizer(tmp_path / "pieces").model == model


def test_the_log_of_a_million_updates(tmp_path):
    every = 50
    names = ("loss", "nll", "accuracy", "learning_rate", "gradient_norm", "seconds")
    record = {"epoch": 1000, **dict.fromkeys(names, math.pi)}
    updates = range(every, 10**6 + 1, every)
    path = tmp_path / "log.jsonl"
    with open(path, "w") as stream:
        stream.writelines(json.dumps({"update": n, **record}) + "\n" for n in updates)
    assert [one["update"] for one in read_log(path)] == [*updates]


@pytest.mark.slow
def test_a_checkpoint_of_three_gigabytes(tmp_path):
    """And a header of 20,000 variables."""
    path, rows = tmp_path / "update-00000001.npz", 3 << 10
    shapes = {"model": [[rows, 1 << 18]], "optimizer": [[1]] * 20_000}
    entries = {
        group: [{"path": "a" * 99, "dtype": "float32", "shape": one} for one in shapes]
        for group, shapes in shapes.items()
    }
    header = {"format_version": 2, "state": STATE, **entries}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", json.dumps(header))
        with file.open("model/0.npy", "w", force_zip64=True) as stream:
            stream.write(array((rows, 1 << 18))[:-4])
            for _ in range(rows):
                stream.write(bytes(1 << 20))
        for number in range(20_000):
            file.writestr(f"optimizer/{number}.npy", array((1,)))
    assert path.stat().st_size > 3 << 30
    assert checkpoints.check(path) == STATE


# --- Weights that are not finite ---


@pytest.mark.parametrize("value", quick_and_slow([np.nan], [-np.inf]))
def test_weights_that_are_not_finite(folder, golden, value):
    """Are told by whatever reads them, and in memory; a search would find nothing."""
    words = "`model` must have finite weights. Received: NaN or infinity in .*/"
    config = folder / "model" / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "weights_sha256": None}))
    with h5py.File(folder / "model" / "model.weights.h5", "r+") as file:
        arrays = []
        file.visititems(lambda name, item: arrays.append(item))
        next(one for one in arrays if isinstance(one, h5py.Dataset))[0] = value
    with refused(folder / "model", words):
        ks.load(folder / "model")
    path = folder / "run" / CHECKPOINT
    one = np.full((30, 8), value, "float32").tobytes()
    rewrite(
        path, lambda name, old: old[: -len(one)] + one if "l/0.npy" in name else old
    )
    with pytest.raises(ValueError, match=words):
        average(folder, files=[path])
    fairseq = shutil.copytree(golden / "lightconv_glu", folder / "fairseq")
    with np.load(fairseq / "weights.npz") as file:
        weights = dict(file)
    weights["decoder.layers.0.final_layer_norm.weight"][4] = value
    np.savez(fairseq / "weights.npz", **weights)
    dictionaries = [fairseq / f"dict.{side}.txt" for side in "st"]
    with pytest.raises(ValueError, match=words):
        ks.convert.translator_from_fairseq(fairseq, *dictionaries)
    model = encoder_decoder()
    model.weights[0].assign(model.weights[0] * value)
    both = ks.decoding.Ensemble([encoder_decoder(), model])
    for wrong in (model, both):
        with pytest.raises(ValueError, match=words):
            ks.Translator(wrong, TOKENIZER, TOKENIZER)


@pytest.mark.parametrize("name", JSON)
def test_levels_and_kinds_of_json(folder, name):
    path = folder / name
    content, end = path.read_text(), ""
    if name == "run/log.jsonl":  # whose last line may be cut off
        content, end = content.partition("\n")[0], "\n{}"
    for levels in (101, 900, 100_000):
        path.write_text('{"a": ' + "[" * levels + "]" * levels + "}" + end)
        with refused(path, "must be JSON"):
            READERS[name](folder)
    content = json.loads(content)
    if name in ("words/vocabulary.json", "model/config.json"):
        return  # the tests of tokenizers and of model directories have their values
    for key in content:
        for other in (None, 10**400, "x", [1, [2]], {"a": {"b": 1}}):
            path.write_text(json.dumps({**content, key: other}) + end)
            try:
                READERS[name](folder)
            except (ValueError, FileNotFoundError) as error:  # some do no harm
                assert str(path.parent) in str(error) and "\n" not in str(error)


def test_the_bound_on_models_of_files_is_for_their_thread():
    """Who makes a model while another thread reads one is not bound."""
    made = []

    def make():
        layer = keras.layers.Dense(2000)
        layer.build((None, 2000))
        made.append(layer)

    with at_most(10, 10):
        other = threading.Thread(target=make)
        other.start()
        other.join()
        with pytest.raises(ValueError, match="far more than the weights"):
            make()
    assert len(made) == 1
