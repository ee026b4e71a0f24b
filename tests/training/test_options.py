"""Options of training: types, ranges, and what a user reads when one is wrong."""

import argparse
import dataclasses
import json
from types import SimpleNamespace

import pytest

from keras_seqconv.presets import PRESETS
from keras_seqconv.recipes import CosineOptions, NagOptions, Recipe
from keras_seqconv.training import TrainingOptions
from keras_seqconv.training.recipe import make_loss, make_optimizer, resolve_recipe
from keras_seqconv_cli import train
from tests.training.runs import BASE, options


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
