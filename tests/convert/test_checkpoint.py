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

from keras_seqconv.convert.checkpoint import Inert, _globals_of, read_checkpoint
from tests.conftest import MODELS

OPTIONS = argparse.Namespace(arch="lightconv", decoder_kernel_size_list=[3, 7])


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the extra convert (torch)")


@pytest.fixture(params=["zip", "legacy"])
def save(torch, tmp_path, request):
    """Saves what torch can save, as PyTorch of today or of 2019 does.

    Bytes are a pickle, put where a checkpoint has its content.
    """

    def save(content):
        path, new = tmp_path / "checkpoint.pt", request.param == "zip"
        if isinstance(content, bytes):
            path.write_bytes((zipped if new else legacy)(content))
        else:
            torch.save(content, path, _use_new_zipfile_serialization=new)
        return path

    return save


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("any/data.pkl", content)
        archive.writestr("any/byteorder", "little")
        archive.writestr("any/version", "3\n")
    return file.getvalue()


def legacy(content: bytes) -> bytes:
    sizes = {"short": 2, "int": 4, "long": 4}
    about = dict(protocol_version=1001, little_endian=True, type_sizes=sizes)
    start = (pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, about))
    return b"".join([*start, content, pickle.dumps([], 2)])


def around(opcodes: bytes) -> bytes:
    """A checkpoint's pickle, written by hand, with a value made by these opcodes."""
    args = b"X\4\0\0\0argscargparse\nNamespace\n)\x81}b"
    model = b"X\5\0\0\0model}"
    return b"\x80\2}(" + args + model + text(b"extra_state") + opcodes + b"u."


def text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


# --- What is in them comes out ---


@pytest.mark.parametrize("folder", MODELS)
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
    with pytest.raises(ImportError, match=r"pip install 'keras-seqconv\[convert\]'"):
        read_checkpoint(golden / folder / "checkpoint.pt")


def test_types_of_weights(torch, save):
    values = torch.tensor([[0.5, -2.0], [3.0, 0.25]])
    tied = torch.nn.Parameter(values)
    model = collections.OrderedDict(
        half=values.half(), bfloat=values.bfloat16(), double=values.double(),
        transposed=values.t(), part=values[1:, :1], perm=torch.arange(3),
        flag=torch.tensor([True]), one=tied, two=tied, empty=torch.zeros(0),
        scalar=torch.tensor(3.0),
    )  # fmt: skip
    weights = read_checkpoint(save({"args": OPTIONS, "model": model})).weights
    expected = np.array([[0.5, -2.0], [3.0, 0.25]], "float32")
    for name in ("half", "bfloat", "double", "one", "two"):
        assert weights[name].dtype == "float32"
        np.testing.assert_array_equal(weights[name], expected)
    np.testing.assert_array_equal(weights["transposed"], expected.T)
    np.testing.assert_array_equal(weights["part"], [[3.0]])
    assert weights["perm"].dtype == "int64" and weights["flag"].dtype == "bool"
    assert weights["empty"].shape == (0,) and weights["scalar"].shape == ()


ARGS = argparse.Namespace(
    lr=[0.1, 1e-3], layers=[(512, 3)], nested={"a": (1, None)}, on=True, what={"b"}
)
MODEL = {"_name": "lightconv_iwslt_de_en", "max_source_positions": 1024, "glu": 1}
TASK = {
    "_name": "translation", "source_lang": "de", "target_lang": "en",
    "max_source_positions": 9, "data": "/x",
}  # fmt: skip
OF_CFG = {
    "arch": "lightconv_iwslt_de_en", "max_source_positions": 1024, "glu": 1,
    "source_lang": "de", "target_lang": "en",
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"args": ARGS, "cfg": None}, vars(ARGS)),
        ({"args": None, "cfg": {"model": MODEL, "task": TASK, "seed": 1}}, OF_CFG),
        ({"cfg": {"model": argparse.Namespace(**MODEL), "task": TASK}}, OF_CFG),
    ],
)
def test_options(save, content, expected):
    """Of old files, and as HEAD writes them for models with options of argparse."""
    checkpoint = read_checkpoint(save({**content, "model": {}}))
    assert checkpoint.options == expected and checkpoint.weights == {}


def test_classes_of_fairseq_become_inert(save, monkeypatch):
    """Such as fairseq.meters had, there for as long as something is pickled."""

    class AverageMeter:
        def __init__(self):
            self.sum = 3

    AverageMeter.__module__, AverageMeter.__qualname__ = "fairseq.m", "AverageMeter"
    module = types.ModuleType("fairseq.m")
    module.AverageMeter = AverageMeter
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.m", module)
    odd = [AverageMeter(), AverageMeter, np.float64(0.1), np.arange(6.0), np.dtype("f")]
    given = argparse.Namespace(arch="fconv", odd=odd)
    path = save({"args": given, "model": {}, "extra_state": {"train": odd}})
    for name in ("fairseq", "fairseq.m"):
        monkeypatch.delitem(sys.modules, name)
    options = read_checkpoint(path).options
    assert [type(value) for value in options.pop("odd")] == [Inert] * len(odd)
    assert options == {"arch": "fconv"}
    assert not any(name.split(".")[0] == "fairseq" for name in sys.modules)


def test_cfg_of_omegaconf(torch, save, tmp_path, monkeypatch):
    """It is not executed, and the two lines of the error make a file that is read."""

    class DictConfig:
        def __init__(self, **content):
            self.content, self.parent = content, self  # a cycle, as there

    class OmegaConf:
        def to_container(cfg, resolve, enum_to_str):
            return cfg.content

    module = types.ModuleType("omegaconf")
    module.DictConfig, module.OmegaConf = DictConfig, OmegaConf
    DictConfig.__module__, DictConfig.__qualname__ = "omegaconf", "DictConfig"
    monkeypatch.setitem(sys.modules, "omegaconf", module)
    monkeypatch.chdir(tmp_path)
    cfg = DictConfig(model=argparse.Namespace(**MODEL), task=TASK)
    with pytest.raises(ValueError, match=r"nothing of it .* omegaconf\.D") as refusal:
        read_checkpoint(save({"args": None, "cfg": cfg, "model": {}}))
    lines = str(refusal.value).splitlines()[-2:]
    for joined in ("\n", " "):  # the command line prints one line
        exec(joined.join(lines), {})
        assert read_checkpoint(tmp_path / "plain.pt").options == OF_CFG
        (tmp_path / "plain.pt").unlink()


# --- The largest real ones pass ---


def test_number_of_tensors_and_entries(torch, save):
    """A Transformer of 12 layers a side with Adam's state, an EMA, and 1,000 restarts.

    transformer_wmt_en_de_big has 6 layers a side, and some 260 tensors.
    """
    names = [
        f"decoder.layers.{layer}.{part}" for layer in range(24) for part in range(26)
    ]
    model = {name: torch.ones(1) for name in names}
    step = torch.tensor(1.0)
    # Until 2020 torch's optimizers had addresses for keys.
    state = {
        2**47 - 64 * n: {"step": 1 * step, "exp_avg": 1 * one, "exp_avg_sq": 1 * one}
        for n, one in enumerate(model.values())
    }
    groups = [{"lr": 5e-3, "betas": (0.9, 0.98), "params": [*state]}]
    restart = {"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    history = [restart | {"num_updates": number} for number in range(1000)]
    averages = {name: {key: one * 1 for key, one in model.items()} for name in "ab"}
    content = {"args": OPTIONS, "model": model, "optimizer_history": history}
    averages["metrics"] = {"train": [(10, "loss", "AverageMeter", {"sum": 9e9})]}
    optimizer = {"state": state, "param_groups": groups}
    content |= {"last_optimizer_state": optimizer, "extra_state": averages}
    assert len(read_checkpoint(save(content)).weights) == 624


def test_integers_of_values_and_keys(save):
    values = [2**63 - 1, -(2**63), 2**200, (2**63 - 1, 1024)]
    args = argparse.Namespace(arch="x", values=values, ids={2**48: 1, -1: 2, "a": 3})
    assert read_checkpoint(save({"args": args, "model": {}})).options == vars(args)


def test_ratios_of_tied_and_packed_weights(torch, save, tmp_path):
    """Half precision under four names, and 32 bits of them in a packed archive."""
    half = torch.randn(2**16).half()
    model = {f"{side}.w": half for side in ("encoder", "decoder", "output", "ema")}
    weights = read_checkpoint(save({"args": OPTIONS, "model": model})).weights
    (tmp_path / "args.json").write_text("{}")
    np.savez_compressed(tmp_path / "weights.npz", **weights)
    assert set(read_checkpoint(tmp_path).weights) == set(model)


ZEROS = bytes(1 << 24)


class Sparse(io.FileIO):
    """A file that holds no `ZEROS` on the disk."""

    def write(self, content):
        if len(content) == len(ZEROS) and bytes(content) == ZEROS:
            self.seek(len(content), os.SEEK_CUR)
            return len(content)
        return super().write(content)


def test_size_of_files_before_2020(tmp_path):
    path, content = tmp_path / "a.pt", {"args": OPTIONS, "model": {}}
    path.write_bytes(legacy(pickle.dumps(content, 2)))
    os.truncate(path, 5 << 30)
    assert _globals_of(path) == {"argparse.Namespace"}


@pytest.mark.slow
def test_size_of_files_of_today(tmp_path):
    """More than 4 GiB, where zip files have larger fields."""
    path = tmp_path / "a.pt"
    with Sparse(path, "w") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"args": OPTIONS, "model": {}}, 2))
        with archive.open("a/data/0", "w", force_zip64=True) as record:
            for _ in range(260):
                record.write(ZEROS)
    assert path.stat().st_size > 2**32
    assert _globals_of(path) == {"argparse.Namespace"}


# --- Nothing in them runs ---

NESTED = pickle.dumps(Call(os.system, "touch ran"))
DANGERS = {
    "system": (os.system, "touch ran"),
    "Popen": (subprocess.Popen, ["touch", "ran"]),
    "eval": (eval, "open('ran', 'w')"),
    "getattr": (getattr, Call(importlib.import_module, "os"), "system"),
    "open": (builtins.open, "ran", "w"),
    "loads": (pickle.loads, NESTED),
    "Linear": ("torch.nn.modules.linear", 2, 2),
    "Tensor": ("torch._tensor", 3),
    "_load_from_bytes": ("torch.storage", NESTED),
    "_rebuild_wrapper_subclass": ("torch._utils", 1),
    "_rebuild_from_type_v2": ("torch._tensor", 1),
}


SHELL = text(b"touch ran") + b"\x85R"


@pytest.fixture
def nothing_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "ran").exists()
    assert "fairseq.os" not in sys.modules


@pytest.mark.usefixtures("nothing_ran")
@pytest.mark.parametrize(
    ("name", "protocol"),
    [*((name, 2) for name in DANGERS), *(("system", n) for n in (0, 1, 3, 4, 5))],
)
def test_dangerous_globals_are_refused(save, name, protocol):
    function, *arguments = DANGERS[name]
    if isinstance(function, str):
        function = getattr(importlib.import_module(function), name)
    # The words twice: then the second time the pickle refers to its memo.
    extra = ["posix", "system", Call(function, *arguments)]
    content = {"args": OPTIONS, "model": {}, "extra": extra}
    # Modules go by other names, such as posix.
    words = rf"is refused, and nothing of it .* Received: .*\.{name}\b"
    with pytest.raises(ValueError, match=words if protocol < 4 else "cannot be read"):
        read_checkpoint(save(pickle.dumps(content, protocol)))


@pytest.mark.usefixtures("nothing_ran")
@pytest.mark.parametrize(
    ("opcodes", "words"),
    [
        (b"(" + text(b"touch ran") + b"ios\nsystem\n", r"os\.system"),
        (b"(cos\nsystem\n" + text(b"touch ran") + b"o", r"os\.system"),
        (b"cos\nsystem\n", r"os\.system"),
        (b"cos\nsystem\n0N", r"os\.system"),
        (b"cfairseqx.y\nz\n", r"fairseqx\.y\.z"),
        (b"cmyfairseq.y\nz\n", r"myfairseq\.y\.z"),
        (b"c\nfairseq\n", r"\.fairseq"),
        (b"cfairseq.x os\nsystem\n", "fairseq.x.os system"),
        (b"comegaconf.dictconfig\nDictConfig\n", "omegaconf"),
        (b"cnumpy\nload\n", r"numpy\.load"),
        # No name, or what is allowed, used as something else.
        *((opcodes, "cannot be read: ") for opcodes in (
            text(b"os") + text(b"system") + b"\x93" + SHELL,
            b"\x82\1" + SHELL,
            b"cfairseq.a\nC\n)R" + SHELL,
            b"cfairseq.a\nC\n}b",
            b"cnumpy.core.multiarray\nscalar\n}b",
            text(b"os.system") + SHELL,
            b"cargparse\nNamespace\nK\1\x85R",
            b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0)N)NtR",
            b"(" + text(b"module") + b"cfairseq.a\nC\nNNtQ",
            b"Pos.system\n",
            b"K\1Q",
            b"00000",
        )),
    ],
)  # fmt: skip
def test_opcodes_by_hand(save, opcodes, words):
    with pytest.raises(ValueError, match=words):
        read_checkpoint(save(around(opcodes)))


@pytest.mark.usefixtures("nothing_ran")
@pytest.mark.parametrize(
    "opcodes",
    [
        b"cfairseq.os\nsystem\n" + SHELL,
        b"cfairseq\nos.system\n" + SHELL,
        b"cfairseq.a.b\nC\nK\1K\2\x86\x81",
        b"cfairseq.a\nC\n)\x81}" + text(b"__class__") + b"K\1sb",
        b"cfairseq.a\nC\n)\x81N}" + text(b"x") + b"K\1s\x86b",
        b"cfairseq.a\nC\n)\x81K\1b",
        b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\2\0\0\0O8\x85RK\1\x86R",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\1NNNNtb",
    ],
)
def test_called_and_built_a_stand_in_does_nothing(save, opcodes):
    before = dict(vars(Inert))
    assert read_checkpoint(save(around(opcodes))).options == {}
    assert dict(vars(Inert)) == before


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


def test_damaged_files(torch, save):
    """Cut off anywhere, or with a bit flipped: a result or one kind of error."""
    model = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)}
    path = save({"args": OPTIONS, "model": model})
    content = path.read_bytes()
    assert set(read_checkpoint(path).weights) == {"a.weight", "b"}
    for size in [*range(0, 60, 7), *range(60, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read: "):
            read_checkpoint(path)
    for position in range(0, min(len(content), 1400), 11):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            assert isinstance(read_checkpoint(path).options, dict)
        except ValueError as error:
            assert str(path) in str(error)
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint.pt"]
    if zipfile.is_zipfile(io.BytesIO(content)):
        damaged = bytearray(content)
        damaged[content.index(np.arange(6, dtype="float32").tobytes()) + 5] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="does not match its check sum"):
            read_checkpoint(path)


def test_pipes_and_devices(torch, tmp_path):
    """Neither a pipe without a writer nor a device without an end is read."""
    (tmp_path / "args.json").write_text("{}")
    for name, checkpoint in (("a.pt", tmp_path / "a.pt"), ("weights.npz", tmp_path)):
        file = tmp_path / name
        for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
            make(file)
            with pytest.raises(ValueError, match=f"{name} must be a regular file"):
                read_checkpoint(checkpoint)
            file.unlink()


@pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
def test_names_of_wrapped_models(save, tmp_path, torch, prefix):
    model = {f"{prefix}decoder.x": torch.ones(1), f"{prefix}y": torch.ones(1)}
    weights = read_checkpoint(save({"args": OPTIONS, "model": model})).weights
    assert set(weights) == {"decoder.x", "y"}
    mixed = {"module.x": torch.ones(1), "x": torch.ones(1)}
    weights = read_checkpoint(save({"args": OPTIONS, "model": mixed})).weights
    assert set(weights) == set(mixed)
    np.savez(tmp_path / "weights.npz", **{name: np.ones(1) for name in model})
    (tmp_path / "args.json").write_text("{}")
    assert set(read_checkpoint(tmp_path).weights) == {"decoder.x", "y"}


# --- Arrays ---


def test_folders_of_arrays(tmp_path):
    options, file = tmp_path / "args.json", tmp_path / "weights.npz"
    with pytest.raises(FileNotFoundError, match=r"args\.json"):
        read_checkpoint(tmp_path)
    options.write_text('{"arch": "fconv"}')
    with pytest.raises(FileNotFoundError, match=r"weights\.npz"):
        read_checkpoint(tmp_path)
    np.savez(file, half=np.ones(2, "float16"), double=np.full(2, 0.5), n=np.arange(3))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.options == {"arch": "fconv"}
    assert checkpoint.weights["half"].dtype == "float32"
    np.testing.assert_array_equal(checkpoint.weights["double"], np.float32([0.5, 0.5]))
    assert checkpoint.weights["n"].dtype == "int64"
    content = file.read_bytes()
    file.write_bytes(content[:300])
    with pytest.raises(ValueError, match=r"weights\.npz cannot be read"):
        read_checkpoint(tmp_path)
    marker = tmp_path / "ran"
    bad = np.array([Call(os.system, f"touch {marker}")], dtype=object)
    for array, words in ((bad, "cannot be read"), (np.ones(2, complex), "complex128")):
        np.savez(file, w=array)
        with pytest.raises(ValueError, match=words):
            read_checkpoint(tmp_path)
    assert not marker.exists()


def test_torch_that_executes_more_than_weights(torch, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1+cpu"))
    (tmp_path / "checkpoint.pt").write_bytes(zipped(around(b"N")))
    with pytest.raises(ImportError, match=r"2\.6 or newer. Received: torch 2\.5\.1"):
        read_checkpoint(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"args": OPTIONS, "model": [1]}, 'no "model"'),
        ({"args": None, "cfg": None, "model": {}}, 'neither "args" nor "cfg"'),
        ({"args": [1], "model": {}}, '"args" is neither a Namespace nor a dict'),
        ({"cfg": {"task": {}}, "model": {}}, '"cfg.model" is neither'),
        ({"args": OPTIONS, "model": {"w": [1.0]}}, "under 'w' is not a tensor"),
        ([OPTIONS], "a list instead of a dict"),
    ],
)
def test_other_things_that_torch_saved(save, content, words):
    with pytest.raises(ValueError, match=words):
        read_checkpoint(save(content))
