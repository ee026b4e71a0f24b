"""A server for clients of TensorFlow Serving: the real one, or a stand-in.

The stand-in serves one SavedModel by the official `PredictionService` of gRPC and by
the paths of REST, and runs the warm-up requests first; it has no batching and no
versions. Like a server with batching it computes as many requests at a time as
`batching_params.pbtxt` has threads, in the order in which they came: TensorFlow itself
is not fair, and of 64 loops at once it lets some wait for minutes.
"""

import contextlib
import http.server
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import NamedTuple


class Address(NamedTuple):
    """Where a server listens, and which of the two it is."""

    rest: str
    grpc: str
    kind: str


@contextlib.contextmanager
def serving(folder: Path, version: int = 1) -> Iterator[Address]:
    """Serves the model of `folder/<version>/` under the name of the folder."""
    program = shutil.which("tensorflow_model_server")
    if program:
        with _real(program, folder) as address:
            yield address
    else:
        with StandIn(folder, version) as server:
            yield server.address


@contextlib.contextmanager
def _real(program: str, folder: Path):
    ports = [_free_port(), _free_port()]
    command = [
        program, f"--port={ports[0]}", f"--rest_api_port={ports[1]}",
        f"--model_name={folder.name}", f"--model_base_path={folder.resolve()}",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    address = Address(f"http://localhost:{ports[1]}", f"localhost:{ports[0]}", program)
    try:
        _wait(f"{address.rest}/v1/models/{folder.name}")
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def _wait(url: str):
    for _ in range(300):
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            if b"AVAILABLE" in answer.read():
                return
        time.sleep(0.2)
    raise TimeoutError(url)


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # connections that wait; 5 are too few for 64 clients


class StandIn:
    """A context manager: listens while it is entered."""

    def __init__(self, folder: Path, version: int = 1, threads: int = 64):
        import grpc
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 (registers ops)
        from tensorflow_serving.apis import prediction_service_pb2_grpc as services

        self.name, self.version = folder.name, version
        path = self._path = folder / str(version)
        self.model = tf.saved_model.load(str(path))
        batching = (path / "batching_params.pbtxt").read_text()
        at_once = re.search(r"num_batch_threads *{ *value: *(\d+)", batching)[1]
        self._slots = threading.Semaphore(int(at_once))  # its queue is in order
        self.warmed_up = self._warm_up(path)
        self._http = _HttpServer(("localhost", 0), self._handler_class())
        self._grpc = grpc.server(futures.ThreadPoolExecutor(threads))
        services.add_PredictionServiceServicer_to_server(
            self._servicer(services.PredictionServiceServicer), self._grpc
        )
        port = self._grpc.add_insecure_port("localhost:0")
        rest = f"http://localhost:{self._http.server_port}"
        self.address = Address(rest, f"localhost:{port}", "stand-in")

    def __enter__(self):
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        self._grpc.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._grpc.stop(None).wait()

    def run(self, signature: str, inputs: dict) -> dict:
        """Outputs of a signature; ValueError as a server has it."""
        import tensorflow as tf

        name = signature or "serving_default"
        if name not in self.model.signatures:
            raise ValueError(f"Serving signature name: {name!r} not found")
        function = self.model.signatures[name]
        specs = function.structured_input_signature[1]
        if set(specs) != set(inputs):
            raise ValueError(f"inputs are {sorted(specs)}, not {sorted(inputs)}")
        try:
            tensors = {
                key: tf.constant(value, specs[key].dtype)
                for key, value in inputs.items()
            }
            with self._slots:
                return function(**tensors)
        except (tf.errors.OpError, TypeError) as error:
            raise ValueError(str(error)) from error

    def _warm_up(self, path: Path) -> int:
        import tensorflow as tf
        from tensorflow_serving.apis import prediction_log_pb2

        file = path / "assets.extra" / "tf_serving_warmup_requests"
        count = 0
        for record in tf.data.TFRecordDataset(str(file)):
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            self.predict(log.predict_log.request)
            count += 1
        return count

    def predict(self, request):
        """The official message of an answer to an official request."""
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        if request.model_spec.name != self.name:
            raise ValueError(f"Servable not found: {request.model_spec.name}")
        inputs = {key: tf.make_ndarray(one) for key, one in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        response.model_spec.CopyFrom(request.model_spec)
        response.model_spec.version.value = self.version
        outputs = self.run(request.model_spec.signature_name, inputs)
        for key, value in outputs.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value.numpy()))
        return response

    def _servicer(self, base):
        import grpc

        stand_in = self

        class Servicer(base):
            def Predict(self, request, context):  # noqa: N802 (its official name)
                try:
                    return stand_in.predict(request)
                except ValueError as error:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return Servicer()

    def _handler_class(self):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):  # noqa: N802
                try:
                    self.answer(200, stand_in.described(self.path))
                except ValueError as error:
                    self.answer(404, {"error": str(error)})

            def do_POST(self):  # noqa: N802
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    self.answer(200, stand_in.rest(self.path, json.loads(body)))
                except ValueError as error:
                    self.answer(400, {"error": str(error)})

            def answer(self, status, content):
                content = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler

    def described(self, path: str) -> dict:
        """The answer to a GET: which versions there are, or which signatures."""
        if self._asked(path) == "/metadata":
            return {"metadata": {"signature_def": {"signature_def": self._signatures}}}
        status = {"version": str(self.version), "state": "AVAILABLE"}
        return {"model_version_status": [status]}

    def _asked(self, path: str) -> str:
        """What a path says behind the model, which must be this one."""
        model = rf"/v1/models/{self.name}(/versions/{self.version})?"
        found = re.fullmatch(f"{model}(|/metadata|:predict)", path)
        if not found:
            raise ValueError(f"Servable not found for request: {path}")
        return found[2]

    @property
    def _signatures(self) -> dict:
        from google.protobuf import json_format
        from tensorflow.core.protobuf import saved_model_pb2

        content = (self._path / "saved_model.pb").read_bytes()
        (meta_graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
        return {
            name: json_format.MessageToDict(one)
            for name, one in meta_graph.signature_def.items()
        }

    def rest(self, path: str, body: dict) -> dict:
        """The answer to `:predict`, in rows or in columns."""
        if self._asked(path) != ":predict":
            raise ValueError(f"Servable not found for request: {path}")
        inputs = body.get("inputs")
        if "instances" in body:
            rows = body["instances"]
            rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
            inputs = {key: [row[key] for row in rows] for key in rows[0]}
        outputs = self.run(body.get("signature_name"), inputs)
        columns = {key: _plain(value.numpy()) for key, value in outputs.items()}
        single = len(columns) == 1
        if "instances" in body:
            rows = [dict(zip(columns, row, strict=True)) for row in
                    zip(*columns.values(), strict=True)]  # fmt: skip
            rows = [next(iter(row.values())) for row in rows] if single else rows
            return {"predictions": rows}
        return {"outputs": next(iter(columns.values())) if single else columns}


def _plain(array):
    if array.dtype == object:
        return [
            one.decode() if isinstance(one, bytes) else _plain(one) for one in array
        ]
    return array.tolist()
