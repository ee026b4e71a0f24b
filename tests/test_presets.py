"""The table of presets: complete, consistent, shown, and as large as printed."""

import ast
import inspect
import math
import re
from pathlib import Path

import pytest

from keras_seqconv import presets
from keras_seqconv.presets import PRESETS, RECIPE_KEYS
from keras_seqconv.presets_text import describe, table
from keras_seqconv_cli import main

BIG = (1024, 4096, 16, 16, 7, 6)
# name: width, FFN, heads of encoder and decoder, layers of both, gate, dropout (of the
# recipe where there is one), attention, weight and input dropout.  Spec 3.5, 8.1.
LIGHT_CONV = {
    "": (512, 2048, 8, 8, 7, 6, "glu", 0.1, 0.0, 0.0, 0.1),
    "_wmt_en_de": (512, 2048, 8, 8, 7, 6, "glu", 0.1, 0.0, 0.0, 0.1),
    "_iwslt_de_en": (512, 1024, 4, 4, 7, 6, "none", 0.3, 0.1, 0.1, 0.0),
    "_wmt_en_de_big": (*BIG, "glu", 0.3, 0.1, 0.1, 0.1),
    "_wmt_en_fr_big": (*BIG, "glu", 0.1, 0.1, 0.1, 0.1),
    "_wmt_zh_en_big": (*BIG, "glu", 0.2, 0.2, 0.2, 0.1),
}
# Spec 5.1: width, FFN, heads, layers, dropout, attention dropout.
TRANSFORMER = {
    "transformer": (512, 2048, 8, 6, 0.1, 0.0),
    "transformer_wmt_en_de": (512, 2048, 8, 6, 0.1, 0.0),
    "transformer_iwslt_de_en": (512, 1024, 4, 6, 0.3, 0.0),
    "transformer_vaswani_wmt_en_de_big": (1024, 4096, 16, 6, 0.3, 0.0),
    "transformer_vaswani_wmt_en_fr_big": (1024, 4096, 16, 6, 0.1, 0.0),
    "transformer_wmt_en_de_big": (1024, 4096, 16, 6, 0.3, 0.1),
    "transformer_wmt_en_de_big_t2t": (1024, 4096, 16, 6, 0.3, 0.1),
    "transformer_tiny": (64, 64, 2, 2, 0.1, 0.0),
}
# Spec 4.8: embedding, layers of encoder and decoder, output width, dropout.
CONV_S2S = {
    "conv_s2s": (512, 20, 20, 256, 0.1),
    "conv_s2s_iwslt_de_en": (256, 4, 3, 256, 0.2),
    "conv_s2s_wmt_en_ro": (512, 20, 20, 512, 0.1),
    "conv_s2s_wmt_en_de": (768, 15, 15, 512, 0.2),
    "conv_s2s_wmt_en_fr": (768, 15, 15, 512, 0.1),
}
OTHERS = [
    "query_conv_iwslt_de_en", "query_conv_iwslt_de_en_dev6", "light_conv_lm",
    "light_conv_lm_gbw", "dynamic_conv_lm", "dynamic_conv_lm_gbw",
    "dynamic_conv_lm_gbw_paper", "transformer_lm", "transformer_lm_wikitext103",
    "transformer_lm_gbw_paper", "conv_lm", "conv_lm_wikitext103", "conv_lm_gbw",
    "light_conv_cnn_dailymail", "dynamic_conv_cnn_dailymail", "conv_s2s_gigaword",
]  # fmt: skip
MULTI30K = [
    f"{kind}_multi30k"
    for kind in (
        "dynamic_conv", "light_conv", "query_conv", "conv_s2s", "transformer",
        "dynamic_conv_wide",
    )
]  # fmt: skip


def all_options(name):
    """Arguments of the constructor, defaults included."""
    from keras_seqconv import models

    signature = inspect.signature(getattr(models, PRESETS[name].model))
    defaults = {
        key: value.default
        for key, value in signature.parameters.items()
        if value.default is not value.empty
    }
    unknown = set(PRESETS[name].architecture) - set(defaults)
    assert not unknown, f"{name}: the constructor has no {unknown}"
    return {**defaults, **PRESETS[name].architecture}


def count(name, sizes, **mixer):
    """Trainable parameters, without making the numbers."""
    import keras

    from keras_seqconv import models

    preset = PRESETS[name]
    with keras.StatelessScope(initialize_variables=False):
        options = dict(preset.architecture)
        if mixer:
            options["mixer"] = {**options["mixer"], **mixer}
        model = getattr(models, preset.model)(**sizes, **options)
    # Forgets the variables still to be initialized. Freeing memory would look at every
    # object of the process, for five times as long as the rest takes.
    keras.utils.clear_session(free_memory=False)
    return sum(math.prod(weight.shape) for weight in model.trainable_variables)


def convolutions(specification):
    """fairseq's notation, by Python's own arithmetic."""
    assert re.fullmatch(r"[\d\[\](), *+]+", specification)
    return eval(specification)


class TestRows:
    def test_every_row_is_there(self):
        expected = [
            *(f"light_conv{suffix}" for suffix in LIGHT_CONV),
            *(f"dynamic_conv{suffix}" for suffix in LIGHT_CONV),
            *TRANSFORMER,
            *CONV_S2S,
            *OTHERS,
            *MULTI30K,
            "dynamic_conv_phrases",
        ]
        assert sorted(PRESETS) == sorted(expected)
        assert all(PRESETS[name].name == name for name in PRESETS)

    @pytest.mark.parametrize("mixer", ["light_conv", "dynamic_conv"])
    @pytest.mark.parametrize("suffix", LIGHT_CONV)
    def test_light_conv(self, mixer, suffix):
        got = all_options(f"{mixer}{suffix}")
        heads = got["num_heads"]
        options = dict(got["mixer"])
        assert options.pop("kind") == mixer
        use_glu = options.pop("use_glu", True)
        input_dropout = options.pop("input_dropout", 0.0)
        assert not options
        assert (
            got["hidden_dim"], got["intermediate_dim"], heads, heads,
            got["num_encoder_layers"], got["num_decoder_layers"],
            "glu" if use_glu else "none", got["dropout"], got["attention_dropout"],
            got["weight_dropout"], input_dropout,
        ) == LIGHT_CONV[suffix]  # fmt: skip
        assert got["kernel_sizes"] == {
            "encoder": [3, 7, 15, 31, 31, 31, 31],
            "decoder": [3, 7, 15, 31, 31, 31],
        }
        assert got["activation_dropout"] == 0
        assert not got["normalize_first"] and got["positions"] == "sinusoidal"

    @pytest.mark.parametrize("name", TRANSFORMER)
    def test_transformer(self, name):
        got = all_options(name)
        layers = got["num_encoder_layers"]
        assert layers == got["num_decoder_layers"] and got["mixer"] == "attention"
        assert (
            got["hidden_dim"], got["intermediate_dim"], got["num_heads"], layers,
            got["dropout"], got["attention_dropout"],
        ) == TRANSFORMER[name]  # fmt: skip
        t2t = name.endswith("t2t")
        assert got["normalize_first"] == t2t
        assert got["activation_dropout"] == (0.1 if t2t else 0)
        assert got["positions"] == "sinusoidal"

    @pytest.mark.parametrize("name", CONV_S2S)
    def test_conv_s2s(self, name):
        got = all_options(name)
        sides = got["convolutions"]
        if isinstance(sides, str):
            sides = {"encoder": sides, "decoder": sides}
        depths = [len(convolutions(sides[side])) for side in ("encoder", "decoder")]
        assert (
            got["embedding_dim"], *depths, got["output_dim"], got["dropout"],
        ) == CONV_S2S[name]  # fmt: skip
        assert got["attention"] is True and not got["share_output_embedding"]
        assert got["max_length"] == 1024

    @pytest.mark.parametrize(
        ("name", "words"),
        [("conv_lm", 40), ("conv_lm_wikitext103", 47), ("conv_lm_gbw", 57)],
    )
    def test_conv_lm_sees_so_many_words(self, name, words):
        layers = convolutions(PRESETS[name].architecture["convolutions"])
        assert 1 + sum(layer[1] - 1 for layer in layers) == words

    def test_query_conv(self):
        stock = all_options("dynamic_conv_iwslt_de_en")
        got = all_options("query_conv_iwslt_de_en")
        differing = {key for key in got if got[key] != stock[key]}
        assert differing == {"mixer"}
        assert got["mixer"] == {"kind": "query_conv", "query_dim": 256}
        dev6 = all_options("query_conv_iwslt_de_en_dev6")
        wide = {**got["mixer"], "query_dim": 512}
        assert dev6 == {**got, "mixer": {"encoder": wide, "decoder": got["mixer"]}}

    @pytest.mark.parametrize("mixer", ["light_conv", "dynamic_conv"])
    def test_language_models(self, mixer):
        got, gbw = all_options(f"{mixer}_lm"), all_options(f"{mixer}_lm_gbw")
        assert got["kernel_sizes"] == [3, 7, 15, 31, 31, 31]
        assert (got["hidden_dim"], got["intermediate_dim"]) == (512, 2048)
        assert (got["num_heads"], got["num_layers"]) == (8, 6)
        assert got["mixer"] == gbw["mixer"] == {"kind": mixer, "input_dropout": 0.1}
        assert gbw["kernel_sizes"] == [3, 7, 15, 31, 31, 31]
        assert (gbw["hidden_dim"], gbw["intermediate_dim"]) == (512, 4096)
        assert (gbw["num_heads"], gbw["num_layers"]) == (16, 6)
        rates = ("dropout", "attention_dropout", "weight_dropout")
        assert [got[rate] for rate in rates] == [0.1, 0.0, 0.0]
        assert [gbw[rate] for rate in rates] == [0.1, 0.1, 0.1]
        for options in (got, gbw):
            assert options["normalize_first"] and not options["final_norm"]

    def test_the_papers_billion_word_model(self):
        got = all_options("dynamic_conv_lm_gbw_paper")
        assert got["kernel_sizes"] == [15] * 2 + [31] * 4 + [63] * 11
        assert (got["hidden_dim"], got["num_layers"]) == (1024, 17)
        assert got["adaptive_softmax"] and got["adaptive_input"]

    @pytest.mark.parametrize("name", MULTI30K)
    def test_multi30k(self, name):
        got = all_options(name)
        assert got["dropout"] == 0.3
        if PRESETS[name].model == "EncoderDecoder":
            assert (got["num_encoder_layers"], got["num_decoder_layers"]) == (4, 4)
            width = 192 if "wide" in name else 128
            assert (got["hidden_dim"], got["intermediate_dim"]) == (width, 2 * width)
            assert (got["num_heads"], got["share_embeddings"]) == (4, "all")


class TestConsistency:
    @pytest.mark.parametrize("name", PRESETS)
    def test_architecture(self, name):
        preset, got = PRESETS[name], all_options(name)
        assert not [key for key in preset.architecture if "vocabulary" in key]
        if "convolutions" in got:
            return
        depths = {
            "encoder": got.get("num_encoder_layers", got.get("num_layers")),
            "decoder": got.get("num_decoder_layers", got.get("num_layers")),
        }
        sizes = got["kernel_sizes"]
        assert (sizes is None) == (got["mixer"] == "attention")
        if sizes is not None:
            sides = sizes if isinstance(sizes, dict) else dict.fromkeys(depths, sizes)
            for side, depth in depths.items():
                assert len(sides[side]) == depth
        assert got["hidden_dim"] % got["num_heads"] == 0

    @pytest.mark.parametrize("name", PRESETS)
    def test_recipe(self, name):
        recipe = PRESETS[name].recipe
        assert tuple(recipe) == RECIPE_KEYS
        # A preset may be changed in place without another one noticing.
        assert sum(other.recipe is recipe for other in PRESETS.values()) == 1
        optimizer = dict(recipe["optimizer"])
        keys = {
            "adam": {"beta_1", "beta_2", "epsilon", "weight_decay"},
            "nag": {"momentum", "weight_decay"},
        }[optimizer.pop("name")]
        assert set(optimizer) == keys
        assert all(type(value) is float for value in optimizer.values())
        schedule = dict(recipe["schedule"])
        keys = {
            "inverse_square_root": set(),
            "cosine": {"period", "floor", "period_growth", "shrink"},
            "fixed": {"force_anneal", "shrink"},
            "plateau": {"shrink", "patience"},
        }[schedule.pop("name")]
        assert set(schedule) == keys | {
            "learning_rate", "warmup_steps", "warmup_start"
        }  # fmt: skip
        whole = {"warmup_steps", "period", "patience", "force_anneal"}
        for key, value in schedule.items():
            assert type(value) is (int if key in whole else float), key
        assert set(recipe["label_smoothing"]) == {"rate", "kind"}
        assert recipe["label_smoothing"]["kind"] in ("uniform", "others")
        for key in ("tokens_per_batch", "gradient_accumulation_steps", "num_replicas"):
            assert type(recipe[key]) is int and recipe[key] >= 1
        for key in ("max_updates", "max_epochs", "updates_of_original"):
            assert recipe[key] is None or type(recipe[key]) is int
        for key in ("global_clipnorm", "stop_learning_rate"):
            assert recipe[key] is None or type(recipe[key]) is float
        ends = ("max_updates", "max_epochs", "stop_learning_rate")
        assert any(recipe[key] is not None for key in ends), "it never ends"
        assert recipe["precision"] in ("float32", "mixed_float16")
        assert recipe["averaging"]["kind"] in ("best", "last_epochs")
        assert recipe["averaging"]["count"] >= 1
        for key in ("scoring", "data", "source"):
            assert type(recipe[key]) is str and recipe[key]
        assert set(recipe["sources"]) <= set(RECIPE_KEYS)
        assert all(type(note) is str for note in recipe["notes"])

    @pytest.mark.parametrize("name", PRESETS)
    def test_search_or_blocks(self, name):
        recipe = PRESETS[name].recipe
        if PRESETS[name].model.endswith("LanguageModel"):
            assert recipe["search"] is None
            blocks = recipe["blocks"]
            assert set(blocks) == {"tokens_per_sample", "break_mode", "context_window"}
            assert blocks["break_mode"] in ("none", "sentence")
            assert 0 <= blocks["context_window"] < blocks["tokens_per_sample"]
        else:
            assert recipe["blocks"] is None
            search = recipe["search"]
            assert set(search) == {
                "num_beams", "length_penalty", "min_length", "max_length",
                "max_length_ratio", "no_repeat_ngram_size",
            }  # fmt: skip
            assert search["min_length"] <= search["max_length"]

    def test_recipes_of_the_spec(self):
        """Spec 8.1, 6.4, 4.9 and 7.2, the numbers that readers look up."""

        def facts(name):
            recipe = PRESETS[name].recipe
            schedule, search = recipe["schedule"], recipe["search"] or {}
            return (
                recipe["optimizer"]["name"], recipe["optimizer"]["weight_decay"],
                schedule["name"], schedule["learning_rate"], schedule["warmup_steps"],
                recipe["tokens_per_batch"], recipe["gradient_accumulation_steps"],
                recipe["max_updates"], recipe["averaging"]["kind"],
                search.get("num_beams"), search.get("length_penalty"),
            )  # fmt: skip

        root = "inverse_square_root"
        for name, expected in {
            "dynamic_conv_iwslt_de_en": (
                "adam", 1e-4, root, 5e-4, 4000, 4000, 1, 50000, "last_epochs", 4, 1.0),
            "light_conv_wmt_en_de_big": (
                "adam", 0.0, "cosine", 1e-3, 10000, 3584, 16, 30000, "best", 5, 0.5),
            "dynamic_conv_wmt_en_fr_big": (
                "adam", 0.0, "cosine", 1e-3, 10000, 3584, 16, 80000, "best", 5, 0.9),
            "query_conv_iwslt_de_en": (
                "adam", 1e-4, root, 5e-4, 4000, 4000, 1, 80000, "last_epochs", 4, 1.0),
            "conv_s2s_wmt_en_fr": (
                "nag", 0.0, "fixed", 0.5, 0, 3000, 1, None, "best", 5, 1.0),
            "conv_s2s_iwslt_de_en": (
                "nag", 0.0, "plateau", 0.25, 0, 4000, 1, None, "best", 5, 1.0),
            "conv_lm_wikitext103": (
                "nag", 5e-6, "plateau", 1.0, 0, 1024, 1, None, "best", None, None),
            "dynamic_conv_multi30k": (
                "adam", 0.0, root, 3.5e-3, 2000, 4096, 1, 8000, "last_epochs", 5, 1.0),
            "dynamic_conv_wide_multi30k": (
                "adam", 0.0, root, 2.5e-3, 2000, 4096, 1, 8000, "last_epochs", 5, 1.0),
        }.items():  # fmt: skip
            assert facts(name) == expected, name
        french = PRESETS["light_conv_wmt_en_fr_big"].recipe
        assert french["schedule"]["period"] == 70000
        assert french["updates_of_original"] == 30000
        cosine = PRESETS["transformer_lm_wikitext103"].recipe["schedule"]
        assert (cosine["period"], cosine["shrink"]) == (270000, 0.75)
        assert PRESETS["conv_s2s_wmt_en_de"].recipe["schedule"]["force_anneal"] == 50
        assert (
            PRESETS["transformer_iwslt_de_en"].recipe["schedule"]
            == (PRESETS["dynamic_conv_iwslt_de_en"].recipe["schedule"])
        )
        rate = PRESETS["transformer"].recipe["schedule"]["learning_rate"]
        assert rate == 7e-4

    def test_the_file_is_data(self):
        """It imports nothing of the package and no Keras."""
        tree = ast.parse(Path(presets.__file__).read_text())
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        assert imported == {"copy", "dataclasses"}


class TestCounts:
    """Spec 3.5, 4.8, 5.1 and 6.5."""

    IWSLT = {"source_vocabulary_size": 8848, "target_vocabulary_size": 6632}
    JOINT = {"source_vocabulary_size": 32768, "target_vocabulary_size": 32768}
    FRENCH = {"source_vocabulary_size": 44206, "target_vocabulary_size": 44463}

    @pytest.mark.parametrize(
        ("name", "sizes", "changes", "expected"),
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
    def test_printed_in_the_spec(self, name, sizes, changes, expected):
        assert count(name, sizes, **changes) == expected

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name", [name for name, preset in PRESETS.items() if preset.parameters]
    )
    def test_printed_in_the_table(self, name):
        sizes = dict(PRESETS[name].parameters)
        expected = sizes.pop("count")
        assert count(name, sizes) == expected

    @pytest.mark.parametrize("name", MULTI30K)
    def test_multi30k_is_small(self, name):
        sizes = dict.fromkeys(self.JOINT, 10_000)
        assert count(name, sizes) <= 5_000_000

    @pytest.mark.slow
    def test_billion_word_model_of_the_paper(self):
        """339M and 331M by the paper."""
        sizes = {"vocabulary_size": 793_471}
        assert round(count("dynamic_conv_lm_gbw_paper", sizes) / 1e6) == 339
        assert abs(count("transformer_lm_gbw_paper", sizes) / 1e6 - 331) < 1

    @pytest.mark.parametrize(
        "name", [name for name, preset in PRESETS.items() if not preset.parameters]
    )
    def test_the_others_make_models_too(self, name):
        language = PRESETS[name].model.endswith("LanguageModel")
        sizes = {"vocabulary_size": 210_000} if language else dict(self.JOINT)
        assert count(name, sizes) > 0


class TestShown:
    def test_table_has_a_line_for_each(self):
        lines = table().splitlines()[2:]
        assert [line.split()[0] for line in lines] == list(PRESETS)
        (line,) = [x for x in lines if x.startswith("dynamic_conv_iwslt_de_en ")]
        for word in ("EncoderDecoder", "512", "7/6", "3,7,15,31x4/", "38.7M", "35.2"):
            assert word in line
        (line,) = [x for x in lines if x.startswith("conv_s2s_iwslt_de_en ")]
        for word in ("256", "4/3", "[(256, 3)] * 4", "9.6M"):
            assert word in line
        assert max(map(len, lines)) < 250

    @pytest.mark.parametrize("name", PRESETS)
    def test_describe_names_every_value_and_its_source(self, name):
        text, preset = describe(name), PRESETS[name]
        assert preset.description in text and preset.source in text
        for key in preset.architecture:
            assert f"\n  {key} " in text
        for key, value in preset.recipe.items():
            if value is None or key in ("source", "sources", "notes"):
                continue
            (line,) = re.findall(rf"^  {key} .*$", text, re.MULTILINE)
            source = preset.recipe["sources"].get(key, preset.recipe["source"])
            assert line.endswith(f"[{source}]")
        for note in preset.recipe["notes"]:
            assert note in text

    def test_describe_refuses_other_names(self):
        with pytest.raises(ValueError, match="Received: name='fconv'"):
            describe("fconv")

    def test_command_line(self, capsys):
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
