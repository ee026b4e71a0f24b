"""The example's clients, through a server: the real one if it is on the PATH."""

import importlib.util
import io
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import keras_seqconv as ks
from tests.export.models import (
    TEXTS,
    make_translator,
    moses_tokenizer,
    piece_tokenizer,
)
from tests.export.server import serving

pytest.importorskip("tensorflow_serving", reason="needs the extra serve")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
QUESTIONS = [*TEXTS, "", "  ", "\0\7", "😀 tea", "\u2028", "the " * 300]


def load_example():
    path = REPOSITORY / "examples" / "serve_client.py"
    spec = importlib.util.spec_from_file_location("serve_client", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


client = load_example()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    translator = make_translator(piece_tokenizer)
    folder = tmp_path_factory.mktemp("served") / "pieces"
    ks.export.saved_model(translator, folder, warmup_texts=TEXTS)
    return translator, folder


@pytest.fixture(scope="module")
def server(exported):
    with serving(exported[1]) as address:
        sys.stderr.write(f"\nserver of these tests: {address.kind}\n")
        yield address


@pytest.fixture(params=["rest", "grpc"])
def connection(request, server, exported):
    name = exported[1].name
    if request.param == "rest":
        return client.RestClient(name, server.rest, version=1)
    return client.GrpcClient(name, server.grpc, version=1)


def test_translations(connection, exported):
    translator, _ = exported
    assert connection.translate(QUESTIONS) == translator.translate(QUESTIONS)
    assert connection.translate([]) == []


def test_all_signatures_for_texts(connection, exported):
    translator, _ = exported
    found = connection.call("score", text=TEXTS, translation=TEXTS[::-1])
    scores = found.get("score", found.get("output"))
    np.testing.assert_allclose(scores, translator.score(TEXTS, TEXTS[::-1]), atol=1e-4)
    found = connection.call("translate_n_best", text=TEXTS)
    expected = translator.translate_n_best(TEXTS, 2)
    np.testing.assert_allclose(
        found["score"], [[one.score for one in row] for row in expected], atol=1e-4
    )
    assert np.shape(connection.call("encode", text=TEXTS)["outputs"])[0] == 3


def test_errors_are_told(server, exported):
    name = exported[1].name
    with pytest.raises(RuntimeError, match="not found"):
        client.RestClient(name, server.rest).call("nothing", text=["a"])
    with pytest.raises(RuntimeError, match=r"(?i)not found"):
        client.RestClient("other", server.rest).translate(["a"])
    with pytest.raises(RuntimeError, match="not found"):
        client.GrpcClient(name, server.grpc).call("nothing", text=["a"])


def test_program(server, exported, monkeypatch, capsys):
    translator, folder = exported
    for flags in (["--rest", server.rest], ["--grpc", server.grpc, "--batch", "2"]):
        assert run_program(monkeypatch, folder.name, *flags) == 0
        lines = [" ".join(t.splitlines()) for t in translator.translate(TEXTS)]
        assert capsys.readouterr().out.splitlines() == lines


def run_program(monkeypatch, *arguments, lines=TEXTS):
    monkeypatch.setattr(sys, "argv", ["serve_client.py", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{t}\n" for t in lines)))
    return client.main()


def test_program_around_moses(tmp_path, monkeypatch, capsys):
    """Answers are those of Python, though Moses runs at the client."""
    pytest.importorskip("sacremoses", reason="needs the extra mt")
    translator = make_translator(moses_tokenizer)
    path = ks.export.saved_model(translator, tmp_path / "m")
    assert "language en, normalize True" in (path / "MODEL_CARD.md").read_text()
    lines = [*TEXTS, "it’s   x-ray & Tom", "", "Jerry's „house“ in\u3000the garden"]
    with serving(tmp_path / "m") as server:
        flags = ("m", "--rest", server.rest, "--moses", "en", "--normalize")
        assert run_program(monkeypatch, *flags, lines=lines) == 0
    assert capsys.readouterr().out.splitlines() == translator.translate(lines)


@pytest.mark.parametrize("flag", ["--rest", "--grpc"])
def test_program_says_in_a_line_what_is_wrong(
    server, exported, monkeypatch, capsys, flag
):
    nobody = {"--rest": "http://localhost:9", "--grpc": "localhost:9"}[flag]
    assert run_program(monkeypatch, "pieces", flag, nobody) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and f"No server answers at {nobody}" in errors[0]
    connection = {"--rest": client.RestClient, "--grpc": client.GrpcClient}[flag]
    monkeypatch.setattr(connection.call, "__defaults__", ("nothing",))
    assert run_program(monkeypatch, "pieces", flag, getattr(server, flag[2:])) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and "nothing" in errors[0] and "not found" in errors[0]


def memory() -> int:
    """Largest resident size so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_clients_at_the_same_time(server, exported):
    """Mixed lengths, both protocols: no wrong answer, no error, memory flat."""
    translator, folder = exported
    texts = [f"{text} {number}" for number in range(16) for text in QUESTIONS]
    expected = dict(zip(texts, translator.translate(texts), strict=True))
    ends, wrong, counts = time.monotonic() + 24, [], []

    def work(number):
        draw = np.random.default_rng(number)
        cls, at = (
            (client.RestClient, server.rest)
            if number % 2
            else (client.GrpcClient, server.grpc)
        )
        connection, count = cls(folder.name, at), 0
        while time.monotonic() < ends:
            asked = [str(one) for one in draw.choice(texts, draw.integers(1, 9))]
            try:
                found = connection.translate(asked)
            except Exception as error:
                wrong.append(error)
                return
            wrong.extend(
                (one, other)
                for one, other in zip(asked, found, strict=True)
                if other != expected[one]
            )
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(64)]
    for thread in threads:
        thread.start()
    time.sleep(12)  # all sizes have been seen
    before = memory()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(counts) > 0
    assert memory() - before < 200e6
