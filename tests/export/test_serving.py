"""The example's clients, through a server: the real one if it is on the PATH."""

import importlib.util
import io
import sys

import numpy as np
import pytest

import keras_seqconv as ks
from tests.export.server import serving
from tests.processes import ROOT
from tests.small_models import TEXTS, make_translator

pytest.importorskip("tensorflow_serving", reason="needs the extra serve")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

QUESTIONS = [*TEXTS, "", "  ", "\0\7", "😀 tea", "\u2028", "the " * 300]
PATH = ROOT / "examples" / "serve_client.py"
SPEC = importlib.util.spec_from_file_location("serve_client", PATH)
client = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(client)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    translator = make_translator("pieces")
    folder = tmp_path_factory.mktemp("served") / "pieces"
    ks.export.saved_model(translator, folder, warmup_texts=TEXTS)
    return translator, folder


@pytest.fixture(scope="module")
def server(exported):
    with serving(exported[1]) as address:
        sys.stderr.write(f"\nserver of these tests: {address.kind}\n")
        yield address


def connect(server, protocol, name="pieces", **options):
    cls = {"rest": client.RestClient, "grpc": client.GrpcClient}[protocol]
    return cls(name, getattr(server, protocol), **options)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_all_signatures_for_texts(server, exported, protocol):
    translator, _ = exported
    connection = connect(server, protocol, version=1)
    assert connection.translate(QUESTIONS) == translator.translate(QUESTIONS)
    assert connection.translate([]) == []
    found = connection.call("score", text=TEXTS, translation=TEXTS[::-1])
    scores = found.get("score", found.get("output"))
    np.testing.assert_allclose(scores, translator.score(TEXTS, TEXTS[::-1]), atol=1e-4)
    found = connection.call("translate_n_best", text=TEXTS)
    expected = translator.translate_n_best(TEXTS, 2)
    np.testing.assert_allclose(
        found["score"], [[one.score for one in row] for row in expected], atol=1e-4
    )
    assert np.shape(connection.call("encode", text=TEXTS)["outputs"])[0] == 3
    with pytest.raises(RuntimeError, match="not found"):
        connection.call("nothing", text=["a"])
    with pytest.raises(RuntimeError, match=r"(?i)not found"):
        connect(server, protocol, "other").translate(["a"])


def run_program(monkeypatch, *arguments, lines=TEXTS):
    monkeypatch.setattr(sys, "argv", ["serve_client.py", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{t}\n" for t in lines)))
    return client.main()


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_program(server, exported, monkeypatch, capsys, protocol):
    """Translations, or in a line what is wrong."""
    flags = [f"--{protocol}", getattr(server, protocol), "--batch", "2"]
    assert run_program(monkeypatch, "pieces", *flags) == 0
    lines = [" ".join(t.splitlines()) for t in exported[0].translate(TEXTS)]
    assert capsys.readouterr().out.splitlines() == lines
    nobody = {"rest": "http://localhost:9", "grpc": "localhost:9"}[protocol]
    assert run_program(monkeypatch, "pieces", f"--{protocol}", nobody) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and f"No server answers at {nobody}" in errors[0]
    cls = type(connect(server, protocol))
    monkeypatch.setattr(cls.call, "__defaults__", ("nothing",))
    assert run_program(monkeypatch, "pieces", *flags) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and "nothing" in errors[0] and "not found" in errors[0]


def test_program_around_moses(tmp_path, monkeypatch, capsys):
    """Answers are those of Python, though Moses runs at the client."""
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    translator = make_translator("moses")
    path = ks.export.saved_model(translator, tmp_path / "m")
    assert "language en, normalize True" in (path / "MODEL_CARD.md").read_text()
    lines = [*TEXTS, "it’s   x-ray & Tom", "", "Jerry's „house“ in\u3000the garden"]
    with serving(tmp_path / "m") as server:
        flags = ("m", "--rest", server.rest, "--moses", "en", "--normalize")
        assert run_program(monkeypatch, *flags, lines=lines) == 0
    assert capsys.readouterr().out.splitlines() == translator.translate(lines)
