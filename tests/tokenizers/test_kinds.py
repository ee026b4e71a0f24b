"""Tokenizers for both sides by the name of their kind, saved and read back."""

import json
import re

import pytest

from keras_seqconv.tokenizers import (
    KINDS,
    CharacterTokenizer,
    DictionaryTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
    load_tokenizer,
    train_tokenizers,
)
from tests.cases import all_but
from tests.tokenizers.test_sentencepiece import TEXTS

ENGLISH, GERMAN = [*TEXTS[:2], TEXTS[4]], TEXTS[2:4]
OPTIONS = {
    "sentencepiece_bpe": {"vocabulary_size": 300},
    "sentencepiece_unigram": {"vocabulary_size": 292},
    "words": {},
    "characters": {},
    "moses_bpe": {"merges": 20, "moses": False},
}
CLASSES = {
    "sentencepiece_bpe": SentencePieceTokenizer,
    "sentencepiece_unigram": SentencePieceTokenizer,
    "words": WordTokenizer,
    "characters": CharacterTokenizer,
    "moses_bpe": DictionaryTokenizer,
}


def train(kind, joint, **more):
    options = OPTIONS[kind] | {"joint": joint} | more
    return train_tokenizers(kind, iter(ENGLISH), iter(GERMAN), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_joint_and_separate(kind):
    source, target = train(kind, True)
    assert source is target and type(source) is CLASSES[kind]
    assert source.detokenize(source.tokenize(TEXTS)) == TEXTS
    first, second = train(kind, False)
    assert type(first) is type(second) is CLASSES[kind]
    assert first.detokenize(first.tokenize(ENGLISH)) == ENGLISH
    assert second.detokenize(second.tokenize(GERMAN)) == GERMAN
    assert first.tokenize(["the"]) != second.tokenize(["the"])
    if kind.startswith("sentencepiece"):
        assert source.vocabulary_size == OPTIONS[kind]["vocabulary_size"]


@pytest.mark.parametrize("kind", all_but(KINDS[:1], KINDS))
def test_kept_with_the_model(kind, tmp_path):
    import keras_seqconv as ks

    source, target = train(kind, False)
    model = ks.models.EncoderDecoder(
        source.vocabulary_size, target.vocabulary_size, hidden_dim=8,
        intermediate_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    )  # fmt: skip
    translator = ks.Translator(model, source, target, search={"max_length": 5})
    translator.save(tmp_path / "model")
    loaded = ks.load(tmp_path / "model")
    assert type(loaded.source_tokenizer) is CLASSES[kind]
    assert loaded.source_tokenizer.tokenize(ENGLISH) == source.tokenize(ENGLISH)
    assert loaded.target_tokenizer.tokenize(GERMAN) == target.tokenize(GERMAN)
    if kind == "sentencepiece_bpe":
        texts = ["the  park", "green", ""]
        assert loaded.translate(texts) == translator.translate(texts)
    for path in (tmp_path / "model" / "source_tokenizer").iterdir():
        content = path.read_bytes()
        path.write_bytes(b"\xff{")
        with pytest.raises(ValueError, match=re.escape(path.name)):
            ks.load(tmp_path / "model")
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        {"model": "/etc/passwd"},
        {"vocabulary": "../../other.json"},
        {"kind": "keras_seqconv.tokenizers.common"},
        {"kind": None},
        {"format_version": 99},
    ],
)
def test_settings_of_strangers(kind, change, tmp_path):
    train(kind, True)[0].save(tmp_path)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("bpe", {}, "kind='bpe'"),
        (None, {}, "kind=None"),
        ("words", {"joint": 1}, "joint=1"),
        ("sentencepiece_bpe", {"vocabulary_size": None}, "vocabulary_size=None"),
        ("moses_bpe", {"languages": "de"}, "languages='de'"),
        ("moses_bpe", {"languages": ("de", "EN"), "moses": True}, "language='EN'"),
        ("words", {"source_texts": 5}, "`source_texts` must be a list of texts"),
        ("words", {"target_texts": ["a", 5]}, "`target_texts` must hold texts"),
        ("moses_bpe", {"target_texts": [" "]}, "`target_texts` must hold a word"),
    ],
)
def test_bad_arguments(kind, options, words):
    given = {"source_texts": ENGLISH, "target_texts": GERMAN} | OPTIONS.get(kind, {})
    with pytest.raises(ValueError, match=re.escape(words)):
        train_tokenizers(kind, **given | options)


def test_options_of_another_kind():
    with pytest.raises(TypeError, match="'merges'"):
        train_tokenizers("words", ENGLISH, GERMAN, merges=5)
