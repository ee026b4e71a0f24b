"""One translation model in several runtimes and precisions: size, speed, BLEU.

    python benchmarks/runtimes.py MODEL SOURCE REFERENCE  # two minutes for Multi30k

MODEL is a model directory with SentencePiece tokenizers; the files have a sentence a
line. Each row is translated in a process of its own: start-up until the first sentence
is there, sentences a second one by one (the first 100) and in batches of 64 (all),
BLEU of these, and bytes of the weights on disk. "int8" of Keras is `quantize`, that of
ONNX Runtime its `quantize_dynamic`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

ALONE = 100
ROWS = ("float32", "bfloat16", "int8", "onnx", "onnx_int8")


def translator_of(row: str, model: Path, exported: Path):
    """What has `translate(texts)`, and the files that hold its weights."""
    if row.startswith("onnx"):
        import onnx_translate

        folder = exported / row
        return onnx_translate.Translator(folder), [*folder.glob("*.onnx")]
    import keras_seqconv as ks

    translator = ks.load(model, "bfloat16" if row == "bfloat16" else None)
    if row == "int8":
        translator.model.quantize("int8")
        model = exported / "int8"
    return translator, [model / "model.weights.h5"]


def measure(row: str, model: Path, exported: Path, source: Path) -> dict:
    lines = source.read_text("utf-8").splitlines()
    start = time.perf_counter()
    translator, files = translator_of(row, model, exported)
    translate = translator.translate
    translate(lines[:1])
    ready = time.perf_counter()
    translate(lines[:64])  # what is compiled or traced counts in neither rate
    for line in lines[:ALONE]:
        translate([line])
    begun = time.perf_counter()
    for line in lines[:ALONE]:
        translate([line])
    alone = time.perf_counter()
    hypotheses = translate(lines)
    done = time.perf_counter()
    if row == "int8":
        translator.save(exported / row)
    return {
        "start": ready - start,
        "one": ALONE / (alone - begun),
        "many": len(lines) / (done - alone),
        "bytes": sum(file.stat().st_size for file in files),
        "hypotheses": hypotheses,
    }


def export(model: Path, exported: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    import keras_seqconv as ks

    ks.export.onnx_model(ks.load(model), exported / "onnx")
    subprocess.run(["cp", "-r", exported / "onnx", exported / "onnx_int8"], check=True)
    for name in ("encoder.onnx", "step.onnx"):
        quantize_dynamic(
            exported / "onnx" / name,
            exported / "onnx_int8" / name,
            op_types_to_quantize=["MatMul"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "source", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--exported", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        found = measure(options.row, options.model, options.exported, options.source)
        print(json.dumps(found))
        return
    import sacrebleu
    from machine import machine

    print(machine(), "\n")
    print("| | MB | start-up, s | one by one, 1/s | batches of 64, 1/s | BLEU |")
    print("|---|--:|--:|--:|--:|--:|")
    references = [options.reference.read_text("utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        export(options.model, Path(folder))
        for row in ROWS:
            command = [sys.executable, __file__, *sys.argv[1:4]]
            command += ["--row", row, "--exported", folder]
            found = json.loads(subprocess.check_output(command).splitlines()[-1])
            bleu = sacrebleu.corpus_bleu(
                found["hypotheses"], references, tokenize="none"
            )
            print(
                f"| {row} | {found['bytes'] / 1e6:.1f} | {found['start']:.1f} | "
                f"{found['one']:.1f} | {found['many']:.0f} | {bleu.score:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
