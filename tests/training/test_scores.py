"""How the test split is translated and scored at the end of a run, by kind of model."""

import functools
import itertools
import json
import sys
from types import SimpleNamespace

import pytest

import keras_seqconv as ks
from keras_seqconv.training import train
from keras_seqconv.training.finish import _translations
from keras_seqconv_cli import main
from tests.cli.commands import write
from tests.training.runs import options_for

pytestmark = pytest.mark.tensorflow
SYMBOLS = {
    "hidden_dim": 64, "intermediate_dim": 64, "num_heads": 2, "num_encoder_layers": 1,
    "num_decoder_layers": 1, "kernel_sizes": [3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "language", "metrics", "lowercase"),
    [("phrases", "de", ["bleu", "chrf", "tokenized_bleu"], False),
     ("phrases", "zh", ["bleu", "chrf"], False),
     ("multi30k", "de", ["bleu", "chrf", "tokenized_bleu"], True),
     ("wmt_en_de", "de", ["bleu", "chrf", "compound_split_bleu"], False)],
)  # fmt: skip
def test_translations_of_the_test_split_are_written_and_scored(
    tmp_path, preset, language, metrics, lowercase
):
    """In the order of their sources, and by the words of their language."""
    sources = ["w3 w1 w9 w7", "w1  w2", "w2 w5 w6 w8", "w9"]
    hypotheses = [text.replace("w", "v") for text in sources]
    references = [text.replace("6", "7").replace("v1", "V1") for text in hypotheses]
    pairs = SimpleNamespace(
        texts=lambda split, side, most: {"source": sources, "target": references}[side]
    )
    translator = SimpleNamespace(
        target_language=language,
        translate=lambda texts: [text.replace("w", "v") for text in texts],
    )
    options = SimpleNamespace(preset=f"dynamic_conv_{preset}", metrics=None)
    run = SimpleNamespace(folder=tmp_path, options=options)
    found = _translations(run, SimpleNamespace(corpus=pairs), translator, "test", str)
    assert (tmp_path / "test.hypotheses").read_text().splitlines() == hypotheses
    score = functools.partial(ks.evaluation.scores, hypotheses, references)
    wanted = score(metrics[:2], target_language=language)
    wanted += score(metrics[2:], lowercase=lowercase)
    assert [*found][2:] == [one.name for one in wanted]
    assert [found[one.name]["line"] for one in wanted] == [one.line for one in wanted]
    assert 0 < wanted[0].value < 100


def test_the_package_of_error_rates_is_missed_before_the_training(
    corpus,
    tmp_path,
    monkeypatch,
):
    """By the texts of the test split: without four words BLEU gives way."""
    monkeypatch.setitem(sys.modules, "jiwer", None)
    for side in ("en", "de"):
        (corpus / f"test.{side}").write_text("one two\nsix\n")
    with pytest.raises(ImportError, match="jiwer.*mt"):
        train(options_for(corpus, tmp_path / "run"), str)
    assert not (tmp_path / "run" / "log.jsonl").exists()


@pytest.mark.slow
def test_symbols(tmp_path, capsys):
    """Words to their letters with blanks between them, by the metrics of the preset."""
    words = ["".join(letters) for letters in itertools.product("abc", repeat=4)]
    for split, texts in (("train", words * 4), ("valid", words[::9]), ("test", words)):
        write(tmp_path / f"{split}.letters", *texts)
        write(tmp_path / f"{split}.phones", *(" ".join(text) for text in texts))
    options = [
        "train", "--preset", "dynamic_conv_g2p", "--dataset", tmp_path,
        "--source", "letters", "--target", "phones",
        "--workdir", tmp_path / "run", "--tokens-per-batch", 512,
        "--max-updates", 160, "--warmup-steps", 40, "--jit-compile", "false",
        "--learning-rate", 0.01, "--dropout", 0, "--architecture", json.dumps(SYMBOLS),
    ]  # fmt: skip
    wrong = [*options, "--metrics", "exakt"]
    assert main([*map(str, wrong)]) == 2
    assert "--metrics must be one of" in capsys.readouterr().err
    assert main([*map(str, options)]) == 0
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["exact match"]["score"] > 90 and scores["WER"]["score"] < 5
    assert "CER" in scores and "BLEU" not in scores
    assert "test exact match " in capsys.readouterr().out
    translator = ks.load(tmp_path / "run")
    (best, *_), _ = translator.translate_n_best(["cabb", "a"], 3)
    assert best.text == "c a b b"
    assert best.score == pytest.approx(best.positional_scores.sum(), abs=1e-5)
    saved = ks.export.saved_model(translator, tmp_path / "saved", run=tmp_path / "run")
    assert "exact match|nrefs:1" in (saved / "MODEL_CARD.md").read_text()


@pytest.mark.slow
def test_characters_of_a_text_file(tmp_path, capsys):
    """A running text whose lines alternate: a model must know where lines end."""
    write(tmp_path / "text.txt", *["to be", "or not"] * 150)
    architecture = {"hidden_dim": 32, "intermediate_dim": 32, "num_layers": 2}
    options = [
        "train", "--preset", "light_conv_lm_characters", "--workdir", tmp_path / "run",
        "--dataset", tmp_path / "text.txt", "--validation-share", "0.1",
        "--architecture", json.dumps(architecture | {"kernel_sizes": [3, 7]}),
        "--tokens-per-sample", 64, "--tokens-per-batch", 512, "--max-updates", 60,
        "--warmup-steps", 10, "--learning-rate", "0.02", "--dropout", 0,
    ]  # fmt: skip
    assert main([*map(str, options)]) == 0
    printed = capsys.readouterr().out
    assert "\nvalidation perplexity 1." in printed
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["split"] == "validation" and scores["bits"] < 0.3
    sample = (tmp_path / "run" / "sample.txt").read_text()
    assert "to be\nor not\nto be\n" in sample and sample in printed
    generate = ["generate", str(tmp_path / "run"), "--prompt", "to be\n", "--seed", "1"]
    assert main([*generate, "--length", "39", "--temperature", "0.1"]) == 0
    assert capsys.readouterr().out == "to be\nor not\n" * 3 + "\n"
    evaluate = ["evaluate", str(tmp_path / "run"), "--text", str(tmp_path / "text.txt")]
    assert main([*evaluate, "--context-window", "32"]) == 0
    # A line break is a character like any other, and there is no other end.
    assert "(1,950 characters)" in capsys.readouterr().out


def test_a_tokenizer_that_scoring_needs_is_missed_before_the_training(
    corpus,
    tmp_path,
    monkeypatch,
):
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    for path in corpus.glob("*.de"):
        path.rename(path.with_suffix(".ja"))
    options = options_for(corpus, tmp_path / "run", target_language="ja")
    with pytest.raises(ImportError, match=r"of 'ja'.*pip install sacrebleu\[ja\]"):
        train(options, str)
    assert not (tmp_path / "run" / "log.jsonl").exists()
