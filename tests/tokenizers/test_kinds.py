"""The contract of all kinds: ids, texts of all sorts, training, folders, processes."""

import itertools
import json
import pickle
import random
import re

import pytest

from keras_seqconv.tokenizers import (
    KINDS,
    CharacterTokenizer,
    Dictionary,
    DictionaryTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
    load_tokenizer,
    train_tokenizers,
)
from tests.tokenizers.test_sentencepiece import FOLDING, MODELS, TEXTS

TOKENIZERS = {
    **{f"{kind}{'+bytes' * fallback}": t for (kind, fallback), t in MODELS.items()},
    **FOLDING,
    "words": WordTokenizer.train([*TEXTS, "\ufffd"]),
    "characters": CharacterTokenizer.train([*TEXTS, "\ufffd \0", "</s><pad_k>"]),
    "dictionary": DictionaryTokenizer(Dictionary([("the", 2), ("\u2003", 1)])),
    "byte pairs": train_tokenizers(
        "moses_bpe", (), [*TEXTS, "\ufffd"], merges=20, moses=False, lowercase=True
    )[1],
}
ENGLISH, GERMAN = [*TEXTS[:2], TEXTS[4]], TEXTS[2:4]
OPTIONS = {
    "sentencepiece_bpe": {"vocabulary_size": 300},
    "sentencepiece_unigram": {"vocabulary_size": 292},
    "words": {},
    "characters": {},
    "moses_bpe": {"merges": 20, "moses": False},
}
_SENTENCEPIECE = (SentencePieceTokenizer, ["sentencepiece.model"])
CLASSES = {  # and files
    "sentencepiece_bpe": _SENTENCEPIECE,
    "sentencepiece_unigram": _SENTENCEPIECE,
    "words": (WordTokenizer, ["vocabulary.json"]),
    "characters": (CharacterTokenizer, ["vocabulary.json"]),
    "moses_bpe": (DictionaryTokenizer, ["bpe.codes", "dict.txt"]),
}

# --- Ids and texts. ---


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_ids_and_foreign_ones(name):
    tokenizer = TOKENIZERS[name]
    assert (tokenizer.pad_id, tokenizer.start_id) == (1, 2)
    assert (tokenizer.end_id, tokenizer.unk_id) == (2, 3)
    never = [0, 1, 3] if isinstance(tokenizer, SentencePieceTokenizer) else [0, 1]
    assert tokenizer.unspellable_ids[: len(never)] == never
    ((*the, end),) = tokenizer.tokenize(["the"])
    assert end == 2 and min(the) > 3 and max(the) < tokenizer.vocabulary_size
    rows = [[0, *the, 1, 2, *the], [1], [], [2], [*the, 3], [*the, -1], [*the, 10**6]]
    blank = " " * (name in ("words", "dictionary", "byte pairs"))
    assert tokenizer.detokenize(rows) == ["the", "", "", ""] + [f"the{blank}<unk>"] * 3
    assert tokenizer.to_tokens([3, 10**6]) == ["<unk>", "<unk>"]
    assert tokenizer.detokenize([]) == tokenizer.tokenize([]) == []
    with pytest.raises(ValueError, match="must be a list of texts"):
        tokenizer.tokenize("the")
    with pytest.raises(ValueError, match="must hold texts. Received: None"):
        tokenizer.tokenize(["the", None])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_comes_in_pieces_that_stay(name):
    """Also where ids are of any kind: bytes of characters that are cut, blanks."""
    tokenizer, draw = TOKENIZERS[name], random.Random(1)
    rows = tokenizer.tokenize([*TEXTS, "  a  b ", ""])
    rows += [draw.choices(range(tokenizer.vocabulary_size), k=40) for _ in range(20)]
    for ids in rows:
        pieces = list(tokenizer.text_in_pieces(iter(ids)))
        assert "".join(pieces) == tokenizer.detokenize([ids])[0]
    ids = tokenizer.tokenize(["the the the"])[0][:-1]
    read = []
    next(tokenizer.text_in_pieces(read.append(i) or i for i in itertools.cycle(ids)))
    assert len(read) == 1


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_symbols_in_a_text_are_text(name):
    tokenizer, text = TOKENIZERS[name], "<pad> the </s><s> <unk>"
    (ids,) = tokenizer.tokenize([text])
    assert not {0, 1, 2} & set(ids[:-1]) and ids[-1] == 2
    if name == "characters" or name.endswith("+bytes"):
        assert 3 not in ids and tokenizer.detokenize([ids]) == [text]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_not_utf8(name):
    for received, text in (
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        ("\ud800", "\ufffd\ufffd\ufffd"),
        (b"ok", "ok"),
    ):
        tokenizer = TOKENIZERS[name]
        assert tokenizer.split(received) == tokenizer.split(text)
        assert tokenizer.tokenize([received]) == tokenizer.tokenize([text])


# --- Training. ---


def train(kind, joint, **more):
    options = OPTIONS[kind] | {"joint": joint} | more
    return train_tokenizers(kind, iter(ENGLISH), iter(GERMAN), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_joint_and_separate(kind):
    source, target = train(kind, True)
    assert source is target and type(source) is CLASSES[kind][0]
    assert source.detokenize(source.tokenize(TEXTS)) == TEXTS
    first, second = train(kind, False)
    assert type(first) is type(second) is CLASSES[kind][0]
    assert first.detokenize(first.tokenize(ENGLISH)) == ENGLISH
    assert second.detokenize(second.tokenize(GERMAN)) == GERMAN
    assert first.tokenize(["the"]) != second.tokenize(["the"])
    if kind.startswith("sentencepiece"):
        assert source.vocabulary_size == OPTIONS[kind]["vocabulary_size"]


# --- Folders. ---


@pytest.mark.parametrize("kind", KINDS)
def test_folders_and_pickles(kind, tmp_path):
    (tokenizer, _), (cls, files) = train(kind, True), CLASSES[kind]
    folder = tmp_path / "deep" / "source"
    tokenizer.save(folder)
    names = sorted([*files, "settings.json"])
    assert sorted(path.name for path in folder.iterdir()) == names
    texts = ["the  park", "grün <unk> \u2028", ""]
    for again in (load_tokenizer(folder), pickle.loads(pickle.dumps(tokenizer))):
        assert type(again) is cls
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
def test_settings_of_strangers(kind, tmp_path):
    tokenizer, path = train(kind, True)[0], tmp_path / "settings.json"
    changes = [
        ({"model": "/etc/passwd"}, "unknown settings ['model']"),
        ({"bpe_codes": "../../other"}, "unknown settings ['bpe_codes']"),
        ({"kind": "keras_seqconv.tokenizers.common"}, "kind='keras_seqconv.tok"),
        ({"format_version": 99}, "format_version=99"),
    ]
    if kind == "moses_bpe":
        changes += [
            ({"bpe": "../secret"}, "bpe='../secret'"),
            ({"language": "../../x"}, "language='../../x'"),
            ({"moses": 1, "language": "de"}, "moses=1"),
        ]
    for change, words in changes:
        tokenizer.save(tmp_path)
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(ValueError, match=re.escape(words)) as error:
            load_tokenizer(tmp_path)
        assert str(tmp_path) in str(error.value)
