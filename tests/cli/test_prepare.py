"""`keras-seqconv prepare`: flags, what it prints, how it refuses."""

import pytest

import keras_seqconv_cli as cli
from keras_seqconv.tokenizers import load_tokenizer


def prepare(*arguments):
    return cli.main(["prepare", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    found = []
    for lang, texts in (("de", ["Das Haus.", "Ein Baum!", "x y z"]),
                        ("en", ["The house.", "A tree!", "w"])):  # fmt: skip
        found.append(tmp_path / f"my.{lang}")
        found[-1].write_text("".join(text + "\n" for text in texts * 4))
    return found


def test_prints_counts_and_what_to_do_next(files, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(
        "corpus", "--source", "de", "--target", "en", "--train", *files,
        "--valid-every", 5, "--ratio", 2, "--merges", 20, "--workers", 1,
        "--output", out,
    ) == 0  # fmt: skip
    printed = capsys.readouterr()
    counts = {
        line.rpartition("  ")[0].strip(): line.split()[-1]
        for line in printed.out.splitlines()
        if line.startswith("  ")
    }
    assert counts["pairs"] == "12" and counts["length ratio above 2"] == "4"
    assert counts["to train"] == "7" and counts["to valid"] == "1"
    assert counts["empty"] == "0"  # filters that left nothing out are shown too
    assert f"train --dataset {out} --tokenizer {out}" in printed.out
    assert "my.de: 12 pairs" in printed.err
    assert (out / "train.de").read_text().startswith("Das Haus.\nEin Baum!\n")
    assert load_tokenizer(out / "tokenizers/source").language == "de"


def test_lists_files_and_names_missing_ones(tmp_path, capsys):
    assert prepare("wmt16", tmp_path, "--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 7 and listed[6].startswith("optional bpe.32000")
    assert listed[0].startswith("missing  train.tok.clean.bpe")
    assert prepare("iwslt14", tmp_path, "--output", tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert "missing  de-en/train.tags.de-en.de (in de-en.tgz), from http" in printed
    assert printed.splitlines()[-1].startswith(f"error: In {tmp_path} there must be:")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["iwslt14", "."], "--output must be given"),
        (["iwslt14", "nowhere", "--output", "out"], "DATA must exist"),
        (["wmt14", ".", "--target", "cs", "--output", "out"], "--source and --target"),
        (
            ["corpus", "--source", "de", "--target", "en", "--train", "a", "b",
             "--ratio", "0.1", "--output", "out"],
            "--ratio must be at least 1",
        ),
    ],
)  # fmt: skip
def test_refuses_in_one_line(arguments, problem, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert prepare(*arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {problem}")


def test_unknown_recipe(capsys):
    with pytest.raises(SystemExit):
        prepare("wmt99")
    assert "wmt99" in capsys.readouterr().err
