"""The graphs of a model in ONNX, as `runtime/graph_files.py` describes them."""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_seqconv.decoding.onnx_graph import OPSET
from keras_seqconv.models.configuration import folded
from keras_seqconv.models.onnx_rewriting import tidied
from keras_seqconv.runtime.graph_files import ATTRIBUTES, write_graph_files
from keras_seqconv.support import onnx, onnxruntime, require, require_tensorflow, tf


def write_graphs(
    model,
    folder: str | os.PathLike,
    *,
    weights_digest: str | None = None,
) -> None:
    """Writes the graphs of a model for ONNX Runtime.

    Args:
        model: one of `keras_seqconv.models`, which stays unchanged.
        folder: existing folder; files of the same names are replaced.
        weights_digest: of the file that the weights come from, noted in `graphs.json`.

    Raises:
        ValueError: the backend is JAX, Keras has quantized the model, or an operation
            has no form in ONNX.
        ImportError: the extra `onnx` is not installed.
    """
    require_tensorflow()
    require("tf2onnx", "onnx")
    if any(getattr(x, "quantization_mode", None) for x in model._flatten_layers()):
        raise ValueError(
            "`model` must not be quantized by Keras: write the graphs of the model "
            f"that was quantized. Received: a quantized {type(model).__name__}"
        )
    model, folder = folded(model.in_float32()), Path(folder)
    start, step = _traced(model)
    notes = {name: getattr(model, name) for name in ATTRIBUTES}
    notes |= {"quantization": None, "weights_digest": weights_digest}
    write_graph_files(folder, start, step, notes)


def named(parts: dict) -> dict:
    """`{"beams_0": leaf, ...}` of nested parts, in the order of `keras.tree`."""
    return {
        f"{part}_{number}": leaf
        for part, nested in sorted(parts.items())
        for number, leaf in enumerate(keras.tree.flatten(nested))
    }


# --- From TensorFlow ---


def _traced(model) -> tuple:
    """Both graphs."""
    parts = {}

    def start(source):
        if not model.has_source:
            source = tf.shape(source)[0]
        state = model.get_initial_state(source)
        parts.update({part: state[part] for part in ("shared", "beams")})
        return named(parts)

    def step(ids, state):
        leaves = [state[name] for name in named(parts)]
        state = keras.tree.pack_sequence_as(parts, leaves)
        if model.has_source:  # to have the attention made
            state["beams"] = state["beams"] | {"attention": None}
        logits, state = model.step(ids, {"common": model._kernels(), **state})
        beams = dict(state["beams"])
        outputs = {"logits": logits}
        if model.has_source:
            outputs["attention"] = beams.pop("attention")
        return outputs | named({"next_beams": beams})

    if model.has_source:
        source = tf.TensorSpec([None, None], "int32", "source_ids")
    else:
        source = tf.TensorSpec([None, 0], "int32", "rows")
    before = converted(start, [source], model.variables)
    state = {}
    for name, leaf in named(parts).items():  # of any number of rows
        shape = [None, *leaf.shape[1:]] if len(leaf.shape) else []
        state[name] = tf.TensorSpec(shape, leaf.dtype, name)
    ids = tf.TensorSpec([None, 1], "int32", "ids")
    return before, converted(step, [ids, state], model.variables)


def converted(function, signature: list, variables: list):
    """The ONNX model of a function; its outputs are a dict of tensors by name.

    Args:
        function: of tensors and dictionaries of them, with the signature.
        variables: those that it may read. They are inputs of the trace and become
            initializers at its end: graphs of TensorFlow would hold many copies.

    Raises:
        ValueError: the function has an operation that ONNX lacks.
    """
    from tf2onnx import optimizer, tf_loader, tfonnx
    from tf2onnx.optimizer.back_to_back_optimizer import BackToBackOptimizer

    def stateless(weights, *inputs):
        pairs = list(zip(variables, weights, strict=True))
        with keras.StatelessScope(state_mapping=pairs):
            return function(*inputs)

    weights = [
        tf.TensorSpec(variable.shape, variable.dtype, f"weight_{number}")
        for number, variable in enumerate(variables)
    ]
    graph = tf.function(stateless, autograph=False)
    graph = graph.get_concrete_function(weights, *signature)
    inputs = {tensor.name: tensor.name.partition(":")[0] for tensor in graph.inputs}
    outputs = zip(graph.outputs, sorted(graph.structured_outputs), strict=True)
    outputs = {tensor.name: name for tensor, name in outputs}
    names = {"input_names": [*inputs], "output_names": [*outputs]}
    definition = graph.graph.as_graph_def(add_shapes=True)
    with tf.Graph().as_default():
        tf.import_graph_def(definition, name="")
        definition = tf_loader.tf_optimize(*names.values(), definition)
    with tf.Graph().as_default() as frozen:
        tf.import_graph_def(definition, name="")
        converted = tfonnx.process_tf_graph(
            frozen,
            opset=OPSET,
            tensors_to_rename=inputs | outputs,
            custom_op_handlers=_HANDLERS,
            **names,
        )
    pairs = {"pairs": BackToBackOptimizer}  # Squeeze and Unsqueeze of sizes
    converted = optimizer.optimize_graph(converted, False, pairs)
    converted = converted.make_model("model")
    op_types = {node.op_type for node in converted.graph.node}
    unknown = sorted(name for name in op_types if not onnx.defs.has(name, OPSET))
    if unknown:
        raise ValueError(
            "The model has operations without a form in ONNX: " + ", ".join(unknown)
        )
    named = {spec.name: x for spec, x in zip(weights, variables, strict=True)}
    _initialize(converted.graph, named)
    return _optimized(tidied(_optimized(converted)))


def _initialize(graph, variables: dict) -> None:
    """Gives the inputs of these names the values of the variables."""
    used = {name for node in graph.node for name in node.input}
    for item in [item for item in graph.input if item.name in variables]:
        graph.input.remove(item)
        if item.name in used:
            values = variables[item.name].numpy()
            graph.initializer.append(onnx.numpy_helper.from_array(values, item.name))


# What tf2onnx calls with the graph, a node, its name and the list beside it.


def _select(graph, node, name, arguments):
    """Where. tf2onnx multiplies by 0 and 1, which NaN and large numbers survive."""
    node.type = "Where"


def _erfc(graph, node, name, arguments):
    one = graph.make_const(f"{name}/one", np.array(1, "float32")).output[0]
    erf = graph.make_node("Erf", node.input).output[0]
    node.type, node.input[:] = "Sub", [one, erf]


def _einsum(graph, node, name, arguments):
    """MatMul for the product of ConvS2S, which ONNX Runtime multiplies faster."""
    if node.get_attr_str("equation") == "bte,bse->bts":
        turned = graph.make_node("Transpose", node.input[1:], attr={"perm": [0, 2, 1]})
        node.type, node.input[1] = "MatMul", turned.output[0]
    del node.attr["N"]


_HANDLERS = {"SelectV2": (_select, []), "Erfc": (_erfc, []), "Einsum": (_einsum, [])}


def _optimized(graph):
    """The graph after ONNX Runtime's own optimization, in standard operations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(graph.SerializeToString(), options)
        graph = onnx.load(path)
    for opset in [opset for opset in graph.opset_import if opset.domain]:
        graph.opset_import.remove(opset)  # ONNX Runtime names all that it has
    return graph
