"""`keras-seqconv plot`: files of pictures, one-line errors."""

import json

import pytest

from keras_seqconv.evaluation import plots
from tests.cli.commands import (
    call,
    loaded_once,  # noqa: F401
    make_language_model,
    make_translator,
    refused,
    write,
)

pytestmark = [pytest.mark.usefixtures("loaded_once"), pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plot")
    make_translator().save(folder / "dynamic")
    make_translator(mixer="light_conv").save(folder / "light")
    make_language_model().save(folder / "language")
    for name in ("one", "two"):
        (folder / name).mkdir()
        records = [{"update": n, "nll": 3 / n, "val_bleu": n} for n in range(1, 9)]
        lines = [json.dumps({"event": "start"}), *map(json.dumps, records)]
        write(folder / name / "log.jsonl", *lines)
    with open(folder / "two" / "log.jsonl", "a") as stream:
        stream.write('{"update": 9, "nl')  # killed as it wrote
    write(folder / "broken.jsonl", "{", "{}")
    write(folder / "bare.jsonl", "{}")
    write(folder / "source", "w1 w2", "w3 " * 30)
    write(folder / "right", "w1 w2 w3 w4", "w1 w2 w3 w4")
    write(folder / "wrong", "w1 w2 w3 w5", "w9")
    return folder


def files(folder):
    return ["--source", folder / "source", "--reference", folder / "right"]


def drawn(capsys, output, *arguments):
    done = call(capsys, "plot", *arguments, "--output", output)
    assert done.status == 0, done.errors
    assert done.output == f"{output}\n"
    return output.read_bytes()


def test_pictures(folder, tmp_path, capsys):
    one, two = folder / "one", folder / "two" / "log.jsonl"
    content = drawn(capsys, tmp_path / "a.png", "curves", one, two)
    assert content.startswith(b"\x89PNG")
    content = drawn(capsys, tmp_path / "a.svg", "curves", one, one, "--names", "a", "b")
    assert b"<svg" in content
    drawn(capsys, tmp_path / "b.png", "kernels", folder / "light")
    dynamic, text = folder / "dynamic", ["--text", "w1 w2 w3"]
    for arguments in (
        [dynamic, *text],
        [dynamic, *text, "--layer", "decoder 1", "--translation", "w4"],
        [folder / "language", *text],
    ):
        drawn(capsys, tmp_path / "c.png", "dynamic-kernels", *arguments)
    systems = ["--hypotheses", folder / "right", folder / "wrong"]
    drawn(capsys, tmp_path / "d.png", "bleu-by-length", *files(folder), *systems)
    texts = ["--hypotheses", folder / "wrong", "--reference", folder / "right"]
    for unit in ("words", "characters"):
        drawn(capsys, tmp_path / "e.png", "confusion", *texts, "--unit", unit)


def test_runs_by_relative_paths_have_names(folder, tmp_path, capsys, monkeypatch):
    drawn_runs, original = [], plots.learning_curves
    monkeypatch.setattr(
        plots, "learning_curves", lambda runs: drawn_runs.extend(runs) or original(runs)
    )
    monkeypatch.chdir(folder / "two")
    drawn(capsys, tmp_path / "a.png", "curves", ".", "../one")
    assert drawn_runs == ["two", "one"]


def test_attention(folder, tmp_path, capsys, monkeypatch):
    drawn_arrays, original = [], plots.attention

    def attention(*arguments):
        drawn_arrays.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(plots, "attention", attention)
    model = folder / "dynamic"
    content = drawn(capsys, tmp_path / "a.pdf", "attention", model, "--text", "w1 w2")
    assert content.startswith(b"%PDF")
    # That of the search.
    ((weights, source, target),) = drawn_arrays
    options = {"return_attention": True}
    best = make_translator().translate_n_best(["w1 w2"], 1, **options)[0][0]
    assert abs(weights - best.attention).max() < 1e-4
    assert source == ["w1", "w2", "</s>"] and target == [*best.tokens, "</s>"]
    text = ["--text", "w1", "--translation", "w5"]
    drawn(capsys, tmp_path / "b.png", "attention", model, *text)
    assert drawn_arrays[1][2] == ["w5", "</s>"]


def test_errors_in_one_line(folder, tmp_path, capsys):
    one, dynamic, text = folder / "one", folder / "dynamic", ["--text", "w1"]
    log = ["--hypotheses", one / "log.jsonl"]
    for arguments, words in (
        (["curves", tmp_path / "none"], "none does not exist"),
        (["curves", folder / "broken.jsonl"], "jsonl, line 1 must be"),
        (["curves", folder / "bare.jsonl"], "records with an update"),
        (["curves", one, "--lr"], "(`keras-seqconv plot curves --help` lists"),
        (["curves", one, one], "different names: give --names"),
        (["curves", one, "--names", "a", "b"], "Received: 2 and 1"),
        (["attention", folder / "language", *text], "no attention to a source"),
        (["kernels", dynamic], "must have a LightConv layer"),
        (["dynamic-kernels", folder / "light", *text], "DynamicConv"),
        (["dynamic-kernels", dynamic, *text, "--layer", "x"],
         "--layer must be one of encoder 1, decoder 1"),
        (["confusion", *log, "--reference", one / "log.jsonl"], "they are equal"),
        (["confusion", *log], "arguments are required: --reference"),
        (["confusion", *log, "--number", "0"], "--number must be a positive integer"),
        (["bleu-by-length", *files(folder), *log], "texts. Received: 2 and 9"),
    ):  # fmt: skip
        found = refused(capsys, "plot", *arguments, "--output", tmp_path / "a.png")
        assert words in found, (arguments, found)
    assert not (tmp_path / "a.png").exists()
    wrong = refused(capsys, "plot", "curves", one, "--output", "a.gif")
    assert "--output must end in one" in wrong
    # Before the model is loaded, which has no kernels.
    output = ["--output", tmp_path / "no" / "a.png"]
    wrong = refused(capsys, "plot", "kernels", dynamic, *output)
    assert "no does not exist" in wrong
    assert "KIND" in refused(capsys, "plot")
