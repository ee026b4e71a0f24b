"""Exports in TensorFlow's C++ runtime, loaded and run as TensorFlow Serving does.

`LoadSavedModel` and `Session::Run` stand behind the C API of TensorFlow's library. They
are called in a process of its own, where TensorFlow for Python registers nothing:

    with cpp_runtime.process() as executor:
        executor.submit(cpp_runtime.predict, folder, request).result()
"""

import concurrent.futures
import ctypes
import functools
import importlib.util
import multiprocessing
import sys
import types
from pathlib import Path

import numpy as np

_STRING = 7  # of `tensorflow.DataType`
_DTYPES = {1: "float32", 3: "int32"}
_SIZE_OF_STRING = 24  # TF_TString


def process() -> concurrent.futures.Executor:
    """Where `predict` can run; models stay loaded there."""
    spawn = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(1, spawn)


def predict(folder: str, request: bytes) -> dict[str, np.ndarray]:
    """Outputs of a version for a `PredictRequest`, texts as bytes."""
    model = _load(folder)
    from tensorflow_serving.apis import predict_pb2

    return model.run(predict_pb2.PredictRequest.FromString(request))


class _Pointer(ctypes.c_void_p):
    """Unlike its base class no integer when returned, so it is passed on whole."""


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Place(ctypes.Structure):
    """TF_Output: a tensor of the graph."""

    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


class _Api:
    """The functions of the C API, the last argument of `call` being the status."""

    def __init__(self):
        assert "tensorflow" not in sys.modules
        tensorflow = Path(importlib.util.find_spec("tensorflow").origin).parent
        # Its messages can be imported, without what `import tensorflow` does.
        package = types.ModuleType("tensorflow")
        package.__path__ = [str(tensorflow)]
        sys.modules["tensorflow"] = package
        self.libraries = [
            ctypes.CDLL(str(tensorflow / f"libtensorflow_{name}.so.2"), mode)
            for name, mode in (("framework", ctypes.RTLD_GLOBAL), ("cc", 0))
        ][::-1]
        self.status = self.get("TF_NewStatus")()
        for path in sorted(tensorflow.parent.glob("tensorflow_text/python/ops/_*.so")):
            self.call("TF_LoadLibrary", str(path).encode())

    def get(self, name: str, result=_Pointer):
        library = next(one for one in self.libraries if hasattr(one, name))
        function = library[name]
        function.restype = result
        return function

    def call(self, name: str, *arguments):
        found = self.get(name)(*arguments, self.status)
        if self.get("TF_GetCode", ctypes.c_int)(self.status):
            message = self.get("TF_Message", ctypes.c_char_p)(self.status)
            raise RuntimeError(message.decode())
        return found


_api = functools.cache(_Api)


@functools.cache
def _load(folder: str) -> "_Model":
    return _Model(folder)


class _Model:
    """A loaded version. Nothing is freed: the process ends soon."""

    def __init__(self, folder: str):
        api = self.api = _api()
        from tensorflow.core.protobuf import meta_graph_pb2

        self.graph, found = api.get("TF_NewGraph")(), api.get("TF_NewBuffer")()
        tags = (ctypes.c_char_p * 1)(b"serve")
        self.session = api.call(
            "TF_LoadSessionFromSavedModel", api.get("TF_NewSessionOptions")(), None,
            folder.encode(), tags, 1, self.graph, found,
        )  # fmt: skip
        found = ctypes.cast(found, ctypes.POINTER(_Buffer)).contents
        meta_graph = meta_graph_pb2.MetaGraphDef.FromString(
            ctypes.string_at(found.data, found.length)
        )
        self.signatures = dict(meta_graph.signature_def)

    def run(self, request) -> dict[str, np.ndarray]:
        """Outputs by name, for exactly the inputs of the signature."""
        signature = self.signatures[request.model_spec.signature_name]
        outputs = list(signature.outputs)
        inputs = list(signature.inputs)
        assert set(inputs) == set(request.inputs)
        values = [self._tensor(request.inputs[name]) for name in inputs]
        found = (ctypes.c_void_p * len(outputs))()
        self.api.call(
            "TF_SessionRun", self.session, None,
            self._places(signature.inputs[name] for name in inputs),
            (ctypes.c_void_p * len(inputs))(*(one.value for one in values)),
            len(inputs),
            self._places(signature.outputs[name] for name in outputs), found,
            len(outputs), None, 0, None,
        )  # fmt: skip
        arrays = map(self._array, map(_Pointer, found))
        return dict(zip(outputs, arrays, strict=True))

    def _places(self, infos):
        places = []
        for info in infos:
            name, _, index = info.name.partition(":")
            operation = self.api.get("TF_GraphOperationByName")(
                self.graph, name.encode()
            )
            places.append(_Place(operation.value, int(index)))
        return (_Place * len(places))(*places)

    def _tensor(self, message):
        """A TF_Tensor of a `TensorProto`."""
        content = message.SerializeToString()
        buffer = self.api.get("TF_NewBufferFromString")(
            content, ctypes.c_size_t(len(content))
        )
        size = ctypes.c_size_t(4)
        tensor = self.api.get("TF_AllocateTensor")(1, None, 0, size)
        self.api.call("TF_TensorFromProto", buffer, tensor)
        return tensor

    def _array(self, tensor) -> np.ndarray:
        get = self.api.get
        rank = get("TF_NumDims", ctypes.c_int)(tensor)
        size_of = get("TF_Dim", ctypes.c_int64)
        shape = [size_of(tensor, axis) for axis in range(rank)]
        dtype = get("TF_TensorType", ctypes.c_int)(tensor)
        size = get("TF_TensorByteSize", ctypes.c_size_t)(tensor)
        start = get("TF_TensorData")(tensor).value
        if dtype != _STRING:
            content = ctypes.string_at(start, size)
            return np.frombuffer(content, _DTYPES[dtype]).reshape(shape)
        texts = [
            self._text(_Pointer(start + place))
            for place in range(0, size, _SIZE_OF_STRING)
        ]
        return np.array(texts, object).reshape(shape)

    def _text(self, string) -> bytes:
        length = self.api.get("TF_StringGetSize", ctypes.c_size_t)(string)
        start = self.api.get("TF_StringGetDataPointer")(string)
        return ctypes.string_at(start, length)
