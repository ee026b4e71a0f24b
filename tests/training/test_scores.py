"""How the test split is translated and scored at the end of a run."""

from types import SimpleNamespace

import pytest

pytest.importorskip("pydantic", reason="the options need pydantic (extra mt)")

import keras_seqconv as ks
from keras_seqconv.training import train
from keras_seqconv.training.finish import _translations
from tests.training.test_train import corpus, options_for  # noqa: F401

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("language", "names"),
    [("de", ["BLEU", "chrF2", "BLEU4"]), ("zh", ["BLEU", "chrF2"]),
     ("th", ["chrF2", "BLEU"])],
)  # fmt: skip
def test_translations_of_the_test_split_are_written_and_scored(
    tmp_path, language, names
):
    """In the order of their sources, and by the words of their language."""
    sources = ["w3 w1 w9 w7", "w1 w2", "w2 w5 w6 w8", "w9"]
    hypotheses = [text.replace("w", "v") for text in sources]
    references = [text.replace("6", "7") for text in hypotheses]
    pairs = SimpleNamespace(
        texts=lambda split, side, most: {"source": sources, "target": references}[side]
    )
    translator = SimpleNamespace(
        target_language=language,
        translate=lambda texts: [text.replace("w", "v") for text in texts],
    )
    recipe, text = SimpleNamespace(scoring=""), SimpleNamespace(corpus=pairs)
    run = SimpleNamespace(folder=tmp_path)
    found = _translations(run, recipe, text, translator, "test", str)
    assert (tmp_path / "test.hypotheses").read_text().splitlines() == hypotheses
    kinds = {"BLEU": "bleu", "chrF2": "chrf", "BLEU4": "tokenized_bleu"}
    metrics = [kinds[name] for name in names]
    wanted = ks.evaluation.scores(
        hypotheses, references, metrics, target_language=language
    )
    assert [*found][2:] == names
    assert [found[name]["line"] for name in names] == [one.line for one in wanted]
    assert 0 < wanted[0].value < 100


def test_a_tokenizer_that_scoring_needs_is_missed_before_the_training(
    corpus,  # noqa: F811
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
