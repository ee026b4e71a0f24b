"""Translate lines through a server of TensorFlow Serving, by REST or gRPC.

    echo "Anna called." | python examples/serve_client.py phrases
    echo "Anna called." | python examples/serve_client.py phrases --grpc localhost:8500

REST needs Python only, gRPC needs `pip install 'keras-seqconv[serve]'`. Programs can
import `RestClient` and `GrpcClient`: each is one connection for many threads.

A converted fairseq model with Moses takes and returns tokenized text. Its model card
names the flags, for example `--moses en-de --normalize`, which need `sacremoses`.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import sys
import urllib.error
import urllib.request

# Ends of lines to some programs: the output has a line for each line of the input.
BREAKS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"), " ")


class RestClient:
    """A model on a server, by REST.

    Args:
        model: its name.
        url: of the server.
        version: a number, or None for the newest.
        timeout: seconds that a request may take.
    """

    def __init__(self, model, url="http://localhost:8501", version=None, timeout=60):
        at = "" if version is None else f"/versions/{version}"
        self.url = f"{url.rstrip('/')}/v1/models/{model}{at}"
        self.timeout = timeout

    def call(self, signature: str = "serving_default", **inputs: list) -> dict:
        """Outputs of a signature by name, lists.

        Raises:
            RuntimeError: what the server has to say against the request.
            ConnectionError: none answers.
        """
        body = {"signature_name": signature, "inputs": inputs}
        request = urllib.request.Request(
            f"{self.url}:predict",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                outputs = json.load(response)["outputs"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode(errors="replace")) from error
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise ConnectionError(
                f"No server answers at {self.url}: {error}"
            ) from error
        # The server omits the name of a single output.
        return outputs if isinstance(outputs, dict) else {"output": outputs}

    def translate(self, texts: list[str]) -> list[str]:
        return self.call(text=texts)["translation"] if texts else []


class GrpcClient:
    """A model on a server, by gRPC; arguments as of `RestClient`."""

    def __init__(self, model, address="localhost:8500", version=None, timeout=60):
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self.model, self.version, self.timeout = model, version, timeout
        self.address = address
        unlimited = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        channel = grpc.insecure_channel(address, unlimited)
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def call(self, signature: str = "serving_default", **inputs) -> dict:
        """Outputs of a signature by name, arrays; errors as of `RestClient`."""
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        try:
            response = self.stub.Predict(request, self.timeout)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise RuntimeError(error.details()) from error
            message = f"No server answers at {self.address}: {error.details()}"
            raise ConnectionError(message) from error
        return {name: tf.make_ndarray(one) for name, one in response.outputs.items()}

    def translate(self, texts: list[str]) -> list[str]:
        found = self.call(text=texts)["translation"] if texts else []
        return [text.decode() for text in found]


class Moses:
    """Moses' steps around a model that takes and gives tokenised text.

    Args:
        languages: "en-de", source and target; "de" is both.
        normalize: make punctuation plain before.
        dashes: write x-y as x @-@ y.
    """

    def __init__(self, languages, normalize=False, dashes=True):
        import sacremoses

        source, _, target = languages.partition("-")
        self.normalizer = sacremoses.MosesPunctNormalizer(source) if normalize else None
        self.tokenizer = sacremoses.MosesTokenizer(source)
        self.detokenizer = sacremoses.MosesDetokenizer(target or source)
        self.dashes = dashes

    def tokenize(self, text: str) -> str:
        if self.normalizer is not None:
            text = self.normalizer.normalize(text)
        return self.tokenizer.tokenize(
            text, aggressive_dash_splits=self.dashes, return_str=True
        )

    def detokenize(self, text: str) -> str:
        return self.detokenizer.detokenize(text.split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="its name on the server")
    parser.add_argument("--rest", default="http://localhost:8501", metavar="URL")
    parser.add_argument("--grpc", metavar="HOST:PORT", help="gRPC instead of REST")
    parser.add_argument("--version", type=int, help="default: the newest")
    parser.add_argument("--batch", type=int, default=32, help="lines of a request")
    parser.add_argument(
        "--moses", metavar="xx[-yy]", help="tokenise the lines as Moses does in the "
        "language xx, and undo it in the answers in yy (default xx): en-de",
    )  # fmt: skip
    parser.add_argument(
        "--normalize", action="store_true", help="normalise punctuation before that"
    )
    parser.add_argument(
        "--no-dash-splits", dest="dashes", action="store_false",
        help="leave x-y one token (Moses without -a)",
    )  # fmt: skip
    parser.add_argument(
        "--unknown", action="store_true",
        help="at the end, print the number of tokens that the model does not know",
    )  # fmt: skip
    options = parser.parse_args()
    try:
        translate_lines(options)
    except (ImportError, OSError, RuntimeError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    return 0


@contextlib.contextmanager
def without_logs():
    """Without what TensorFlow prints, past `sys.stderr`, while it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def texts_of(stream):
    r"""Lines of UTF-8 that "\n" alone ends; a "\r" before it is dropped."""
    for number, line in enumerate(stream, 1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            sys.exit(f"error: the input must be UTF-8; line {number}: {error}")


def translate_lines(options: argparse.Namespace) -> None:
    if options.grpc:
        with without_logs():
            import tensorflow  # noqa: F401
        client = GrpcClient(options.model, options.grpc, options.version)
    else:
        client = RestClient(options.model, options.rest, options.version)
    moses = None
    if options.moses:
        moses = Moses(options.moses, options.normalize, options.dashes)
    lines = texts_of(sys.stdin.buffer)
    tokens = unknown = texts = 0
    while batch := list(itertools.islice(lines, options.batch)):
        if moses:
            batch = [moses.tokenize(line) for line in batch]
        if options.unknown:
            counts = client.call("count_tokens", text=batch)
            tokens += sum(counts["tokens"])
            unknown += sum(counts["unknown"])
            texts += sum(count > 0 for count in counts["unknown"])
        for translation in client.translate(batch):
            if moses:
                translation = moses.detokenize(translation)
            print(translation.translate(BREAKS), flush=True)
    if options.unknown:
        print(
            f"{unknown:,} of {tokens:,} tokens are unknown to the model; texts "
            f"with unknown tokens: {texts:,}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
