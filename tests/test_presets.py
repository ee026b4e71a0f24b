"""The table of presets: complete, consistent, shown, and as large as printed."""

import dataclasses
import math
import re

import pytest

from keras_seqconv.presets import ALIASES, PRESETS
from keras_seqconv_cli import main
from keras_seqconv_cli.presets import describe, table
from tests.processes import ROOT

CONV_LMS = ("conv_lm", "conv_lm_wikitext103", "conv_lm_gbw", "conv_lm_characters")
PAGE = (ROOT / "docs" / "models.md").read_text()
ENDS = ("max_updates", "max_epochs", "stop_learning_rate")


@pytest.mark.parametrize("name", CONV_LMS)
def test_conv_language_models_see_what_the_docs_say(name):
    specification = PRESETS[name].architecture["convolutions"]
    assert re.fullmatch(r"[\d\[\](), *+]+", specification)
    layers = eval(specification)  # fairseq's notation, by Python's own arithmetic
    (line,) = re.findall(rf"^\| `{name}` \|.*\| (sees .*) \|$", PAGE, re.MULTILINE)
    assert line.startswith(f"sees {1 + sum(layer[1] - 1 for layer in layers)} ")


def test_the_docs_say_where_each_preset_and_task_comes_from():
    _, recipes, architectures = re.split("^### .*$", PAGE, flags=re.MULTILINE)[1:]
    for name in PRESETS.keys() - ALIASES.keys():
        assert recipes.count(f"`{name}`") == architectures.count(f"`{name}`") == 1
    for preset in PRESETS.values():
        assert f"\n| {preset.task.name}" in PAGE or preset.task.name == "tests"


@pytest.mark.parametrize("name", PRESETS)
def test_recipe_and_task_are_consistent(name):
    preset = PRESETS[name]
    recipe, task = preset.recipe, preset.task
    assert any(getattr(recipe, end) is not None for end in ENDS), "it never ends"
    of_text = preset.model in ("LanguageModel", "ConvLanguageModel")
    assert preset.is_language_model == of_text == (recipe.search is None)
    assert (task.metric == "perplexity") == of_text
    assert len(task.vocabulary_sizes) in (0, 1 if of_text else 2)
    if of_text:
        blocks = recipe.blocks
        assert 0 <= blocks.context_window < blocks.tokens_per_sample
    else:
        assert recipe.search.min_length <= recipe.search.max_length


# --- Numbers of parameters ---


def count(name, **mixer):
    """Trainable parameters, without making the numbers."""
    import keras

    from keras_seqconv import models

    preset = PRESETS[name]
    options, sizes = dict(preset.architecture), preset.task.vocabulary_sizes
    names = ("source_vocabulary_size", "target_vocabulary_size")
    names = ("vocabulary_size",) if preset.is_language_model else names
    options |= zip(names, sizes or (32768, 32768), strict=True)
    if mixer:
        options["mixer"] = {**options["mixer"], **mixer}
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(models, preset.model)(**options)
    # Forgets the variables still to be initialized. Freeing memory would look at every
    # object of the process, for five times as long as the rest takes.
    keras.utils.clear_session(free_memory=False)
    return sum(math.prod(weight.shape) for weight in model.trainable_variables)


@pytest.mark.parametrize(
    ("name", "use_glu", "expected"),
    [
        ("light_conv_iwslt_de_en", True, 41_553_964),
        ("dynamic_conv_iwslt_de_en", True, 42_099_712),
        ("light_conv_wmt_en_de_big", False, 195_222_704),
        ("dynamic_conv_wmt_en_de_big", False, 199_592_960),
    ],
)
def test_counts_of_publications_with_and_without_gates(name, use_glu, expected):
    assert count(name, use_glu=use_glu) == expected


@pytest.mark.slow
def test_counts_printed_in_the_table():
    """Presets without a count make models, too."""
    for name, preset in PRESETS.items():
        found = count(name)
        assert found == (preset.parameters or found) > 0, name


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
def test_describe_names_every_value(name):
    text, preset = describe(name), PRESETS[name]
    recipe = dataclasses.asdict(preset.recipe).items()
    names = [*preset.architecture, *(key for key, value in recipe if value is not None)]
    assert all(f"\n  {key} " in text for key in names)


def test_command_line(capsys):
    assert main(["presets"]) == 0
    assert capsys.readouterr().out == table() + "\n"
    assert main(["presets", "conv_lm"]) == 0
    assert capsys.readouterr().out == describe("conv_lm") + "\n"
    for wrong, words in [
        ("dynamic_conv_iwslt", "Did you mean dynamic_conv_iwslt_de_en"),
        ("zzz", "describes. Received: name='zzz'"),
    ]:
        assert main(["presets", wrong]) == 2
        assert words in capsys.readouterr().err


def test_scores_of_symbols_are_log_probabilities_of_the_best_outputs():
    """Whatever the length, and though a step's best candidates are often ends."""
    searches = [x.recipe.search for x in PRESETS.values() if x.task.metric == "exact"]
    assert len(searches) == 4
    for search in searches:
        assert (search.length_penalty, search.stopping) == (0, "optimal")
        assert search.max_length >= 200
