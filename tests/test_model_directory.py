"""Model directories: what is saved comes back, and nothing else does any harm."""

import errno
import itertools
import json
import os
import shutil
import warnings
from pathlib import Path
from unittest import mock

import h5py
import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
from tests.cases import all_but

TOKENIZER = DictionaryTokenizer(Dictionary((f"w{i}", 1) for i in range(16)))
SMALL = dict(
    hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=1,
    num_decoder_layers=1, kernel_sizes=3,
)  # fmt: skip
CONVOLUTIONS = dict(embedding_dim=8, convolutions="[(8, 3)] * 2 + [(12, 1)]")
MODELS = {
    "EncoderDecoder": lambda **more: ks.models.EncoderDecoder(20, 20, **SMALL, **more),
    "ConvS2S": lambda **more: ks.models.ConvS2S(
        20, 20, **CONVOLUTIONS, output_dim=8, max_length=32, **more
    ),
    "LanguageModel": lambda **more: ks.models.LanguageModel(
        20, hidden_dim=8, intermediate_dim=8, num_heads=2, num_layers=1,
        adaptive_softmax={"cutoffs": [8]}, adaptive_input={"cutoffs": [8]},
        tie_adaptive_weights=True, **more,
    ),
    "ConvLanguageModel": lambda **more: ks.models.ConvLanguageModel(
        20, **CONVOLUTIONS, **more
    ),
}  # fmt: skip


def outputs_of(model):
    ids = np.array([[2, 5, 6, 7], [2, 9, 1, 1]])
    inputs = dict.fromkeys(model.input, ids)
    return keras.ops.convert_to_numpy(keras.ops.cast(model(inputs), "float32"))


def owner_of(model, *tokenizers, **more):
    translates = hasattr(model, "source_embedder")
    return (ks.Translator if translates else ks.LanguageGenerator)(
        model, *tokenizers, **more
    )


@pytest.fixture
def saved(tmp_path):
    """A folder that each test may spoil."""
    folder = tmp_path / "model"
    ks.Translator(MODELS["EncoderDecoder"](), TOKENIZER, TOKENIZER).save(folder)
    return folder


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


# --- What is saved comes back ---


EACH = list(itertools.product(MODELS, ("float32", "mixed_bfloat16", "bfloat16")))


# Of each class one, of each dtype one.
@pytest.mark.parametrize(("name", "dtype"), all_but(EACH[::4] + EACH[-1:], EACH))
def test_round_trip(name, dtype, tmp_path):
    model = MODELS[name](dtype=dtype, name="mine")
    for weight in model.weights:  # none as it was initialized
        weight.assign(weight + 0.02)
    owner_of(model).save(tmp_path / "model")
    loaded = ks.load(tmp_path / "model").model
    assert type(loaded) is type(model) and loaded.name == "mine"
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(outputs_of(loaded), outputs_of(model))
    for dtype in ("float32", "mixed_bfloat16"):
        other = ks.load(tmp_path / "model", dtype=dtype).model
        assert other.get_config()["dtype"] == dtype
        found, expected = outputs_of(other), outputs_of(model)
        assert abs(found - expected).max() < 0.1 * abs(expected).max()


@pytest.mark.parametrize("name", ["ConvS2S", "ConvLanguageModel"])
def test_folded_models(name, tmp_path):
    model = MODELS[name]()
    model.fold()  # takes most of the time
    owner_of(model).save(tmp_path / "model")
    loaded = ks.load(tmp_path / "model").model
    assert len(loaded.weights) == len(model.weights) < len(MODELS[name]().weights)
    np.testing.assert_array_equal(outputs_of(loaded), outputs_of(model))


def test_tokenizers_and_search_options(tmp_path):
    search = {"num_beams": 2, "suppressed_ids": (4, 5), "length_penalty": 0.6}
    lower = DictionaryTokenizer(TOKENIZER.dictionary, lowercase=True)
    model = MODELS["EncoderDecoder"]()
    ks.Translator(model, lower, TOKENIZER, search).save(tmp_path / "two")
    loaded = ks.Translator.load(tmp_path / "two")
    assert loaded.source_tokenizer.lowercase and not loaded.target_tokenizer.lowercase
    assert loaded.search == {
        "num_beams": 2, "length_penalty": 0.6, "max_length": 200,
        "suppressed_ids": [4, 5],
    }  # fmt: skip
    assert loaded.translate(["W1 w2"], max_length=5) == ks.Translator(
        model, lower, TOKENIZER, search
    ).translate(["W1 w2"], max_length=5)
    ks.Translator(model, TOKENIZER, TOKENIZER).save(tmp_path / "one")
    assert not (tmp_path / "one" / "target_tokenizer").exists()
    shared = ks.load(tmp_path / "one")
    assert shared.source_tokenizer is shared.target_tokenizer
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config["format_version"] == 1
    assert config["package_version"] == ks.__version__
    assert config["model"]["class"] == "EncoderDecoder"
    # Directories of versions that knew no languages.
    edit(tmp_path / "one", lambda config: config.pop("languages"))
    assert ks.load(tmp_path / "one").source_language is None


def test_only_whole_models_are_saved(tmp_path):
    class Mine(ks.models.EncoderDecoder):
        pass

    quantized, folded = MODELS["EncoderDecoder"](), MODELS["ConvS2S"]()
    quantized.vocabulary_map.dense.quantize("int8")
    folded.encoder_input.fold()
    policy = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras: not all layers can be quantized
        unnamed = MODELS["ConvLanguageModel"](dtype=policy)
    for model, words in (
        (quantized, "changed after it was made"),
        (folded, "changed after it was made"),
        (Mine(20, 20, **SMALL), "one of the classes .*Received: Mine"),
        (unnamed, "a dtype policy with a name"),
    ):
        with pytest.raises(ValueError, match=words):
            owner_of(model).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


# --- Writing ---


def test_what_is_there_is_kept(saved):
    translator = ks.load(saved)
    before = (saved / "config.json").read_bytes()
    with pytest.raises(ValueError, match="or not exist .`overwrite`=True"):
        translator.save(saved)
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="and nothing else.*It holds: .*notes.txt"):
        translator.save(saved, overwrite=True)
    with pytest.raises(ValueError, match="It is a file"):
        translator.save(saved / "notes.txt", overwrite=True)
    assert (saved / "config.json").read_bytes() == before
    (saved / "notes.txt").unlink()
    other = ks.Translator(translator.model, search={"num_beams": 3})
    other.save(saved, overwrite=True)
    assert ks.load(saved).search["num_beams"] == 3
    assert not (saved / "source_tokenizer").exists()
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_interrupted_writing_leaves_nothing(saved, monkeypatch, error):
    translator = ks.load(saved)
    before = {path.name: path.stat().st_mtime_ns for path in saved.iterdir()}

    def fail(directory):
        raise error

    monkeypatch.setattr(translator.source_tokenizer, "save", fail)
    for folder in (saved, saved.parent / "new"):
        with pytest.raises(type(error) if isinstance(error, OSError) else error):
            translator.save(folder, overwrite=True)
    assert {path.name: path.stat().st_mtime_ns for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_full_disk_is_named(saved, monkeypatch):
    """And HDF5, which crashes where it cannot write, has room at closing or no work."""
    held = []

    def save_weights(model, path):
        held.append(open(path, "wb", buffering=0))  # noqa: SIM115
        held[0].write(bytes(9000))
        raise OSError(errno.ENOSPC, "Can't synchronously write data (long ...)")

    monkeypatch.setattr(keras.Model, "save_weights", save_weights)
    translator = ks.load(saved)
    with pytest.raises(OSError, match="No space left on device") as error:
        translator.save(saved, overwrite=True)
    assert error.value.filename.endswith("model.weights.h5")
    assert os.fstat(held[0].fileno()).st_size == 0
    held[0].close()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: mock.Mock(free=5000))
    with pytest.raises(OSError, match="No space left on device") as error:
        translator.save(saved, overwrite=True)
    assert error.value.filename.endswith("model.weights.h5") and len(held) == 1
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


# --- Reading what is damaged, or what strangers wrote ---


def test_missing_files(saved, tmp_path):
    for path in (tmp_path / "nowhere", saved / "config.json"):
        with pytest.raises(FileNotFoundError, match="There is no folder .*"):
            ks.load(path)
    for name in (
        "config.json", "model.weights.h5", "source_tokenizer",
        "source_tokenizer/dict.txt", "source_tokenizer/settings.json",
    ):  # fmt: skip
        copy = tmp_path / "copy"
        shutil.copytree(saved, copy)
        remove = shutil.rmtree if (copy / name).is_dir() else Path.unlink
        remove(copy / name)
        with pytest.raises(FileNotFoundError, match=f"copy/{name}.* is missing"):
            ks.load(copy)
        shutil.rmtree(copy)


def test_files_that_are_cut_off(saved):
    files = [path for path in saved.rglob("*") if path.is_file()]
    assert len(files) == 4
    for path in files:
        content = path.read_bytes()
        for length in {0, 1, len(content) // 3, len(content) - 2}:
            path.write_bytes(content[:length])
            if path.name == "dict.txt" and length:
                continue  # every beginning of it is a dictionary, of another size
            with pytest.raises(ValueError, match=str(saved)):
                ks.load(saved)
        path.write_bytes(content)
    (saved / "source_tokenizer" / "dict.txt").write_bytes(b"w0 1\nw1 1\n")
    with pytest.raises(ValueError, match="config.json: `source_tokenizer` must have"):
        ks.load(saved)


def test_weights_with_a_flipped_bit(saved):
    path = saved / "model.weights.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match="model.weights.h5: it is damaged or not the"):
        ks.load(saved)


@pytest.mark.parametrize("length", [0, 100, -1])
def test_cut_off_weights_without_check_sum(saved, length):
    edit(saved, lambda config: config.pop("weights_sha256"))
    path = saved / "model.weights.h5"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="model.weights.h5: it is damaged, or not of"):
        ks.load(saved)


def set_key(*keys, value):
    def change(config):
        for key in keys[:-1]:
            config = config[key]
        config[keys[-1]] = value

    return change


LAMBDA = {"class_name": "Lambda", "module": "keras.layers", "config": {}}
ARGUMENTS = ("model", "config")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_key("format_version", value=2), "`format_version` must be 1; perhaps a"),
        (set_key("format_version", value=True), "`format_version` must be 1"),
        (lambda config: config.pop("format_version"), "Received: format_version=None"),
        (lambda config: config.pop("search"), r"missing are \['search'\]"),
        (set_key("hook", value="os.system"), r"unknown are \['hook'\]"),
        (set_key("model", value=[]), "`model` must have the keys"),
        (set_key("model", "class", value="Lambda"), "must be one of .*class='Lambda'"),
        (set_key("model", "class", value=["ConvS2S"]), "must be one of"),
        (set_key("model", "class", value="ConvS2S"), "it describes no ConvS2S .*unexp"),
        (set_key("model", "config", value=3), "must be an object with a `dtype`"),
        (set_key(*ARGUMENTS, "activation", value=LAMBDA), "no serialized objects"),
        (set_key(*ARGUMENTS, "mixer", value=["attention", [LAMBDA]]), "no serialized"),
        (set_key(*ARGUMENTS, "dtype", value=LAMBDA), "an object with a `dtype`"),
        (set_key(*ARGUMENTS, "dtype", value="float33"), "it describes no Encoder"),
        (set_key(*ARGUMENTS, "activation", value="exec"), "it describes no EncoderDec"),
        (set_key(*ARGUMENTS, "new", value=1), "unexpected keyword argument 'new'"),
        (set_key(*ARGUMENTS, "hidden_dim", value=-8), "it describes no .*hidden_dim"),
        (set_key(*ARGUMENTS, "hidden_dim", value=16), "weights.h5: .* not of the mod"),
        (set_key(*ARGUMENTS, "num_encoder_layers", value=2), "weights.h5: .* not of"),
        (set_key("folded", value=1), "`folded` must be true or false"),
        (set_key("search", value={"beams": 2}), "unknown search options"),
        (set_key("search", value={"num_beams": "5"}), "`num_beams` must be"),
        (set_key("search", value={"suppressed_ids": 5}), "config.json"),
        (set_key("source_tokenizer", value="../../etc"), "must be null or 'source_tok"),
        (set_key("target_tokenizer", value="/etc"), "`target_tokenizer` null, "),
        (set_key("source_tokenizer", value=None), "`target_tokenizer` null, "),
        (set_key("languages", value=["de"]), "`languages` must be two texts or nulls"),
        (set_key("weights_sha256", value=5), "model.weights.h5: it is damaged or not"),
    ],
)
def test_configurations(saved, change, words):
    edit(saved, change)
    with pytest.raises(ValueError, match=words) as caught:
        ks.load(saved)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"f": ' + b"9" * 9999],
)
def test_configurations_that_are_no_object(saved, text):
    (saved / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match="config.json"):
        ks.load(saved)


def replace_first(make):
    """What a stranger does with the first array of the file."""

    def spoil(file):
        name = next(
            name for name in all_names(file) if isinstance(file[name], h5py.Dataset)
        )
        shape = file[name].shape
        del file[name]
        make(file, name, shape)

    return spoil


def all_names(file):
    found = []
    file.visit(found.append)
    return found


@pytest.mark.parametrize(
    "make",
    {
        "missing": lambda f, n, s: None,
        "shape": lambda f, n, s: f.create_dataset(n, data=np.ones((*s, 2))),
        "text": lambda f, n, s: f.create_dataset(n, data="text"),
        "external": lambda f, n, s: f.create_dataset(
            n, s, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
        ),
        "link": lambda f, n, s: f.__setitem__(n, h5py.ExternalLink("other.h5", n)),
        "virtual": lambda f, n, s: f.create_virtual_dataset(
            n, h5py.VirtualLayout(s, "f4")
        ),
        "elsewhere": lambda f, n, s: f.create_dataset(f"x/{n}", s, "f4"),
    }.values(),
)
def test_spoilt_weights(saved, make):
    """No file is read but the one that is named; `other.h5` has what is missing."""
    shutil.copy(saved / "model.weights.h5", saved / "other.h5")
    edit(saved, lambda config: config.pop("weights_sha256"))
    with h5py.File(saved / "model.weights.h5", "r+") as file:
        replace_first(make)(file)
    with pytest.raises(ValueError, match="model.weights.h5: it is damaged, or not of"):
        ks.load(saved)
