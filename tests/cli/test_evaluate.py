"""`keras-seqconv evaluate`: scores, comparisons, perplexity, one-line errors."""

import json

import pytest

import keras_seqconv as ks
from keras_seqconv.evaluation import text_perplexity, translation_perplexity
from tests.cli.commands import (
    call,
    loaded_once,  # noqa: F401
    make_language_model,
    make_translator,
    refused,
    write,
)

SOURCES = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9"]
sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra mt (sacrebleu)")


pytestmark = [pytest.mark.usefixtures("loaded_once"), pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, loaded_once):  # noqa: F811
    folder = tmp_path_factory.mktemp("evaluate")
    make_translator().save(folder / "model")
    make_language_model().save(folder / "language")
    texts = ks.load(str(folder / "model")).translate(SOURCES)
    write(folder / "source", *SOURCES)
    write(folder / "right", *texts)
    write(folder / "wrong", *["w1 w1 w1 w1"] * 3)
    write(folder / "short", "w1")
    write(folder / "empty")
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    """The one that the commands load: what it has traced serves both."""
    return ks.load(str(folder / "model"))


def test_given_hypotheses(folder, capsys):
    done = call(
        capsys, "evaluate", "--hypotheses", folder / "right", "--reference",
        folder / "right", "--metrics",
        "bleu,chrf,ter,tokenized_bleu,compound_split_bleu",
    )  # fmt: skip
    assert (done.status, done.errors) == (0, "")
    lines = done.output.splitlines()
    version = sacrebleu.__version__
    assert lines[0].startswith(
        f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version} = 100.00"
    )
    assert lines[1].startswith("chrF2|") and lines[2].startswith("TER|")
    assert lines[3].startswith("BLEU4 = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ")
    assert lines[4].startswith("compound-split BLEU4 = ")
    assert lines[5:] == ["BLEU 100.0"]


def test_model(folder, translator, tmp_path, capsys):
    done = call(
        capsys, "evaluate", folder / "model", "--source", folder / "source",
        "--reference", folder / "right", "--reference", folder / "wrong", "--metrics",
        "tokenized_bleu,perplexity", "--output-hypotheses", tmp_path / "out",
        "--num-beams", 2,
    )  # fmt: skip
    assert done.status == 0 and done.errors.startswith("3 lines, ")
    lines = done.output.splitlines()
    assert lines[0].startswith("translated 3 sentences, ") and "tokens/s" in lines[0]
    assert lines[1].startswith("BLEU4 = 100.00")
    expected = translation_perplexity(
        translator, SOURCES, (folder / "right").read_text().split("\n")[:-1]
    )
    assert lines[2:] == [*expected.lines(), "BLEU4 100.0"]
    assert (tmp_path / "out").read_text() == (folder / "right").read_text()
    done = call(
        capsys, "evaluate", folder / "model", "--source", folder / "source",
        "--reference", folder / "wrong", "--json", "--quiet", "--limit", 2,
    )  # fmt: skip
    assert (done.status, done.errors) == (0, "")
    result = json.loads(done.output)
    assert result["sentences"] == 2 and result["sentences_per_second"] > 0
    assert [score["name"] for score in result["scores"]] == ["BLEU", "chrF2"]


def test_comparison(folder, capsys):
    options = [
        "evaluate", "--hypotheses", folder / "right", "--reference", folder / "right",
        "--compare", folder / "wrong", "--samples", 50, "--seed", 1,
    ]  # fmt: skip
    done = call(capsys, *options)
    lines = done.output.splitlines()
    assert lines[2].startswith("paired bootstrap, 50 samples, seed 1, against ")
    assert lines[3].startswith("  bleu: 100.00 [100.00, 100.00] against ")
    assert "better in 100.0 % of the samples, p = " in lines[4]
    assert done.output == call(capsys, *options).output
    result = json.loads(call(capsys, *options, "--json").output)
    assert [one["metric"] for one in result["comparisons"]] == ["bleu", "chrf"]


def test_rouge(folder, capsys):
    pytest.importorskip("rouge_score", reason="needs the extra rouge (rouge-score)")
    done = call(
        capsys, "evaluate", "--hypotheses", folder / "right", "--reference",
        folder / "right", "--metrics", "rouge", "--rouge-separator", "<q>",
    )  # fmt: skip
    lines = done.output.splitlines()
    assert [line.partition("|")[0] for line in lines[:3]] == [
        "ROUGE-1", "ROUGE-2", "ROUGE-L",
    ]  # fmt: skip
    assert lines[3:] == ["ROUGE-1 100.0"]


def test_language_model(folder, capsys):
    options = ["evaluate", folder / "language", "--text", folder / "source"]
    done = call(capsys, *options, "--context-window", 3, "--tokens-per-sample", 5)
    expected = text_perplexity(
        make_language_model(), SOURCES, context_window=3, tokens_per_sample=5
    )
    lines = done.output.splitlines()
    assert lines[0].startswith("evaluated 12 tokens in ")
    assert lines[1:] == [*expected.lines(), f"perplexity {expected.perplexity:.2f}"]
    result = json.loads(call(capsys, *options, "--json").output)
    assert result["perplexity"]["words"] == 12


def test_dataset(folder, tmp_path, capsys):
    sources = pytest.importorskip("keras_seqconv.data.corpora")
    write(tmp_path / "test.en", *SOURCES)
    write(tmp_path / "test.xx", *(folder / "right").read_text().splitlines())
    write(tmp_path / "train.en", "w1"), write(tmp_path / "train.xx", "w2")
    assert sources.open_corpus
    # From which language into which the model says, and the folder of a run will do.
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "run.json", "{}")
    (tmp_path / "run" / "model").symlink_to(folder / "model")
    scored = ["evaluate", tmp_path / "run", "--dataset", tmp_path, "--quiet"]
    done = call(capsys, *scored)
    assert done.status == 0, done.errors
    assert done.output.splitlines()[-1] == "test BLEU 100.0"
    message = refused(capsys, *scored, "--source-language", "xx")
    assert f"--source-language must be that of {tmp_path / 'run'}, en." in message


def test_errors_in_one_line(folder, tmp_path, capsys):
    right, model = folder / "right", folder / "model"
    scored = ["--hypotheses", right, "--reference"]
    for arguments, words in (
        ([], "Give a MODEL, or translations by --hypotheses"),
        ([*scored, folder / "short"], "as many lines. Received: 3 and 1"),
        ([*scored, folder / "empty"], "empty must hold a line at least"),
        ([*scored, tmp_path / "none"], "none: No such file"),
        ([*scored, right, "--metrics", "blue"], "--metrics must be of bleu, chrf"),
        ([*scored, right, "--metrics", "perplexity"], "perplexity needs a MODEL"),
        ([*scored, right, "--tokenize", "14a"], "--tokenize must be one of"),
        ([*scored, right, "--compare", folder / "short"], "Received: 3 and 1"),
        ([model, "--reference", right], "--source is missing"),
        ([model, "--source", right], "--reference is missing"),
        ([model, *scored, right], "Give a MODEL or --hypotheses, not both"),
        (
            [model, "--source", folder / "short", "--reference", right],
            "short and",
        ),
        (
            [folder / "language", "--source", right, *scored[2:], right],
            "language model",
        ),
        ([model, "--text", right], "--text is for language models"),
        (["--text", right], "--text needs the directory of a language model"),
        ([folder / "language", "--text", folder / "empty"], "holds none"),
        (["--dataset", "x", *scored, right], "--dataset takes the place of"),
    ):
        found = refused(capsys, "evaluate", *arguments)
        assert words in found, (arguments, found)
