"""Named architectures, each with the recipe that trains it and the task it is for.

Data, and their lookup by name; docs/models.md says where the numbers come from. Names
of tasks and references are for readers: nothing depends on their words.
"""

import dataclasses
from typing import Any

from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.recipes import (
    AdamOptions,
    BlockOptions,
    CosineOptions,
    FixedOptions,
    InverseSquareRootOptions,
    MuonOptions,
    NagOptions,
    PlateauOptions,
    Recipe,
)
from keras_seqconv.support.arguments import near


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A corpus, and how models of it are scored.

    Args:
        name: corpus and languages, in short.
        languages: of source and target; None where they are not those of a translation.
        tokenizers: kinds of source and target that training makes unless told
            otherwise.
        vocabulary_sizes: of source and target, or of the text of a language model;
            empty where no size is known.
        metric: of published scores, by its name in `keras_seqconv.evaluation.scores`.
        lowercase: whether this metric ignores case.
    """

    name: str
    languages: tuple[str, str] | None = None
    tokenizers: tuple[str, str] = ("sentencepiece_bpe",) * 2
    vocabulary_sizes: tuple[int, ...] = ()
    metric: str = "tokenized_bleu"
    lowercase: bool = False


@dataclasses.dataclass(frozen=True)
class Preset:
    """An architecture with the recipe that trains it.

    Args:
        recipe: how it is trained and decoded.
        task: what it is trained on.
        parameters: number of trainable parameters with the vocabulary of the task, or
            None where the task names no size.
        architecture: arguments of the constructor that differ from the defaults,
            vocabulary sizes apart, with the dropout of the recipe.
        model: class in `keras_seqconv.models`.
        reference: published score, or ""; "from memory" where it was not compared with
            the paper.
    """

    recipe: Recipe
    task: Task
    parameters: int | None
    architecture: dict[str, Any]
    model: str = "EncoderDecoder"
    reference: str = ""

    @property
    def is_language_model(self) -> bool:
        return self.recipe.blocks is not None


# Tasks --------------------------------------------------------------------------------

IWSLT14 = Task(
    name="IWSLT'14 de-en",
    languages=("de", "en"),
    vocabulary_sizes=(8848, 6632),
    lowercase=True,
)
WMT16_EN_DE = Task(
    name="WMT'16 en-de",
    languages=("en", "de"),
    vocabulary_sizes=(32768, 32768),
    metric="compound_split_bleu",
)
WMT14_EN_FR = Task(name="WMT'14 en-fr", languages=("en", "fr"))
WMT14_EN_FR_32K = dataclasses.replace(WMT14_EN_FR, vocabulary_sizes=(32768, 32768))
WMT14_EN_FR_44K = dataclasses.replace(WMT14_EN_FR, vocabulary_sizes=(44206, 44463))
WMT14_EN_DE = Task(name="WMT'14 en-de", languages=("en", "de"))
WMT16_EN_RO = Task(name="WMT'16 en-ro", languages=("en", "ro"))
WMT17_ZH_EN = Task(name="WMT'17 zh-en", languages=("zh", "en"))
CNN_DAILYMAIL = Task(
    name="CNN/DailyMail", vocabulary_sizes=(30000, 30000), metric="rouge"
)
GIGAWORD = Task(name="Gigaword headlines", metric="rouge")
AESLC = Task(name="AESLC subject lines", vocabulary_sizes=(8000, 8000), metric="rouge")
MULTI30K_10K = Task(
    name="Multi30k en-de",
    languages=("en", "de"),
    vocabulary_sizes=(10000, 10000),
    lowercase=True,
)
MULTI30K_6K = dataclasses.replace(MULTI30K_10K, vocabulary_sizes=(6000, 6000))
PHRASES = Task(
    name="quickstart en-de", languages=("en", "de"), vocabulary_sizes=(1000, 1000)
)
CMUDICT = Task(
    name="CMUdict letters-phonemes",
    tokenizers=("characters", "words"),
    vocabulary_sizes=(33, 43),
    metric="exact",
)
TESTS = dataclasses.replace(IWSLT14, name="tests", languages=None, vocabulary_sizes=())
WIKITEXT = Task(name="WikiText-103", vocabulary_sizes=(267744,), metric="perplexity")
BILLION_WORD = Task(
    name="Billion Word", vocabulary_sizes=(793471,), metric="perplexity"
)
SHAKESPEARE = Task(
    name="tinyshakespeare",
    tokenizers=("characters",) * 2,
    vocabulary_sizes=(69,),
    metric="perplexity",
)

# Recipes ------------------------------------------------------------------------------


IWSLT = Recipe(
    optimizer=AdamOptions(weight_decay=1e-4),
    schedule=InverseSquareRootOptions(learning_rate=5e-4, warmup_steps=4000),
    tokens_per_batch=4000,
    max_updates=50000,
    stop_learning_rate=1e-9,
    average=10,
    average_kind="last_epochs",
    search=BeamOptions(num_beams=4),
)
WMT_EN_DE_BIG = Recipe(
    schedule=CosineOptions(learning_rate=1e-3, warmup_steps=10000, period=20000),
    tokens_per_batch=3584,
    gradient_accumulation_steps=16,
    num_replicas=8,
    max_updates=30000,
    stop_learning_rate=1e-9,
    precision="mixed_float16",
    search=BeamOptions(length_penalty=0.5),
)
WMT_EN_FR_BIG = dataclasses.replace(
    WMT_EN_DE_BIG,
    schedule=CosineOptions(learning_rate=1e-3, warmup_steps=10000, period=70000),
    max_updates=80000,
    search=BeamOptions(length_penalty=0.9),
)
WMT_ZH_EN_BIG = dataclasses.replace(WMT_EN_DE_BIG, search=BeamOptions())
TRANSFORMER_BASE = Recipe(
    schedule=InverseSquareRootOptions(learning_rate=7e-4, warmup_steps=4000),
    tokens_per_batch=4096,
    num_replicas=8,
    max_updates=100000,
    stop_learning_rate=1e-9,
    average=5,
    average_kind="last_epochs",
    search=BeamOptions(num_beams=4, length_penalty=0.6),
)
TRANSFORMER_BIG = dataclasses.replace(
    TRANSFORMER_BASE,
    schedule=InverseSquareRootOptions(learning_rate=5e-4, warmup_steps=4000),
    tokens_per_batch=3584,
    max_updates=300000,
    average=10,
    precision="mixed_float16",
)
DEV6 = dataclasses.replace(IWSLT, max_updates=80000)
CONV_S2S_IWSLT = Recipe(
    optimizer=NagOptions(),
    schedule=PlateauOptions(learning_rate=0.25, warmup_start=0.25, shrink=0.1),
    global_clipnorm=0.1,
    label_smoothing=0.0,
    tokens_per_batch=4000,
    stop_learning_rate=1e-5,
    search=BeamOptions(),
)
CONV_S2S_WMT = dataclasses.replace(
    CONV_S2S_IWSLT,
    schedule=FixedOptions(learning_rate=0.5, warmup_start=0.5, force_anneal=50),
    label_smoothing=0.1,
)
CONV_S2S_WMT_EN_FR = dataclasses.replace(CONV_S2S_WMT, tokens_per_batch=3000)
CONV_S2S_WMT_EN_RO = dataclasses.replace(CONV_S2S_IWSLT, stop_learning_rate=1e-4)
CONV_S2S_GIGAWORD = dataclasses.replace(
    CONV_S2S_WMT_EN_RO, search=BeamOptions(max_length=50)
)
LANGUAGE_MODEL = Recipe(
    optimizer=AdamOptions(weight_decay=0.01),
    schedule=InverseSquareRootOptions(learning_rate=5e-4, warmup_steps=4000),
    label_smoothing=0.0,
    tokens_per_batch=2048,
    gradient_accumulation_steps=16,
    max_updates=50000,
    precision="mixed_float16",
    blocks=BlockOptions(512, context_window=400),
)
ADAPTIVE_WIKITEXT = dataclasses.replace(
    LANGUAGE_MODEL,
    optimizer=NagOptions(),
    schedule=CosineOptions(
        learning_rate=1.0,
        warmup_steps=16000,
        period=270000,
        floor=1e-4,
        period_growth=2.0,
        shrink=0.75,
    ),
    global_clipnorm=0.1,
    tokens_per_batch=3072,
    gradient_accumulation_steps=3,
    num_replicas=8,
    max_updates=286000,
    stop_learning_rate=1e-9,
    precision="float32",
    blocks=BlockOptions(3072, context_window=2560),
)
ADAPTIVE_BILLION = dataclasses.replace(
    ADAPTIVE_WIKITEXT,
    blocks=BlockOptions(1024, break_mode="sentence"),
    tokens_per_batch=2048,
    gradient_accumulation_steps=1,
    num_replicas=32,
)
CONV_LM_WIKITEXT = dataclasses.replace(
    LANGUAGE_MODEL,
    optimizer=NagOptions(weight_decay=5e-6),
    schedule=PlateauOptions(learning_rate=1.0, warmup_start=1.0, shrink=0.5),
    global_clipnorm=0.1,
    tokens_per_batch=1024,
    gradient_accumulation_steps=1,
    max_updates=None,
    max_epochs=35,
    precision="float32",
    blocks=BlockOptions(1024),
)
CONV_LM_BILLION = dataclasses.replace(
    CONV_LM_WIKITEXT, blocks=BlockOptions(1024, break_mode="sentence"), max_epochs=10
)
CHARACTERS = Recipe(
    optimizer=AdamOptions(weight_decay=0.05),
    schedule=CosineOptions(
        learning_rate=3e-3, warmup_steps=200, period=1600, floor=1e-5
    ),
    global_clipnorm=1.0,
    label_smoothing=0.0,
    tokens_per_batch=8192,
    max_updates=1800,
    blocks=BlockOptions(512, context_window=256),
)
TRANSFORMER_CHARACTERS = dataclasses.replace(
    CHARACTERS,
    schedule=dataclasses.replace(CHARACTERS.schedule, learning_rate=1e-3),
    blocks=BlockOptions(256, context_window=128),
)
# A context of all that it sees: more would be computed for nothing.
CONV_CHARACTERS = dataclasses.replace(
    CHARACTERS, blocks=BlockOptions(512, context_window=72)
)
SUMMARIES = dataclasses.replace(
    WMT_EN_DE_BIG,
    schedule=InverseSquareRootOptions(learning_rate=1e-3, warmup_steps=4000),
    num_replicas=1,
    search=BeamOptions(
        num_beams=4,
        length_penalty=2.0,
        min_length=55,
        max_length=140,
        no_repeat_ngram_size=3,
    ),
)
SUBJECT_LINES = Recipe(
    schedule=CosineOptions(learning_rate=8e-4, warmup_steps=200, period=1100),
    tokens_per_batch=8192,
    max_updates=1300,
    average=3,
    search=BeamOptions(min_length=2, max_length=30, no_repeat_ngram_size=3),
)
MULTI30K = Recipe(
    schedule=InverseSquareRootOptions(learning_rate=3.5e-3, warmup_steps=2000),
    tokens_per_batch=4096,
    max_updates=8000,
    average=10,
    average_kind="last_epochs",
    search=BeamOptions(),
)
WIDE_MULTI30K = dataclasses.replace(
    MULTI30K, schedule=InverseSquareRootOptions(learning_rate=2.5e-3, warmup_steps=2000)
)
CONV_S2S_MULTI30K = dataclasses.replace(
    MULTI30K,
    optimizer=NagOptions(),
    schedule=CosineOptions(learning_rate=1.0, warmup_start=1.0, period=8000, floor=0.0),
    global_clipnorm=0.1,
    average=1,
    average_kind="best",
)
QUICKSTART = Recipe(
    schedule=InverseSquareRootOptions(learning_rate=5e-3, warmup_steps=150),
    tokens_per_batch=2048,
    max_updates=800,
    average=2,
    average_kind="last_epochs",
    search=BeamOptions(num_beams=4, max_length=60),
)

# Scores are log-probabilities. Of few symbols the end is often among the best ones of
# a step, so the first ended hypotheses may come before a better one ends.
_OF_SYMBOLS = BeamOptions(length_penalty=0.0, stopping="optimal")
G2P = Recipe(
    optimizer=MuonOptions(),
    schedule=CosineOptions(learning_rate=1e-3, warmup_steps=1000),
    tokens_per_batch=2048,
    max_updates=22_000,
    search=_OF_SYMBOLS,
)
CONV_S2S_G2P = dataclasses.replace(
    CONV_S2S_MULTI30K,
    schedule=CosineOptions(learning_rate=0.5, warmup_start=0.5, floor=0.0),
    tokens_per_batch=1024,
    max_updates=10_800,
    search=_OF_SYMBOLS,
)

# Presets ------------------------------------------------------------------------------

# fmt: off
PRESETS: dict[str, Preset] = {}

_INPUT_DROPOUT = {"input_dropout": 0.1}
_ATTENTION = {"mixer": "attention"}
_ONE_TABLE = {"share_embeddings": "all"}
_BIG = {"hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 16}
_SMALL = {"intermediate_dim": 1024, "num_heads": 4}


def _dropouts(dropout, attention, weight=None) -> dict[str, float]:
    rates = {"dropout": dropout, "attention_dropout": attention}
    return rates if weight is None else {**rates, "weight_dropout": weight}


def _both(
    light, dynamic, recipe, task, architecture, mixer=None, model="EncoderDecoder"
):
    """Adds presets of LightConv and DynamicConv that differ in nothing else.

    `light` and `dynamic` are names, parameters, and published scores if there are any.
    """
    kinds = {"light_conv": light, "dynamic_conv": dynamic}
    for kind, (name, parameters, *score) in kinds.items():
        PRESETS[name] = Preset(
            recipe, task, parameters,
            {**architecture, "mixer": {"kind": kind, **mixer} if mixer else kind},
            reference="".join(score), model=model,
        )


# LightConv and DynamicConv: translation and summaries ---------------------------------

_CONV = {
    "num_encoder_layers": 7, "num_decoder_layers": 6,
    "kernel_sizes": {
        "encoder": [3, 7, 15, 31, 31, 31, 31], "decoder": [3, 7, 15, 31, 31, 31],
    },
}
_BASE_CONV = {**_CONV, **_ONE_TABLE, **_dropouts(0.1, 0.0, 0.0)}
_IWSLT_CONV = {**_CONV, **_SMALL, **_dropouts(0.3, 0.1, 0.1)}
_EN_DE_CONV = {**_CONV, **_BIG, **_ONE_TABLE, **_dropouts(0.3, 0.1, 0.1)}
_EN_FR_CONV = {**_CONV, **_BIG, **_ONE_TABLE, **_dropouts(0.1, 0.1, 0.1)}
_ZH_EN_CONV = {
    **_CONV, **_BIG, "share_embeddings": "none", **_dropouts(0.2, 0.2, 0.2),
}
_CNN_CONV = {**_CONV, **_dropouts(0.1, 0.1, 0.1)}

_both(
    ("light_conv", 60_655_704), ("dynamic_conv", 61_747_200),
    TRANSFORMER_BASE, WMT16_EN_DE, _BASE_CONV, _INPUT_DROPOUT,
)
_both(
    ("light_conv_iwslt_de_en", 38_139_436, "34.8 BLEU (Wu et al. 2019)"),
    ("dynamic_conv_iwslt_de_en", 38_685_184, "35.2 BLEU (Wu et al. 2019)"),
    IWSLT, IWSLT14, _IWSLT_CONV, {"use_glu": False},
)
_both(
    ("light_conv_wmt_en_de_big", 208_867_504, "28.9 BLEU (Wu et al. 2019)"),
    ("dynamic_conv_wmt_en_de_big", 213_237_760, "29.7 BLEU (Wu et al. 2019)"),
    WMT_EN_DE_BIG, WMT16_EN_DE, _EN_DE_CONV, _INPUT_DROPOUT,
)
_both(
    ("light_conv_wmt_en_fr_big", None, "43.1 BLEU (Wu et al. 2019), from memory"),
    ("dynamic_conv_wmt_en_fr_big", None, "43.2 BLEU (Wu et al. 2019)"),
    WMT_EN_FR_BIG, WMT14_EN_FR, _EN_FR_CONV, _INPUT_DROPOUT,
)
_both(
    ("light_conv_wmt_zh_en_big", None, "24.3 BLEU (Wu et al. 2019), from memory"),
    ("dynamic_conv_wmt_zh_en_big", None, "24.4 BLEU (Wu et al. 2019), from memory"),
    WMT_ZH_EN_BIG, WMT17_ZH_EN, _ZH_EN_CONV, _INPUT_DROPOUT,
)
_both(
    ("light_conv_cnn_dailymail", 89_958_488,
     "ROUGE 39.52/15.97/36.51 (Wu et al. 2019), from memory"),
    ("dynamic_conv_cnn_dailymail", 91_049_984,
     "ROUGE 39.84/16.25/36.73 (Wu et al. 2019) (R-2, R-L from memory)"),
    SUMMARIES, CNN_DAILYMAIL, _CNN_CONV, _INPUT_DROPOUT,
)

# Query-projected DynamicConv: its kernels come from a projection ----------------------

_Q256 = {"kind": "query_conv", "query_dim": 256}
_Q512 = {"kind": "query_conv", "query_dim": 512}
_DEV6_SCORE = "35.44 BLEU (choyi0521's post; not like for like, see docs/models.md)"

PRESETS["query_conv_iwslt_de_en"] = Preset(
    DEV6, IWSLT14, 40_119_040,
    {**_IWSLT_CONV, "mixer": _Q256},  reference=_DEV6_SCORE,
)
PRESETS["query_conv_iwslt_de_en_dev6"] = Preset(
    DEV6, IWSLT14, 41_190_912,
    {**_IWSLT_CONV, "mixer": {"encoder": _Q512, "decoder": _Q256}},
    reference=_DEV6_SCORE,
)

# Transformer --------------------------------------------------------------------------

PRESETS["transformer"] = Preset(
    TRANSFORMER_BASE, WMT16_EN_DE, 60_915_712,
    {**_ATTENTION, **_ONE_TABLE, **_dropouts(0.1, 0.0)},
    reference="27.3 BLEU (Vaswani et al. 2017)",
)
PRESETS["transformer_iwslt_de_en"] = Preset(
    IWSLT, IWSLT14, 39_469_056,
    {**_ATTENTION, **_SMALL, **_dropouts(0.3, 0.0), "share_embeddings": "decoder"},
    reference="34.4 BLEU (baseline of Wu et al. 2019, derived)",
)
PRESETS["transformer_vaswani_wmt_en_de_big"] = Preset(
    TRANSFORMER_BIG, WMT16_EN_DE, 209_911_808,
    {**_ATTENTION, **_BIG, **_ONE_TABLE, **_dropouts(0.3, 0.0)},
    reference="28.4 BLEU (Vaswani et al. 2017)",
)
PRESETS["transformer_vaswani_wmt_en_fr_big"] = Preset(
    TRANSFORMER_BIG, WMT14_EN_FR_32K, 209_911_808,
    {**_ATTENTION, **_BIG, **_ONE_TABLE, **_dropouts(0.1, 0.0)},
    reference="41.0 BLEU (Vaswani et al. 2017)",
)
PRESETS["transformer_wmt_en_de_big"] = Preset(
    TRANSFORMER_BIG, WMT16_EN_DE, 209_911_808,
    {**_ATTENTION, **_BIG, **_ONE_TABLE, **_dropouts(0.3, 0.1)},
    reference="29.3 BLEU (Ott et al. 2018, larger batches)",
)
PRESETS["transformer_wmt_en_de_big_t2t"] = Preset(
    TRANSFORMER_BIG, WMT16_EN_DE, 209_915_904,
    {
        **_ATTENTION, **_BIG, **_ONE_TABLE, **_dropouts(0.3, 0.1),
        "normalize_first": True, "activation_dropout": 0.1,
    },
)
PRESETS["transformer_tiny"] = Preset(
    IWSLT, TESTS, None,
    {
        **_ATTENTION, "hidden_dim": 64, "intermediate_dim": 64, "num_heads": 2,
        "num_encoder_layers": 2, "num_decoder_layers": 2, **_dropouts(0.1, 0.0),
    },
)

# ConvS2S ------------------------------------------------------------------------------

PRESETS["conv_s2s"] = Preset(
    CONV_S2S_WMT, WMT14_EN_DE, None,
    {"convolutions": "[(512, 3)] * 20", "dropout": 0.1},
    model="ConvS2S",
)
PRESETS["conv_s2s_iwslt_de_en"] = Preset(
    CONV_S2S_IWSLT, IWSLT14, 9_618_384,
    {
        "embedding_dim": 256, "dropout": 0.2,
        "convolutions": {"encoder": "[(256, 3)] * 4", "decoder": "[(256, 3)] * 3"},
    },
    model="ConvS2S",
)
PRESETS["conv_s2s_wmt_en_ro"] = Preset(
    CONV_S2S_WMT_EN_RO, WMT16_EN_RO, None,
    {"convolutions": "[(512, 3)] * 20", "output_dim": 512, "dropout": 0.1},
    model="ConvS2S",
    reference="30.02 BLEU (Gehring et al. 2017)",
)
PRESETS["conv_s2s_wmt_en_de"] = Preset(
    CONV_S2S_WMT, WMT14_EN_DE, None,
    {
        "embedding_dim": 768, "output_dim": 512, "dropout": 0.2,
        "convolutions": "[(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2",
    },
    model="ConvS2S",
    reference="25.16 BLEU (Gehring et al. 2017)",
)
PRESETS["conv_s2s_wmt_en_fr"] = Preset(
    CONV_S2S_WMT_EN_FR, WMT14_EN_FR_44K, 267_063_390,
    {
        "embedding_dim": 768, "output_dim": 512, "dropout": 0.1,
        "convolutions": "[(512, 3)] * 6 + [(768, 3)] * 4 + [(1024, 3)] * 3 "
        "+ [(2048, 1)] * 1 + [(4096, 1)] * 1",
    },
    model="ConvS2S",
    reference="40.83 BLEU (fairseq's released model; Gehring et al. 2017: 40.51)",
)
PRESETS["conv_s2s_gigaword"] = Preset(
    CONV_S2S_GIGAWORD, GIGAWORD, None,
    {
        "embedding_dim": 256, "output_dim": 256, "dropout": 0.1,
        "convolutions": "[(256, 3)] * 6",
    },
    model="ConvS2S",
    reference="ROUGE 35.88/17.48/33.29 (Gehring et al. 2017)",
)

# Language models ----------------------------------------------------------------------

_PRE_NORM = {"normalize_first": True, "final_norm": False}
_LM_CONV = {"num_layers": 6, "kernel_sizes": [3, 7, 15, 31, 31, 31], **_PRE_NORM}
_BASE_LM = {**_LM_CONV, "share_embeddings": True, **_dropouts(0.1, 0.0, 0.0)}
_TIED = {"tie_adaptive_weights": True, "tie_adaptive_projections": True}
_WORDS = {"cutoffs": [60000, 160000], "factor": 4.0}
_ADAPTIVE = {"adaptive_softmax": _WORDS, "adaptive_input": _WORDS, **_TIED}
_GBW_LM = {
    **_LM_CONV, "intermediate_dim": 4096, "num_heads": 16,
    **_dropouts(0.1, 0.1, 0.1), **_ADAPTIVE,
}

_both(
    ("light_conv_lm", 154_424_240), ("dynamic_conv_lm", 154_906_624),
    LANGUAGE_MODEL, WIKITEXT, _BASE_LM, _INPUT_DROPOUT,
    model="LanguageModel",
)
_both(
    ("light_conv_lm_gbw", 94_071_616), ("dynamic_conv_lm_gbw", 95_036_384),
    ADAPTIVE_BILLION, BILLION_WORD, _GBW_LM, _INPUT_DROPOUT,
    model="LanguageModel",
)
PRESETS["dynamic_conv_lm_gbw_paper"] = Preset(
    ADAPTIVE_BILLION, BILLION_WORD, 339_130_304,
    {
        **_BIG, "num_layers": 17, "mixer": {"kind": "dynamic_conv", **_INPUT_DROPOUT},
        **_dropouts(0.1, 0.1, 0.1),
        "kernel_sizes": [15] * 2 + [31] * 4 + [63] * 11, **_PRE_NORM, **_ADAPTIVE,
    },
    model="LanguageModel",
    reference="perplexity 26.67 (Wu et al. 2019)",
)
PRESETS["transformer_lm"] = Preset(
    LANGUAGE_MODEL, WIKITEXT, 156_000_256,
    {
        **_ATTENTION, "num_layers": 6, **_dropouts(0.1, 0.0), "normalize_first": True,
        "share_embeddings": True,
    },
    model="LanguageModel",
)
PRESETS["transformer_lm_wikitext103"] = Preset(
    ADAPTIVE_WIKITEXT, WIKITEXT, 246_933_504,
    {
        **_ATTENTION, "hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 8,
        "num_layers": 16, **_dropouts(0.3, 0.1), "activation_dropout": 0.1,
        "adaptive_softmax": {"cutoffs": [20000, 60000], "factor": 4.0, "dropout": 0.2},
        "adaptive_input": {"cutoffs": [20000, 60000], "factor": 4.0},
        **_PRE_NORM, **_TIED,
    },
    model="LanguageModel",
    reference="perplexity 18.7 (Baevski and Auli 2019), from memory",
)
PRESETS["transformer_lm_gbw_paper"] = Preset(
    ADAPTIVE_BILLION, BILLION_WORD, 330_500_032,
    {
        **_ATTENTION, **_BIG, "num_layers": 16, **_dropouts(0.1, 0.1), **_PRE_NORM,
        **_ADAPTIVE,
    },
    model="LanguageModel",
    reference="perplexity 26.73 (Wu et al. 2019), from memory",
)
PRESETS["conv_lm"] = Preset(
    CONV_LM_WIKITEXT, WIKITEXT, 236_684_984,
    {"convolutions": "[(1268, 4)] * 13", "dropout": 0.1},
    model="ConvLanguageModel",
)
PRESETS["conv_lm_wikitext103"] = Preset(
    CONV_LM_WIKITEXT, WIKITEXT, 229_305_428,
    {
        "embedding_dim": 280, "dropout": 0.2,
        "convolutions": "[(850, 6)] * 3 + [(850, 1)] * 1 + [(850, 5)] * 4 "
        "+ [(850, 1)] * 1 + [(850, 4)] * 3 + [(1024, 4)] * 1 + [(2048, 4)] * 1",
        "adaptive_softmax": {"cutoffs": [10000, 20000, 200000], "factor": 4.0},
    },
    model="ConvLanguageModel",
    reference="perplexity 37.2 (Dauphin et al. 2017), from memory",
)
PRESETS["conv_lm_gbw"] = Preset(
    CONV_LM_BILLION, BILLION_WORD, 428_382_016,
    {
        "embedding_dim": 128, "dropout": 0.1,
        "convolutions": "[(512, 5)] "
        "+ [(128, 1, 0), (128, 5, 0), (512, 1, 3)] * 3 "
        "+ [(512, 1, 0), (512, 5, 0), (1024, 1, 3)] * 3 "
        "+ [(1024, 1, 0), (1024, 5, 0), (2048, 1, 3)] * 6 "
        "+ [(1024, 1, 0), (1024, 5, 0), (4096, 1, 3)]",
        "adaptive_softmax": {"cutoffs": [10000, 50000, 200000], "factor": 4.0},
    },
    model="ConvLanguageModel",
    reference="perplexity 31.9 (Dauphin et al. 2017, GCNN-14B)",
)

# Characters: at most 5 M parameters ---------------------------------------------------

_CHARACTERS = {
    "hidden_dim": 256, "intermediate_dim": 768, "num_heads": 8, "num_layers": 6,
    "normalize_first": True, "final_norm": True, "share_embeddings": True,
}
_CHARACTERS_CONV = {
    **_CHARACTERS, "kernel_sizes": [3, 7, 15, 31, 31, 31], **_dropouts(0.2, 0.1, 0.1),
    "positions": None,  # so that any past that the kernels reach looks the same
}

_both(
    ("light_conv_lm_characters", 3_574_960), ("dynamic_conv_lm_characters", 3_815_680),
    CHARACTERS, SHAKESPEARE, _CHARACTERS_CONV, model="LanguageModel",
)
PRESETS["transformer_lm_characters"] = Preset(
    TRANSFORMER_CHARACTERS, SHAKESPEARE, 3_968_768,
    {**_CHARACTERS, **_ATTENTION, **_dropouts(0.2, 0.1)}, model="LanguageModel",
    reference="1.47 nats per character (nanoGPT, 10.65M parameters)",
)
PRESETS["conv_lm_characters"] = Preset(
    CONV_CHARACTERS, SHAKESPEARE, 4_175_178,
    {"embedding_dim": 160, "convolutions": "[(160, 10)] * 8", "dropout": 0.2},
    model="ConvLanguageModel",
)

# Subject lines of e-mails: at most 15 M parameters ------------------------------------

_FOUR = {"num_heads": 4, "num_encoder_layers": 4, "num_decoder_layers": 4, **_ONE_TABLE}
_AESLC = {**_FOUR, "hidden_dim": 256, "intermediate_dim": 768}
_AESLC_CONV = {**_AESLC, "kernel_sizes": [3, 7, 15, 31], **_dropouts(0.3, 0.1, 0.1)}

_both(
    ("light_conv_aeslc", 7_844_288), ("dynamic_conv_aeslc", 7_958_528),
    SUBJECT_LINES, AESLC, _AESLC_CONV,
)
PRESETS["transformer_aeslc"] = Preset(
    # Post-norm learns to copy far later (docs/results.md).
    SUBJECT_LINES, AESLC, 8_371_200,
    {**_AESLC, **_ATTENTION, "normalize_first": True, **_dropouts(0.3, 0.1)},
    reference="ROUGE 15.04/7.39/14.93 (PEGASUS paper, 223M parameters), from memory",
)

# Multi30k and phrases: at most 5 M parameters -----------------------------------------

_NARROW = {**_FOUR, "hidden_dim": 128, "intermediate_dim": 256}
_NARROW_CONV = {**_NARROW, "kernel_sizes": [3, 7, 15, 15], **_dropouts(0.3, 0.1, 0.1)}

_both(
    ("light_conv_multi30k", 2_473_280), ("dynamic_conv_multi30k", 2_513_920),
    MULTI30K, MULTI30K_10K, _NARROW_CONV,
)
PRESETS["query_conv_multi30k"] = Preset(
    MULTI30K, MULTI30K_10K, 2_625_536,
    {**_NARROW_CONV, "mixer": {"kind": "query_conv", "gate": "glu", "query_dim": 64}},
)
PRESETS["transformer_multi30k"] = Preset(
    MULTI30K, MULTI30K_10K, 2_605_056,
    {**_NARROW, **_ATTENTION, **_dropouts(0.3, 0.1)},
    reference="41.02 BLEU (Wu et al. 2021, Revisit-MMT)",
)
PRESETS["dynamic_conv_wide_multi30k"] = Preset(
    WIDE_MULTI30K, MULTI30K_6K, 3_912_192,
    {
        **_FOUR, "hidden_dim": 192, "intermediate_dim": 384, "mixer": "dynamic_conv",
        "kernel_sizes": [3, 7, 15, 31], **_dropouts(0.3, 0.1, 0.1),
    },
)
PRESETS["conv_s2s_multi30k"] = Preset(
    CONV_S2S_MULTI30K, MULTI30K_6K, 3_681_904,
    {
        "embedding_dim": 128, "convolutions": "[(192, 3)] * 4", "output_dim": 128,
        "share_output_embedding": True, "dropout": 0.3, "max_length": 256,
    },
    model="ConvS2S",
)
PRESETS["dynamic_conv_phrases"] = Preset(
    QUICKSTART, PHRASES, 1_048_320,
    {
        **_NARROW, "num_encoder_layers": 3, "num_decoder_layers": 3,
        "mixer": "dynamic_conv", "kernel_sizes": [3, 7, 15], **_dropouts(0.1, 0.0, 0.0),
    },
)

# Letters to phonemes: at most 5 M parameters ------------------------------------------

_G2P = {
    "hidden_dim": 192, "intermediate_dim": 384, "num_heads": 4,
    "num_encoder_layers": 5, "num_decoder_layers": 2, "share_embeddings": "decoder",
}
_G2P_CONV = {
    **_G2P, "kernel_sizes": {"encoder": [3, 5, 7, 7, 7], "decoder": [3, 7]},
    **_dropouts(0.05, 0.1, 0.1),
}

_both(
    ("light_conv_g2p", 2_131_740), ("dynamic_conv_g2p", 2_161_536),
    G2P, CMUDICT, _G2P_CONV,
)
PRESETS["transformer_g2p"] = Preset(
    G2P, CMUDICT, 2_390_976, {**_G2P, **_ATTENTION, **_dropouts(0.15, 0.1)}
)
PRESETS["conv_s2s_g2p"] = Preset(
    CONV_S2S_G2P, CMUDICT, 3_866_667,
    {
        "embedding_dim": 256, "output_dim": 256, "share_output_embedding": True,
        "convolutions": {"encoder": "[(256, 3)] * 5", "decoder": "[(256, 3)] * 3"},
        "dropout": 0.15, "max_length": 64,
    },
    model="ConvS2S",
)
# fmt: on

# Names that fairseq gives to the architecture of another one; the recipe is the same.
ALIASES = {
    "light_conv_wmt_en_de": "light_conv",
    "dynamic_conv_wmt_en_de": "dynamic_conv",
    "transformer_wmt_en_de": "transformer",
}
PRESETS |= {alias: PRESETS[name] for alias, name in ALIASES.items()}


def preset_of(name: str, argument: str = "name") -> Preset:
    """The preset of a name, or ValueError that names the argument and near names."""
    if name not in PRESETS:
        raise ValueError(
            f"`{argument}` must be one of `keras_seqconv.models.list_presets()`, which "
            "`keras-seqconv presets` describes. "
            f"{near(name, PRESETS)}Received: {argument}={name!r}"
        )
    return PRESETS[name]
