"""Checkpoints of fairseq become models with the same numbers.

Golden folders hold what fairseq itself computed; checkpoints of other options are made
here by fairseq's names, and compared with an implementation of fairseq's models in
NumPy that is itself compared with the golden folders.
"""

import argparse
import json
import re
from collections import OrderedDict

import numpy as np
import pytest
from keras import ops

from keras_seqconv.convert import ConversionError, from_fairseq
from keras_seqconv.decoding import beam_search
from keras_seqconv.tokenizers import Dictionary
from tests.backends import to_numpy
from tests.cases import quick_and_slow
from tests.conftest import MODELS
from tests.convert.reference import (
    PAD,
    TARGET_VOCABULARY,
    drawn,
    load_golden,
    log_softmax,
    write_checkpoint,
)

SEARCHES = {"greedy": (1, 1.0), "beam4_lenpen1": (4, 1.0), "beam5_lenpen0.6": (5, 0.6)}


def tolerance(logits):
    """That of golden/README.md."""
    return 1e-4 * max(1, np.abs(logits).max() / 5)


def furthest(found, wanted, ids):
    """The largest difference where `ids` are no padding."""
    return np.abs(to_numpy(found) - wanted)[ids != PAD].max()


# --- Golden folders -------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_computes_what_fairseq_computed(golden, name):
    expected = np.load(golden / name / "expected.npz")
    source_ids, target_ids = expected["source_ids"], expected["prev_target_ids"]
    reference = load_golden(golden / name)
    logits, encoded = reference(source_ids, target_ids), reference.encode(source_ids)
    encoded = encoded[0] if isinstance(encoded, tuple) else encoded
    for found, key, ids in (
        (logits, "logits", target_ids), (encoded, "encoder_out", source_ids)
    ):  # fmt: skip
        assert np.abs(found - expected[key])[ids != PAD].max() < 5e-5


# The other folders' hypotheses are those of test_translator.py.
@pytest.mark.parametrize(
    "name", quick_and_slow(["dynamicconv_no_glu"], ["transformer", "fconv"])
)
def test_golden_folder_from_arrays(golden, name):
    """Logits, and what greedy or beam search finds."""
    folder = golden / name
    model = from_fairseq(folder, folder / "dict.s.txt", folder / "dict.t.txt")
    expected = np.load(folder / "expected.npz")
    source_ids, target_ids = expected["source_ids"], expected["prev_target_ids"]
    logits = model({"source_ids": source_ids, "target_ids": target_ids})
    near = tolerance(expected["logits"])
    assert furthest(logits, expected["logits"], target_ids) < near
    searches = ["beam4_lenpen1" if name == "dynamicconv_no_glu" else "beam5_lenpen0.6"]
    for search in searches if name != "fconv" else SEARCHES:
        num_beams, length_penalty = SEARCHES[search]
        options = {"length_penalty": length_penalty, "max_length": 20}
        found = beam_search(model, source_ids, num_beams, **options)
        ids, scores = map(to_numpy, found)
        wanted = expected[f"{search}/scores"]
        assert np.abs(scores - wanted).max() < 1e-4
        tokens = json.loads(str(expected[f"{search}/tokens"]))
        for sentence, hypotheses in enumerate(tokens):
            assert len(hypotheses) == ids.shape[1]
            for rank, row in enumerate(ids[sentence]):
                # Neighbours whose scores differ by less than 1e-4 may swap.
                close = np.abs(wanted[sentence] - wanted[sentence, rank]) < 1e-4
                allowed = [hypotheses[other] for other in np.flatnonzero(close)]
                assert [int(token) for token in row if token != PAD] in allowed


# --- Whole checkpoints, as fairseq's trainer writes them ------------------------------

# Defaults of fairseq's parser of 2019, beside those of the model in args.json.
PARSER_2019 = dict(
    adam_betas="(0.9, 0.999)", adam_eps=1e-08, bucket_cap_mb=150, clip_norm=25,
    cpu=False, data=["data-bin"], ddp_backend="c10d", device_id=0,
    distributed_backend="nccl", distributed_init_method=None, distributed_port=-1,
    distributed_rank=0, distributed_world_size=1, fix_batches_to_gpus=False, fp16=False,
    fp16_init_scale=128, fp16_scale_tolerance=0.0, fp16_scale_window=None,
    keep_interval_updates=-1, keep_last_epochs=-1, label_smoothing=0.0, lazy_load=False,
    log_format=None, log_interval=1000, lr=[0.25], lr_scheduler="inverse_sqrt",
    lr_shrink=0.1, max_epoch=0, max_sentences=None, max_sentences_valid=None,
    max_tokens=None, max_update=0, memory_efficient_fp16=False, min_loss_scale=0.0001,
    min_lr=1e-05, momentum=0.99, no_epoch_checkpoints=False, no_progress_bar=False,
    no_save=False, num_workers=0, optimizer="adam", optimizer_overrides="{}",
    raw_text=False, reset_lr_scheduler=False, reset_optimizer=False,
    restore_file="checkpoint_last.pt", save_dir="checkpoints", save_interval=1,
    save_interval_updates=0, seed=1, sentence_avg=False,
    skip_invalid_size_inputs_valid_test=False, train_subset="train", update_freq=[1],
    upsample_primary=1, user_dir=None, valid_subset="valid", validate_interval=1,
    warmup_init_lr=-1, warmup_updates=4000, weight_decay=0.0,
)  # fmt: skip


def namespaces(value):
    """What the JSON of a configuration stands for."""
    return (
        argparse.Namespace(**value.get("__namespace__", ()))
        if len(value) == 1
        else value
    )


@pytest.mark.parametrize(
    ("folder", "today"), [("dynamicconv_no_glu", True), ("dynamicconv_2019", False)]
)
def test_whole_checkpoints(golden, tmp_path, folder, today):
    torch = pytest.importorskip("torch", reason="needs the extra convert (torch)")
    path, options = golden / "fairseq_cfg.json", golden / folder / "args.json"
    options = json.loads(options.read_text())
    cfg = json.loads(path.read_text(), object_hook=namespaces)
    assert cfg["eval_lm"]["softmax_batch"] == 2**63 - 1
    vars(cfg["model"]).update(options)
    args = argparse.Namespace(**PARSER_2019, **options)
    dialect = dict(args=None, cfg=cfg) if today else dict(args=args)
    with np.load(golden / folder / "weights.npz") as arrays:
        model = OrderedDict((name, torch.tensor(arrays[name])) for name in arrays)
    model._metadata = OrderedDict({"": {"version": 1}, "encoder": {"version": 1}})
    path = tmp_path / "checkpoint.pt"
    content = dialect | {"model": model}
    torch.save(content, path, _use_new_zipfile_serialization=today)
    expected = from_fairseq(golden / folder)
    converted = from_fairseq(path)
    assert converted.get_config() == expected.get_config() | {"name": converted.name}
    for found, wanted in zip(converted.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(found), to_numpy(wanted))


# --- Checkpoints of other options -----------------------------------------------------


def both(**options):
    """Options of the encoder and of the decoder."""
    sides = ("encoder", "decoder")
    return {f"{side}_{name}": options[name] for side in sides for name in options}


SIDES = both(embed_dim=8, ffn_embed_dim=12, attention_heads=4, layers=2)
SIDES |= {"decoder_ffn_embed_dim": 10}
KERNELS = {"encoder_kernel_size_list": [3, 5], "decoder_kernel_size_list": [3, 15]}


def lightconv(**options):
    return {"arch": "lightconv", **SIDES, **KERNELS, **options}


def ddynamic(**options):
    widths = {"encoder_query_dim": 8, "decoder_query_dim": 4, "encoder_glu": False}
    types = both(conv_type="ddynamic")
    return {**lightconv(arch="ddynamic_iwslt"), **types, **widths, **options}


def transformer(**options):
    return {"arch": "transformer", **SIDES, "decoder_attention_heads": 2, **options}


def language_model(arch, **options):
    given = SIDES if arch == "transformer_lm" else {**SIDES, **KERNELS}
    sides = {name: given[name] for name in given if name.startswith("decoder")}
    return {"arch": arch, **sides, **options}


LIGHT, FIRST = both(conv_type="lightweight"), both(normalize_before=True)
LEARNED, GAU = both(learned_pos=True), both(gau=True)
TWO_GROUPS = both(attention_query_heads=2, attention_heads=2)
SOFTMAX = {"adaptive_softmax_cutoff": "4,7", "adaptive_softmax_factor": 2}
INPUT = {"adaptive_input_cutoff": "4,7", "adaptive_input_factor": 2}
INPUT |= {"adaptive_input": True}
TIED = {**SOFTMAX, **INPUT, "tie_adaptive_weights": True}
TIED_TWICE = {**TIED, "tie_adaptive_proj": True}
BOTH_LENGTHS = {"max_source_positions": 20, "max_target_positions": 12}

BLOCKS = {
    "light decoder, GLU there, kernels of 1 and 31": lightconv(encoder_glu=False,
        decoder_conv_type="lightweight", **both(kernel_size_list=[1, 31])),
    "learned positions, convolution widths": lightconv(**LEARNED, **BOTH_LENGTHS,
        encoder_conv_dim=16, decoder_conv_dim=4),
    "no positions, layers of two sides, no softmax of light kernels": lightconv(
        no_token_positional_embeddings=True, weight_softmax=False, **LIGHT,
        encoder_layers=3, decoder_layers=1, encoder_kernel_size_list=[3],
        decoder_kernel_size_list=[6]),
    "odd width": lightconv(**both(embed_dim=9, attention_heads=3)),
    "query projection, groups and GLU": ddynamic(**TWO_GROUPS, encoder_glu=True),
    "adaptive input and softmax, other widths": language_model("lightconv_lm",
        **SOFTMAX, **INPUT, decoder_input_dim=4, decoder_output_dim=4),
    "transformer language model, no final norm": language_model("transformer_lm",
        decoder_normalize_before=True, no_decoder_final_norm=True),
}  # fmt: skip
# The plain ones are in golden folders and in `OLDER`.
QUICK_BLOCKS = {
    "query projection, permuted groups with GAU": ddynamic(conv_mixed=1, **TWO_GROUPS,
        **GAU),
    "query projection, conv dims": ddynamic(encoder_conv_dim=16, decoder_conv_dim=4,
        **both(attention_heads=2)),
    "transformer, norm first": transformer(**FIRST),
    "transformer, other widths": transformer(decoder_input_dim=6, decoder_output_dim=4),
    "transformer, learned positions": transformer(**LEARNED),
    "light language model, shared": language_model("lightconv_lm",
        share_decoder_input_output_embed=True, **LIGHT),
    "adaptive tied twice": language_model("lightconv_lm", **TIED_TWICE),
    "transformer language model, adaptive": language_model("transformer_lm", **TIED),
}  # fmt: skip
# Models in the older layouts of keys.
OLDER = [
    ("2019", lightconv()),
    ("2018", lightconv(**LIGHT)),
    ("2019", lightconv(share_all_embeddings=True)),
    ("2018", lightconv(decoder_input_dim=6, decoder_output_dim=6,
                       share_decoder_input_output_embed=True)),
    ("2019", QUICK_BLOCKS["query projection, permuted groups with GAU"]),
]  # fmt: skip


def fconv(**options):
    sides = both(embed_dim=6, layers="[(8, 3)] * 2")
    return {"arch": "fconv", **sides, "decoder_out_embed_dim": 5, **options}


def fconv_lm(**options):
    layers = {"decoder_embed_dim": 6, "decoder_layers": "[(8, 3)] * 2"}
    return {"arch": "fconv_lm", "decoder_attention": "False", **layers, **options}


BACK = "[(8, 3), (4, 1, 0), (4, 3, 0), (8, 1, 3), (12, 2)]"
GATED = {
    "attention in some layers": fconv(decoder_layers="[(8, 3)] * 3",
        decoder_attention="[False] + [True] + [False]"),
    "growing channels": fconv(encoder_layers="[(6, 3)] + [(8, 3)] * 2",
        decoder_layers="[(6, 5), (10, 1)]"),
    "output shared": fconv(share_input_output_embed=True, decoder_out_embed_dim=6),
    "positions of two lengths": fconv(**BOTH_LENGTHS),
    "language model, adaptive": fconv_lm(adaptive_softmax_cutoff="4,7",
        decoder_layers="[(32, 3)] * 2"),
}  # fmt: skip
GATED_IN_OTHER_LAYOUTS = {
    "conv s2s": fconv(),
    "even kernels, one longer than a sentence": fconv(
        encoder_layers="[(8, 4), (8, 12)]", decoder_layers="[(8, 2), (8, 12)]"),
    "residuals from afar": fconv(**both(layers=BACK)),
    "convolutional language model": fconv_lm(),
    "many layers": fconv(**both(layers="[(4, 3)] * 26")),
}  # fmt: skip
NORMS = [
    ("tap", "even kernels, one longer than a sentence"),
    ("folded", "residuals from afar"), ("folded", "convolutional language model"),
    ("folded", "many layers"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "options"),
    quick_and_slow(
        [*(("head", options) for options in (QUICK_BLOCKS | GATED).values()),
         *OLDER[:3],
         *((layout, GATED_IN_OTHER_LAYOUTS[case]) for layout, case in NORMS)],
        [*(("head", options) for options in (BLOCKS | GATED_IN_OTHER_LAYOUTS).values()),
         *OLDER[3:]],
    ),
)  # fmt: skip
def test_other_options(tmp_path, layout, options):
    check(tmp_path, drawn(options, layout))


def check(folder, reference, weights=None, options=None):
    """Encoder, full pass, and steps of several positions and of one.

    Args:
        weights, options: as they are stored, where not in the reference's form.
    """
    stored = weights or reference.weights, options or reference.options
    model = from_fairseq(write_checkpoint(folder, *stored))
    source_ids, target_ids = some_ids(reference)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    if reference.language_model:
        del inputs["source_ids"]
        state = model.get_initial_state(3, max_length=6)
    else:
        encoded = reference.encode(source_ids)
        encoded = encoded if isinstance(encoded, tuple) else (encoded,)
        for found, wanted in zip(model.encode(source_ids), encoded, strict=False):
            near = tolerance(wanted[source_ids != PAD])
            assert furthest(found, wanted, source_ids) < near
        state = model.get_initial_state(source_ids, max_length=6)
    wanted = reference(source_ids, target_ids)
    outputs, scores = model(inputs), log_softmax(wanted)
    if getattr(model, "adaptive_softmax", None) is None:
        near = tolerance(wanted[target_ids != PAD])
        assert furthest(outputs, wanted, target_ids) < near
    near = tolerance(scores[target_ids != PAD])
    # log_prob of every id of the vocabulary
    every = np.tile(np.arange(TARGET_VOCABULARY, dtype="int32"), target_ids.shape)
    found = model.log_prob(ops.repeat(outputs, TARGET_VOCABULARY, axis=1), every)
    found = to_numpy(found).reshape(scores.shape)
    assert np.abs(found - scores)[target_ids != PAD].max() < near
    for start, end in ((0, 2), (2, 3), (3, 4), (4, 6)):
        logits, state = model.step(target_ids[:, start:end], state)
        found = log_softmax(to_numpy(logits))
        wanted = scores[:, end - 1]
        assert np.abs(found - wanted)[target_ids[:, end - 1] != PAD].max() < near
    return model


def some_ids(reference):
    """Sentences of three lengths, shorter than some kernels."""
    rng = np.random.default_rng(3)
    source_ids = rng.integers(3, reference.rows["encoder"], (3, 7))
    target_ids = rng.integers(3, TARGET_VOCABULARY, (3, 6))
    target_ids[:, 0] = 2
    for row, (source, target) in enumerate(((7, 6), (4, 5), (1, 2))):
        source_ids[row, source - 1] = 2
        source_ids[row, source:] = PAD
        target_ids[row, target:] = PAD
    return source_ids.astype("int32"), target_ids.astype("int32")


TIED_OUTPUT = lightconv(share_decoder_input_output_embed=True)
TABLE = "decoder.embed_tokens.weight"
# For the fast path of fairseq 0.12.
COPIES = {"in_proj": 24, "out_proj": 8, "fc1": 12, "fc2": 8}


@pytest.mark.parametrize(
    ("options", "change"),
    [
        # Kernels of the CUDA class.
        (lightconv(**LIGHT), lambda weights: {
            name: array[:, 0]
            for name, array in weights.items()
            if name.endswith("conv.weight")
        }),
        # A tied output by its name of 2018, by its name today.
        (TIED_OUTPUT, lambda weights: {"decoder.embed_out": weights[TABLE]}),
        (TIED_OUTPUT, lambda weights: {
            "decoder.output_projection.weight": weights[TABLE]
        }),
        (transformer(), lambda weights: {
            f"encoder.layers.{layer}.{name}_{kind}": np.zeros(shape, "float32")
            for layer in range(2)
            for name, rows in COPIES.items()
            for kind, shape in (("weight", (rows, 8)), ("bias", (rows,)))
        }),
    ],
)  # fmt: skip
def test_tensors_in_other_forms(tmp_path, options, change):
    reference = drawn(options, "2019")
    check(tmp_path, reference, reference.weights | change(reference.weights))


IN_TEXT = lightconv(
    encoder_kernel_size_list=[3, 3, 5], encoder_layers=3, share_all_embeddings=True,
    decoder_normalize_before=True,
)  # fmt: skip
TEXT = IN_TEXT | {
    "encoder_kernel_size_list": "[3] * 2 + [5]", "encoder_attention_heads": "4",
    "share_all_embeddings": "True", "decoder_normalize_before": "1",
    "encoder_normalize_before": "False", "dropout": "0.3",
}  # fmt: skip
IN_SECTIONS = transformer(**FIRST, decoder_learned_pos=True)
SECTIONS = {"arch": "transformer"} | {
    side: {
        name.removeprefix(f"{side}_"): value
        for name, value in IN_SECTIONS.items()
        if name.startswith(side)
    }
    for side in ("encoder", "decoder")
}
SECTIONS["encoder"] |= {"layerdrop": 0.1, "layers_to_keep": None}
OF_OLDER_FAIRSEQ = language_model("lightconv_lm", **TIED_TWICE)
OLDER_NAME = {**OF_OLDER_FAIRSEQ, "no_tie_adaptive_proj": False}
del OLDER_NAME["tie_adaptive_proj"]
# What has no effect beside an adaptive softmax or is told by a tensor.
WITHOUT_EFFECT = language_model("transformer_lm", **SOFTMAX, **INPUT)
BESIDE = {"share_decoder_input_output_embed": True, "tie_adaptive_proj": True}
FEW = {name: SIDES[name] for name in SIDES if name.endswith("heads")}


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        (IN_TEXT, TEXT),
        (IN_SECTIONS, SECTIONS),
        (lightconv(), FEW),
        (OF_OLDER_FAIRSEQ, OLDER_NAME),
        (WITHOUT_EFFECT, {**WITHOUT_EFFECT, **BESIDE, "decoder_final_norm": True}),
    ],
    ids=[
        "as text",
        "in sections of each side",
        "only what no tensor tells",
        "by an older name",
        "without an effect",
    ],
)
def test_options_in_other_forms(tmp_path, options, stored):
    model = check(tmp_path, drawn(options), options=stored)
    assert model.get_config()["dropout"] == float(stored.get("dropout", 0.1))


# --- What cannot be converted ---------------------------------------------------------


def problems_of(folder, weights, options, *dictionaries):
    with pytest.raises(ConversionError) as error:
        from_fairseq(write_checkpoint(folder, weights, options), *dictionaries)
    assert all(problem in str(error.value) for problem in error.value.problems)
    return error.value.problems


def test_everything_is_reported_at_once(tmp_path):
    options = lightconv(
        no_cross_attention=True, encoder_moe_experts=4, dropout="much",
        weight_softmax="perhaps",
    )  # fmt: skip
    weights = drawn(lightconv()).weights
    del weights["encoder.layers.1.fc2.bias"]
    weights["decoder.layers.0.fc1.bias"] = np.zeros(3, "float32")
    weights["decoder.adapter.weight"] = np.zeros((2, 2), "float32")
    dictionaries = (
        Dictionary([("a", 2), ("b", 1)]),
        Dictionary([(f"w{n}", 1) for n in range(TARGET_VOCABULARY - 4)]),
    )
    found = problems_of(tmp_path, weights, options, *dictionaries)
    for part in (
        "no_cross_attention=True", "encoder_moe_experts=4", "dropout='much'",
        "weight_softmax='perhaps'", "encoder.layers.1.fc2.bias is missing",
        "decoder.layers.0.fc1.bias (3,)", "the source dictionary has 6 symbols",
        "decoder.adapter.weight (2, 2) belongs to no layer",
    ):  # fmt: skip
        assert sum(part in problem for problem in found) == 1, part


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (lightconv(share_all_embeddings=True),
         ["encoder.embed_tokens.weight", "decoder.output_projection.weight"]),
        (language_model("lightconv_lm", **TIED_TWICE),
         ["decoder.adaptive_softmax.tail.1.0.weight"]),
        (GATED["output shared"], ["decoder.fc3.weight"]),
    ],
)  # fmt: skip
def test_tied_tensors_that_differ(tmp_path, options, names):
    weights = drawn(options).weights
    for name in names:
        weights[name] = weights[name] + 1
    found = problems_of(tmp_path, weights, options)
    assert all(any(f"{name} differs" in one for one in found) for name in names)
    assert len(found) == len(names)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (transformer(layernorm_embedding=True), "layernorm_embedding=True"),
        (transformer(adaptive_softmax_cutoff="4,7"), "adaptive_softmax_cutoff='4,7'"),
        (transformer(dropout=10**400), "option dropout=1000"),
        (transformer(decoder_layers=10**9), "the tensors have 2"),
        (fconv(encoder_layers="[(1000000000, 3)] * 2"), "describes far more"),
        (fconv(encoder_layers="[(8, 3)] * x"), "Name is not allowed"),
        (transformer(add_bos_token=True), "add_bos_token=True is not supported"),
        (ddynamic(weight_softmax=False), "weight_softmax=False is not supported"),
    ],
)
def test_unsupported_options(tmp_path, options, words):
    """Huge claims cost neither memory nor time."""
    (plain,) = (
        made()
        for made in (fconv, ddynamic, transformer)
        if made()["arch"] == options["arch"]
    )
    found = problems_of(tmp_path, drawn(plain).weights, options)
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize("options", [fconv(), transformer(decoder_output_dim=4)])
def test_every_missing_tensor_is_named(tmp_path, options):
    weights = drawn(options).weights
    pattern = r"s\.1\.(in_p|fc)|(_norm.weight|fc1.weight_g|output_projection.weight)$"
    missing = [name for name in weights if re.search(pattern, name)]
    kept = {name: weights[name] for name in weights if name not in missing}
    found = problems_of(tmp_path, kept, options)
    assert set(found) == {f"tensor {name} is missing" for name in missing}


def test_every_tensor_of_a_wrong_shape_is_named(tmp_path):
    options = ddynamic(**GAU, conv_mixed=1)
    weights = drawn(options, "2019").weights
    # The shapes of the first layers say what the model is.
    wrong = [name for name in weights if ".layers.1." in name]
    for number, name in enumerate(wrong):
        shape = weights[name].shape
        shapes = [(shape[0] + 1, *shape[1:]), (*shape, 2), ()]
        weights[name] = np.zeros(shapes[number % 3], "float32")
    found = problems_of(tmp_path, weights, options)
    for name in wrong:
        assert any(f"{name} (" in problem for problem in found), name
