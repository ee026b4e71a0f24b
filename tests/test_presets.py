"""The table of presets: complete, consistent, shown, and as large as printed."""

import inspect
import math
import re

import pytest

from keras_seqconv.presets import PRESETS, RECIPE_KEYS
from keras_seqconv_cli import main
from keras_seqconv_cli.presets import describe, table

BIG = (1024, 4096, 16, 7, 6)
# name: width, FFN, heads, layers of encoder and decoder, GLU, dropout (of the recipe
# where there is one), attention, weight and input dropout. Spec 3.5, 8.1.
LIGHT_CONV = {
    "": (512, 2048, 8, 7, 6, True, 0.1, 0.0, 0.0, 0.1),
    "_wmt_en_de": (512, 2048, 8, 7, 6, True, 0.1, 0.0, 0.0, 0.1),
    "_iwslt_de_en": (512, 1024, 4, 7, 6, False, 0.3, 0.1, 0.1, 0.0),
    "_wmt_en_de_big": (*BIG, True, 0.3, 0.1, 0.1, 0.1),
    "_wmt_en_fr_big": (*BIG, True, 0.1, 0.1, 0.1, 0.1),
    "_wmt_zh_en_big": (*BIG, True, 0.2, 0.2, 0.2, 0.1),
}
WIDTHS = ("hidden_dim", "intermediate_dim", "num_heads")
DEPTHS = ("num_encoder_layers", "num_decoder_layers")
RATES = ("dropout", "attention_dropout", "weight_dropout")


def all_options(name):
    """Arguments of the constructor, defaults included."""
    from keras_seqconv import models

    parameters = inspect.signature(getattr(models, PRESETS[name].model)).parameters
    unknown = set(PRESETS[name].architecture) - set(parameters)
    assert not unknown, f"{name}: the constructor has no {unknown}"
    defaults = {
        key: value.default
        for key, value in parameters.items()
        if value.default is not value.empty
    }
    return {**defaults, **PRESETS[name].architecture}


def values(options, *names):
    return tuple(options[name] for name in names)


@pytest.mark.parametrize("kind", ["light_conv", "dynamic_conv"])
@pytest.mark.parametrize("suffix", LIGHT_CONV)
def test_light_conv(kind, suffix):
    got = all_options(f"{kind}{suffix}")
    mixer = {"use_glu": True, "input_dropout": 0.0, **got["mixer"]}
    assert mixer.pop("kind") == kind and set(mixer) == {"use_glu", "input_dropout"}
    assert LIGHT_CONV[suffix] == (
        *values(got, *WIDTHS, *DEPTHS), mixer["use_glu"], *values(got, *RATES),
        mixer["input_dropout"],
    )  # fmt: skip
    decoder = [3, 7, 15, 31, 31, 31]
    assert got["kernel_sizes"] == {"encoder": [*decoder, 31], "decoder": decoder}
    assert got["activation_dropout"] == 0 and not got["normalize_first"]
    assert got["positions"] == "sinusoidal"


OPTIMIZERS = {
    "adam": {"beta_1", "beta_2", "epsilon", "weight_decay"},
    "nag": {"momentum", "weight_decay"},
}
SCHEDULES = {
    "inverse_square_root": set(),
    "cosine": {"period", "floor", "period_growth", "shrink"},
    "fixed": {"force_anneal", "shrink"},
    "plateau": {"shrink", "patience"},
}
SEARCH = {"num_beams", "length_penalty", "min_length", "max_length",
          "max_length_ratio", "no_repeat_ngram_size"}  # fmt: skip
ENDS = ("max_updates", "max_epochs", "stop_learning_rate")


@pytest.mark.parametrize("name", PRESETS)
def test_recipe_is_consistent(name):
    recipe = PRESETS[name].recipe
    assert tuple(recipe) == RECIPE_KEYS
    # A preset may be changed in place without another one noticing.
    assert sum(other.recipe is recipe for other in PRESETS.values()) == 1
    optimizer, schedule = dict(recipe["optimizer"]), dict(recipe["schedule"])
    assert OPTIMIZERS[optimizer.pop("name")] == set(optimizer)
    keys = SCHEDULES[schedule.pop("name")]
    assert set(schedule) == keys | {"learning_rate", "warmup_steps", "warmup_start"}
    assert recipe["label_smoothing"]["kind"] in ("uniform", "others")
    assert any(recipe[key] is not None for key in ENDS), "it never ends"
    assert recipe["precision"] in ("float32", "mixed_float16")
    assert recipe["averaging"]["kind"] in ("best", "last_epochs")
    assert all(recipe[key] for key in ("scoring", "data", "source"))
    assert set(recipe["sources"]) <= set(RECIPE_KEYS)
    search, blocks = recipe["search"], recipe["blocks"]
    if PRESETS[name].model.endswith("LanguageModel"):
        assert search is None
        assert set(blocks) == {"tokens_per_sample", "break_mode", "context_window"}
        assert blocks["break_mode"] in ("none", "sentence")
        assert 0 <= blocks["context_window"] < blocks["tokens_per_sample"]
    else:
        assert blocks is None and set(search) == SEARCH
        assert search["min_length"] <= search["max_length"]


ROOT = "inverse_square_root"
FACTS = {
    "dynamic_conv_iwslt_de_en": (
        "adam", 1e-4, ROOT, 5e-4, 4000, 4000, 1, 50000, "last_epochs", 4, 1.0),
    "light_conv_wmt_en_de_big": (
        "adam", 0.0, "cosine", 1e-3, 10000, 3584, 16, 30000, "best", 5, 0.5),
    "dynamic_conv_wmt_en_fr_big": (
        "adam", 0.0, "cosine", 1e-3, 10000, 3584, 16, 80000, "best", 5, 0.9),
    "query_conv_iwslt_de_en": (
        "adam", 1e-4, ROOT, 5e-4, 4000, 4000, 1, 80000, "last_epochs", 4, 1.0),
    "conv_s2s_wmt_en_fr": (
        "nag", 0.0, "fixed", 0.5, 0, 3000, 1, None, "best", 5, 1.0),
    "conv_s2s_iwslt_de_en": (
        "nag", 0.0, "plateau", 0.25, 0, 4000, 1, None, "best", 5, 1.0),
    "conv_lm_wikitext103": (
        "nag", 5e-6, "plateau", 1.0, 0, 1024, 1, None, "best", None, None),
    "dynamic_conv_multi30k": (
        "adam", 0.0, ROOT, 3.5e-3, 2000, 4096, 1, 8000, "last_epochs", 5, 1.0),
    "dynamic_conv_wide_multi30k": (
        "adam", 0.0, ROOT, 2.5e-3, 2000, 4096, 1, 8000, "last_epochs", 5, 1.0),
}  # fmt: skip


def test_recipes_of_the_spec():
    """Spec 8.1, 6.4, 4.9 and 7.2, the numbers that readers look up."""
    recipes = {name: preset.recipe for name, preset in PRESETS.items()}
    schedules = {name: recipe["schedule"] for name, recipe in recipes.items()}
    for name, expected in FACTS.items():
        recipe, search = recipes[name], recipes[name]["search"] or {}
        assert expected == (
            *values(recipe["optimizer"], "name", "weight_decay"),
            *values(schedules[name], "name", "learning_rate", "warmup_steps"),
            *values(recipe, "tokens_per_batch", "gradient_accumulation_steps",
                    "max_updates"),
            recipe["averaging"]["kind"], search.get("num_beams"),
            search.get("length_penalty"),
        ), name  # fmt: skip
    assert schedules["light_conv_wmt_en_fr_big"]["period"] == 70000
    assert recipes["light_conv_wmt_en_fr_big"]["updates_of_original"] == 30000
    cosine = schedules["transformer_lm_wikitext103"]
    assert (cosine["period"], cosine["shrink"]) == (270000, 0.75)
    assert schedules["conv_s2s_wmt_en_de"]["force_anneal"] == 50
    same = schedules["dynamic_conv_iwslt_de_en"]
    assert schedules["transformer_iwslt_de_en"] == same
    assert schedules["transformer"]["learning_rate"] == 7e-4


# --- Numbers of parameters. Spec 3.5, 4.8, 5.1 and 6.5 ---

IWSLT = {"source_vocabulary_size": 8848, "target_vocabulary_size": 6632}
JOINT = {"source_vocabulary_size": 32768, "target_vocabulary_size": 32768}
FRENCH = {"source_vocabulary_size": 44206, "target_vocabulary_size": 44463}


def count(name, sizes, **mixer):
    """Trainable parameters, without making the numbers."""
    import keras

    from keras_seqconv import models

    preset = PRESETS[name]
    options = dict(preset.architecture)
    if mixer:
        options["mixer"] = {**options["mixer"], **mixer}
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(models, preset.model)(**sizes, **options)
    # Forgets the variables still to be initialized. Freeing memory would look at every
    # object of the process, for five times as long as the rest takes.
    keras.utils.clear_session(free_memory=False)
    return sum(math.prod(weight.shape) for weight in model.trainable_variables)


@pytest.mark.parametrize(
    ("name", "sizes", "mixer", "expected"),
    [
        ("light_conv_iwslt_de_en", IWSLT, {}, 38_139_436),
        ("dynamic_conv_iwslt_de_en", IWSLT, {}, 38_685_184),
        ("light_conv_iwslt_de_en", IWSLT, {"use_glu": True}, 41_553_964),
        ("dynamic_conv_iwslt_de_en", IWSLT, {"use_glu": True}, 42_099_712),
        ("light_conv_wmt_en_de_big", JOINT, {}, 208_867_504),
        ("dynamic_conv_wmt_en_de_big", JOINT, {}, 213_237_760),
        ("light_conv_wmt_en_de_big", JOINT, {"use_glu": False}, 195_222_704),
        ("dynamic_conv_wmt_en_de_big", JOINT, {"use_glu": False}, 199_592_960),
        ("light_conv", JOINT, {}, 60_655_704),
        ("dynamic_conv", JOINT, {}, 61_747_200),
        ("conv_s2s_iwslt_de_en", IWSLT, {}, 9_618_384),
        ("conv_s2s_wmt_en_fr", FRENCH, {}, 267_063_390),
        ("transformer_iwslt_de_en", IWSLT, {}, 39_469_056),
        ("transformer", JOINT, {}, 60_915_712),
        ("transformer_wmt_en_de_big", JOINT, {}, 209_911_808),
        ("query_conv_iwslt_de_en", IWSLT, {}, 40_119_040),
        ("query_conv_iwslt_de_en_dev6", IWSLT, {}, 41_190_912),
    ],
)
def test_counts_printed_in_the_spec(name, sizes, mixer, expected):
    assert count(name, sizes, **mixer) == expected


@pytest.mark.slow
def test_counts_printed_in_the_table():
    """Presets without a count make models, too."""
    for name, preset in PRESETS.items():
        sizes = dict(preset.parameters or JOINT)
        expected, found = sizes.pop("count", None), count(name, sizes)
        assert found == (expected or found) > 0, name


# --- Shown ---


def test_table_has_a_line_for_each():
    lines = table().splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert max(map(len, lines)) < 250
    for name, words in (
        ("dynamic_conv_iwslt_de_en ",
         ("EncoderDecoder", "512", "7/6", "3,7,15,31x4/", "38.7M", "35.2")),
        ("query_conv_iwslt_de_en_dev6 ", ("query_conv 3,7,15", "41.2M")),
        ("transformer ", ("attention", "6/6")),
        ("conv_s2s_iwslt_de_en ", ("256", "4/3", "[(256, 3)] * 4", "9.6M")),
    ):  # fmt: skip
        (line,) = [line for line in lines if line.startswith(name)]
        assert all(word in line for word in words), line


@pytest.mark.parametrize("name", PRESETS)
def test_describe_names_every_value_and_its_source(name):
    text, preset = describe(name), PRESETS[name]
    assert preset.description in text and preset.source in text
    assert all(f"\n  {key} " in text for key in preset.architecture)
    for key, value in preset.recipe.items():
        if value is not None and key not in ("source", "sources", "notes"):
            (line,) = re.findall(rf"^  {key} .*$", text, re.MULTILINE)
            source = preset.recipe["sources"].get(key, preset.recipe["source"])
            assert line.endswith(f"[{source}]")
    assert all(note in text for note in preset.recipe["notes"])


def test_command_line(capsys):
    assert main(["presets"]) == 0
    assert capsys.readouterr().out == table() + "\n"
    assert main(["presets", "conv_lm"]) == 0
    assert capsys.readouterr().out == describe("conv_lm") + "\n"
    for wrong, words in [
        ("dynamic_conv_iwslt", "Did you mean dynamic_conv_iwslt_de_en"),
        ("zzz", "lists. Received: name='zzz'"),
    ]:
        assert main(["presets", wrong]) == 2
        assert words in capsys.readouterr().err
