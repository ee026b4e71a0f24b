"""Lists the ops that TensorFlow's C++ runtime can run on a CPU, with their attributes.

    python tools/list_stock_ops.py [LIST]

Reads the registries of the TensorFlow and tensorflow-text of this environment, before
anything of Python adds to them; with LIST, the output of another release, only what
both have. So `stock_ops.txt` was made, in the environments that
tests/export/check_old_tensorflow.sh makes:

    2.12.1/bin/python list_stock_ops.py > LIST
    2.20.0/bin/python list_stock_ops.py LIST > stock_ops.txt
"""

import ctypes
import importlib.util
import multiprocessing
import sys
from pathlib import Path


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t))


def registries() -> tuple[bytes, bytes]:
    """The messages OpList and KernelList."""
    packages = Path(importlib.util.find_spec("tensorflow").origin).parents[1]
    for name in ("framework", "cc"):
        path = packages / "tensorflow" / f"libtensorflow_{name}.so.2"
        library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.TF_NewStatus.restype = ctypes.c_void_p
    status = ctypes.c_void_p(library.TF_NewStatus())
    for path in (packages / "tensorflow_text").rglob("_*.so"):
        library.TF_LoadLibrary(str(path).encode(), status)
    calls = ("TF_GetAllOpList", ()), ("TF_GetAllRegisteredKernels", (status,))
    messages = []
    for name, arguments in calls:
        function = getattr(library, name)
        function.restype = ctypes.POINTER(_Buffer)
        found = function(*arguments).contents
        messages.append(ctypes.string_at(found.data, found.length))
    return tuple(messages)


def main(*lists: str) -> None:
    with multiprocessing.Pool(1) as pool:  # where TensorFlow for Python is not
        ops, kernels = pool.apply(registries)
    from tensorflow.core.framework import kernel_def_pb2, op_def_pb2

    kernels = kernel_def_pb2.KernelList.FromString(kernels).kernel
    run = {one.op for one in kernels if one.device_type in ("CPU", "DEFAULT")}
    found = {
        op.name: {attribute.name for attribute in op.attr}
        for op in op_def_pb2.OpList.FromString(ops).op
        if op.name in run and not op.name.startswith(("_", "Xla"))
    }
    for path in lists:
        lines = map(str.split, Path(path).read_text().splitlines())
        other = {name: set(attributes) for name, *attributes in lines}
        found = {name: found[name] & other[name] for name in found if name in other}
    for name in sorted(found):
        sys.stdout.write(" ".join([name, *sorted(found[name])]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
