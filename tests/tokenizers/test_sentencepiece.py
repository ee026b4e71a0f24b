"""SentencePiece: every text comes back, ids are ours, wrong input is named."""

import io
import os
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import SentencePieceTokenizer
from keras_seqconv.tokenizers import sentencepiece as sentencepiece_kind

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
        remove_extra_whitespaces=False,
    )
    for kind in TYPES
    for fallback in (True, False)
}
IDS = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}


def foreign_model(texts=TEXTS, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2,
        **{"vocab_size": 50, **options},
    )  # fmt: skip
    return model.getvalue()


FOLDING = {
    "identity": SentencePieceTokenizer.train(TEXTS, 300),
    "nmt_nfkc": SentencePieceTokenizer(
        foreign_model(
            **IDS,
            vocab_size=300,
            model_type="bpe",
            byte_fallback=True,
            unk_surface="<unk>",
        )
    ),
}
# Lone surrogates are no text and do not come back: `test_what_is_not_utf8`.
ANY_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")
)
LIKELY_TEXT = st.text("  \t\n\0thedogäß&;<>/\u2582😀\u00a0\ufffd", max_size=40)


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


@settings(deadline=None)
@given(ids=st.lists(st.integers(-2, 410), max_size=12))
@example(ids=[198, 0, 132])
def test_texts_are_those_of_sentencepiece(ids):
    """Also where ids spell bytes that are no character."""
    for tokenizer in MODELS.values():
        decoder = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        known = [i if 0 <= i < tokenizer.vocabulary_size else 3 for i in ids]
        known = known[: known.index(2)] if 2 in known else known
        # As if <s> and padding were not there, also between the bytes of a character.
        known = [i for i in known if i not in (0, 1)]
        assert tokenizer.detokenize([ids]) == [decoder.decode(known)]


def test_tokens_of_the_source_can_be_joined():
    tokenizer = MODELS["bpe", True]
    # The blank sign is a blank.
    assert tokenizer.detokenize(tokenizer.tokenize(["a\u2581b\u2581 "])) == ["a b  "]
    assert tokenizer.join(["▁Xylo", "phon", "▁the"]) == "Xylophon the"
    assert tokenizer.join(["<0xE2>", "<0x82>", "▁x", "<0xC3>", "<0xA4>"]) == (
        "\ufffd\ufffd xä"
    )
    assert tokenizer.join([]) == ""


# --- Training ---


def test_training_reads_an_iterator_once_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tokenizer = SentencePieceTokenizer.train((text for text in TEXTS), 400)
    assert tokenizer.model == SentencePieceTokenizer.train(TEXTS, 400).model
    assert os.listdir(tmp_path) == []


def test_a_draw_of_many_texts(monkeypatch):
    monkeypatch.setattr(sentencepiece_kind, "_MOST_TEXTS", 50)
    seen = []

    def texts():
        for i in range(5000):
            seen.append(i)
            yield f"{TEXTS[i % 2]} {chr(0x4E00 + i % 3)}"

    model = SentencePieceTokenizer.train(texts(), 320).model
    assert len(seen) == 5000
    assert model == SentencePieceTokenizer.train(texts(), 320).model
    assert SentencePieceTokenizer(model).vocabulary_size == 320


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
@settings(deadline=None)
@given(words=st.lists(st.text("thegarn", min_size=1), max_size=4), data=st.data())
def test_white_space_is_folded(normalization, words, data):
    """As sentencepiece does it: one blank between words, none at the ends."""
    spaces = st.text(" \t\n\r\f\u00a0\u2003\u2028\u3000\u2581", min_size=1, max_size=3)
    text = "".join(data.draw(spaces) + word for word in words) + data.draw(spaces)
    tokenizer = FOLDING[normalization]
    ids = tokenizer.tokenize([text, " ".join(words)])
    assert ids[0] == ids[1]
    assert tokenizer.detokenize(ids) == [" ".join(words)] * 2
    assert tokenizer.join(tokenizer.split(text)) == " ".join(words)


# --- Models of others ---


KEPT = {"remove_extra_whitespaces": False}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: b"\0\1\2", "must be a model of sentencepiece"),
        (lambda: MODELS["bpe", True].model[:2000], "must be a model of sentencepiece"),
        (lambda: foreign_model(**KEPT), "Received: (1, -1, 2, 0)"),
        (
            lambda: foreign_model(**IDS, **KEPT, add_dummy_prefix=False),
            "--add_dummy_prefix=true",
        ),
    ],
)
def test_models_that_cannot_be_used(model, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        SentencePieceTokenizer(model())


def test_fitting_models_of_others_can_be_used():
    """With white space as they have it; a model saved before folding keeps it."""
    text = "the  young garden"
    for options, expected in ((KEPT, text), ({}, "the young garden")):
        tokenizer = SentencePieceTokenizer(foreign_model(**IDS, **options))
        assert tokenizer.detokenize(tokenizer.tokenize([text])) == [expected]
