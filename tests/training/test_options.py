"""Options of training: types, ranges, and what a user reads when one is wrong."""

import argparse
import dataclasses
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.presets import PRESETS
from keras_seqconv.recipes import CosineOptions, NagOptions, Recipe
from keras_seqconv.tokenizers import SentencePieceTokenizer, WordTokenizer
from keras_seqconv.training import run as runs
from keras_seqconv.training.recipe import (
    make_loss,
    make_model,
    make_optimizer,
    resolve_recipe,
)
from keras_seqconv.training.run import read_run, sole_run
from keras_seqconv.training.text import (
    _learned_tokenizers,
    corpus_of,
    open_corpus_of,
    text_of,
    tokenizers_of,
)
from keras_seqconv.training_options import TrainingOptions, read_options
from keras_seqconv_cli import train
from tests.callbacks.small import make_model as small_model
from tests.training.test_train import TINY, write_corpus

BASE = {"preset": "dynamic_conv_multi30k", "dataset": "d", "workdir": "w"}


def options(**values):
    return TrainingOptions(**{**BASE, **values})


def start(given):
    with sole_run(given.workdir):
        return runs.open_run(given, resolve_recipe(given))


def test_texts_of_the_command_line_get_their_types():
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    words = "--learning-rate 3e-3 --max-updates 12 --joint-vocabulary false --source d"
    found = parser.parse_args([*words.split(), "--hosts", "--tensorboard"])
    assert (found.learning_rate, found.max_updates) == (0.003, 12)
    assert found.joint_vocabulary is False and found.dropout is None
    assert (found.source_language, found.hosts, found.tensorboard) == (
        "d",
        "auto",
        True,
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learning_rate": -1}, ["`learning_rate`", "number > 0", "=-1"]),
        ({"max_updates": "many"}, ["`max_updates`", "integer", "'many'"]),
        ({"dropout": 1.0}, ["`dropout`", ">= 0 and < 1", "1.0"]),
        ({"optimizer": "sgd"}, ["`optimizer`", "('adam', 'muon', 'nag')", "'sgd'"]),
        ({"preset": "fconv"}, ["`preset`", "'fconv'"]),
        ({"updates": 3}, ["unexpected keyword", "mean max_updates", "updates=3"]),
        ({"hosts": "a:1", "num_hosts": 2}, ["given together", "host_index=None"]),
        ({"num_hosts": 2, "host_index": 0}, ["given together", "hosts=None"]),
        ({"hosts": "a:1", "num_hosts": 2, "host_index": 2}, ["less than `num_hosts`"]),
        ({"joint_vocabulary": False, "architecture": {"share_embeddings": "all"}},
         ["`joint_vocabulary` must not be false", "`share_embeddings`='all'"]),
        ({"joint_vocabulary": True, "source_tokenizer": "characters"},
         ["`joint_vocabulary` must not be true", "characters and sentencepiece_bpe"]),
        ({"monitor": "bleu"}, ["`monitor`", "`validation_bleu`"]),
        ({"min_length": 9, "max_length": 8}, ["`min_length`", "max_length=8"]),
        ({"source_language": "de", "target_language": "de"},
         ["`source_language`", "`target_language`", "'de'"]),
        ({"preset": "dynamic_conv_phrase"}, ["Did you mean dynamic_conv_phrases"]),
        ({"seed": -1}, ["`seed`", "-1"]),
        ({"truncate_source": 1}, ["`truncate_source`", ">= 2", "=1"]),
        ({"dataset": ...}, ["`dataset` must be given"]),
        # Known once the recipe is.
        ({"momentum": 0.9}, ["`momentum` must not be given", "`optimizer` 'adam'"]),
        ({"period": 9}, ["`period` must not be given", "`schedule` 'inverse_square_"]),
        ({"tokens_per_sample": 9}, ["`tokens_per_sample`", "a translation model"]),
        *[({"preset": "dynamic_conv_lm", name: value},
           [f"`{name}` must not be given", "a language model", str(value)])
          for name, value in (("num_beams", 3), ("max_length", 9),
                              ("validation_bleu", True))],
        ({"preset": "conv_s2s_iwslt_de_en", "beta_1": 0.8},
         ["`beta_1` must not be given", "`optimizer` 'nag'"]),
        ({"schedule": "cosine", "max_updates": None, "preset": "conv_s2s"},
         ["`period` or `max_updates` must be given"]),
        ({"preset": "conv_s2s_iwslt_de_en", "stop_learning_rate": 0},
         ["`early_stopping` must be given", "names no end"]),
        ({"preset": "dynamic_conv_lm", "tokens_per_sample": 9, "context_window": 9},
         ["`context_window` must be smaller", "tokens_per_sample=9"]),
        ({"max_ratio": 0.5}, ["`max_ratio`", ">= 1", "0.5"]),
        ({"schedule": "cosine", "period_growth": 0.5}, ["`period_growth`", ">= 1"]),
        ({"learning_rate": float("inf")}, ["`learning_rate`", "finite", "=inf"]),
    ],
)  # fmt: skip
def test_errors_name_option_rule_and_value(values, words):
    given = {name: v for name, v in {**BASE, **values}.items() if v is not ...}
    with pytest.raises(ValueError) as error:
        resolve_recipe(TrainingOptions.from_json(given))
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_with_the_tokens_of_its_recipe(name):
    recipe = PRESETS[name].recipe
    wanted = recipe.gradient_accumulation_steps * recipe.num_replicas
    end = {} if recipe.max_updates or recipe.max_epochs else {"max_epochs": 1}
    for devices in (1, 2, 3, 8, 64):
        found = resolve_recipe(options(preset=name, **end), devices)
        steps = found.gradient_accumulation_steps
        assert steps * devices >= wanted > (steps - 1) * devices
        tokens = found.tokens_per_batch * steps * devices
        assert 0 <= tokens - recipe.tokens_per_batch * wanted < steps * devices
    stored = json.loads(json.dumps(dataclasses.asdict(recipe)))
    assert Recipe.from_json(stored) == recipe
    before = {"source": "ours", "sources": {}, "notes": []}  # in runs of 0.1.0
    assert Recipe.from_json(stored | before) == recipe


def test_changes_replace_values():
    found = resolve_recipe(
        options(
            learning_rate=1e-3, beta_2=0.997, label_smoothing=0.2, average=3,
            num_beams=7, max_translation_length=50, tokens_per_batch=100,
        )
    )  # fmt: skip
    before = PRESETS[BASE["preset"]].recipe
    assert found == dataclasses.replace(
        before,
        schedule=dataclasses.replace(before.schedule, learning_rate=1e-3),
        optimizer=dataclasses.replace(before.optimizer, beta_2=0.997),
        search=dataclasses.replace(before.search, num_beams=7, max_length=50),
        label_smoothing=0.2,
        average=3,
        tokens_per_batch=100,
    )


@pytest.mark.parametrize(
    ("changes", "window"),
    [({}, 400), ({"tokens_per_sample": 64}, 32), ({"break_mode": "sentence"}, 0)],
)
def test_context_of_the_blocks_of_language_models(changes, window):
    found = resolve_recipe(options(preset="dynamic_conv_lm", **changes))
    assert found.blocks.context_window == window


def test_values_of_the_recipe_reach_optimizer_and_loss():
    adam = dict(beta_1=0.8, beta_2=0.9, epsilon=1e-3, weight_decay=0.1)
    adam |= {"global_clipnorm": 2.0}
    more = dict(label_smoothing=0.3, label_smoothing_kind="others")
    recipe = resolve_recipe(options(**adam, **more, gradient_accumulation_steps=3))
    optimizer = make_optimizer(recipe)
    found = optimizer.inner_optimizer.get_config()
    assert {name: found[name] for name in adam} == adam
    assert optimizer.accumulation_steps == 3
    model = SimpleNamespace(pad_id=0, get_config=dict)
    found = make_loss(recipe, model).get_config()
    assert [found[name] for name in ("label_smoothing", "kind", "pad_id")] == [
        0.3, "others", 0,
    ]  # fmt: skip
    plain = dataclasses.replace(recipe, label_smoothing=0.0)
    assert make_loss(plain, model) is None
    model.get_config = lambda: {"adaptive_softmax": {}}
    with pytest.raises(ValueError, match="must be 0 with an adaptive softmax"):
        make_loss(recipe, model)


def test_another_schedule_and_optimizer():
    found = resolve_recipe(
        options(
            schedule="cosine",
            optimizer="nag",
            max_updates=5000,
            momentum=0.9,
            learning_rate=3.5e-3,
        )  # fmt: skip
    )
    assert found.optimizer == NagOptions(momentum=0.9)
    # The period is what follows the warm-up.
    assert found.schedule == CosineOptions(
        learning_rate=3.5e-3, warmup_steps=2000, period=3000
    )
    schedule = make_optimizer(found).inner_optimizer._learning_rate
    assert float(schedule(2000)) == pytest.approx(3.5e-3)
    assert float(schedule(3500)) == pytest.approx(1.75e-3, rel=1e-3)


def test_another_optimizer_needs_a_rate_of_its_own():
    for changes, rate, kinds in (
        ({"optimizer": "nag"}, "0.0035", ("adam", "nag")),
        ({"optimizer": "muon", "preset": "conv_s2s_multi30k"}, "1", ("nag", "muon")),
    ):
        words = f"`learning_rate` must .* '{kinds[1]}'.* {rate}, is for '{kinds[0]}'"
        with pytest.raises(ValueError, match=words):
            resolve_recipe(options(**changes))
        recipe = resolve_recipe(options(**changes, learning_rate=0.01))
        assert recipe.schedule.learning_rate == 0.01
    assert resolve_recipe(options(optimizer="muon")).optimizer.name == "muon"


def test_muon_computes_in_the_dtype_of_the_model():
    changes = dict(optimizer="muon", momentum=0.8, beta_1=0.7, weight_decay=0.1)
    for precision, dtype in (("float32",) * 2, ("mixed_bfloat16", "bfloat16")):
        found = resolve_recipe(options(**changes, precision=precision))
        config = make_optimizer(found).inner_optimizer.get_config()
        names = "momentum", "beta_1", "weight_decay", "compute_dtype"
        assert [config[name] for name in names] == [0.8, 0.7, 0.1, dtype]


def test_translations_are_no_shorter_than_the_recipe_has_them():
    shortest = {"preset": "dynamic_conv_cnn_dailymail", "max_translation_length": 55}
    assert resolve_recipe(options(**shortest)).search.max_length == 55
    for preset, length in (("dynamic_conv_cnn_dailymail", 54), ("dynamic_conv", 0)):
        changes = {"preset": preset, "max_translation_length": length}
        with pytest.raises(ValueError, match="`max_translation_length` must be at lea"):
            resolve_recipe(options(**changes))


def trained_once(run):
    """As if the run had come to its first checkpoint."""
    state = {"update": 1, "epoch": 1, "epoch_end": True}
    checkpoints.save(run.checkpoints / "update-00000001.npz", small_model(), state)


def test_a_run_is_written_down_and_read_back(tmp_path):
    given = options(workdir=str(tmp_path / "run"), seed=7)
    recipe, run = resolve_recipe(given), start(given)
    again, kept = read_run(run.folder)
    assert again.options == given
    assert kept == recipe
    assert read_options(run.folder) == given.changes()
    about = json.loads(run.settings.read_text())["starts"][0]
    assert about["versions"]["keras"]
    assert about["command"]


def test_another_start_may_change_when_it_ends_but_not_what_it_does(tmp_path):
    folder = str(tmp_path / "run")
    start(options(workdir=folder))
    start(options(workdir=folder, max_updates=9))
    # Nothing was trained: a mistake in the first command can be mended.
    start(options(workdir=folder, seed=3))
    run = start(options(workdir=folder))
    trained_once(run)
    with pytest.raises(ValueError, match="`seed` was 1 and is 2"):
        start(options(workdir=folder, seed=2))
    start(options(workdir=folder, monitor="bleu", validation_bleu=True))
    start(options(workdir=folder))
    with pytest.raises(ValueError, match="`monitor` was not given and is bleu"):
        start(options(workdir=folder, monitor="bleu", validation_bleu=True,
                      early_stopping=3))  # fmt: skip


def test_a_cosine_that_ends_with_the_training_is_not_made_longer(tmp_path):
    given = {"preset": "light_conv_g2p", "workdir": str(tmp_path / "run")}
    run = start(options(**given, max_updates=9000))
    start(options(**given, max_updates=9001))  # before anything is trained
    start(options(**given, max_updates=9000))
    trained_once(run)
    start(options(**given, max_updates=9000))
    words = "`period` was 8000 and is 8001; .* follows from `max_updates`"
    with pytest.raises(ValueError, match=words):
        start(options(**given, max_updates=9001))
    start(options(**given, max_updates=9001, period=8000))
    start(options(**given, max_updates=9000))


def test_a_preset_that_another_version_has_changed_is_told(tmp_path):
    run = start(options(workdir=str(tmp_path / "run")))
    trained_once(run)
    start(run.options)  # which warns of nothing
    notes = json.loads(run.settings.read_text())
    notes["recipe"]["schedule"]["learning_rate"] = 0.25
    run.settings.write_text(json.dumps(notes))
    with pytest.warns(UserWarning, match="schedule learning_rate was 0.25 and is 0.0"):
        start(run.options)


def test_arguments_of_models_are_as_a_file_has_them(tmp_path):
    arguments = {"kernel_sizes": (3, np.int64(7))}
    given = options(workdir=str(tmp_path / "run"), architecture=arguments)
    assert given.architecture == {"kernel_sizes": [3, 7]}
    trained_once(start(given))
    start(given)


def test_options_of_the_first_version_are_read(tmp_path):
    run = start(options(workdir=str(tmp_path)))
    notes = json.loads(run.settings.read_text())
    notes["options"] |= {"validate_every": None, "checkpoint_every": 9}
    run.settings.write_text(json.dumps(notes))
    assert read_run(tmp_path)[0].options == run.options
    assert TrainingOptions.from_json(read_options(tmp_path)) == run.options


def test_another_text_is_read_anew_until_something_was_trained(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    languages = dict(source_language="en", target_language="de")
    folder = str(tmp_path / "run")
    run = start(options(workdir=folder, dataset=str(corpus), **languages))
    corpus_of(run)
    run.tokenizers.mkdir()
    ids = tmp_path / "ids"  # on a faster disk
    ids.mkdir()
    run.data.symlink_to(ids)
    start(run.options)
    corpus_of(run)
    assert run.tokenizers.exists() and ids.exists()
    (corpus / "test.de").write_text("anders\n" * 8)
    corpus_of(run)
    # Not what the link leads to, which may be another run's.
    assert not run.tokenizers.exists() and not run.data.exists() and ids.exists()
    trained_once(run)
    corpus_of(run)
    (corpus / "train.de").write_text("anders\n" * 96)
    for path in corpus.glob("test.*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"missing: test\.de, test\.en, train\.de$"):
        corpus_of(run)


def test_another_vocabulary_is_read_anew_until_something_was_trained(tmp_path):
    corpus, phones = write_corpus(tmp_path / "corpus"), tmp_path / "phones"
    phones.write_text("one\ntwo\n")
    given = options(
        workdir=str(tmp_path / "run"), dataset=str(corpus), source_language="en",
        target_language="de", tokenizer=f"words:{phones}",
    )  # fmt: skip
    run = start(given)
    sizes = []
    for text in ("one\ntwo\n", "one\ntwo\nthree\n"):
        phones.write_text(text)
        sizes.append(tokenizers_of(run, corpus_of(run), str)[1].vocabulary_size)
    assert sizes == [6, 7]
    trained_once(run)
    phones.write_text("one\n")
    with pytest.raises(ValueError, match=rf"must hold what .* missing: {phones}$"):
        corpus_of(run)
    phones.unlink()  # the run has its own copy
    assert tokenizers_of(run, corpus_of(run), str)[1].vocabulary_size == 7


def test_one_training_at_a_time_in_a_folder(tmp_path):
    folder = tmp_path / "run"
    taken = pytest.raises(ValueError, match="nobody is training in now")
    (tmp_path / "letter.txt").write_text("dear")
    refused = pytest.raises(ValueError, match="`workdir` must be a folder of a run")
    with refused, sole_run(tmp_path):
        pytest.fail("the block ran")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    folder.mkdir()
    (folder / ".run.json.0123abcd.part").touch()  # of a start that was killed
    for _ in range(2):  # the end of the block lets the next one in
        with sole_run(folder), taken, sole_run(folder):
            pytest.fail("the block ran")
    start(options(workdir=str(folder)))
    with sole_run(folder), taken:
        runs.remove_run(folder)
    for name in (".run.json.0123abcd.part", ".log.jsonl.89abcdef.part"):
        (folder / name).touch()  # of a killed one
    (folder / ".model.0123abcd.part").mkdir()  # perhaps `average` is at work
    with sole_run(folder):
        left = {".lock", ".model.0123abcd.part", "run.json"}
        assert {*os.listdir(folder)} == left
    runs.remove_run(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "run.json"),
        ("[]", "run.json"),
        ({"format_version": 9}, "run.json"),
        ({"vocabularies": []}, "run.json"),
        ({"options": {**BASE, "r_drop": 1.0}}, "unexpected keyword argument 'r_drop'"),
        ({"recipe": {"r_drop": 1.0}}, "Recipe got an unexpected keyword argument"),
        (
            {"recipe": {"search": {"r_drop": 1.0}}},
            "BeamOptions got an unexpected keyword",
        ),
        ({"recipe": {"schedule": {"name": "linear"}}}, "`schedule` must be InverseSq"),
    ],
)
def test_damaged_notes_and_those_of_earlier_versions(tmp_path, content, words):
    run = start(options(workdir=str(tmp_path)))
    if isinstance(content, dict):
        notes = json.loads(run.settings.read_text())
        notes["recipe"] |= content.pop("recipe", {})
        content = json.dumps({**notes, **content})
    run.settings.write_text(content)
    with pytest.raises(ValueError, match=words):
        read_run(tmp_path)


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
