"""The example's clients, through a server: the real one if it is on the PATH."""

import io
import sys
from types import SimpleNamespace

import pytest

import keras_seqconv as ks
from keras_seqconv.translation.text_model import UnknownTokens
from tests.export.server import serving
from tests.small_models import TEXTS, make_translator
from tests.test_examples import load

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

client = load("serve_client")


@pytest.fixture(scope="module")
def translator():
    return make_translator("moses")


@pytest.fixture(scope="module")
def server(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "m"
    path = ks.export.saved_model(translator, folder, warmup_texts=TEXTS)
    assert "language en, normalize True" in (path / "MODEL_CARD.md").read_text()
    with serving(folder) as address:
        sys.stderr.write(f"\nserver of these tests: {address.kind}\n")
        yield address


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_program(server, translator, monkeypatch, capsys, protocol):
    """Translations as of Python, though Moses runs at the client; or what is wrong."""
    lines = [*TEXTS, "it’s   x-ray & Tom", "", "Jerry's „house“ in\u3000the garden"]
    lines += ["the ж ж1"]

    tokenizer = translator.source_tokenizer
    unknown = UnknownTokens(tokenizer).count(tokenizer.tokenize(lines), lines)
    assert unknown.texts == 1
    messages = []
    unknown.tell(messages.append)
    told, _, unknown_words = messages[0].partition("; unknown: ")
    assert "'ж" in unknown_words  # which a server does not know

    def run(address) -> list[str]:
        flags = [f"--{protocol}", address, "--batch", "2", "--moses", "en", "--unknown"]
        monkeypatch.setattr(
            sys, "argv", ["serve_client.py", "m", *flags, "--normalize"]
        )
        given = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
        status, printed = client.main(), capsys.readouterr()
        assert status or printed.err == f"{told}\n"
        return (printed.err if status else printed.out).splitlines()

    address = getattr(server, protocol)
    assert run(address) == translator.translate(lines)
    nobody = {"rest": "http://localhost:9", "grpc": "localhost:9"}[protocol]
    (error,) = run(nobody)
    assert f"No server answers at {nobody}" in error
    cls = {"rest": client.RestClient, "grpc": client.GrpcClient}[protocol]
    monkeypatch.setattr(cls.call, "__defaults__", ("nothing",))
    (error,) = run(address)
    assert "nothing" in error and "not found" in error
