"""Text in, text out: golden hypotheses, batches that change nothing, odd texts."""

import functools
import json
import random
import unicodedata
import warnings

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.convert import from_fairseq
from keras_seqconv.tokenizers import (
    CharacterTokenizer,
    Dictionary,
    DictionaryTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)
from keras_seqconv.translation.text_model import UnknownTokens
from keras_seqconv.translation.translator import Translation
from tests.conftest import MODELS
from tests.small_models import (
    TOKENIZER,
    WORDS,
    encoder_decoder,
    make_language_model,
    make_two_sided,
    tokenizer_of,
)
from tests.tokenizers.test_sentencepiece import IDS, foreign_model

small_model = functools.partial(
    encoder_decoder, hidden_dim=16, intermediate_dim=16, dropout=0.0,
    mixer={"encoder": "attention", "decoder": "dynamic_conv"},
)  # fmt: skip


@pytest.fixture(scope="module")
def translator():
    search = {"num_beams": 3, "max_length": 12}
    return ks.Translator(small_model(), TOKENIZER, TOKENIZER, search)


def random_texts(count, longest=40):
    draw = random.Random(count)
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)
    ]


def check_same(found, expected):
    """The same translations; two that tie within 1e-4 may change places."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert abs(one.score - other.score) < 1e-4
        if one.text != other.text:
            ties = [best for best in expected if abs(best.score - one.score) < 2e-4]
            assert one.text in [best.text for best in ties]


def test_parts_that_do_not_fit_are_named(translator):
    model, language = translator.model, make_language_model().model
    few = WordTokenizer(WORDS[:5])
    for call, words in (
        (lambda: ks.Translator(model, TOKENIZER), "must both be given or both"),
        (lambda: ks.Translator(model, few, TOKENIZER), "source tok.*, 30. Rec.* 9"),
        (lambda: ks.Translator(model, TOKENIZER, few), "target tok.*, 30. Rec.* 9"),
        (lambda: ks.Translator(language), "`model` must have a source"),
        (lambda: ks.LanguageGenerator(model), "must be a language model"),
        (lambda: ks.Translator(model, max_source_length=1), "an integer >= 2"),
        (lambda: translator.score(["w1"], []), "of one length. Received: 1 and 0"),
        (lambda: translator.translate(["w1", None]), r"texts\[1\] is NoneType"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    without = ks.Translator(model, TOKENIZER, TOKENIZER, languages=None)
    assert without.source_language is without.target_language is None


# --- The hypotheses of fairseq ---


# Keras' search with the other folders: tests/convert/test_fairseq.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("ddynamic_2019", "keras"),
        *(pytest.param(x, "onnx", marks=pytest.mark.tensorflow) for x in MODELS),
    ],
)
def test_golden_models_from_their_directories(golden, name, runtime, tmp_path):
    """The directory translates as fairseq did."""
    files = [golden / name / f"dict.{side}.txt" for side in "st"]
    tokenizers = [DictionaryTokenizer(Dictionary.read(file)) for file in files]
    model = from_fairseq(golden / name, *files)
    translator = ks.Translator(model, *tokenizers, {"max_length": 20})
    translator.save(tmp_path / "model", onnx=runtime == "onnx")
    translator = ks.load(tmp_path / "model", runtime=runtime)
    with np.load(golden / name / "expected.npz") as expected:
        texts = translator.source_tokenizer.detokenize(expected["source_ids"].tolist())
        tokens = json.loads(str(expected["beam4_lenpen1/tokens"]))
        scores = expected["beam4_lenpen1/scores"].tolist()
    assert all(texts)
    rows = translator.translate_n_best(texts, 4, 4)
    for row, hypotheses, known in zip(rows, tokens, scores, strict=True):
        spelled = translator.target_tokenizer.detokenize(hypotheses)
        check_same(row, list(map(Translation, spelled, known)))


# --- Batches ---


def test_order_and_size_of_batches_change_nothing(translator):
    texts = random_texts(25)
    expected = translator.translate_n_best(texts, 3)
    assert translator.translate(texts) == [row[0].text for row in expected]
    assert len({row[0].text for row in expected}) > 5  # it does look at its source
    order = random.Random(0).sample(range(25), 25)
    for tokens in (1, 200, 10**6):  # with 1 each text is alone
        other = ks.Translator(
            translator.model, TOKENIZER, TOKENIZER, translator.search,
            tokens_per_batch=tokens,
        )  # fmt: skip
        found = other.translate_n_best([texts[i] for i in order], 3)
        for row, index in zip(found, order, strict=True):
            check_same(row, expected[index])


@pytest.mark.slow
def test_batches_side_by_side_change_nothing():
    """Also in the first call, which makes the graph, by the policy of the thread."""
    texts = random_texts(24)
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        found = []
        for parallel in (1, 4):
            keras.utils.set_random_seed(1)
            translator = ks.Translator(
                small_model(), TOKENIZER, TOKENIZER, {"num_beams": 2, "max_length": 6},
                tokens_per_batch=64, parallel_batches=parallel,
            )  # fmt: skip
            found.append(translator.translate_n_best(texts, 2))
    finally:
        keras.config.set_dtype_policy(before)
    for row, expected in zip(*found, strict=True):
        check_same(row, expected)


# --- Texts ---


def test_texts_without_tokens_are_empty(translator):
    texts = ["", "w1 w2", "  ", "w1 w2", " \t\n\v\f\r", "\u3000"]
    found = translator.translate(texts)
    assert found[0] == found[2] == found[4] == found[5] == ""
    assert found[1] == found[3] == translator.translate(["w1 w2"])[0] != ""
    empty = translator.translate_n_best([" "], 3)
    assert [(best.text, best.score, best.tokens) for best in empty[0]] == [("", 0, ())]
    assert translator.translate([]) == []
    assert translator.translate_n_best([], 2) == []
    assert translator.score([], []) == []


def test_any_text_is_taken(translator):
    odd = ["<pad> </s> <s>", "\0\x1b", "😀 é", "w1\u2028w2", "\ud800", "w3 " * 700]
    assert all(isinstance(text, str) for text in translator.translate(odd))
    alone = translator.translate(iter(["w1 w2"]))
    assert alone == translator.translate("w1 w2") == translator.translate(("w1 w2",))


def test_unknown_tokens_are_told(translator):
    """With the numbers of those that the model reads, by one pass of the tokenizer."""
    texts = ["w1 odd w2 odd", " ", "w3", "odd", "w1 " * 10 + "odd"]
    told = functools.partial(
        pytest.warns,
        UserWarning,
        match="^3 of 14 .* tokens: 2; unknown: 'odd'$",
    )
    limited = ks.Translator(
        translator.model, TOKENIZER, TOKENIZER, translator.search, max_source_length=9
    )
    calls, tokenize = [], TOKENIZER.tokenize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TOKENIZER, "tokenize", lambda texts: calls.append(1) or tokenize(texts)
        )
        with told() as warned:
            limited.translate_n_best(texts, 1)
    assert len(calls) == len(warned) == 1 and warned[0].filename == __file__
    with told():
        limited.translate(texts)
    with told() as warned:
        limited.score(texts, [""] * 5)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited.translate([texts[-1], "", "w3"])  # read in parts, or known


def test_long_sources_are_cut(translator, tmp_path):
    keras.utils.set_random_seed(1)
    sides = (("encoder", 8), ("decoder", 9))
    positions = {side: dict(kind="learned", max_length=most) for side, most in sides}
    learned = small_model(positions=positions)
    learned = ks.Translator(learned, TOKENIZER, TOKENIZER, {"num_beams": 2})
    cut = pytest.warns(
        UserWarning, match=r"1 of 2 texts.*texts\[1\], have more than the 8 tok"
    )
    with cut:
        found = learned.translate(["w1", " ".join(WORDS[:20])])
    assert found == learned.translate(["w1", " ".join(WORDS[:7])])
    assert all(len(text.split()) <= 8 for text in found)
    with pytest.raises(ValueError, match=r"at most 9 tokens.*translations\[1\]"):
        learned.score(["w1", "w2"], ["w1", " ".join(WORDS[:9])])
    assert np.isfinite(learned.score(["w1"], [" ".join(WORDS[:8])])).all()
    # As in training, without a warning.
    parts = translator.model, TOKENIZER, TOKENIZER, translator.search
    cutting = ks.Translator(*parts, max_source_length=4)
    cutting.save(tmp_path / "model")
    assert ks.load(tmp_path / "model").max_source_length == 4
    ks.Translator(*parts).save(tmp_path / "whole")
    both = ks.translation.load_ensemble([tmp_path / "whole", tmp_path / "model"])
    assert both.max_source_length == 4
    inputs, tokens = ks.inspection.sentence(cutting, "w1 w2 w3 w4 w5")
    assert inputs["source_ids"].shape == (1, 4)
    assert tokens["encoder"] == ["w1", "w2", "w3", "</s>"]
    found = cutting.translate(["w1 w2 w3 w4 w5", "w6"])
    assert found == translator.translate(["w1 w2 w3", "w6"])


# --- Results ---


def test_what_a_translation_knows(translator):
    texts = ["w1 w2 w3", "w4", "w5 w6"]
    for text, row in zip(
        texts, translator.translate_n_best(texts, 3, return_attention=True), strict=True
    ):
        assert len(row) == 3 and row[0].score >= row[1].score >= row[2].score
        for best in row:
            length = len(best.tokens) + 1
            assert best.text == " ".join(best.tokens)
            assert best.positional_scores.shape == (length,)
            assert best.positional_scores.sum() / length == pytest.approx(best.score)
            assert best.attention.shape == (length, len(text.split()) + 1)
            np.testing.assert_allclose(best.attention.sum(1), 1, atol=1e-5)
    assert translator.translate_n_best(texts, 1)[0][0].attention is None


def test_scores_of_what_was_found(translator):
    texts = random_texts(12)
    found = translator.translate_n_best(texts, 3)
    sources = [text for text, row in zip(texts, found, strict=True) for _ in row]
    best = [best for row in found for best in row]
    # Of the others a start token, which the text does not show, is a part.
    whole = [abs(one.positional_scores.mean() - one.score) < 1e-5 for one in best]
    keep = [i for i, one in enumerate(best) if whole[i] and "<unk>" not in one.tokens]
    assert len(keep) > len(best) / 2
    again = translator.score([sources[i] for i in keep], [best[i].text for i in keep])
    np.testing.assert_allclose(again, [best[i].score for i in keep], atol=1e-4)
    sums = translator.score(["w1"], ["w2 w3"], length_penalty=0.0)
    assert sums[0] == pytest.approx(3 * translator.score(["w1"], ["w2 w3"])[0])
    other = ks.Translator(translator.model, TOKENIZER, TOKENIZER, {"length_penalty": 0})
    assert other.score(["w1"], ["w2 w3"]) == sums  # its own option
    assert translator.score(["w1"], [""])[0] < 0  # that of the end alone


def test_each_side_has_its_own_tokenizer():
    two_sided, texts = make_two_sided(), ["w1 w2 w3", "w4"]
    found = [best for (best,) in two_sided.translate_n_best(texts, 1)]
    assert [best.text for best in found] == ["".join(best.tokens) for best in found]
    again = two_sided.score(texts, [best.text for best in found])
    np.testing.assert_allclose(again, [best.score for best in found], atol=1e-4)


@pytest.mark.slow
def test_search_options(translator):
    texts = random_texts(6)
    ids = np.array([TOKENIZER.tokenize(texts[:1])[0]])
    for options in ({}, {"num_beams": 1, "length_penalty": 0.3, "max_length": 5}):
        expected, _ = ks.decoding.beam_search(
            translator.model, ids, **{**vars(translator.search), **options}
        )
        expected = keras.ops.convert_to_numpy(expected)[0, 0]
        found = translator.translate(texts[:1], **options)
        assert found == TOKENIZER.detokenize([expected])
    for call in (translator.translate, lambda t, **o: translator.score(t, t, **o)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'beam'"):
            call(texts, beam=4)
    for n, words in ((4, "at most `num_beams`.*n_best=4"), (0, "a positive integer")):
        with pytest.raises(ValueError, match=f"`n_best` must be {words}"):
            translator.translate_n_best(texts, n)
    with pytest.raises(ValueError, match="`length_penalty` must be"):
        translator.translate([], length_penalty="a")
    with pytest.raises(ValueError, match="`num_hypotheses` must not be an option"):
        translator.translate_n_best(texts, 1, num_hypotheses=2)
    spelling = ks.Translator(small_model(), *[WordTokenizer(WORDS)] * 2)
    with pytest.raises(ValueError, match="must not contain the end token"):
        spelling.translate(texts, suppressed_ids=[2])


def test_a_drawn_start_token_has_no_token_and_no_score(translator):
    """fairseq's search suppresses nothing, so neither does that of its dictionary."""
    draws = translator.translate_n_best(
        ["w1 w2"], 200, sample=True, seed=1, temperature=9.0, return_attention=True
    )[0]
    sizes = [len(best.tokens) + 1 for best in draws]  # with the end
    assert [len(best.positional_scores) for best in draws] == sizes
    assert [len(best.attention) for best in draws] == sizes
    ids, _ = ks.decoding.sample(
        translator.model, [TOKENIZER.tokenize(["w1 w2"])[0]], 200, seed=[(1, 1)],
        temperature=9.0, max_length=12,
    )  # fmt: skip
    assert 0 in keras.ops.convert_to_numpy(ids)


@pytest.mark.parametrize("blank", [" ", ""])
def test_unknowns_are_replaced_by_attention(translator, blank):
    """Also of a translator whose target is characters: what replaces them is words."""
    with pytest.raises(TypeError, match="replace_unk'"):
        translator.translate(["w1"], replace_unk=True)
    translator = translator if blank else make_two_sided()
    # A search that likes unknowns, of words that the source has.
    options = {"unk_penalty": -20.0, "max_length": 4, "min_length": 2}
    texts = ["w1 new w2", "w5 w6 other w7", "", "w3"]
    plain = translator.translate_n_best(texts, 1, return_attention=True, **options)
    assert any("<unk>" in best.tokens for (best,) in plain)
    dictionary = {"new": "neu", "w6": "sechs"}
    for alignments in (None, dictionary):
        found = translator.translate(
            texts, replace_unknowns=True, alignment_dictionary=alignments, **options
        )
        for text, (best,), replaced in zip(texts, plain, found, strict=True):
            source = [*text.split(), "<eos>"]
            expected = []
            for place, token in enumerate(best.tokens):
                if token == "<unk>":
                    token = source[int(best.attention[place].argmax())]
                    token = (alignments or {}).get(token, token)
                expected.append(token)
            assert replaced == blank.join(expected)


# --- Construction ---


def sentencepiece_of(kind, **options):
    """Also of types that the package trains none of."""
    options |= {"model_type": kind, "hard_vocab_limit": False, **IDS}
    texts = ["the house", "a house in the wood"]
    return SentencePieceTokenizer(foreign_model(texts, **options))


@pytest.mark.parametrize(
    ("make", "text", "expected"),
    (
        (lambda: tokenizer_of("words"), "w1 odd <unk> w2", (2, 4, "'odd', '<unk>'")),
        (lambda: tokenizer_of("characters"), "tea Z<", (2, 6, "'Z', '<'")),
        (lambda: tokenizer_of("dictionary"), "w1 odd <pad>", (2, 3, "'odd', '<pad>'")),
        # Each letter that no pair joins is a token.
        (lambda: tokenizer_of("byte pairs"), "the ж1", (2, 3, "'ж@@', '1'")),
        (lambda: tokenizer_of("moses"), "the ж1", (2, 3, "'ж@@', '1'")),
        # A run of unknown letters is one token; bytes spell any letter.
        (lambda: sentencepiece_of("unigram", vocab_size=20), "жш1", (1, None, "'жш1'")),
        (lambda: sentencepiece_of("bpe", vocab_size=30), "a жш1 a", (1, None, "'жш1'")),
        (lambda: sentencepiece_of("char", vocab_size=30), "a жш1 a", (1, 6, "'жш1'")),
        (lambda: sentencepiece_of("word", vocab_size=30), "a жш1 a", (1, 3, "'▁жш1'")),
        (lambda: tokenizer_of("pieces"), "the ж1", (0, None, "")),
    ),
)  # fmt: skip
def test_unknown_tokens_of_tokenizers(make, text, expected):
    tokenizer = make()
    (ids,) = tokenizer.tokenize([text])
    found = UnknownTokens(tokenizer).count([ids, [2]], [text, ""])
    assert found.unknown == expected[0] and found.texts == bool(expected[0])
    assert expected[1] in (None, found.tokens)
    told = []
    found.tell(told.append)
    assert len(told) == bool(expected[0])
    assert all(message.endswith(f"unknown: {expected[2]}") for message in told), told


def test_unknown_tokens_are_told_apart_by_their_code_points():
    """The letter in one code point and in two looks the same on a screen."""
    tokenizer, told = CharacterTokenizer([*"abиод"]), []
    found = UnknownTokens(tokenizer)
    texts = ["йод", unicodedata.normalize("NFD", "йод"), "o" * 40] + ["<unk>"] * 2000
    assert [len(ids) for ids in found.tokenize(texts[:2])] == [4, 5]
    found.count(tokenizer.tokenize(texts[2:]), texts[2:])
    found.tell(told.append)
    assert told == [
        "10,042 of 10,047 tokens are unknown to the model; texts with unknown tokens: "
        "2,003; unknown: '<', 'u', 'n', 'k', '>', ..."
    ]
    found = UnknownTokens(tokenizer).count(tokenizer.tokenize(texts[:2]), texts[:2])
    found.tell(told.append)
    assert told[1].endswith("unknown: 'й' (U+0439), '\u0306' (U+0306)"), told[1]
