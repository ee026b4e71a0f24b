"""SentencePiece: every text comes back, ids are ours, wrong input is named."""

import io
import os
import re
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import SentencePieceTokenizer
from tests.cases import quick_and_slow

sentencepiece = pytest.importorskip("sentencepiece", reason="needs the extra mt")

TEXTS = [
    "the house is big and the garden is green",
    "a young man runs through the park &apos; in the rain",
    "ein Haus ist groß und der Garten ist grün",
    "der junge Mann läuft im Regen durch den Park",
    "young people are running in a green park near the big house",
]
TYPES = ("bpe", "unigram")
SIZES = {"bpe": 400, "unigram": 310}
MODELS = {
    (kind, fallback): SentencePieceTokenizer.train(
        TEXTS,
        SIZES[kind] if fallback else SIZES[kind] - 256,
        kind,
        byte_fallback=fallback,
        character_coverage=1,
    )
    for kind in TYPES
    for fallback in (True, False)
}
# Lone surrogates are no text and do not come back: `test_what_is_not_utf8`.
ANY_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")
)
LIKELY_TEXT = st.text("  \t\n\0thedogäß&;<>/\u2582😀\u00a0\ufffd", max_size=40)
KNOWN_TEXT = st.text("  thegarnisläü&;pos", max_size=40)


@pytest.mark.parametrize("kind", TYPES)
def test_ids_and_special_symbols(kind):
    tokenizer = MODELS[kind, True]
    assert tokenizer.vocabulary_size == SIZES[kind]
    assert (tokenizer.pad_id, tokenizer.start_id) == (1, 2)
    assert (tokenizer.end_id, tokenizer.unk_id) == (2, 3)
    assert tokenizer.unspellable_ids == [0, 1, 3]
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    assert [processor.id_to_piece(i) for i in range(4)] == [
        "<s>", "<pad>", "</s>", "<unk>",
    ]  # fmt: skip
    assert (processor.bos_id(), processor.pad_id()) == (0, 1)
    assert (processor.eos_id(), processor.unk_id()) == (2, 3)
    text = "<pad> the </s><s> <unk>"
    (ids,) = tokenizer.tokenize([text])
    assert ids[-1] == 2 and min(ids[:-1]) > 3
    assert tokenizer.detokenize([ids]) == [text]


@pytest.mark.parametrize("kind", TYPES)
def test_padding_end_and_foreign_ids(kind):
    tokenizer = MODELS[kind, True]
    ((*the, _),) = tokenizer.tokenize(["the"])
    assert tokenizer.detokenize([[0, *the, 1, 2, *the], [1], [], [2]]) == [
        "the", "", "", "",
    ]  # fmt: skip
    assert tokenizer.detokenize([[*the, 3]]) == ["the<unk>"]
    assert tokenizer.detokenize([[*the, -1], [*the, 10**6]]) == ["the<unk>"] * 2
    assert tokenizer.to_tokens([3, 10**6]) == ["<unk>", "<unk>"]
    assert tokenizer.detokenize([]) == tokenizer.tokenize([]) == []
    with pytest.raises(ValueError, match="must be a list of texts"):
        tokenizer.tokenize("the")
    with pytest.raises(ValueError, match="must hold texts. Received: None"):
        tokenizer.tokenize(["the", None])


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None)
@given(text=ANY_TEXT | LIKELY_TEXT)
@example(text="  two  blanks ")
@example(text=" ")
@example(text="\0")
@example(text="it &apos;s \t here\r\n")
def test_any_text_comes_back(kind, text):
    tokenizer = MODELS[kind, True]
    (ids,) = tokenizer.tokenize([text])
    assert ids[-1] == 2 and min(ids[:-1], default=4) > 3
    assert tokenizer.detokenize([ids]) == [text]
    assert tokenizer.join(tokenizer.split(text)) == text
    assert tokenizer.to_tokens(ids) == tokenizer.split(text)


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None)
@given(text=KNOWN_TEXT)
def test_without_bytes_known_characters_come_back(kind, text):
    tokenizer = MODELS[kind, False]
    assert tokenizer.detokenize(tokenizer.tokenize([text])) == [text]
    ids = tokenizer.tokenize(["the 😀😀 a"])
    assert tokenizer.detokenize(ids) == ["the <unk> a"]
    assert tokenizer.split("the 😀😀 a")[-2:] == ["😀😀", "▁a"]


def test_the_blank_sign_is_a_blank():
    assert MODELS["bpe", True].detokenize(
        MODELS["bpe", True].tokenize(["a\u2581b\u2581 "])
    ) == ["a b  "]


@settings(deadline=None)
@given(ids=st.lists(st.integers(-2, 410), max_size=12))
def test_joined_tokens_are_the_text(ids):
    """Also where ids spell bytes that are no character."""
    for tokenizer in MODELS.values():
        text = tokenizer.detokenize([ids])[0]
        assert tokenizer.join(tokenizer.to_tokens(ids)) == text


def test_tokens_of_the_source_can_be_joined():
    tokenizer = MODELS["bpe", True]
    assert tokenizer.join(["▁Xylo", "phon", "▁the"]) == "Xylophon the"
    assert tokenizer.join(["<0xE2>", "<0x82>", "▁x", "<0xC3>", "<0xA4>"]) == (
        "\ufffd\ufffd xä"
    )
    assert tokenizer.join([]) == ""


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        ("\ud800", "\ufffd\ufffd\ufffd"),
        (b"ok", "ok"),
    ],
)
def test_what_is_not_utf8(received, text):
    for tokenizer in MODELS.values():
        assert tokenizer.tokenize([received]) == tokenizer.tokenize([text])


@pytest.mark.parametrize("kind", TYPES)
def test_long_texts(kind):
    tokenizer = MODELS[kind, True]
    for text in ("the garden " * 5000, "x" * 100_000):
        assert tokenizer.detokenize(tokenizer.tokenize([text])) == [text]


@pytest.mark.parametrize("kind", quick_and_slow(["bpe"], ["unigram"]))
@pytest.mark.parametrize("side", ["de", "en"])
def test_every_line_of_multi30k_comes_back(kind, side, multi30k):
    names = [f"{part}{end}.{side}" for part in ("train", "valid", "test2016")
             for end in ("", ".lc.norm.tok")]  # fmt: skip
    lines = {name: multi30k(name) for name in names}
    some = lines[f"train.lc.norm.tok.{side}"][:2000]
    tokenizer = SentencePieceTokenizer.train(some, 1000, kind)
    for name in names:
        ids = tokenizer.tokenize(lines[name])
        assert tokenizer.detokenize(ids) == lines[name], name


# --- Training ---


def test_training_reads_an_iterator_once_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tokenizer = SentencePieceTokenizer.train((text for text in TEXTS), 400)
    assert tokenizer.model == SentencePieceTokenizer.train(TEXTS, 400).model
    assert os.listdir(tmp_path) == []


def test_a_draw_of_many_texts():
    seen = []

    def texts():
        for i in range(5000):
            seen.append(i)
            yield f"{TEXTS[i % 2]} {chr(0x4E00 + i % 3)}"

    model = SentencePieceTokenizer.train(texts(), 320, max_texts=50).model
    assert len(seen) == 5000
    assert model == SentencePieceTokenizer.train(texts(), 320, max_texts=50).model
    other = SentencePieceTokenizer.train(texts(), 320, max_texts=50, seed=1).model
    assert SentencePieceTokenizer(other).vocabulary_size == 320


@pytest.mark.parametrize("kind", TYPES)
def test_odd_training_texts(kind):
    odd = ["a\0b", "", "\t", "\u2585\u2581", "x" * 5000, b"\xff the", "\ud800"]
    tokenizer = SentencePieceTokenizer.train(TEXTS + odd, 302, kind)
    (back,) = tokenizer.detokenize(tokenizer.tokenize(["a\0b \t\u2585 the"]))
    assert back == "a\0b \t\u2585 the"


def test_normalization():
    tokenizer = SentencePieceTokenizer.train(TEXTS, 400, normalization="nmt_nfkc_cf")
    ids = tokenizer.tokenize(["The ﬁne\u00a0HOUSE"])
    assert tokenizer.detokenize(ids) == ["the fine house"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"vocabulary_size": 100_000}, "at most the number of pieces that the texts"),
        ({"vocabulary_size": 100_000}, "Received: vocabulary_size=100000"),
        ({"vocabulary_size": 20}, "at least what characters, bytes and special"),
        ({"vocabulary_size": 0}, "vocabulary_size=0"),
        ({"vocabulary_size": None}, "vocabulary_size=None"),
        ({"vocabulary_size": 400.0}, "vocabulary_size=400.0"),
        ({"texts": []}, "`texts` must hold a text. Received: none"),
        ({"texts": ["", "  ", "\0"]}, "`texts` must hold a text. Received: none"),
        ({"texts": "the house"}, "`texts` must be a list of texts"),
        ({"texts": 5}, "`texts` must be a list of texts. Received: 5"),
        ({"texts": [*TEXTS, 5]}, "`texts` must hold texts. Received: 5"),
        ({"model_type": "word"}, "model_type='word'"),
        ({"normalization": "NFKC"}, "normalization='NFKC'"),
        ({"character_coverage": 0.5}, "character_coverage=0.5"),
        ({"character_coverage": float("nan")}, "character_coverage=nan"),
        ({"byte_fallback": 1}, "byte_fallback=1"),
        ({"max_texts": 0}, "max_texts=0"),
        ({"seed": -1}, "seed=-1"),
        ({"num_threads": 0}, "num_threads=0"),
    ],
)
def test_bad_training_arguments(kind, arguments, words):
    arguments = {"texts": TEXTS, "vocabulary_size": 300, "model_type": kind} | arguments
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        SentencePieceTokenizer.train(**arguments)
    assert ".cc" not in str(error.value)


def test_an_error_of_the_texts_is_passed_on():
    def texts():
        yield from TEXTS
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        SentencePieceTokenizer.train(texts(), 300)


# --- Models of others ---


def foreign_model(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=50,
        minloglevel=2, **options,
    )  # fmt: skip
    return model.getvalue()


IDS = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
KEPT = {"remove_extra_whitespaces": False}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: b"", "must be a model of sentencepiece"),
        (lambda: b"\0\1\2", "must be a model of sentencepiece"),
        (lambda: MODELS["bpe", True].model[:2000], "must be a model of sentencepiece"),
        (lambda: "text", "Received: str"),
        (lambda: foreign_model(**KEPT), "Received: (1, -1, 2, 0)"),
        (lambda: foreign_model(**IDS), "--remove_extra_whitespaces=false"),
        (
            lambda: foreign_model(**IDS, **KEPT, add_dummy_prefix=False),
            "--add_dummy_prefix=true",
        ),
    ],
)
def test_models_that_cannot_be_used(model, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        SentencePieceTokenizer(model())


def test_a_fitting_model_of_others_can_be_used():
    tokenizer = SentencePieceTokenizer(foreign_model(**IDS, **KEPT))
    text = "the  young garden"
    assert tokenizer.detokenize(tokenizer.tokenize([text])) == [text]


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r"pip install 'keras-seqconv\[mt\]'"):
        SentencePieceTokenizer(MODELS["bpe", True].model)
