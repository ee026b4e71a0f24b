"""The text of a run: tokenizers, ids, splits, and limits of its rows."""

import dataclasses
from types import SimpleNamespace

import pytest

import keras_seqconv as ks
from keras_seqconv.data.ids import IdStore
from keras_seqconv.support.files import read_lines
from keras_seqconv.tokenizers import SentencePieceTokenizer, WordTokenizer
from keras_seqconv.training import train
from keras_seqconv.training.recipe import make_model, resolve_recipe
from keras_seqconv.training.text import (
    _learned_tokenizers,
    _store,
    corpus_of,
    open_corpus_of,
    text_of,
    tokenizers_of,
)
from keras_seqconv.training.train import _check_positions
from tests.cli.commands import write
from tests.training.runs import TINY, WORDS, options, options_for, start, write_corpus


@pytest.mark.tensorflow
def test_rows_beyond_learned_positions_are_refused_before_training(corpus, tmp_path):
    short = {**TINY, "positions": {"kind": "learned", "max_length": 5}}
    with pytest.raises(ValueError, match="`max_length` must .* the 5 positions .*: 8"):
        train(options_for(corpus, tmp_path / "run", architecture=short), str)
    rows = IdStore.from_rows([{"source_ids": [4] * 7, "target_ids": [4] * 8}])
    model = SimpleNamespace(has_source=True, max_source_length=7, max_target_length=8)
    _check_positions(SimpleNamespace(train=rows, validation=None), model)


@pytest.mark.tensorflow
def test_what_does_not_fit_the_text_is_told_before_training(
    corpus, tmp_path, monkeypatch
):
    """Unknown tokens, targets beyond the search, a warm-up beyond the end, passes."""
    vocabulary, said = write(tmp_path / "words", *WORDS[:5]), []
    options = options_for(
        corpus, tmp_path / "run", preset="light_conv_g2p", source_tokenizer="words",
        target_tokenizer=f"words:{vocabulary}", max_translation_length=6,
        warmup_steps=1000, max_updates=1,
    )  # fmt: skip
    monkeypatch.setattr(ks.callbacks, "fit_stream", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(options, said.append)
    rows = [line.split() for line in read_lines(corpus / "train.de")]
    unknown = sum(word in WORDS[5:] for row in rows for word in row)
    words = f"train, de: {unknown} of {sum(map(len, rows))} tokens are unknown"
    (line,) = (line for line in said if line.startswith("train, "))  # none of en
    assert line.startswith(words) and "'six'" in line and "'seven'" in line
    longest = sum(len(row) > 6 for row in rows)
    assert 0 < longest < 96
    words = f"{longest} of 96 training targets have more tokens"
    assert any(line.startswith(words) for line in said)
    assert any(
        "rises for 1,000 updates" in line and "after 1 " in line for line in said
    )
    assert not any("passes over" in line or "one word" in line for line in said)
    corpus = tmp_path / "inflections"
    corpus.mkdir()
    for side in ("en", "de"):
        write(corpus / f"train.{side}", "two words", *(f"w{n}" for n in range(99)))
    options = options_for(
        corpus, tmp_path / "other", preset="light_conv_g2p", max_updates=2000,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        train(options, said.append)
    words = "2,000 updates (--max-updates) are 1,333 passes"
    assert any(words in line for line in said)
    assert any(line.startswith("99% of the targets are one word") for line in said)
    # Labels are words that the model need not compose.
    write(corpus / "train.de", *["a", "b"] * 50)
    options = dataclasses.replace(options, workdir=str(tmp_path / "labels"))
    said.clear()
    with pytest.raises(ZeroDivisionError):
        train(options, said.append)
    assert said and not any("--target-tokenizer" in line for line in said)


@pytest.mark.tensorflow
def test_sources_that_are_cut_lift_no_limit_of_targets(corpus, tmp_path):
    options = options_for(corpus, tmp_path, truncate_source=6, max_length=3)
    run = SimpleNamespace(data=tmp_path / "data", options=options)
    recipe, words = resolve_recipe(options), WordTokenizer(WORDS)
    _store(run, recipe, open_corpus_of(options), (words, words), "train", str)
    lengths = IdStore.open(tmp_path / "data" / "train").lengths
    assert lengths["target_ids"].max() == 4  # with the end
    assert len(lengths["target_ids"]) == sum(
        len(line.split()) <= 3 for line in read_lines(corpus / "train.de")
    )


def test_white_space_is_folded_but_in_text_of_a_language_model(tmp_path):
    texts = "the house  is\tbig\nthe garden\tis green\n" * 3
    for name in ("a", "train.en", "train.de"):
        (tmp_path / name).write_text(texts)
    sizes = {"tokenizer": "sentencepiece_bpe", "vocabulary_size": 285}
    for preset, file, expected in (
        ("dynamic_conv_multi30k", "", "the is"),
        ("dynamic_conv_lm", "a", " the\t is "),
    ):
        given = options(preset=preset, dataset=str(tmp_path / file), **sizes)
        corpus = open_corpus_of(given)
        kind, sides = given.tokenizers[1], ("source", "target")
        tokenizer = _learned_tokenizers(given, kind, sides, corpus, print)[1]
        assert tokenizer.detokenize(tokenizer.tokenize([" the\t is "])) == [expected]


@pytest.mark.parametrize(
    ("preset", "changes", "shared", "joint"),
    [
        ("light_conv", {}, "all", True),
        ("light_conv", {"joint_vocabulary": False}, "decoder", False),
        ("light_conv", {"architecture": {"share_embeddings": "none"}}, "none", False),
        ("light_conv_iwslt_de_en", {}, "none", False),
        ("light_conv_iwslt_de_en", {"joint_vocabulary": True}, "none", True),
        ("light_conv_iwslt_de_en", {"architecture": {"share_embeddings": "all"}},
         "all", True),
    ],
)  # fmt: skip
def test_embeddings_are_shared_where_the_vocabulary_is(
    tmp_path, preset, changes, shared, joint
):
    changes = {"tokenizer": "words", "source_language": "en", **changes}
    small = {**TINY, "kernel_sizes": [3], **changes.pop("architecture", {})}
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "train.de").write_text("a b c d e f g\n" * 96)
    given = options(
        preset=preset, dataset=str(corpus), workdir=str(tmp_path / "run"),
        target_language="de", architecture=small, **changes,
    )  # fmt: skip
    said = []
    pair = tokenizers_of(start(given), open_corpus_of(given), said.append)
    sizes = dict.fromkeys(str(one.vocabulary_size) for one in pair)
    assert said[1].startswith(f"Entries: {' and '.join(sizes)}")
    assert (pair[0] is pair[1]) == joint
    model = make_model(given, "float32", *pair)
    assert model.get_config()["share_embeddings"] == shared


def test_the_variant_reaches_the_corpus(tmp_path):
    for name in ("train.de", "train.en", "train.lc.de", "train.lc.en"):
        (tmp_path / name).write_text(f"{name}\n")
    corpus = open_corpus_of(options(dataset=str(tmp_path), variant="lc"))
    assert [*corpus.texts("train", "source")] == ["train.lc.en"]


def test_two_vocabularies_of_one_size_for_one_embedding_are_refused(tmp_path):
    for side, words in (("source", ["a", "b"]), ("target", ["b", "a"])):
        WordTokenizer(words).save(tmp_path / "pair" / side)
    changes = {"preset": "light_conv", "tokenizer": str(tmp_path / "pair")}
    apart = options(workdir=str(tmp_path / "one"), joint_vocabulary=False, **changes)
    source, target = tokenizers_of(start(apart), None, str)
    assert source.tokens == target.tokens[::-1]
    run = start(options(workdir=str(tmp_path / "other"), **changes))
    with pytest.raises(ValueError, match="one vocabulary.* 'a' and 'b' for one id"):
        tokenizers_of(run, None, str)


def test_each_side_has_its_tokenizer(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "train.en").write_text("cat\nact\n")
    (corpus / "train.xx").write_text("K AE T\nAE K T\n")
    phones = tmp_path / "phones"
    phones.write_text("T\nK\nAE\nZH\n")
    pieces = SentencePieceTokenizer.train(["a cat"], 300, at_most=True)
    (tmp_path / "pieces").write_bytes(pieces.model)
    changes = {
        "preset": "light_conv", "dataset": str(corpus), "source_language": "en",
        "target_language": "xx", "source_tokenizer": "characters",
    }  # fmt: skip
    given = {**changes, "workdir": str(tmp_path / "read")}
    read = options(**given, target_tokenizer=f"sentencepiece:{tmp_path / 'pieces'}")
    pair = tokenizers_of(start(read), open_corpus_of(read), str)
    assert pair[1].detokenize(pair[1].tokenize(["a cat"])) == ["a cat"]
    for number, (target, tokens) in enumerate((
        ("words", ("AE", "K", "T")),
        (f"words:{phones}", ("T", "K", "AE", "ZH")),
        (str(tmp_path / "0"), ("AE", "K", "T")),  # a run with tokenizers
    )):  # fmt: skip
        workdir = str(tmp_path / str(number))
        given, said = options(target_tokenizer=target, workdir=workdir, **changes), []
        pair = tokenizers_of(start(given), open_corpus_of(given), said.append)
        assert [tokenizer.kind for tokenizer in pair] == ["characters", "words"]
        assert pair[1].tokens == tokens
        assert said[0].startswith("Training the tokenizer of the source (characters")
        for tokenizer, text in zip(pair, ("tact", "T AE K T"), strict=True):
            assert tokenizer.detokenize(tokenizer.tokenize([text])) == [text]
    model = make_model(given, "float32", *pair)
    assert model.get_config()["share_embeddings"] == "decoder"
    given = {**changes, "workdir": str(tmp_path / "run")}
    for wrong, words in (
        ({"target_tokenizer": "moses_bpe"}, "`tokenizer` must be moses_bpe for both"),
        ({"target_tokenizer": "words:none"}, "No such file"),
        ({"target_tokenizer": f"characters:{phones}"}, "no vocabulary .Token 3 must"),
        ({"target_tokenizer": "letters"}, "`target_tokenizer` must .* words:FILE"),
        (
            {
                "source_tokenizer": f"words:{phones}",
                "target_tokenizer": str(tmp_path / "0"),
                "vocabulary_size": 9,
            },
            "`vocabulary_size` must be that .*: 8. Received: 9",
        ),
    ):
        run = start(options(**{**given, **wrong}))
        with pytest.raises((OSError, ValueError), match=words):
            tokenizers_of(run, open_corpus_of(run.options), str)
    with pytest.raises(ValueError, match="tokenizers of the sides differ"):
        options(**given, architecture={"share_embeddings": "all"})


def test_presets_of_symbols_take_all_symbols_of_a_corpus(tmp_path):
    symbols = [chr(number) for number in range(0x4E00, 0x4E00 + 200)]
    (tmp_path / "train.zh").write_text("".join(symbols) + "\n")
    (tmp_path / "train.py").write_text(" ".join(symbols) + "\n")
    (tmp_path / "text.txt").write_text("".join(symbols) + "\n")
    pair = {"source_language": "zh", "target_language": "py"}
    for preset, corpus, changes in (
        ("dynamic_conv_g2p", tmp_path, pair),
        ("light_conv_lm_characters", tmp_path / "text.txt", {}),
    ):
        workdir = str(tmp_path / preset)
        given = options(preset=preset, dataset=str(corpus), workdir=workdir, **changes)
        for tokenizer in tokenizers_of(start(given), open_corpus_of(given), str):
            assert tokenizer is None or set(symbols) <= set(tokenizer.tokens)


def test_the_preset_completes_one_language(tmp_path):
    for name in ("train.de", "train.en", "train.fr", "one.tsv"):
        (tmp_path / name).write_text("a\tb\n")
    for dataset in (tmp_path, tmp_path / "one.tsv"):
        found = open_corpus_of(options(dataset=str(dataset), source_language="fr"))
        assert (found.source_language, found.target_language) == ("fr", "de")


def test_splits_that_training_does_not_read_are_named(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    for name in ("tst.en", "tst.de", "val2.en", "val2.de"):
        (corpus / name).write_text("a\n")
    changes = {"dataset": str(corpus), "tokenizer": "words", "source_language": "en"}
    given, said = options(workdir=str(tmp_path / "run"), **changes), []
    run = start(given)
    text_of(run, resolve_recipe(given), corpus_of(run), said.append)
    assert any(line.endswith("and not tst, val2.") for line in said)
