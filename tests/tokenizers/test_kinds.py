"""All kinds by their names: trained for both sides, kept in folders, read elsewhere."""

import ast
import inspect
import json
import pickle
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


FILES = {
    SentencePieceTokenizer: ["sentencepiece.model"],
    WordTokenizer: ["vocabulary.json"],
    CharacterTokenizer: ["vocabulary.json"],
    DictionaryTokenizer: ["bpe.codes", "dict.txt"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_folders_and_pickles(kind, tmp_path):
    tokenizer, _ = train(kind, True)
    folder = tmp_path / "deep" / "source"
    tokenizer.save(folder)
    names = sorted([*FILES[CLASSES[kind]], "settings.json"])
    assert sorted(path.name for path in folder.iterdir()) == names
    texts = ["the  park", "grün <unk> \u2028", ""]
    for again in (load_tokenizer(folder), pickle.loads(pickle.dumps(tokenizer))):
        assert type(again) is CLASSES[kind]
        ids = again.tokenize(texts)
        assert ids == tokenizer.tokenize(texts)
        assert again.detokenize(ids) == tokenizer.detokenize(ids)
        assert again.unspellable_ids == tokenizer.unspellable_ids
        again.save(tmp_path / "again")
        for name in names:
            content = (tmp_path / "again" / name).read_bytes()
            assert content == (folder / name).read_bytes()
    # Damaged and missing files are named, or the folder of what does not fit.
    for path in folder.iterdir():
        content, damages = path.read_bytes(), [b"\xff{", b"["]
        if path.suffix in (".json", ".model"):
            damages += [b"", b"[" * 100_000, content[: len(content) // 2]]
        for damage in damages:
            path.write_bytes(damage)
            with pytest.raises(ValueError, match=re.escape(str(folder))):
                load_tokenizer(folder)
        path.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(path.name)):
            load_tokenizer(folder)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/etc/passwd"}, "unknown settings ['model']"),
        ({"bpe_codes": "../../other"}, "unknown settings ['bpe_codes']"),
        ({"kind": "keras_seqconv.tokenizers.common"}, "kind='keras_seqconv.tok"),
        ({"kind": ["words"]}, "kind=['words']"),
        ({"kind": None}, "kind=None"),
        ({"format_version": 99}, "format_version=99"),
    ],
)
def test_settings_of_strangers(kind, change, words, tmp_path):
    train(kind, True)[0].save(tmp_path)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        load_tokenizer(tmp_path)
    assert str(path) in str(error.value)


def outcome(texts, folders):
    """Models and ids, as plain values."""
    found = []
    for kind, size in (("bpe", 300), ("unigram", 295)):
        model = SentencePieceTokenizer.train(texts, size, kind, max_texts=4, seed=3)
        found.append(model.model)
    for folder in folders:
        tokenizer = load_tokenizer(folder)
        ids = tokenizer.tokenize(["the young  Mann", ""])
        found.append([type(tokenizer).__name__, ids, tokenizer.detokenize(ids)])
    return found


CODE = """
import sys

from keras_seqconv.tokenizers import SentencePieceTokenizer, load_tokenizer
{outcome}
print(outcome({texts}, sys.argv[1:]))
"""


@pytest.mark.slow
def test_another_process_does_the_same(tmp_path, fresh_process):
    folders = [str(tmp_path / kind) for kind in KINDS]
    for kind, folder in zip(KINDS, folders, strict=True):
        train(kind, True)[0].save(folder)
    code = CODE.format(outcome=inspect.getsource(outcome), texts=TEXTS)
    found = ast.literal_eval(fresh_process(code, *folders))
    assert found == outcome(TEXTS, folders)


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
