"""Checkpoints of fairseq become models with the same numbers.

Golden folders hold what fairseq itself computed; checkpoints of other options are made
here by fairseq's names, and compared with an implementation of fairseq's models in
NumPy that is itself compared with the golden folders.
"""

import json

import numpy as np
import pytest
from keras import ops

from keras_seqconv.convert import ConversionError, from_fairseq
from keras_seqconv.decoding import beam_search
from keras_seqconv.tokenizers import Dictionary
from tests.backends import to_numpy
from tests.cases import all_but, quick_and_slow
from tests.convert.random_checkpoints import (
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    random_blocks,
    random_convolutional,
    write_checkpoint,
)
from tests.convert.reference import (
    PAD,
    BlocksReference,
    ConvolutionalReference,
    load_golden,
    log_softmax,
)

FOLDERS = [
    "lightconv_glu", "dynamicconv_no_glu", "dynamicconv_2019", "ddynamic_2019",
    "transformer", "fconv",
]  # fmt: skip
QUICK = ("dynamicconv_no_glu",)
SEARCHES = {"greedy": (1, 1.0), "beam4_lenpen1": (4, 1.0), "beam5_lenpen0.6": (5, 0.6)}


def tolerance(logits):
    """That of golden/README.md."""
    return 1e-4 * max(1, np.abs(logits).max() / 5)


def converted(folder):
    return from_fairseq(folder, folder / "dict.s.txt", folder / "dict.t.txt")


# --- Golden folders -------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLDERS)
def test_the_reference_computes_what_fairseq_computed(golden, name):
    expected = np.load(golden / name / "expected.npz")
    source_ids, target_ids = expected["source_ids"], expected["prev_target_ids"]
    reference = load_golden(golden / name)
    logits = reference(source_ids, target_ids)
    real = target_ids != PAD
    assert np.abs(logits - expected["logits"])[real].max() < 5e-5
    encoded = reference.encode(source_ids)
    encoded = encoded[0] if isinstance(encoded, tuple) else encoded
    difference = np.abs(encoded - expected["encoder_out"])
    assert difference[source_ids != PAD].max() < 5e-5


@pytest.mark.jax
@pytest.mark.parametrize("name", all_but(QUICK, FOLDERS))
def test_golden_folder_from_arrays(golden, name):
    check_golden(converted(golden / name), golden / name)


@pytest.mark.parametrize("name", FOLDERS)
def test_golden_folder_from_checkpoint(golden, name):
    pytest.importorskip("torch", reason="torch reads .pt files (extra `convert`)")
    folder = golden / name
    model = from_fairseq(
        folder / "checkpoint.pt", folder / "dict.s.txt", folder / "dict.t.txt"
    )
    twin = converted(folder)
    assert model.get_config() | {"name": ""} == twin.get_config() | {"name": ""}
    for variable, other in zip(model.weights, twin.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(other))


def check_golden(model, folder):
    expected = np.load(folder / "expected.npz")
    source_ids, target_ids = expected["source_ids"], expected["prev_target_ids"]
    logits = to_numpy(model({"source_ids": source_ids, "target_ids": target_ids}))
    real = target_ids != PAD
    difference = np.abs(logits - expected["logits"])[real].max()
    assert difference < tolerance(expected["logits"])
    for name, (num_beams, length_penalty) in SEARCHES.items():
        ids, scores = beam_search(
            model,
            source_ids,
            num_beams=num_beams,
            length_penalty=length_penalty,
            max_length=20,
        )
        tokens = json.loads(str(expected[f"{name}/tokens"]))
        wanted = expected[f"{name}/scores"]
        check_hypotheses(to_numpy(ids), to_numpy(scores), tokens, wanted)


def check_hypotheses(ids, scores, tokens, wanted):
    assert np.abs(scores - wanted).max() < 1e-4
    for sentence, hypotheses in enumerate(tokens):
        assert len(hypotheses) == ids.shape[1]
        for rank, row in enumerate(ids[sentence]):
            found = [int(token) for token in row if token != PAD]
            # Neighbours whose scores differ by less than 1e-4 may swap.
            near = np.abs(wanted[sentence] - wanted[sentence, rank]) < 1e-4
            allowed = [hypotheses[other] for other in np.flatnonzero(near)]
            assert found in allowed


# --- Checkpoints of other options -----------------------------------------------------


SIDES = {
    f"{side}_{name}": value
    for side, inner, taps in (("encoder", 12, [3, 5]), ("decoder", 10, [3, 15]))
    for name, value in (
        ("embed_dim", 8), ("ffn_embed_dim", inner), ("attention_heads", 4),
        ("layers", 2), ("kernel_size_list", taps),
    )
}  # fmt: skip


def lightconv(**options):
    return {"arch": "lightconv", **SIDES, **options}


def ddynamic(**options):
    types = {"encoder_conv_type": "ddynamic", "decoder_conv_type": "ddynamic"}
    widths = {"encoder_query_dim": 8, "decoder_query_dim": 4, "encoder_glu": False}
    return {"arch": "ddynamic_iwslt", **SIDES, **types, **widths, **options}


def transformer(**options):
    sides = {name: SIDES[name] for name in SIDES if "kernel" not in name}
    return {"arch": "transformer", **sides, "decoder_attention_heads": 2, **options}


def language_model(arch, **options):
    sides = {name: SIDES[name] for name in SIDES if name.startswith("decoder")}
    if arch == "transformer_lm":
        del sides["decoder_kernel_size_list"]
    return {"arch": arch, **sides, **options}


LIGHT = {"encoder_conv_type": "lightweight", "decoder_conv_type": "lightweight"}
BOTH_FIRST = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
GAU = {"encoder_gau": True, "decoder_gau": True}
GROUPS = {"encoder_attention_query_heads": 2, "decoder_attention_query_heads": 2}
TWO_HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
SOFTMAX = {"adaptive_softmax_cutoff": "4,7", "adaptive_softmax_factor": 2}
INPUT = {
    "adaptive_input": True,
    "adaptive_input_cutoff": "4,7",
    "adaptive_input_factor": 2,
}
TIED = {"tie_adaptive_weights": True}
TIED_PROJECTIONS = {"tie_adaptive_proj": True}

BLOCKS = {
    "dynamic": lightconv(),
    "light": lightconv(**LIGHT),
    "encoder dynamic, decoder light": lightconv(decoder_conv_type="lightweight"),
    "norm first": lightconv(**BOTH_FIRST),
    "norm first in the decoder": lightconv(decoder_normalize_before=True, **LIGHT),
    "learned positions": lightconv(**LEARNED),
    "learned positions of two lengths": lightconv(**LEARNED, max_source_positions=20,
        max_target_positions=12),
    "no positions": lightconv(no_token_positional_embeddings=True),
    "all embeddings shared": lightconv(share_all_embeddings=True),
    "decoder embeddings shared": lightconv(share_decoder_input_output_embed=True),
    "other width of output": lightconv(decoder_output_dim=6),
    "other widths and shared": lightconv(decoder_input_dim=6, decoder_output_dim=6,
        share_decoder_input_output_embed=True),
    "GLU in the decoder": lightconv(encoder_glu=False, **LIGHT),
    "no GLU": lightconv(encoder_glu=False, decoder_glu=False),
    "convolution widths": lightconv(encoder_conv_dim=16, decoder_conv_dim=4),
    "one kernel size for all": lightconv(encoder_kernel_size_list=[5],
        decoder_kernel_size_list=[4]),
    "kernels of 1 and 31": lightconv(encoder_kernel_size_list=[1, 31],
        decoder_kernel_size_list=[1, 31]),
    "no softmax of light kernels": lightconv(weight_softmax=False, **LIGHT),
    "layers of two sides": lightconv(encoder_layers=3, decoder_layers=1,
        encoder_kernel_size_list=[3], decoder_kernel_size_list=[6]),
    "odd width": lightconv(encoder_embed_dim=9, decoder_embed_dim=9,
        encoder_attention_heads=3, decoder_attention_heads=3),
    "query projection": ddynamic(),
    "query projection, GAU": ddynamic(**GAU),
    "query projection, conv dims": ddynamic(encoder_conv_dim=16, decoder_conv_dim=4,
        **TWO_HEADS),
    "query projection, groups and GLU": ddynamic(**GROUPS, **TWO_HEADS,
        encoder_glu=True),
    "query projection, permuted groups with GAU": ddynamic(conv_mixed=1, **GROUPS,
        **TWO_HEADS, **GAU),
    "transformer": transformer(),
    "transformer, norm first": transformer(**BOTH_FIRST),
    "transformer, learned positions": transformer(**LEARNED),
    "transformer, all shared": transformer(share_all_embeddings=True),
    "transformer, tanh": transformer(activation_fn="tanh"),
    "transformer, other widths": transformer(decoder_input_dim=6, decoder_output_dim=4),
    "light language model": language_model("lightconv_lm"),
    "light language model, shared": language_model("lightconv_lm",
        share_decoder_input_output_embed=True, **LIGHT),
    "light language model, norm first": language_model("lightconv_lm",
        decoder_normalize_before=True),
    "adaptive softmax": language_model("lightconv_lm", **SOFTMAX),
    "adaptive softmax, other width": language_model("lightconv_lm", **SOFTMAX,
        decoder_output_dim=4),
    "adaptive input, other width": language_model("lightconv_lm", **INPUT,
        decoder_input_dim=4),
    "adaptive tied": language_model("lightconv_lm", **SOFTMAX, **INPUT, **TIED),
    "adaptive tied twice": language_model("lightconv_lm", **SOFTMAX, **INPUT, **TIED,
        **TIED_PROJECTIONS),
    "transformer language model": language_model("transformer_lm"),
    "transformer language model, norm first": language_model("transformer_lm",
        decoder_normalize_before=True),
    "transformer language model, no final norm": language_model("transformer_lm",
        decoder_normalize_before=True, no_decoder_final_norm=True),
    "transformer language model, adaptive": language_model("transformer_lm", **SOFTMAX,
        **INPUT, **TIED, **TIED_PROJECTIONS),
}  # fmt: skip
# The plain ones are in golden folders and in `OLDER`.
QUICK_BLOCKS = [
    "query projection, permuted groups with GAU", "query projection, conv dims",
    "transformer, norm first", "transformer, other widths",
    "transformer, learned positions", "light language model, shared",
    "adaptive tied twice", "transformer language model, adaptive",
]  # fmt: skip
# The same models in the older layouts of keys.
OLDER = [
    ("2019", "dynamic"), ("2018", "light"), ("2018", "norm first"),
    ("2019", "all embeddings shared"), ("2018", "other widths and shared"),
    ("2019", "query projection, permuted groups with GAU"), ("2018", "transformer"),
    ("2019", "transformer, norm first"), ("2018", "transformer, all shared"),
    ("2019", "light language model"),
    ("2018", "transformer language model, norm first"),
]  # fmt: skip


def fconv(**options):
    return {
        "arch": "fconv",
        "encoder_embed_dim": 6,
        "decoder_embed_dim": 6,
        "encoder_layers": "[(8, 3)] * 2",
        "decoder_layers": "[(8, 3)] * 2",
        "decoder_out_embed_dim": 5,
        **options,
    }


def fconv_lm(**options):
    layers = {"decoder_embed_dim": 6, "decoder_layers": "[(8, 3)] * 2"}
    return {"arch": "fconv_lm", "decoder_attention": "False", **layers, **options}


BACK = "[(8, 3), (4, 1, 0), (4, 3, 0), (8, 1, 3), (12, 2)]"
CONVOLUTIONAL = {
    "conv s2s": fconv(),
    "attention in some layers": fconv(decoder_layers="[(8, 3)] * 3",
        decoder_attention="[False] + [True] + [False]"),
    "attention as a list": fconv(decoder_attention=[True, False]),
    "residuals from afar": fconv(encoder_layers=BACK, decoder_layers=BACK),
    "growing channels": fconv(encoder_layers="[(6, 3)] + [(8, 3)] * 2",
        decoder_layers="[(6, 5), (10, 1)]"),
    "even kernels, one longer than a sentence": fconv(
        encoder_layers="[(8, 4), (8, 12)]", decoder_layers="[(8, 2), (8, 12)]"),
    "output shared": fconv(share_input_output_embed=True, decoder_out_embed_dim=6),
    "positions of two lengths": fconv(max_source_positions=20, max_target_positions=12),
    "width that is that of the channels": fconv(encoder_embed_dim=8,
        decoder_embed_dim=8),
    "convolutional language model": fconv_lm(),
    "language model, residuals from afar": fconv_lm(decoder_layers=BACK),
    "language model, adaptive": fconv_lm(adaptive_softmax_cutoff="4,7") |
        {"decoder_layers": "[(32, 3)] * 2"},
}  # fmt: skip
NORMS = [
    ("tap", "conv s2s"), ("tap", "even kernels, one longer than a sentence"),
    ("tap", "residuals from afar"), ("folded", "residuals from afar"),
    ("folded", "convolutional language model"),
]  # fmt: skip


@pytest.mark.parametrize("case", all_but(QUICK_BLOCKS, BLOCKS))
def test_blocks(tmp_path, case):
    check_blocks(tmp_path, BLOCKS[case], "head")


@pytest.mark.parametrize(("dialect", "case"), quick_and_slow(OLDER[:6], OLDER[6:]))
def test_blocks_in_older_layouts(tmp_path, dialect, case):
    check_blocks(tmp_path, BLOCKS[case], dialect)


@pytest.mark.parametrize("case", CONVOLUTIONAL)
def test_convolutional(tmp_path, case):
    check_convolutional(tmp_path, CONVOLUTIONAL[case], "channel")


@pytest.mark.parametrize(("norm", "case"), NORMS)
def test_convolutional_with_other_norms(tmp_path, norm, case):
    check_convolutional(tmp_path, CONVOLUTIONAL[case], norm)


def check_blocks(folder, options, dialect):
    weights = random_blocks(options, dialect)
    model = from_fairseq(write_checkpoint(folder, weights, options))
    check_model(model, BlocksReference(weights, options))


def check_convolutional(folder, options, norm):
    weights = random_convolutional(options, norm)
    model = from_fairseq(write_checkpoint(folder, weights, options))
    check_model(model, ConvolutionalReference(weights, options))


def some_ids(reference):
    """Sentences of three lengths, shorter than some kernels."""
    rng = np.random.default_rng(3)
    size = SOURCE_VOCABULARY
    if reference.options.get("share_all_embeddings"):
        size = TARGET_VOCABULARY
    source_ids = rng.integers(3, size, (3, 7))
    target_ids = rng.integers(3, TARGET_VOCABULARY, (3, 6))
    target_ids[:, 0] = 2
    for row, (source, target) in enumerate(((7, 6), (4, 5), (1, 2))):
        source_ids[row, source - 1] = 2
        source_ids[row, source:] = PAD
        target_ids[row, target:] = PAD
    return source_ids.astype("int32"), target_ids.astype("int32")


def check_model(model, reference):
    """Encoder, full pass, and steps of several positions and of one."""
    source_ids, target_ids = some_ids(reference)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    if reference.language_model:
        del inputs["source_ids"]
    else:
        check_encoder(model, reference, source_ids)
    wanted = reference(source_ids, target_ids)
    real = target_ids != PAD
    scores = log_softmax(wanted)
    if getattr(model, "adaptive_softmax", None) is None:
        logits = to_numpy(model(inputs))
        assert np.abs(logits - wanted)[real].max() < tolerance(wanted[real])
    found = all_log_probs(model, model(inputs), wanted.shape)
    assert np.abs(found - scores)[real].max() < tolerance(scores[real])
    if reference.language_model:
        state = model.get_initial_state(3, max_length=6)
    else:
        state = model.get_initial_state(source_ids, max_length=6)
    for start, end in ((0, 2), (2, 3), (3, 4), (4, 6)):
        logits, state = model.step(target_ids[:, start:end], state)
        rows = real[:, end - 1]
        found = log_softmax(to_numpy(logits))
        difference = np.abs(found - scores[:, end - 1])[rows].max()
        assert difference < tolerance(scores[real])


def check_encoder(model, reference, source_ids):
    real = source_ids != PAD
    wanted = reference.encode(source_ids)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for found, array in zip(model.encode(source_ids), wanted, strict=False):
        difference = np.abs(to_numpy(found) - array)[real].max()
        assert difference < tolerance(array[real])


def all_log_probs(model, outputs, shape):
    """log_prob of every id of the vocabulary: (B, T, V)."""
    sentences, length, size = shape
    ids = np.tile(np.arange(size, dtype="int32"), (sentences, length))
    outputs = ops.repeat(outputs, size, axis=1)
    return to_numpy(model.log_prob(outputs, ids)).reshape(shape)


def without_middle_axis(weights):
    return {n: w[:, 0] if n.endswith("conv.weight") else w for n, w in weights.items()}


def with_name(name):
    table = "decoder.embed_tokens.weight"
    return lambda weights: weights | {name: weights[table]}


def with_copies(weights):
    shapes = {"in_proj": 24, "out_proj": 8, "fc1": 12, "fc2": 8}
    return weights | {
        f"encoder.layers.{layer}.{name}_{kind}": np.zeros(shape, "float32")
        for layer in range(2)
        for name, rows in shapes.items()
        for kind, shape in (("weight", (rows, 8)), ("bias", (rows,)))
    }


TIED_OUTPUT = lightconv(share_decoder_input_output_embed=True)


@pytest.mark.parametrize(
    ("options", "change"),
    {
        "kernels of the CUDA class": (lightconv(**LIGHT), without_middle_axis),
        "tied output without a name": (TIED_OUTPUT, lambda weights: weights),
        "its name of 2018": (TIED_OUTPUT, with_name("decoder.embed_out")),
        "its name today": (TIED_OUTPUT, with_name("decoder.output_projection.weight")),
        "copies for the fast path of fairseq 0.12": (transformer(), with_copies),
    }.values(),
)
def test_tensors_in_other_forms(tmp_path, options, change):
    weights = random_blocks(options, "2019")
    folder = write_checkpoint(tmp_path, change(weights), options)
    check_model(from_fairseq(folder), BlocksReference(weights, options))


IN_TEXT = lightconv(
    encoder_kernel_size_list=[3, 3, 5],
    encoder_layers=3,
    share_all_embeddings=True,
    decoder_normalize_before=True,
)
TEXT = IN_TEXT | {
    "encoder_kernel_size_list": "[3] * 2 + [5]",
    "decoder_kernel_size_list": "[3, 15]",
    "encoder_layers": "3",
    "encoder_attention_heads": "4",
    "share_all_embeddings": "True",
    "decoder_normalize_before": "1",
    "encoder_normalize_before": "False",
    "no_token_positional_embeddings": "false",
    "dropout": "0.3",
}
IN_SECTIONS = transformer(**BOTH_FIRST, decoder_learned_pos=True)
SECTIONS = {"arch": "transformer"} | {
    side: {
        name.removeprefix(f"{side}_"): value
        for name, value in IN_SECTIONS.items()
        if name.startswith(side)
    }
    for side in ("encoder", "decoder")
}
SECTIONS["encoder"] |= {"layerdrop": 0.1, "layers_to_keep": None}
FEW = {name: SIDES[name] for name in SIDES if name.endswith("heads")}


@pytest.mark.parametrize(
    ("options", "stored"),
    [(IN_TEXT, TEXT), (IN_SECTIONS, SECTIONS), (lightconv(), FEW)],
    ids=["as text", "in sections of each side", "only what no tensor tells"],
)
def test_options_in_other_forms(tmp_path, options, stored):
    weights = random_blocks(options)
    model = from_fairseq(write_checkpoint(tmp_path, weights, stored))
    assert model.get_config()["dropout"] == float(stored.get("dropout", 0.1))
    check_model(model, BlocksReference(weights, options))


def test_mixed_precision(tmp_path):
    options = lightconv()
    folder = write_checkpoint(tmp_path, random_blocks(options), options)
    model = from_fairseq(folder, dtype="mixed_bfloat16")
    exact = from_fairseq(folder)
    inputs = {"source_ids": np.array([[5, 6, 2]]), "target_ids": np.array([[2, 7]])}
    logits = to_numpy(model(inputs))
    assert np.abs(logits - to_numpy(exact(inputs))).max() < 0.2
    assert model.dtype_policy.compute_dtype == "bfloat16"


# --- What cannot be converted ---------------------------------------------------------


def problems_of(folder, weights, options, *dictionaries):
    with pytest.raises(ConversionError) as error:
        from_fairseq(write_checkpoint(folder, weights, options), *dictionaries)
    assert all(problem in str(error.value) for problem in error.value.problems)
    return error.value.problems


def test_everything_is_reported_at_once(tmp_path):
    options = lightconv(
        no_cross_attention=True,
        encoder_moe_experts=4,
        dropout="much",
        decoder_kernel_size_list=[3, 15],
    )
    weights = random_blocks(options)
    del weights["encoder.layers.1.fc2.bias"]
    weights["decoder.layers.0.fc1.bias"] = np.zeros(3, "float32")
    weights["decoder.adapter.weight"] = np.zeros((2, 2), "float32")
    options["decoder_kernel_size_list"] = [3, 7]
    found = problems_of(
        tmp_path,
        weights,
        options,
        Dictionary([("a", 2), ("b", 1)]),
        Dictionary([(f"w{n}", 1) for n in range(TARGET_VOCABULARY - 4)]),
    )
    expected = (
        "no_cross_attention=True",
        "encoder_moe_experts=4",
        "dropout='much'",
        "encoder.layers.1.fc2.bias is missing",
        "decoder.layers.0.fc1.bias (3,) gives shape (3,)",
        "decoder.adapter.weight (2, 2) belongs to no layer",
        "decoder_kernel_size_list=[3, 7]",
        "decoder.layers.1.conv.weight_linear.weight (60, 8) gives shape (8, 60)",
        "the source dictionary has 6 symbols",
    )
    for part in expected:
        assert sum(part in problem for problem in found) == 1, part
    assert len(found) == len(expected)


def test_tied_tensors_that_differ(tmp_path):
    options = lightconv(share_all_embeddings=True)
    weights = random_blocks(options)
    for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight"):
        weights[name] = weights[name] + 1
    found = problems_of(tmp_path, weights, options)
    assert len(found) == 2
    assert "encoder.embed_tokens.weight differs" in found[0]
    assert "decoder.output_projection.weight differs" in found[1]


@pytest.mark.parametrize("case", ["adaptive tied twice", "output shared"])
def test_tied_tensors_that_differ_elsewhere(tmp_path, case):
    if case in BLOCKS:
        options, name = BLOCKS[case], "decoder.adaptive_softmax.tail.1.0.weight"
        weights = random_blocks(options)
    else:
        options, name = CONVOLUTIONAL[case], "decoder.fc3.weight"
        weights = random_convolutional(options)
    weights[name] = weights[name] + 1
    (problem,) = problems_of(tmp_path, weights, options)
    assert f"{name} differs" in problem


def test_a_convolution_that_misses_its_gain(tmp_path):
    weights = random_convolutional(fconv())
    del weights["decoder.convolutions.1.weight_g"]
    del weights["encoder.fc1.weight_v"]
    found = problems_of(tmp_path, weights, fconv())
    for name in ("decoder.convolutions.1.weight_g", "encoder.fc1.weight_v"):
        assert any(f"{name} is missing" in problem for problem in found)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (transformer(activation_fn="mish"), "activation_fn='mish'"),
        (transformer(layernorm_embedding=True), "layernorm_embedding=True"),
        (transformer(no_scale_embedding=True), "no_scale_embedding=True"),
        (transformer(adaptive_softmax_cutoff="4,7"), "adaptive_softmax_cutoff='4,7'"),
        (lightconv(weight_softmax="perhaps"), "weight_softmax='perhaps'"),
        (lightconv(encoder_kernel_size_list="[3] * x"), "kernel_size_list='.3. . x'"),
    ],
)
def test_unsupported_options(tmp_path, options, name):
    plain = lightconv() if "lightconv" in options["arch"] else transformer()
    folder = write_checkpoint(tmp_path, random_blocks(plain), options)
    with pytest.raises(ConversionError, match=name):
        from_fairseq(folder)


@pytest.mark.parametrize("heads", [None, 0, "many"])
def test_heads_that_are_missing_or_no_number(tmp_path, heads):
    options = lightconv()
    weights = random_blocks(options)
    found = problems_of(tmp_path, weights, options | {"decoder_attention_heads": heads})
    assert sum("option decoder_attention_heads" in problem for problem in found) == 1


def test_every_tensor_of_a_wrong_shape_is_named(tmp_path):
    options = ddynamic(**GAU, conv_mixed=1)
    weights = random_blocks(options, "2018")
    # The shapes of the first layers say what the model is.
    wrong = [name for name in weights if ".layers.1." in name]
    for number, name in enumerate(wrong):
        shape = weights[name].shape
        shapes = [(shape[0] + 1, *shape[1:]), (*shape, 2), ()]
        weights[name] = np.zeros(shapes[number % 3], "float32")
    for number, name in enumerate(("encoder.embed_tokens.weight", wrong[0])):
        weights[name] = np.zeros((4, 4, 4)[number:], "float32")
    found = problems_of(tmp_path, weights, options)
    for name in wrong:
        assert any(f"{name} (" in problem for problem in found), name


def test_every_missing_tensor_is_named(tmp_path):
    weights = random_convolutional(fconv())
    missing = [name for name in weights if "s.1." in name or "fc2" in name]
    kept = {name: weights[name] for name in weights if name not in missing}
    found = problems_of(tmp_path, kept, fconv())
    for name in missing:
        plain = name.replace("weight_v", "weight").replace("weight_g", "weight")
        assert any(f"tensor {plain} is missing" in problem for problem in found), name


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"dropout": 10**400}, "option dropout=1000"),
        ({"encoder_kernel_size_list": [10**9] * 2}, "option encoder_kernel_size_list"),
        ({"encoder.layers.999999999.fc1.bias": 1}, "which say 3"),
        ({"encoder_layers": "[(1000000000, 3)] * 2"}, "option encoder_layers"),
        ({"decoder_out_embed_dim": 10**9}, "option decoder_out_embed_dim"),
    ],
)
def test_huge_claims_cost_nothing(tmp_path, claim, words):
    """Neither memory nor time is taken for what the tensors are not there for."""
    (name,) = claim
    if name in ("encoder_layers", "decoder_out_embed_dim"):
        options, weights = fconv(), random_convolutional(fconv())
    else:
        options, weights = lightconv(), random_blocks(lightconv())
    if "." in name:
        weights[name] = np.zeros(1, "float32")
    found = problems_of(tmp_path, weights, options | claim)
    assert any(words in problem for problem in found)


def test_tensors_of_something_else(tmp_path):
    (problem,) = problems_of(tmp_path, {"w": np.zeros((2, 2), "float32")}, {})
    assert "no model that the package knows" in problem
