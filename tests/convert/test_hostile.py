"""Small files that would take all memory, or all time: refused in no time."""

import argparse
import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from keras_seqconv.convert.checkpoint import look_at, read_checkpoint
from tests.convert.test_checkpoint import around, legacy, zipped
from tests.processes import run_python

# Far below a file's own demands, far above a slow machine's time for its refusal.
SECONDS, MEGABYTES = 60, 1500
READ = """
import json, resource, sys, time
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
from keras_seqconv.convert import from_fairseq
for path in sys.argv[1:]:
    start, words = time.perf_counter(), "a model"
    try:
        from_fairseq(path)
    except ValueError as error:
        words = str(error)
    took = time.perf_counter() - start
    # Of this program: `getrusage` has what the one that started it had, too.
    status = open("/proc/self/status").read()
    memory = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(json.dumps([took, memory, words[:500]]), flush=True)
"""


def opcodes(value) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def get(number: int) -> bytes:
    return b"j" + number.to_bytes(4, "little")


def put(number: int) -> bytes:
    return b"r" + number.to_bytes(4, "little")


def doubled(levels, pair=lambda x: [x, x]):
    value = 1
    for _ in range(levels):
        value = pair(value)
    return value


def itself():
    value = []
    value.append(value)
    return value


BACKWARDS = b"".join(
    [b"](", *(b"]" + put(n) for n in range(61)),
     *(get(n) + b"(" + 2 * get(n + 1) + b"e" for n in range(60)), b"e"]
)  # fmt: skip
# All of hash 0: a dictionary compares each with all before it.
SAME_HASH = [
    b"\x8a\x0b" + (n * (2**61 - 1)).to_bytes(11, "little") for n in range(1, 10**5)
]
PAIRS = b"](" + b"".join(b"](" + key + b"Ne" for key in SAME_HASH[:20_000]) + b"e"
STORAGE, CPU = b"ctorch\nFloatStorage\n", opcodes("cpu")
# 10**9 views of one number.
TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((" + opcodes("storage") + STORAGE
    + opcodes("0") + CPU + b"K\1NtQK\0J" + (10**9).to_bytes(4, "little")
    + b"\x85K\0\x85\x89ccollections\nOrderedDict\n)RtR"
)  # fmt: skip
KEY = opcodes(doubled(34, lambda x: (x, x)))
PICKLES = {
    "a list of lists": opcodes(doubled(60)),
    "dictionaries": opcodes(doubled(60, lambda x: {1: x, 2: x})),
    "a key": b"}" + KEY + b"Ns",
    "a set": b"c__builtin__\nset\n(" + KEY + b"l\x85R",
    "a key that is dropped": b"}" + KEY + b"Ns0N",
    "lists filled backwards": BACKWARDS,
    "a list in itself": opcodes(itself()),
    "levels": b"](" * 10**5 + b"e" * 10**5,
    "numbers": b"](" + b"N" * 3 * 10**6 + b"e",
    "keys of one hash": b"}(" + b"".join(key + b"N" for key in SAME_HASH) + b"u",
    "pairs of one hash": b"}(" + b"K\1K\2\x86N" * 10**4 + b"u",
    "a key of one hash": b"}" + SAME_HASH[0] + b"Ns",
    "a set of one hash": b"c__builtin__\nset\n](" + b"".join(SAME_HASH) + b"e\x85R",
    "pairs for a dictionary": b"ccollections\nOrderedDict\n" + PAIRS + b"\x85R",
    "pairs for a state": b"cargparse\nNamespace\n)\x81" + PAIRS + b"b",
    "storages of one hash": b"](" + b"".join(
        b"(" + opcodes("storage") + STORAGE + key + CPU + b"K\0NtQ"
        for key in SAME_HASH[:20_000]
    ) + b"e",
    "a tensor of arguments": b"cfairseq.a\nC\n" + TENSOR + b"R",
    "a tensor for a set": b"c__builtin__\nset\n" + TENSOR + b"\x85R",
    "a tensor for a state": b"ccollections\nOrderedDict\n)R" + TENSOR + b"b",
    "a slow codec": b"c_codecs\nencode\n" + opcodes("ä" * 10**6)
        + opcodes("punycode") + b"\x86R",
}  # fmt: skip


def models(torch):
    """Options and tensors: those of the model, and what they seem to describe."""
    heads = dict(decoder_attention_heads=1, decoder_layers=1, encoder_attention_heads=1)
    table = {"decoder.embed_tokens.weight": torch.zeros(9, 4)}
    one, tall = torch.zeros(1, dtype=torch.float16), torch.zeros(60_000, 1)
    wide = torch.zeros(2**20, dtype=torch.float16)
    sides = "encoder", "decoder"
    gated = {f"{side}.convolutions.0.bias": torch.zeros(2) for side in sides}
    gated |= {f"{side}.embed_tokens.weight": torch.zeros(9, 4) for side in sides}

    def layers(text, **more):
        return {"encoder_layers": text, "decoder_layers": text, **more}, gated

    def repeated(count, tensor=one):
        tensors = {f"decoder.layers.{n}.x": tensor for n in range(count)}
        return dict(heads, decoder_layers=count), {**table, **tensors}

    return {
        "a view of one number": repeated(1, one.expand(10**5, 10**5)),
        "many views": repeated(999, wide),
        "many layers": repeated(10_000),
        "layers with nothing": repeated(300),
        "two sides of a matrix": (heads, {
            "decoder.layers.0.fc1.weight": tall, "decoder.layers.0.fc2.weight": tall,
            **table,
        }),
        "rows of nothing": (heads, {"decoder.layers.0.x": one, **table,
                                    "decoder.embed_out": torch.zeros(10**9, 0)}),
        "lists in an option": layers(
            "[(2, 1)]", decoder_attention="[" * 99 + "1" + "] * 999" * 99),
        "layers in an option": layers("[(1, 1)] * 999"),
        "channels in an option": layers("[(1000000, 9)] * 9"),
    }  # fmt: skip


def saved(torch, args: dict, model: dict, zip_file: bool = True) -> bytes:
    file = io.BytesIO()
    checkpoint = {"args": argparse.Namespace(**args), "model": model}
    torch.save(checkpoint, file, _use_new_zipfile_serialization=zip_file)
    return file.getvalue()


def packed(content: bytes) -> bytes:
    """Records of 256 MB in 0.3 MB."""
    file, packed = io.BytesIO(content), io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(packed, "w", 8) as new:
        for name in old.namelist():
            record = old.read(name)
            new.writestr(name, record * (64 if len(record) > 2**20 else 1))
    return packed.getvalue()


def overlapping(content: bytes) -> bytes:
    """One record of 4 MB under 9,999 entries."""
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
        archive.filelist += [largest] * 9998
        archive.writestr("any/other", "")  # so that the directory is written anew
    return file.getvalue()


def test_archives_of_which_torch_reads_other_records(tmp_path):
    """The second directory, of equal size, has the place that torch looks at."""
    pytest.importorskip("torch", reason="needs the extra convert (torch)")
    key, path = PICKLES["a key"], tmp_path / "a.pt"
    hostile, plain = zipped(around(key)), zipped(around(opcodes("x" * (len(key) - 7))))
    assert len(hostile) == len(plain)
    first, *others = [
        plain,
        hostile[: hostile.rindex(b"PK\5\6")] + plain,
        plain[:-2] + b"\2\0ab",
    ]
    path.write_bytes(first)
    read_checkpoint(path)
    for content in others:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="the directory of the archive"):
            read_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:  # torch finds names in any case
        archive.writestr("any/data.pkl", around(b"N"))
        archive.writestr("any/DATA.PKL", around(key))
    with pytest.raises(ValueError, match="2 records data.pkl"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_refused_before_they_are_read(name):
    with pytest.raises(ValueError, match="objects|steps|key|state|arguments|codec"):
        look_at(io.BytesIO(around(PICKLES[name])))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_files_that_would_take_all_memory_or_all_time(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra convert (torch)")
    zeros = saved(torch, {}, {"x": torch.zeros(2**20)})
    files = {"packed": packed(zeros), "overlapping": overlapping(zeros)}
    for name, (args, model) in models(torch).items():
        files[name] = saved(torch, args, model)
        files[f"{name}, legacy"] = saved(torch, args, model, False)
    for number, (name, code) in enumerate(PICKLES.items()):
        files[name] = (zipped, legacy)[number % 2](around(code))
    paths = [tmp_path / f"{number}.pt" for number in range(len(files))]
    for path, code in zip(paths, files.values(), strict=True):
        assert len(code) < 5e6
        path.write_bytes(code)
    arrays = tmp_path / "folder"
    arrays.mkdir()
    np.savez_compressed(arrays / "weights.npz", x=np.zeros(2**26, "float32"))
    (arrays / "args.json").write_text("{}")
    lines = run_python(READ, *paths, arrays).stdout.splitlines()
    assert len(lines) >= 30
    names, paths = [*files, "arrays"], [*paths, arrays]
    for name, path, line in zip(names, paths, lines, strict=True):
        seconds, megabytes, words = json.loads(line)
        assert words.startswith(str(path)), (name, words)
        assert seconds < SECONDS and megabytes < MEGABYTES, (name, line)
