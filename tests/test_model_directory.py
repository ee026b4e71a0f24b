"""Model directories: what is saved comes back, and nothing else does any harm."""

import dataclasses
import functools
import json
import shutil
import warnings

import h5py
import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.decoding import BeamOptions
from keras_seqconv.tokenizers import DictionaryTokenizer
from keras_seqconv.translation import model_directory
from tests.small_models import SMALL, SMALL_LM, TOKENIZER, make_translator

CONVOLUTIONS = dict(embedding_dim=8, convolutions="[(8, 3)] * 2 + [(12, 1)]")
MODELS = {
    "EncoderDecoder": functools.partial(ks.models.EncoderDecoder, 30, 30, **SMALL),
    "ConvS2S": functools.partial(
        ks.models.ConvS2S, 30, 30, **CONVOLUTIONS, output_dim=8, max_length=32
    ),
    "LanguageModel": functools.partial(
        ks.models.LanguageModel, 30, **SMALL_LM, adaptive_softmax={"cutoffs": [8]},
        adaptive_input={"cutoffs": [8]}, tie_adaptive_weights=True,
    ),
    "ConvLanguageModel": functools.partial(
        ks.models.ConvLanguageModel, 30, **CONVOLUTIONS
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


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "model"
    ks.Translator(MODELS["EncoderDecoder"](), TOKENIZER, TOKENIZER).save(folder)
    return folder


@pytest.fixture
def saved(written, tmp_path):
    """A folder that each test may spoil."""
    return shutil.copytree(written, tmp_path / "model")


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


# --- What is saved comes back ---


# Of each class one, of each dtype one; weight normalization is folded in float32.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("EncoderDecoder", "mixed_bfloat16"), ("LanguageModel", "bfloat16"),
     ("ConvS2S", "float32"), ("ConvLanguageModel", "bfloat16")],
)  # fmt: skip
def test_round_trip(name, dtype, tmp_path):
    model = MODELS[name](dtype=dtype, name="mine")
    for weight in model.weights:  # none as it was initialized
        weight.assign(weight + 0.02)
    folded = hasattr(model, "fold") and dtype == "float32"
    if folded:
        model.fold()
        assert len(model.weights) < len(MODELS[name]().weights)
    owner_of(model).save(tmp_path / "model")
    loaded = ks.load(tmp_path / "model").model
    assert type(loaded) is type(model) and loaded.name == "mine"
    assert loaded.get_config() == model.get_config()
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_array_equal(outputs_of(loaded), outputs_of(model))
    dtype = "mixed_bfloat16" if dtype == "float32" else "float32"
    other = ks.load(tmp_path / "model", dtype=dtype).model
    assert other.get_config()["dtype"] == dtype
    with pytest.raises(ValueError, match="`dtype` must be the name .*dtype='foo'"):
        ks.load(tmp_path / "model", dtype="foo", runtime="keras")
    outputs, expected = outputs_of(other), outputs_of(model)
    assert abs(outputs - expected).max() < 0.1 * abs(expected).max()


def test_tokenizers_and_search_options(tmp_path):
    search = {"num_beams": 2, "suppressed_ids": (4, 5), "length_penalty": 0.6}
    lower = DictionaryTokenizer(TOKENIZER.dictionary, lowercase=True)
    model = MODELS["EncoderDecoder"]()
    ks.Translator(model, lower, TOKENIZER, search).save(tmp_path / "two")
    loaded = ks.load(tmp_path / "two")
    assert loaded.source_tokenizer.lowercase and not loaded.target_tokenizer.lowercase
    assert loaded.search == BeamOptions(**search)
    kept = json.loads((tmp_path / "two" / "config.json").read_text())["search"]
    names = [field.name for field in dataclasses.fields(BeamOptions)]
    of_a_call = ("num_hypotheses", "return_attention")
    assert [*kept] == [name for name in names if name not in of_a_call]
    with pytest.raises(ValueError, match="`num_hypotheses` must not be an option"):
        ks.Translator(model, lower, TOKENIZER, BeamOptions(num_hypotheses=2))
    ks.Translator(model, TOKENIZER, TOKENIZER).save(tmp_path / "one")
    assert not (tmp_path / "one" / "target_tokenizer").exists()
    shared = ks.load(tmp_path / "one")
    assert shared.source_tokenizer is shared.target_tokenizer
    generator = ks.LanguageGenerator(MODELS["LanguageModel"](), lower, search)
    generator.save(tmp_path / "language")
    loaded = ks.load(tmp_path / "language")
    assert isinstance(loaded, ks.LanguageGenerator) and loaded.tokenizer.lowercase
    assert not (tmp_path / "language" / "source_tokenizer").exists()
    assert loaded.search == generator.search
    # Directories of versions that knew no languages.
    edit(tmp_path / "one", lambda config: config.pop("languages"))
    assert ks.load(tmp_path / "one").source_language is None


# --- Writing ---


def test_what_is_there_is_kept(saved):
    translator = ks.load(saved)
    before = (saved / "config.json").read_bytes()
    with pytest.raises(ValueError, match="`overwrite` replaces a saved model"):
        translator.save(saved)
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be empty.*It holds: .*notes.txt"):
        translator.save(saved, overwrite=True)
    assert (saved / "config.json").read_bytes() == before
    (saved / "notes.txt").unlink()
    other = ks.Translator(translator.model, search={"num_beams": 3})
    other.save(saved, overwrite=True)
    assert ks.load(saved).search.num_beams == 3
    assert not (saved / "source_tokenizer").exists()
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


# --- Reading what is damaged, or what strangers wrote ---


def test_files_that_are_cut_off(saved):
    """With and without the check sum of the weights; or one bit is wrong."""
    for path in [path for path in saved.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        lengths = {0, 1, len(content) // 3, len(content) - 2}
        if path.name == "dict.txt":  # every beginning of it is one, of another size
            lengths = {0, len(content) - 5}
        for length in lengths:
            path.write_bytes(content[:length])
            with pytest.raises(ValueError, match=str(saved)):
                ks.load(saved)
        path.write_bytes(content)
    config = (saved / "config.json").read_bytes()
    for text in (b"[]", b"\xff", b"[" * 100_000, b"[" + b" " * 2**25):
        (saved / "config.json").write_bytes(text)
        with pytest.raises(ValueError, match="config.json must"):
            ks.load(saved)
    (saved / "config.json").write_bytes(config)
    weights = saved / "model.weights.h5"
    content = weights.read_bytes()
    weights.write_bytes(content[:5000] + bytes([content[5000] ^ 4]) + content[5001:])
    with pytest.raises(ValueError, match="model.weights.h5 is damaged or not the file"):
        ks.load(saved)
    edit(saved, lambda config: config.pop("weights_sha256"))
    for length in (0, 100, -1):
        weights.write_bytes(content[:length])
        with pytest.raises(ValueError, match="weights.h5 is damaged, or not of the mo"):
            ks.load(saved)


LAMBDA = {"class_name": "Lambda", "module": "keras.layers", "config": {}}
ARGUMENTS = ("model", "config")


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (["format_version"], 2, "format_version must be 1; perhaps a"),
        (["search"], ..., r"missing are \['search'\]"),
        (["search"], {"num_beams": "5"}, "`num_beams` must be"),
        (["model", "class"], "Lambda", "must be one of .*'Lambda'"),
        (["model", "class"], "ConvS2S", "describes no model .*unexp"),
        ([*ARGUMENTS, "activation"], LAMBDA, "no serialized objects"),
        ([*ARGUMENTS, "mixer"], ["attention", [LAMBDA]], "no serialized"),
        ([*ARGUMENTS, "dtype"], LAMBDA, "no serialized objects"),
        ([*ARGUMENTS, "hidden_dim"], 16, "weights.h5 .* not of the mod"),
        ([*ARGUMENTS, "hidden_dim"], 2**20, "describes far more than the weights"),
        ([*ARGUMENTS, "target_vocabulary_size"], 10**9, "describes far more"),
        ([*ARGUMENTS, "kernel_sizes"], [10**9], "describes far more"),
        ([*ARGUMENTS, "num_decoder_layers"], 10**9, "`num_decoder_layers` .* at most"),
        ([*ARGUMENTS, "changes"], {"quantized": {"999": "int8"}}, "describes no model"),
        ([*ARGUMENTS, "changes"], {"frozen": [10**9]}, "describes no model"),
        (["source_tokenizer"], "../../etc", "names wrong tokenizers"),
    ],
)
def test_configurations(saved, keys, value, words):
    def change(config):
        *others, last = keys
        for key in others:
            config = config[key]
        config[last] = value
        if value is ...:
            del config[last]

    edit(saved, change)
    with (
        warnings.catch_warnings(record=True) as said,
        pytest.raises(ValueError, match=words) as caught,
    ):
        warnings.simplefilter("always")  # here they are errors
        ks.load(saved)
    assert not [one for one in said if one.category is UserWarning]
    assert str(saved) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda f, n, s: None,  # missing
        lambda f, n, s: f.create_dataset(n, data=np.ones((*s, 2))),
        lambda f, n, s: f.create_dataset(
            n, s, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
        ),
        lambda f, n, s: f.__setitem__(n, h5py.ExternalLink("other.h5", n)),
        lambda f, n, s: f.create_virtual_dataset(n, h5py.VirtualLayout(s, "f4")),
    ],
)
def test_spoilt_weights(saved, make):
    """No file is read but the one that is named; `other.h5` has what is missing."""
    shutil.copy(saved / "model.weights.h5", saved / "other.h5")
    edit(saved, lambda config: config.pop("weights_sha256"))
    with h5py.File(saved / "model.weights.h5", "r+") as file:
        # What a stranger does with the first array of the file.
        names = []
        file.visit(names.append)
        name = next(name for name in names if isinstance(file[name], h5py.Dataset))
        shape = file[name].shape
        del file[name]
        make(file, name, shape)
    with pytest.raises(ValueError, match="model.weights.h5 is damaged, or not of"):
        ks.load(saved)


def test_weights_that_get_larger_when_they_are_read(saved):
    edit(saved, lambda config: config.pop("weights_sha256"))
    with h5py.File(saved / "model.weights.h5", "r+") as file:
        file.create_dataset("more", (2**20, 2**7), "f4", compression="gzip")
    with pytest.raises(ValueError, match="it has .* bytes, and arrays of 536"):
        ks.load(saved)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_graphs_go_to_the_folder_of_a_link(tmp_path):
    """Which may be in another file system, to which nothing can be renamed."""
    real, link = tmp_path / "disk" / "model", tmp_path / "link"
    real.parent.mkdir()
    make_translator().save(real)
    link.symlink_to(real)
    model_directory.write_model_graphs(link)
    assert (real / model_directory.GRAPHS).is_dir()


def test_only_what_loads_is_saved(tmp_path):
    class Mine(ks.models.EncoderDecoder):
        pass

    quantized = MODELS["EncoderDecoder"]()
    weights_only = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    quantized.vocabulary_map.dense.quantize(config=weights_only)
    for model, words in (
        (quantized, "no serialized objects, such as .*quantizers"),
        (Mine(30, 30, **SMALL), "one of the classes .*Received: Mine"),
        (ks.decoding.Ensemble([quantized] * 2), "one of the classes .*: Ensemble"),
    ):
        with pytest.raises(ValueError, match=words):
            ks.Translator(model).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_missing_files(saved, tmp_path):
    for path in (tmp_path / "nowhere", saved / "config.json"):
        with pytest.raises(FileNotFoundError, match="There is no folder .*"):
            ks.load(path)
    for name in (
        "source_tokenizer/dict.txt", "source_tokenizer/settings.json",
        "model.weights.h5", "config.json",
    ):  # fmt: skip
        (saved / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"model/{name}"):
            ks.load(saved)
