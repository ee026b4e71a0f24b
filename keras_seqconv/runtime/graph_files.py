"""The files of a model's graphs.

| file          | content                                                           |
|---------------|-------------------------------------------------------------------|
| `start.onnx`  | source_ids (B, S), or rows (B, 0) of a language model, both int32 |
|               | -> the state before the first step                                |
| `step.onnx`   | ids (R, 1) int32, the state -> logits (R, V), attention (R, S),   |
|               | the next state                                                    |
| `weights.bin` | the weights of both, each once                                    |
| `graphs.json` | `ATTRIBUTES` of the model, digest of its weights                  |

R = B * G rows, G beams of each of B sentences. Parts of the state are `shared_0`, ...
(B rows, the same in all steps) and `beams_0`, ... (B rows before the first step, R in
the steps, or rank 0; the outputs of a step are `next_beams_0`, ...). A language model
has no attention.
"""

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_seqconv.support import onnx
from keras_seqconv.support.files import (
    check_version,
    naming_file,
    read_json,
    write_file,
    write_json,
)

FORMAT = 2  # of `graphs.json` and the inputs and outputs
# Of a model, in `graphs.json`.
ATTRIBUTES = (
    "pad_id", "start_id", "end_id", "unk_id", "target_vocabulary_size",
    "max_target_length", "has_source", "source_vocabulary_size", "max_source_length",
)  # fmt: skip
_GRAPHS = ("start", "step")
_INLINE = 1024  # bytes of the largest tensors that stay in the graph
_ALIGNMENT = 64  # bytes


def write_graph_files(folder: str | os.PathLike, start, step, notes: dict) -> None:
    """Writes the graphs (`onnx.ModelProto`), which lose their weights.

    Args:
        folder: existing folder; files of the same names are replaced.
        notes: further content of `graphs.json`.
    """
    folder = Path(folder)
    write_file(folder / "weights.bin", _share_weights(start, step))
    for name, graph in zip(_GRAPHS, (start, step), strict=True):
        write_file(folder / f"{name}.onnx", graph.SerializeToString())
    write_json(folder / "graphs.json", {"format": FORMAT, **notes})


def read_graph_files(folder: str | os.PathLike) -> tuple:
    """Reads a folder of `write_graph_files`.

    Returns:
        The content of `graphs.json`; the graph of a step without weights; these as
        arrays by name, read from disk when they are used.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: names the file that is damaged or of another format.
    """
    folder = Path(folder)
    notes = read_json(folder / "graphs.json")
    check_version(notes, folder / "graphs.json", FORMAT, key="format")
    with naming_file(folder / "step.onnx", "is damaged"):
        step = onnx.load(folder / "step.onnx", load_external_data=False)
    with naming_file(folder / "weights.bin", "is damaged"):
        weights = {
            weight.name: _mapped(weight, folder)
            for weight in step.graph.initializer
            if weight.external_data
        }
    return notes, step, weights


def quantize_graphs(folder: str | os.PathLike, target: str | os.PathLike) -> None:
    """Writes the graphs of a folder with the constant matrices of products in int8.

    Weights are signed and have one scale for each matrix: unsigned numbers, and a scale
    for each column, are slower on a processor with VNNI. Inputs have a scale for each
    call. Tables that ids look up stay in float32.

    Args:
        folder: as `write_graph_files` writes it, in float32.
        target: existing folder.
    """
    folder = Path(folder)
    graphs = [_quantized(onnx.load(folder / f"{name}.onnx")) for name in _GRAPHS]
    notes = read_json(folder / "graphs.json") | {"quantization": "int8"}
    write_graph_files(target, *graphs, notes)


def _quantized(model):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # What would be done first has been done.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    with tempfile.TemporaryDirectory() as folder:
        quantize_dynamic(
            model,
            Path(folder, "quantized.onnx"),
            op_types_to_quantize=["MatMul", "Gemm"],
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
        return onnx.load(Path(folder, "quantized.onnx"))


def _share_weights(*graphs) -> bytes:
    """Moves the larger tensors of the graphs into one file, whose bytes it returns."""
    content, places = bytearray(), {}
    for graph in graphs:
        factors = _factors(graph)
        # Tables first: products can use a table as it is.
        for tensor in sorted(graph.graph.initializer, key=lambda x: x.name in factors):
            values = onnx.numpy_helper.to_array(tensor)
            if values.nbytes <= _INLINE:
                continue
            if tensor.name in factors and _digest(values.T) in places:
                values = values.T
                for node in factors[tensor.name]:
                    kept = [part for part in node.attribute if part.name != "transB"]
                    turned = [*kept, onnx.helper.make_attribute("transB", 1)]
                    del node.attribute[:]
                    node.attribute.extend(turned)
                    node.op_type = "Gemm"
            key = _digest(values)
            if key not in places:
                content.extend(bytes(-len(content) % _ALIGNMENT))
                places[key] = len(content)
                content.extend(values.tobytes())
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            onnx.external_data_helper.set_external_data(
                tensor, "weights.bin", places[key], values.nbytes
            )
            tensor.ClearField("raw_data")
    return bytes(content)


def _factors(model) -> dict:
    """Name -> its products, of matrices that are the right factors of matrices only."""
    values = onnx.shape_inference.infer_shapes(model).graph.value_info
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    uses = {tensor.name: [] for tensor in model.graph.initializer}
    for node in model.graph.node:
        is_turned = any(
            attribute.name == "transB" and attribute.i for attribute in node.attribute
        )
        is_product = node.op_type == "Gemm" and not is_turned
        is_product |= node.op_type == "MatMul" and ranks.get(node.input[0]) == 2
        for place, name in enumerate(node.input):
            if is_product and place == 1 and name in uses:
                uses[name].append(node)
            else:
                uses.pop(name, None)
    return uses


def _digest(values: np.ndarray) -> bytes:
    content = hashlib.sha256(f"{values.dtype} {values.shape}".encode())
    content.update(np.ascontiguousarray(values))
    return content.digest()


def _mapped(weight, folder: Path) -> np.ndarray:
    """The array of a tensor that lies in the file of the weights."""
    place = {entry.key: entry.value for entry in weight.external_data}
    return np.memmap(
        folder / "weights.bin",
        onnx.helper.tensor_dtype_to_np_dtype(weight.data_type),
        mode="r",
        offset=int(place["offset"]),
        shape=tuple(weight.dims),
    )
