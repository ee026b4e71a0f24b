"""`keras-seqconv evaluate`: scores, comparisons, perplexity, one-line errors."""

import json

import pytest

import keras_seqconv as ks
from keras_seqconv.evaluation import text_perplexity, translation_perplexity
from tests import small_models
from tests.cli.commands import (
    call,
    loaded_once,  # noqa: F401
    make_language_model,
    make_translator,
    refused,
    write,
)

SOURCES = ["w1 w2 w3", "w25 w24 w23", "w6 w7 w8 w9"]
sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra mt (sacrebleu)")
pytestmark = [pytest.mark.usefixtures("loaded_once"), pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, loaded_once):  # noqa: F811
    folder = tmp_path_factory.mktemp("evaluate")
    make_translator().save(folder / "model")
    make_language_model().save(folder / "language")
    texts = ks.load(str(folder / "model")).translate(SOURCES)
    assert texts != sorted(texts)  # so that their order counts
    write(folder / "source", *SOURCES)
    write(folder / "right", *texts)
    write(folder / "wrong", *["w1 w1 w1 w1"] * 3)
    write(folder / "short", "w1")
    write(folder / "empty")
    return folder


def test_given_hypotheses_and_comparison(folder, capsys):
    right = folder / "right"
    options = ["evaluate", "--hypotheses", right, "--reference", right]
    metrics = "bleu,chrf,ter,tokenized_bleu,compound_split_bleu,rouge"
    options += ["--metrics", metrics, "--rouge-separator", "<q>"]
    done = call(capsys, *options)
    assert (done.status, done.errors) == (0, "")
    lines = done.output.splitlines()
    version = f"version:{sacrebleu.__version__}"
    signature = f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    starts = (
        f"BLEU|{signature} = 100.00", "chrF2|", "TER|",
        "BLEU4 = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ",
        "compound-split BLEU4 = ", "ROUGE-1|", "ROUGE-2|", "ROUGE-L|", "BLEU 100.0",
    )  # fmt: skip
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    options += ["--compare", folder / "wrong", "--samples", 50]
    done = call(capsys, *options)
    lines = done.output.splitlines()[8:]
    assert lines[0].startswith("sacreBLEU's paired bootstrap, 50 samples, against ")
    assert lines[1].startswith("  bleu: 100.00 (100.00 ± 0.00) against ")
    assert done.output == call(capsys, *options).output
    result = json.loads(call(capsys, *options, "--json").output)
    compared = [one["metric"] for one in result["comparisons"]]
    assert compared == metrics.split(",")[:-1]


def test_error_rates(folder, capsys):
    write(folder / "said", "K AE T", "D AO G")
    write(folder / "meant", "K AA T", "D AO G")
    options = ["evaluate", "--hypotheses", folder / "said"]
    options += ["--reference", folder / "meant"]
    lines = call(capsys, *options).output.splitlines()  # no text has four words
    for line, start in zip(
        lines, ("exact match|nrefs:1", "WER|", "CER|", "exact match 50.0"), strict=True
    ):
        assert line.startswith(start)
    done = call(capsys, *options, "--reference", folder / "said", "--metrics", "wer")
    assert done.output.splitlines()[-1] == "WER 0.0"


def test_model(folder, tmp_path, capsys):
    scored = ["evaluate", folder / "model", "--source", folder / "source"]
    done = call(
        capsys, *scored, "--reference", folder / "right", "--reference",
        folder / "wrong", "--metrics", "tokenized_bleu,perplexity",
        "--output-hypotheses", tmp_path / "out", "--num-beams", 2,
    )  # fmt: skip
    assert done.status == 0 and done.errors.startswith("3 lines, ")
    lines = done.output.splitlines()
    assert lines[0].startswith("translated 3 sentences, ") and "tokens/s" in lines[0]
    assert lines[1].startswith("BLEU4 = 100.00")
    right = (folder / "right").read_text()
    translator = ks.load(str(folder / "model"))
    expected = translation_perplexity(translator, SOURCES, right.split("\n")[:-1])
    assert lines[2:] == [*expected.lines(), "BLEU4 100.0"]
    assert (tmp_path / "out").read_text() == right
    options = ["--json", "--quiet", "--limit", 2]
    done = call(capsys, *scored, "--reference", folder / "wrong", *options)
    assert (done.status, done.errors) == (0, "")
    result = json.loads(done.output)
    assert result["sentences"] == 2 and result["sentences_per_second"] > 0
    assert [score["name"] for score in result["scores"]] == ["BLEU", "chrF2"]


def test_metrics_of_the_task_of_a_model(folder, capsys):
    translator = small_models.make_translator.__wrapped__("dictionary")
    translator.trained = {"preset": "dynamic_conv_g2p"}
    translator.save(folder / "symbols")
    for models in (["symbols"], ["symbols", "model"]):
        done = call(
            capsys, "evaluate", *(folder / name for name in models),
            "--source", folder / "source", "--reference", folder / "right", "--quiet",
        )  # fmt: skip
        starts = [line.partition("|")[0] for line in done.output.splitlines()[1:-1]]
        assert starts == ["exact match", "WER", "CER"]
    compared = ["evaluate", folder / "symbols", "--source", folder / "source"]
    compared += ["--reference", folder / "right", "--compare", folder / "wrong"]
    done = call(capsys, *compared, "--quiet", "--samples", 50)
    for name, value in (("exact", 100), ("wer", 0), ("cer", 0)):
        assert f"\n  {name}: {value:.2f} ({value:.2f} ± 0.00) against" in done.output


def test_what_cannot_be_compared(folder, capsys):
    files = ["--hypotheses", folder / "right", "--reference", folder / "right"]
    compared = ["evaluate", *files, "--compare", folder / "wrong", "--samples", 50]
    done = call(capsys, *compared, "--metrics", "rouge")
    assert done.status == 2 and "--compare needs one of the --metrics" in done.errors
    done = call(capsys, *compared, "--metrics", "chrf,rouge")
    assert "  chrf: 100.00" in done.output
    assert "\n  not compared: rouge\n" in done.output


def test_language_model(folder, capsys):
    options = ["evaluate", folder / "language", "--text", folder / "source"]
    done = call(capsys, *options, "--context-window", 3, "--tokens-per-sample", 5)
    sizes = {"context_window": 3, "tokens_per_sample": 5}
    expected = text_perplexity(make_language_model(), SOURCES, **sizes)
    lines = done.output.splitlines()
    assert lines[0].startswith("evaluated 13 tokens in ")
    assert lines[1:] == [*expected.lines(), f"perplexity {expected.perplexity:.2f}"]
    result = json.loads(call(capsys, *options, "--json").output)
    assert result["perplexity"]["words"] == 13


def test_dataset(folder, tmp_path, capsys):
    for split, texts in (("train", SOURCES), ("test", SOURCES)):
        write(tmp_path / f"{split}.en", *texts)
        write(tmp_path / f"{split}.xx", *(folder / "right").read_text().splitlines())
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
    rows = zip(SOURCES, (folder / "right").read_text().splitlines(), strict=True)
    table = write(tmp_path / "table.tsv", "en\txx", *map("\t".join, rows))
    scored[3:4] = [table, "--split", "train"]
    assert "error: --tsv-header must say whether line 1" in refused(capsys, *scored)
    done = call(capsys, *scored, "--tsv-header", "true")
    assert done.output.splitlines()[-1] == "train BLEU 100.0"


def test_the_header_of_the_training(folder, tmp_path, capsys):
    rows = zip(SOURCES, (folder / "right").read_text().splitlines(), strict=True)
    write(tmp_path / "test.tsv", "w9\tw9 w9", *map("\t".join, rows))
    translator = small_models.make_translator.__wrapped__("dictionary")
    translator.trained = {"dataset": str(tmp_path), "tsv_header": True}
    translator.save(tmp_path / "model")
    scored = [tmp_path / "model", "--dataset", tmp_path, "--metrics", "exact"]
    languages = ["--source-language", "en", "--target-language", "xx"]
    for flags, right in (([], "of 3 texts"), (["--tsv-header", "false"], "of 4 texts")):
        done = call(capsys, "evaluate", *scored, *languages, *flags, "--quiet")
        assert right in done.output, done.errors


def test_the_variant_of_the_training_and_bad_lines(folder, tmp_path, capsys):
    right = (folder / "right").read_text().splitlines()
    for variant, texts in (("", ["w9"] * 4), ("lc.", [*right, " "])):
        write(tmp_path / f"test.{variant}en", *SOURCES, "w1")
        write(tmp_path / f"test.{variant}xx", *texts)
    translator = small_models.make_translator.__wrapped__("dictionary")
    translator.trained = {"dataset": str(tmp_path), "variant": "lc"}
    translator.save(tmp_path / "model")
    scored = ["--dataset", tmp_path, "--quiet", "--skip-bad-lines"]
    done = call(capsys, "evaluate", tmp_path / "model", *scored)
    assert done.output.splitlines()[-1] == "test BLEU 100.0", done.errors
    done = call(capsys, "evaluate", folder / "model", *scored, "--variant", "lc")
    assert done.output.splitlines()[-1] == "test BLEU 100.0", done.errors
    perplexity = [*scored, "--variant", "lc", "--metrics", "perplexity"]
    done = call(capsys, "evaluate", folder / "model", *perplexity)
    assert done.status == 0 and "translated" not in done.output


def test_errors_in_one_line(folder, tmp_path, capsys):
    right, model, language = (folder / n for n in ("right", "model", "language"))
    short, source = folder / "short", ["--source", folder / "source"]
    gap = write(tmp_path / "gap", "a", " ", "b")
    (latin := tmp_path / "latin").write_bytes("ä\n".encode("latin1"))
    small_models.make_conv_s2s().save(plain := tmp_path / "plain")
    scored = ["--hypotheses", right, "--reference"]
    for arguments, words in (
        ([], "Give a MODEL, or translations by --hypotheses"),
        ([*scored, short], "as many lines. Received: 3 and 1"),
        ([*scored, folder / "empty"], "empty must hold a line at least"),
        ([*scored, gap, "--reference", right], "first of --reference must have no em"),
        ([model, *source, "--reference", gap], "Received: line 2 is empty"),
        ([*scored, tmp_path / "none"], "none: No such file"),
        ([*scored, right, "--metrics", "blue"], "--metrics must be one of"),
        ([*scored, right, "--metrics", "blue"], "'cer', 'perplexity'). Received"),
        ([*scored, right, "--metrics", "perplexity"], "perplexity needs a MODEL"),
        ([*scored, right, "--tokenize", "14a"], "--tokenize must be one of"),
        ([*scored, right, "--compare", short], "Received: 3 and 1"),
        ([model, "--reference", right], "--source is missing"),
        ([model, "--source", right], "--reference is missing"),
        ([model, *scored, right], "Give a MODEL or --hypotheses, not both"),
        ([*scored, right, short], "short is a file, no MODEL: each of several"),
        (["--references", right, short], "option --references. Did you mean --refe"),
        ([model, *source, "--reference", short], "source and"),
        ([language, *source, "--reference", right], "language model"),
        ([model, "--text", right], "--text is for language models"),
        (["--text", right], "--text needs the directory of a language model"),
        (["--dataset", "./none", *scored[:2]], "--dataset must be there, as it is a"),
        (
            [plain, "--dataset", right, "--split", "train", "--metrics", "perplexity"],
            "must have sources to translate",
        ),
        ([*scored, latin], "line 1 has the byte 0xe4 at position 1."),
        ([*scored, right, "--dtype", "float16"], "--dtype needs a MODEL that transl"),
        ([language, "--text", folder / "empty"], "empty must hold a line at least"),
        ([*scored, right, "--runtime", "onnx"], "--runtime needs a MODEL that transl"),
        ([*scored, right, "--num-beams", 2], "--num-beams needs a MODEL that transl"),
        ([*scored, right, "--output-hypotheses", "x"], "--output-hypotheses needs a M"),
        ([*scored, right, "--rouge-separator", ""], "--rouge-separator must not be e"),
        (
            [language, "--text", right, "--parallel-batches", 2],
            "--parallel-batches needs a MODEL that translates",
        ),
        ([*scored, right, "--samples", 9], "--samples needs --compare"),
        ([*scored, right, "--split", "x"], "--split needs --dataset. Received: x"),
        ([*scored, right, "--context-window", 5], "--context-window needs --text"),
        (
            [language, "--text", right, "--metrics", "chrf"],
            "--metrics must not be given with --text",
        ),
        (
            [model, *source, "--reference", right, "--output-hypotheses", folder],
            "must be a regular file",
        ),
        (
            [model, *source, "--reference", right, "--output-hypotheses", right],
            "--output-hypotheses must be no file that is read",
        ),
        (
            [model, *source, "--reference", right, "--output-hypotheses", "no/x"],
            "The folder no does not exist",
        ),
        (["--dataset", "x", *scored, right], "--dataset takes the place of"),
    ):
        found = refused(capsys, "evaluate", *arguments)
        assert words in found, (arguments, found)
    assert len(right.read_text().splitlines()) == 3
