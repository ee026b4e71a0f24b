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

from keras_seqconv.convert.checkpoint import Inert, read_arrays, read_checkpoint

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

    def craft(pickled, records=(), keys=()):
        path = tmp_path / "checkpoint.pt"
        if file_format == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("any/data.pkl", pickled)
                archive.writestr("any/byteorder", "little")
                archive.writestr("any/version", "3\n")
                for name, data in dict(records).items():
                    archive.writestr(f"any/{name}", data)
        else:
            sizes = {"short": 2, "int": 4, "long": 4}
            about = dict(protocol_version=1001, little_endian=True, type_sizes=sizes)
            path.write_bytes(
                pickle.dumps(0x1950A86A20F9469CFC6C, 2)
                + pickle.dumps(1001, 2)
                + pickle.dumps(about, 2)
                + pickled
                + pickle.dumps(list(keys), 2)
            )
        return path

    return craft


def content_with(extra):
    return {"args": OPTIONS, "model": {}, "extra_state": extra}


def around(opcodes: bytes, inside=b"extra_state") -> bytes:
    """A checkpoint's pickle, written by hand, with a value made by these opcodes."""
    args = b"X\4\0\0\0argscargparse\nNamespace\n)\x81}b"
    model = b"X\5\0\0\0model}"
    return b"\x80\2}(" + args + model + text(inside) + opcodes + b"u."


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
def test_golden_checkpoints_hold_their_arrays(torch, golden, folder):
    checkpoint = read_checkpoint(golden / folder / "checkpoint.pt")
    with np.load(golden / folder / "weights.npz") as arrays:
        assert set(checkpoint.weights) == set(arrays.files)
        for name in arrays.files:
            assert checkpoint.weights[name].dtype == arrays[name].dtype
            np.testing.assert_array_equal(checkpoint.weights[name], arrays[name])
    expected = json.loads((golden / folder / "args.json").read_text())
    assert checkpoint.options == expected
    legacy = folder == "dynamicconv_2019"
    assert checkpoint.file_format == ("legacy" if legacy else "zip")


@pytest.mark.parametrize("folder", GOLDEN)
def test_arrays_need_no_torch(golden, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    checkpoint = read_arrays(golden / folder)
    with np.load(golden / folder / "weights.npz") as arrays:
        assert checkpoint.weights.keys() == set(arrays.files)
        for name, weight in checkpoint.weights.items():
            np.testing.assert_array_equal(weight, arrays[name])
    assert checkpoint.options["arch"] in ("lightconv", "fconv", "transformer")
    again = read_arrays(golden / folder / "weights.npz", golden / folder / "args.json")
    assert again.options == checkpoint.options


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
                 "left_pad_source": True, "max_source_positions": 9, "data": "/x"},
        "criterion": {"_name": "label_smoothed_cross_entropy"},
        "bpe": {"_name": "subword_nmt"},
        "tokenizer": None,
    }  # fmt: skip


@pytest.mark.parametrize("with_args", [False, True])
def test_options_of_cfg(save, with_args):
    model = {"_name": "lightconv_iwslt_de_en", "max_source_positions": 1024, "glu": 1}
    content = {"cfg": configuration(model), "model": {}}
    checkpoint = read_checkpoint(save(content | ({"args": None} if with_args else {})))
    assert checkpoint.options == {
        "arch": "lightconv_iwslt_de_en",
        "max_source_positions": 1024,  # the model's own, not the task's
        "glu": 1,
        "source_lang": "de",
        "target_lang": "en",
        "left_pad_source": True,
        "task": "translation",
        "criterion": "label_smoothed_cross_entropy",
        "bpe": "subword_nmt",
    }


def test_cfg_that_keeps_a_namespace(save):
    """As HEAD writes for models whose options are still argparse's."""
    model = argparse.Namespace(arch="fconv", source_lang="fr", dropout=0.1)
    options = read_checkpoint(save({"cfg": configuration(model), "model": {}})).options
    assert (options["arch"], options["source_lang"]) == ("fconv", "fr")
    assert (options["target_lang"], options["dropout"]) == ("en", 0.1)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_numpy_values_under_both_names(craft, module):
    given = argparse.Namespace(
        float=np.float64(0.1), int=np.int32(-7), bool=np.bool_(True),
        half=np.float16(2), big=np.array(3, ">i4")[()], text=np.str_("é"),
        array=np.arange(6.0).reshape(2, 3),
        columns=np.asfortranarray(np.arange(6).reshape(2, 3)), dtype=np.dtype("f4"),
    )  # fmt: skip
    pickled = pickle.dumps({"args": given, "model": {}}, 2)
    assert b"numpy._core.multiarray\n" in pickled
    pickled = pickled.replace(b"numpy._core.multiarray\n", module.encode() + b"\n")
    options = read_checkpoint(craft(pickled)).options
    for name in ("float", "int", "bool", "half", "big", "text"):
        assert options[name] == getattr(given, name)
        assert type(options[name]) in (float, int, bool, str)
    np.testing.assert_array_equal(options["array"], given.array)
    np.testing.assert_array_equal(options["columns"], given.columns)
    assert type(options["dtype"]) is Inert


@pytest.fixture
def meters(monkeypatch):
    """Classes such as fairseq.meters had, for as long as something is pickled."""
    module = types.ModuleType("fairseq.meters")

    class AverageMeter:
        def __init__(self):
            self.sum = 3

    class Slots:
        __slots__ = ("sum",)

        def __init__(self):
            self.sum = 4

    class Reduced:
        def __reduce__(self):
            return Reduced, (1, "two"), {"state": 3}

        def __init__(self, *arguments):
            pass

    for kind in (AverageMeter, Slots, Reduced):
        kind.__module__, kind.__qualname__ = "fairseq.meters", kind.__name__
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    return module


def test_classes_of_fairseq_become_inert(save, meters, monkeypatch):
    objects = [meters.AverageMeter(), meters.Slots(), meters.Reduced(1)]
    given = argparse.Namespace(arch="fconv", meters=objects, kind=meters.AverageMeter)
    path = save({"args": given, "model": {}, "extra_state": {"train": objects}})
    for name in ("fairseq", "fairseq.meters"):
        monkeypatch.delitem(sys.modules, name)
    options = read_checkpoint(path).options
    assert [type(value) for value in options["meters"]] == [Inert] * 3
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
        "builtins.exec": (exec, f"open({str(marker)!r}, 'w')"),
        "builtins.getattr": (getattr, Call(importlib.import_module, "os"), "system"),
        "io.open": opener,
        "pickle.loads": (pickle.loads, nested),
        "numpy.load": (np.load, str(marker)),
        "builtins.bytearray": (bytearray, 10),
        "torch.nn.modules.linear.Linear": ("torch.nn.modules.linear", "Linear", 2, 2),
        "torch.hub.load": ("torch.hub", "load", "x/y", "z"),
        "torch._tensor.Tensor": ("torch._tensor", "Tensor", 3),
        "torch.serialization.load": ("torch.serialization", "load", "x"),
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


def test_all_refused_globals_are_named_at_once(craft):
    calls = [
        Call(os.system, "true"),
        Call(eval, "1"),
        Call(subprocess.run, "x"),
        OPTIONS,
    ]
    pickled = pickle.dumps(content_with(calls), 2)
    with pytest.raises(ValueError) as error:
        read_checkpoint(craft(pickled))
    assert str(error.value).endswith(
        "Received: __builtin__.eval, commands.run, posix.system"  # as in the file
    )


@pytest.mark.parametrize(
    "protocol", [0, 1, 3, 4, 5], ids=lambda protocol: f"protocol{protocol}"
)
def test_no_pickle_protocol_gets_around_the_list(craft, tmp_path, protocol):
    marker = tmp_path / "ran"
    bad = Call(os.system, f"touch {marker}")
    # The words twice: then the second time the pickle refers to its memo.
    pickled = pickle.dumps(content_with(["posix", "system", bad]), protocol)
    words = r"Received: .*posix\.system" if protocol < 2 else f"protocol {protocol}"
    with pytest.raises(ValueError, match=words):
        read_checkpoint(craft(pickled))
    assert not marker.exists()


SHELL = text(b"touch ran") + b"\x85R"


@pytest.mark.parametrize(
    ("opcodes", "words"),
    {
        "inst": (b"(" + text(b"touch ran") + b"ios\nsystem\n", "operand 105"),
        "obj": (b"(cos\nsystem\n" + text(b"touch ran") + b"o", r"os\.system"),
        "stack": (text(b"os") + text(b"system") + b"\x93" + SHELL, "no global"),
        "extension": (b"\x82\1" + SHELL, "no global"),
        "unused": (b"cos\nsystem\n", r"os\.system"),
        "thrown away": (b"cos\nsystem\n0N", r"os\.system"),
        "near fairseq": (b"cfairseqx.y\nz\n", r"fairseqx\.y\.z"),
        "not fairseq": (b"cmyfairseq.y\nz\n", r"myfairseq\.y\.z"),
        "fairseq itself": (b"c\nfairseq\n", r"\.fairseq"),
        "blank": (b"cfairseq.x os\nsystem\n", "fairseq.x.os system"),
        "omegaconf": (b"comegaconf.dictconfig\nDictConfig\n", "omegaconf"),
        "numpy function": (b"cnumpy\nload\n", r"numpy\.load"),
        "not dtypes": (b"cnumpy.dtypes.x\ny\n", r"numpy\.dtypes\.x\.y"),
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
        "namespace of a list": b"cargparse\nNamespace\n)\x81]b",
        "namespace of slots": b"cargparse\nNamespace\n)\x81N}X\1\0\0\0xK\1s\x86b",
        "namespace called": b"cargparse\nNamespace\nK\1\x85R",
        "dtype of objects": b"cnumpy.core.multiarray\nscalar\n"
        b"cnumpy\ndtype\nX\2\0\0\0O8\x85RK\1\x86R",
        "scalar of nothing": b"cnumpy.core.multiarray\nscalar\nNN\x86R",
        "array of nothing": b"cnumpy.core.multiarray\n_reconstruct\n)R(K\1NNNNtb",
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


def test_torch_is_asked_for_weights_only(torch, save, monkeypatch):
    asked = []
    load = torch.load
    monkeypatch.setattr(
        torch,
        "load",
        lambda *args, **kwargs: asked.append(kwargs) or load(*args, **kwargs),
    )
    read_checkpoint(save(content_with(None)))
    assert [call["weights_only"] for call in asked] == [True]


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


TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage")
    + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + b"K\4%stQK\0K%s\x85K%s"
    + b"\x85\x89ccollections\nOrderedDict\n)RtR"
)  # fmt: skip


def tensor(file_format, size=b"\4", stride=b"\1"):
    view = b"N" if file_format == "legacy" else b""
    return b"X\5\0\0\0model}" + text(b"w") + TENSOR % (view, size, stride) + b"s"


def with_tensor(file_format, **layout):
    args = b"X\4\0\0\0argscargparse\nNamespace\n)\x81}b"
    return b"\x80\2}(" + args + tensor(file_format, **layout) + b"u."


def store(path, file_format, values):
    if file_format == "legacy":
        with open(path, "ab") as stream:
            stream.write(len(values).to_bytes(8, "little") + values.tobytes())


def test_other_protocols_are_named(craft):
    pickled = pickle.dumps({"args": OPTIONS, "model": {}}, 4)
    with pytest.raises(ValueError, match="pickle protocol 4, PyTorch writes 2"):
        read_checkpoint(craft(pickled))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({}, None),
        ({"size": b"\xff"}, "cannot be read"),  # more than is stored
        ({"size": b"\xff", "stride": b"\0"}, "claim more bytes"),  # one for all
    ],
)
def test_tensor_and_storage_disagree(craft, file_format, layout, words):
    values = np.arange(4, dtype="float32")
    pickled = with_tensor(file_format, **layout)
    path = craft(pickled, {"data/0": values.tobytes()}, ["0"])
    store(path, file_format, values)
    if words is None:
        np.testing.assert_array_equal(read_checkpoint(path).weights["w"], values)
    else:
        with pytest.raises(ValueError, match=words):
            read_checkpoint(path)


def test_storage_that_is_missing(craft, file_format):
    """In the old format torch would hand out memory that no one wrote."""
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(craft(with_tensor(file_format)))


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


def test_weights_without_a_name_or_of_odd_types(torch, save):
    with pytest.raises(ValueError, match=r"under \[3\] is not a tensor"):
        read_checkpoint(save({"args": OPTIONS, "model": {3: torch.ones(1)}}))


def test_options_that_hold_themselves(save):
    circle = [1]
    circle.append(circle)
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(save({"args": argparse.Namespace(a=circle), "model": {}}))


# Each of 60 values holds the one before twice: hashed or written out, 2 ** 60 values.
_TUPLES = b"(K\1\x85q\0" + b"".join(
    b"h%ch%c\x86q%c" % (level, level, level + 1) for level in range(60)
)
# The same, filled from the last to the first.
_LISTS = b"(" + b"".join(b"]q%c" % level for level in range(61))
_LISTS += b"".join(
    b"h%c(h%ch%ce" % (level + 1, level, level) for level in reversed(range(60))
)
_LAST = b"h\x3c"


@pytest.mark.parametrize(
    ("name", "opcodes"),
    [
        (b"model", b"}" + _TUPLES + b"tK\1s"),
        (b"extra_state", b"c__builtin__\nset\n" + _TUPLES + b"t\x85R"),
        (b"extra_state", _LISTS + _LAST + b")Rt"),  # torch names what is called
        (
            b"extra_state",
            _LISTS + b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n" + _LAST
            + b"\x85Rc_codecs\nencode\n" + text(b"x") + b"\x85R\x86Rt",
        ),
        (b"args", b"}" + text(b"dropout") + _LISTS + b"ts"),
        # What is copied, 10 ** 5 times 10 ** 5
        (
            b"extra_state",
            b"(](" + b"N" * 10**5 + b"eq\0"
            + b"c__builtin__\nset\nh\0\x85R" * 10**5 + b"t",
        ),
    ],
    ids=["key", "set", "call", "dtype", "option", "copies"],
)  # fmt: skip
def test_few_bytes_that_make_very_much(craft, name, opcodes):
    with pytest.raises(ValueError, match="cannot be read|is neither") as error:
        read_checkpoint(craft(around(opcodes, inside=name)))
    assert len(str(error.value)) < 1000


def test_names_of_one_storage(torch, save):
    half = torch.ones(2**16).half()
    model = {f"w{number}": half for number in range(100)}
    weights = read_checkpoint(save({"args": OPTIONS, "model": model})).weights
    assert len({id(array) for array in weights.values()}) == 1
    assert weights["w99"].dtype == "float32" and weights["w99"].shape == (2**16,)
    model = {f"w{number}": half[number:] for number in range(100)}
    with pytest.raises(ValueError, match="its tensors claim more bytes than it has"):
        read_checkpoint(save({"args": OPTIONS, "model": model}))


def test_archives_that_torch_does_not_write(torch, tmp_path):
    path = tmp_path / "checkpoint.pt"
    bad = pickle.dumps(content_with(Call(os.system, "true")), 2)
    good = pickle.dumps({"args": {}, "model": {}}, 2)
    for name, compression, words in [
        ("a/DATA.PKL", zipfile.ZIP_STORED, "the same name"),
        ("a/data/0", zipfile.ZIP_DEFLATED, "a record is compressed"),
    ]:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, bad, compression)
            archive.writestr("a/data.pkl", good)
        with pytest.raises(ValueError, match=words):
            read_checkpoint(path)


def test_paths_that_are_no_checkpoint(torch, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        read_checkpoint(tmp_path / "none.pt")
    with pytest.raises(ValueError, match="it is not a file"):
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
        (pickle.dumps(Call(os.system, "true"), 0), r"is refused.*posix\.system"),
        (archive.getvalue(), "with 0 records data.pkl"),
        (twice.getvalue(), "the same name"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read_checkpoint(path)


def test_script_archive_is_refused(torch, tmp_path):
    path = tmp_path / "checkpoint.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"args": {}, "model": {}}, 2))
        archive.writestr("a/version", "3\n")
        archive.writestr("a/constants.pkl", pickle.dumps((), 2))
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="cannot be read"):
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
    checkpoint = read_arrays(folder)
    assert checkpoint.options == {"arch": "fconv"}
    assert checkpoint.weights["half"].dtype == "float32"
    np.testing.assert_array_equal(checkpoint.weights["double"], np.float32([0.5, 0.5]))
    assert checkpoint.weights["perm"].dtype == "int64"


def test_arrays_with_pickles_are_refused(tmp_path):
    marker = tmp_path / "ran"
    bad = np.array([Call(os.system, f"touch {marker}")], dtype=object)
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(write_arrays(tmp_path, w=bad))
    assert not marker.exists()


def test_damaged_arrays(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights\.npz"):
        read_arrays(tmp_path)
    with pytest.raises(ValueError, match=r"args\.json cannot be read"):
        read_arrays(write_arrays(tmp_path, "{", w=np.ones(2)))
    with pytest.raises(ValueError, match=r"args\.json cannot be read"):
        read_arrays(write_arrays(tmp_path, "[" * 10**5, w=np.ones(2)))
    with pytest.raises(ValueError, match="no JSON object"):
        read_arrays(write_arrays(tmp_path, "[1]", w=np.ones(2)))
    with pytest.raises(ValueError, match="numbers of the type complex128"):
        read_arrays(write_arrays(tmp_path, w=np.ones(2, complex)))
    np.savez_compressed(write_arrays(tmp_path) / "weights.npz", w=np.zeros(10**6))
    with pytest.raises(ValueError, match="compressed too well"):
        read_arrays(tmp_path)
    (tmp_path / "args.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"args\.json"):
        read_arrays(tmp_path)
    file = write_arrays(tmp_path, w=np.ones(99)) / "weights.npz"
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"weights\.npz cannot be read"):
        read_arrays(tmp_path)
