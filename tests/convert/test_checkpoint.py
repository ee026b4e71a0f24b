"""Checkpoints of fairseq: what is in them comes out, and nothing in them runs."""

import argparse
import builtins
import collections
import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest

from keras_seqconv.convert.checkpoint import Inert, read_checkpoint

GOLDEN = [
    "ddynamic_2019", "dynamicconv_2019", "dynamicconv_no_glu", "fconv",
    "lightconv_glu", "transformer",
]  # fmt: skip
OPTIONS = argparse.Namespace(arch="lightconv", decoder_kernel_size_list=[3, 7])


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the extra convert (torch)")


@pytest.fixture(params=["zip", "legacy"])
def file_format(request):
    return request.param


@pytest.fixture
def save(torch, tmp_path, file_format):
    """Saves what torch can save, as PyTorch of today or of 2019 does."""

    def save(content):
        path = tmp_path / "checkpoint.pt"
        torch.save(content, path, _use_new_zipfile_serialization=file_format == "zip")
        return path

    return save


@pytest.fixture
def craft(torch, tmp_path, file_format):
    """Puts any pickle where a checkpoint has its content."""

    def craft(pickled):
        path = tmp_path / "checkpoint.pt"
        if file_format == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("any/data.pkl", pickled)
                archive.writestr("any/byteorder", "little")
                archive.writestr("any/version", "3\n")
        else:
            sizes = {"short": 2, "int": 4, "long": 4}
            about = dict(protocol_version=1001, little_endian=True, type_sizes=sizes)
            path.write_bytes(
                pickle.dumps(0x1950A86A20F9469CFC6C, 2)
                + pickle.dumps(1001, 2)
                + pickle.dumps(about, 2)
                + pickled
                + pickle.dumps([], 2)
            )
        return path

    return craft


def content_with(extra):
    return {"args": OPTIONS, "model": {}, "extra_state": extra}


def around(opcodes: bytes) -> bytes:
    """A checkpoint's pickle, written by hand, with a value made by these opcodes."""
    args = b"X\4\0\0\0argscargparse\nNamespace\n)\x81}b"
    model = b"X\5\0\0\0model}"
    return b"\x80\2}(" + args + model + text(b"extra_state") + opcodes + b"u."


def text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments, **more):
        self.reduced = (function, arguments, *more.values())

    def __reduce__(self):
        return self.reduced


# --- What is in them comes out ---


@pytest.mark.parametrize("folder", GOLDEN)
def test_golden_checkpoints_hold_their_arrays(torch, golden, folder, monkeypatch):
    checkpoint = read_checkpoint(golden / folder / "checkpoint.pt")
    with np.load(golden / folder / "weights.npz") as arrays:
        assert set(checkpoint.weights) == set(arrays.files)
        for name in arrays.files:
            assert checkpoint.weights[name].dtype == arrays[name].dtype
            np.testing.assert_array_equal(checkpoint.weights[name], arrays[name])
    expected = json.loads((golden / folder / "args.json").read_text())
    assert checkpoint.options == expected
    monkeypatch.setitem(sys.modules, "torch", None)
    from_arrays = read_checkpoint(golden / folder)
    assert from_arrays.options == expected
    assert from_arrays.weights.keys() == checkpoint.weights.keys()


def test_types_of_weights(torch, save):
    values = torch.tensor([[0.5, -2.0], [3.0, 0.25]])
    tied = torch.nn.Parameter(values)
    weights = read_checkpoint(
        save(
            {
                "args": OPTIONS,
                "model": collections.OrderedDict(
                    half=values.half(),
                    bfloat=values.bfloat16(),
                    double=values.double(),
                    transposed=values.t(),
                    part=values[1:, :1],
                    perm=torch.arange(3),
                    flag=torch.tensor([True]),
                    one=tied,
                    two=tied,
                    empty=torch.zeros(0),
                    scalar=torch.tensor(3.0),
                ),
            }
        )
    ).weights
    expected = np.array([[0.5, -2.0], [3.0, 0.25]], "float32")
    for name in ("half", "bfloat", "double", "one", "two"):
        assert weights[name].dtype == "float32"
        np.testing.assert_array_equal(weights[name], expected)
    np.testing.assert_array_equal(weights["transposed"], expected.T)
    np.testing.assert_array_equal(weights["part"], [[3.0]])
    assert weights["perm"].dtype == "int64" and weights["flag"].dtype == "bool"
    assert weights["empty"].shape == (0,) and weights["scalar"].shape == ()


def test_options_of_args(save):
    shared = [(512, 3), (1024, 5)]
    given = argparse.Namespace(
        lr=[0.1, 1e-3], layers=shared, again=shared, nested={"a": (1, None)}, on=True,
        what={"b"},
    )  # fmt: skip
    checkpoint = read_checkpoint(save({"args": given, "cfg": None, "model": {}}))
    assert checkpoint.options == vars(given)
    assert checkpoint.weights == {}


def configuration(model):
    return {
        "_name": None,
        "common": {"seed": 1},
        "model": model,
        "task": {"_name": "translation", "source_lang": "de", "target_lang": "en",
                 "max_source_positions": 9, "data": "/x"},
        "tokenizer": None,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [dict, argparse.Namespace])
def test_options_of_cfg(save, kind):
    """As HEAD writes them, also for models whose options are still argparse's."""
    model = {"_name": "lightconv_iwslt_de_en", "max_source_positions": 1024, "glu": 1}
    content = {"cfg": configuration(kind(**model)), "args": None, "model": {}}
    assert read_checkpoint(save(content)).options == {
        "arch": "lightconv_iwslt_de_en",
        "max_source_positions": 1024,
        "glu": 1,
        "source_lang": "de",
        "target_lang": "en",
    }


@pytest.fixture
def meters(monkeypatch):
    """Classes such as fairseq.meters had, for as long as something is pickled."""
    module = types.ModuleType("fairseq.meters")

    class AverageMeter:
        def __init__(self):
            self.sum = 3

    class Reduced:
        def __reduce__(self):
            return Reduced, (1, "two"), {"state": 3}

        def __init__(self, *arguments):
            pass

    for kind in (AverageMeter, Reduced):
        kind.__module__, kind.__qualname__ = "fairseq.meters", kind.__name__
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    return module


def test_classes_of_fairseq_become_inert(save, meters, monkeypatch):
    objects = [meters.AverageMeter(), meters.Reduced(1)]
    numbers = [np.float64(0.1), np.arange(6.0), np.dtype("f4")]
    given = argparse.Namespace(
        arch="fconv", meters=objects, kind=meters.AverageMeter, numbers=numbers
    )
    path = save({"args": given, "model": {}, "extra_state": {"train": objects}})
    for name in ("fairseq", "fairseq.meters"):
        monkeypatch.delitem(sys.modules, name)
    options = read_checkpoint(path).options
    for name in ("meters", "numbers"):
        assert [type(value) for value in options[name]] == [Inert] * len(options[name])
    assert options["arch"] == "fconv" and type(options["kind"]) is Inert
    assert not any(name.split(".")[0] == "fairseq" for name in sys.modules)


# --- Nothing in them runs ---


def dangers(marker):
    command = f"touch {marker}"
    opener = (builtins.open, str(marker), "w")
    nested = pickle.dumps(Call(os.system, command))
    return {
        "os.system": (os.system, command),
        "subprocess.Popen": (subprocess.Popen, ["touch", str(marker)]),
        "builtins.eval": (eval, f"open({str(marker)!r}, 'w')"),
        "builtins.getattr": (getattr, Call(importlib.import_module, "os"), "system"),
        "io.open": opener,
        "pickle.loads": (pickle.loads, nested),
        "torch.nn.modules.linear.Linear": ("torch.nn.modules.linear", "Linear", 2, 2),
        "torch._tensor.Tensor": ("torch._tensor", "Tensor", 3),
        "torch.storage._load_from_bytes": ("torch.storage", "_load_from_bytes", nested),
        "torch._utils._rebuild_wrapper_subclass": (
            "torch._utils", "_rebuild_wrapper_subclass", 1,
        ),
        "torch._tensor._rebuild_from_type_v2": (
            "torch._tensor", "_rebuild_from_type_v2", 1,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", dangers("x"))
def test_dangerous_globals_are_refused(craft, tmp_path, name):
    marker = tmp_path / "it ran"
    function, *arguments = dangers(marker)[name]
    if isinstance(function, str):
        function = getattr(importlib.import_module(function), arguments.pop(0))
    pickled = pickle.dumps(content_with(Call(function, *arguments)), 2)
    with pytest.raises(ValueError, match="is refused, and nothing of it") as error:
        read_checkpoint(craft(pickled))
    received = str(error.value).split("Received: ")[1].split(", ")
    function = name.rpartition(".")[2]  # modules go by other names, such as posix
    assert function in {item.rpartition(".")[2] for item in received}
    assert not marker.exists()


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5])
def test_no_pickle_protocol_gets_around_the_list(craft, tmp_path, protocol):
    marker = tmp_path / "ran"
    bad = Call(os.system, f"touch {marker}")
    # The words twice: then the second time the pickle refers to its memo.
    pickled = pickle.dumps(content_with(["posix", "system", bad]), protocol)
    words = r"Received: .*posix\.system" if protocol < 4 else "cannot be read"
    with pytest.raises(ValueError, match=words):
        read_checkpoint(craft(pickled))
    assert not marker.exists()


SHELL = text(b"touch ran") + b"\x85R"


@pytest.mark.parametrize(
    ("opcodes", "words"),
    {
        "inst": (b"(" + text(b"touch ran") + b"ios\nsystem\n", r"os\.system"),
        "obj": (b"(cos\nsystem\n" + text(b"touch ran") + b"o", r"os\.system"),
        "stack": (text(b"os") + text(b"system") + b"\x93" + SHELL, "cannot be read"),
        "extension": (b"\x82\1" + SHELL, "cannot be read"),
        "unused": (b"cos\nsystem\n", r"os\.system"),
        "thrown away": (b"cos\nsystem\n0N", r"os\.system"),
        "near fairseq": (b"cfairseqx.y\nz\n", r"fairseqx\.y\.z"),
        "not fairseq": (b"cmyfairseq.y\nz\n", r"myfairseq\.y\.z"),
        "fairseq itself": (b"c\nfairseq\n", r"\.fairseq"),
        "blank": (b"cfairseq.x os\nsystem\n", "fairseq.x.os system"),
        "omegaconf": (b"comegaconf.dictconfig\nDictConfig\n", "omegaconf"),
        "numpy function": (b"cnumpy\nload\n", r"numpy\.load"),
    }.values(),
)  # fmt: skip
def test_opcodes_by_hand(craft, tmp_path, monkeypatch, opcodes, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        read_checkpoint(craft(around(opcodes)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "opcodes",
    {
        "reduce": b"cfairseq.os\nsystem\n" + SHELL,
        "looks like a call": b"cfairseq\nos.system\n" + SHELL,
        "newobj": b"cfairseq.a.b\nC\nK\1K\2\x86\x81",
        "state": b"cfairseq.a\nC\n)\x81}" + text(b"__class__") + b"K\1sb",
        "slots": b"cfairseq.a\nC\n)\x81N}" + text(b"x") + b"K\1s\x86b",
        "any state": b"cfairseq.a\nC\n)\x81K\1b",
        "class alone": b"cfairseq.a\nC\n",
        "objects of numpy": b"cnumpy.core.multiarray\nscalar\n"
        b"cnumpy\ndtype\nX\2\0\0\0O8\x85RK\1\x86R",
        "array of nothing": b"cnumpy.core.multiarray\n_reconstruct\n)R(K\1NNNNtb",
    }.values(),
)
def test_calling_and_building_a_class_of_fairseq_does_nothing(
    craft, tmp_path, monkeypatch, opcodes
):
    monkeypatch.chdir(tmp_path)
    before = dict(vars(Inert))
    assert read_checkpoint(craft(around(opcodes))).options == {}
    assert dict(vars(Inert)) == before
    assert not (tmp_path / "ran").exists()
    assert "fairseq.os" not in sys.modules


@pytest.mark.parametrize(
    "opcodes",
    {
        "call an object": b"cfairseq.a\nC\n)R" + SHELL,
        "build a class": b"cfairseq.a\nC\n}b",
        "build a function": b"cnumpy.core.multiarray\nscalar\n}b",
        "call text": text(b"os.system") + SHELL,
        "namespace called": b"cargparse\nNamespace\nK\1\x85R",
        "storage as code": b"ctorch._utils\n_rebuild_tensor_v2\n("
        + b"NK\0)N)N"
        + b"tR",
        "persistent module": b"(" + text(b"module") + b"cfairseq.a\nC\nNNtQ",
        "persistent text": b"Pos.system\n",
        "persistent number": b"K\1Q",
        "empty stack": b"00000",
    }.values(),
)
def test_confused_types_are_clear_errors(craft, opcodes):
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read: "):
        read_checkpoint(craft(around(opcodes)))


def test_only_what_is_allowed_here_is_allowed(torch, save, monkeypatch):
    """Neither what a user allowed torch before, nor the environment widens it."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = save({"args": argparse.Namespace(when=io.BytesIO), "model": {}})
    with torch.serialization.safe_globals([io.BytesIO, argparse.Namespace]):
        before = set(torch.serialization.get_safe_globals())
        with pytest.raises(ValueError, match="BytesIO"):
            read_checkpoint(path)
        path = save({"args": argparse.Namespace(arch="x"), "model": {}})
        assert read_checkpoint(path).options == {"arch": "x"}
        assert set(torch.serialization.get_safe_globals()) == before


# --- Damage ---


def small(torch):
    model = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)}
    return {"args": OPTIONS, "model": model}


def test_cut_off_files(torch, save):
    path = save(small(torch))
    content = path.read_bytes()
    assert set(read_checkpoint(path).weights) == {"a.weight", "b"}
    for size in [*range(1, 60, 7), *range(60, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read: "):
            read_checkpoint(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint.pt"]


def test_changed_weight_in_an_archive(torch, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(small(torch), path)
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(6, dtype="float32").tobytes()) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its check sum"):
        read_checkpoint(path)


def test_flipped_bytes_never_escape_as_another_error(torch, save):
    path = save(small(torch))
    content = path.read_bytes()
    for position in range(0, min(len(content), 1400), 11):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            checkpoint = read_checkpoint(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert isinstance(checkpoint.options, dict)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"args": OPTIONS}, 'no "model"'),
        ({"args": OPTIONS, "model": [1]}, 'no "model"'),
        ({"model": {}}, 'neither "args" nor "cfg"'),
        ({"args": None, "cfg": None, "model": {}}, 'neither "args" nor "cfg"'),
        ({"args": [1], "model": {}}, '"args" is neither a Namespace nor a dict'),
        ({"cfg": {"task": {}}, "model": {}}, '"cfg" has no "model"'),
        ({"cfg": {"model": 3}, "model": {}}, '"cfg.model" is neither'),
        ({"args": OPTIONS, "model": {"w": [1.0]}}, r"under \['w'\] is not a tensor"),
        ([OPTIONS], "a list instead of a dict"),
    ],
)
def test_other_things_that_torch_saved(save, content, words):
    with pytest.raises(ValueError, match=words):
        read_checkpoint(save(content))


def test_paths_that_are_no_checkpoint(torch, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        read_checkpoint(tmp_path / "none.pt")
    with pytest.raises(FileNotFoundError, match=r"weights\.npz"):
        read_checkpoint(tmp_path)
    path = tmp_path / "checkpoint.pt"
    archive = io.BytesIO()
    np.savez(archive, a=np.ones(2))
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as records, pytest.warns(UserWarning):
        for _ in range(2):
            records.writestr("a/data.pkl", pickle.dumps({}, 2))
    for content, words in [
        (b"", "it is empty"),
        (b"Just text.\n", "cannot be read"),
        (b"PK\3\4 and no more", "cannot be read"),
        (bytes(500), "cannot be read"),
        (pickle.dumps({"model": {}}, 2), "cannot be read"),
        (pickle.dumps(Call(os.system, "true"), 0), "cannot be read"),
        (archive.getvalue(), "with 0 records data.pkl"),
        (twice.getvalue(), "with 2 records data.pkl"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read_checkpoint(path)


def test_missing_torch_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "checkpoint.pt").write_bytes(b"something")
    with pytest.raises(ImportError, match=r"pip install 'keras-seqconv\[convert\]'"):
        read_checkpoint(tmp_path / "checkpoint.pt")


def test_torch_that_executes_more_than_weights(torch, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1+cpu"))
    (tmp_path / "checkpoint.pt").write_bytes(b"something")
    with pytest.raises(ImportError, match=r"torch 2\.6 or newer: .*2\.5\.1"):
        read_checkpoint(tmp_path / "checkpoint.pt")


# --- Arrays ---


def write_arrays(folder, options="{}", **weights):
    np.savez(folder / "weights.npz", **weights)
    (folder / "args.json").write_text(options)
    return folder


def test_types_of_arrays(tmp_path):
    folder = write_arrays(
        tmp_path, '{"arch": "fconv"}', half=np.ones(2, "float16"),
        double=np.full(2, 0.5), perm=np.arange(3),
    )  # fmt: skip
    checkpoint = read_checkpoint(folder)
    assert checkpoint.options == {"arch": "fconv"}
    assert checkpoint.weights["half"].dtype == "float32"
    np.testing.assert_array_equal(checkpoint.weights["double"], np.float32([0.5, 0.5]))
    assert checkpoint.weights["perm"].dtype == "int64"


def test_arrays_with_pickles_are_refused(tmp_path):
    marker = tmp_path / "ran"
    bad = np.array([Call(os.system, f"touch {marker}")], dtype=object)
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(write_arrays(tmp_path, w=bad))
    assert not marker.exists()


def test_damaged_arrays(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights\.npz"):
        read_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"args\.json cannot be read"):
        read_checkpoint(write_arrays(tmp_path, "{", w=np.ones(2)))
    with pytest.raises(ValueError, match=r"args\.json cannot be read"):
        read_checkpoint(write_arrays(tmp_path, "[" * 10**5, w=np.ones(2)))
    with pytest.raises(ValueError, match="no JSON object"):
        read_checkpoint(write_arrays(tmp_path, "[1]", w=np.ones(2)))
    with pytest.raises(ValueError, match="numbers of the type complex128"):
        read_checkpoint(write_arrays(tmp_path, w=np.ones(2, complex)))
    (tmp_path / "args.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"args\.json"):
        read_checkpoint(tmp_path)
    file = write_arrays(tmp_path, w=np.ones(99)) / "weights.npz"
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"weights\.npz cannot be read"):
        read_checkpoint(tmp_path)
