"""Words and characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import CharacterTokenizer, WordTokenizer

CLASSES = (WordTokenizer, CharacterTokenizer)
WORDS = WordTokenizer.train(["the house", "the big house of the king"])
CHARACTERS = CharacterTokenizer.train(["ein  Häus\t\n"])


def test_words_by_count_and_code_points():
    assert WORDS.tokens == ("the", "house", "big", "king", "of")
    assert WORDS.vocabulary_size == 9
    assert WordTokenizer.train(["b b a c c"], 6).tokens == ("b", "c")
    assert WordTokenizer.train(["b b a c c"], min_count=2).tokens == ("b", "c")
    ids = WORDS.tokenize([" the\t\thouse \n", "castle", ""])
    assert ids == [[4, 5, 2], [3, 2], [2]]
    # No special symbol is learned as a word.
    assert WordTokenizer.train(["<pad> a </s>"]).tokens == ("a",)
    assert WORDS.unspellable_ids == CHARACTERS.unspellable_ids == [0, 1]
    # Only ASCII white space separates words.
    assert WORDS.split("a\u00a0b c\u2003d\x1ce") == ["a\u00a0b", "c\u2003d\x1ce"]


def test_lines_of_a_running_text():
    """End where a line break is no token, else with it."""
    assert WORDS.tokenize_lines(["the house", ""]) == [[4, 5, 2], [2]]
    rows = CHARACTERS.tokenize_lines(["ein", "", "Haus"])
    assert "".join(CHARACTERS.detokenize(rows)) == "ein\n\nH<unk>us\n"
    assert 2 not in sum(rows, [])
    plain = CharacterTokenizer.train(["ab"])
    assert plain.tokenize_lines(["ab"]) == plain.tokenize(["ab"])


@pytest.mark.parametrize("tokenizer_class", CLASSES)
def test_a_vocabulary_holds_a_token(tokenizer_class):
    with pytest.raises(ValueError, match="`tokens` must hold a token at least"):
        tokenizer_class([])


@settings(deadline=None)
@given(text=st.text())
def test_an_unknown_uppercase_letter_counts_as_lowercase(text):
    """In Python and in a graph; an uppercase letter of the vocabulary stays itself."""
    tokenizer = CharacterTokenizer(["h", "é", "i", "ı", "ß", "A", "a"])
    ids = tokenizer.tokenize(["HÉIẞAaS", text])
    assert tokenizer.detokenize(ids[:1]) == ["héißAa<unk>"]
    assert tokenizer.tokenize_tensor(["HÉIẞAaS", text]).to_list() == ids


@settings(deadline=None)
@given(texts=st.lists(st.text(), min_size=1))
def test_every_training_text_of_characters_comes_back(texts):
    if "".join(texts):
        tokenizer = CharacterTokenizer.train(texts)
        ids = tokenizer.tokenize(texts)
        assert [len(row) - 1 for row in ids] == [len(text) for text in texts]
        assert tokenizer.detokenize(ids) == texts
        assert [tokenizer.join(tokenizer.split(text)) for text in texts] == texts
