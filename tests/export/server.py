"""A server for clients of TensorFlow Serving: the real one, or a stand-in.

The stand-in serves one SavedModel by the official `PredictionService` of gRPC and by
the paths of REST, and runs the warm-up requests first; it has no batching and no
versions but 1. Like a server with batching it computes four requests at a time, in the
order in which they came: TensorFlow itself is not fair, and of 64 loops at once it lets
some wait for minutes.
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
def serving(folder: Path) -> Iterator[Address]:
    """Serves the model of `folder/1/` under the name of the folder."""
    program = shutil.which("tensorflow_model_server")
    if program is None:
        with stand_in(folder) as address:
            yield address
        return
    ports = []
    for _ in range(2):
        with socket.socket() as one:
            one.bind(("localhost", 0))
            ports.append(one.getsockname()[1])
    process = subprocess.Popen(
        [program, f"--port={ports[0]}", f"--rest_api_port={ports[1]}",
         f"--model_name={folder.name}", f"--model_base_path={folder.resolve()}"]
    )  # fmt: skip
    address = Address(f"http://localhost:{ports[1]}", f"localhost:{ports[0]}", program)
    try:
        for _ in range(300):
            url = f"{address.rest}/v1/models/{folder.name}"
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                if b"AVAILABLE" in answer.read():
                    break
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def stand_in(folder: Path) -> Iterator[Address]:
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc as services

    model = Model(folder)

    class Servicer(services.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802 (its official name)
            try:
                return model.predict(request)
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self, body=None):  # noqa: N802
            try:
                status, content = 200, model.rest(self.path, body)
            except ValueError as error:
                status, content = 400, {"error": str(error)}
            content = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self):  # noqa: N802
            length = int(self.headers["Content-Length"])
            self.do_GET(json.loads(self.rfile.read(length)))

    class HttpServer(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256  # that wait; 5 are too few for 64 clients

    rpc = grpc.server(futures.ThreadPoolExecutor(64))
    services.add_PredictionServiceServicer_to_server(Servicer(), rpc)
    port = rpc.add_insecure_port("localhost:0")
    rpc.start()
    with HttpServer(("localhost", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            rest = f"http://localhost:{web.server_port}"
            yield Address(rest, f"localhost:{port}", "stand-in")
        finally:
            web.shutdown()
            thread.join()
            rpc.stop(None).wait()


class Model:
    """What the server answers; ValueError for what it refuses."""

    def __init__(self, folder: Path):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 (registers ops)
        from tensorflow_serving.apis import prediction_log_pb2

        self.name, self.path = folder.name, folder / "1"
        self.signatures = tf.saved_model.load(str(self.path)).signatures
        self.slots = threading.Semaphore(4)  # its queue is in order
        file = self.path / "assets.extra" / "tf_serving_warmup_requests"
        for record in tf.data.TFRecordDataset(str(file)):
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            self.predict(log.predict_log.request)

    def run(self, signature: str | None, inputs: dict) -> dict:
        import tensorflow as tf

        name = signature or "serving_default"
        if name not in self.signatures:
            raise ValueError(f"Serving signature name: {name!r} not found")
        specs = self.signatures[name].structured_input_signature[1]
        if set(specs) != set(inputs):
            raise ValueError(f"inputs are {sorted(specs)}, not {sorted(inputs)}")
        try:
            tensors = {key: tf.constant(inputs[key], specs[key].dtype) for key in specs}
            with self.slots:
                found = self.signatures[name](**tensors)
        except (tf.errors.OpError, TypeError) as error:
            raise ValueError(str(error)) from error
        return {key: value.numpy() for key, value in found.items()}

    def predict(self, request):
        """The official message of an answer to an official request."""
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        if request.model_spec.name != self.name:
            raise ValueError(f"Servable not found: {request.model_spec.name}")
        inputs = {key: tf.make_ndarray(one) for key, one in request.inputs.items()}
        response = predict_pb2.PredictResponse(model_spec=request.model_spec)
        for key, value in self.run(request.model_spec.signature_name, inputs).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def rest(self, path: str, body: dict | None) -> dict:
        """The answer to GET (no body) or to `:predict`, in rows or in columns."""
        from google.protobuf import json_format
        from tensorflow.core.protobuf import saved_model_pb2

        model = rf"/v1/models/{self.name}(/versions/1)?"
        pattern = r"(|/metadata)" if body is None else "(:predict)"
        asked = re.fullmatch(model + pattern, path)
        if not asked:
            raise ValueError(f"Servable not found for request: {path}")
        if asked[2] == "":
            return {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}
        if asked[2] == "/metadata":
            content = (self.path / "saved_model.pb").read_bytes()
            (meta_graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
            signatures = {
                name: json_format.MessageToDict(one)
                for name, one in meta_graph.signature_def.items()
            }
            return {"metadata": {"signature_def": {"signature_def": signatures}}}
        inputs, rows = body.get("inputs"), body.get("instances")
        if rows is not None:
            rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
            inputs = {key: [row[key] for row in rows] for key in rows[0]}
        outputs = self.run(body.get("signature_name"), inputs)
        columns = {key: _plain(value.tolist()) for key, value in outputs.items()}
        only = next(iter(columns.values())) if len(columns) == 1 else None
        if rows is None:
            return {"outputs": only or columns}
        values = zip(*columns.values(), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in values]
        return {"predictions": only or rows}


def _plain(value):
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value
