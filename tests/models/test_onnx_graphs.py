"""The graphs of a model in ONNX Runtime give what the model gives, step by step."""

import json

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import models
from keras_seqconv.decoding.onnx_graph import OPSET, Graph
from keras_seqconv.runtime.graph_files import quantize_graphs
from tests.cases import quick_and_slow
from tests.small_models import SMALL, SMALL_LM, encoder_decoder

tf = pytest.importorskip("tensorflow")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
from keras_seqconv.models.onnx_graphs import write_graphs  # noqa: E402

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:You are using a softmax over axis"),
]

SIZE, BEAMS = 30, 2
SOURCES = [[5, 6, 7, 8, 9, 2], [1, 1, 5, 6, 2, 1], [7, 2, 1, 1, 1, 1], [1] * 6]
SOURCES = np.array(SOURCES, "int32")  # padded with 1, the last one all of it
MIXERS = {
    "encoder": ["dynamic_conv", "attention", "light_conv", "query_conv"],
    "decoder": ["dynamic_conv", "attention", "light_conv", "query_conv"],
}
LAYERS = {
    "num_encoder_layers": 4,
    "num_decoder_layers": 4,
    "kernel_sizes": [3, 4, 5, 1],
}
ADAPTIVE = {"cutoffs": [10, 20], "factor": 2.0}
GATED = {"embedding_dim": 8, "convolutions": "[(8, 3), (12, 2)]"}
CASES = {
    "mixers": lambda: encoder_decoder(
        **LAYERS, mixer=MIXERS, share_embeddings="all", dtype="mixed_bfloat16",
        canon="abcd",
    ),
    "pre-norm": lambda: encoder_decoder(
        mixer="dynamic_conv", normalize_first=True, embedding_dim=6, activation="gelu",
        positions={"kind": "learned", "max_length": 20},
    ),
    "conv_s2s": lambda: models.ConvS2S(SIZE, SIZE, **GATED, output_dim=8, seed=1),
    "language_model": lambda: models.LanguageModel(
        SIZE, **SMALL_LM, kernel_sizes=[3], adaptive_softmax=ADAPTIVE,
        adaptive_input=ADAPTIVE, tie_adaptive_weights=True,
    ),
    "conv_language_model": lambda: models.ConvLanguageModel(SIZE, **GATED, seed=1),
}  # fmt: skip


def made(case):
    model = CASES[case]()
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:  # zeros would vanish from the graphs
        weight.assign_add(rng.normal(scale=0.1, size=weight.shape))
    return model


def session(folder, name):
    return onnxruntime.InferenceSession(folder / f"{name}.onnx")


def run(session, tensors):
    names = [one.name for one in session.get_inputs()]
    outputs = session.run(None, {name: tensors[name] for name in names})
    return dict(zip([one.name for one in session.get_outputs()], outputs, strict=True))


def steps_outside(folder, model, all_ids):
    """The outputs of each step for ids (rows, 1) of all beams."""
    rows = {"source_ids": SOURCES, "rows": np.zeros((len(SOURCES), 0), "int32")}
    state = {
        name: np.repeat(x, BEAMS, axis=0) if name[0] == "b" and x.ndim else x
        for name, x in run(session(folder, "start"), rows).items()
    }
    step = session(folder, "step")
    for ids in all_ids:
        outputs = run(step, {"ids": ids, **state})
        state |= {n[5:]: x for n, x in outputs.items() if n.startswith("next_")}
        yield outputs


def steps_inside(model, all_ids):
    source = SOURCES if model.has_source else len(SOURCES)
    state = model.get_initial_state(source, BEAMS, return_attention=model.has_source)
    for ids in all_ids:
        logits, state = model.step(ids, state)
        yield np.asarray(logits), state["beams"].get("attention")


@pytest.mark.parametrize(
    "case",
    quick_and_slow(
        ["language_model"], ["mixers", "pre-norm", "conv_s2s", "conv_language_model"]
    ),
)
def test_steps_are_those_of_the_model(case, tmp_path):
    model = made(case)
    write_graphs(model, tmp_path)
    model = model.in_float32()
    rng = np.random.default_rng(1)
    all_ids = rng.integers(4, SIZE, (4, len(SOURCES) * BEAMS, 1)).astype("int32")
    with ks.ops.jit_scope(False):
        expected = [*steps_inside(model, all_ids)]
    outside = [*steps_outside(tmp_path, model, all_ids)]
    for (logits, attention), outputs in zip(expected, outside, strict=True):
        np.testing.assert_allclose(outputs["logits"], logits, atol=3e-5, rtol=1e-5)
        if model.has_source:
            np.testing.assert_allclose(outputs["attention"], attention, atol=1e-5)
    notes = json.loads((tmp_path / "graphs.json").read_text())
    assert notes["has_source"] == model.has_source
    assert notes["max_target_length"] == model.max_target_length
    outputs = session(tmp_path, "start").get_outputs()
    inputs = {x.name: len(x.shape) for x in session(tmp_path, "step").get_inputs()}
    assert inputs.pop("ids") == 2
    assert {one.name: len(one.shape) for one in outputs} == inputs


def test_branches_inside_of_a_graph_find_what_they_use():
    """As those of a mixer with `ops.cond`: its values, and weights of the model."""
    from onnx import TensorProto, helper, numpy_helper

    def info(name, sizes=None):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)

    def branch(name, operator):
        node = helper.make_node(operator, ["doubled", "weight"], [name])
        return helper.make_graph([node], name, [], [info(name)])

    node = helper.make_node
    branches = {"then_branch": branch("a", "Mul"), "else_branch": branch("b", "Div")}
    nodes = [
        node("Add", ["x", "x"], ["doubled"]),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], **branches),
    ]
    weights = {"weight": np.float32([4, 4]), "zero": np.float32(0)}
    weights = [numpy_helper.from_array(x, name) for name, x in weights.items()]
    sizes = [None, 2]
    inner = helper.make_graph(
        nodes, "g", [info("x", sizes)], [info("y", sizes)], weights
    )
    versions = [helper.make_opsetid("", OPSET)]
    inner = helper.make_model(inner, opset_imports=versions, ir_version=10)
    graph = Graph()
    inputs = graph.input("x", "float32", (None, 2))
    y = graph.inline(inner, "p_", {"x": inputs})["y"]
    content = graph.model({"z": y + 1.0}).SerializeToString()
    search = onnxruntime.InferenceSession(content)
    for x, expected in (([[1, 2]], [[9, 17]]), ([[-1, -2]], [[0.5, 0]])):
        (z,) = search.run(None, {"x": np.float32(x)})
        np.testing.assert_array_equal(z, np.float32(expected))


def test_graphs_are_small_and_int8_smaller(tmp_path):
    """Each weight once, few operations, and int8 close to float32."""
    import onnx

    model = models.EncoderDecoder(
        500, 500, **{**SMALL, "hidden_dim": 32}, share_embeddings="all", seed=1
    )
    ids = np.full((1, len(SOURCES) * BEAMS, 1), 5, "int32")
    written = {}
    write_graphs(model, tmp_path)
    (tmp_path / "int8").mkdir()
    quantize_graphs(tmp_path, tmp_path / "int8")
    for kind, folder in ((None, tmp_path), ("int8", tmp_path / "int8")):
        (outputs,) = steps_outside(folder, model, ids)
        size = (folder / "weights.bin").stat().st_size
        step = onnx.load(folder / "step.onnx", load_external_data=False)
        written[kind] = outputs["logits"], size, step.graph.node
    exact, size, nodes = written[None]
    assert 4 * 500 * 32 < size < 4 * model.count_params()
    assert {"LayerNormalization", "Gemm"} < {node.op_type for node in nodes}
    assert len(nodes) <= 80
    rounded, size, nodes = written["int8"]
    assert 5 * 500 * 32 < size < 5.5 * 500 * 32  # the table, and in int8 for logits
    assert 0 < np.abs(rounded - exact).max() < 0.03 * np.abs(exact).max()
